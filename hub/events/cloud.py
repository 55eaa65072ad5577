"""Turns findings about Nodes and Services into Events in their own clusters; loaded only with a cloud controller."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from hub.controlling.site import Reporter, Subject
from hub.events.catalog import REASONS, Reason
from hub.events.recorder import Recorder
from hub.events.series import EventFinding, Regarding
from hub.kube.client import Client
from hub.model import Finding
from hub.runtime.clock import Clock

_NAME: Final = re.compile(r"[A-Z][A-Za-z]{1,127}")


class CloudReporter:
    """Events about the Nodes and Services of one cluster."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def found(self, subject: Subject, findings: Sequence[Finding]) -> None:
        """See :class:`hub.controlling.site.Reporter`."""
        if not findings and not self._recorder.has_findings(subject[:3]):
            return
        self._recorder.set_findings(
            subject[:3],
            [
                EventFinding(reason, _regarding(subject), " ".join(finding.objects[:1]), finding.message)
                for finding in findings
                if (reason := REASONS.get(finding.reason) or _of_plugin(subject, finding.reason)) is not None
            ],
        )

    def happened(self, subject: Subject, reason: str, message: str) -> None:
        """See :class:`hub.controlling.site.Reporter`."""
        self._recorder.record_occurrence(REASONS[reason], _regarding(subject), message)

    def ended(self, subject: Subject) -> None:
        """See :class:`hub.controlling.site.Reporter`."""
        self._recorder.set_findings(subject[:3], ())


def reporter_of(
    clock: Clock, instance: str, client: Callable[[], Awaitable[Client]], acts: Callable[[], bool], *, enabled: bool
) -> tuple[Reporter, Callable[[], Coroutine[Any, Any, None]]]:
    """The reporter of one cluster, and what sends its Events.

    Args:
        clock: where time comes from.
        instance: name of this process.
        client: returns the cluster's client.
        acts: whether this process acts for the cluster; otherwise it sends nothing.
        enabled: ``--events``.
    """
    recorder = Recorder(_Connection(client), clock, acts, instance, enabled=enabled)
    return CloudReporter(recorder), recorder.run


class _Connection:
    """The requests of a cluster whose connection may change."""

    def __init__(self, client: Callable[[], Awaitable[Client]]) -> None:
        self._client = client

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        return await (await self._client()).request(method, path, **more)


def _of_plugin(subject: Subject, name: str) -> Reason | None:
    """A reason of a cloud's plugin; None if it cannot be the reason of an Event."""
    if subject.kind != "Service" or not _NAME.fullmatch(name):
        return None
    return Reason(name, "Warning", "Ensure", "Service", "", component="service-controller")


def _regarding(subject: Subject) -> Regarding:
    return Regarding("v1", subject.kind, subject.namespace, subject.name, subject.uid)
