"""Compares how fast the hub and a client-go watcher update the copy of a Service: ``make bench-copy``.

There is one API server on loopback, with a source of one slice and its copy. Each change replaces one address of the
source; the time runs from that request until a separate watch sees the new address in the copy. First, each change
waits until the copy shows the previous one; then there are 5 and 20 changes a second, which do not wait. The programs
take turns, in reverse order in every other round: compare medians of one invocation.

    make bench-copy                              3 endpoints and 100, 3 rounds: about a quarter of an hour
    make bench-copy ARGS="--sizes 1000"          another size, at most 1,000
    make bench-copy ARGS=--write-docs            write the result to docs/performance.md
    make bench-copy ARGS=--quick                 a smoke test; the figures mean nothing
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # when run as a script, sys.path contains only benchmarks/

from benchmarks.bench import PAGE, between, machine, order  # noqa: E402
from benchmarks.measure import p99  # noqa: E402
from benchmarks.report import replace_block  # noqa: E402
from benchmarks.slices import Event  # noqa: E402
from benchmarks.subjects import go_version, hub_command  # noqa: E402
from benchmarks.world import NAMESPACE, SLICES, Api, kubeconfig, service  # noqa: E402
from tests.support.apiserver import binaries  # noqa: E402
from tests.support.apiserver.process import Process  # noqa: E402
from tests.support.apiserver.server import ApiServer  # noqa: E402

GOCOPY = Path(__file__).resolve().parent / "gocopy"
SUBJECTS = ("gocopy", "hub")
GOALS = {"p50_ms": 1.2, "p99_ms": 1.5}
"""Upper limits of the ratio hub / gocopy."""
GOOD_ENOUGH = 60.0
"""Milliseconds: the ratio does not matter if the hub's time is at most this."""
PACES = (0, 5, 20)
"""Changes a second; 0 = each change waits until the copy shows the previous one."""
SOURCE, TARGET = "source", "copy"
LIMIT = 30.0
BEGIN, END = "<!-- bench-copy: begin (make bench-copy ARGS=--write-docs) -->", "<!-- bench-copy: end -->"


class Copy:
    """The addresses in the copy's slice, from a watch."""

    def __init__(self) -> None:
        self.addresses: frozenset[str] = frozenset()
        self.changed = asyncio.Event()

    def apply(self, event: Event) -> None:
        """Apply an event of the watch."""
        endpoints = [] if event.type == "DELETED" else event.object.endpoints or []
        self.addresses = frozenset(address for endpoint in endpoints for address in endpoint.addresses)
        self.changed.set()

    async def until(self, reached: Callable[[frozenset[str]], bool]) -> float:
        """Wait until the addresses fulfil a condition. Returns the ``time.perf_counter()`` of that moment."""
        async with asyncio.timeout(LIMIT):
            while not reached(self.addresses):
                self.changed.clear()
                await self.changed.wait()
        return time.perf_counter()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if it could not run; goals that are missed do not matter."""
    parser = argparse.ArgumentParser(prog="service_copy.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=sizes, default=[3, 100], help="endpoints of the source: 3,100")
    parser.add_argument("--subjects", type=lambda text: text.split(","), default=list(SUBJECTS))
    parser.add_argument("--rounds", type=between(1, 100), default=3)
    parser.add_argument(
        "--changes", type=between(1, 10_000), default=200, help="changes that wait for the copy, per round"
    )
    parser.add_argument(
        "--seconds", type=between(1, 600), default=30, help="seconds of changes at each pace, per round"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: 1 round, 3 changes")
    parser.add_argument("--write-docs", action="store_true", help="write the result to docs/performance.md")
    args = parser.parse_args(argv)
    if args.quick:
        args.sizes, args.rounds, args.changes, args.seconds = [3], 1, 3, 1
    try:
        result = asyncio.run(measure_all(args))
    except binaries.KitUnavailable as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 1
    text = document(result)
    print(f"\n{text}")
    if args.write_docs and not args.quick:
        PAGE.write_text(replace_block(PAGE.read_text(), text, BEGIN, END))
    return 0


def sizes(text: str) -> list[int]:
    """Parse sizes such as ``3,100``."""
    found = [int(part) for part in text.split(",")]
    if not all(1 <= size <= 1000 for size in found):
        raise argparse.ArgumentTypeError("a slice holds 1 to 1000 endpoints")
    return found


async def measure_all(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes, rounds and programs of the command line.

    Raises:
        KitUnavailable: the API server or the Go program is missing and cannot be built.
    """
    go = "not used"
    if "gocopy" in args.subjects:
        go = go_version(await asyncio.to_thread(binaries.ensure_go_program, GOCOPY))
    binaries.ensure("etcd", "kube-apiserver")
    runs = []
    with tempfile.TemporaryDirectory(prefix="hub-bench-") as name:
        folder = Path(name)
        server = ApiServer("hub", folder / "hub", flags=["--audit-log-path="])
        await asyncio.to_thread(server.start)
        try:
            server.kubeconfig(kubeconfig(folder, "hub"))
            async with Api(server) as api:
                await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
                await api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/services", service(TARGET))
                for size in args.sizes:
                    for number in range(args.rounds):
                        for subject in order(args.subjects, number):
                            counts = {pace: args.seconds * pace or args.changes for pace in PACES}
                            for pace, times in (await one_run(api, folder, subject, size, counts)).items():
                                run = {
                                    "subject": subject,
                                    "endpoints": size,
                                    "pace": pace,
                                    "round": number,
                                    "p50_ms": round(statistics.median(times) * 1000, 2),
                                    "p99_ms": round(p99(times) * 1000, 2),
                                }
                                print(json.dumps(run), flush=True)
                                runs.append(run)
        finally:
            await asyncio.to_thread(server.stop)
    return {"machine": machine(go), "runs": runs}


async def one_run(api: Api, folder: Path, subject: str, size: int, counts: Mapping[int, int]) -> dict[int, list[float]]:
    """Run one program. Returns the seconds of each change by pace; ``counts`` is the number of changes of each pace."""
    await api.call("DELETE", f"{SLICES}?labelSelector=kubernetes.io/service-name")
    addresses = [f"10.50.{number >> 8}.{number & 255}" for number in range(size)]
    made = await api.call("POST", SLICES, source_slice(addresses))
    version = made["metadata"]["resourceVersion"]
    copy = Copy()
    selector = f"labelSelector=kubernetes.io/service-name={TARGET}"
    watching = asyncio.create_task(api.watch(f"{SLICES}?{selector}", version, copy.apply))
    fresh = (f"10.60.{number >> 8}.{number & 255}" for number in itertools.count())
    try:
        async with running(folder, subject):
            await copy.until(lambda seen: seen == frozenset(addresses))
            return {pace: await changes(api, copy, addresses, fresh, pace, count) for pace, count in counts.items()}
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def changes(
    api: Api, copy: Copy, addresses: list[str], fresh: Iterator[str], pace: int, count: int
) -> list[float]:
    """Replace one address after the other. Returns the seconds until the copy had each new one."""

    async def published(begin: float, address: str) -> float:
        return await copy.until(lambda found: address in found) - begin

    waiting: list[asyncio.Task[float]] = []
    begin = time.perf_counter()
    for number in range(count):
        if pace:
            await asyncio.sleep(max(0.0, begin + number / pace - time.perf_counter()))
        address = addresses[number % len(addresses)] = next(fresh)
        waiting.append(asyncio.create_task(published(time.perf_counter(), address)))
        # Awaited, because each request replaces all addresses: requests must not overtake each other.
        body = {"endpoints": source_slice(addresses)["endpoints"]}
        await api.call("PATCH", f"{SLICES}/{SOURCE}", body, "application/merge-patch+json")
        if not pace:
            await waiting[-1]
    return [await task for task in waiting]


def source_slice(addresses: Sequence[str]) -> dict[str, Any]:
    """Return the source's only slice."""
    conditions = {"ready": True, "serving": True, "terminating": False}
    return {
        "metadata": {"name": SOURCE, "labels": {"kubernetes.io/service-name": SOURCE}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": conditions} for ip in addresses],
        "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
    }


@asynccontextmanager
async def running(folder: Path, subject: str) -> AsyncIterator[None]:
    """Run one program; the hub runs as in production."""
    access = str(kubeconfig(folder, "hub"))
    if subject == "gocopy":
        argv = [str(binaries.ensure_go_program(GOCOPY)), "-kubeconfig", access, "-source", SOURCE, "-target", TARGET]
    else:
        copied = {"name": "service-copy", "config": {"namespace": NAMESPACE, "name": SOURCE}}
        entry = {
            "name": TARGET,
            "namespace": NAMESPACE,
            "sources": [{"cluster": "local", "provider": copied}],
            "endpointsPerSlice": 1000,
        }
        file = folder / "clusters.yaml"
        file.write_text(yaml.safe_dump({"version": 1, "services": [entry]}))
        argv = [*hub_command(), "run", "--registry", str(file), "--kubeconfig", access]
        argv += ["--health-probe-bind-address", "0"]
    process = Process(subject, argv, folder / f"{subject}.log")
    await asyncio.to_thread(process.start)
    try:
        yield
    finally:
        await asyncio.to_thread(process.stop)


def goal(key: str, pace: int) -> str:
    """Return the text of the goal."""
    return f"≤ {GOALS[key]} or hub ≤ {GOOD_ENOUGH:g} ms" if _accepts_short_times(key, pace) else f"≤ {GOALS[key]}"


def verdict(key: str, pace: int, values: Mapping[str, float], ratio: float | None) -> str:
    """Return whether the hub reaches the goal; "" if there is no ratio."""
    if ratio is None:
        return ""
    short = _accepts_short_times(key, pace) and values["hub"] <= GOOD_ENOUGH
    return "met" if short or round(ratio, 2) <= GOALS[key] else "missed"


def _accepts_short_times(key: str, pace: int) -> bool:
    return pace > 0 or key == "p99_ms"


def document(found: dict[str, Any]) -> str:
    """Return the measured block of docs/performance.md."""
    used = found["machine"]
    programs = f"Python {used['python']}, Go {used['go']}, kube-apiserver {used['kubernetes']}, etcd {used['etcd']}"
    about = f"{used['cores']} cores, {programs}; medians over the rounds."
    lines = [
        about,
        "",
        "| source | figure | hub | gocopy | hub / gocopy | goal | |",
        "|---|---|---|---|---|---|---|",
    ]
    for size, pace in sorted({(run["endpoints"], run["pace"]) for run in found["runs"]}):
        when = f"{pace} changes a second" if pace else "one change after the other"
        for key, title in (("p50_ms", "p50"), ("p99_ms", "p99")):
            values = {
                name: statistics.median(
                    run[key]
                    for run in found["runs"]
                    if (run["subject"], run["endpoints"], run["pace"]) == (name, size, pace)
                )
                for name in SUBJECTS
                if any(run["subject"] == name for run in found["runs"])
            }
            shown = [f"{values[name]:.1f} ms" if name in values else "" for name in ("hub", "gocopy")]
            ratio = values["hub"] / values["gocopy"] if len(values) == len(SUBJECTS) else None
            lines.append(
                f"| {size} endpoints, {when} | change → copy, {title} | {shown[0]} | {shown[1]} | "
                f"{'' if ratio is None else f'{ratio:.2f}'} | {goal(key, pace)} | {verdict(key, pace, values, ratio)} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
