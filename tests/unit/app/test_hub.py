"""An assembled hub: the files that its registry names, and the work that it does with its shards."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hub_testkit import SimulatedCluster
from hub_testkit.simulator.identity import AUTHORITY

from hub.app.hub import Hub, Options, assemble
from hub.observe.health.tls import Trust
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
