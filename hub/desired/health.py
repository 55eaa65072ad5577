"""What the verdicts make of what a source wants published, and when they are not believed.

An address that fails, or was never seen and is not judged yet, is published as failed or not at all. A
target whose endpoints would all be out is in panic: the checks are likelier to be wrong than everything at
once, and an address that may answer is worth more than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from hub.desired.claims import EMPTY, Claim, Judged, node_of, ready
from hub.desired.memo import Memo
from hub.desired.ports import NO_READINGS, NOT_READ, PortReading
from hub.groups import GroupKey, same_objects
from hub.health.spec import Check, Verdict, Verdicts, Watch, check_of, starting_verdict
from hub.model import DRAINING, FAILED, PUBLISHED, Conditions, Endpoint, Finding, Port
from hub.registry.spec import HEALTH_CHECK, NodePortRef, SourceSpec

FAILED_DRAINING: Final = Conditions(ready=False, serving=False, terminating=True)
"""Draining, and its probe fails: no consumer is to fall back on it."""

_CURED: Final = {FAILED: PUBLISHED, FAILED_DRAINING: DRAINING}
_NOTHING: Final[Mapping[str, Verdict]] = {}
_UNSEEN: Final = object()


class NoPort(NamedTuple):
    """A check has no port to go to."""

    message: str


def check_for(
    source: SourceSpec,
    ports: Sequence[Port],
    readings: Mapping[NodePortRef, PortReading] = NO_READINGS,
    *,
    unreachable: bool,
) -> Check | NoPort | None:
    """What the addresses of a source are checked with; None where nobody asks for it.

    Args:
        source: with its policies.
        ports: that are published for it.
        readings: what is known of ports of its cluster's Services.
        unreachable: it cannot be reached now.
    """
    policy = source.health
    stale = unreachable and source.unreachable.probe == "tcp" and source.unreachable.policy != "keep"
    if policy.mode == "off" and not stale:
        return None
    port = policy.port or next((each.port for each in ports if each.protocol == "TCP"), None)
    if policy.service is not None:
        port, problem = readings.get(NodePortRef(policy.service, HEALTH_CHECK), NOT_READ)
        if port is not None and not 1 <= port <= 65535:  # whatever a remote cluster says
            port, problem = None, f"its healthCheckNodePort {port} is no port"
        if port is None:
            return NoPort(f"{source.cluster}: Service {policy.service}: {problem}; the checks rest")
    if port is None:
        return NoPort(f"{source.cluster}: no TCP port is published; give health.port, or the checks rest")
    return Check("tcp", port) if policy.mode == "off" else check_of(policy, port)


def passing(watch: Watch, verdicts: Verdicts) -> frozenset[str]:
    """The addresses that are healthy as far as is known."""
    known = verdicts.get(watch.check, _NOTHING)
    return frozenset(address for address in watch.addresses if _verdict(address, watch, known))


def _verdict(address: str, watch: Watch, known: Mapping[str, Verdict]) -> Verdict:
    verdict = known.get(address, _UNSEEN)
    return starting_verdict(watch.published.get(address)) if verdict is _UNSEEN else verdict  # type: ignore[return-value]


class Judge:
    """Applies the verdicts to the claims of one target; remembers what it made, by identity."""

    __slots__ = ("_base", "_judged")

    def __init__(self) -> None:
        self._judged: Memo[GroupKey, Judged] = Memo()
        self._base: Memo[GroupKey, Mapping[str, Endpoint]] = Memo()

    def judge(self, claim: Claim, watch: Watch, verdicts: Verdicts, *, remove: bool) -> None:
        """Change what a claim wants to what its verdicts leave of it.

        Args:
            claim: known or not.
            watch: of its addresses.
            verdicts: of this moment.
            remove: unhealthy addresses go, rather than being published as failed.
        """
        known = verdicts.get(watch.check, _NOTHING)
        inputs = (watch.addresses, watch.published, watch.check, known, remove)
        judged = self._judged.get(claim.key, inputs)
        if judged is None:
            last = self._judged.last(claim.key)
            old = last.wanted if last is not None else EMPTY
            judged = self._judged.put(claim.key, inputs, _judged(watch, known, old, remove=remove))
        claim.judged = judged
        claim.plain = claim.wanted
        claim.wanted = judged.wanted

    def base(self, claim: Claim, good: Mapping[str, Endpoint], *, checked: bool) -> None:
        """Take out of an unknown claim what verdicts, or policies, once made of it.

        What is published is all there is to go by; a failed probe is written into it, and its end must
        find the way back. Without a check (any more), only that is undone.

        Args:
            claim: of a source without a statement.
            good: what the source said last, as far as that is known.
            checked: its addresses are checked now.
        """
        inputs = (claim.wanted, good, checked)
        base = self._base.get(claim.key, inputs)
        if base is None:
            made = {address: _cured(each, good, checked=checked) for address, each in claim.wanted.items()}
            same = same_objects(tuple(made.values()), tuple(claim.wanted.values()))
            base = self._base.put(claim.key, inputs, claim.wanted if same else made)
        claim.wanted = base

    def sweep(self) -> None:
        """Forget what was not asked for since the last time."""
        self._judged.sweep()
        self._base.sweep()


def _judged(watch: Watch, known: Mapping[str, Verdict], old: Mapping[str, Endpoint], *, remove: bool) -> Judged:
    if all(map(known.get, watch.addresses)):
        return Judged(watch.addresses)
    made: dict[str, Endpoint] = {}
    failing: list[str] = []
    pending: list[str] = []
    for address, endpoint in watch.addresses.items():
        verdict = _verdict(address, watch, known)
        if verdict:
            made[address] = endpoint
            continue
        (pending if verdict is None else failing).append(address)
        if not remove:
            made[address] = _failed(endpoint, old.get(address))
    if not failing and not pending:
        return Judged(watch.addresses)
    return Judged(old if old == made else made, tuple(sorted(failing)), tuple(sorted(pending)))


def _failed(endpoint: Endpoint, old: Endpoint | None) -> Endpoint:
    conditions = FAILED_DRAINING if endpoint.conditions.terminating else FAILED
    made = msgspec.structs.replace(endpoint, conditions=conditions)
    return old if old is not None and old == made else made


def _cured(endpoint: Endpoint, good: Mapping[str, Endpoint], *, checked: bool) -> Endpoint:
    stated = good.get(endpoint.address)
    if not checked and (endpoint.conditions.serving is not False or (stated is None and node_of(endpoint) is None)):
        return endpoint
    conditions = stated.conditions if stated is not None else _CURED.get(endpoint.conditions, endpoint.conditions)
    return endpoint if conditions == endpoint.conditions else msgspec.structs.replace(endpoint, conditions=conditions)


# --- panic ---------------------------------------------------------------------------------------


def panics(claims: Iterable[Claim], *, before: bool) -> bool:
    """Whether the verdicts of a target are not to be believed: with them, nothing of it would be ready.

    A target whose addresses are all new waits for their first verdicts; one that has something to lose,
    or is in panic already, does not wait for the new ones among them.

    Args:
        claims: of all sources, after failover's choice.
        before: it was in panic at the last pass.
    """
    staying = [claim for claim in claims if not claim.yielding]
    judged = [(claim, claim.judged) for claim in staying if claim.judged is not None]
    out = [(claim, address) for claim, each in judged for address in (*each.failing, *each.pending)]
    if not out or any(ready(claim.wanted.values(), 1) for claim in staying):
        return False
    if before or not any(each.pending for _, each in judged):
        return True
    return any(_published_ready(claim, address) for claim, address in out)


def _published_ready(claim: Claim, address: str) -> bool:
    endpoint = claim.current.get(address)
    return endpoint is not None and endpoint.conditions.ready is True


def findings(claims: Iterable[Claim], *, panic: bool) -> Iterator[Finding]:
    """What the verdicts amount to, for an operator."""
    judged = [claim.judged for claim in claims if claim.judged is not None and not claim.drop]
    failing = sorted({address for each in judged for address in each.failing})
    pending = sorted({address for each in judged for address in each.pending})
    if panic:
        message = f"none of {len(failing) + len(pending)} addresses passes its check: all are published as if unchecked"
        yield Finding("PanicMode", message, (*failing, *pending))
    elif failing:
        message = f"{len(failing)} addresses fail their checks, such as {failing[0]}"
        yield Finding("EndpointsUnhealthy", message, tuple(failing))
    if pending and not panic:
        message = f"{len(pending)} addresses wait for their first checks to pass, such as {pending[0]}"
        yield Finding("EndpointsUnproven", message, tuple(pending))
