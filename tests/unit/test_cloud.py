"""The values between the planner of allocations and the providers."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest

from hub.cloud import addresses as cloud

STATES: tuple[msgspec.Struct, ...] = (
    cloud.Free("r"),
    cloud.Held("i", "h", "r"),
    cloud.Elsewhere("lb"),
    cloud.Changing("op"),
    cloud.NotReserved("no"),
    cloud.Present(running=True),
    cloud.Gone("no"),
    cloud.Unsupported("kind"),
    cloud.Done("nat"),
    cloud.Pending("op", 1.0),
)


@pytest.mark.parametrize(("one", "other"), list(combinations(STATES, 2)))
def test_states_of_two_kinds_are_never_equal(one: msgspec.Struct, other: msgspec.Struct) -> None:
    """A state is told from every other one, although their fields may have the same values."""
    assert one != other
    assert len({one, other}) == 2


def test_a_held_address_is_compared_with_its_handle() -> None:
    """Another handle is another state, so that a write that expects the old one is refused."""
    assert cloud.Held("i", "one") != cloud.Held("i", "two")


def test_an_instance_has_room_unless_it_says_otherwise() -> None:
    """An instance that is present has room, and nothing in the place of an address."""
    found = cloud.Present(running=False)
    assert (found.room, found.before, found.why) == (True, "", "")


def test_an_order_is_cancelled_after_fifteen_seconds() -> None:
    """The default time of an order is that of a request to a cloud."""
    assert cloud.Order("a", "i", cloud.Free()).timeout == 15.0
