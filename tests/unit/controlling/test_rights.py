"""The reviews of the account's rights, with an API server that answers what a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hub.controller.rights import EVENT_RULE, PART_RULES, Right, rights_of, worded
from hub.controlling.rights import Reviewed
from hub.errors import ApiError, ClusterUnreachable, CredentialError, HubError, NotFound, ServerFault

PATCH = Right("patch", "nodes/status")
EVENTS = rights_of([EVENT_RULE])


class Server:
    """Allows everything but some rights.

    Attributes:
        denied: what is not allowed.
        errors: raised by the next requests, in order.
        asked: attributes of each review.
    """

    def __init__(self) -> None:
        self.denied: set[Right] = set()
        self.errors: list[HubError] = []
        self.body = b""
        self.asked: list[Mapping[str, str]] = []

    async def connect(self) -> Any:
        """The client."""
        return self

    async def request(self, method: str, path: str, *, body: bytes) -> bytes:
        """Answer a review."""
        assert (method, path) == ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        if self.errors:
            raise self.errors.pop(0)
        found = json.loads(body)["spec"]["resourceAttributes"]
        self.asked.append(found)
        resource = "/".join(filter(None, (found["resource"], found["subresource"])))
        right = Right(found["verb"], resource, found["group"], found["name"], found["namespace"])
        return self.body or json.dumps({"status": {"allowed": right not in self.denied}}).encode()


class World:
    """A server, and the reviews of two parts there."""

    def __init__(self) -> None:
        self.server = Server()
        self.changes: list[str] = []
        self.needs: dict[str, Sequence[Right]] = {"nodes": (PATCH, *EVENTS), "load-balancers": EVENTS}
        self.reviewed = Reviewed(self.server.connect, lambda: self.needs, self._changed)

    def _changed(self) -> None:
        self.changes.append(self.reviewed.worded())

    async def begins(self, part: str) -> bool:
        """Whether a part begins within a moment."""
        running = asyncio.create_task(self.reviewed.run())
        try:
            async with asyncio.timeout(0.2):
                await self.reviewed.granted(part)
        except TimeoutError:
            return False
        finally:
            running.cancel()
        return True


async def test_a_part_without_its_right_waits() -> None:
    """It is named once; the other part begins, and right after the grant and a new review this one does."""
    world = World()
    world.server.denied = {PATCH}
    assert not await world.begins("nodes")
    assert await world.begins("load-balancers")
    assert world.changes == ["«nodes/status: patch»"]
    world.server.denied = set()
    assert await world.begins("nodes")
    assert world.changes == ["«nodes/status: patch»", ""]


async def test_events_stop_no_part() -> None:
    """Without the right to write Events both parts begin, and the right is named."""
    world = World()
    world.server.denied = {*EVENTS}
    assert await world.begins("nodes")
    assert await world.begins("load-balancers")
    assert world.reviewed.worded() == "«events.events.k8s.io: create, patch»"


@pytest.mark.parametrize("error", [ServerFault(500), ClusterUnreachable("no answer"), CredentialError("no token")])
async def test_no_answer_is_no_permission(error: HubError) -> None:
    """While the API server does not answer, no part begins, and no right is named."""
    world = World()
    world.server.errors = [error] * 100
    assert not await world.begins("nodes")
    assert world.changes == []


@pytest.mark.parametrize("error", [NotFound(404), ApiError(405)])
async def test_a_server_without_reviews_is_believed_later(error: HubError) -> None:
    """Where there are no such reviews the parts begin: a 403 names what is missing."""
    world = World()
    world.server.errors = [error]
    assert await world.begins("nodes")


async def test_a_garbled_answer_names_nothing() -> None:
    """An answer that is no review counts as a server without reviews."""
    world = World()
    world.server.body = b"[]"
    assert await world.begins("nodes")
    assert world.reviewed.lacking == {}


async def test_each_right_is_asked_for_once() -> None:
    """Rights that two parts share are one review."""
    world = World()
    assert await world.begins("nodes")
    assert [each["verb"] for each in world.server.asked] == ["patch", "create", "patch"]


def test_rights_are_worded_by_resource() -> None:
    """Verbs of one resource are together, with the group and the name."""
    rights = [*rights_of(PART_RULES["nodes"]), Right("get", "leases", "coordination.k8s.io", "ccm", "kube-system")]
    assert worded(rights) == (
        "«nodes: patch», «nodes/status: patch», «events.events.k8s.io: create, patch», "
        "«leases.coordination.k8s.io ccm: get»"
    )
