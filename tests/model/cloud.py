"""A simulated cloud and the provider plugin that asks it; the registry names it ``model-cloud``."""

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
from tests.model.loop import EVER

Mode = Literal["ok", "fail", "partial", "empty", "hang", "defect"]
POLL = 10.0
"""Seconds between polls."""


@dataclass(slots=True)
class Cloud:
    """What the cloud knows of one cluster's machines, and how it answers.

    Attributes:
        addresses: by machine; None = the cloud says there is none.
        mode: ``partial`` leaves every other machine out, ``empty`` all of them; ``defect`` raises what no provider may.
    """

    addresses: dict[str, str | None] = field(default_factory=dict)
    mode: Mode = "ok"

    def tells(self, name: str) -> bool:
        """Whether an answer says something about this machine."""
        return self.mode == "ok" or (self.mode == "partial" and int(name[1:]) % 2 == 0)


def six(address: str) -> str:
    """The IPv6 address of the machine that has this IPv4 address: 10.1.0.2 -> fd10::1:0:2."""
    first, *rest = address.split(".")
    return f"fd{int(first) % 100:02}::{':'.join(rest)}"


CLOUDS: dict[str, Cloud] = {}
"""By cluster; whoever builds a world fills it."""


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
            await asyncio.sleep(EVER)
        answer: dict[str, Resolution] = {}
        for node in nodes:
            if cloud.tells(node.name):
                address = cloud.addresses.get(node.name)
                answer[node.name] = Found((address, six(address))) if address else Absent("no such machine")
        return answer


@asynccontextmanager
async def _open(_context: ClusterContext, config: Config, _shared: object) -> AsyncIterator[_Provider]:
    yield _Provider(CLOUDS[config.account])


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """The one type."""
    return [NodeProviderType(name="model-cloud", open=_open, config=Config, poll_interval=POLL, reads=frozenset())]
