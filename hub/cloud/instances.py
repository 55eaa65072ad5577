"""Machines behind Nodes, as a cloud's API states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from hub.model import Absent, NodeAddress, Unknown

__all__ = ["Absent", "CloudNode", "Instance", "InstanceAnswer", "InstanceStatus", "NodeAddress", "Unknown"]

InstanceStatus = Literal["running", "starting", "stopped", "leaving"]


class CloudNode(msgspec.Struct, frozen=True):
    """A Node that a cloud is asked about. All texts are unchecked: a kubelet may report anything.

    Attributes:
        name: the Node's name.
        provider_id: ``spec.providerID``; "" while the Node has none.
        system_uuid: ``status.nodeInfo.systemUUID``.
        addresses: ``status.addresses``.
    """

    name: str
    provider_id: str = ""
    system_uuid: str = ""
    addresses: tuple[NodeAddress, ...] = ()


class Instance(msgspec.Struct, frozen=True, tag=True):
    """The machine exists.

    Attributes:
        provider_id: the whole ``spec.providerID``, such as ``brightbox://srv-12345``.
        status: ``stopped`` = shut down, but it exists; ``leaving`` = it is being deleted, and still exists.
        addresses: in the order in which the Node shall have them.
        zone: value of the zone labels; "" if unknown.
        region: value of the region labels; "" if unknown.
        instance_type: value of the instance type labels; "" if unknown.
        labels: further labels that a new Node gets; none under kubernetes.io or k8s.io.
    """

    provider_id: str
    status: InstanceStatus = "running"
    addresses: tuple[NodeAddress, ...] = ()
    zone: str = ""
    region: str = ""
    instance_type: str = ""
    labels: Mapping[str, str] = {}


InstanceAnswer = Instance | Absent | Unknown
