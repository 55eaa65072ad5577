"""The fake of Brightbox for blocking tests, and a cluster there whose cloud controller is the hub."""

from __future__ import annotations

from typing import Any

from hub_provider_brightbox.testing import CLIENT, SECRET, BrightboxFake

from tests.support.api import Object
from tests.support.cloud_scene import CloudScene
from tests.support.fake_thread import FakeThread


class BrightboxThread(FakeThread[BrightboxFake]):
    """Serves a :class:`BrightboxFake` in a thread."""

    def __init__(self) -> None:
        super().__init__(BrightboxFake)


class BrightboxScene(CloudScene):
    """A cluster on Brightbox."""

    cloud: BrightboxThread

    def provider(self) -> Object:
        """``cloud.provider``; writes the credential's files."""
        (self.world.folder / "client").write_text(CLIENT)
        (self.world.folder / "secret").write_text(SECRET)
        config = {"client": {"file": "client"}, "secret": {"file": "secret"}, "url": self.cloud.fake.url}
        return {"name": "brightbox", "config": config}

    def add_node(self, *, ready: str = "True", initialized: bool = False, **server: Any) -> str:
        """Create a server and its Node; returns their name."""
        made = self.cloud.call(lambda: self.cloud.fake.account.add_server(**server))
        name = str(made["id"])
        self.register(name, f"brightbox://{name}", ready=ready, initialized=initialized)
        return name

    def hostnames(self, name: str = "web") -> list[str]:
        """The hostnames in a Service's status."""
        return [entry["hostname"] for entry in self.ingress(name)]

    @property
    def writes(self) -> list[str]:
        """What was written to the cloud."""
        return self.cloud.call(lambda: list(self.cloud.fake.writes))
