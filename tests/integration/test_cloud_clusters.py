"""One hub as the cloud controller of several clusters, while the running file changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_provider_brightbox.testing import CLIENT, SECRET

from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.brightbox import BrightboxScene, BrightboxThread
from tests.support.cloud_scene import LEASE, RULES
from tests.support.hub import RunningHub, World
from tests.support.waiting import eventually

SERVICE = "/api/v1/namespaces/edge/services/web"


class Fleet:
    """Clusters a and b in one cloud, c in another one."""

    def __init__(self, world: World, clouds: Sequence[BrightboxThread]) -> None:
        self.world = world
        names = list(world.remotes)
        used = {names[0]: clouds[0], names[1]: clouds[0], names[2]: clouds[1]}
        self.scenes = {name: BrightboxScene(world, world.remotes[name], used[name]) for name in names}
        self.options = {"allow_api_hosts": frozenset(cloud.fake.host for cloud in clouds)}

    def entry(self, name: str, **section: Any) -> Object:
        """The entry of one cluster."""
        config = {"client": {"file": "client"}, "secret": {"file": "secret"}, "url": self.scenes[name].cloud.fake.url}
        cloud = {"provider": {"name": "brightbox", "config": config}, "loadBalancers": {"settle": "1s"}, **section}
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
    remotes = dict(zip(("a", "b", "c"), remote_clusters, strict=False))
    world = World(tmp_path, hub_cluster, remotes).prepare()
    (tmp_path / "client").write_text(CLIENT)
    (tmp_path / "secret").write_text(SECRET)
    with ExitStack() as stack:
        made = Fleet(world, [stack.enter_context(BrightboxThread()) for _ in range(2)])
        for name, scene in made.scenes.items():
            remotes[name].grant("hub", *RULES)
            if remotes[name].api.exists(LEASE):
                remotes[name].api.delete(LEASE)
            scene.add_node(initialized=True)
            scene.add_service()
        yield made


def test_clusters_come_and_change_and_go_in_the_running_file(fleet: Fleet) -> None:
    """`cloud:` is added, a clusterName is changed, and `cloud:` is removed, each without a restart.

    A new clusterName renames every object and creates none; a cluster that leaves keeps its balancer and its finalizer,
    and its Lease is renewed no more.
    """
    a, b, c = (fleet.scenes[name] for name in "abc")
    fleet.write(fleet.entry("a"), fleet.entry("c"))
    with RunningHub(fleet.world, **fleet.options) as running:
        eventually(lambda: a.hostnames() != [] and c.hostnames() != [], 40)
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
        assert len(c.cloud.fake.account.named("web.edge.c")) == 4
        assert b.remote.api.get(LEASE)["spec"]["holderIdentity"] == "endpointslice-hub/default"
        for scene in (a, b):
            scene.remote.api.delete(SERVICE)
            eventually(lambda scene=scene: not scene.remote.api.exists(SERVICE), 60)  # type: ignore[misc]
        assert account.named("web.edge.alpha") == account.named("web.edge.b") == []


def test_a_dead_cloud_concerns_its_own_clusters_only(fleet: Fleet) -> None:
    """While one cloud does not answer, the cluster in the other one is served as always."""
    b, c = fleet.scenes["b"], fleet.scenes["c"]
    b.cloud.call(lambda: b.cloud.fake.fail("silent", times=None))
    fleet.write(fleet.entry("b"), fleet.entry("c"))
    with RunningHub(fleet.world, **fleet.options):
        eventually(lambda: c.hostnames() != [], 20)
        assert b.hostnames() == []
        b.cloud.call(b.cloud.fake.heal)
        eventually(lambda: b.hostnames() != [], 90)
