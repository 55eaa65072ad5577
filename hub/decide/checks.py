"""What to probe, and how: pure values between the registry, the ``desired`` stage and the prober.

A check is everything that decides about an answer but the address: two targets whose checks are equal share
one probe for each address. What happens to a failing address is up to the target, not to the check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol

import msgspec

from hub.model import Endpoint
from hub.registry.spec import HealthPolicy

Verdict = bool | None
"""True: healthy. False: unhealthy. None: never seen before, and not judged yet."""


class Check(msgspec.Struct, frozen=True):
    """How an address is probed; ``port`` is resolved. The other keys are :class:`HealthPolicy`'s."""

    mode: Literal["tcp", "http", "https"]
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

    def __str__(self) -> str:
        """As findings and logs name it: ``http :30080/healthz``."""
        return f"{self.mode} :{self.port}{self.path if self.mode != 'tcp' else ''}"


def check_of(policy: HealthPolicy, port: int) -> Check | None:
    """The check that a policy asks for; None if it is off. Keys that the mode does not use are ignored.

    Args:
        policy: with precedence applied.
        port: where the policy names none.
    """
    if policy.mode == "off":
        return None
    timing = (policy.port or port, policy.interval, policy.timeout, policy.rise, policy.fall)
    if policy.mode == "tcp":
        return Check("tcp", *timing)
    request = (policy.path, policy.method, policy.host, policy.headers, policy.status)
    if policy.mode == "http":
        return Check("http", *timing, *request)
    return Check("https", *timing, *request, policy.server_name, policy.ca, policy.insecure)


class Watch(msgspec.Struct, frozen=True):
    """The addresses of one source and family that a target wants probed.

    Attributes:
        cluster, family: whose addresses these are.
        addresses: the keys are; the same mapping where nothing changed.
        published: what the target publishes of it: what an unknown verdict starts from.
    """

    cluster: str
    family: str
    check: Check
    addresses: Mapping[str, Endpoint]
    published: Mapping[str, Endpoint]


Verdicts = Mapping[Check, Mapping[str, Verdict]]
"""By check and address, at one moment; an inner mapping is the same object until one of its verdicts changes."""

NO_VERDICTS: Final[Verdicts] = {}


class Policy(Protocol):
    """Which addresses may be contacted: those that may be published."""

    def accepts(self, text: str) -> bool:
        """Whether an address is in its normal form and may be probed."""
        ...


def starting_verdict(published: Endpoint | None) -> Verdict:
    """The verdict of an address before its first probe: as its slice says; None if no slice has it."""
    return None if published is None else published.conditions.serving is not False
