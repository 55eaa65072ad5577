"""The remote clusters of a soak: simulated API servers, clouds and inventory files, in a separate process.

    python benchmarks/soak_remotes.py FOLDER CLUSTERS NODES SECONDS_PER_REPORT

Nodes report all the time. Everything else happens on commands: lines of JSON on the socket FOLDER/remotes.sock, each
answered by one line. Example: ``{"do": "replace", "cluster": "c1", "old": "10.1.0.1", "new": "10.1.0.101"}``. Nodes are
named after their addresses. Nothing connects to these addresses.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # when run as a script, sys.path contains only benchmarks/

from hub_testkit import SimulatedCluster, make_node  # noqa: E402
from hub_testkit.demo.ionos import IonosCloud  # noqa: E402

from benchmarks.soak_script import Fleet, Truth  # noqa: E402

SOCKET = "remotes.sock"
INFO = "remotes.json"
"""File with the providers for the registry and the hosts for the hub's command line."""
HISTORY = 256
"""Changes that a cluster remembers: a minute of its nodes' reports at ten times production's rate."""
BOOKMARKS = 60.0
REFRESH, INTERVAL = "5s", "5s"
"""How often the hub reads clouds and inventory files."""
CHUNK = 8
"""Reports between two pauses, in which the event loop can do other work."""
RESTART_LIMIT = 60.0
"""Seconds that a restart may wait until the cluster's port is free again."""


class Remotes:
    """The simulated clusters, and the commands that change them; :meth:`serve` runs them."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self.folder = folder
        self.fleet = fleet
        self.sims: dict[str, SimulatedCluster] = {}
        self.clouds: dict[str, IonosCloud] = {}
        self.inventories: dict[str, set[str]] = {}
        self.names: dict[str, set[str]] = {}
        self.silent: set[tuple[str, str]] = set()
        self.reports = 0

    async def start(self) -> None:
        """Fill and start the clusters, and write kubeconfigs, inventories and ``INFO``."""
        (self.folder / "inventories").mkdir()
        truth = Truth(self.fleet)
        info: dict[str, Any] = {"providers": {}, "hosts": []}
        for name in self.fleet.names:
            kind = self.fleet.kind(name)
            config: dict[str, Any] = {}
            if kind == "inventory":
                self.inventories[name] = set(truth.nodes[name])
                self._write(name)
                config = {"file": f"inventories/{name}.json", "interval": INTERVAL}
            else:
                self.names[name] = set()
                self.sims[name] = sim = SimulatedCluster(name, history=HISTORY)
                sim.bookmark_interval = BOOKMARKS
                if kind == "ionos":
                    self.clouds[name] = cloud = IonosCloud()
                    await cloud.__aenter__()
                for address in truth.nodes[name]:
                    self._join(name, address)
                await sim.start()
                sim.write_kubeconfig(self.folder / name)
            if kind == "ionos":
                cloud.write_files(self.folder)
                config = yaml.safe_load(cloud.config(name)) | {"refresh": REFRESH}
                info["hosts"] += sorted(cloud.allow_api_hosts)
            info["providers"][name] = {"name": kind, **({"config": config} if config else {})}
        (self.folder / INFO).write_text(json.dumps(info))

    async def report(self, every: float) -> None:
        """Let every Ready node report once in ``every`` seconds, for ever."""
        while True:
            nodes = [(sim, name) for sim in self.sims.values() for name in sorted(self.names[sim.name])]
            begin = time.monotonic()
            for number, (sim, name) in enumerate(nodes):
                if number % CHUNK == 0:
                    await asyncio.sleep(max(0.0, begin + every * number / len(nodes) - time.monotonic()))
                if (sim.name, name) not in self.silent and name in self.names[sim.name]:
                    sim.nodes.heartbeat(name)
                    self.reports += 1
            await asyncio.sleep(max(0.01, begin + every - time.monotonic()))

    # --- commands --------------------------------------------------------------------------------

    async def execute(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute a command and return the answer."""
        cluster = command.get("cluster", "")
        match command["do"]:
            case "replace":
                self._join(cluster, command["new"])
                self._leave(cluster, command["old"])
            case "unready" | "ready" as what:
                name = _name(command["node"])
                (self.silent.add if what == "unready" else self.silent.discard)((cluster, name))
                self.sims[cluster].nodes.set_ready(name, True if what == "ready" else "Unknown")
            case "break":
                await self._break(cluster, command["what"])
            case "heal":
                await self._heal(cluster, command["what"])
            case "state":
                streams = sum(sim.streams("nodes") for sim in self.sims.values())
                return {"reports": self.reports, "streams": streams}
            case unknown:
                raise ValueError(f"unknown command {unknown}")
        return {}

    def _join(self, cluster: str, address: str) -> None:
        name = _name(address)
        if cluster in self.inventories:
            self.inventories[cluster].add(address)
            return  # _leave writes the file
        identity = self.clouds[cluster].add(cluster, name, address, "z1") if cluster in self.clouds else ""
        self.names[cluster].add(name)
        self.sims[cluster].nodes.add(make_node(name, address, provider_id=identity, zone="z1", bulk=True))

    def _leave(self, cluster: str, address: str) -> None:
        if cluster in self.inventories:
            self.inventories[cluster].discard(address)
            self._write(cluster)
            return
        self.names[cluster].discard(_name(address))
        self.silent.discard((cluster, _name(address)))
        self.sims[cluster].nodes.delete(_name(address))
        if cluster in self.clouds:
            self.clouds[cluster].remove(cluster, _name(address))

    def _write(self, cluster: str) -> None:
        records = [
            {"name": _name(address), "private_ip": address, "ready": True, "worker": True}
            for address in sorted(self.inventories[cluster])
        ]
        self._replace(cluster, json.dumps(records))

    def _replace(self, cluster: str, text: str) -> None:
        file = self.folder / "inventories" / f"{cluster}.json"
        new = file.with_suffix(".new")
        new.write_text(text)
        new.rename(file)

    async def _break(self, cluster: str, what: str) -> None:
        if what == "provider":
            if cluster in self.clouds:
                self.clouds[cluster].down = True
            else:
                self._replace(cluster, '[{"name": "half')
            return
        if what == "die":
            await self.sims[cluster].stop()
        else:
            FAULTS[what](self.sims[cluster])

    async def _heal(self, cluster: str, what: str) -> None:
        if what == "provider":
            if cluster in self.clouds:
                self.clouds[cluster].down = False
            else:
                self._write(cluster)
        elif what == "die":
            async with asyncio.timeout(RESTART_LIMIT):
                while not await _started(self.sims[cluster]):
                    await asyncio.sleep(0.5)
        else:
            self.sims[cluster].heal()

    async def serve(self, every: float) -> None:
        """Start the clusters and execute commands, until cancelled."""
        await self.start()

        async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for line in reader:
                try:
                    answer = await self.execute(json.loads(line))
                except Exception as error:  # noqa: BLE001 - returned to the caller
                    answer = {"error": f"{type(error).__name__}: {error}"}
                writer.write(json.dumps(answer).encode() + b"\n")

        server = await asyncio.start_unix_server(conversation, self.folder / SOCKET)
        async with server:
            await self.report(every)


def _refuse(sim: SimulatedCluster, status: int, retry_after: float | None = None) -> None:
    sim.refuse(status, retry_after=retry_after)
    sim.cut_stream()


def _garbage(sim: SimulatedCluster) -> None:
    sim.garbage(None)
    sim.cut_stream(how="end")


def _compact(sim: SimulatedCluster) -> None:
    sim.compact()
    sim.cut_stream(how="end")


FAULTS: dict[str, Callable[[SimulatedCluster], object]] = {
    "hang": lambda sim: sim.hang(),
    "500": lambda sim: _refuse(sim, 500),
    "429": lambda sim: _refuse(sim, 429, retry_after=3),
    "garbage": _garbage,
    "cut": lambda sim: sim.cut_stream(),
    "half-line": lambda sim: sim.cut_stream(how="half-line"),
    "expire": lambda sim: sim.cut_stream(how="expire"),
    "compact": _compact,
}
"""The call that begins each fault; ``heal()`` ends every fault."""


async def _started(sim: SimulatedCluster) -> bool:
    """Start a cluster. Returns False while an outgoing connection of another program uses its port."""
    try:
        await sim.start()
    except OSError:
        return False
    return True


class RemotesClient:
    """Sends commands to the process of the remote clusters, one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()

    async def __call__(self, do: str, **more: Any) -> dict[str, Any]:
        """Send a command and wait until it has been executed.

        Raises:
            RuntimeError: the command failed.
        """
        async with self._lock, asyncio.timeout(2 * RESTART_LIMIT):
            self._writer.write(json.dumps({"do": do, **more}).encode() + b"\n")
            await self._writer.drain()
            answer: dict[str, Any] = json.loads(await self._reader.readline() or '{"error": "the process has ended"}')
        if "error" in answer:
            raise RuntimeError(f"{do} {more}: {answer['error']}")
        return answer


def _name(address: str) -> str:
    return "n-" + address.replace(".", "-")


def main() -> None:
    """Serve the clusters of the command line, until killed."""
    folder, clusters, nodes, every = sys.argv[1:]
    asyncio.run(Remotes(Path(folder), Fleet(int(clusters), int(nodes))).serve(float(every)))


if __name__ == "__main__":
    main()
