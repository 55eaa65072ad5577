"""Measures the cost of health checks and the time until they detect failures, with the hub's own board and prober.

Everything runs in a separate network namespace without access to other networks: 10.7.0.0/16 is local, and packets to
10.7.96.0/20 are dropped. The backends are a separate process, whose CPU is not counted.

    make bench-health                            a few minutes
    make bench-health ARGS="--seconds 10"        shorter
    make bench-health ARGS=--write-docs          write the result to docs/performance.md
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hub_testkit.simulator.identity import AUTHORITY, server_tls  # noqa: E402

from benchmarks.report import replace_block  # noqa: E402
from hub.decide.checks import Check, Watch  # noqa: E402
from hub.model import PUBLISHED, Endpoint, TargetKey  # noqa: E402
from hub.observe.health.board import Board, exchanges  # noqa: E402
from hub.observe.health.prober import Probe  # noqa: E402
from hub.runtime.clock import SystemClock  # noqa: E402

INSIDE = "HUB_BENCH_INSIDE_NAMESPACE"
SETUP = (
    "ip link set lo up && ip route add local 10.7.0.0/16 dev lo && "
    "ip link add blackhole type bridge && ip link set blackhole arp off up && ip addr add 10.6.0.1/32 dev blackhole && "
    'ip route add 10.7.96.0/20 dev blackhole table local && exec "$@"'
)
CLUSTERS, PER_CLUSTER = 20, 250
BLACKHOLED = 2000
DEAD_CLUSTERS, DEAD_PER_CLUSTER = 10, 25
INTERVAL, TIMEOUT, FALL = 5.0, 3.0, 3
HTTPS_SHARE = 10
"""One in ten addresses is probed with https, because the backends' part of the handshakes needs CPU as well."""
PORTS = {"tcp": 18080, "http": 18080, "grpc": 15051, "https": 18443}
BEGIN, END = "<!-- bench-health: begin (make bench-health ARGS=--write-docs) -->", "<!-- bench-health: end -->"
DOCS = ROOT / "docs/performance.md"


class Figure(NamedTuple):
    """A row of the result table. ``met`` is None if there is no goal."""

    name: str
    value: str
    goal: str
    met: bool | None


# --- the backends --------------------------------------------------------------------------------


class Backend(asyncio.Protocol):
    """Answers every request with 200 and closes the connection."""

    greeting = b""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        self.transport = transport
        transport.write(self.greeting)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        """Answer, and close."""
        self.transport.write(self.answer)  # type: ignore[attr-defined]
        self.transport.close()


class GrpcBackend(Backend):
    """Greets as HTTP/2 servers do; answers a call with the bytes that h2 makes of the answer SERVING."""

    def __init__(self) -> None:
        self.greeting, self.answer = grpc_bytes()

    def data_received(self, data: bytes) -> None:
        """Answer the call; what follows is the acknowledgement of the greeting."""
        if data.startswith(b"PRI"):
            self.transport.write(self.answer)  # type: ignore[attr-defined]


@cache
def grpc_bytes() -> tuple[bytes, bytes]:
    """The settings of a gRPC server, and its answer."""
    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    greeting = connection.data_to_send()
    connection.receive_data(exchanges(Check("grpc", PORTS["grpc"]))("10.7.0.1").unsent)
    connection.clear_outbound_data_buffer()
    connection.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    connection.send_data(1, b"\0\0\0\0\2\x08\1")
    connection.send_headers(1, [("grpc-status", "0"), ("grpc-message", "")], end_stream=True)
    return greeting, connection.data_to_send()


def serve() -> None:
    """Serve on all addresses. Runs in a separate process."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        plain = await loop.create_server(Backend, "0.0.0.0", PORTS["http"], backlog=4096)
        tls = await loop.create_server(Backend, "0.0.0.0", PORTS["https"], ssl=server_tls(), backlog=4096)
        grpc = await loop.create_server(GrpcBackend, "0.0.0.0", PORTS["grpc"], backlog=4096)
        await asyncio.gather(plain.serve_forever(), tls.serve_forever(), grpc.serve_forever())

    uvloop.run(main())


# --- what is measured -------------------------------------------------------------------------------


class AllowAll:
    """An address policy that allows every address."""

    def accepts(self, text: str) -> bool:  # noqa: ARG002
        return True


class Recorder(Board):
    """A board that records when each probe began."""

    def __init__(self, folder: str) -> None:
        super().__init__(SystemClock(), lambda _: None, folder)
        self.starts: dict[str, list[float]] = {}
        self.failures = 0
        self.recording = False

    def _answered(self, probe: Probe, outcome: str, now: float) -> None:
        if self.recording:
            self.starts.setdefault(probe.address, []).append(probe.started)
            self.failures += bool(outcome)
        super()._answered(probe, outcome, now)


def live(cluster: int) -> list[str]:
    """Return the addresses of a cluster that answer."""
    return [f"10.7.{cluster}.{number}" for number in range(1, PER_CLUSTER + 1)]


def blackholed(cluster: int) -> list[str]:
    """Return the addresses of a cluster whose packets are dropped."""
    count = BLACKHOLED // CLUSTERS
    return [f"10.7.{100 + n // 250}.{n % 250 + 1}" for n in range(cluster * count, (cluster + 1) * count)]


def follow(board: Board, check: Check, name: str, addresses: Iterable[list[str]], *, healthy: bool) -> None:
    """Let the board probe the published addresses of each cluster."""
    clusters = [{ip: Endpoint((ip,), PUBLISHED) for ip in ips} for ips in addresses]
    watches = [
        Watch(f"c{number}", "IPv4", check, endpoints, endpoints if healthy else {})
        for number, endpoints in enumerate(clusters)
    ]
    board.follow(TargetKey("bench", name), watches, {f"c{number}": AllowAll() for number in range(CLUSTERS)})


@asynccontextmanager
async def probing(mode: str, *, with_blackholed: bool = False) -> Any:
    """Run a board with 5,000 live addresses; yield it after a warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        ca = Path(folder) / "ca.pem"
        ca.write_text(AUTHORITY)
        check = Check(
            mode,  # type: ignore[arg-type]
            PORTS[mode],
            INTERVAL,
            TIMEOUT,
            fall=FALL,
            server_name="localhost" if mode == "https" else "",
            ca=str(ca) if mode == "https" else "",
        )
        board = Recorder(folder)
        share = HTTPS_SHARE if mode == "https" else 1
        follow(board, check, "live", (live(number)[::share] for number in range(CLUSTERS)), healthy=True)
        if with_blackholed:
            follow(board, check, "blackholed", map(blackholed, range(CLUSTERS)), healthy=False)
        task = asyncio.create_task(board.run())
        # Blackholed addresses are unhealthy after FALL timeouts each; the number of sockets limits timeouts at a time.
        await asyncio.sleep(75.0 if with_blackholed else INTERVAL * 1.5)
        try:
            yield board, check
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def cpu(mode: str, seconds: float) -> list[Figure]:
    """Measure the CPU of 5,000 addresses (500 for https)."""
    async with probing(mode) as (board, check):
        board.recording = True
        before, began = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (time.process_time() - before) / (time.monotonic() - began)
        rate = sum(map(len, board.starts.values())) / (time.monotonic() - began)
        failed = board.failures + sum(verdict is not True for verdict in board.verdicts()[check].values())
    count = len(board.starts)
    text = f"{share * 100:.1f} % of a core ({rate:.0f} probes/s, {share / rate * 1e3:.2f} ms each, {failed} failed)"
    met = None if mode == "https" else share <= 0.5 and not failed
    return [Figure(f"CPU, {count:,} {mode} targets", text, "stated" if mode == "https" else "≤ 50 %", met)]


async def cadence(seconds: float) -> list[Figure]:
    """Measure the probe intervals of live addresses while others are blackholed."""
    async with probing("http", with_blackholed=True) as (board, check):
        board.recording = True
        before, began = time.process_time(), time.monotonic()
        await asyncio.sleep(max(seconds, INTERVAL * 6))
        share = (time.process_time() - before) / (time.monotonic() - began)
        starts, verdicts = board.starts, board.verdicts()[check]
    alive = {address for number in range(CLUSTERS) for address in live(number)}
    means = [(times[-1] - times[0]) / (len(times) - 1) for a, times in starts.items() if a in alive and len(times) > 1]
    mean, worst = sum(means) / len(means), max(means)
    down = sum(verdicts[address] is False for number in range(CLUSTERS) for address in blackholed(number))
    met = len(means) == len(alive) and worst <= INTERVAL * 1.1 and all(verdicts[address] for address in alive)
    text = f"mean {mean:.2f} s, slowest address {worst:.2f} s ({down} known dead; {share * 100:.1f} % of a core)"
    return [Figure(f"interval of 5,000 live beside {BLACKHOLED:,} blackholed", text, "≤ 5.50 s", met)]


async def detection(networks: list[str], failing: list[str], *, stated: bool = False) -> list[Figure]:
    """Measure the time from the failure of backends to their verdicts."""
    async with probing("http") as (board, check):
        began = time.monotonic()
        for network in networks:
            _route("add", network)
        limit = FALL * INTERVAL * 1.1 + TIMEOUT + 1.0
        times: dict[str, float] = {}
        while len(times) < len(failing) and time.monotonic() - began < 4 * limit:
            verdicts = board.verdicts()[check]
            now = time.monotonic() - began
            for address in failing:
                if verdicts[address] is False:
                    times.setdefault(address, now)
            await asyncio.sleep(0.05)
        others = sum(verdict is False for verdict in verdicts.values()) - len(times)
    for network in networks:
        _route("del", network)
    ordered = sorted(times.values())
    text = f"{len(times)} of {len(failing)}, median {ordered[len(ordered) // 2]:.1f} s, last {ordered[-1]:.1f} s"
    met = len(times) == len(failing) and ordered[-1] <= limit and others <= 2 * len(networks)
    where = f"{len(networks)} clusters" if len(networks) > 1 else "one cluster"
    name = f"{len(failing)} backends in {where} go dark: verdicts"
    return [Figure(name, text, "stated" if stated else f"≤ {limit:.1f} s", None if stated else met)]


def detection_in_ten_clusters() -> Any:
    """Let 25 backends fail in each of ten clusters."""
    clusters = range(DEAD_CLUSTERS)
    failing = [f"10.7.{c}.{224 + n}" for c in clusters for n in range(DEAD_PER_CLUSTER)]
    return detection([f"10.7.{c}.224/27" for c in clusters], failing)


def detection_in_one_cluster() -> Any:
    """Let all backends of one cluster fail. They are more than its sockets can probe in time, so there is no goal."""
    return detection([f"10.7.{CLUSTERS - 1}.0/24"], live(CLUSTERS - 1), stated=True)


def _route(command: str, network: str) -> None:
    subprocess.run(["ip", "route", command, network, "dev", "blackhole", "table", "local"], check=True)


# --- the report -----------------------------------------------------------------------------------


def table(figures: list[Figure]) -> str:
    """Return the result as a Markdown table."""
    words = {True: "met", False: "missed", None: ""}
    rows = [f"| {figure.name} | {figure.value} | {figure.goal} | {words[figure.met]} |" for figure in figures]
    where = f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {platform.python_version()}."
    return "\n".join([where, "", "| figure | measured | goal | |", "|---|---|---|---|", *rows])


def measure(seconds: float) -> list[Figure]:
    """Run all measurements, one after the other."""
    backend = multiprocessing.get_context("spawn").Process(target=serve, daemon=True)
    backend.start()
    for port in set(PORTS.values()):
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.1)
    try:
        figures: list[Figure] = []
        for work in (
            *(cpu(mode, seconds) for mode in PORTS),
            cadence(seconds),
            detection_in_ten_clusters(),
            detection_in_one_cluster(),
        ):
            figures += uvloop.run(work)
            print(figures[-1], flush=True)
        return figures
    finally:
        backend.terminate()


def main() -> int:
    """Measure inside a network namespace. Returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each phase is measured")
    parser.add_argument("--write-docs", action="store_true", help="write the result to docs/performance.md")
    args = parser.parse_args()
    if not os.environ.get(INSIDE):
        argv = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", SETUP, "sh", sys.executable, *sys.argv]
        return subprocess.run(argv, env={**os.environ, INSIDE: "1"}, check=False).returncode
    figures = measure(args.seconds)
    text = table(figures)
    print(text)
    if args.write_docs:
        DOCS.write_text(replace_block(DOCS.read_text(), text, BEGIN, END))
    return 1 if any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
