"""One hub beside several that share the work: memory and CPU of each, on the same fleet under the same load.

    python -m benchmarks.scale.shards [--row 500x100x4] [--replicas 3] [--shards 12] [--seconds 60]

Nothing is pinned. Both are measured as they are after a start and the same time under load: every node reports once in
five minutes, and 1 % of the nodes are replaced per minute.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.measure import Usage, usage
from benchmarks.scale.__main__ import row
from benchmarks.scale.fleet import Fleet, fleet
from benchmarks.world import NAMESPACE, Row, kubeconfig
from tests.support.apiserver.process import Process

BEAT: Final = 300.0
REPLACED: Final = 0.01
GOAL: Final = 0.45
"""Of the single hub's, for each of three."""
PATIENCE: Final = 600.0
SHARED_WITHIN: Final = 240.0
CALM: Final = 5.0


async def right(made: Fleet) -> bool:
    """Whether every Service has as many endpoints as it should."""
    wanted = await made.addresses()
    path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
    found: dict[str, int] = {}
    for each in (await made.api.call("GET", path))["items"]:
        name = each["metadata"]["labels"]["kubernetes.io/service-name"]
        found[name] = found.get(name, 0) + len(each["endpoints"] or ())
    return found == {name: len(addresses) for name, addresses in wanted.items()}


async def shared(made: Fleet, replicas: int, shards: int) -> bool:
    """Whether all shards are held, by so many, evenly."""
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    held = [each["spec"].get("holderIdentity") or "" for each in (await made.api.call("GET", path))["items"]]
    names = set(held) - {""}
    return (len(held), len(names)) == (shards, replicas) and max(map(held.count, names)) == -(-shards // replicas)


async def until(what: str, check: object, seconds: float) -> float:
    """Wait for a coroutine function to say yes; how long that took."""
    started = time.monotonic()
    while not await check():  # type: ignore[operator]
        if time.monotonic() - started > seconds:
            raise SystemExit(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.5)
    return time.monotonic() - started


async def calm(pids: Sequence[int]) -> bool:
    """Whether nobody has much to do: all clusters are followed, also where the slices were right before that."""
    before = [usage(each).cpu for each in pids]
    await asyncio.sleep(CALM)
    return all(usage(each).cpu - then < 0.1 * CALM for each, then in zip(pids, before, strict=True))


async def measured(made: Fleet, replicas: int, shards: int, seconds: float) -> list[Usage]:
    """What each replica uses under load: memory at the end, CPU seconds of the time."""
    hubs = []
    access = ["--registry", str(made.folder / "clusters.yaml"), "--kubeconfig", str(kubeconfig(made.folder, "hub"))]
    argv = [sys.executable, "-m", "hub", "run", *access, "--health-probe-bind-address", "0", "--listen", "0"]
    with ExitStack() as stack:
        for number in range(replicas):
            hub = Process(f"hub-{number}", [*argv, "--shards", str(shards)], made.folder / f"hub-{number}.log")
            hub.start()
            stack.callback(hub.stop)
            hubs.append(hub)
        if shards > 1:
            await until("shares", lambda: shared(made, replicas, shards), SHARED_WITHIN)
        await until("every Service right", lambda: right(made), PATIENCE)
        await until("calm", lambda: calm([each.pid for each in hubs]), PATIENCE)
        await made.order(beat=BEAT, replace=REPLACED)
        before = [usage(each.pid) for each in hubs]
        await asyncio.sleep(seconds)
        after = [usage(each.pid) for each in hubs]
        await made.order(beat=0, replace=0)
        await until("every Service right again", lambda: right(made), PATIENCE)
    return [Usage(now.rss, now.peak, now.cpu - then.cpu) for then, now in zip(before, after, strict=True)]


async def compare(given: argparse.Namespace) -> bool:
    """Both, one after the other, as a table; whether the goal is met."""
    with tempfile.TemporaryDirectory() as folder:
        async with fleet(given.row, Path(folder)) as made:
            await measured(made, 1, 1, 0)  # a start in which the slices are there is another one
            [single] = await measured(made, 1, 1, given.seconds)
            several = await measured(made, given.replicas, given.shards, given.seconds)
    say = sys.stdout.write
    say(
        f"{given.row}, {given.seconds:g} s under load: one hub, and {given.replicas} that share {given.shards} shards\n"
    )
    say("| | memory | its peak | CPU |\n|---|---|---|---|\n")
    say(f"| one hub | {single.rss:.0f} MiB | {single.peak:.0f} MiB | {single.cpu:.1f} s |\n")
    for number, each in enumerate(several):
        parts = (each.rss / single.rss, each.peak / single.peak, each.cpu / single.cpu)
        texts = (f"{each.rss:.0f} MiB", f"{each.peak:.0f} MiB", f"{each.cpu:.1f} s")
        cells = " | ".join(f"{text} ({part:.0%})" for text, part in zip(texts, parts, strict=True))
        say(f"| replica {number} | {cells} |\n")
    return all(each.rss <= GOAL * single.rss and each.cpu <= GOAL * single.cpu for each in several)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; exit code 1 where the goal is missed and ``--judge`` was given."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.shards", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", type=row, default=Row(500, 100, 4), metavar="CLUSTERSxNODESxSERVICES")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=60, help="under load")
    parser.add_argument("--judge", action="store_true", help=f"exit 1 where a replica uses more than {GOAL:.0%}")
    given = parser.parse_args(argv)
    met = asyncio.run(compare(given))
    return 0 if met or not given.judge else 1


if __name__ == "__main__":
    sys.exit(main())
