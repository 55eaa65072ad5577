"""An assembled hub finds the files that a registry names only in the allowed folders."""

from __future__ import annotations

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
