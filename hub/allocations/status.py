"""The status of an allocation, as it is to be stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec.structs import replace

from hub.allocations.scene import Situation
from hub.allocations.spec import Allocation, Bad, Condition, Entry, Status, stamp
from hub.allocations.view import Memory

Truth = Literal["True", "False", "Unknown"]
ATTACHED: Final = ("Attached", "Leaving")
MESSAGE: Final = 512
"""Most characters of a message."""


def status(
    allocation: Allocation,
    situations: Sequence[Situation],
    account: str,
    stalled: tuple[str, str] | None,
    identity: str,
    now: float,
) -> Status:
    """The status of one allocation; equal to the stored one if nothing has changed.

    Args:
        allocation: the allocation.
        situations: its addresses, those first that the spec lists, without finished ones.
        account: the account that it belongs to, or "".
        stalled: reason and message if nothing is done for it; None otherwise.
        identity: signs the status.
        now: the time.
    """
    entries = [
        *(_entry(situation, now) for situation in situations),
        *(_bad(bad, allocation, now) for bad in allocation.bad),
    ]
    claimed = [situation for situation in situations if situation.claimed]
    attached = sum(situation.state in ATTACHED for situation in claimed)
    unknown = sum(situation.state == "Unknown" and bool(situation.node) for situation in claimed)
    old = {condition.type: condition for condition in allocation.status.conditions}

    def condition(type_: str, truth: Truth, reason: str, message: str) -> Condition:
        before = old.get(type_)
        since = before.last_transition_time if before is not None and before.status == truth else ""
        return Condition(type_, truth, reason, message[:MESSAGE], since or stamp(now), allocation.generation)

    ready, reason, message = _ready(allocation, claimed, attached, stalled)
    moving = [situation.address for situation in situations if situation.move is not None]
    conflicts = [f"{found.address}: {found.message}" for found in claimed if found.state == "Conflict"]
    return Status(
        observed_generation=allocation.generation,
        writer=identity,
        cluster=allocation.cluster,
        account=account,
        reserved=len(allocation.addresses),
        attached=attached + unknown,
        pending=sum(situation.state == "Pending" for situation in claimed),
        conditions=(
            condition("Ready", ready, reason, message),
            condition(
                "Reconciling", "True" if moving else "False", "Moving" if moving else "Settled", ", ".join(moving)
            ),
            condition("Stalled", "True" if stalled else "False", *(stalled or ("Running", ""))),
            condition(
                "Conflict", "True" if conflicts else "False", "Claimed" if conflicts else "None", "; ".join(conflicts)
            ),
        ),
        addresses=tuple(entries),
    )


def with_stalled(allocation: Allocation, status_: Status, reason: str, message: str, now: float) -> Status:
    """The status with the condition ``Stalled`` for this reason, unless it has another one already."""
    old = next((found for found in allocation.status.conditions if found.type == "Stalled"), None)
    since = old.last_transition_time if old is not None and old.status == "True" else stamp(now)
    conditions = tuple(
        Condition("Stalled", "True", reason, message[:MESSAGE], since, allocation.generation)
        if (found.type, found.status) == ("Stalled", "False")
        else found
        for found in status_.conditions
    )
    return replace(status_, conditions=conditions)


def stalled_status(allocation: Allocation, reason: str, message: str, identity: str, now: float) -> Status:
    """The status of an allocation for which nothing can be done: what is known of its addresses stays."""
    situations = [
        Situation(allocation, address, allocation.entries.get(address, Entry(address)), Memory())
        for address in allocation.addresses
    ]
    for situation in situations:
        situation.move = situation.stored.move
        situation.set("Unknown", reason, message)
    return status(allocation, situations, "", (reason, message), identity, now)


def _ready(
    allocation: Allocation, claimed: Sequence[Situation], attached: int, stalled: tuple[str, str] | None
) -> tuple[Truth, str, str]:
    notes = []
    if allocation.strategy:
        notes.append("spec.strategy has no effect")
    if allocation.twice:
        notes.append(f"written more than once: {', '.join(allocation.twice[:5])}")
    missing = allocation.min_attached - attached
    text = f"{attached} of {len(allocation.addresses)} addresses attached"
    message = "; ".join([text, *notes])
    if missing <= 0:
        return "True", "Attached", message
    unknown = sum(situation.state == "Unknown" for situation in claimed)
    for reason, found in (
        ("Moving", [s for s in claimed if s.move is not None]),
        ("Withheld", [s for s in claimed if s.reason == "Withheld"]),
        ("Conflict", [s for s in claimed if s.state in ("Conflict", "Elsewhere")]),
        ("Unknown", [s for s in claimed if s.state == "Unknown"]),
        ("Invalid", [s for s in claimed if s.state == "Invalid"]),
    ):
        if found:
            first = f"{found[0].address}: {found[0].message or found[0].reason}"
            truth: Truth = "Unknown" if reason == "Unknown" and unknown >= missing else "False"
            return truth, reason, f"{message}; {first}"
    if allocation.bad:
        return "False", "Invalid", f"{message}; {allocation.bad[0].text!r} {allocation.bad[0].why}"
    if stalled:
        return "False", "CloudFailed", f"{message}; {stalled[1]}"
    waits = [s for s in claimed if s.state == "Pending" and s.message]
    return "False", "WaitingForNodes", f"{message}; {waits[0].message}" if waits else message


def _entry(situation: Situation, now: float) -> Entry:
    stored = situation.stored
    return Entry(
        situation.address,
        situation.state,
        situation.reason,
        situation.message[:MESSAGE],
        situation.node,
        situation.instance,
        situation.last_node,
        stored.since
        if stored.since and stored.state == situation.state and stored.node == situation.node
        else stamp(now),
        situation.before,
        situation.moves,
        situation.move,
    )


def _bad(bad: Bad, allocation: Allocation, now: float) -> Entry:
    stored = allocation.entries.get(bad.text)
    since = stored.since if stored is not None and stored.state == "Invalid" else stamp(now)
    return Entry(bad.text, "Invalid", "NotAnAddress", bad.why, since=since)
