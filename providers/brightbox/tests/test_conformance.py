"""The rules for clouds, on the fake of Brightbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import hub_provider_brightbox
from hub_provider_brightbox.shapes import as_objects, part_id
from hub_provider_brightbox.testing import CLIENT, SECRET, BrightboxFake, Served
from hub_provider_brightbox.testing.shapes import HEALTHCHECK, LISTENER
from hub_testkit.clouds.conformance import CloudConformance
from hub_testkit.clouds.fake import Ability, CloudObject, Fault, Request, World
from hub_testkit.contexts import LocalHub

from hub.plugin.clouds import CloudNode

KINDS: Final = {
    "load_balancers": "load_balancer",
    "server_groups": "server_group",
    "firewall_policies": "firewall_policy",
    "firewall_rules": "firewall_rule",
    "cloud_ips": "cloud_ip",
}
FAULTS: Final[Mapping[Fault, str]] = {
    "error": "quoting",
    "garbage": "html-200",
    "no-key": "empty-object",
    "lost-page": "page",
    "elsewhere": "redirect",
    "unauthorized": "expire",
    "lost-request": "lost-request",
    "lost-answer": "lost-answer",
    "silent": "silent",
}
CHOSEN: Final = ("id", "name", "created_at", "public_ip", "public_ipv4", "public_ipv6", "fqdn", "reverse_dns")
"""Fields that the cloud chooses, and the name."""


class Fake:
    """Implements :class:`hub_testkit.clouds.fake.CloudFake` with the fake of Brightbox."""

    def __init__(self, fake: BrightboxFake) -> None:
        self.cannot: Mapping[Ability, str] = {}
        self._fake = fake

    @property
    def shuffled(self) -> bool:
        """See the fake."""
        return self._fake.shuffled

    @shuffled.setter
    def shuffled(self, value: bool) -> None:
        self._fake.shuffled = value

    @property
    def elsewhere(self) -> str:
        """See the fake."""
        return self._fake.elsewhere

    @elsewhere.setter
    def elsewhere(self, value: str) -> None:
        self._fake.elsewhere = value

    @property
    def requests(self) -> Sequence[Request]:
        """All requests."""
        return [Request(_kind(row), row.text, row.status) for row in self._fake.log]

    def objects(self) -> Mapping[str, CloudObject]:
        """All objects but the default ones."""
        return {
            id_: CloudObject(kind, str(each.get("name") or each.get("description")), _state(each))
            for collection, kind in KINDS.items()
            for id_, each in self._fake.account.objects[collection].items()
            if not each.get("default")
        }

    def add_machine(self, name: str) -> CloudNode:
        """A server, whose id is the Node's name."""
        del name
        id_ = str(self._fake.account.add_server()["id"])
        return CloudNode(id_, f"brightbox://{id_}")

    def remove_machine(self, node: CloudNode) -> None:
        """A server is gone."""
        self._fake.account.remove_server(node.name)

    def add_object(self, name: str, marker: str = "") -> None:
        """Only server groups carry a marker."""
        account = self._fake.account
        account.create("server_groups", {"name": name, "description": marker})
        if not marker:
            for collection in ("cloud_ips", "firewall_policies", "load_balancers"):
                account.create(collection, {"name": name})

    def fail(
        self, fault: Fault, *, times: int | None = 1, on: Literal["any", "read", "write"] = "any", skip: int = 0
    ) -> None:
        """See the fake."""
        self._fake.fail(FAULTS[fault], times=times, path="/1.0/", on=on, skip=skip)

    def heal(self) -> None:
        """See the fake."""
        self._fake.heal()


def _kind(row: Served) -> Literal["read", "write", "login"]:
    return "write" if row.writes else "login" if row.path.startswith("/token") else "read"


def _state(each: Mapping[str, Any]) -> dict[str, Any]:
    """What the hub may change, as the API shows it."""
    found = {key: value for key, value in each.items() if key not in CHOSEN and key != "acme"}
    for key in ("load_balancer", "server_group", "firewall_policy"):
        if key in found:
            found[key] = part_id(found, key)
    for key in ("nodes", "servers"):
        if key in found:
            found[key] = [row["id"] for row in as_objects(found[key])]
    if "listeners" in found:
        found["listeners"] = [{**LISTENER, **row} for row in found["listeners"]]
        found["healthcheck"] = {**HEALTHCHECK, **found["healthcheck"]}
    return found


class TestBrightbox(CloudConformance):
    """All rules."""

    plugin = hub_provider_brightbox
    name = "brightbox"
    settings = {
        "policy": "round-robin",
        "listener-protocol": "tcp",
        "listener-proxy-protocol": "v1",
        "listener-idle-timeout": 9000,
        "healthcheck-interval": 7000,
        "healthcheck-unhealthy-threshold": 5,
    }

    @asynccontextmanager
    async def world(self) -> AsyncGenerator[World, None]:
        """A new account."""
        async with BrightboxFake() as fake:
            secrets = {"ID": CLIENT, "SECRET": SECRET}
            hub = LocalHub(secrets=secrets, allow_api_hosts=frozenset((fake.host,)))
            config = {"client": {"env": "ID"}, "secret": {"env": "SECRET"}, "url": fake.url}
            yield World(Fake(fake), config, hub, (SECRET, "token-1", "token-2"))
