"""Tests of describe, inspect and the steps on moto's EC2."""

from __future__ import annotations

from typing import Any

from hub_provider_aws.provider import ElasticIps
from hub_provider_aws.testing import FakeAws

from hub.plugin import Node
from hub.plugin.addresses import (
    Elsewhere,
    Free,
    Held,
    NotReserved,
)


async def _state_of(provider: ElasticIps, address: str) -> Any:
    return (await provider.describe([address]))[address]


def _instance_of(provider: ElasticIps, node: Node) -> str:
    found = provider.instance_of(node)
    assert found is not None
    return found


def _actions(aws: FakeAws) -> list[str]:
    return [served.text.split()[0] for served in aws.requests]


async def test_describe_tells_free_held_elsewhere_and_not_reserved_apart(aws: FakeAws, provider: ElasticIps) -> None:
    """Describe says of each address whether it is free, held, elsewhere or not reserved."""
    free, held, stranger, second = (aws.reserve() for _ in range(4))
    node = aws.add_instance("n1")
    aws.hold(held, "n1")
    aws.hold_elsewhere(stranger)
    aws.hold_secondary(second, "n1")

    states = await provider.describe([free, held, stranger, second, "203.0.113.99"])

    assert states[free] == Free("eu-west-1")
    assert isinstance(states[held], Held)
    assert states[held].instance == _instance_of(provider, node)
    assert states[held].handle.startswith("eipassoc-")
    assert isinstance(states[stranger], Elsewhere)
    assert isinstance(states[second], Elsewhere)
    assert _instance_of(provider, node) in states[second].what
    assert isinstance(states["203.0.113.99"], NotReserved)
