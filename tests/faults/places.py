"""Builds the lanes and sites that rows are played on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hub_testkit.ionos import FakeIonosThread

from tests.faults.rows import Place, Row
from tests.faults.stage import NEAR, VICTIM, Lane, Site, Stage
from tests.support.api import Object
from tests.support.apiserver.pki import Authority
from tests.support.hub import node

CROWD = 16
"""The number of clusters of a storm."""
TOKEN = "fake-token"
PROGRAM = """#!/bin/sh
case "$(cat "$1.mode")" in
good) cat "$1.json" ;;
half) head -c 100 "$1.json" ;;
hang) sleep 60 ;;
kill) head -c 100 "$1.json"; kill -9 $$ ;;
fail) cat "$1.json"; exit 1 ;;
silent) ;;
flood) exec cat /dev/zero ;;
record) cat "$1.record" ;;
esac
"""


class CloudSite(Site):
    """A cluster whose node addresses come from a cloud, through a proxy."""

    def __init__(self, lane: Lane, name: str, fake: FakeIonosThread, authority: Authority) -> None:
        self._fake = fake
        self._authority = authority
        self._center = fake.do(lambda ionos: ionos.add_datacenter())
        self._machines: dict[str, str] = {}
        super().__init__(lane, name, lane.stage.servers.get(NEAR), proxied=False)

    def entry(self, *, proxied: bool) -> Object:
        """Its registry entry; the proxy is in front of the cloud."""
        common = super().entry(proxied=False)
        authority = self._authority
        port = int(self._fake.host.rpartition(":")[2])
        self.proxy = self.stage.proxies.proxy(port, None, self.stage.usual_certificate(authority))
        (self.lane.folder / f"{self.name}.ca").write_text(authority.pem)
        (self.lane.folder / f"{self.name}.token").write_text(TOKEN)
        base = self._fake.url.removeprefix(f"http://{self._fake.host}")
        config = {
            "datacenters": [self._center],
            "lan": 2,
            "apiUrl": f"{self.proxy.url}{base}",
            "caFile": f"{self.name}.ca",
            "token": {"file": f"{self.name}.token"},
            "refresh": "1s",
        }
        self.lane.arguments += ["--allow-api-host", f"127.0.0.1:{self.proxy.port}"]
        return {**common, "provider": {"name": "ionos", "config": config}}

    def _create(self, name: str, address: str) -> None:
        machine = self._fake.do(lambda ionos: ionos.add_server(self._center, f"vm-{name}", address))
        self._machines[name] = machine
        body = node(name, labels={"site": self.name})
        spec = {"providerID": f"ionos://{machine}"}
        with self._calls() as api:
            api.post("/api/v1/nodes", {"metadata": body["metadata"], "spec": spec})
            api.patch(f"/api/v1/nodes/{name}/status", {"status": body["status"]})

    def _delete(self, name: str) -> None:
        self._fake.do(lambda ionos: ionos.remove_server(self._center, self._machines.pop(name)))
        super()._delete(name)


class CommandSite(Site):
    """A cluster whose nodes are printed by a program, which runs once a second."""

    def __init__(self, lane: Lane, name: str) -> None:
        self._records: dict[str, str] = {}
        super().__init__(lane, name, lane.stage.servers.get(NEAR), proxied=False)

    def entry(self, *, proxied: bool) -> Object:
        """Its registry entry, without a kubeconfig."""
        program = self.lane.folder / f"{self.name}.sh"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        (self.lane.folder / f"{self.name}.mode").write_text("good")
        self.lane.arguments += ["--allow-exec", str(program)]
        command = [str(program), str(self.lane.folder / self.name)]
        config = {"command": command, "interval": "1s", "timeout": "2s"}
        return {"provider": {"name": "inventory", "config": config}}

    def _create(self, name: str, address: str) -> None:
        self._records[name] = address
        self._write()

    def _delete(self, name: str) -> None:
        del self._records[name]
        self._write()

    def _write(self) -> None:
        good = {"ready": True, "worker": True}
        records: list[Any] = [{"name": name, "private_ip": address, **good} for name, address in self._records.items()]
        _replace(self.lane.folder / f"{self.name}.json", json.dumps(records))
        broken = [*records[1:], {"name": "broken", **good}]
        _replace(self.lane.folder / f"{self.name}.record", json.dumps(broken))


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.rename(path)


@contextlib.contextmanager
def fleet(stage: Stage, rows: list[Row]) -> Iterator[dict[str, Site]]:
    """Run one hub with a cluster for each of these rows, and wait until all are published; yields the sites by row."""
    lane = Lane(stage, "fleet")
    with contextlib.ExitStack() as stack:
        stack.callback(lane.close)
        fake: FakeIonosThread | None = None
        authority = Authority("cloud-ca")
        sites: dict[str, Site] = {}
        for row in rows:
            match row.place:
                case Place.CLOUD:
                    fake = fake or stack.enter_context(FakeIonosThread())
                    sites[row.name] = CloudSite(lane, row.name, fake, authority)
                case Place.INVENTORY:
                    sites[row.name] = CommandSite(lane, row.name)
                case _:
                    sites[row.name] = Site(lane, row.name, stage.servers.get(NEAR), proxied=True)
        lane.begin()
        yield sites


@contextlib.contextmanager
def own_lane(stage: Stage, row: Row) -> Iterator[Site]:
    """Run a hub for one row, and wait until its cluster is published."""
    near = stage.servers.get(VICTIM if row.place is Place.REMOTE else NEAR)
    lane = Lane(stage, row.name, proxied=row.place is Place.LANE)
    try:
        site = Site(lane, row.name, near, proxied=row.place in (Place.PROXIED, Place.STORM))
        if row.place is Place.ALONE:
            site.broken = stage.hub_server
        if row.place is Place.STORM:
            for number in range(1, CROWD):
                Site(lane, f"{row.name}-{number}", near, proxied=True)
        lane.begin()
        if row.place is Place.REPLICAS:
            lane.start("b")
            lane.stands_by("b")
        yield site
    finally:
        lane.close()
