"""Sends Events, without making any other part of the hub wait.

:mod:`hub.events.series` decides which Events to send. This module sends the requests, one at a time and only while this
process leads. The election's fence does not apply to them, since a late Event does no harm. If the API server refuses
Events, this is logged once for each namespace, and the hub continues without them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from hub.errors import AlreadyExists, ApiError, Forbidden, HubError, NotFound, ServerFault, TooManyRequests
from hub.events.catalog import Reason
from hub.events.series import EventFinding, EventSeries, Regarding, Series
from hub.kube.client import JSON, MERGE_PATCH
from hub.reconcile.writer import NAMESPACE_ENDS
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

RULE: Final = "events.events.k8s.io: create, patch"
"""The RBAC rule that sending needs."""
TICK: Final = 5.0
"""Seconds between checks for Events that have become due."""
PACE: Final = 0.05
"""Seconds between two requests, so that Events of a whole fleet do not flood the API server."""
TIMEOUT: Final = 5.0
"""Seconds for a request."""
TRIES: Final = 12
"""Attempts for one Event while the API is unreachable (client-go's maxTriesPerEvent)."""
NAME_ROOM: Final = 253 - 18
"""Most characters of the object's name in an Event's name, which has at most 253 and ends in a dot and a hex number."""


def hub_object(lease: str, environ: Mapping[str, str] = os.environ) -> Regarding:
    """The object that stands for the hub: its Pod if the environment names it, else its Lease (``namespace/name``)."""
    name, namespace = environ.get("POD_NAME", ""), environ.get("POD_NAMESPACE", "")
    if name and namespace:
        return Regarding("v1", "Pod", namespace, name, environ.get("POD_UID", ""))
    return Regarding("coordination.k8s.io/v1", "Lease", *lease.split("/", 1))


class Requests(Protocol):
    """The part of :class:`hub.kube.client.Client` that sending needs."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes,
        timeout: float,  # noqa: ASYNC109 - as in Client
        content_type: str = JSON,
    ) -> bytes:
        """See :class:`hub.kube.client.Client`."""
        ...


class Recorder:
    """Accepts findings and occurrences, and sends their Events.

    Args:
        client: makes the requests; of the hub cluster, or of the cluster whose objects the Events are about.
        leading: returns whether this process leads.
        instance: name of this process, for ``reportingInstance``; "" = the host name.
        enabled: ``--events``; False = send nothing.

    Attributes:
        written: Events created and updated since the start.
        refused: Events that were given up: the API server refused them or could not be reached.
    """

    def __init__(
        self, client: Requests, clock: Clock, leading: Callable[[], bool], instance: str = "", *, enabled: bool = True
    ) -> None:
        self._client = client
        self._clock = clock
        self._leading = leading
        self._instance = (instance or socket.gethostname())[:128]
        self._series = EventSeries()
        self._wakeup = asyncio.Event()
        self._forbidden: dict[str, str] = {}
        """Namespace -> why Events are refused there."""
        self._last_name = 0
        self.enabled = enabled
        self.written = 0
        self.refused = 0

    @property
    def suppressed(self) -> int:
        """Number of Events that were never sent: too many for one object, or for the queue."""
        return self._series.suppressed

    @property
    def problem(self) -> str:
        """Why the API server refuses Events; "" if it does not, or if this process does not lead."""
        if not self._forbidden or not self._leading():
            return ""
        rest = len(self._forbidden) - 1
        return min(self._forbidden.values()) + (f" (and in {rest} more namespaces)" if rest else "")

    def record_occurrence(self, reason: Reason, regarding: Regarding, message: str) -> None:
        """Record one occurrence."""
        if self.enabled and self._leading():
            self._series.record_occurrence(EventFinding(reason, regarding, "", message), self._clock.now())
            self._wake()

    def set_findings(self, subject: Hashable, found: Iterable[EventFinding]) -> None:
        """Record all current findings of a subject. Earlier findings that are missing have ended."""
        if self.enabled and self._leading():
            self._series.set_findings(subject, found, self._clock.now())
            self._wake()

    def has_findings(self, subject: Hashable) -> bool:
        """Whether a subject has current findings."""
        return self._series.has_findings(subject)

    def clear(self) -> None:
        """Forget all findings, when this process no longer leads."""
        self._series.clear()

    def _wake(self) -> None:
        if self._series.pending:
            self._wakeup.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            if self._leading():
                self._series.tick(self._clock.now())
                while self._leading() and (series := self._series.take()) is not None:
                    await self._deliver(series)
                    await self._clock.sleep(PACE)
            self._wakeup.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._wakeup.wait()

    async def _deliver(self, series: Series) -> None:
        """Send one Event: try again while the API is unreachable or overloaded, give up if it refuses the Event."""
        backoff = Backoff()
        name = self._name(series.key.regarding)
        for _ in range(TRIES):
            if not self._leading():
                break
            try:
                await self._send(series, name)
            except NotFound:
                if not series.name:  # the namespace does not exist
                    self._forbidden.pop(_namespace(series.key.regarding), None)
                    break
                series.name = ""  # the Event has expired: create another
                continue
            except (ServerFault, TooManyRequests) as error:
                await self._clock.sleep(max(error.retry_after or 0.0, backoff.next(self._clock.now())))
                continue
            except ApiError as error:
                self._log_refusal(series, error)
                break
            except HubError:  # the API is unreachable
                await self._clock.sleep(backoff.next(self._clock.now()))
                continue
            self.written += 1
            self._forbidden.pop(_namespace(series.key.regarding), None)
            return
        self.refused += 1
        self._series.forget(series)

    def _log_refusal(self, series: Series, error: ApiError) -> None:
        namespace = _namespace(series.key.regarding)
        if isinstance(error, Forbidden) and NAMESPACE_ENDS not in error.message:
            rule = f"the hub's account lacks the rule «{RULE}», or the API does not take Events there"
            text = f"no Events in namespace {namespace}: 403: {rule}: {error.message}"
            if namespace not in self._forbidden:
                log.warning("%s", text)
            self._forbidden[namespace] = text
        else:
            log.info("an Event %s on %s was refused: %s", series.key.reason, series.key.regarding.name, error)

    async def _send(self, series: Series, name: str) -> None:
        """Create or update the Event.

        Every try uses the same name, so that a second create after a lost answer fails with AlreadyExists.
        """
        path = f"/apis/events.k8s.io/v1/namespaces/{_namespace(series.key.regarding)}/events"
        if series.name:
            body = msgspec.json.encode({"series": self._repeated(series)})
            path = f"{path}/{series.name}"
            await self._client.request("PATCH", path, body=body, timeout=TIMEOUT, content_type=MERGE_PATCH)
            return
        with suppress(AlreadyExists):
            body = msgspec.json.encode(self._body(series, name))
            await self._client.request("POST", path, body=body, timeout=TIMEOUT)
        series.name = name

    def _body(self, series: Series, name: str) -> dict[str, Any]:
        regarding, reason = series.key.regarding, series.reason
        body: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _namespace(regarding)},
            "eventTime": self._stamp(series.seen_at),
            "type": reason.type,
            "reason": reason.name,
            "action": reason.action,
            "note": series.note,
            "regarding": {
                "apiVersion": regarding.api_version,
                "kind": regarding.kind,
                "namespace": regarding.namespace,
                "name": regarding.name,
            },
            "reportingController": reason.component,
            "reportingInstance": self._instance,
        }
        if regarding.uid:
            body["regarding"]["uid"] = regarding.uid
        if series.count > 1:
            body["series"] = self._repeated(series)
        return body

    def _repeated(self, series: Series) -> dict[str, Any]:
        return {"count": max(2, series.count), "lastObservedTime": self._stamp(series.seen_at)}

    def _stamp(self, moment: float) -> str:
        wall = self._clock.wall() - (self._clock.now() - moment)
        return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _name(self, regarding: Regarding) -> str:
        """A new name, as in client-go: the object's name and the time in nanoseconds, made unique."""
        self._last_name = max(self._last_name + 1, int(self._clock.wall() * 1e9))
        return f"{regarding.name[:NAME_ROOM]}.{self._last_name:x}"


def _namespace(regarding: Regarding) -> str:
    """The namespace of an Event: that of its object; ``default`` for objects without one, as kubectl expects."""
    return regarding.namespace or "default"
