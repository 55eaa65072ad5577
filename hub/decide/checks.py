"""What to probe, and how: pure values between the registry, the ``desired`` stage and the prober.

A check holds everything that affects the result of a probe except the address: two targets with equal checks share
one probe per address. The target decides what happens to a failing address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from hub.model import Endpoint
from hub.registry.spec import HealthPolicy

Verdict = bool | None
"""True: healthy. False: unhealthy. None: a new address without a verdict."""


class Check(msgspec.Struct, frozen=True):
    """How an address is probed: the keys of :class:`HealthPolicy`, with a resolved ``port``.

    Times are in seconds.
    """

    mode: Literal["tcp", "http", "https", "grpc", "grpcs"]
    port: int
    interval: float = 5.0
    timeout: float = 3.0
    rise: int = 2
    fall: int = 3
    path: str = "/"
    method: str = "GET"
    host: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    status: tuple[tuple[int, int], ...] = ((200, 399),)
    server_name: str = ""
    ca: str = ""
    insecure: bool = False
    grpc_service: str = ""

    @property
    def tls(self) -> bool:
        """Whether the request goes through TLS."""
        return self.mode in ("https", "grpcs")

    def __str__(self) -> str:
        """The short form for findings and logs: ``http :30080/healthz``, ``grpc :50051 shop.Cart``."""
        what = self.path if self.mode in ("http", "https") else f" {self.grpc_service}".rstrip()
        return f"{self.mode} :{self.port}{what}"


def check_of(policy: HealthPolicy, port: int) -> Check | None:
    """The check of a policy; None if its mode is ``off``. Keys that the mode does not use are ignored.

    Args:
        policy: the health policy, with precedence applied.
        port: the port to probe if the policy sets none.
    """
    if policy.mode == "off":
        return None
    timing = (policy.port or port, policy.interval, policy.timeout, policy.rise, policy.fall)
    keys: dict[str, Any] = {}
    if policy.mode in ("http", "https"):
        keys = {name: getattr(policy, name) for name in ("path", "method", "host", "headers", "status")}
    elif policy.mode in ("grpc", "grpcs"):
        keys = {"host": policy.host, "grpc_service": policy.grpc_service}
    if policy.mode in ("https", "grpcs"):
        keys |= {"server_name": policy.server_name, "ca": policy.ca, "insecure": policy.insecure}
    return Check(policy.mode, *timing, **keys)


class Watch(msgspec.Struct, frozen=True):
    """The addresses of one source and family that a target wants probed.

    Attributes:
        cluster, family: the source and family of the addresses.
        check: how the addresses are probed.
        addresses: address -> endpoint; only the keys are used. The same object as long as nothing changes.
        published: address -> published endpoint, for the starting verdict of a new address.
    """

    cluster: str
    family: str
    check: Check
    addresses: Mapping[str, Endpoint]
    published: Mapping[str, Endpoint]


Verdicts = Mapping[Check, Mapping[str, Verdict]]
"""Check -> address -> verdict, at one moment. An inner mapping is the same object until one of its verdicts changes."""

NO_VERDICTS: Final[Verdicts] = {}


class Policy(Protocol):
    """Decides which addresses may be probed: those that may be published."""

    def accepts(self, text: str) -> bool:
        """Whether an address is in its normal form and may be probed."""
        ...


def starting_verdict(published: Endpoint | None) -> Verdict:
    """The verdict of an address before its first probe: from its published conditions; None if it isn't published."""
    return None if published is None else published.conditions.serving is not False
