"""Connects the allocations with the rest of the hub: the fence, the approvals and the Events."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hub.allocating.run import Allocating, own_node
from hub.allocations.spec import GROUP, VERSION, NetIPAllocation
from hub.events.catalog import REASONS
from hub.events.recorder import Recorder
from hub.events.series import EventFinding, Regarding
from hub.model import Finding

if TYPE_CHECKING:
    from hub.app.hub import Hub


class EventReporter:
    """Turns findings about allocations into Events on them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def found(self, allocation: NetIPAllocation, findings: Sequence[Finding]) -> None:
        """See :class:`hub.allocating.run.Reporter`."""
        subject = _subject(allocation.metadata.name)
        if not findings and not self._recorder.has_findings(subject):
            return
        self._recorder.set_findings(
            subject,
            [
                EventFinding(reason, _regarding(allocation), " ".join(finding.objects[:1]), finding.message)
                for finding in findings
                if (reason := REASONS.get(finding.reason)) is not None
            ],
        )

    def happened(self, allocation: NetIPAllocation, reason: str, message: str) -> None:
        """See :class:`hub.allocating.run.Reporter`."""
        self._recorder.record_occurrence(REASONS[reason], _regarding(allocation), message)

    def ended(self, name: str) -> None:
        """See :class:`hub.allocating.run.Reporter`."""
        self._recorder.set_findings(_subject(name), ())


def allocating(hub: Hub) -> Allocating:
    """The allocations of a hub."""
    return Allocating(
        hub.client,
        hub.fleet,
        hub.host,
        hub.clock,
        hub.leading.check_duties,
        hub.elector.identity,
        EventReporter(hub.recorder),
        hub.approvals.valid,
        own_node(os.environ),
        act=not hub.options.dry_run,
    )


def _subject(name: str) -> tuple[str, str]:
    return "allocation", name


def _regarding(allocation: NetIPAllocation) -> Regarding:
    meta = allocation.metadata
    return Regarding(f"{GROUP}/{VERSION}", "NetIPAllocation", "", meta.name, meta.uid)
