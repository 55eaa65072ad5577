"""How a call of a step ended, with what the calls before it say."""

from __future__ import annotations

from typing import NamedTuple

from hub.allocations.view import Outcome, OutcomeError
from hub.cloud.addresses import Done, Pending, Step


class Call(NamedTuple):
    """A call of a step, or the following of an operation.

    Attributes:
        step: detach, attach, restore or follow.
        token: the order's token; for follow, the operation.
        began: when it began.
    """

    step: str
    token: str
    began: float


def outcome(
    before: Outcome | None, call: Call, now: float, found: Step | None, error: OutcomeError = "", message: str = ""
) -> Outcome:
    """The outcome of a call that has just ended.

    A followed operation belongs to the order whose call returned it, so the time of the first call and the failures
    are those of one order, whatever moved the address before.

    Args:
        before: the last outcome for the address.
        call: the call.
        now: the time.
        found: what it returned; None = it failed.
        error: the kind of the error; "" if it succeeded.
        message: the error's text.
    """
    follows = call.step == "follow"
    followed = before is not None and follows and call.token in (before.token, before.operation)
    order = (before.order if followed and before is not None else "") if follows else call.token
    same = before if followed or (before is not None and order and before.order == order) else None
    return Outcome(
        call.step,
        call.token,
        now,
        same.first if same is not None else call.began,
        error,
        message,
        found.operation if isinstance(found, Pending) and not follows else "",
        found.before if isinstance(found, Done) else "",
        (same.failures if same is not None else 0) + 1 if error else 0,
        order,
    )
