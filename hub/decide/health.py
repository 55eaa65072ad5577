"""Apply health check verdicts to the claims of sources, and ignore them in a panic.

An address whose check fails, or that waits for its first verdict, is published as failed or not at all. If this leaves
a target without a ready endpoint, the target is in panic and all verdicts are ignored: a wrong check is more likely
than the failure of all endpoints at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from hub.decide.checks import Check, Verdict, Verdicts, Watch, check_of, starting_verdict
from hub.decide.claims import Claim, Judged, enough_ready, node_of
from hub.decide.ports import NO_READINGS, NOT_READ, PortReading
from hub.model import DRAINING, FAILED, PUBLISHED, Conditions, Endpoint, Finding, Port
from hub.registry.spec import HEALTH_CHECK, NodePortRef, SourceSpec

FAILED_DRAINING: Final = Conditions(ready=False, serving=False, terminating=True)
"""For draining endpoints whose check fails: consumers must not fall back on them."""

_UNCHECKED: Final = {FAILED: PUBLISHED, FAILED_DRAINING: DRAINING}
"""The conditions of a failed check -> the conditions without the check."""
_NOTHING: Final[Mapping[str, Verdict]] = {}
_UNSEEN: Final = object()


class NoPort(NamedTuple):
    """The check of a source has no port to probe."""

    message: str


def check_for(
    source: SourceSpec,
    ports: Sequence[Port],
    readings: Mapping[NodePortRef, PortReading] = NO_READINGS,
    *,
    unreachable: bool,
) -> Check | NoPort | None:
    """The check for the addresses of a source; None if no policy of the source requires a check.

    Args:
        source: the source with its policies.
        ports: the ports published for the source.
        readings: known ports of Services in the source cluster.
        unreachable: whether the source cluster is unreachable now.
    """
    policy = source.health
    stale = unreachable and source.unreachable.probe == "tcp" and source.unreachable.policy != "keep"
    if policy.mode == "off" and not stale:
        return None
    port = policy.port or next((published.port for published in ports if published.protocol == "TCP"), None)
    if policy.service is not None:
        port, problem = readings.get(NodePortRef(policy.service, HEALTH_CHECK), NOT_READ)
        if port is not None and not 1 <= port <= 65535:  # a remote cluster may send any number
            port, problem = None, f"its healthCheckNodePort {port} is not a valid port"
        if port is None:
            return NoPort(f"{source.cluster}: Service {policy.service}: {problem}; nothing is probed")
    if port is None:
        return NoPort(f"{source.cluster}: no TCP port is published, so nothing is probed; set health.port")
    return Check("tcp", port) if policy.mode == "off" else check_of(policy, port)


def passing(watch: Watch, verdicts: Verdicts) -> frozenset[str]:
    """The addresses whose verdict, or starting verdict, is healthy."""
    known = verdicts.get(watch.check, _NOTHING)
    return frozenset(address for address in watch.addresses if _verdict(address, watch, known))


def _verdict(address: str, watch: Watch, known: Mapping[str, Verdict]) -> Verdict:
    verdict = known.get(address, _UNSEEN)
    return starting_verdict(watch.published.get(address)) if verdict is _UNSEEN else verdict  # type: ignore[return-value]


def judge(claim: Claim, watch: Watch, verdicts: Verdicts, *, remove: bool) -> Claim:
    """Apply the verdicts to a claim.

    Args:
        claim: the claim of a known or an unknown source.
        watch: the watch of the claim's addresses.
        verdicts: the current verdicts.
        remove: remove unhealthy addresses instead of publishing them as failed.
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


def without_verdicts(claim: Claim, good: Mapping[str, Endpoint], *, checked: bool) -> Claim:
    """Undo the conditions that earlier verdicts or policies wrote into the endpoints of an unknown claim.

    An unknown claim starts from the published endpoints, which may carry the conditions of a failed check. If the
    addresses are no longer checked, only the conditions of failed checks are undone.

    Args:
        claim: the claim of an unknown source.
        good: the last known good endpoints of the source, by address.
        checked: whether the addresses are checked now.
    """
    made = {address: _without_verdict(endpoint, good, checked=checked) for address, endpoint in claim.wanted.items()}
    return replace(claim, wanted=claim.wanted.overlay(made))


def _failed(endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, conditions=FAILED_DRAINING if endpoint.conditions.terminating else FAILED)


def _without_verdict(endpoint: Endpoint, good: Mapping[str, Endpoint], *, checked: bool) -> Endpoint:
    stated = good.get(endpoint.address)
    if not checked and (endpoint.conditions.serving is not False or (stated is None and node_of(endpoint) is None)):
        return endpoint
    conditions = stated.conditions if stated is not None else _UNCHECKED.get(endpoint.conditions, endpoint.conditions)
    return endpoint if conditions == endpoint.conditions else replace(endpoint, conditions=conditions)


# --- panic ---------------------------------------------------------------------------------------


def panics(claims: Iterable[Claim], *, before: bool) -> bool:
    """Whether a target is in panic: its verdicts would leave no endpoint ready.

    A target whose addresses are all new waits for their first verdicts. A target that has a ready endpoint published,
    or is already in panic, doesn't wait for the verdicts of new addresses.

    Args:
        claims: the claims of all sources, after failover chose the active source.
        before: whether the target was in panic at the last decision.
    """
    staying = [claim for claim in claims if not claim.leaving]
    judged = [(claim, claim.judged) for claim in staying if claim.judged is not None]
    out = [(claim, address) for claim, result in judged for address in (*result.failing, *result.pending)]
    if not out or any(enough_ready(claim.wanted.values(), 1) for claim in staying):
        return False
    if before or not any(result.pending for _, result in judged):
        return True
    return any(_published_ready(claim, address) for claim, address in out)


def _published_ready(claim: Claim, address: str) -> bool:
    endpoint = claim.current.get(address)
    return endpoint is not None and endpoint.conditions.ready is True


def final_claims(claims: Sequence[Claim], *, panic: bool) -> tuple[Claim, ...]:
    """The claims as judged; in a panic, the claims as they were before the verdicts.

    Addresses that are not wanted because of their verdict become exempt from the guard.
    """
    final = []
    for claim in claims:
        judged = claim.judged
        if judged is not None:
            if panic and not claim.leaving:
                claim = replace(claim, wanted=judged.unchecked)
            out = (*judged.failing, *judged.pending)
            claim = claim.with_exempt(address for address in out if address not in claim.wanted)
        final.append(claim)
    return tuple(final)


def findings(claims: Iterable[Claim], *, panic: bool) -> Iterator[Finding]:
    """Findings about failing and pending addresses."""
    judged = [claim.judged for claim in claims if claim.judged is not None and claim.role != "dropped"]
    failing = sorted({address for result in judged for address in result.failing})
    pending = sorted({address for result in judged for address in result.pending})
    if panic:
        message = f"none of {len(failing) + len(pending)} addresses passes its check: all are published as if unchecked"
        yield Finding("PanicMode", message, (*failing, *pending))
    elif failing:
        message = f"{len(failing)} addresses fail their checks, such as {failing[0]}"
        yield Finding("EndpointsUnhealthy", message, tuple(failing))
    if pending and not panic:
        message = f"{len(pending)} addresses wait for their first checks to pass, such as {pending[0]}"
        yield Finding("EndpointsUnproven", message, tuple(pending))
