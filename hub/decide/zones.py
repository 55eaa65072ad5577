"""Zone hints for the endpoints of a remote cluster: its zones are translated into zones of the hub cluster.

Kubernetes writes hints itself for Services with a selector (``trafficDistribution: PreferSameZone``): every ready
endpoint gets a hint for its own zone. kube-proxy ignores all hints of a Service as soon as one of its ready endpoints
has none, and ignores them on nodes in whose zone there is no endpoint. Hints of some endpoints only would therefore be
of no use, so the endpoints of a source have hints all or none.

Sources: trafficdist.go in kubernetes/endpointslice, and ``topologyModeFromHints`` in pkg/proxy/topology.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from hub.decide.endpoints import EndpointSet
from hub.model import Endpoint, Finding, Hints, NamedHint


def in_hub_zone(endpoint: Endpoint, zones: Mapping[str, str]) -> Endpoint:
    """An endpoint with the hub zone of its zone and a hint for it; the endpoint itself if its zone is not mapped."""
    zone = zones.get(endpoint.zone or "")
    return endpoint if zone is None else replace(endpoint, zone=zone, hints=Hints((NamedHint(zone),)))


def without_hints(endpoints: EndpointSet) -> EndpointSet:
    """The endpoints without zone hints."""
    return endpoints.overlay(
        {address: replace(endpoint, hints=None) for address, endpoint in endpoints.items() if endpoint.hints}
    )


def problems(
    cluster: str, endpoints: Collection[Endpoint], zones: Mapping[str, str], hub_zones: frozenset[str] | None
) -> Iterator[Finding]:
    """Why the endpoints of a source get no hints.

    Args:
        cluster: the name of the source cluster.
        endpoints: after :func:`in_hub_zone`.
        zones: zone of the source cluster -> zone of the hub cluster.
        hub_zones: the zones of the hub cluster's Nodes; None = not known.
    """
    lacking = [endpoint for endpoint in endpoints if not endpoint.hints]
    if lacking:
        first = lacking[0]
        why = f"whose zone {first.zone[:64]!r} is not in zoneMap" if first.zone else "which has no zone"
        message = (
            f"{cluster}: no zone hints: {len(lacking)} of {len(endpoints)} endpoints are in no known zone, "
            f"such as {first.address}, {why}"
        )
        yield Finding("ZoneNotMapped", message, (cluster,))
    missing = sorted(set(zones.values()) - hub_zones) if hub_zones is not None else []
    if missing:
        message = f"{cluster}: no zone hints: zoneMap names {', '.join(missing)}, where the hub cluster has no Node"
        yield Finding("ZoneNotInHub", message, (cluster,))
