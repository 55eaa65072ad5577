"""The hub with two remote clusters whose nodes are IONOS servers, and a fake IONOS API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_testkit.ionos import FakeIonosThread

from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import RunningHub, World
from tests.support.hub import node as node_of
from tests.support.waiting import eventually

DC = "10000000-0000-4000-8000-000000000001"


class Cloud:
    """The world and its servers: one data center for both clusters, and a token file for each."""

    def __init__(self, world: World, fake: FakeIonosThread) -> None:
        self.world = world
        self.fake = fake
        for name in world.remotes:
            self.token(name, "fake-token")
        fake.do(lambda ionos: ionos.add_datacenter(identity=DC))

    def token(self, cluster: str, text: str) -> None:
        """Write a cluster's token file."""
        new = self.world.folder / f"{cluster}.token.new"
        new.write_text(text)
        new.rename(self.world.folder / f"{cluster}.token")

    def provider(self, cluster: str) -> Object:
        """A cluster's ``provider`` entry."""
        config = {
            "datacenters": [DC],
            "lan": 2,
            "apiUrl": self.fake.url,
            "token": {"file": f"{cluster}.token"},
            "refresh": "1s",
        }
        return {"name": "ionos", "config": config}

    def add(self, cluster: str, name: str, *addresses: str) -> str:
        """Add a server with one NIC, and its Node without addresses; returns the server's id."""
        server = self.fake.do(lambda ionos: ionos.add_server(DC, f"vm-{name}", *addresses))
        api, body = self.world.remotes[cluster].api, node_of(name)
        api.post("/api/v1/nodes", {"metadata": body["metadata"], "spec": {"providerID": f"ionos://{server}"}})
        api.patch(f"/api/v1/nodes/{name}/status", {"status": body["status"]})
        return server

    def remove(self, cluster: str, name: str, server: str) -> None:
        """Remove a server and its Node."""
        self.fake.do(lambda ionos: ionos.remove_server(DC, server))
        self.world.remotes[cluster].api.delete(f"/api/v1/nodes/{name}")

    def lists(self) -> int:
        """The number of lists of servers requested so far."""
        return self.fake.do(lambda ionos: ionos.requests["datacenters/servers"])


@pytest.fixture
def cloud(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> Iterator[Cloud]:
    """Clusters eu and us with one node each, both published for ``payments``."""
    world = World(tmp_path, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False))).prepare()
    with FakeIonosThread() as fake:
        made = Cloud(world, fake)
        world.add_service()
        clusters = [world.cluster(name, provider=made.provider(name)) for name in world.remotes]
        world.write(clusters=clusters, services=[world.service("payments", "eu", "us")])
        yield made


def running(cloud: Cloud) -> RunningHub:
    """A hub that may contact the fake API."""
    return RunningHub(cloud.world, allow_api_hosts=frozenset({cloud.fake.host}))


def test_a_rotated_server_takes_its_endpoint_along(cloud: Cloud) -> None:
    """When a node is replaced, the new node's address is published and the old one's removed."""
    old = cloud.add("eu", "n1", "10.1.0.1")
    cloud.add("us", "m1", "10.2.0.1")
    with running(cloud):
        cloud.world.awaits("10.1.0.1", "10.2.0.1")
        cloud.add("eu", "n2", "10.1.0.2")
        cloud.world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")
        cloud.remove("eu", "n1", old)
        cloud.world.awaits("10.1.0.2", "10.2.0.1")


def test_the_first_address_that_the_cluster_allows_is_published(cloud: Cloud) -> None:
    """A NIC's public address is first but outside allowedCIDRs, so its private address is published."""
    cloud.add("eu", "n1", "185.9.9.9", "10.1.0.7")
    cloud.add("us", "m1", "10.2.0.1")
    with running(cloud):
        cloud.world.awaits("10.1.0.7", "10.2.0.1")


def test_an_outage_of_the_api_loses_nothing(cloud: Cloud) -> None:
    """While the API fails, no slice is written; afterwards the hub publishes the changes."""
    cloud.add("eu", "n1", "10.1.0.1")
    cloud.add("us", "m1", "10.2.0.1")
    with running(cloud):
        cloud.world.awaits("10.1.0.1", "10.2.0.1")
        mark = cloud.world.hub_cluster.audit_mark()
        for body in ('{"items": null}', "<html>maintenance</html>", "[]", "{}"):
            before = cloud.fake.do(lambda ionos: ionos.requests["datacenters/lans"])
            cloud.fake.do(lambda ionos, body=body: ionos.fail_next(200, None, body=body))
            eventually(lambda before=before: cloud.fake.do(lambda i: i.requests["datacenters/lans"]) > before, 20)
            cloud.fake.do(lambda ionos: ionos.heal())
        cloud.fake.do(lambda ionos: ionos.fail_next(503, None))
        cloud.add("eu", "n2", "10.1.0.2")
        assert cloud.world.writes(mark, settle=2.0) == []
        cloud.fake.do(lambda ionos: ionos.heal())
        cloud.world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1", timeout=30)


def test_wrong_token_affects_only_its_cluster(cloud: Cloud) -> None:
    """A cluster whose token has expired keeps its endpoints; others work, and a renewed token needs no restart."""
    cloud.add("eu", "n1", "10.1.0.1")
    cloud.add("us", "m1", "10.2.0.1")
    with running(cloud) as hub:
        cloud.world.awaits("10.1.0.1", "10.2.0.1")
        cloud.token("us", "expired")
        eventually(lambda: "answers 401" in hub.problem("us"), 20)
        assert hub.problem("us").endswith("renew the token from file us.token")
        assert hub.problem("eu") == ""
        cloud.add("us", "m2", "10.2.0.2")
        cloud.add("eu", "n2", "10.1.0.2")
        cloud.world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")
        cloud.token("us", "fake-token")
        cloud.world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2", timeout=30)
        eventually(lambda: hub.problem("us") == "", 20)
