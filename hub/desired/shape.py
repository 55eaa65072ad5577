"""What a Service asks of every endpoint, whatever the source: hostnames, and readiness to be ignored.

For a plain Service nothing is done at all, and the source's own mapping goes through as it is. What is
done is remembered per mapping, by identity, so that equal endpoints stay the same objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hub.desired.claims import Claim
from hub.groups import GroupKey
from hub.model import Conditions, Endpoint, Service

HOSTNAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""An RFC 1123 label: one bad hostname would have the API server refuse the whole slice."""


class Shaper:
    """Shapes the endpoints of one target; one object for as long as the target lives."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[GroupKey, tuple[Mapping[str, Endpoint], Mapping[str, Endpoint]]] = {}

    def shape(self, service: Service, claims: Sequence[Claim]) -> None:
        """Set the hostnames of a headless Service's endpoints; publish not ready ones as ready where asked.

        Only of claims that are known: what is published for an unknown source stays as it is. Changes
        the claims' ``wanted``.
        """
        if not service.headless and not service.publish_not_ready:
            self._last = {}
            return
        shared = _shared_hostnames(claims) if service.headless else frozenset()
        done: dict[GroupKey, tuple[Mapping[str, Endpoint], Mapping[str, Endpoint]]] = {}
        for claim in claims:
            if claim.known and not claim.untouched and not claim.yielding:
                shaped = self._shaped(service, claim, shared)
                done[claim.key] = (claim.wanted, shaped)
                claim.wanted = shaped
        self._last = done

    def _shaped(self, service: Service, claim: Claim, shared: frozenset[str]) -> Mapping[str, Endpoint]:
        base, last = self._last.get(claim.key, ({}, {}))
        made: dict[str, Endpoint] = {}
        changed = len(claim.wanted) != len(last)
        copied = claim.view is not None and claim.view.copied
        for address, endpoint in claim.wanted.items():
            hostname = endpoint.hostname if copied else None
            if service.headless and not copied:
                hostname = _hostname(claim, endpoint)
                hostname = None if hostname in shared else hostname
            old = last.get(address)
            if (
                old is not None
                and base.get(address) is endpoint
                and old.hostname == hostname
                and (old.conditions.ready or not service.publish_not_ready)
            ):
                made[address] = old
                continue
            new = _with(endpoint, hostname, ready=service.publish_not_ready)
            made[address] = old if old is not None and old == new else new
            changed = changed or made[address] is not old
        return made if changed else last


def _shared_hostnames(claims: Sequence[Claim]) -> frozenset[str]:
    """Hostnames that two nodes would have; the families of one node are one. A copy's are as they are."""
    holders: dict[str, tuple[str, str]] = {}
    shared: set[str] = set()
    for claim in claims:
        if claim.yielding or (claim.view is not None and claim.view.copied):
            continue
        for address, endpoint in claim.wanted.items():
            hostname = _hostname(claim, endpoint) or endpoint.hostname
            if hostname is not None:
                name = endpoint.target_ref.name if endpoint.target_ref is not None else hostname
                holder = (claim.key.cluster, name if claim.view is None or not claim.view.hostnames else address)
                if holders.setdefault(hostname, holder) != holder:
                    shared.add(hostname)
    return frozenset(shared)


def _hostname(claim: Claim, endpoint: Endpoint) -> str | None:
    """The source's own hostname, else the first label of the node's name; None where it is not a label."""
    name = claim.view.hostnames.get(endpoint.address, "") if claim.view is not None else ""
    if not name and endpoint.target_ref is not None and endpoint.target_ref.kind == "Node":
        name = endpoint.target_ref.name.partition(".")[0]
    return name if HOSTNAME.fullmatch(name) else None


def _with(endpoint: Endpoint, hostname: str | None, *, ready: bool) -> Endpoint:
    conditions = endpoint.conditions
    if ready and not conditions.ready:
        conditions = Conditions(ready=True, serving=conditions.serving, terminating=conditions.terminating)
    if hostname == endpoint.hostname and conditions is endpoint.conditions:
        return endpoint
    return msgspec.structs.replace(endpoint, hostname=hostname, conditions=conditions)
