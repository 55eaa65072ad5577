"""Test data for the rules: nodes that a hostile cluster may report, and another value for every field of a node.

Not public: authors import ``HOSTILE_NODES`` from :mod:`hub_testkit.conformance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hub.model import Node, NodeAddress, Taint

OTHER_VALUES: Final[Mapping[str, Any]] = {
    "addresses": (NodeAddress("InternalIP", "10.255.255.1"),),
    "labels": {"changed": "by-the-conformance-suite"},
    "provider_id": "changed://by-the-conformance-suite",
    "system_uuid": "00000000-0000-4000-8000-00000000c0de",
    "ready": "False",
    "taints": (Taint("changed", "NoSchedule"),),
    "unschedulable": True,
}
"""Another value for every field that a provider type may name in ``reads``."""

_NASTY: Final = ("", " ", "\0", "\n", "../../etc/passwd", "a" * 70_000, "\ud7ff\U0001f600", "%s%n{}", "🖥")

HOSTILE_NODES: Final[Sequence[Node]] = (
    *(
        Node(
            f"hostile-{index}",
            ready=nasty,
            labels={nasty: nasty},
            addresses=(NodeAddress(nasty, nasty), NodeAddress("InternalIP", nasty), NodeAddress("ExternalIP", nasty)),
            provider_id=nasty,
            system_uuid=nasty,
            taints=(Taint(nasty, nasty, nasty),),
        )
        for index, nasty in enumerate(_NASTY)
    ),
    *(Node(f"hostile-id-{index}", provider_id=f"x://{nasty}") for index, nasty in enumerate(_NASTY)),
    *(
        Node(f"hostile-address-{index}", addresses=(NodeAddress("InternalIP", address),))
        for index, address in enumerate(
            (
                "010.0.0.1",
                "10.0.0.1/24",
                "::ffff:10.0.0.1",
                "fe80::1%eth0",
                "300.1.1.1",
                "localhost",
                "1" * 500,
            )
        )
    ),
    Node(
        "hostile-many",
        addresses=tuple(NodeAddress("InternalIP", f"10.1.{n // 250}.{n % 250 + 1}") for n in range(2000)),
    ),
    Node("hostile-empty"),
    Node(""),
    Node("x" * 300),
    Node("__class__"),
)
"""Nodes that a broken or malicious remote cluster may report. All of them can be encoded as JSON."""
