"""The zones of the hub cluster's Nodes, or none if they cannot be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from hub.errors import ClusterUnreachable, Forbidden, HubError
from hub.kube.client import Client
from hub.observe.local.zones import PAGE_SIZE, HubZones
from hub.runtime.clock import SystemClock


def page(*zones: str, more: str = "") -> bytes:
    """A page of Nodes in these zones, and of one without labels."""
    nodes = [{"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}} for zone in zones]
    return json.dumps({"metadata": {"continue": more}, "items": [*nodes, {"metadata": {}}]}).encode()


class Api:
    """An API server that gives these answers in order, and records the queries."""

    def __init__(self, *answers: bytes | HubError) -> None:
        self.answers = list(answers)
        self.queries: list[Mapping[str, str]] = []

    async def request(self, method: str, path: str, *, params: Mapping[str, str], **_: Any) -> bytes:
        """Answer a list of Nodes."""
        assert (method, path) == ("GET", "/api/v1/nodes")
        self.queries.append(dict(params))
        answer = self.answers.pop(0)
        if isinstance(answer, HubError):
            raise answer
        return answer


def reader(api: Api) -> tuple[HubZones, list[frozenset[str] | None]]:
    """A reader whose zones are needed, and its reported changes."""
    changes: list[frozenset[str] | None] = []
    made = HubZones(cast("Client", api), SystemClock(), lambda: changes.append(made.known))
    made.follow(needed=True)
    return made, changes


async def test_zones_of_all_pages_count() -> None:
    """The zones of all pages are known after the last one; equal ones are no change."""
    api = Api(page("a", "b", more="x"), page("c"), page("c", "b", "a"))
    zones, changes = reader(api)
    await zones.read()
    await zones.read()
    assert changes == [frozenset("abc")]
    limit = str(PAGE_SIZE)
    assert api.queries == [{"limit": limit}, {"limit": limit, "continue": "x"}, {"limit": limit}]


async def test_nothing_is_read_while_nothing_needs_it() -> None:
    """Without a registry that maps zones, Nodes are not read."""
    api = Api()
    zones, changes = reader(api)
    zones.follow(needed=False)
    await zones.read()
    assert (zones.known, changes, api.queries) == (None, [], [])


@pytest.mark.parametrize(
    ("failure", "problem"),
    [
        (Forbidden(403), "nodes: list"),
        (ClusterUnreachable("no answer"), "no answer"),
        (b"<html>", "the answer cannot be decoded"),
    ],
)
async def test_a_failed_read_keeps_the_zones(
    failure: bytes | HubError, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the zones cannot be read, the last ones stay; the reason is logged once, and gone with the next answer."""
    zones, _ = reader(Api(failure, page("a"), failure, failure, page("a")))
    await zones.read()
    assert (zones.known, zones.attempted.is_set()) == (None, True)
    await zones.read()
    caplog.clear()
    await zones.read()
    await zones.read()
    assert zones.known == frozenset("a")
    assert problem in zones.problem
    assert len(caplog.records) == 1
    await zones.read()
    assert zones.problem == ""
