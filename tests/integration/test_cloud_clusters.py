"""One hub as the cloud controller of several clusters, while the running file changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import LEASE, RULES, CloudScene
from tests.support.hub import RunningHub, World
from tests.support.ionos import IonosScene, IonosThread
from tests.support.waiting import eventually

SERVICE = "/api/v1/namespaces/edge/services/web"


class Fleet:
    """Clusters a and b in an account of Brightbox, c at IONOS Cloud."""

    def __init__(self, world: World, brightbox: BrightboxThread, ionos: IonosThread) -> None:
        self.world = world
        self.a, self.b = (BrightboxScene(world, world.remotes[name], brightbox) for name in "ab")
        self.c = IonosScene(world, world.remotes["c"], ionos)
        self.scenes: dict[str, CloudScene] = {"a": self.a, "b": self.b, "c": self.c}
        self.options = {"allow_api_hosts": frozenset((brightbox.fake.host, ionos.fake.host))}

    def entry(self, name: str, **section: Any) -> Object:
        """The entry of one cluster."""
        cloud = {"provider": self.scenes[name].provider(), "loadBalancers": {"settle": "1s"}, **section}
        return {"name": name, "kubeconfig": {"path": name}, "cloud": cloud}

    def write(self, *entries: Object) -> None:
        """Write the registry."""
        self.world.write_text(yaml.safe_dump({"version": 1, "clusters": list(entries)}))


def controlled(running: RunningHub) -> list[str]:
    """The clusters whose cloud controller the hub is."""
    return list(running.hub.controlling.clusters) if running.hub.controlling is not None else []


@pytest.fixture
def fleet(hub_cluster: ApiServer, remote_clusters: Sequence[ApiServer], tmp_path: Path) -> Iterator[Fleet]:
    """Three clusters, each with one initialised Node and a Service."""
    remotes = dict(zip("abc", remote_clusters, strict=False))
    world = World(tmp_path, hub_cluster, remotes).prepare()
    with BrightboxThread() as brightbox, IonosThread() as ionos:
        made = Fleet(world, brightbox, ionos)
        for name, scene in made.scenes.items():
            remotes[name].grant("hub", *RULES)
            if remotes[name].api.exists(LEASE):
                remotes[name].api.delete(LEASE)
            scene.add_service()
        for each in (made.a, made.b):
            each.add_node(initialized=True)
        made.c.add_node("n1")
        yield made


def test_clusters_come_and_change_and_go_in_the_running_file(fleet: Fleet) -> None:
    """`cloud:` is added, a clusterName is changed, and `cloud:` is removed, each without a restart.

    A new clusterName renames every object and creates none; a cluster that leaves keeps its balancer and its finalizer,
    and its Lease is renewed no more.
    """
    a, b, c = fleet.a, fleet.b, fleet.c
    fleet.write(fleet.entry("a"), fleet.entry("c"))
    with RunningHub(fleet.world, **fleet.options) as running:
        eventually(lambda: a.hostnames() != [] and c.ingress() != [], 40)
        assert b.hostnames() == []
        assert a.cloud.fake.account.named("web.edge.b") == []

        fleet.write(fleet.entry("a"), fleet.entry("b"), fleet.entry("c"))
        eventually(lambda: b.hostnames() != [], 40)
        account = a.cloud.fake.account
        assert (len(account.named("web.edge.a")), len(account.named("web.edge.b"))) == (4, 4)

        before, ids = a.hostnames(), sorted(account.named("web.edge.a"))
        renamed = fleet.entry("a", clusterName="alpha", formerClusterNames=["a"])
        fleet.write(renamed, fleet.entry("b"), fleet.entry("c"))
        eventually(lambda: sorted(account.named("web.edge.alpha")) == ids, 40)
        assert account.named("web.edge.a") == []
        assert a.hostnames() == before

        fleet.write(renamed, fleet.entry("b"))
        eventually(lambda: "c" not in controlled(running), 30)
        assert c.service()["metadata"]["finalizers"]
        assert len(c.cloud.fake.network.named("web.edge.c")) == 2
        assert b.remote.api.get(LEASE)["spec"]["holderIdentity"] == "endpointslice-hub/default"
        for scene in (a, b):
            scene.remote.api.delete(SERVICE)
        eventually(lambda: not a.has_service() and not b.has_service(), 60)
        assert account.named("web.edge.alpha") == account.named("web.edge.b") == []


@pytest.mark.parametrize(("dead", "alive"), ["bc", "cb"])
def test_a_dead_cloud_concerns_its_own_clusters_only(fleet: Fleet, dead: str, alive: str) -> None:
    """While one cloud does not answer, the cluster in the other one is served as always."""
    cloud = fleet.scenes[dead].cloud
    cloud.call(lambda: cloud.fake.fail("silent", times=None))
    fleet.write(fleet.entry("b"), fleet.entry("c"))
    with RunningHub(fleet.world, **fleet.options):
        eventually(lambda: fleet.scenes[alive].ingress() != [], 20)
        assert fleet.scenes[dead].ingress() == []
        cloud.call(cloud.fake.heal)
        eventually(lambda: fleet.scenes[dead].ingress() != [], 90)
