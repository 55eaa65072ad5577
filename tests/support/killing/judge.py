"""Judges what processes did, from the audit log of the API server and the log of the cloud's proxies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.support.apiserver.audit import Request
from tests.support.killing.stage import Stage, Written
from tests.support.replicas import DURATION

LEASE = "endpointslice-hub-default"
PHASES = {
    "detach": ("Detaching",),
    "make room": ("Attaching", "RollingBack"),
    "attach": ("Attaching", "RollingBack"),
    "restore": ("Restoring", "Attaching"),
}
"""The phases of the record in which a write may be sent."""


def judge(stage: Stage, changes: int | None = None) -> None:
    """Check A1-A4 and A7; with ``changes``, that the cloud carried out so many changes.

    A label that arrives late is accepted: its PATCH has no condition, and the next pass corrects it.
    """
    requests = [
        request
        for request in stage.server.requests(stage.mark)
        if request.writes and request.user in {process.user for process in stage.processes.values()}
    ]
    users = {process.user: name for name, process in stage.processes.items()}
    renewals = sorted(
        (request for request in requests if request.resource == "leases" and request.status < 300),
        key=lambda request: request.ended,
    )
    wrong: list[object] = []
    for request in requests:
        if request.resource in ("nodes", "netipallocations/status") and request.status < 300:
            late = (request.user, request.resource) in stage.late and request.resource == "nodes"
            if not late and not _held(renewals, request.user, request.received):
                wrong.append(("written without the Lease", request))
    records = [request for request in requests if request.record is not None and request.status < 300]
    for written in stage.written:
        user = next(user for user, name in users.items() if name == written.replica)
        if not _held(renewals, user, written.at):
            wrong.append(("sent to the cloud without the Lease", written))
        wrong += _without_record(stage, written, records)
        if written.act.node not in ("", "n1", "n3") or written.act.address not in ("", stage.moving):
            wrong.append(("not about the address that moves", written))
        if written.act.kind == "detach" and written.act.node not in ("", "n1"):
            wrong.append(("taken from a node that serves", written))
    done = stage.cloud.changes() - stage.changes
    if changes is not None and done != changes:
        wrong.append((f"{done} changes, not {changes}", stage.written))
    assert not wrong, "\n".join(map(str, wrong))


def began(stage: Stage) -> list[float]:
    """Seconds from each takeover after a trap to the new leader's first record or act about the moving address.

    A takeover without a record or act in it is left out: the next process was killed before.
    """
    users = {process.user: name for name, process in stage.processes.items()}
    requests = [one for one in stage.server.requests(stage.mark) if one.user in users and one.writes]
    found = []
    for sprung in stage.sprung:
        later = [one for one in requests if one.received > sprung and one.status < 300]
        taken = next(one for one in later if one.resource == "leases" and one.holder)
        acts = [one.received for one in later if one.user == taken.user and _about(stage, one)]
        acts += [one.at for one in stage.written if one.at > sprung and one.replica == users[taken.user]]
        found += [min(acts) - taken.received] if acts else []
    return found


def _about(stage: Stage, request: Request) -> bool:
    """Whether a request labels a node, or stores a record of the moving address."""
    entries = (request.record or {}).get("addresses", ())
    return request.resource == "nodes" or any(one.get("move") for one in entries if one["address"] == stage.moving)


def _held(renewals: Sequence[Request], user: str, at: float) -> bool:
    """Whether a process held the Lease: its holder at that moment, and renewed within its duration."""
    before = [renewal for renewal in renewals if renewal.ended <= at]
    return bool(before) and before[-1].user == user and at - before[-1].received < DURATION


def _without_record(stage: Stage, written: Written, records: Iterable[Request]) -> list[object]:
    """A write that no stored record of the same process announces."""
    last = [request for request in records if request.ended <= written.at]
    if not last or last[-1].record is None:
        return [("no record at all", written)]
    status = last[-1].record
    moves = [entry.get("move") for entry in status["addresses"] if entry["address"] == stage.moving]
    phase = moves[0]["phase"] if moves and moves[0] else ""
    if phase not in PHASES[written.act.kind] or not status["writer"].startswith(written.replica):
        return [("no record of this process", written, phase, status["writer"])]
    return []
