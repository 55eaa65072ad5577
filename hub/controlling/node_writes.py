"""The requests that change Nodes of one cluster: at a limited rate, and only while this process may write."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec

from hub.controller.nodes import Change
from hub.controlling.rights import MissingRight, explained
from hub.controlling.site import Site
from hub.errors import ApiError, HubError
from hub.kube.client import JSON, JSON_PATCH
from hub.kube.wire import controlled_node
from hub.model import Node

PATH: Final = "/api/v1/nodes"
NO_RIGHT: Final = 30.0
"""Seconds until the next write after one that lacked a right."""
LONGEST_HOLD: Final = 600.0
"""Seconds of the longest Retry-After of an API server that is honoured."""


class NodeWrites:
    """Writes Nodes.

    Attributes:
        held_until: until when nothing may be written: the API server asked for that, or a right is missing.
        missing: rule that the account lacked at the last write that needed it -> what to say.
    """

    def __init__(self, site: Site) -> None:
        self.held_until = float("-inf")
        self.missing: dict[str, str] = {}
        self._site = site

    async def patch(self, name: str, change: Change) -> None:
        """Make one change.

        Raises:
            NotLeader: nothing may be written now.
            HubError: it was not made, or has no answer.
        """
        path = f"{PATH}/{name}" + ("/status" if change.status else "")
        rule = "nodes/status: patch" if change.status else "nodes: patch"
        await self._request("PATCH", path, rule, msgspec.json.encode(change.patch), JSON_PATCH)

    async def read(self, name: str) -> tuple[Node, str]:
        """A Node and its resourceVersion.

        Raises:
            HubError: it could not be read.
        """
        client = await self._site.client()
        with self._noting("nodes: get"):
            return controlled_node(await client.request("GET", f"{PATH}/{name}", timeout=self._site.fence()))

    async def delete(self, node: Node, version: str) -> None:
        """Delete a Node, if it is still the one with this UID and resourceVersion.

        Raises:
            NotLeader: nothing may be written now.
            HubError: it was not deleted, or there is no answer.
        """
        options = {"preconditions": {"uid": node.uid, "resourceVersion": version}}
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", **options})
        await self._request("DELETE", f"{PATH}/{node.name}", "nodes: delete", body)

    async def _request(self, method: str, path: str, rule: str, body: bytes, content_type: str = JSON) -> None:
        site = self._site
        await site.pace.take()
        client = await site.client()
        with self._noting(rule):
            await client.request(
                method, path, body=body, timeout=site.fence(), content_type=content_type, admit=site.fence
            )

    @contextmanager
    def _noting(self, rule: str) -> Generator[None, None, None]:
        """Note what a request's error says about other writes; it is raised in the words of :func:`explained`."""
        try:
            yield
        except HubError as error:
            found = explained(error, rule, self._site.name, self._site.grants)
            if (seconds := _waits(found)) > 0:
                self.held_until = max(self.held_until, self._site.clock.now() + seconds)
            if found is error:
                raise
            self.missing[rule] = str(found)
            raise found from error
        self.missing.pop(rule, None)


def _waits(error: HubError) -> float:
    """Seconds for which an error forbids all writes to Nodes of its cluster; 0 if it concerns one Node only."""
    if isinstance(error, MissingRight):
        return NO_RIGHT
    return min(error.retry_after or 0.0, LONGEST_HOLD) if isinstance(error, ApiError) else 0.0
