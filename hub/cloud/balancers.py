"""Load balancers of Services: what a Service wants, what the hub remembers, and the single steps between.

A *balancer* is everything that a cloud has for one Service of type LoadBalancer: the load balancer itself, and with it,
for example, a server group, a firewall policy and a public address. Each of these is an *object*, with a *kind* that
the plugin names (``load_balancer``) and an id of the cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from hub.model import NodeAddress

__all__ = [
    "Annotation",
    "Balancer",
    "BalancerNode",
    "BalancerPort",
    "Done",
    "Ingress",
    "Intent",
    "Marker",
    "Notice",
    "Planned",
    "Record",
    "Refused",
    "Setting",
    "Step",
    "Wait",
]

Setting = str | int | tuple[str, ...]
"""The parsed value of an annotation."""
_MARKER = "endpointslice-hub "


class Annotation(msgspec.Struct, frozen=True):
    """An annotation of Services that the cloud understands.

    Attributes:
        name: its name after ``CloudType.prefix``, and the key of ``Balancer.settings``.
        kind: ``number`` is a whole number from 0 to 2**32 - 1; ``choice`` is one of ``values``; ``list`` is a list of
            texts, separated by commas, blanks around them cut; ``text`` must match ``values[0]``, a pattern, wholly;
            ``flag`` is "true" or "false", and becomes 1 or 0; ``labels`` is a list of KEY=VALUE: the hub gives the
            balancer only the Nodes that have all of these labels.
        help: one sentence for the reference, with the unit.
        values: see ``kind``.
        default: what the cloud does without the annotation, for the reference.
        key: the whole key, if it does not begin with the prefix; "" otherwise.
        aliases: other whole keys that mean the same; with both, ``name`` counts and the hub reports it.
        empty: whether a value without any characters is allowed.
    """

    name: str
    kind: Literal["number", "choice", "list", "text", "flag", "labels"]
    help: str
    values: tuple[str, ...] = ()
    default: str = ""
    key: str = ""
    aliases: tuple[str, ...] = ()
    empty: bool = False


class Marker(msgspec.Struct, frozen=True):
    """Whom an object belongs to: written into a field of the object that people read, such as a description.

    Attributes:
        cluster: UID of the cluster, which is the UID of its kube-system Namespace.
        service: UID of the Service.
    """

    cluster: str
    service: str

    def __str__(self) -> str:
        return f"{_MARKER}cluster={self.cluster} service={self.service}"

    @classmethod
    def read(cls, text: str) -> Marker | None:
        """The marker in a text; None if it has none."""
        _, found, rest = text.partition(_MARKER)
        fields = dict(part.partition("=")[::2] for part in rest.split()[:2]) if found else {}
        return cls(fields["cluster"], fields["service"]) if fields.keys() == {"cluster", "service"} else None


class BalancerPort(msgspec.Struct, frozen=True):
    """One port of the Service. ``node_port`` is 0 if none is allocated."""

    port: int
    node_port: int = 0
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str = ""


class BalancerNode(msgspec.Struct, frozen=True):
    """A Node that traffic may be sent to. ``provider_id`` matches the cloud's pattern.

    Attributes:
        labels: KEY=VALUE, sorted; () unless the cloud declares an annotation of the kind ``labels``.
    """

    name: str
    provider_id: str
    addresses: tuple[NodeAddress, ...] = ()
    labels: tuple[str, ...] = ()


class Balancer(msgspec.Struct, frozen=True):
    """What one Service of type LoadBalancer wants.

    Attributes:
        name: of all objects: ``<service>.<namespace>.<clusterName>``.
        marker: see :class:`Marker`.
        ports: in the Service's order; at least one.
        nodes: sorted by name. Empty = none is known now: an existing balancer keeps its nodes.
        address: ``spec.loadBalancerIP``, or "".
        local: whether ``externalTrafficPolicy`` is Local.
        health_port: ``spec.healthCheckNodePort``, or 0.
        client_affinity: whether ``sessionAffinity`` is ClientIP.
        families: ``spec.ipFamilies``.
        source_ranges: ``spec.loadBalancerSourceRanges``.
        settings: annotation's name, without its prefix -> value, for annotations that are present and valid.
        former_names: names that objects of this balancer may still have; the plan renames these.
        nodes_only: the Service has a mistake that the hub has reported: of an existing balancer only the nodes may
            change, and nothing may be created.
    """

    name: str
    marker: Marker
    ports: tuple[BalancerPort, ...] = ()
    nodes: tuple[BalancerNode, ...] = ()
    address: str = ""
    local: bool = False
    health_port: int = 0
    client_affinity: bool = False
    families: tuple[str, ...] = ("IPv4",)
    source_ranges: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = {}
    former_names: tuple[str, ...] = ()
    nodes_only: bool = False


class Intent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was about to be created. ``at`` is Unix time in seconds, ``make`` are kinds of objects."""

    at: float = 0.0
    make: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """What the hub remembers about a Service's balancer. It is kept in an annotation of the Service.

    Attributes:
        name: the balancer's name, as in :class:`Balancer`; also without anything remembered.
        marker: as in :class:`Balancer`.
        former_names: as in :class:`Balancer`.
        ids: kind of object -> id.
        made: kinds of objects that the hub created; only these may be deleted where a name proves nothing.
        set: names of settings that the balancer once had; they go back to the cloud's default when they go.
        intent: the last creations that may have no answer; None = all are known.
    """

    name: str
    marker: Marker
    former_names: tuple[str, ...] = ()
    ids: Mapping[str, str] = {}
    made: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    intent: Intent | None = None


class Step(msgspec.Struct, frozen=True):
    """One write.

    Attributes:
        kind: what it does, such as ``create-load-balancer``; a label of metrics.
        summary: the same with names and ids, for an operator.
        request: what the plugin needs to make the write; JSON values, no credential.
        creates: the kind of the object that it creates, or "".
        destroys: the kind of the object that it deletes, or ""; ``request`` names its id.
    """

    kind: str
    summary: str
    request: Mapping[str, Any] = {}
    creates: str = ""
    destroys: str = ""


class Wait(msgspec.Struct, frozen=True):
    """The cloud must come further before the next step; the hub observes again after ``after`` seconds."""

    reason: str
    message: str
    after: float = 15.0


class Refused(msgspec.Struct, frozen=True):
    """The Service asks for what cannot be; nothing more happens until it changes."""

    reason: str
    message: str


class Notice(msgspec.Struct, frozen=True):
    """Something that an operator should know; the steps go on."""

    reason: str
    message: str


Planned = Step | Wait | Refused | Notice


class Done(msgspec.Struct, frozen=True):
    """The answer to a step.

    Attributes:
        ids: kind of object -> id, for objects that the step created.
        answer: the object as the cloud's answer states it; the plugin's own value, for ``Balancers.after``.
    """

    ids: Mapping[str, str] = {}
    answer: Any = None


class Ingress(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One entry of a Service's ``status.loadBalancer.ingress``."""

    ip: str = ""
    hostname: str = ""
    ip_mode: Literal["", "VIP", "Proxy"] = ""
