"""The remote clusters of a soak: simulated API servers, clouds and inventory files, in a process of their own.

    python benchmarks/soak_remotes.py FOLDER CLUSTERS NODES SECONDS_PER_REPORT

Nodes report all the time. Everything else is told by lines of JSON on FOLDER/remotes.sock, each answered by one:
``{"do": "replace", "cluster": "c1", "old": "10.1.0.1", "new": "10.1.0.101"}``. Nodes are named after their addresses,
which are data: nothing connects to them.
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
sys.path.insert(0, str(ROOT))  # run as a script, only this folder is there

from hub_testkit import SimulatedCluster, make_node  # noqa: E402
from hub_testkit.demo.ionos import IonosCloud  # noqa: E402

from benchmarks.soak_script import Fleet, Truth  # noqa: E402

SOCKET = "remotes.sock"
PARTS = "parts.json"
"""What the registry and the hub's command line need to know of the clusters."""
HISTORY = 256
"""Changes a cluster remembers: a minute of its nodes' reports at ten times production's rate."""
BOOKMARKS = 60.0
REFRESH, INTERVAL = "5s", "5s"
"""How often clouds and inventory files are looked at."""
CHUNK = 8
"""Reports in a row before the loop may do something else."""
RESTART = 60.0
"""Seconds in which a dead cluster's port must become free again."""


class Remotes:
    """Serves inside :meth:`serve`."""

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
        """Fill and start everything; writes kubeconfigs, inventories and what the registry needs to know."""
        (self.folder / "inventories").mkdir()
        truth = Truth(self.fleet)
        parts: dict[str, Any] = {"providers": {}, "hosts": []}
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
                parts["hosts"] += sorted(cloud.allow_api_hosts)
            parts["providers"][name] = {"name": kind, **({"config": config} if config else {})}
        (self.folder / PARTS).write_text(json.dumps(parts))

    async def report(self, every: float) -> None:
        """Let every node that is Ready report once in ``every`` seconds; for ever."""
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

    # --- what is told ------------------------------------------------------------------------------

    async def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order; its answer."""
        cluster = order.get("cluster", "")
        match order["do"]:
            case "replace":
                self._join(cluster, order["new"])
                self._leave(cluster, order["old"])
            case "unready" | "ready" as what:
                name = _name(order["node"])
                (self.silent.add if what == "unready" else self.silent.discard)((cluster, name))
                self.sims[cluster].nodes.set_ready(name, True if what == "ready" else "Unknown")
            case "break":
                await self._break(cluster, order["what"])
            case "heal":
                await self._heal(cluster, order["what"])
            case "state":
                streams = sum(sim.streams("nodes") for sim in self.sims.values())
                return {"reports": self.reports, "streams": streams}
            case unknown:
                raise ValueError(f"no order {unknown}")
        return {}

    def _join(self, cluster: str, address: str) -> None:
        name = _name(address)
        if cluster in self.inventories:
            self.inventories[cluster].add(address)
            return  # written with the leaving one
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
            {"name": _name(each), "private_ip": each, "ready": True, "worker": True}
            for each in sorted(self.inventories[cluster])
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
            async with asyncio.timeout(RESTART):
                while not await _started(self.sims[cluster]):
                    await asyncio.sleep(0.5)
        else:
            self.sims[cluster].heal()

    async def serve(self, every: float) -> None:
        """All of it, until cancelled."""
        await self.start()

        async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for line in reader:
                try:
                    answer = await self.do(json.loads(line))
                except Exception as error:  # noqa: BLE001 - told to whoever asked
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
"""How each begins; ``heal`` ends them all."""


async def _started(sim: SimulatedCluster) -> bool:
    """False while somebody's outgoing connection has its port."""
    try:
        await sim.start()
    except OSError:
        return False
    return True


class Line:
    """Our end of the conversation with that process; one order at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()

    async def __call__(self, do: str, **more: Any) -> dict[str, Any]:
        """Give an order and wait until it is carried out.

        Raises:
            RuntimeError: it was not.
        """
        async with self._lock, asyncio.timeout(2 * RESTART):
            self._writer.write(json.dumps({"do": do, **more}).encode() + b"\n")
            await self._writer.drain()
            answer: dict[str, Any] = json.loads(await self._reader.readline() or '{"error": "it has ended"}')
        if "error" in answer:
            raise RuntimeError(f"{do} {more}: {answer['error']}")
        return answer


def _name(address: str) -> str:
    return "n-" + address.replace(".", "-")


def main() -> None:
    """Serve what the command line says, until killed."""
    folder, clusters, nodes, every = sys.argv[1:]
    asyncio.run(Remotes(Path(folder), Fleet(int(clusters), int(nodes))).serve(float(every)))


if __name__ == "__main__":
    main()
