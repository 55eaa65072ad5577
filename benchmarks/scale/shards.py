"""Compares one hub with several that share the work: memory and CPU of each, on the same fleet with the same load.

    python -m benchmarks.scale.shards [--row 500x100x4] [--replicas 3] [--shards 12] [--seconds 60]

Processes are not pinned to cores. Memory and CPU are measured for a time under load after the start: every node reports
once in five minutes, and 1 % of the nodes are replaced per minute.
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

REPORT: Final = 300.0
"""Seconds between two reports of a node."""
REPLACED: Final = 0.01
"""Share of all nodes that is replaced per minute."""
GOAL: Final = 0.45
"""Upper limit of memory and CPU of each of three replicas, as a share of the single hub's."""
TIMEOUT: Final = 600.0
"""Seconds until every Service must be right, and every hub idle."""
SHARES_TIMEOUT: Final = 240.0
"""Seconds until the replicas must have divided the shards evenly."""
IDLE_WINDOW: Final = 5.0
"""Seconds over which CPU is measured to find out whether a hub is idle."""


async def right(filled: Fleet) -> bool:
    """Whether every Service has the right number of endpoints."""
    wanted = await filled.addresses()
    path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
    found: dict[str, int] = {}
    for slice_ in (await filled.api.call("GET", path))["items"]:
        name = slice_["metadata"]["labels"]["kubernetes.io/service-name"]
        found[name] = found.get(name, 0) + len(slice_["endpoints"] or ())
    return found == {name: len(addresses) for name, addresses in wanted.items()}


async def shared(filled: Fleet, replicas: int, shards: int) -> bool:
    """Whether all shards are held, divided evenly between ``replicas`` holders."""
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    holders = [lease["spec"].get("holderIdentity") or "" for lease in (await filled.api.call("GET", path))["items"]]
    names = set(holders) - {""}
    return (len(holders), len(names)) == (shards, replicas) and max(map(holders.count, names)) == -(-shards // replicas)


async def until(what: str, check: object, seconds: float) -> float:
    """Wait until a coroutine function returns True. Returns the seconds that it took."""
    started = time.monotonic()
    while not await check():  # type: ignore[operator]
        if time.monotonic() - started > seconds:
            raise SystemExit(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.5)
    return time.monotonic() - started


async def idle(pids: Sequence[int]) -> bool:
    """Whether all hubs are idle.

    Then they follow all clusters. Right slices alone do not show that: they may be left from an earlier hub.
    """
    before = [usage(pid).cpu for pid in pids]
    await asyncio.sleep(IDLE_WINDOW)
    return all(usage(pid).cpu - then < 0.1 * IDLE_WINDOW for pid, then in zip(pids, before, strict=True))


async def measure(filled: Fleet, replicas: int, shards: int, seconds: float) -> list[Usage]:
    """Return what each replica uses under load: memory at the end, and CPU seconds during the load."""
    hubs = []
    access = ["--registry", str(filled.folder / "clusters.yaml"), "--kubeconfig", str(kubeconfig(filled.folder, "hub"))]
    argv = [sys.executable, "-m", "hub", "run", *access, "--health-probe-bind-address", "0", "--listen", "0"]
    with ExitStack() as stack:
        for number in range(replicas):
            hub = Process(f"hub-{number}", [*argv, "--shards", str(shards)], filled.folder / f"hub-{number}.log")
            hub.start()
            stack.callback(hub.stop)
            hubs.append(hub)
        if shards > 1:
            await until("shares", lambda: shared(filled, replicas, shards), SHARES_TIMEOUT)
        await until("every Service right", lambda: right(filled), TIMEOUT)
        await until("idle", lambda: idle([hub.pid for hub in hubs]), TIMEOUT)
        await filled.command(beat=REPORT, replace=REPLACED)
        before = [usage(hub.pid) for hub in hubs]
        await asyncio.sleep(seconds)
        after = [usage(hub.pid) for hub in hubs]
        await filled.command(beat=0, replace=0)
        await until("every Service right again", lambda: right(filled), TIMEOUT)
    return [Usage(now.rss, now.peak, now.cpu - then.cpu) for then, now in zip(before, after, strict=True)]


async def compare(args: argparse.Namespace) -> bool:
    """Measure both, and print a table. Returns whether the goal is met."""
    with tempfile.TemporaryDirectory() as folder:
        async with fleet(args.row, Path(folder)) as filled:
            await measure(filled, 1, 1, 0)  # the first start creates all slices, so it is not measured
            [single] = await measure(filled, 1, 1, args.seconds)
            several = await measure(filled, args.replicas, args.shards, args.seconds)
    say = sys.stdout.write
    say(f"{args.row}, {args.seconds:g} s under load: one hub, and {args.replicas} that share {args.shards} shards\n")
    say("| | memory | its peak | CPU |\n|---|---|---|---|\n")
    say(f"| one hub | {single.rss:.0f} MiB | {single.peak:.0f} MiB | {single.cpu:.1f} s |\n")
    for number, usage_ in enumerate(several):
        parts = (usage_.rss / single.rss, usage_.peak / single.peak, usage_.cpu / single.cpu)
        texts = (f"{usage_.rss:.0f} MiB", f"{usage_.peak:.0f} MiB", f"{usage_.cpu:.1f} s")
        cells = " | ".join(f"{text} ({part:.0%})" for text, part in zip(texts, parts, strict=True))
        say(f"| replica {number} | {cells} |\n")
    return all(usage_.rss <= GOAL * single.rss and usage_.cpu <= GOAL * single.cpu for usage_ in several)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison. Returns 1 if the goal is missed and ``--judge`` was given."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.shards", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", type=row, default=Row(500, 100, 4), metavar="CLUSTERSxNODESxSERVICES")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=60, help="seconds under load")
    parser.add_argument("--judge", action="store_true", help=f"exit 1 if a replica uses more than {GOAL:.0%}")
    args = parser.parse_args(argv)
    met = asyncio.run(compare(args))
    return 0 if met or not args.judge else 1


if __name__ == "__main__":
    sys.exit(main())
