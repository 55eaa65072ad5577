"""A simulated cloud and its provider plugin, which the registry names ``model-cloud``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from hub.plugin import (
    Absent,
    ClusterContext,
    Found,
    Node,
    NodeProviderType,
    ProviderType,
    Resolution,
    TransientProviderError,
    hookimpl,
)
from tests.model.loop import FOREVER

Mode = Literal["ok", "fail", "partial", "empty", "hang", "defect"]
POLL = 10.0
"""Seconds between polls."""


@dataclass(slots=True)
class Cloud:
    """One cluster's machines in the cloud, and the cloud's behaviour.

    Attributes:
        addresses: addresses by machine; None = the machine has no address.
        mode: ``partial`` omits every other machine, ``empty`` all of them; ``defect`` raises an undocumented error.
    """

    addresses: dict[str, str | None] = field(default_factory=dict)
    mode: Mode = "ok"

    def includes(self, name: str) -> bool:
        """Whether answers include this machine."""
        return self.mode == "ok" or (self.mode == "partial" and int(name[1:]) % 2 == 0)


def ipv6_of(address: str) -> str:
    """The IPv6 address of the machine with an IPv4 address: 10.1.0.2 -> fd10::1:0:2."""
    first, *rest = address.split(".")
    return f"fd{int(first) % 100:02}::{':'.join(rest)}"


CLOUDS: dict[str, Cloud] = {}
"""Clouds by cluster, set by the world."""


class Config(msgspec.Struct, forbid_unknown_fields=True):
    """``provider.config``."""

    account: str


class _Provider:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        cloud = self._cloud
        await asyncio.sleep(0.01)
        if cloud.mode == "fail":
            raise TransientProviderError("the cloud answers 503")
        if cloud.mode == "defect":
            raise ZeroDivisionError("a plugin with a bug")
        if cloud.mode == "hang":
            await asyncio.sleep(FOREVER)
        answer: dict[str, Resolution] = {}
        for node in nodes:
            if cloud.includes(node.name):
                address = cloud.addresses.get(node.name)
                answer[node.name] = Found((address, ipv6_of(address))) if address else Absent("no such machine")
        return answer


@asynccontextmanager
async def _open(_context: ClusterContext, config: Config, _shared: object) -> AsyncIterator[_Provider]:
    yield _Provider(CLOUDS[config.account])


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """Declare the provider type."""
    return [NodeProviderType(name="model-cloud", open=_open, config=Config, poll_interval=POLL, reads=frozenset())]
