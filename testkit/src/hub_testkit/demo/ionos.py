"""The demo's cloud if the provider ``ionos`` is installed: the fake IONOS API, used through the real provider."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from uuid import UUID, uuid5

from hub_testkit.ionos import FakeIonos

NAMESPACE = UUID("7d5a7f0e-6f4e-4c53-9a4e-2f3a0f6c2b11")
"""The namespace of the data centers' UUIDs, so that they are the same in every run."""

LAN = 2
TOKEN_FILE = "ionos-token"  # noqa: S105 - a name


class IonosCloud:
    """A cloud like :class:`hub_testkit.demo.cloud.Cloud`. It serves inside ``async with``."""

    provider = "ionos"

    def __init__(self) -> None:
        self._api = FakeIonos(token="demo")  # noqa: S106
        self._servers: dict[tuple[str, str], str] = {}
        self._down = False

    @property
    def allow_api_hosts(self) -> frozenset[str]:
        """The host that the hub must be allowed to contact."""
        return frozenset({self._api.host})

    @property
    def down(self) -> bool:
        """Whether every request is answered with 503."""
        return self._down

    @down.setter
    def down(self, value: bool) -> None:
        self._down = value
        if value:
            self._api.fail_next(503, None)
        else:
            self._api.heal()

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.__aexit__()

    def add(self, datacenter: str, name: str, address: str, zone: str) -> str:
        """Adds a server and returns the provider ID of its node."""
        identity = _uuid(datacenter)
        if identity not in self._api.datacenters:
            self._api.add_datacenter(datacenter, identity=identity)
        server: str = self._api.add_server(identity, name, address, lan=LAN, zone=zone)
        self._servers[datacenter, name] = server
        return f"ionos://{server}"

    def remove(self, datacenter: str, name: str) -> None:
        """Removes a server."""
        self._api.remove_server(_uuid(datacenter), self._servers.pop((datacenter, name)))

    def addresses(self, datacenter: str) -> dict[str, str]:
        """Returns the addresses of a data center's servers, by name."""
        return {
            server["properties"]["name"]: server["entities"]["nics"]["items"][0]["properties"]["ips"][0]
            for server in self._api.datacenters[_uuid(datacenter)].servers.values()
        }

    def config(self, datacenter: str) -> str:
        """Returns ``provider.config`` for a data center, in YAML."""
        return (
            f'{{datacenters: [{_uuid(datacenter)}], lan: {LAN}, apiUrl: "{self._api.url}", '
            f"token: {{file: {TOKEN_FILE}}}, refresh: 1s}}"
        )

    def write_files(self, folder: Path) -> None:
        """Writes the token, the file that the configuration refers to."""
        (folder / TOKEN_FILE).write_text(self._api.token)


def _uuid(datacenter: str) -> str:
    return str(uuid5(NAMESPACE, datacenter))
