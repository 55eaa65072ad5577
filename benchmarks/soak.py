"""Runs the hub for an hour at ten times production's rate of change, with constant faults: ``make soak``.

There are fifty simulated clusters in a separate process, a real kube-apiserver and etcd as the hub cluster, and ``hub
run`` as in production. A seed determines all changes and faults in advance (benchmarks/soak_script.py). A recorder
reads every change of every slice; memory, descriptors and tasks are sampled. At the end, benchmarks/soak_verdict.py
judges the run. It compares the log with the list ``EXPECTED``.

    make soak                                        an hour
    make soak ARGS="--minutes 5 --times 100"         a rehearsal
    make soak ARGS=--write-docs                      write table and graph to docs/
    make soak ARGS="--from build/soak.json --write-docs"    the same, from a finished run
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import platform
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # when run as a script, sys.path contains only benchmarks/

from benchmarks.report import replace_block  # noqa: E402
from benchmarks.soak_remotes import INFO, SOCKET, RemotesClient  # noqa: E402
from benchmarks.soak_script import GRACE, REPORT, Fault, Fleet, Script, Step, Truth, script  # noqa: E402
from benchmarks.soak_verdict import UNPLANNED, Expected, Soak, Verdict, graph, table, unexpected, verdicts  # noqa: E402
from benchmarks.soak_watch import ProcessSampler, Recorder  # noqa: E402
from benchmarks.subjects import hub_command  # noqa: E402
from benchmarks.world import NAMESPACE, Api, bounded, kubeconfig, service  # noqa: E402
from tests.support.apiserver import binaries  # noqa: E402
from tests.support.apiserver.process import Process  # noqa: E402
from tests.support.apiserver.server import ApiServer  # noqa: E402

PAGE = ROOT / "docs" / "soak.md"
GRAPH = ROOT / "docs" / "images" / "soak.svg"
BEGIN, END = "<!-- soak: begin (make soak ARGS=--write-docs) -->", "<!-- soak: end -->"
SAMPLE_EVERY = 5.0
"""Seconds between two samples."""
START_LIMIT = 300.0
"""Seconds that the start may take, on a busy machine."""
STOP_GRACE = 15.0
BUSY = 0.25
"""Seconds that the hub waited for a core between two samples: more count as the fault ``busy``. This is the
interval at which the hub checks that event loops still run."""
SLOW = 2.0
"""Seconds: a longer request of the harness to the hub's API server counts as the fault ``slow-api``."""

EXPECTED: tuple[Expected, ...] = tuple(
    Expected(re.compile(pattern), frozenset(faults.split()))
    for pattern, faults in (
        # A cluster cannot be reached, answers garbage or refuses; logged once per change of the error.
        (r"cluster (?P<cluster>\S+): Unreachable: \S+ (connection (lost|refused)|no answer)", "hang die 500 429 cut"),
        (r"cluster (?P<cluster>\S+): Unreachable: \S+ connection lost", "half-line"),
        (r"cluster (?P<cluster>\S+): Degraded: (its identity: )?500: ", "500"),
        (r"cluster (?P<cluster>\S+): Degraded: .*\b429 : Too Many Requests", "429"),
        (r"cluster (?P<cluster>\S+): Degraded: .*\b200 : ", "garbage"),
        # A fault ends a watch that was just renewed, which happens every 5 to 10 minutes.
        (r"cluster (?P<cluster>\S+): Degraded: .*\b200 : the watch ended at once", "cut half-line expire compact"),
        (r"cluster (?P<cluster>\S+), provider (ionos|inventory): ", "provider"),
        (r"datacenter \S+: \S+ answers 503 ", "provider"),
        # The API server of the hub cluster is down: no watch, no Lease, no writes.
        (r"hub cluster: cannot follow \w+: \S+ connection (lost|refused)", "hub-api"),
        (r"approvals are not known, 'hub approve' has no effect: ", "hub-api"),
        (r"lease of \S+: ", "hub-api"),
        (r"\S+ no longer leads: ", "hub-api"),
        (r"edge/svc-\d+: \S+ connection (lost|refused); again in ", "hub-api"),
        # The machine is busy: requests of the harness were slow too, or the hub waited for a core.
        (r"lease of \S+: (the Lease was not answered|no answer in time)", "slow-api busy start"),
        (r"\S+ no longer leads: no answer in time", "slow-api busy"),
        (r"hub cluster: cannot follow \w+: \S+ no answer in time", "slow-api hub-api"),
        (r"edge/svc-\d+: \S+ no answer in time", "slow-api hub-api"),
        (r"provider '[a-z-]+' blocks its event loop \(0\.\d s so far\)", "busy start"),
        # The registry file is not YAML.
        (r"the registry is rejected, the last good one stays in force:", "registry"),
    )
)
"""The allowed warnings, each with the faults that explain it. All other warnings, and all errors, fail the soak."""


class Run:
    """One soak. :meth:`play` executes the script."""

    def __init__(self, folder: Path, fleet: Fleet, plan: Script) -> None:
        self.folder = folder
        self.fleet = fleet
        self.script = plan
        self.truth = Truth(fleet)
        self.hub_started = self.began = time.monotonic()
        self.recorder = Recorder(self.truth, self.now)
        self.samples: list[dict[str, float]] = []
        self.remotes_info: dict[str, Any] = {}
        self.api_back: list[float] = []
        self.slow: list[tuple[float, float]] = []
        self._waiting: list[asyncio.Task[None]] = []
        self._added: list[tuple[str, str]] = []
        self._removed_services: dict[str, list[str]] = {}
        self._repacked: set[str] = set()
        self._rebuilt: set[str] = set()

    def now(self) -> float:
        """Seconds after the start."""
        return time.monotonic() - self.began

    # --- the registry ------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The registry file."""
        return self.folder / "clusters.yaml"

    def write_registry(self) -> None:
        """Write clusters.yaml for the current state, and replace the file atomically, as an editor does."""
        entries = [self._cluster(name) for name in self.fleet.names]
        services = [self._service(name) for name in sorted(self.truth.sources)]
        content = {"version": 1, "clusters": entries, "services": services}
        new = self.path.with_suffix(".new")
        new.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False))
        new.rename(self.path)

    def _cluster(self, name: str) -> dict[str, Any]:
        entry = {
            "name": name,
            "allowedCIDRs": [f"10.{name[1:]}.0.0/16"],
            "maxEndpoints": 4000 if name in self._rebuilt else 5000,
            "provider": self.remotes_info["providers"][name],
        }
        if self.fleet.kind(name) != "inventory":
            entry |= {"kubeconfig": {"path": name}, "nodes": {"notReadyGrace": f"{GRACE:.0f}s"}}
        return entry

    def _service(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "namespace": NAMESPACE,
            "sources": [{"cluster": cluster} for cluster in self.truth.sources[name]],
            "ports": [{"name": "https", "port": 30443, "protocol": "TCP"}],
            "endpointsPerSlice": 50 if name in self._repacked else 100,
        }

    # --- the script -------------------------------------------------------------------------------

    async def play(self, remotes: RemotesClient, server: ApiServer) -> None:
        """Execute every step of the script at its time."""
        steps = [(step.at, number, step) for number, step in enumerate(self.script.steps)]
        heapq.heapify(steps)
        recoveries: dict[int, tuple[str, str]] = {}  # by the negative number of the step "unready"
        while steps:
            at, number, step = heapq.heappop(steps)
            await asyncio.sleep(at - self.now())
            if number in recoveries:
                await self._ready(remotes, *recoveries.pop(number))
            elif step.action == "unready":
                recoveries[-number] = (step.cluster, await self._unready(remotes, step))
                heapq.heappush(steps, (self.now() + step.seconds, -number, step))
            elif step.action == "replace":
                await self._replace(remotes, step)
            elif step.action == "edit":
                self._edit(step)
            elif step.cluster:
                await remotes(step.action, cluster=step.cluster, what=step.what)
            else:
                await self._hub_api(server, step)

    async def _hub_api(self, server: ApiServer, step: Step) -> None:
        """Kill the hub's API server, or start it and record when it answers, which takes a while on a busy machine."""
        if step.action == "break":
            await asyncio.to_thread(server.kill)
            return
        await asyncio.to_thread(server.process.start)

        async def until_ready() -> None:
            with suppress(RuntimeError):  # it was killed again before it answered
                await asyncio.to_thread(server.wait_ready, START_LIMIT)
                self.api_back.append(self.now())

        self._waiting.append(asyncio.create_task(until_ready(), name="the hub's API server"))

    def faults(self) -> list[Fault]:
        """Return the faults of the script and of the machine.

        An outage of the hub's API server ends when the server answers again.
        """
        back = sorted(self.api_back)
        slow = [Fault("slow-api", "", begin - self.began, end - self.began) for begin, end in self.slow]
        busy = [
            Fault("busy", "", before["at"], after["at"])
            for before, after in pairwise(self.samples)
            if after["waited"] > BUSY
        ]
        return (
            slow
            + busy
            + [
                replace(fault, end=next((at for at in back if at > fault.end), fault.end))
                if fault.what == "hub-api"
                else fault
                for fault in self.script.faults
            ]
        )

    async def _replace(self, remotes: RemotesClient, step: Step) -> None:
        old = self.truth.pick(step.cluster, step.node)
        new = self.truth.join(step.cluster)
        self.truth.leave(step.cluster, old)
        await remotes("replace", cluster=step.cluster, old=old.address, new=new.address)

    async def _unready(self, remotes: RemotesClient, step: Step) -> str:
        node = self.truth.pick(step.cluster, step.node)
        node.unready = self.now()
        await remotes("unready", cluster=step.cluster, node=node.address)
        return node.address

    async def _ready(self, remotes: RemotesClient, cluster: str, address: str) -> None:
        node = self.truth.nodes[cluster][address]  # only nodes that are Ready are replaced
        await remotes("ready", cluster=cluster, node=address)
        if node.unready is not None and self.now() - node.unready > GRACE - 2:
            node.ready_again = self.now()
        node.unready = None

    def _edit(self, step: Step) -> None:
        truth, names = self.truth, sorted(self.truth.sources)
        name = names[step.node % len(names)]
        match step.what:
            case "add-source":
                cluster = next(cluster for cluster in self.fleet.names if cluster not in truth.sources[name])
                truth.sources[name].append(cluster)
                self._added.append((name, cluster))
            case "drop-source":
                for added, cluster in self._added:
                    if added in truth.sources:
                        truth.drop(added, cluster, self.now())
                self._added.clear()
            case "repack":
                self._repacked ^= {name}
            case "cluster":
                self._rebuilt ^= {self.fleet.names[step.node % self.fleet.clusters]}
            case "drop-service":
                self._removed_services[name] = truth.sources.pop(name)
            case "add-service":
                truth.sources |= self._removed_services
                self._removed_services.clear()
        if step.what == "break-file":
            self.path.write_text("version: 1\nclusters: [\n")
        else:
            self.write_registry()

    async def probe(self, api: Api) -> None:
        """Send a request to the hub's API server every second, and record slow answers, until cancelled."""
        while True:
            begin = time.monotonic()
            with suppress(aiohttp.ClientError, OSError):
                async with api.session.get("/readyz") as answer:
                    await answer.read()
            if time.monotonic() - begin > SLOW:
                self.slow.append((begin, time.monotonic()))
            await asyncio.sleep(1.0)

    async def sample(self, sampler: ProcessSampler) -> None:
        """Take samples every ``SAMPLE_EVERY`` seconds, until cancelled.

        Raises:
            OSError: the hub has ended.
        """
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            while True:
                begin = time.monotonic()
                figures = await sampler.sample(session, self.now())
                self.samples.append(figures | {"behind": len(self.recorder.wrong()), "lost": len(self.recorder.lost)})
                await asyncio.sleep(max(0.5, begin + SAMPLE_EVERY - time.monotonic()))


@asynccontextmanager
async def remote_clusters(folder: Path, fleet: Fleet, every: float) -> AsyncIterator[RemotesClient]:
    """Run the process of the remote clusters, in which every node reports once in ``every`` seconds."""
    argv = [sys.executable, str(ROOT / "benchmarks" / "soak_remotes.py"), str(folder)]
    process = Process("remotes", [*argv, str(fleet.clusters), str(fleet.nodes), str(every)], folder / "remotes.log")
    process.start()
    try:
        async with asyncio.timeout(START_LIMIT):
            while not (folder / SOCKET).exists():
                if not process.alive:
                    raise RuntimeError(f"the remote clusters did not start:\n{process.log_tail()}")
                await asyncio.sleep(0.2)
        reader, writer = await asyncio.open_unix_connection(folder / SOCKET)
        yield RemotesClient(reader, writer)
        writer.close()
    finally:
        await asyncio.to_thread(process.kill)


async def run_soak(folder: Path, fleet: Fleet, plan: Script, times: float) -> dict[str, Any]:
    """Run a soak and return its data.

    Raises:
        KitUnavailable: the API server is missing and cannot be built.
        RuntimeError: the soak did not start, or did not reach its end.
    """
    binaries.ensure("etcd", "kube-apiserver")
    run = Run(folder, fleet, plan)
    server = ApiServer("hub", folder / "hub", flags=["--audit-log-path="])
    try:
        await asyncio.to_thread(server.start)
        server.kubeconfig(kubeconfig(folder, "hub"))
        async with Api(server) as api, remote_clusters(folder, fleet, REPORT / times) as remotes:
            await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            path = f"/api/v1/namespaces/{NAMESPACE}/services"
            await bounded((partial(api.call, "POST", path, service(name)) for name in run.truth.sources), 8)
            run.remotes_info = json.loads((folder / INFO).read_text())
            run.write_registry()
            return await _with_hub(run, api, server, remotes)
    finally:
        await asyncio.to_thread(server.stop)


async def _with_hub(run: Run, api: Api, server: ApiServer, remotes: RemotesClient) -> dict[str, Any]:
    folder = run.folder
    temporary = folder / "tmp"
    temporary.mkdir()
    port = _free_port()
    argv = ["env", f"TMPDIR={temporary}", *hub_command(), "run", "--registry", str(run.path), "--log-format", "json"]
    argv += ["--kubeconfig", str(kubeconfig(folder, "hub")), "--health-probe-bind-address", "0"]
    argv += ["--metrics-bind-address", f"127.0.0.1:{port}", "--listen", f"127.0.0.1:{_free_port()}"]
    argv += [part for host in run.remotes_info["hosts"] for part in ("--allow-api-host", host)]
    hub = Process("hub", argv, folder / "hub.log")
    following = asyncio.create_task(run.recorder.follow(api), name="recorder")
    probing = asyncio.create_task(run.probe(api), name="probe")
    try:
        hub.start()
        begin = run.hub_started = time.monotonic()
        while not run.recorder.seen or run.recorder.wrong():
            if time.monotonic() - begin > START_LIMIT or not hub.alive:
                raise RuntimeError(
                    f"the slices are wrong after the start: {run.recorder.wrong()[:3]}\n{hub.log_tail()}"
                )
            await asyncio.sleep(0.5)
        print(f"all Services are right after {time.monotonic() - begin:.1f} s", flush=True)
        run.began, began = time.monotonic(), time.time()
        sampler = ProcessSampler(hub.pid, f"http://127.0.0.1:{port}/metrics", temporary, hub.log)
        sampling = asyncio.create_task(run.sample(sampler), name="samples")
        playing = asyncio.create_task(run.play(remotes, server), name="script")
        try:
            await _to_the_end(run, sampling, playing)
        finally:
            for task in (sampling, playing):
                task.cancel()
            await asyncio.gather(sampling, playing, return_exceptions=True)
        wrong, remotes_state = run.recorder.wrong(), await remotes("state")
        samples = list(run.samples)
    finally:
        for task in (following, probing):
            task.cancel()
        await asyncio.gather(following, probing, return_exceptions=True)
        await asyncio.to_thread(hub.stop, STOP_GRACE)
    return {
        "began": began,
        "faults": [asdict(fault) for fault in (Fault("start", "", run.hub_started - run.began, 0.0), *run.faults())],
        "samples": samples,
        "lost": run.recorder.lost,
        "wrong": wrong,
        "log": hub.log.read_text().splitlines(),
        "slices_seen": run.recorder.seen,
        "lists": run.recorder.lists,
        **remotes_state,
    }


async def _to_the_end(run: Run, sampling: asyncio.Task[None], playing: asyncio.Task[None]) -> None:
    """Wait until the script has ended, and print the last sample every minute."""
    while (left := run.script.seconds - run.now()) > 0:
        await asyncio.wait([sampling], timeout=min(left, 60.0))
        for task in (sampling, playing):
            if task.done():
                task.result()
        if sampling.done():
            raise RuntimeError("no more samples are taken")
        if run.samples:
            shown = {key: round(value, 1) for key, value in run.samples[-1].items()}
            print(json.dumps(shown), flush=True)
    if not playing.done():
        raise RuntimeError("the script has not reached its end: the machine is too slow")
    playing.result()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- the command -----------------------------------------------------------------------------------


def judge(found: dict[str, Any]) -> tuple[Soak, list[Verdict]]:
    """Judge the data of a run."""
    plan = found["script"]
    (first, last) = plan["quiet"]
    soak = Soak(
        seconds=plan["seconds"],
        samples=found["samples"],
        quiet=((first[0], first[1]), (last[0], last[1])),
        faults=[Fault(**fault) for fault in found["faults"]],
        log=found["log"],
        began=found["began"],
        lost=found["lost"],
        wrong=found["wrong"],
    )
    return soak, verdicts(soak, EXPECTED)


def about(found: dict[str, Any]) -> str:
    """Return a summary of the run in Markdown."""
    fleet, plan, samples = found["fleet"], found["script"], found["samples"]
    acts = Counter(step["action"] for step in plan["steps"])
    faults = Counter(fault["what"] for fault in found["faults"] if fault["what"] not in UNPLANNED)
    slow = sum(fault["what"] == "slow-api" for fault in found["faults"])
    waited = sum(sample["waited"] for sample in samples) / plan["seconds"] * 100
    rss, cpu = sorted(sample["rss"] for sample in samples), sorted(sample["cpu"] for sample in samples)
    middle = len(samples) // 2
    broken = ", ".join(f"{name} {number}" for name, number in sorted(faults.items()))
    return (
        f"{found['when']}, {found['machine']}. Seed {plan['seed']}, {plan['seconds'] / 60:g} minutes, "
        f"{fleet['clusters']} clusters × {fleet['nodes']} nodes, {fleet['services']} Services of {fleet['sources']} "
        f"clusters each.\n\n"
        f"{acts['replace']} nodes were replaced, {acts['unready']} turned not Ready and back, "
        f"{found['reports']:,} reports came in, the registry was edited {acts['edit']} times. "
        f"{faults.total()} faults: {broken}.\n\n"
        f"The recorder saw {found['slices_seen']:,} changes of slices. Memory: median {rss[middle]:.0f} MiB, "
        f"{rss[0]:.0f} to {rss[-1]:.0f}. CPU: median {cpu[middle]:.1f} % of a core, at most {cpu[-1]:.0f} % over "
        f"{SAMPLE_EVERY:g} s. The hub could have run and had no core for {waited:.1f} % of the time; "
        f"{slow} requests of the harness's own took more than {SLOW:g} s."
    )


def write_docs(found: dict[str, Any], soak: Soak, results: list[Verdict]) -> None:
    """Write table and graph to docs/."""
    GRAPH.write_text(graph(soak, f"Soak: {soak.seconds / 60:g} minutes, seed {found['script']['seed']}"))
    PAGE.write_text(replace_block(PAGE.read_text(), f"{about(found)}\n\n{table(results)}", BEGIN, END))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a soak, or read a saved one, and judge it. Returns 1 if a limit is missed or the soak could not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=10.0, help="multiple of production's rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clusters", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=100, help="per cluster")
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak.json", help="file for the results")
    parser.add_argument("--from", dest="source", type=Path, help="judge saved results instead of running")
    parser.add_argument("--write-docs", action="store_true", help="write table and graph to docs/")
    args = parser.parse_args(argv)
    if args.source is not None:
        found = json.loads(args.source.read_text())
    else:
        fleet = Fleet(args.clusters, args.nodes, args.services)
        plan = script(args.seed, args.minutes * 60, fleet, args.times)
        with tempfile.TemporaryDirectory(prefix="hub-soak-") as folder:
            try:
                found = asyncio.run(run_soak(Path(folder), fleet, plan, args.times))
            except (binaries.KitUnavailable, RuntimeError, OSError) as error:
                print(f"the soak could not run: {error}", file=sys.stderr)
                return 1
        machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
        found |= {"when": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}
        found |= {"fleet": asdict(fleet), "script": asdict(plan)}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found))
    soak, results = judge(found)
    for line in [*unexpected(soak, EXPECTED)[:20], *soak.lost[:20], *soak.wrong[:20]]:
        print(line[:500])
    print(f"\n{about(found)}\n\n{table(results)}")
    if args.write_docs:
        write_docs(found, soak, results)
    return 0 if all(verdict.met for verdict in results) else 1


if __name__ == "__main__":
    sys.exit(main())
