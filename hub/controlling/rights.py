"""The rights that the cloud controller needs in a cluster: asks which it has, and says what grants the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from hub.controller.rights import Right, worded
from hub.errors import ApiError, BadAnswer, Forbidden, HubError, ServerFault, TooManyRequests, Unauthorized
from hub.kube.client import Client

log = logging.getLogger(__name__)

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
LACKING: Final = 10.0
"""Seconds until rights are reviewed again while one is missing."""
TRANSIENT: Final = (ServerFault, TooManyRequests, Unauthorized)
UNANSWERED: Final = 2.0
"""Seconds until they are reviewed again after an API server that did not answer."""


class MissingRight(Forbidden):
    """The hub's account lacks a rule; the message names the rule, the cluster and what grants it."""


def lacks(rules: str, cluster: str, grants: str) -> str:
    """What to say about missing rules; ``grants`` says what grants them."""
    return f"the account lacks the rule {rules} in cluster {cluster}; {grants}"


def explained(error: HubError, rule: str, cluster: str, grants: str) -> HubError:
    """A :class:`MissingRight` if the account lacks ``rule``; else the error itself.

    Webhooks also answer 403; the message of such an answer is better than any of ours.
    """
    if not isinstance(error, Forbidden) or " cannot " not in error.message:
        return error
    return MissingRight(error.status, error.reason, lacks(f"«{rule}»", cluster, grants))


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status


_decode = msgspec.json.Decoder(_Review).decode


class Reviewed:
    """Asks an API server which rights the hub's account has there, until all that are needed are granted.

    Args:
        client: returns the cluster's client.
        needs: part of the cloud controller -> what it needs.
        changed: called when ``lacking`` has changed.

    Attributes:
        lacking: part -> the rights that it lacks, as last reviewed.
    """

    def __init__(
        self,
        client: Callable[[], Awaitable[Client]],
        needs: Callable[[], Mapping[str, Sequence[Right]]],
        changed: Callable[[], None],
    ) -> None:
        self.lacking: Mapping[str, tuple[Right, ...]] = {}
        self._client = client
        self._needs = needs
        self._changed = changed
        self._known = False
        self._round = asyncio.Event()
        self._again = asyncio.Event()

    def again(self) -> None:
        """Review again: other rights are needed."""
        self._again.set()

    def stops(self, part: str) -> bool:
        """Whether the part lacks a right that it cannot work without."""
        return any(not right.optional for right in self.lacking.get(part, ()))

    async def granted(self, *parts: str) -> None:
        """Return when these parts have all rights that they cannot work without."""
        while not self._known or any(map(self.stops, parts)):
            await self._round.wait()

    async def run(self) -> None:
        """Review until cancelled."""
        while True:
            self._again.clear()
            pause = await self._review()
            try:
                async with asyncio.timeout(pause):
                    await self._again.wait()
            except TimeoutError:
                continue

    async def _review(self) -> float | None:
        """Review all rights once; returns the seconds until the next time.

        None = not again: a right that is lost later is named by its 403.
        """
        needs = self._needs()
        try:
            client = await self._client()
            asked = dict.fromkeys(right for rights in needs.values() for right in rights)
            held = {right for right in asked if await _allowed(client, right)}
        except HubError as error:
            if not isinstance(error, ApiError) or isinstance(error, TRANSIENT):
                return UNANSWERED
            # An API server without such reviews: requests that lack a right are answered 403, which names it.
            log.debug("rights are not reviewed: %s", error)
            held = {right for rights in needs.values() for right in rights}
        missing = {part: tuple(right for right in rights if right not in held) for part, rights in needs.items()}
        before, self.lacking = self.lacking, {part: rights for part, rights in missing.items() if rights}
        self._known = True
        self._round.set()
        self._round = asyncio.Event()
        if before != self.lacking:
            self._changed()
        return LACKING if self.lacking else None

    def worded(self) -> str:
        """The rights that are lacking, as text; "" if none is."""
        return worded(dict.fromkeys(right for rights in self.lacking.values() for right in rights))


async def _allowed(client: Client, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.name,
        "namespace": right.namespace,
    }
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body = msgspec.json.encode({**kind, "spec": {"resourceAttributes": attributes}})
    try:
        return _decode(await client.request("POST", REVIEWS, body=body)).status.allowed
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadAnswer(200, "", "a review that does not decode", what=REVIEWS) from None
