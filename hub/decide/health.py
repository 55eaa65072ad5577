"""What the verdicts make of what a source wants published, and when they are not believed.

An address that fails, or was never seen and is not judged yet, is published as failed or not at all. A
target whose endpoints would all be out is in panic: the checks are likelier to be wrong than everything at
once, and an address that may answer is worth more than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from hub.decide.checks import Check, Verdict, Verdicts, Watch, check_of, starting_verdict
from hub.decide.claims import Claim, Judged, node_of, ready
from hub.decide.ports import NO_READINGS, NOT_READ, PortReading
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


def judge(claim: Claim, watch: Watch, verdicts: Verdicts, *, remove: bool) -> Claim:
    """A claim with what its verdicts leave of it.

    Args:
        claim: known or not.
        watch: of its addresses.
        verdicts: of this moment.
        remove: unhealthy addresses go, rather than being published as failed.
    """
    known = verdicts.get(watch.check, _NOTHING)
    unchecked = claim.wanted
    if all(map(known.get, unchecked)):
        return replace(claim, judged=Judged(unchecked))
    out: dict[str, Endpoint | None] = {}
    failing: list[str] = []
    pending: list[str] = []
    for address, endpoint in unchecked.items():
        verdict = _verdict(address, watch, known)
        if not verdict:
            (pending if verdict is None else failing).append(address)
            out[address] = None if remove else _failed(endpoint)
    judged = Judged(unchecked, tuple(sorted(failing)), tuple(sorted(pending)))
    return replace(claim, wanted=unchecked.overlay(out), judged=judged)


def cured(claim: Claim, good: Mapping[str, Endpoint], *, checked: bool) -> Claim:
    """An unknown claim without what verdicts, or policies, once made of it.

    What is published is all there is to go by; a failed probe is written into it, and its end must
    find the way back. Without a check (any more), only that is undone.

    Args:
        claim: of a source without a statement.
        good: what the source said last, as far as that is known.
        checked: its addresses are checked now.
    """
    made = {address: _cured(endpoint, good, checked=checked) for address, endpoint in claim.wanted.items()}
    return replace(claim, wanted=claim.wanted.overlay(made))


def _failed(endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, conditions=FAILED_DRAINING if endpoint.conditions.terminating else FAILED)


def _cured(endpoint: Endpoint, good: Mapping[str, Endpoint], *, checked: bool) -> Endpoint:
    stated = good.get(endpoint.address)
    if not checked and (endpoint.conditions.serving is not False or (stated is None and node_of(endpoint) is None)):
        return endpoint
    conditions = stated.conditions if stated is not None else _CURED.get(endpoint.conditions, endpoint.conditions)
    return endpoint if conditions == endpoint.conditions else replace(endpoint, conditions=conditions)


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


def believe(claims: Sequence[Claim], *, panic: bool) -> tuple[Claim, ...]:
    """The claims where the verdicts stand; in a panic they do not."""
    believed = []
    for claim in claims:
        judged = claim.judged
        if judged is not None:
            if panic and not claim.yielding:
                claim = replace(claim, wanted=judged.unchecked)
            out = (*judged.failing, *judged.pending)
            claim = claim.excusing(address for address in out if address not in claim.wanted)
        believed.append(claim)
    return tuple(believed)


def findings(claims: Iterable[Claim], *, panic: bool) -> Iterator[Finding]:
    """What the verdicts amount to, for an operator."""
    judged = [claim.judged for claim in claims if claim.judged is not None and claim.role != "dropped"]
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
