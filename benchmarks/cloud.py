"""Compares the hub as a cloud controller with goccm: ``make bench-cloud``.

goccm (benchmarks/goccm) makes the original's requests with the controllers of k8s.io/cloud-provider. Both get the same
API server, the same fake of Brightbox, whose answers take 100 ms, and the same Services; goccm runs with one and with
four workers, and the better figure counts. Compare ratios, and medians of one invocation: machines are noisy. With the
variable ``BRIGHTBOX_CCM``, the program that it names takes goccm's place.

    make bench-cloud                              all rows, one round: an hour and a half
    make bench-cloud ARGS="--rows create,start"   some rows
    make bench-cloud ARGS=--write-docs            write the result to docs/performance.md
    make bench-cloud ARGS=--quick                 a smoke test of a minute; the figures mean nothing
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # when run as a script, sys.path contains only benchmarks/

from benchmarks.bench import PAGE, between, machine, order  # noqa: E402
from benchmarks.cloud_world import HUB, LATENCY, Cluster, one_hub, reached, servers, writes  # noqa: E402
from benchmarks.measure import p99, usage  # noqa: E402
from benchmarks.report import replace_block  # noqa: E402
from benchmarks.subjects import go_version  # noqa: E402
from benchmarks.world import Api  # noqa: E402
from tests.support import drop_in  # noqa: E402
from tests.support.apiserver import binaries  # noqa: E402

BEGIN, END = "<!-- bench-cloud: begin (make bench-cloud ARGS=--write-docs) -->", "<!-- bench-cloud: end -->"
SUBJECTS = (HUB, "goccm-1", "goccm-4")
DELETE_AFTER = 60.0
"""The hub's default: seconds that a Node must be not Ready before it may be deleted."""
NODE_AGE = 310.0
"""Seconds after which the hub may delete a Node; younger ones stay."""
CALM = 40.0
"""Seconds until the idle time begins: 30 s after its start, the hub observes the cloud once more."""
HOUR = 3600.0


class Size(NamedTuple):
    """How much each row does, and how long it may take.

    Attributes:
        singles: Services that are created one after the other.
        balancers: Services at once.
        nodes: nodes of the large cluster.
        joining: seconds within which that many nodes join.
        idle: seconds of the idle time, which is scaled to an hour.
        clusters: number of clusters of the fleet.
        members: nodes of each.
        shares: balancers of each.
        limit: seconds that any wait may take.
    """

    singles: int = 5
    balancers: int = 50
    nodes: int = 500
    joining: float = 60.0
    idle: float = 600.0
    clusters: int = 20
    members: int = 50
    shares: int = 10
    limit: float = 400.0


QUICK = Size(2, 3, 4, 2.0, 5.0, 2, 2, 1, 60.0)


class Figure(NamedTuple):
    """A line of the table.

    Attributes:
        row: the name for ``--rows``.
        title: what is measured.
        key: in the runs.
        unit: of the values.
        ratio: the most that hub / yardstick may be; None = no goal.
        most: the most that the hub may need; None = no goal.
    """

    row: str
    title: str
    key: str
    unit: str
    ratio: float | None = None
    most: float | None = None


FIGURES: Final = (
    Figure("create", "create one balancer: apply → ingress", "create_one", "s", 0.8, 9 * LATENCY + 0.5),
    Figure("create", "create {balancers} at once: last ingress", "create_all", "s", 0.4),
    Figure("start", "start beside {balancers} unchanged balancers, {nodes} nodes", "start_time", "s", 0.1),
    Figure("start", "the same: requests of the cloud", "start_requests", "", None, 10),
    Figure("leave", "one node leaves, {balancers} balancers: last PUT", "leave", "s", 0.5),
    Figure("join", "{nodes} nodes join in {joining} s, {balancers} balancers: requests", "join_requests", "", 0.3),
    Figure("join", "the same: all balancers right after the last node", "join_right", "s", None, 15),
    Figure("taints", "{nodes} new nodes: taint off, p50", "taint_p50", "s", 0.3),
    Figure("taints", "the same, p99", "taint_p99", "s", 0.3),
    Figure("taints", "the same: requests about servers", "taint_requests", "", None, 1),
    Figure("idle", "idle hour, {nodes} nodes × {balancers} balancers: cloud requests", "idle_cloud", "", None, 40),
    Figure("idle", "the same: writes of Nodes and Services", "idle_writes", "", None, 0),
    Figure("idle", "the same: RSS", "idle_rss", "MiB", 1.2, 90),
    Figure("idle", "the same: CPU, % of a core", "idle_cpu", "%", None, 1),
    Figure("vanished", "machine vanished, Node not Ready → Node deleted", "vanished", "s", None, DELETE_AFTER + 45),
    Figure("fleet", "{clusters} clusters × {members} nodes × {shares} balancers: RSS of all", "fleet_rss", "MiB", 0.15),
    Figure("dead", "one of the clouds dead: create one elsewhere, p99; beside it when calm", "dead", "s", 1.2),
)
ROWS = tuple(dict.fromkeys(figure.row for figure in FIGURES))
LARGE: Final = ("start", "leave", "idle", "vanished")
ANY_WORKERS: Final = ("idle", "vanished", "fleet")
"""Rows that do not depend on goccm's workers: only one goccm is measured."""
NOT_QUICK: Final = ("vanished",)
Result = dict[str, float]
"""Key of a figure -> value."""


# --- one cluster -------------------------------------------------------------------------------------------


async def create(cluster: Cluster, subject: str, size: Size) -> Result:
    """Create balancers one after the other, and then many at once, in a cluster of three nodes."""
    await cluster.add_nodes(3, new=False)
    cluster.fake.latency = LATENCY
    async with cluster.running(subject):
        await cluster.quiet(size.limit)
        singles = [await created(cluster, [f"one-{number}"], size) for number in range(size.singles)]
        together = await created(cluster, [f"all-{number}" for number in range(size.balancers)], size)
    return {"create_one": statistics.median(singles), "create_all": together}


async def created(cluster: Cluster, names: Sequence[str], size: Size) -> float:
    """Create Services; returns the seconds until the last one has an ingress, at most the limit."""
    begin = time.perf_counter()
    await cluster.add_services(names)
    if not await reached(lambda: all(name in cluster.published for name in names), size.limit):
        return size.limit
    return max(cluster.published[name] for name in names) - begin


async def taints(cluster: Cluster, subject: str, size: Size) -> Result:
    """Register many new nodes at once."""
    cluster.fake.latency = LATENCY
    async with cluster.running(subject):
        await cluster.add_nodes(1, new=True)
        await reached(lambda: len(cluster.free) == 1, size.limit)
        await cluster.quiet(size.limit)
        before = len(cluster.answered)
        made = await cluster.add_nodes(size.nodes, new=True)
        await reached(lambda: made.keys() <= cluster.free.keys(), size.limit)
        end = time.perf_counter()
        asked = sum("/servers" in served.path for served in cluster.requests(before))
    took = [cluster.free.get(name, end) - at for name, at in made.items()]
    return {"taint_p50": statistics.median(took), "taint_p99": p99(took), "taint_requests": asked}


async def join(cluster: Cluster, subject: str, size: Size) -> Result:
    """New nodes join a cluster with balancers, one after the other."""
    async with prepared(cluster, subject, size, nodes=2):
        before = len(cluster.answered)
        await cluster.add_nodes(size.nodes, new=True, within=size.joining)
        last = time.perf_counter()
        if not await reached(lambda: cluster.balanced(size.balancers), size.limit):
            return {"join_requests": len(cluster.answered) - before, "join_right": size.limit}
        right = time.perf_counter() - last
        await cluster.quiet(size.limit)
        return {"join_requests": len(cluster.answered) - before, "join_right": max(0.0, right)}


async def steady(cluster: Cluster, subject: str, size: Size, rows: Sequence[str]) -> Result:
    """The given ones of the rows start, leave, idle, vanished: a large cluster in which all is as wanted at first."""
    found: Result = {}
    began = time.perf_counter()
    async with prepared(cluster, subject, size, size.nodes):
        pass
    before, begin = len(cluster.answered), time.perf_counter()
    async with cluster.running(subject) as process:
        asked = await reached(lambda: len(cluster.answered) > before, size.limit)
        done = asked and await cluster.quiet(size.limit)
        found["start_time"] = cluster.last(since=before) - begin if done else size.limit
        found["start_requests"] = len(cluster.answered) - before
        if "leave" in rows:
            found |= await leave(cluster, size)
        if "idle" in rows:
            found |= await idle(cluster, process.pid, size)
        if "vanished" in rows:
            await asyncio.sleep(max(0.0, began + NODE_AGE - time.perf_counter()))
            found |= await vanish(cluster, size)
    return found


@asynccontextmanager
async def prepared(cluster: Cluster, subject: str, size: Size, nodes: int) -> AsyncGenerator[None]:
    """The subject has made all balancers, without latency, and runs until the end of the block."""
    await cluster.add_nodes(nodes, new=False)
    cluster.fake.latency = 0.0
    async with cluster.running(subject):
        names = [f"all-{number}" for number in range(size.balancers)]
        await cluster.quiet(size.limit)
        await created(cluster, names, size)
        await cluster.quiet(size.limit)
        cluster.fake.latency = LATENCY
        yield


async def leave(cluster: Cluster, size: Size) -> Result:
    """Delete a Node."""
    before, begin = len(cluster.answered), time.perf_counter()
    await cluster.api.call("DELETE", f"/api/v1/nodes/{max(cluster.nodes)}")
    await asyncio.sleep(LATENCY)
    if not await reached(lambda: cluster.balanced(size.balancers), size.limit):
        return {"leave": size.limit}
    await cluster.quiet(size.limit)
    return {"leave": cluster.last("PUT /1.0/load_balancers", before) - begin}


async def idle(cluster: Cluster, pid: int, size: Size) -> Result:
    """Nothing happens; the requests are scaled to an hour."""
    await asyncio.sleep(CALM)
    requests, changes, used = len(cluster.answered), await writes(cluster.api), usage(pid)
    await asyncio.sleep(size.idle)
    after = usage(pid)
    return {
        "idle_cloud": (len(cluster.answered) - requests) * HOUR / size.idle,
        "idle_writes": (await writes(cluster.api) - changes) * HOUR / size.idle,
        "idle_rss": after.rss,
        "idle_cpu": (after.cpu - used.cpu) / size.idle * 100,
    }


async def vanish(cluster: Cluster, size: Size) -> Result:
    """The machine of a Node is gone, and its kubelet says nothing any more."""
    name = max(cluster.nodes)
    cluster.fake.account.remove_server(name)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": stamp}
    body, kind = {"status": {"conditions": [condition]}}, "application/strategic-merge-patch+json"
    begin = time.perf_counter()
    await cluster.api.call("PATCH", f"/api/v1/nodes/{name}/status", body, kind)
    await reached(lambda: name not in cluster.nodes, size.limit)
    return {"vanished": time.perf_counter() - begin}


# --- many clusters -----------------------------------------------------------------------------------------


async def fleet(hub: Api, apis: Sequence[Api], folder: Path, subject: str, size: Size, rows: Sequence[str]) -> Result:
    """Many clusters: one hub, or one goccm for each."""
    async with AsyncExitStack() as stack:
        clusters = {api.server.name: await stack.enter_async_context(Cluster(api, folder)) for api in apis}
        for cluster in clusters.values():
            await cluster.add_nodes(size.members, new=False)
        if subject == HUB:
            processes = [await stack.enter_async_context(one_hub(hub, clusters, folder))]
        else:
            processes = [await stack.enter_async_context(each.running(subject)) for each in clusters.values()]
        names = [f"all-{number}" for number in range(size.shares)]
        await together(clusters, lambda cluster: created(cluster, names, size))
        await together(clusters, lambda cluster: cluster.quiet(size.limit))
        found = {"fleet_rss": sum(usage(process.pid).rss for process in processes)}
        if "dead" in rows and subject == HUB:
            found |= await dead(clusters, size)
    return found


async def together(clusters: Mapping[str, Cluster], work: Callable[[Cluster], Awaitable[Any]]) -> list[Any]:
    """Do something in all clusters at once."""
    return await asyncio.gather(*map(work, clusters.values()))


async def dead(clusters: Mapping[str, Cluster], size: Size) -> Result:
    """Create balancers in all clusters but the first: while all is calm, and while the first one's cloud is dead."""
    for cluster in clusters.values():
        cluster.fake.latency = LATENCY
    first, *others = clusters.values()
    calm = await singles(others, "calm", size)
    first.fake.fail("silent", times=None)
    await first.add_services([f"dead-{number}" for number in range(size.shares)])
    await first.add_nodes(1, new=True)
    found = await singles(others, "dead", size)
    first.fake.heal()
    return {"dead": p99(found), "dead_calm": p99(calm)}


async def singles(clusters: Sequence[Cluster], name: str, size: Size) -> list[float]:
    """Create a balancer in one cluster after the other; returns their times."""
    return [
        await created(cluster, [f"{name}-{number}"], size) for number in range(size.singles) for cluster in clusters
    ]


# --- all rows ----------------------------------------------------------------------------------------------


async def measure_all(rows: Sequence[str], subjects: Sequence[str], rounds: int, size: Size) -> dict[str, Any]:
    """Measure the rows; the subjects take turns, in reverse order in every other round.

    Raises:
        KitUnavailable: the API servers or goccm are missing and cannot be built.
    """
    go = go_version(await asyncio.to_thread(drop_in.goccm))
    binaries.ensure("etcd", "kube-apiserver")
    runs: list[dict[str, Any]] = []

    def note(subject: str, number: int, found: Result) -> None:
        run = {"subject": subject, "round": number, **{key: round(value, 3) for key, value in found.items()}}
        print(json.dumps(run), flush=True)
        runs.append(run)

    with tempfile.TemporaryDirectory(prefix="hub-bench-") as name:
        folder = Path(name)
        works = [(row, work) for row, work in (("create", create), ("taints", taints), ("join", join)) if row in rows]
        large = [row for row in LARGE if row in rows]
        once = [subject for number, subject in enumerate(subjects) if subject == HUB or number < 2]
        async with servers(["eu"], folder) as [api]:
            for number in range(rounds):
                for subject in order(subjects, number):
                    for _, work in works:
                        async with Cluster(api, folder) as cluster:
                            note(subject, number, await work(cluster, subject, size))
                    if large:
                        async with Cluster(api, folder) as cluster:
                            asked = [row for row in large if subject in once or row not in ANY_WORKERS]
                            note(subject, number, await steady(cluster, subject, size, asked))
        if {"fleet", "dead"} & set(rows):
            names = ["hub", *(f"c{number}" for number in range(size.clusters))]
            async with servers(names, folder) as [hub, *apis]:
                for number in range(rounds):
                    for subject in order(once, number):
                        note(subject, number, await fleet(hub, apis, folder, subject, size, rows))
    return {"machine": machine(go), "rounds": rounds, "size": size._asdict(), "runs": runs}


def document(found: Mapping[str, Any]) -> str:
    """The measured block of docs/performance.md."""
    used, runs = found["machine"], found["runs"]
    programs = f"Python {used['python']}, Go {used['go']}, kube-apiserver {used['kubernetes']}, etcd {used['etcd']}"
    rounds = f"median of {found['rounds']} rounds" if found["rounds"] > 1 else "one round"
    idle_text = f"idle figures over {found['size']['idle']:g} s, scaled to an hour"
    lines = [
        f"{used['cores']} cores, {programs}; {rounds}; {idle_text}.",
        "",
        "| row | work | hub | goccm | hub / goccm | goal | |",
        "|---|---|---|---|---|---|---|",
    ]
    for figure in FIGURES:
        medians = values(runs, figure.key)
        if HUB in medians:
            lines.append(f"| {figure.row} | {figure.title.format(**found['size'])} | {_line(figure, medians)} |")
    return "\n".join(lines)


def values(runs: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    """Subject -> the median of its rounds; ``dead`` is compared with the calm time."""
    by_subject: dict[str, list[float]] = {}
    for run in runs:
        if key in run:
            by_subject.setdefault(run["subject"], []).append(run[key])
        if f"{key}_calm" in run:
            by_subject.setdefault("calm", []).append(run[f"{key}_calm"])
    return {subject: statistics.median(each) for subject, each in by_subject.items()}


def _line(figure: Figure, medians: Mapping[str, float]) -> str:
    hub = medians[HUB]
    others = [value for subject, value in medians.items() if subject != HUB]
    yardstick = min(others) if others else None
    ratio = hub / yardstick if yardstick else None
    goals = [f"ratio ≤ {figure.ratio:g}"] if figure.ratio is not None else []
    goals += [f"≤ {figure.most:g} {figure.unit}".rstrip()] if figure.most is not None else []
    ratio_met = None if figure.ratio is None else ratio is not None and round(ratio, 2) <= figure.ratio
    met = ratio_met is not False and (figure.most is None or hub <= figure.most)
    shown = [_shown(hub, figure.unit), "" if yardstick is None else _shown(yardstick, figure.unit)]
    compared = "" if ratio is None else f"{ratio:.2f}"
    verdict = "not compared" if ratio_met is False and ratio is None else "met" if met else "missed"
    return " | ".join([*shown, compared, ", ".join(goals), verdict])


def _shown(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if unit in ("s", "%") else f"{value:.0f} {unit}".rstrip()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if it could not run; goals that are missed do not matter."""
    parser = argparse.ArgumentParser(prog="cloud.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=names_of(ROWS), default=list(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument("--subjects", type=names_of(SUBJECTS), default=list(SUBJECTS), help="default: all")
    parser.add_argument("--rounds", type=between(1, 20), default=1)
    parser.add_argument("--idle", type=between(60, 3600), help="seconds of the idle time (default 600)")
    parser.add_argument("--quick", action="store_true", help=f"a smoke test; without {', '.join(NOT_QUICK)}")
    parser.add_argument("--write-docs", action="store_true", help="write the result to docs/performance.md")
    args = parser.parse_args(argv)
    size = QUICK if args.quick else Size()
    if args.quick:
        args.rows = [row for row in args.rows if row not in NOT_QUICK]
    if args.idle:
        size = size._replace(idle=float(args.idle))
    try:
        result = asyncio.run(measure_all(args.rows, args.subjects, args.rounds, size))
    except binaries.KitUnavailable as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    text = document(result)
    print(f"\n{text}")
    if args.write_docs and not args.quick:
        PAGE.write_text(replace_block(PAGE.read_text(), text, BEGIN, END))
    return 0


def names_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argparse type: a comma list of known names."""

    def parse(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        return found

    return parse


if __name__ == "__main__":
    sys.exit(main())
