"""The shared data types: defaults, conditions, and texts for messages."""

from __future__ import annotations

import msgspec
import pytest

from hub.model import (
    DRAINING,
    FAILED,
    PUBLISHED,
    Conditions,
    Endpoint,
    EndpointView,
    Node,
    ObjectKey,
    Service,
    Slice,
    Snapshot,
    SnapshotEndpoint,
    SourceView,
    TargetKey,
    join_first,
)


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (Node("n"), {"unschedulable": False, "deleting": False}),
        (Slice("ns", "n", "IPv4"), {"deleting": False}),
        (
            Service("ns", "n"),
            {"selector": False, "headless": False, "publish_not_ready": False, "deleting": False},
        ),
        (
            EndpointView("c", "ns", "n", "s", "ClusterIP", 80, "", 80, "TCP", ("10.0.0.1",)),
            {"serving": True, "terminating": False, "stale": False},
        ),
        (SourceView("c", None, {}), {"complete": True, "copied": False, "adopted": False}),
        (SnapshotEndpoint("n", ("10.0.0.1",)), {"ready": True, "serving": True, "terminating": False}),
        (Snapshot(()), {"complete": True, "copied": False}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_flags_that_are_not_given_have_the_usual_value(value: object, flags: dict[str, bool]) -> None:
    """A value without further arguments is usual: present, complete, ready, and no copy."""
    found = {name: getattr(value, name) for name in type(value).__annotations__}

    assert {name: flag for name, flag in found.items() if isinstance(flag, bool)} == flags


@pytest.mark.parametrize(
    ("conditions", "encoded"),
    [
        (PUBLISHED, b'{"ready":true,"serving":true,"terminating":false}'),
        (DRAINING, b'{"ready":false,"serving":true,"terminating":true}'),
        (FAILED, b'{"ready":false,"serving":false,"terminating":false}'),
    ],
)
def test_conditions_are_written_whole(conditions: Conditions, encoded: bytes) -> None:
    """Published, draining and failed endpoints have all three conditions."""
    assert msgspec.json.encode(conditions) == encoded


def test_address_of_an_endpoint_is_its_first() -> None:
    """An endpoint's address is the first in its list."""
    assert Endpoint(("10.0.0.1", "10.0.0.2")).address == "10.0.0.1"


def test_keys_are_shown_with_their_namespace() -> None:
    """Keys are shown as ``namespace/name``."""
    assert (str(TargetKey("edge", "web")), str(ObjectKey("edge", "web"))) == ("edge/web", "edge/web")


@pytest.mark.parametrize(
    ("names", "text"),
    [((), ""), (("a",), "a"), (("a", "b"), "a, b"), (("a", "b", "c"), "a, b and 1 more"), ("abcd", "a, b and 2 more")],
)
def test_first_names_are_listed(names: tuple[str, ...], text: str) -> None:
    """A message names the first ones and the number of the others."""
    assert join_first(names, 2) == text
