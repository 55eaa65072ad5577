"""Turns findings about allocations into Events on them; loaded only if the registry has ``allocations:``."""

from __future__ import annotations

from collections.abc import Sequence

from hub.allocations.spec import GROUP, VERSION, NetIPAllocation
from hub.events.catalog import REASONS
from hub.events.recorder import Recorder
from hub.events.series import EventFinding, Regarding
from hub.model import Finding


class EventReporter:
    """Turns findings about allocations into Events on them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def found(self, allocation: NetIPAllocation, findings: Sequence[Finding]) -> None:
        """See :class:`hub.allocating.records.Reporter`."""
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
        """See :class:`hub.allocating.records.Reporter`."""
        self._recorder.record_occurrence(REASONS[reason], _regarding(allocation), message)

    def ended(self, name: str) -> None:
        """See :class:`hub.allocating.records.Reporter`."""
        self._recorder.set_findings(_subject(name), ())


def _subject(name: str) -> tuple[str, str]:
    return "allocation", name


def _regarding(allocation: NetIPAllocation) -> Regarding:
    meta = allocation.metadata
    return Regarding(f"{GROUP}/{VERSION}", "NetIPAllocation", "", meta.name, meta.uid)
