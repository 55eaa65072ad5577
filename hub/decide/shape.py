"""Apply the Service's settings to the endpoints of all sources: hostnames and ``publishNotReadyAddresses``.

The endpoints of a Service that uses neither stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from hub.decide.claims import Claim
from hub.model import Conditions, Endpoint, Service

REMEMBERED: Final = 10_000
"""Cached results, shared between Services: as many as the largest tested cluster has endpoints."""

HOSTNAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""An RFC 1123 label: the API server refuses the whole slice if one hostname is invalid."""


def shape(service: Service, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Set the hostnames of a headless Service; publish endpoints as ready if the Service ignores readiness.

    Only claims of known sources change: the published endpoints of an unknown source stay.
    """
    if not service.headless and not service.publish_not_ready:
        return tuple(claims)
    shared = _shared_hostnames(claims) if service.headless else frozenset()
    return tuple(
        _shaped(service, claim, shared) if claim.known and claim.role == "normal" else claim for claim in claims
    )


def _shaped(service: Service, claim: Claim, shared: frozenset[str]) -> Claim:
    copied = claim.view is not None and claim.view.copied
    made: dict[str, Endpoint | None] = {}
    for address, endpoint in claim.wanted.items():
        hostname = endpoint.hostname if copied else None
        if service.headless and not copied:
            hostname = _hostname(claim, endpoint)
            hostname = None if hostname in shared else hostname
        new = _with(endpoint, hostname, ready=service.publish_not_ready)
        if new is not endpoint:
            made[address] = new
    return replace(claim, wanted=claim.wanted.overlay(made)) if made else claim


def _shared_hostnames(claims: Sequence[Claim]) -> frozenset[str]:
    """Hostnames that two nodes would share; a node may use its hostname in both families. Copies are not checked."""
    holders: dict[str, tuple[str, str]] = {}
    shared: set[str] = set()
    for claim in claims:
        if claim.leaving or (claim.view is not None and claim.view.copied):
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
    """The hostname from the source, else the first label of the node's name; None if it isn't a valid label."""
    name = claim.view.hostnames.get(endpoint.address, "") if claim.view is not None else ""
    if not name and endpoint.target_ref is not None and endpoint.target_ref.kind == "Node":
        name = endpoint.target_ref.name.partition(".")[0]
    return name if HOSTNAME.fullmatch(name) else None


@lru_cache(REMEMBERED)
def _with(endpoint: Endpoint, hostname: str | None, *, ready: bool) -> Endpoint:
    conditions = endpoint.conditions
    if ready and not conditions.ready:
        conditions = Conditions(ready=True, serving=conditions.serving, terminating=conditions.terminating)
    if hostname == endpoint.hostname and conditions is endpoint.conditions:
        return endpoint
    return replace(endpoint, hostname=hostname, conditions=conditions)
