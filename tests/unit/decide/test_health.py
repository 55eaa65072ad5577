"""The effect of verdicts on a target: conditions, removal, panic, failover and unknown sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.checks import Check, Verdict
from hub.decide.sources import SourceInput
from hub.model import DRAINING, FAILED, PUBLISHED, Conditions, ServicePort
from hub.registry.spec import FailoverPolicy, HealthPolicy, SourceSpec, TargetSpec, UnreachablePolicy
from tests.support import build

TCP = HealthPolicy("tcp")
REMOVE = HealthPolicy("tcp", on_fail="remove")
CHECK = Check("tcp", 30443)
FAILED_DRAINING = Conditions(ready=False, serving=False, terminating=True)
ONE, TWO, THREE = (build.address(number) for number in (1, 2, 3))


def target(*clusters: str, health: HealthPolicy = TCP, **more: Any) -> TargetSpec:
    """A target whose sources have health checks."""
    unreachable = more.pop("unreachable", UnreachablePolicy())
    made = tuple(build.source(each, health=health, unreachable=unreachable) for each in clusters or ("eu",))
    return build.target(sources=made, **more)


class Checked(build.Pipeline):
    """A pipeline with settable verdicts."""

    def judge(self, **verdicts: Verdict) -> None:
        """Set the verdicts of ``one``, ``two`` and ``three``."""
        names = {"one": ONE, "two": TWO, "three": THREE}
        self.health = {CHECK: {names[name]: verdict for name, verdict in verdicts.items()}}

    def conditions(self) -> dict[str, Conditions]:
        """Address -> conditions, of everything published."""
        return {endpoint.address: endpoint.conditions for slice_ in self.slices for endpoint in slice_.endpoints}

    def watched(self) -> dict[str, set[str]]:
        """Cluster -> addresses to probe."""
        assert self.desired is not None
        found: dict[str, set[str]] = {}
        for each in self.desired.watches:
            found.setdefault(each.cluster, set()).update(each.addresses)
        return found


def healthy(*clusters: str, **more: Any) -> Checked:
    """A target with ONE and TWO published and healthy."""
    guarded = more.pop("guarded", False)
    pipeline = Checked(target(*clusters, **more), guarded=guarded)
    pipeline.judge(one=True, two=True)
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}
    return pipeline


OFFER = build.view("eu", build.endpoints(2, 1))
UNKNOWN = build.view("eu", unknown="Unreachable")


def test_without_checks_nothing_is_probed_or_copied() -> None:
    """Without checks, the source's mapping is used as the same object."""
    pipeline = Checked(build.target())
    pipeline.run(OFFER)
    assert pipeline.desired is not None
    assert pipeline.desired.watches == ()
    assert pipeline.desired.groups[0].endpoints is OFFER.endpoints["IPv4"]


def test_mapping_is_not_copied_if_all_are_healthy() -> None:
    """If all addresses are healthy, the mapping is not copied."""
    pipeline = healthy()
    pipeline.run(OFFER)
    assert pipeline.desired is not None
    assert pipeline.desired.groups[0].endpoints is OFFER.endpoints["IPv4"]
    assert pipeline.watched() == {"eu": {ONE, TWO}}


def test_an_address_never_seen_starts_failed() -> None:
    """A new address is published as not ready until its first verdict."""
    pipeline = Checked(target())
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: FAILED, TWO: FAILED}
    assert pipeline.reasons() == ["EndpointsUnproven"]
    pipeline.judge(one=True, two=None)
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: FAILED}


def test_with_remove_an_address_never_seen_is_not_published() -> None:
    """With ``onFail: remove``, new and failing addresses are not published."""
    pipeline = Checked(target(health=REMOVE))
    assert pipeline.run(OFFER) == {}
    pipeline.judge(one=True)
    assert pipeline.run(OFFER) == {"eu": {ONE}}


def test_a_published_address_is_believed_before_it_is_probed() -> None:
    """Before its first probe, a published address has the verdict that its conditions show."""
    pipeline = Checked(build.target())
    pipeline.run(OFFER)
    pipeline.target = target()
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}
    pipeline.judge(one=False, two=True)
    pipeline.run(OFFER)
    pipeline.restart()
    pipeline.health = {}
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: FAILED, TWO: PUBLISHED}


def test_a_draining_address_that_fails_keeps_draining() -> None:
    """A draining address that fails is draining and not serving, and returns to draining when it passes."""
    offer = build.view("eu", [build.endpoint(ONE, "n1"), build.endpoint(TWO, "n2", DRAINING)])
    pipeline = healthy()
    pipeline.judge(one=True, two=False)
    pipeline.run(offer)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: FAILED_DRAINING}
    pipeline.judge(one=True, two=True)
    pipeline.run(offer)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: DRAINING}


def test_removal_by_verdict_passes_the_guard() -> None:
    """Removals by verdict pass the guard and lower the peak."""
    pipeline = Checked(target(health=REMOVE), guarded=True)
    offer = build.view("eu", build.endpoints(3, 1))
    pipeline.judge(one=True, two=True, three=True)
    assert pipeline.run(offer) == {"eu": {ONE, TWO, THREE}}
    pipeline.judge(one=True, two=False, three=False)
    assert pipeline.run(offer) == {"eu": {ONE}}
    assert all(verdict.withheld is None for verdict in pipeline.verdicts.values())


def test_removal_of_a_gone_node_is_guarded_even_if_failing() -> None:
    """The guard judges the removal of a gone node even if its address was failing."""
    pipeline = Checked(target(health=REMOVE), guarded=True)
    pipeline.judge(one=True, two=True, three=True)
    pipeline.run(build.view("eu", build.endpoints(3, 1)))
    pipeline.judge(one=True, two=False, three=False)
    assert pipeline.run(build.view("eu", build.endpoints(1, 1))) == {"eu": {ONE, TWO, THREE}}


def test_upsert_only_marks_failing_endpoints() -> None:
    """An upsert-only target marks failing endpoints instead of removing them."""
    pipeline = healthy(health=REMOVE, policy="upsert-only")
    pipeline.judge(one=True, two=False)
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: FAILED}


# --- panic -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("health", [TCP, REMOVE])
def test_panic_publishes_all_as_if_unchecked(health: HealthPolicy) -> None:
    """When the last endpoint fails, all are published as ready until one passes."""
    pipeline = healthy(health=health)
    pipeline.judge(one=False, two=True)
    pipeline.run(OFFER)
    pipeline.judge(one=False, two=False)
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}
    assert pipeline.reasons() == ["PanicMode"]
    pipeline.judge(one=True, two=False)
    pipeline.run(OFFER)
    assert pipeline.conditions().get(ONE) == PUBLISHED
    assert pipeline.conditions().get(TWO, FAILED) == FAILED
    assert pipeline.reasons() == ["EndpointsUnhealthy"]


def test_panic_counts_all_sources() -> None:
    """A ready endpoint in any source prevents the panic."""
    pipeline = Checked(target("eu", "us"))
    eu, us = build.view("eu", build.endpoints(1, 1)), build.view("us", build.endpoints(1, 2))
    pipeline.judge(one=False, two=True)
    pipeline.run(eu, us)
    assert pipeline.conditions() == {ONE: FAILED, TWO: PUBLISHED}
    pipeline.judge(one=False, two=False)
    pipeline.run(eu, us)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}


def test_address_without_verdict_does_not_delay_panic() -> None:
    """A new address without a verdict does not delay a panic, and is published in it."""
    pipeline = healthy()
    offer = build.view("eu", build.endpoints(3, 1))
    pipeline.judge(one=False, two=False, three=None)
    pipeline.run(offer)
    assert pipeline.conditions() == dict.fromkeys((ONE, TWO, THREE), PUBLISHED)


def test_panic_continues_when_nodes_are_replaced() -> None:
    """A panic continues with new addresses that have no verdict yet."""
    pipeline = healthy()
    pipeline.judge(one=False, two=False)
    pipeline.run(OFFER)
    pipeline.judge(three=None)
    pipeline.run(build.view("eu", build.endpoints(1, 3)))
    assert pipeline.conditions()[THREE] == PUBLISHED


def test_a_new_target_that_never_answers_ends_in_panic() -> None:
    """A new target whose addresses all fail their first checks is in panic."""
    pipeline = Checked(target())
    pipeline.judge(one=None, two=False)
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: FAILED, TWO: FAILED}
    pipeline.judge(one=False, two=False)
    pipeline.run(OFFER)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}


def test_panic_keeps_hostnames() -> None:
    """A headless Service keeps its hostnames in a panic."""
    pipeline = Checked(target(), build.service(headless=True))
    pipeline.judge(one=True, two=True)
    pipeline.run(OFFER)
    pipeline.judge(one=False, two=False)
    pipeline.run(OFFER)
    assert {endpoint.hostname for slice_ in pipeline.slices for endpoint in slice_.endpoints} == {"n1", "n2"}
    assert set(pipeline.conditions().values()) == {PUBLISHED}


# --- failover ---------------------------------------------------------------------------------------


FAILOVER = FailoverPolicy(after=30.0)


def test_failover_leaves_a_source_that_fails_its_checks() -> None:
    """Failover counts endpoints that pass their checks; until the switch the failing source is in panic."""
    pipeline = Checked(target("eu", "us", strategy="failover", failover=FAILOVER))
    eu, us = build.view("eu", build.endpoints(1, 1)), build.view("us", build.endpoints(1, 2))
    pipeline.judge(one=True, two=True)
    pipeline.run(eu, us)
    assert pipeline.conditions() == {ONE: PUBLISHED}
    pipeline.judge(one=False, two=True)
    pipeline.run(eu, us)
    assert pipeline.conditions() == {ONE: PUBLISHED}
    assert "PanicMode" in pipeline.reasons()
    pipeline.run(eu, us, after=31.0)
    pipeline.run(eu, us, after=1.0)
    assert pipeline.conditions() == {ONE: FAILED, TWO: PUBLISHED}
    pipeline.run(eu, us, after=6.0)
    assert pipeline.conditions() == {TWO: PUBLISHED}
    assert pipeline.watched() == {"eu": {ONE}, "us": {TWO}}


def test_failover_waits_for_the_first_verdicts_of_the_first_source() -> None:
    """A later source is not chosen first because its verdicts came earlier; after ``after`` it is."""
    pipeline = Checked(target("eu", "us", strategy="failover", failover=FAILOVER))
    eu, us = build.view("eu", build.endpoints(1, 1)), build.view("us", build.endpoints(1, 2))
    pipeline.judge(one=None, two=True)
    assert pipeline.run(eu, us) == {}
    pipeline.judge(one=True, two=True)
    assert pipeline.run(eu, us, after=5.0) == {"eu": {ONE}}


# --- sources without a statement -------------------------------------------------------------------


def test_an_unknown_source_is_judged_and_cured() -> None:
    """The addresses of an unknown source stay and still follow their verdicts."""
    pipeline = healthy()
    pipeline.judge(one=True, two=False)
    pipeline.run(UNKNOWN)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: FAILED}
    pipeline.restart()
    pipeline.judge(one=True, two=True)
    pipeline.run(UNKNOWN)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}


def test_switching_checks_off_cures_an_unknown_source() -> None:
    """Turning checks off undoes failed conditions even while the source is unknown."""
    pipeline = healthy()
    pipeline.judge(one=True, two=False)
    pipeline.run(OFFER)
    pipeline.target = build.target()
    pipeline.run(UNKNOWN)
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}


def gone(policy: str, *, probe: str = "off", health: HealthPolicy = TCP, seconds: float = 60.0) -> tuple[Checked, Any]:
    """A target whose source became unreachable ``seconds`` ago, under a policy that waits 30 s."""
    unreachable = UnreachablePolicy(30.0, policy, probe)  # type: ignore[arg-type]
    pipeline = healthy(unreachable=unreachable, health=health, guarded=True)
    spec: SourceSpec = pipeline.target.sources[0]
    return pipeline, SourceInput(spec, UNKNOWN, unreachable_for=seconds)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("keep", {ONE: PUBLISHED, TWO: FAILED}),
        ("not-ready", {ONE: PUBLISHED, TWO: FAILED}),
        ("remove", {ONE: PUBLISHED}),
    ],
)
def test_unreachable_policies_keep_answering_endpoints(policy: str, expected: Mapping[str, Conditions]) -> None:
    """No ``unreachable`` policy changes an endpoint whose probe passes."""
    pipeline, source = gone(policy)
    pipeline.judge(one=True, two=False)
    pipeline.run(source)
    assert pipeline.conditions() == expected


@pytest.mark.parametrize(("policy", "expected"), [("not-ready", DRAINING), ("remove", None)])
def test_a_stale_source_is_probed_where_its_policy_asks_for_it(policy: str, expected: Conditions | None) -> None:
    """With ``probe: tcp`` and health off, an unreachable source is probed, and what passes stays unchanged."""
    pipeline, source = gone(policy, probe="tcp", health=HealthPolicy())
    assert pipeline.watched() == {}
    pipeline.judge(one=True, two=False)
    pipeline.run(SourceInput(source.spec, UNKNOWN, unreachable_for=10.0))
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}
    assert pipeline.watched() == {"eu": {ONE, TWO}}
    pipeline.run(source)
    assert pipeline.conditions().get(ONE) == PUBLISHED
    assert pipeline.conditions().get(TWO) == expected


def test_a_policy_that_keeps_needs_no_probes() -> None:
    """With policy ``keep``, an unreachable source is not probed."""
    pipeline, source = gone("keep", probe="tcp", health=HealthPolicy())
    pipeline.run(source)
    assert pipeline.watched() == {}


# --- ports -----------------------------------------------------------------------------------------


DNS = ServicePort(53, "dns", "UDP", target_port=30053)
WEB = ServicePort(80, "web", "TCP", target_port=30080)


def test_the_first_tcp_port_is_probed() -> None:
    """Without a port in the policy, the first published TCP port is probed."""
    pipeline = Checked(target(), build.service(ports=(DNS, WEB)))
    pipeline.run(OFFER)
    assert pipeline.desired is not None
    assert [watch.check for watch in pipeline.desired.watches] == [Check("tcp", 30080)]


def test_checks_are_off_without_a_tcp_port() -> None:
    """Without a TCP port the endpoints are published as if unchecked, and a finding says so."""
    pipeline = Checked(target(), build.service(ports=(DNS,)))
    pipeline.run(OFFER)
    assert pipeline.reasons() == ["CheckWithoutPort"]
    assert pipeline.conditions() == {ONE: PUBLISHED, TWO: PUBLISHED}
    pipeline.target = target(health=HealthPolicy("tcp", port=8080))
    pipeline.run(OFFER)
    assert pipeline.watched() == {"eu": {ONE, TWO}}


# --- laws -------------------------------------------------------------------------------------------

verdicts = st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=8)


@given(verdicts, st.sampled_from([TCP, REMOVE]))
def test_healthy_addresses_are_ready_or_all_if_none(found: list[Verdict], health: HealthPolicy) -> None:
    """The healthy addresses are ready; if all are judged and none is healthy, all are ready."""
    offered = build.endpoints(len(found))
    by_address = dict(zip(offered, found, strict=True))
    pipeline = Checked(target(health=health))
    pipeline.health = {CHECK: by_address}
    pipeline.run(build.view("eu", offered))
    ready = {address for address, conditions in pipeline.conditions().items() if conditions.ready}
    good = {address for address, verdict in by_address.items() if verdict}
    assert ready == (offered.keys() if not good and None not in found else good)
    if health is TCP:
        assert pipeline.conditions().keys() == offered.keys()
    assert not pipeline.plan(build.view("eu", offered)).writes


@given(st.lists(verdicts, min_size=2, max_size=6))
def test_a_target_never_loses_its_last_ready_endpoint_to_verdicts(rounds: list[list[Verdict]]) -> None:
    """Once an endpoint is ready, no sequence of verdicts leaves the target without a ready one."""
    pipeline = Checked(target())
    offered = build.endpoints(8)
    offer = build.view("eu", offered)
    was_ready = False
    for found in rounds:
        padded: Iterable[Verdict] = (*found, *[False] * (8 - len(found)))
        pipeline.health = {CHECK: dict(zip(offered, padded, strict=True))}
        pipeline.run(offer)
        ready = any(each.ready for each in pipeline.conditions().values())
        assert ready or not was_ready
        was_ready = ready
