"""The demo's cloud where the provider ``ionos`` is installed: its fake API, asked through the real provider."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from uuid import UUID, uuid5

from hub_testkit.ionos import FakeIonos

NAMESPACE = UUID("7d5a7f0e-6f4e-4c53-9a4e-2f3a0f6c2b11")
"""Of the data centers' UUIDs: the same in every run."""
LAN = 2
TOKEN_FILE = "ionos-token"  # noqa: S105 - a name


class IonosCloud:
    """As :class:`hub_testkit.demo.cloud.Cloud`; serves inside ``async with``."""

    provider = "ionos"

    def __init__(self) -> None:
        self._api = FakeIonos(token="demo")  # noqa: S106
        self._servers: dict[tuple[str, str], str] = {}
        self._down = False

    @property
    def allow_api_hosts(self) -> frozenset[str]:
        """What the hub must be allowed to contact."""
        return frozenset({self._api.host})

    @property
    def down(self) -> bool:
        """Whether every request is answered 503."""
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
        """A new server; its node's provider ID."""
        identity = _uuid(datacenter)
        if identity not in self._api.datacenters:
            self._api.add_datacenter(datacenter, identity=identity)
        server: str = self._api.add_server(identity, name, address, lan=LAN, zone=zone)
        self._servers[datacenter, name] = server
        return f"ionos://{server}"

    def remove(self, datacenter: str, name: str) -> None:
        """The server is gone."""
        self._api.remove_server(_uuid(datacenter), self._servers.pop((datacenter, name)))

    def addresses(self, datacenter: str) -> dict[str, str]:
        """Address by name, of all servers of a data center."""
        return {
            each["properties"]["name"]: each["entities"]["nics"]["items"][0]["properties"]["ips"][0]
            for each in self._api.datacenters[_uuid(datacenter)].servers.values()
        }

    def config(self, datacenter: str) -> str:
        """``provider.config`` in YAML."""
        return (
            f'{{datacenters: [{_uuid(datacenter)}], lan: {LAN}, apiUrl: "{self._api.url}", '
            f"token: {{file: {TOKEN_FILE}}}, refresh: 1s}}"
        )

    def write_files(self, folder: Path) -> None:
        """What the configuration refers to."""
        (folder / TOKEN_FILE).write_text(self._api.token)


def _uuid(datacenter: str) -> str:
    return str(uuid5(NAMESPACE, datacenter))
