"""Encodes views: as the hub's or dcontroller's objects, one per address or one per port. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from hub.model import LOCAL, EndpointView
from hub.views.join import Views, gathered
from hub.views.names import compat_name

API_VERSION: Final = "endpointslice-hub/v1"
COMPAT_API_VERSION: Final = "test-ep-operator.view.dcontroller.io/v1alpha1"
"""The API group begins with the operator's name; this is the name in dcontroller's example."""
KIND: Final = "EndpointView"

_encode = msgspec.json.Encoder().encode


class Shape(NamedTuple):
    """A form of the objects.

    Attributes:
        gather: one object for each port of a Service, instead of one for each address.
        compat: exactly dcontroller's objects; only those of the hub cluster, since dcontroller has only one cluster.
    """

    gather: bool = False
    compat: bool = False


class ObjectName(NamedTuple):
    """Identifies an object of a stream."""

    cluster: str
    namespace: str
    name: str


def shaped(views: Views, shape: Shape) -> dict[ObjectName, bytes]:
    """The encoded objects of one Service's views."""
    found: dict[ObjectName, bytes] = {}
    for view in (gathered(views) if shape.gather else views).values():
        if shape.compat and view.cluster != LOCAL:
            continue
        body = compat_object(view, gather=shape.gather) if shape.compat else own_object(view, gather=shape.gather)
        found.setdefault(ObjectName(view.cluster, view.namespace, body["metadata"]["name"]), _encode(body))
    return found


def own_object(view: EndpointView, *, gather: bool) -> dict[str, Any]:
    """The hub's object: dcontroller's keys and additional ones."""
    spec = _six_keys(view, gather=gather) | {"cluster": view.cluster, "stale": view.stale}
    if view.port_name:
        spec["portName"] = view.port_name
    if view.resolved_port is not None:
        spec["resolvedPort"] = view.resolved_port
    if not gather:
        spec["conditions"] = {"ready": True, "serving": view.serving, "terminating": view.terminating}
        spec |= {key: value for key, value in (("nodeName", view.node_name), ("zone", view.zone)) if value}
    return _object(API_VERSION, view.name, view.namespace, spec)


def compat_object(view: EndpointView, *, gather: bool) -> dict[str, Any]:
    """Exactly dcontroller's object, including its name."""
    spec = _six_keys(view, gather=gather)
    name = view.name if gather else compat_name(view.service, spec)
    return _object(COMPAT_API_VERSION, name, view.namespace, spec)


def _six_keys(view: EndpointView, *, gather: bool) -> dict[str, Any]:
    where = {"addresses": list(view.addresses)} if gather else {"address": view.addresses[0]}
    return {
        "serviceName": view.service,
        "type": view.kind,
        "port": view.port,
        "targetPort": view.target_port,
        "protocol": view.protocol,
        **where,
    }


def _object(api_version: str, name: str, namespace: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
