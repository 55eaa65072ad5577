"""Computes views from a Service and its slices, and changes from views. Pure.

A slice's port belongs to the Service's port of the same name and protocol; a slice without ports serves all ports of
the Service. An endpoint without a ``ready`` condition is ready, as the API defines. If several slices have the same
address, the first slice by name counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from hub.model import Endpoint, EndpointView, Service, ServicePort, Slice
from hub.views.names import gathered_name, own_name

K = TypeVar("K")
V = TypeVar("V")

Views = Mapping[str, EndpointView]
"""The views of one Service of one cluster, by name; sorted."""


class Change(NamedTuple):
    """A change of one object; ``old`` is None if it is new, ``new`` is None if it was deleted."""

    key: Any
    old: Any
    new: Any


def views_of(cluster: str, service: Service, slices: Iterable[Slice], *, stale: bool = False) -> Views:
    """One view for each port of the Service and each ready address behind it, by name.

    Args:
        cluster: name of the cluster.
        service: a Service of the cluster.
        slices: of the Service.
        stale: whether the cluster does not answer at present.
    """
    found: dict[str, EndpointView] = {}
    for slice_ in sorted(slices, key=lambda slice_: slice_.name):
        if slice_.deleting:
            continue
        for port, resolved in _ports(service, slice_):
            for endpoint in slice_.endpoints:
                if endpoint.conditions.ready is False:
                    continue
                for address in endpoint.addresses:
                    name = own_name(cluster, service.name, port.protocol, port.port, address)
                    if name not in found:
                        found[name] = _view(cluster, name, service, port, resolved, endpoint, address, stale)
    return dict(sorted(found.items()))


def _ports(service: Service, slice_: Slice) -> Iterator[tuple[ServicePort, int | None]]:
    """The Service's ports that a slice serves, each with its number in the slice; None if the slice has no ports."""
    numbers = {(port.name, port.protocol): port.port for port in slice_.ports}
    for port in service.ports:
        if not numbers:
            yield port, None
        elif (port.name, port.protocol) in numbers:
            yield port, numbers[port.name, port.protocol]


def _view(
    cluster: str,
    name: str,
    service: Service,
    port: ServicePort,
    resolved: int | None,
    endpoint: Endpoint,
    address: str,
    stale: bool,
) -> EndpointView:
    conditions = endpoint.conditions
    return EndpointView(
        cluster=cluster,
        namespace=service.namespace,
        name=name,
        service=service.name,
        kind=service.kind,
        port=port.port,
        port_name=port.name,
        target_port=port.port if port.target_port is None else port.target_port,
        protocol=port.protocol,
        addresses=(address,),
        resolved_port=resolved,
        serving=conditions.serving is not False,
        terminating=conditions.terminating is True,
        node_name=endpoint.node_name or "",
        zone=endpoint.zone or "",
        stale=stale,
    )


def gathered(views: Views) -> Views:
    """One view for each port of the Service, with all addresses, sorted; fields of single endpoints are left out."""
    by_port: dict[str, list[EndpointView]] = {}
    for view in views.values():
        by_port.setdefault(gathered_name(view.service, view.protocol, view.port), []).append(view)
    return {name: _gather(name, group) for name, group in sorted(by_port.items())}


def _gather(name: str, group: list[EndpointView]) -> EndpointView:
    first = group[0]
    numbers = {view.resolved_port for view in group}
    return EndpointView(
        cluster=first.cluster,
        namespace=first.namespace,
        name=name,
        service=first.service,
        kind=first.kind,
        port=first.port,
        port_name=first.port_name,
        target_port=first.target_port,
        protocol=first.protocol,
        addresses=tuple(sorted(address for view in group for address in view.addresses)),
        resolved_port=numbers.pop() if len(numbers) == 1 else None,
        stale=first.stale,
    )


def diff(old: Mapping[K, V], new: Mapping[K, V]) -> list[Change]:
    """The changes from ``old`` to ``new``: new and changed objects, then deleted objects, both sorted by key.

    In this order a reader always has an endpoint while one replaces another.
    """
    changes = [Change(key, old.get(key), new[key]) for key in sorted(new) if old.get(key) != new[key]]  # type: ignore[type-var]
    return changes + [Change(key, old[key], None) for key in sorted(old.keys() - new.keys())]  # type: ignore[type-var]
