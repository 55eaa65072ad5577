"""Measures allocations: moves, calls of a cloud, the planner, memory and CPU; and writes docs/performance.md.

    make bench-allocations                        print
    make bench-allocations ARGS=--write-docs      also write the result to docs/performance.md

The hub is the production code, on a simulated API server, with the provider ``gcp`` and its fake: every request takes L
seconds and every operation W. The figures of ip-address-controller 1.1.0 are computed from its source (docs/moving).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
from hub_provider_gcp.testing import PROJECT, GcpFake
from hub_testkit import SimulatedCluster, make_node

from benchmarks.measure import Usage, usage
from hub.allocations.claims import Claims, claims
from hub.allocations.plan import plan
from hub.allocations.spec import Meta, NetIPAllocation, Spec, read
from hub.allocations.view import Account, Answer, Machine, Site, View
from hub.app.hub import Options, assemble
from hub.cloud.addresses import Held
from hub.model import Node
from hub.registry.spec import AllocationLimits

ROOT: Final = Path(__file__).parents[1]
BEGIN, END = (
    "<!-- bench-allocations: begin (make bench-allocations ARGS=--write-docs) -->",
    "<!-- bench-allocations: end -->",
)
L, W = 0.1, 2.0
"""Seconds of a request of the cloud, and of an operation."""
GRACE: Final = 5.0
"""``notReadyGrace`` of the run."""
ROUNDS: Final = 5
REST: Final = 31.0
"""Seconds between two moves of an address, without which the next one would wait."""
LONGEST: Final = 120.0
IDLE_SECONDS: Final = 120.0
"""Seconds over which the CPU time of an idle hub is measured."""
SETTLE: Final = 20.0
"""Seconds after the start until memory and CPU time are read."""
MEBIBYTE: Final = 8.0
"""Mebibytes that allocations may use beside the libraries."""
LIBRARY: Final = """\
import asyncio, ssl, sys, uvloop, hub.cli.run, hub.app.hub
from pathlib import Path
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256
before = resident()
import aiohttp, google.auth.identity_pool
from pydantic import BaseModel, TypeAdapter
print(resident() - before)
"""
"""Prints the mebibytes of the libraries that an account loads, in a process with the modules of a hub without one."""

REGISTRY: Final = """\
version: 1
allocations:
  mode: enforce
  notReadyGrace: {grace:g}s
  limits: {{moves: 100%, window: 1s, perAddressWindow: 1s}}
  clouds:
    - name: bench
      provider: gcp
      config: {{project: {project}, regions: [us-west1], endpoint: "{url}", credentials: {{file: key.json}}}}
      addresses: [0.0.0.0/0]
      interval: 10s
"""


class Row(NamedTuple):
    """One figure: its name, the value as text, the goal, and whether it is met."""

    name: str
    value: str
    goal: str
    met: bool


class Bench:
    """The hub, its API server and the fake; serves inside ``async with``.

    Args:
        folder: an empty folder.
        ephemeral: whether the instances have ephemeral addresses.
    """

    def __init__(self, folder: Path, *, ephemeral: bool = True) -> None:
        self.folder = folder
        self.ephemeral = "external-nat" if ephemeral else ""
        self.cluster = SimulatedCluster("hub", controllers=True)
        self.fake = GcpFake()
        self._stack = AsyncExitStack()
        self._stop = asyncio.Event()
        self.address = ""

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.fake)
        self.fake.latency, self.fake.cloud.seconds = L, W
        for number in (1, 2, 3):
            self.fake.cloud.add_vm(f"n{number}", ephemeral=self.ephemeral)
            self._join(f"n{number}")
        self.address = self.fake.cloud.reserve()
        self.cluster.allocations.add(
            {"metadata": {"name": "web"}, "spec": {"reservedIPs": [self.address], "cloud": {"provider": "gcp"}}}
        )
        await self._stack.enter_async_context(self.cluster)
        self.cluster.write_kubeconfig(self.folder / "kubeconfig")
        (self.folder / "key.json").write_text(self.fake.key_file())
        text = REGISTRY.format(grace=GRACE, project=PROJECT, url=self.fake.url)
        (self.folder / "clusters.yaml").write_text(text)
        options = Options(
            registry=f"{self.folder}/clusters.yaml",
            kubeconfig=f"{self.folder}/kubeconfig",
            allow_api_hosts=frozenset((self.fake.host,)),
        )
        hub = await self._stack.enter_async_context(assemble(options))
        self._running = asyncio.create_task(hub.run(self._stop))
        await self.until(lambda: bool(self.settled()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await self._running
        await self._stack.aclose()

    def _join(self, name: str) -> None:
        self.cluster.nodes.add(make_node(name, zone="us-west1-a", provider_id=f"gce://{PROJECT}/us-west1-a/{name}"))

    def status(self) -> dict[str, Any]:
        """The status of the address."""
        found = self.cluster.allocations.get("web").get("status", {})
        return next(iter(found.get("addresses", ())), {})

    def holder(self) -> str:
        """The node that has the address at the cloud; "" = none."""
        users = self.fake.cloud.users(self.address)
        return users[0].rpartition("/")[2] if users else ""

    def settled(self) -> str:
        """The node that has the address, the label and no record; "" while a move is under way."""
        entry, holder = self.status(), self.holder()
        if entry.get("state") != "Attached" or entry.get("move") or entry.get("node") != holder:
            return ""
        labels = self.cluster.nodes.get(holder)["metadata"]["labels"]
        return holder if labels.get("ip.ready") == "true" else ""

    async def until(self, what: Callable[[], bool]) -> float:
        """Wait for something; returns the seconds.

        Raises:
            TimeoutError: it did not happen.
        """
        began = time.monotonic()
        async with asyncio.timeout(LONGEST):
            while not what():
                await asyncio.sleep(0.01)
        return time.monotonic() - began

    async def move(self, begin: Callable[[str], None]) -> tuple[float, float, int]:
        """Let a node lose the address; returns seconds until it is verified elsewhere, seconds down, requests."""
        old, before = self.settled(), len(self.fake.log)
        begin(old)
        began = time.monotonic()
        down = [0.0, 0.0]

        def elsewhere() -> bool:
            holder, now = self.holder(), time.monotonic()
            if not holder and not down[0]:
                down[0] = now
            if holder and down[0] and not down[1]:
                down[1] = now
            return self.status().get("node") not in ("", old) and self.status().get("state") == "Attached"

        await self.until(elsewhere)
        took = time.monotonic() - began
        await self.until(lambda: bool(self.settled()))
        polls = sum("operations" in served.text for served in self.fake.log[before:])
        logins = sum(served.kind == "login" for served in self.fake.log[before:])
        return took, max(0.0, down[1] - down[0]), len(self.fake.log) - before - polls - logins

    def cordon(self, name: str, *, on: bool = True) -> None:
        """Cordon a node, or uncordon it."""
        self.cluster.nodes.update(name, lambda node: node["spec"].update(unschedulable=on))


async def moves(rounds: int) -> list[Row]:
    """Moves for two causes, and an idle time."""
    with tempfile.TemporaryDirectory() as folder:
        async with Bench(Path(folder)) as bench:
            await asyncio.sleep(REST)
            before = len(bench.fake.log)
            await asyncio.sleep(61.0)
            idle = (len(bench.fake.log) - before) * 60
            drained, unready = [], []
            for _ in range(rounds):
                old = bench.settled()
                drained.append(await bench.move(bench.cordon))
                bench.cordon(old, on=False)
                await asyncio.sleep(REST)
                old = bench.settled()
                unready.append(await bench.move(lambda name: bench.cluster.nodes.set_ready(name, "Unknown")))
                bench.cluster.nodes.set_ready(old, ready=True)
                await asyncio.sleep(REST)
    with tempfile.TemporaryDirectory() as folder:
        async with Bench(Path(folder), ephemeral=False) as bench:
            await asyncio.sleep(REST)
            _, _, fewest = await bench.move(bench.cordon)
    return [
        _seconds("drained → verified elsewhere", [each[0] for each in drained], 6 + 10 * L + 5 * W),
        _seconds("address down in a drain", [each[1] for each in drained], 1 + 6 * L + 4 * W),
        _seconds("not Ready → verified elsewhere", [each[0] for each in unready], GRACE + 3 + 11 * L + 4.5 * W),
        _number("requests of a move, without polls; instances have no ephemeral addresses", [fewest], 10),
        _number("the same; both instances have ephemeral addresses", [each[2] for each in drained], 10),
        _number("requests in an idle hour, described every 30 s", [idle], 120),
    ]


def _seconds(name: str, values: list[float], goal: float) -> Row:
    found = statistics.median(values)
    return Row(name, f"{found:.1f} s", f"≤ {goal:.1f} s", found <= goal)


def _number(name: str, values: list[int], goal: float) -> Row:
    found = statistics.median(values)
    return Row(name, f"{found:g}", f"≤ {goal:g}", found <= goal)


def planner(addresses: int, nodes: int, allocations: int, goal: float) -> Row:
    """The median time of a pass in which nothing changes."""
    now = time.time()
    texts = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(addresses)]
    objects = [
        NetIPAllocation(
            Meta(f"a{number}", uid=f"u{number}", creation_timestamp="2026-01-01T00:00:00Z"),
            Spec(reserved_ips=tuple(texts[number::allocations])),
        )
        for number in range(allocations)
    ]
    machines = {
        f"n{number}": Machine(
            Node(f"n{number}", ready="True", labels={"ip.ready": "true"} if number < addresses else {}),
            f"i-{number}",
            now - 100,
        )
        for number in range(nodes)
    }
    values = tuple(map(read, objects))
    view = View(
        account=Account("bench", "gcp", ("local",), (ip_network("0.0.0.0/0"),)),  # type: ignore[arg-type]
        limits=AllocationLimits(),
        sites={"local": Site("local", machines)},
        allocations=values,
        holders=claims(values, Claims(), now).holders,
        answers={text: Answer(Held(f"i-{number}"), now) for number, text in enumerate(texts)},
        label_keys=frozenset(("ip.ready",)),
        identity="bench",
    )
    first = plan(view, now)
    stored = tuple(msgspec.structs.replace(each, status=first.statuses[each.name]) for each in values)
    view = msgspec.structs.replace(view, allocations=stored, memory=first.memory)
    took = []
    for _ in range(20):
        began = time.perf_counter()
        plan(view, now + 1)
        took.append((time.perf_counter() - began) * 1000)
    found = statistics.median(took)
    name = f"pass over {addresses} addresses in {allocations} allocations, {nodes} nodes"
    return Row(name, f"{found:.1f} ms", f"≤ {goal:g} ms", found <= goal)


# --- memory and CPU of an idle hub ---------------------------------------------------------------------


@asynccontextmanager
async def idle_hub(folder: Path, addresses: int, nodes: int) -> AsyncGenerator[tuple[int, SimulatedCluster]]:
    """Runs a hub as a process whose nodes have all addresses; yields its pid and its API server.

    Args:
        folder: an empty folder.
        addresses: the number of addresses, all in one allocation; 0 = allocations are off.
        nodes: the number of nodes.
    """
    cluster, fake = SimulatedCluster("hub", controllers=True), GcpFake()
    async with fake, cluster:
        reserved = [fake.cloud.reserve() for _ in range(addresses)]
        for number in range(nodes):
            name = f"n{number}"
            provider_id = f"gce://{PROJECT}/{fake.cloud.add_vm(name).zone}/{name}"
            labels = {"ip.ready": "true"} if number < addresses else {}
            cluster.nodes.add(make_node(name, zone="us-west1-a", provider_id=provider_id, labels=labels))
        for number, address in enumerate(reserved):
            fake.cloud.hold(address, f"n{number}")
        if reserved:
            spec = {"reservedIPs": reserved, "cloud": {"provider": "gcp"}}
            cluster.allocations.add({"metadata": {"name": "web"}, "spec": spec})
        cluster.write_kubeconfig(folder / "kubeconfig")
        (folder / "key.json").write_text(fake.key_file())
        registry = REGISTRY.format(grace=30.0, project=PROJECT, url=fake.url) if reserved else "version: 1\n"
        (folder / "clusters.yaml").write_text(registry)
        argv = [sys.executable, "-m", "hub", "run", "--registry", "clusters.yaml", "--kubeconfig", "kubeconfig"]
        argv += ["--health-probe-bind-address", "0", "--listen", "0", "--allow-api-host", fake.host]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path}) as child,
        ):
            try:
                async with asyncio.timeout(LONGEST):
                    while reserved and cluster.allocations.get("web").get("status", {}).get("attached") != addresses:
                        await asyncio.sleep(0.1)
                await asyncio.sleep(SETTLE)
                yield child.pid, cluster
            finally:
                child.terminate()


async def _idle(addresses: int, nodes: int) -> tuple[Usage, float, int]:
    """Returns what an idle hub uses, the percentage of a core, and its writes of objects that are no Leases."""
    with tempfile.TemporaryDirectory() as folder:
        async with idle_hub(Path(folder), addresses, nodes) as (pid, cluster):
            before, writes = usage(pid), _writes(cluster)
            await asyncio.sleep(IDLE_SECONDS)
            after = usage(pid)
            return after, (after.cpu - before.cpu) / IDLE_SECONDS * 100, _writes(cluster) - writes


def _writes(cluster: SimulatedCluster) -> int:
    reads = ("get", "list", "watch")
    return sum(n for (verb, what), n in cluster.requests.items() if verb not in reads and what != "leases")


async def costs(addresses: int, nodes: int) -> list[Row]:
    """Memory and CPU of a hub with allocations, beside one without."""
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", LIBRARY, stdout=subprocess.PIPE)
    libraries = float((await run.communicate())[0])
    off, percent_off, _ = await _idle(0, nodes)
    full, percent, writes = await _idle(addresses, nodes)
    more, goal = full.rss - off.rss, MEBIBYTE + libraries
    size = f"{addresses} addresses, {nodes} nodes"
    cpu = max(0.0, percent - percent_off)
    return [
        Row(
            f"memory of allocations, {size}; without them the hub has {off.rss:.0f} MiB; google-auth, aiohttp and "
            f"pydantic are {libraries:.0f} MiB",
            f"{more:.1f} MiB",
            f"≤ {goal:.1f} MiB",
            more <= goal,
        ),
        Row(f"CPU of idle allocations, {size}", f"{cpu:.2f} % of a core", "≤ 0.5 %", cpu <= 0.5),
        _number(f"Kubernetes writes in {IDLE_SECONDS:g} idle seconds, Leases aside", [writes], 0),
    ]


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| figure | hub | goal | |", "|---|---|---|---|"]
    lines += [f"| {row.name} | {row.value} | {row.goal} | {'met' if row.met else 'missed'} |" for row in rows]
    return "\n".join(lines)


def main() -> int:
    """Measure and print; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write-docs", action="store_true", help="write the result to docs/performance.md")
    options = parser.parse_args()
    rows = [planner(200, 500, 1, 20.0), planner(1000, 20_000, 1000, 500.0)]
    rows += asyncio.run(costs(200, 500))
    rows += asyncio.run(moves(options.rounds))
    text = table(rows)
    print(text)
    if options.write_docs:
        page = ROOT / "docs" / "performance.md"
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
