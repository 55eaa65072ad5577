"""An assembled hub: the files that its registry names, and the work that it does with its shards."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hub_testkit import SimulatedCluster, make_node, make_service, make_slice
from hub_testkit.simulator.identity import AUTHORITY

from hub.app.hub import Hub, Options, assemble
from hub.errors import HubError, KubeconfigError, RegistryError
from hub.model import TargetKey
from hub.observe.health.tls import Trust
from hub.observe.local import accepted
from hub.observe.providers.host import Prepared
from hub.plugin import TerminalProviderError
from hub.registry.spec import ProviderRef
from tests.support.waiting import until

FILES = ("clusters.yaml", "inventory.json", "token", "ca.pem")


class Mount:
    """A volume of a ConfigMap or a Secret, laid out as by the kubelet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions: list[Path] = []
        for name in FILES:
            (folder / name).symlink_to(f"..data/{name}")

    def hold(self, text: str) -> None:
        """Write a new version of all files, switch ``..data`` to it, and remove the previous version."""
        number = len(self._versions)
        version = self.folder / f"..2026_{number}"
        version.mkdir()
        for name, content in zip(FILES, ("version: 1\n", text, text, AUTHORITY + text), strict=True):
            (version / name).write_text(content)
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")
        for each in self._versions[-1:]:
            shutil.rmtree(each)
        self._versions.append(version)


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    """A volume with the first version of its files."""
    (tmp_path / "mount").mkdir()
    made = Mount(tmp_path / "mount")
    made.hold("one")
    return made


@pytest.fixture
async def hub(mount: Mount, tmp_path: Path) -> AsyncIterator[Hub]:
    """A hub whose registry file is in the volume."""
    async with SimulatedCluster("hub") as here:
        options = Options(str(mount.folder / "clusters.yaml"), str(here.write_kubeconfig(tmp_path / "hub")))
        async with assemble(options) as made:
            yield made
            await made.host.close()


async def prepared(hub: Hub) -> Prepared:
    """The access that a provider of a cluster gets."""
    return await hub.host.prepare(ProviderRef("node-addresses"), "eu", lambda: None)


async def test_files_next_to_the_registry_are_reread_after_a_volume_update(hub: Hub, mount: Mount) -> None:
    """Providers, tokens and certificates read the new files after the kubelet has replaced the target of ``..data``."""
    given = await prepared(hub)
    token = given.cluster.hub.secret({"file": "token"})
    trust = Trust(str(mount.folder / "ca.pem"))
    trusted = hub.board._trusts.get(trust)
    for number, text in enumerate(("one", "two", "three")):
        if number:
            mount.hold(text)
        assert await given.cluster.read_file("inventory.json", limit=100) == text.encode()
        assert await token.get() == text
        await hub.board._trusts.refresh(100.0 * number)
        assert hub.board._trusts.problem(trust) == ""
        assert trusted.context is not None


async def test_no_link_leads_out_of_the_registrys_folder(hub: Hub, mount: Mount, tmp_path: Path) -> None:
    """A symlink to a file outside is refused, be it in the volume or in the folder that ``..data`` points to."""
    (tmp_path / "secret").write_text("s3cret")
    (mount.folder / "beside").symlink_to(tmp_path / "secret")
    (mount.folder / "..data" / "within").symlink_to(tmp_path / "secret")
    (mount.folder / "inventory.json").unlink()
    (mount.folder / "inventory.json").symlink_to("..data/within")
    given = await prepared(hub)
    for path in ("beside", "..data/within", "inventory.json", "../secret", str(tmp_path / "secret")):
        with pytest.raises(TerminalProviderError, match="lies outside"):
            await given.cluster.read_file(path, limit=100)
        with pytest.raises(TerminalProviderError, match="lies outside"):
            given.cluster.hub.secret({"file": path})


async def test_hub_follows_the_clusters_of_its_shards(tmp_path: Path) -> None:
    """A hub with shards follows remote clusters as soon as it holds their shards."""
    (tmp_path / "clusters.yaml").write_text(
        "version: 1\nclusters: [{name: eu, kubeconfig: {path: eu.conf}, allowedCIDRs: [10.0.0.0/8]}]\n"
    )
    async with SimulatedCluster("hub") as here, SimulatedCluster("eu") as eu:
        eu.write_kubeconfig(tmp_path / "eu.conf")
        options = Options(str(tmp_path / "clusters.yaml"), str(here.write_kubeconfig(tmp_path / "hub")), shards=2)
        async with assemble(options) as made:
            assert (made.leading.held, list(made.fleet.clusters)) == (frozenset(), [])
            election = asyncio.create_task(made.leading.shards.run())
            await until(lambda: len(made.leading.held) == 2)
            assert list(made.fleet.clusters) == ["eu"]
            election.cancel()
            await asyncio.gather(election, return_exceptions=True)
            await made.fleet.close()
            await made.host.close()


async def test_hub_without_election_holds_shard_0(tmp_path: Path) -> None:
    """A hub that takes part in no election does the work that only one replica may do."""
    (tmp_path / "clusters.yaml").write_text("version: 1\n")
    async with SimulatedCluster("hub") as here:
        options = Options(
            str(tmp_path / "clusters.yaml"), str(here.write_kubeconfig(tmp_path / "hub")), leader_elect=False
        )
        async with assemble(options) as made:
            assert not made.leading.holds_shard_0
            made.leading.begin()
            assert made.leading.holds_shard_0
            await made.host.close()


class World:
    """A hub cluster with a Service, a remote cluster with a node, and a registry that publishes it."""

    def __init__(self, folder: Path, here: SimulatedCluster, eu: SimulatedCluster) -> None:
        self.here, self.eu, self.file = here, eu, folder / "clusters.yaml"
        self.kubeconfig = str(here.write_kubeconfig(folder / "hub"))
        eu.write_kubeconfig(folder / "eu.conf")
        eu.nodes.add(make_node("n1", "10.0.0.1"))
        here.put(make_service("edge", "payments"))
        here.put(make_service("edge", "search"))
        self.write("payments")

    def write(self, *services: str, owner: str = "default", **more: Any) -> None:
        """Write a registry with these Services."""
        cluster = {"name": "eu", "kubeconfig": {"path": "eu.conf"}, "allowedCIDRs": ["10.0.0.0/8"]}
        sources = [{"cluster": "eu", "provider": {"name": "node-addresses"}}]
        entries = [
            {"name": name, "namespace": "edge", "sources": sources, "ports": [{"port": 30443}]} for name in services
        ]
        registry = {"version": 1, "owner": owner, "clusters": [cluster], "services": entries, **more}
        self.file.write_text(json.dumps(registry))

    def options(self, **more: Any) -> Options:
        """The options of a hub on the registry."""
        return Options(str(self.file), self.kubeconfig, **more)

    def published(self) -> dict[str, list[str]]:
        """Service -> the addresses of its slices."""
        found: dict[str, list[str]] = {}
        for each in self.here.slices.list():
            name = each["metadata"]["labels"]["kubernetes.io/service-name"]
            found.setdefault(name, []).extend(endpoint["addresses"][0] for endpoint in each["endpoints"] or ())
        return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Two simulated clusters and a registry."""
    async with SimulatedCluster("hub") as here, SimulatedCluster("eu") as eu:
        yield World(tmp_path, here, eu)


async def test_changed_registry_takes_effect(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An accepted file takes effect; a rejected one, or another owner, is reported and changes nothing."""
    caplog.set_level(logging.INFO, "hub.app.hub")
    stop = asyncio.Event()
    async with assemble(world.options(leader_elect=False)) as hub:
        running = asyncio.create_task(hub.run(stop))
        await until(lambda: world.published() == {"payments": ["10.0.0.1"]})
        assert (hub.rejected, hub.reloads) == (None, {"accepted": 1, "rejected": 0})

        world.file.write_text("version: 2\n")
        await until(lambda: hub.rejected is not None)
        assert hub.reloads == {"accepted": 1, "rejected": 1}
        assert "the registry is rejected, the last good one stays in force:\n" in caplog.text
        assert list(hub.registry.targets) == [TargetKey("edge", "payments")]

        world.write("payments", "search", owner="other")
        await until(lambda: hub.reloads["rejected"] == 2)
        assert "owner: changed from 'default' to 'other' (restart the hub)" in str(hub.rejected)

        world.write("payments", "search")
        await until(lambda: world.published() == {"payments": ["10.0.0.1"], "search": ["10.0.0.1"]})
        assert (hub.rejected, hub.reloads) == (None, {"accepted": 2, "rejected": 2})
        assert caplog.messages[-1] == "registry: 1 clusters, 2 services"
        stop.set()
        await running


@pytest.mark.parametrize(
    ("file", "kubeconfig", "options", "error"),
    [
        ("version: 2\n", "hub", {}, RegistryError),
        ("version: 2\n", "hub", {"fall_back": True}, RegistryError),  # no registry was accepted before
        ("version: 2\n", "missing", {"fall_back": True}, RegistryError),  # the file must be mended anyway
        ("version: 1\n", "missing", {"fall_back": True}, KubeconfigError),
    ],
)
async def test_hub_that_cannot_start_says_why(
    world: World, file: str, kubeconfig: str, options: dict[str, Any], error: type[HubError]
) -> None:
    """A hub starts with neither a broken registry nor without access to the hub cluster."""
    world.file.write_text(file)
    given = Options(str(world.file), str(world.file.parent / kubeconfig), **options)
    with pytest.raises(error):
        async with assemble(given):
            pass


async def test_last_accepted_registry_is_used_only_if_asked_for(world: World) -> None:
    """With ``fall_back``, a hub whose file is rejected starts with the registry that was accepted last."""
    kept = accepted.packed(world.file.read_bytes())
    assert kept is not None
    meta = {"name": accepted.config_map("default"), "namespace": "default"}
    world.here.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **kept})
    world.file.write_text("version: 2\n")
    async with assemble(world.options(fall_back=True)) as hub:
        assert list(hub.registry.targets) == [TargetKey("edge", "payments")]
        assert hub.rejected is not None
        assert hub.reloads == {"accepted": 0, "rejected": 0}
        await hub.host.close()
    with pytest.raises(RegistryError):
        async with assemble(world.options()):
            pass
    with pytest.raises(RegistryError):
        async with assemble(world.options(fall_back=True, content=b"version: 2\n")):
            pass


async def test_services_that_ask_for_a_copy_become_targets(world: World) -> None:
    """A Service gets a copy when its annotations ask for one, and loses it with them; other changes do not matter."""
    world.write("payments", annotations={"enabled": True})
    world.here.put(make_service("edge", "source"))
    world.here.put(make_slice("edge", "source-x", "source", ["10.0.0.9"]))
    stop = asyncio.Event()
    async with assemble(world.options(leader_elect=False, removal_grace=0.1)) as hub:
        running = asyncio.create_task(hub.run(stop))
        await until(lambda: world.published().get("payments") == ["10.0.0.1"])
        copy = {"endpoint-copier/enabled": "true", "endpoint-copier/default-service-name": "source"}
        world.here.put(make_service("edge", "search", annotations=copy))
        await until(lambda: "search" in world.published())
        assert list(hub.registry.targets) == [TargetKey("edge", "payments"), TargetKey("edge", "search")]
        world.here.put(make_service("edge", "search"))
        await until(lambda: "search" not in world.published())
        assert list(hub.registry.targets) == [TargetKey("edge", "payments")]
        stop.set()
        await running
