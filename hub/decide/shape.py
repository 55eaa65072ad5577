"""What a Service asks of every endpoint, whatever the source: hostnames, and readiness to be ignored.

For a plain Service nothing is done at all, and the source's own set goes through as it is.
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
"""Endpoints whose shape is remembered, so that Services share it: those of the largest cluster that is tested."""

HOSTNAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""An RFC 1123 label: one bad hostname would have the API server refuse the whole slice."""


def shape(service: Service, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Give the endpoints of a headless Service their hostnames; publish not ready ones as ready where asked.

    Only of claims that are known: what is published for an unknown source stays as it is.
    """
    if not service.headless and not service.publish_not_ready:
        return tuple(claims)
    shared = _shared_hostnames(claims) if service.headless else frozenset()
    return tuple(
        _shaped(service, claim, shared) if claim.known and claim.role == "claims" else claim for claim in claims
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


@lru_cache(REMEMBERED)
def _with(endpoint: Endpoint, hostname: str | None, *, ready: bool) -> Endpoint:
    conditions = endpoint.conditions
    if ready and not conditions.ready:
        conditions = Conditions(ready=True, serving=conditions.serving, terminating=conditions.terminating)
    if hostname == endpoint.hostname and conditions is endpoint.conditions:
        return endpoint
    return replace(endpoint, hostname=hostname, conditions=conditions)
