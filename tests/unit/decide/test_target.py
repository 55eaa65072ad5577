"""What one target should publish, tested through planning and applying."""

from __future__ import annotations

from typing import Any, cast
from weakref import ref

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.decide.endpoints import EndpointSet, GroupKey
from hub.decide.ports import PortReading
from hub.decide.sources import SourceInput
from hub.decide.target import Desired, DesiredMemory, Refused, TargetInput, Waiting, desired_endpoints
from hub.model import (
    DRAINING,
    PUBLISHED,
    Endpoint,
    Finding,
    ObjectReference,
    Port,
    Service,
    ServicePort,
    Slice,
    SourceView,
    TargetKey,
)
from hub.registry.spec import FailoverPolicy, NodePortRef, PortSpec, SourceSpec, UnreachablePolicy
from tests.support import build
from tests.support.build import Pipeline

RANGE = ((30000, 32767),)


def offer(view: SourceView, spec: SourceSpec | None = None, **more: Any) -> SourceInput:
    """The input of a source."""
    return SourceInput(spec or build.source(view.cluster), view, **more)


def eps(*names: str, **more: Any) -> dict[str, Endpoint]:
    """Endpoints a -> 10.0.0.<code> of nodes with these one-letter names."""
    return {where(name): build.endpoint(where(name), name, **more) for name in sorted(names)}


def where(name: str) -> str:
    """The address of the node with this one-letter name."""
    return f"10.0.0.{ord(name)}"


def view(cluster: str, letters: str = "", **more: Any) -> SourceView:
    """A view of nodes with these one-letter names."""
    return build.view(cluster, eps(*letters), **more)


def names(published: dict[str, set[str]]) -> dict[str, str]:
    """Cluster -> one-letter names of its published nodes."""
    return {
        cluster: "".join(sorted(chr(int(address.rsplit(".", 1)[1])) for address in addresses))
        for cluster, addresses in published.items()
    }


def two(**more: Any) -> Pipeline:
    """A target with the sources eu and us."""
    return Pipeline(build.target("eu", "us", **more))


# --- Services -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (None, Waiting("ServiceMissing", "the Service does not exist")),
        (build.service(deleting=True), Waiting("ServiceDeleting", "the Service is being deleted")),
        (
            build.service(kind="ExternalName"),
            Refused("ExternalName", "a Service of type ExternalName has no endpoints"),
        ),
        (
            build.service(selector=True),
            Refused(
                "SelectorPresent", "the Service has a selector, so Kubernetes writes its endpoints: remove the selector"
            ),
        ),
    ],
)
def test_unfit_services(service: Service | None, expected: Waiting | Refused) -> None:
    """A Service that cannot be a target is refused with a reason and a next step."""
    assert (
        desired_endpoints(TargetInput(build.target(), service, [offer(view("eu", "a"))], (), 0.0), DesiredMemory())
        == expected
    )


def test_a_fit_service_is_published() -> None:
    """A Service with one source gets one slice."""
    assert names(Pipeline().run(view("eu", "ab"))) == {"eu": "ab"}


def test_only_the_services_families() -> None:
    """Addresses of a family that the Service lacks are not published."""
    both = build.view("eu", [build.endpoint("10.0.0.1", "a")], [build.endpoint("fd00::1", "a")])
    found = {
        families: Pipeline(service=build.service(families=families)).run(both)["eu"]
        for families in (("IPv4",), ("IPv6",), ("IPv6", "IPv4"))
    }
    assert list(found.values()) == [{"10.0.0.1"}, {"fd00::1"}, {"10.0.0.1", "fd00::1"}]


def test_a_family_that_leaves_the_service_leaves_no_slice() -> None:
    """If the Service drops a family, the slices of that family are deleted."""
    both = build.view("eu", [build.endpoint("10.0.0.1", "a")], [build.endpoint("fd00::1", "a")])
    it = Pipeline(service=build.service(families=("IPv4", "IPv6")), guarded=True)
    it.run(both)
    it.service = build.service(families=("IPv4",))
    it.run(both)
    assert [slice_.address_type for slice_ in it.slices] == ["IPv4"]


def test_a_local_traffic_policy_is_reported_where_endpoints_are_on_no_node() -> None:
    """A Local traffic policy is reported if endpoints have no node; headless Services are exempt."""
    it = Pipeline()
    it.service = build.service(local_policies=("externalTrafficPolicy",))
    it.run(view("eu", "ab"))
    assert it.desired is not None
    [finding] = it.desired.findings
    assert (finding.reason, finding.objects) == ("LocalTrafficPolicy", ("externalTrafficPolicy",))
    assert "the 2 of 2 endpoints that are on no node of the hub cluster" in finding.message
    it.service = build.service(local_policies=("externalTrafficPolicy",), headless=True)
    it.run(view("eu", "ab"))
    assert it.desired.findings == ()
    it.service = build.service(local_policies=("internalTrafficPolicy",))
    here = {name: msgspec.structs.replace(each, node_name="worker-1") for name, each in eps("a", "b").items()}
    it.run(build.view("eu", here))
    assert it.desired.findings == ()


def test_a_source_of_another_family_is_reported() -> None:
    """A source without addresses of the Service's families is reported."""
    it = Pipeline()
    it.run(build.view("eu", (), [build.endpoint("fd00::1", "a")]))
    assert it.desired is not None
    assert it.desired.findings == (
        Finding("FamilyNotInService", "eu has IPv6 addresses only, the Service has IPv4", ("eu",)),
    )


def test_a_dual_stack_source_is_not_reported() -> None:
    """A source with one family that the Service lacks is not reported."""
    it = Pipeline()
    it.run(build.view("eu", [build.endpoint("10.0.0.1", "a")], [build.endpoint("fd00::1", "a")]))
    assert it.reasons() == []


# --- unknown --------------------------------------------------------------------------------------------


def test_unknown_freezes_addresses() -> None:
    """The endpoints of an unknown source stay, and nothing is written."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    assert it.plan(build.view("eu", unknown="list failed")).writes == 0


def test_unknown_source_is_marked_for_the_guard() -> None:
    """The group of an unknown source is marked as unknown for the guard."""
    spec = build.source(unreachable=UnreachablePolicy(600.0, "remove"))
    for unreachable_for in (None, 700.0):
        it = Pipeline(build.target(sources=(spec,)))
        it.run(offer(view("eu", "ab"), spec))
        assert it.desired is not None
        assert [group.known for group in it.desired.groups] == [True]
        it.plan(offer(build.view("eu", unknown="x"), spec, unreachable_for=unreachable_for))
        assert [group.known for group in it.desired.groups] == [False]


def test_a_view_without_a_family_offers_nothing_of_it() -> None:
    """A view may lack a family that it has no endpoints for."""
    it = Pipeline(service=build.service(families=("IPv4", "IPv6")))
    assert names(it.run(SourceView("eu", None, {"IPv4": eps("a")}))) == {"eu": "a"}


def test_last_known_good_belongs_to_the_source() -> None:
    """A new target, or one without slices, gets the last known good endpoints of an unknown source."""
    it = Pipeline()
    assert names(it.run(view("eu", "ab", unknown="list failed"))) == {"eu": "ab"}
    it.slices = ()
    assert names(it.run(view("eu", "ab", unknown="list failed"))) == {"eu": "ab"}


def test_last_known_good_changes_and_removes_nothing() -> None:
    """Last known good endpoints are only added where they are missing."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    it.run(build.view("eu", eps("b", "c", zone="z"), unknown="list failed"))
    assert names(it.published()) == {"eu": "abc"}
    assert [it.endpoint(where(name)).zone for name in "abc"] == [None, None, "z"]


def test_unknown_without_a_last_known_good() -> None:
    """A source that has never been known publishes nothing."""
    assert Pipeline().run(build.view("eu", unknown="never synced")) == {}


def test_unknown_freezes_neither_ports_nor_labels_nor_owner() -> None:
    """Ports, labels and owner of an unknown source's slices are still updated."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    it.service = build.service(
        ports=(ServicePort(443, "https", target_port=30444),), labels={"team": "x"}, uid="another"
    )
    it.run(build.view("eu", unknown="list failed"))
    (only,) = it.slices
    assert (only.ports, only.labels["team"], only.owners[0].uid) == ((Port("https", 30444),), "x", "another")
    assert names(it.published()) == {"eu": "ab"}


def test_unknown_source_does_not_affect_known_ones() -> None:
    """An unknown source does not affect a known one."""
    it = two()
    it.run(view("eu", "ab"), view("us", "cd"))
    assert names(it.run(build.view("eu", unknown="x"), view("us", "c"))) == {"eu": "ab", "us": "c"}


def test_kept_set_is_freed_when_the_source_is_known_again() -> None:
    """The endpoint set that was kept for an unknown source is freed when the source is known again."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    it.run(build.view("eu", unknown="list failed"))
    assert it.desired is not None
    (group,) = it.desired.groups
    assert (dict(group.endpoints), isinstance(group.endpoints, EndpointSet)) == (eps("a", "b"), True)
    stood = ref(cast("EndpointSet", group.endpoints))
    del group
    it.run(view("eu", "abc"))
    it.run(view("eu", "abc"))
    assert stood() is None


@pytest.mark.parametrize("end", ["standby", "removed"])
def test_kept_set_is_freed_when_the_source_is_unused(end: str) -> None:
    """The kept endpoint set of an unknown source is freed when it is on standby or no longer a source."""
    it = two()
    known = view("us", "cd")
    it.run(view("eu", "ab"), known)
    it.run(build.view("eu", unknown="list failed"), known)
    assert it.desired is not None
    stood = ref(cast("EndpointSet", it.desired.groups[0].endpoints))
    offers: list[SourceView | SourceInput] = [known]
    if end == "removed":
        it.target = build.target("us")
    else:
        offers.insert(0, SourceInput(it.target.sources[0], build.view("eu", unknown="list failed"), "standby"))
    for _ in range(2):
        it.run(*offers)
    assert stood() is None


def test_first_duplicate_of_an_unknown_source_stays() -> None:
    """Of duplicates of an unknown source, the first endpoint stays."""
    it = Pipeline(guarded=True)
    both = [build.endpoint(where("a"), "a"), build.endpoint(where("a"), "a", DRAINING)]
    it.slices = (build.slice("payments-00000000-0", both),)
    it.run(build.view("eu", unknown="list failed"))
    assert [endpoint for slice_ in it.slices for endpoint in slice_.endpoints] == both[:1]


def test_unknown_nodes_keep_what_is_published_for_them() -> None:
    """Endpoints of nodes with an unknown address stay, by targetRef; those of gone nodes are removed."""
    it = Pipeline()
    it.run(view("eu", "abc"))
    assert names(it.run(view("eu", "a", unknown_nodes={"b"}))) == {"eu": "ab"}


def test_reused_address_is_published_for_its_new_node() -> None:
    """An address that another node has now is published for that node."""
    it = Pipeline()
    it.run(view("eu", "a"))
    it.run(build.view("eu", [build.endpoint(where("a"), "z")], unknown_nodes={"a"}))
    reference = it.endpoint(where("a")).target_ref
    assert reference is not None
    assert reference.name == "z"


def test_incomplete_snapshots_remove_nothing() -> None:
    """An incomplete snapshot adds and changes endpoints but removes none."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    assert names(it.run(view("eu", "bc", complete=False))) == {"eu": "abc"}


def test_upsert_only_never_removes() -> None:
    """An upsert-only target removes neither endpoints nor dropped sources."""
    it = two(policy="upsert-only")
    it.run(view("eu", "ab"), view("us", "c"))
    assert names(it.run(view("eu", "bd"), view("us"))) == {"eu": "abd", "us": "c"}
    it.target = build.target("eu", policy="upsert-only")
    assert names(it.run(view("eu"))) == {"eu": "abd", "us": "c"}


# --- unreachable ----------------------------------------------------------------------------------------


def unreachable(policy: str, seconds: float | None, *, after: float = 600.0) -> dict[str, Endpoint]:
    """The endpoints of a source that has been unreachable for so long."""
    spec = build.source(unreachable=UnreachablePolicy(after, policy))  # type: ignore[arg-type]
    it = Pipeline(build.target(sources=(spec,)), guarded=True)
    it.run(offer(view("eu", "ab"), spec))
    it.run(offer(build.view("eu", unknown="unreachable"), spec, unreachable_for=seconds))
    return {endpoint.address: endpoint for slice_ in it.slices for endpoint in slice_.endpoints}


@pytest.mark.parametrize(
    ("policy", "seconds", "expected"),
    [
        ("keep", 1e9, eps("a", "b")),
        ("not-ready", 599.0, eps("a", "b")),
        ("not-ready", 600.0, eps("a", "b", conditions=DRAINING)),
        ("not-ready", None, eps("a", "b")),
        ("remove", 599.0, eps("a", "b")),
        ("remove", 600.0, {}),
        ("remove", None, eps("a", "b")),
    ],
)
def test_unreachable_policies(policy: str, seconds: float | None, expected: dict[str, Endpoint]) -> None:
    """After ``after`` seconds without a connection (None: connected), the policy takes effect past the guard."""
    assert unreachable(policy, seconds) == expected


def test_upsert_only_drains_unreachable_endpoints() -> None:
    """An upsert-only target drains the endpoints of an unreachable cluster instead of removing them."""
    spec = build.source(unreachable=UnreachablePolicy(600.0, "remove"))
    it = Pipeline(build.target(sources=(spec,), policy="upsert-only"), guarded=True)
    it.run(offer(view("eu", "ab"), spec))
    it.run(offer(build.view("eu", unknown="unreachable"), spec, unreachable_for=600.0))
    assert {endpoint.address: endpoint for slice_ in it.slices for endpoint in slice_.endpoints} == eps(
        "a", "b", conditions=DRAINING
    )


def test_unreachable_wakes_when_the_policy_begins() -> None:
    """The next decision is due when ``after`` has passed."""
    spec = build.source(unreachable=UnreachablePolicy(600.0, "remove"))
    it = Pipeline(build.target(sources=(spec,)))
    it.run(offer(view("eu", "a"), spec))
    it.run(offer(build.view("eu", unknown="unreachable"), spec, unreachable_for=100.0))
    assert it.desired is not None
    assert it.desired.wake_at == it.now + 500.0


def test_unreachable_policy_removals_are_exempt_from_the_guard() -> None:
    """All removals and changes by an ``unreachable`` policy are exempt from the guard."""
    for policy in ("remove", "not-ready"):
        spec = build.source(unreachable=UnreachablePolicy(600.0, policy))
        it = Pipeline(build.target(sources=(spec,)))
        it.run(offer(view("eu", "ab"), spec))
        it.plan(offer(build.view("eu", unknown="unreachable"), spec, unreachable_for=600.0))
        assert it.desired is not None
        assert it.desired.groups[0].exempt == {where("a"), where("b")}


def test_unreachable_comes_back() -> None:
    """A complete answer restores all endpoints."""
    spec = build.source(unreachable=UnreachablePolicy(1.0, "not-ready"))
    it = Pipeline(build.target(sources=(spec,)))
    it.run(offer(view("eu", "a"), spec))
    it.run(offer(build.view("eu", unknown="unreachable"), spec, unreachable_for=2.0))
    it.run(offer(view("eu", "a"), spec))
    assert it.endpoint(where("a")).conditions == PUBLISHED


# --- states of a cluster ----------------------------------------------------------------------------------


def test_frozen_slices_are_not_touched() -> None:
    """Frozen slices are not written, not even their labels, and their names count as taken."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    it.service = build.service(labels={"team": "x"})
    assert it.plan(offer(view("eu", "c"), state="frozen")).writes == 0
    assert it.desired is not None
    assert it.desired.untouched == it.slices


def test_standby_is_not_published() -> None:
    """The slices of a standby cluster are deleted, exempt from the guard."""
    it = Pipeline(guarded=True)
    it.run(view("eu", "ab"))
    it.run(offer(view("eu", "ab"), state="standby"))
    assert it.slices == ()


def test_a_dropped_source_leaves() -> None:
    """The slices of a source that the registry dropped are deleted, exempt from the guard."""
    it = two()
    it.guarded = True
    it.run(view("eu", "ab"), view("us", "c"))
    it.target = build.target("us")
    it.run(view("us", "c"))
    assert [slice_.cluster for slice_ in it.slices] == ["us"]


def test_a_renamed_cluster_keeps_its_slices() -> None:
    """With ``formerly``, the slices of a renamed cluster are relabelled, not created and deleted."""
    it = Pipeline(guarded=True)
    it.run(view("eu", "ab"))
    before = it.slices
    it.target = build.target("europe")
    planned = it.plan(offer(view("europe", "ab"), formerly=("eu",)))
    assert ([slice_.name for slice_ in planned.updates], planned.writes) == ([each.name for each in before], 1)
    assert planned.updates[0].cluster == "europe"


def test_a_renamed_cluster_that_is_down_keeps_its_slices() -> None:
    """A renamed cluster keeps its slices even if it is unknown."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    it.target = build.target("europe")
    assert names(it.run(offer(build.view("europe", unknown="x"), formerly=("eu",)))) == {"europe": "ab"}


def test_a_former_name_in_use_is_not_adopted() -> None:
    """A former name that another source has now is not adopted."""
    it = two()
    it.run(view("eu", "ab"), view("us", "c"))
    spec = build.source("us")
    assert names(it.run(view("eu", "ab"), offer(view("us", "c"), spec, formerly=("eu",)))) == {"eu": "ab", "us": "c"}


def test_slices_being_deleted_do_not_count() -> None:
    """Endpoints of slices that are being deleted are published again in other slices."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    it.slices = tuple(msgspec.structs.replace(slice_, deleting=True) for slice_ in it.slices)
    assert len(it.plan(view("eu", "ab")).creates) == 1


# --- ports --------------------------------------------------------------------------------------------------


def test_a_source_without_ports_is_left_as_it_is() -> None:
    """A source whose port is not allowed is not written, while other sources are."""
    it = two()
    it.run(offer(view("eu", "a"), allowed_ports=RANGE), offer(view("us", "b"), allowed_ports=RANGE))
    now = it.run(offer(view("eu", "ac"), allowed_ports=((1, 2),)), offer(view("us", "bd"), allowed_ports=RANGE))
    assert (names(now), it.reasons()) == ({"eu": "a", "us": "bd"}, ["PortNotAllowed"])
    assert it.desired is not None
    (finding,) = it.desired.findings
    assert (finding.message[:33], finding.objects) == ("eu: port 30443, the Service's tar", ("eu",))


def test_a_named_target_port_is_the_sources() -> None:
    """A named targetPort is published with the source's number."""
    it = Pipeline(service=build.service(ports=(ServicePort(443, "https", target_port="https"),)))
    it.run(view("eu", "a", ports=(Port("https", 6443),)))
    assert it.slices[0].ports == (Port("https", 6443),)


def test_a_changed_service_port_is_noticed() -> None:
    """A changed Service changes the published ports."""
    it = Pipeline()
    it.run(view("eu", "a"))
    it.service = build.service(ports=(ServicePort(443, "https", target_port=30444),))
    it.run(view("eu", "a"))
    assert it.slices[0].ports == (Port("https", 30444),)


def test_node_ports_are_read_per_source() -> None:
    """Each source has its own nodePort; an unreadable one keeps its published number and is reported."""
    ref = NodePortRef(TargetKey("ingress", "envoy"), "https")
    it = two(ports=(PortSpec(0, "https", node_port=ref),))

    def numbers(eu: PortReading, us: PortReading) -> dict[str, int | None]:
        it.run(offer(view("eu", "a"), node_ports={ref: eu}), offer(view("us", "b"), node_ports={ref: us}))
        return {slice_.cluster: slice_.ports[0].port for slice_ in it.slices}

    assert numbers(PortReading(30500), PortReading(30600)) == {"eu": 30500, "us": 30600}
    assert numbers(PortReading(30500), PortReading(None, "it does not exist")) == {"eu": 30500, "us": 30600}
    assert it.desired is not None
    why = "us: the node port https of Service ingress/envoy: it does not exist; 30600 stays"
    assert it.desired.findings == (Finding("NodePortUnknown", why, ("us",)),)
    assert numbers(PortReading(30700), PortReading(30600)) == {"eu": 30700, "us": 30600}
    assert it.reasons() == []


# --- several sources -------------------------------------------------------------------------------------------


def test_departures_are_the_guards_business() -> None:
    """Endpoints that a source no longer offers are not exempt from the guard."""
    it = Pipeline(guarded=True)
    it.run(view("eu", "abcd"))
    assert names(it.run(view("eu", "a"))) == {"eu": "abcd"}
    assert it.desired is not None
    assert it.desired.groups[0].exempt == frozenset()


def test_an_address_that_is_published_twice_is_put_right() -> None:
    """One write removes the duplicates of a copied slice."""
    it = Pipeline()
    it.run(view("eu", "ab"))
    (only,) = it.slices
    it.slices = (only, msgspec.structs.replace(only, name=f"{only.name}0"))
    planned = it.plan(view("eu", "ab"))
    assert (len(planned.deletes), planned.writes) == (1, 1)


def test_merge_publishes_all() -> None:
    """Each cluster has at least one slice."""
    assert names(two().run(view("eu", "ab"), view("us", "cd"))) == {"eu": "ab", "us": "cd"}


def test_first_source_gets_a_shared_address() -> None:
    """A new address of two sources goes to the first one, and a finding reports it."""
    it = two()
    assert names(it.run(view("eu", "ab"), view("us", "bc"))) == {"eu": "ab", "us": "c"}
    assert it.desired is not None
    assert it.desired.findings == (
        Finding(
            "AddressConflict",
            f"1 addresses are offered by more than one source, such as {where('b')}",
            (where("b"),),
        ),
    )


def test_the_publisher_keeps_a_shared_address() -> None:
    """The source that publishes a shared address keeps it, against earlier sources and over restarts."""
    it = two()
    it.run(view("eu", "a"), view("us", "bc"))
    for _ in range(3):
        assert names(it.run(view("eu", "ab"), view("us", "bc"), after=10)) == {"eu": "a", "us": "bc"}
        it.restart()


def test_shared_address_is_ready_if_any_claimant_is() -> None:
    """A shared address is ready if it is ready for any claimant."""
    it = two()
    it.run(build.view("eu", eps("a", conditions=DRAINING)), view("us", "a"))
    assert (names(it.published()), it.endpoint(where("a")).conditions) == ({"eu": "a"}, PUBLISHED)


def test_an_unknown_publisher_keeps_a_shared_address() -> None:
    """An unknown source keeps a shared address that it publishes."""
    it = two()
    it.run(view("eu"), view("us", "a"))
    assert names(it.run(view("eu", "a"), build.view("us", unknown="x"), after=100)) == {"us": "a"}


def test_a_frozen_publisher_keeps_a_shared_address() -> None:
    """A frozen source keeps a shared address that it publishes."""
    it = two()
    it.run(view("eu"), view("us", "a"))
    assert names(it.run(view("eu", "ab"), offer(view("us"), state="frozen"), after=100)) == {"eu": "b", "us": "a"}


def test_withdrawing_one_claim_moves_the_address() -> None:
    """A moved address is published by both sources alike for five seconds, then only by the new one."""
    it = two(failover=FailoverPolicy())
    it.run(view("eu", "a"), view("us", "ab"))
    last = (build.view("eu"), view("us", "ab"))
    assert names(it.run(*last)) == {"eu": "a", "us": "ab"}
    assert names(it.run(*last, after=100)) == {"eu": "a", "us": "ab"}
    assert it.desired is not None
    assert it.desired.wake_at == it.now + 5
    assert names(it.run(*last, after=4.9)) == {"eu": "a", "us": "ab"}
    assert names(it.run(*last, after=0.1)) == {"us": "ab"}
    assert (it.plan(*last).writes, it.memory.moves) == (0, {})


def test_moving_address_is_not_a_conflict() -> None:
    """A moving address is not reported as a conflict."""
    it = two()
    it.run(view("eu", "a"), view("us"))
    for _ in range(2):
        it.run(view("eu"), view("us", "a"), after=1)
        assert it.reasons() == []


def test_each_move_has_its_own_settling_time() -> None:
    """An address that moves later leaves its old source later."""
    it = two()
    it.run(view("eu", "ab"), view("us"))
    it.run(view("eu", "b"), view("us", "a"))
    it.run(view("eu", "b"), view("us", "a"))
    it.run(view("eu"), view("us", "ab"), after=3)
    it.run(view("eu"), view("us", "ab"))
    assert names(it.run(view("eu"), view("us", "ab"), after=2)) == {"eu": "b", "us": "ab"}
    assert names(it.run(view("eu"), view("us", "ab"), after=3)) == {"us": "ab"}


def test_both_copies_of_a_move_have_equal_conditions() -> None:
    """Both endpoints of a moving address have equal conditions, because kube-proxy may use either."""
    it = two()
    it.run(view("eu", "a"), view("us"))
    it.run(view("eu"), build.view("us", eps("a", conditions=DRAINING)))
    found = [endpoint.conditions for slice_ in it.slices for endpoint in slice_.endpoints]
    assert found == [DRAINING, DRAINING]


def test_move_is_exempt_from_the_guard() -> None:
    """A move is exempt from the guard."""
    it = two()
    it.guarded = True
    it.run(view("eu", "ab"), view("us"))
    for _ in range(4):
        it.run(view("eu"), view("us", "ab"), after=5)
    assert names(it.published()) == {"us": "ab"}


def test_move_restarts_its_wait_after_a_restart() -> None:
    """After a restart the five seconds of a move begin again."""
    it = two()
    it.run(view("eu", "a"), view("us"))
    last = (view("eu"), view("us", "a"))
    it.run(*last)
    it.run(*last)
    it.restart()
    assert names(it.run(*last, after=10)) == {"eu": "a", "us": "a"}
    assert names(it.run(*last, after=5)) == {"us": "a"}


def test_a_move_that_is_taken_back() -> None:
    """If the old owner claims a moving address again, it ends up at one source."""
    it = two()
    it.run(view("eu", "a"), view("us"))
    it.run(view("eu"), view("us", "a"))
    it.run(view("eu", "a"), view("us"), after=2)
    for _ in range(3):
        it.run(view("eu", "a"), view("us"), after=5)
    assert names(it.published()) == {"eu": "a"}


def test_addresses_of_a_dropped_source_move() -> None:
    """Addresses of a dropped source that another one claims move to it; the others are removed at once."""
    it = two()
    it.run(view("eu", "ab"), view("us"))
    it.target = build.target("us")
    assert names(it.run(view("us", "a"))) == {"eu": "a", "us": "a"}
    assert [slice_.ports for slice_ in it.slices] == [(build.PORT,)] * 2
    it.run(view("us", "a"))
    it.run(view("us", "a"), after=5)
    assert [(slice_.cluster, len(slice_.endpoints)) for slice_ in it.slices] == [("us", 1)]


def test_a_cluster_named_twice_is_reported() -> None:
    """A cluster that is a source twice is reported, and the first one counts."""
    it = Pipeline(build.target("eu", "us"))
    assert names(it.run(view("eu", "a"), view("eu", "b"), view("us", "c"))) == {"eu": "a", "us": "c"}
    assert it.desired is not None
    assert it.desired.findings == (Finding("DuplicateSource", "eu is a source twice; only the first counts", ("eu",)),)


def test_three_sources_share() -> None:
    """An address of three sources is published once."""
    it = Pipeline(build.target("a", "b", "c"))
    assert names(it.run(view("a"), view("b", "x"), view("c", "x"))) == {"b": "x"}
    it.run(view("a", "x"), view("b"), view("c", "x"))
    for _ in range(3):
        it.run(view("a", "x"), view("b"), view("c", "x"), after=5)
    assert names(it.published()) == {"a": "x"}


# --- headless, readiness ignored ---------------------------------------------------------------------------------


def headless(*endpoints: Endpoint, **more: Any) -> dict[str, str | None]:
    """Address -> hostname, as published for a headless Service."""
    it = Pipeline(service=build.service(headless=True))
    it.run(build.view("eu", endpoints, **more))
    return {endpoint.address: endpoint.hostname for slice_ in it.slices for endpoint in slice_.endpoints}


@pytest.mark.parametrize(
    ("node", "hostname"),
    [
        ("n1", "n1"),
        ("ip-10-0-0-1.ec2.internal", "ip-10-0-0-1"),
        ("Node", None),
        ("-n", None),
        ("n_1", None),
        ("n" * 63, "n" * 63),
        ("n" * 64, None),
        (".n", None),
    ],
)
def test_hostname_is_the_first_label(node: str, hostname: str | None) -> None:
    """The hostname is the first label of the node's name if that is a valid label."""
    assert headless(build.endpoint("10.0.0.1", node)) == {"10.0.0.1": hostname}


def test_duplicate_hostnames_are_omitted() -> None:
    """Two nodes with the same first label have no hostname."""
    found = headless(
        build.endpoint("10.0.0.1", "a.x"), build.endpoint("10.0.0.2", "a.y"), build.endpoint("10.0.0.3", "b")
    )
    assert found == {"10.0.0.1": None, "10.0.0.2": None, "10.0.0.3": "b"}


def test_hostnames_are_unique_in_the_service() -> None:
    """Hostnames are unique over all clusters of a Service."""
    it = Pipeline(build.target("eu", "us"), build.service(headless=True))
    it.run(build.view("eu", [build.endpoint("10.0.0.1", "n")]), build.view("us", [build.endpoint("10.0.0.2", "n")]))
    assert [it.endpoint("10.0.0.1").hostname, it.endpoint("10.0.0.2").hostname] == [None, None]


def test_both_families_of_a_node_have_one_hostname() -> None:
    """The IPv4 and the IPv6 address of a node have the same hostname."""
    it = Pipeline(service=build.service(headless=True, families=("IPv4", "IPv6")))
    it.run(build.view("eu", [build.endpoint("10.0.0.1", "n")], [build.endpoint("fd00::1", "n")]))
    assert [it.endpoint("10.0.0.1").hostname, it.endpoint("fd00::1").hostname] == ["n", "n"]


def test_hostnames_a_source_brings() -> None:
    """A hostname from the source takes precedence over the node's name."""
    assert headless(build.endpoint("10.0.0.1", "n"), hostnames={"10.0.0.1": "web-0"}) == {"10.0.0.1": "web-0"}


def test_no_hostname_for_other_services() -> None:
    """A Service with a ClusterIP has no hostnames."""
    it = Pipeline()
    it.run(view("eu", "a", hostnames={where("a"): "web-0"}))
    assert it.endpoint(where("a")).hostname is None


def test_headless_is_stable() -> None:
    """An equal view causes no writes for a headless Service."""
    it = Pipeline(service=build.service(headless=True))
    it.run(view("eu", "abc"))
    assert it.plan(view("eu", "abc")).writes == 0


@pytest.mark.parametrize("lost", [{"unknown": "x"}, {"state": "frozen"}])
def test_headless_keeps_hostnames_of_unknown_and_frozen(lost: dict[str, Any]) -> None:
    """Endpoints of unknown and frozen sources keep their hostnames."""
    it = Pipeline(build.target("eu", "us"), build.service(headless=True))
    it.run(view("eu", "ab"), build.view("us"))
    eu = offer(build.view("eu", unknown=lost.get("unknown")), state=lost.get("state", "active"))
    it.run(eu, build.view("us", [build.endpoint("10.0.0.1", "b"), build.endpoint("10.0.0.2", "c")]))
    found = {endpoint.address: endpoint.hostname for slice_ in it.slices for endpoint in slice_.endpoints}
    assert found == {where("a"): "a", where("b"): "b", "10.0.0.1": None, "10.0.0.2": "c"}


def test_hostnames_of_endpoints_without_a_node() -> None:
    """Hostnames from a source are unique per address, or per node with two families."""
    pod = ObjectReference(kind="Pod", name="b")
    assert headless(build.endpoint("10.0.0.1"), Endpoint(("10.0.0.2",), PUBLISHED, target_ref=pod)) == {
        "10.0.0.1": None,
        "10.0.0.2": None,
    }
    both = {"10.0.0.1": "web", "10.0.0.2": "web", "10.0.0.3": "db"}
    found = headless(*(build.endpoint(address, "n") for address in both), hostnames=both)
    assert found == {"10.0.0.1": None, "10.0.0.2": None, "10.0.0.3": "db"}


def test_headless_reuses_unchanged_endpoints() -> None:
    """Unchanged endpoints stay the same objects when another one changes."""
    it = Pipeline(service=build.service(headless=True))
    seen = []
    for offered in (view("eu", "ab"), view("eu", "ab"), build.view("eu", {**eps("a"), **eps("b", zone="z")})):
        it.run(offered)
        assert it.desired is not None
        seen.append(it.desired.groups[0].endpoints)
    first, second, third = seen
    assert all(second[address] is first[address] for address in first)
    assert third[where("a")] is first[where("a")]
    assert (third[where("b")].zone, third[where("b")].hostname) == ("z", "b")


@pytest.mark.parametrize("publish_not_ready", [False, True])
def test_headless_caches_unchanged_endpoints(publish_not_ready: bool) -> None:
    """Results for unchanged endpoint objects are reused; added and changed ones are noticed."""
    it = Pipeline(service=build.service(headless=True, publish_not_ready=publish_not_ready))
    same = eps("a", "b", conditions=DRAINING)

    def published(content: dict[str, Endpoint]) -> list[Endpoint]:
        it.run(build.view("eu", content))
        assert it.desired is not None
        return list(it.desired.groups[0].endpoints.values())

    a, b = published(same)
    assert (a.hostname, a.conditions.ready) == ("a", publish_not_ready)
    more = published({**same, **eps("c")})
    assert (more[0] is a, more[1] is b, more[2].hostname) == (True, True, "c")
    other = published({**same, **eps("b", zone="z")})
    assert (other[0] is a, other[1].zone, other[1].hostname) == (True, "z", "b")


@pytest.mark.parametrize("headless", [False, True])
def test_copied_hostnames_are_unchanged(headless: bool) -> None:
    """Copied hostnames are published unchanged, even if they are not unique or equal a node's."""
    it = Pipeline(build.target("eu", "us"), build.service(headless=headless, publish_not_ready=True))
    copied = [build.endpoint("10.0.0.1", hostname="n"), build.endpoint("10.0.0.2", "m", hostname="n")]
    it.run(build.view("eu", copied, copied=True), build.view("us", [build.endpoint("10.0.0.3", "n")]))
    found = {endpoint.address: endpoint.hostname for slice_ in it.slices for endpoint in slice_.endpoints}
    assert found == {"10.0.0.1": "n", "10.0.0.2": "n", "10.0.0.3": "n" if headless else None}


def test_headless_notices_every_change() -> None:
    """New, removed and conflicting hostnames and changed Service flags are noticed."""
    it = Pipeline(service=build.service(headless=True))

    def hostnames() -> dict[str, str | None]:
        return {endpoint.address: endpoint.hostname for slice_ in it.slices for endpoint in slice_.endpoints}

    it.run(build.view("eu", [build.endpoint("10.0.0.1", "n.x")]))
    assert hostnames() == {"10.0.0.1": "n"}
    it.run(build.view("eu", [build.endpoint("10.0.0.1", "n.x"), build.endpoint("10.0.0.2", "n.y")]))
    assert hostnames() == {"10.0.0.1": None, "10.0.0.2": None}
    it.run(build.view("eu", [build.endpoint("10.0.0.2", "n.y")]))
    assert hostnames() == {"10.0.0.2": "n"}
    offered = build.view("eu", eps("a", conditions=DRAINING))
    it.run(offered)
    it.service = build.service(headless=True, publish_not_ready=True)
    it.run(offered)
    assert it.endpoint(where("a")).conditions.ready is True


def test_publish_not_ready_addresses() -> None:
    """With publishNotReadyAddresses, ready is always true and the other conditions are unchanged."""
    it = Pipeline(service=build.service(publish_not_ready=True))
    it.run(build.view("eu", eps("a", conditions=DRAINING)))
    conditions = it.endpoint(where("a")).conditions
    assert (conditions.ready, conditions.serving, conditions.terminating) == (True, True, True)


# --- failover -----------------------------------------------------------------------------------------------------


def failing(**policy: Any) -> Pipeline:
    """A failover target with the sources eu and us."""
    it = two(strategy="failover", failover=FailoverPolicy(**policy))
    it.guarded = True
    return it


def test_failover_publishes_the_first() -> None:
    """Only the first source is published."""
    assert names(failing().run(view("eu", "ab"), view("us", "cd"))) == {"eu": "ab"}


def test_failover_switches() -> None:
    """After ``after`` the new source is published; five seconds later the old one goes, past the guard."""
    it = failing()
    it.run(view("eu", "ab"), view("us", "cd"))
    drained = build.view("eu", eps("a", "b", conditions=DRAINING)), view("us", "cd")
    # The guard holds back that all turn not ready at once; what would be is what counts.
    assert names(it.run(*drained)) == {"eu": "ab"}
    assert names(it.run(*drained, after=30)) == {"eu": "ab", "us": "cd"}
    assert names(it.run(*drained, after=1)) == {"eu": "ab", "us": "cd"}
    assert names(it.run(*drained, after=5)) == {"us": "cd"}
    assert it.plan(*drained).writes == 0


def test_switch_is_reported_once() -> None:
    """A switch is reported once, even if its writes fail for a while."""
    it = failing()
    it.run(view("eu", "ab"), view("us", "cd"))
    empty = view("eu"), view("us", "cd")
    it.run(*empty)
    it.now += 30
    told = []
    for _ in range(3):
        it.plan(*empty)
        told.append("FailedOver" in it.reasons())
    assert told == [True, False, False]


def test_failover_of_an_unknown_source() -> None:
    """An unknown source whose published endpoints are ready stays active."""
    it = failing()
    it.run(view("eu", "ab"), view("us", "cd"))
    lost = build.view("eu", unknown="x"), view("us", "cd")
    assert [names(it.run(*lost, after=1000)) for _ in range(3)] == [{"eu": "ab"}] * 3


def test_failover_waits_for_a_source_whose_nodes_are_not_resolved_yet() -> None:
    """A first source whose nodes are not resolved yet delays the first choice."""
    it = two(strategy="failover", failover=FailoverPolicy())
    assert names(it.run(view("eu", "", unknown_nodes={"a", "b"}), view("us", "c"))) == {}
    assert names(it.run(view("eu", "ab"), view("us", "c"))) == {"eu": "ab"}


@pytest.mark.parametrize("policy", ["not-ready", "remove"])
def test_failover_of_an_unreachable_source(policy: str) -> None:
    """With an ``unreachable`` policy an outage causes a failover without a gap in published endpoints."""
    spec = build.source("eu", unreachable=UnreachablePolicy(600.0, policy))  # type: ignore[arg-type]
    it = Pipeline(build.target(sources=(spec, build.source("us")), strategy="failover"))
    us = view("us", "cd")
    it.run(view("eu", "ab"), us)
    away = offer(build.view("eu", unknown="x"), spec, unreachable_for=700.0)
    seen = [names(it.run(away, us, after=seconds)) for seconds in (0.0, 30.0, 0.0, 5.0)]
    both = {"eu": "ab", "us": "cd"}
    assert seen == [{"eu": "ab"}, both, both, {"us": "cd"}]


def test_failover_min_ready() -> None:
    """A source with fewer than minReady ready endpoints is not ready."""
    it = failing(min_ready=2)
    assert names(it.run(view("eu", "a"), view("us", "cd"))) == {"us": "cd"}


def test_failover_adopts_after_a_restart() -> None:
    """After a restart the published source stays active, even if the first one is ready."""
    it = failing()
    it.run(view("eu"), view("us", "cd"))
    it.restart()
    assert names(it.run(view("eu", "ab"), view("us", "cd"))) == {"us": "cd"}


def test_failback() -> None:
    """The first source is published again after it has been ready for ``failbackAfter``."""
    it = failing()
    it.run(view("eu"), view("us", "cd"))
    well = view("eu", "ab"), view("us", "cd")
    for seconds in (0.0, 300.0, 0.0, 5.0):
        it.run(*well, after=seconds)
    assert names(it.published()) == {"eu": "ab"}


def test_failover_between_sources_that_share_addresses() -> None:
    """A shared address moves with the switch and is published once in the end."""
    it = failing()
    it.run(view("eu", "ab"), view("us", "bc"))
    down = build.view("eu", eps("a", "b", conditions=DRAINING)), view("us", "bc")
    for seconds in (0.0, 30.0, 1.0, 5.0, 5.0):
        it.run(*down, after=seconds)
    assert names(it.published()) == {"us": "bc"}
    assert it.plan(*down).writes == 0


def test_failover_publishes_unready_endpoints_if_none_is_ready() -> None:
    """If no source is ready, endpoints that are not ready are published."""
    drained = build.view("us", eps("a", conditions=DRAINING))
    assert names(failing().run(view("eu"), drained)) == {"us": "a"}


def test_failover_leaves_a_source_on_standby_at_once() -> None:
    """An active source that is set to standby is left at once."""
    it = failing()
    it.run(view("eu", "ab"), view("us", "cd"))
    it.run(offer(view("eu", "ab"), state="standby"), view("us", "cd"))
    assert names(it.published()) == {"us": "cd"}


@pytest.mark.parametrize("how", ["removed", "standby"])
def test_failover_keeps_dropped_sources_while_waiting(how: str) -> None:
    """While the first choice waits for an unknown source, the endpoints of dropped sources stay."""
    it = Pipeline(build.target("eu", "asia", "us", strategy="failover"), guarded=True)
    eu, asia, us = view("eu", "ab"), build.view("asia", unknown="x"), view("us", "cd")
    it.run(eu, asia, us)
    if how == "standby":
        left: SourceView | SourceInput = offer(eu, it.target.sources[0], state="standby")
        offers = (left, asia, us)
    else:
        it.target = build.target("asia", "us", strategy="failover")
        offers = (asia, us)
    assert [names(it.run(*offers, after=15)) for _ in range(3)] == [{"eu": "ab"}, {"eu": "ab"}, {"us": "cd"}]
    assert it.plan(*offers).writes == 0


def test_failover_of_a_shared_address_before_anything_may_go() -> None:
    """During a switch a shared address is published by both sources with equal conditions."""
    it = failing()
    it.run(view("eu", "ab"), view("us", "bc"))
    down = build.view("eu", eps("a", "b", conditions=DRAINING)), view("us", "bc")
    it.run(*down)
    assert names(it.run(*down, after=30)) == {"eu": "ab", "us": "bc"}
    twice = [endpoint for slice_ in it.slices for endpoint in slice_.endpoints if endpoint.address == where("b")]
    assert [each.conditions for each in twice] == [PUBLISHED, PUBLISHED]


def test_standby_cluster_is_not_a_failover_candidate() -> None:
    """A standby cluster never becomes active."""
    it = failing()
    assert it.run(view("eu"), offer(view("us", "cd"), state="standby")) == {}


# --- what the API server refused -------------------------------------------------------------------------------------


def test_refused_addresses_are_not_published() -> None:
    """Addresses that the API server refuses are neither added nor changed; published ones stay."""
    it = Pipeline()
    it.run(view("eu", "a"))
    zoned = build.view("eu", eps("a", "b", "c", zone="z"))
    refused = frozenset({where("a"), where("b")})
    found = desired_endpoints(TargetInput(it.target, it.service, [offer(zoned)], it.slices, 0.0, refused), it.memory)
    assert isinstance(found, Desired)
    (group,) = found.groups
    assert group.endpoints == {**eps("a"), **eps("c", zone="z")}


# --- departures ------------------------------------------------------------------------------------------------------


def departures(published: SourceView, now: SourceView) -> tuple[set[str], frozenset[str]]:
    """Removed addresses, and the filtered ones among them."""
    it = Pipeline()
    it.run(published)
    it.plan(now)
    assert it.desired is not None
    (group,) = it.desired.groups
    return set(group.removed), group.filtered


def test_gone_and_filtered() -> None:
    """A removed endpoint whose node is still in the list is filtered."""
    assert departures(view("eu", "abc"), view("eu", "c", nodes=["a", "c"])) == (
        {where("a"), where("b")},
        frozenset({where("a")}),
    )


def test_endpoint_without_a_node_reference_is_filtered() -> None:
    """A removed endpoint without a reference to a Node is filtered."""
    anonymous = build.view("eu", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2")])
    assert departures(anonymous, build.view("eu"))[1] == {"10.0.0.1", "10.0.0.2"}


def test_snapshots_tell_by_address() -> None:
    """For a source without Nodes, a removed address that is still stated is filtered."""
    stated = frozenset({"10.0.0.1"})
    before = build.view("eu", [build.endpoint("10.0.0.1"), build.endpoint("10.0.0.2")], addresses_complete=stated)
    assert departures(before, build.view("eu", addresses_complete=stated))[1] == {"10.0.0.1"}


# --- least work ------------------------------------------------------------------------------------------------------


def test_same_values_give_the_same_object() -> None:
    """Deciding again about unchanged values creates no new endpoint sets."""
    it = Pipeline()
    offered = view("eu", "ab", kept_only=frozenset([where("b")]))
    found = []
    for _ in range(3):
        it.run(offered)
        assert it.desired is not None
        found.append(it.desired.groups[0].endpoints)
    assert found[0] is found[1] is found[2]


def test_an_echo_of_our_write_changes_nothing() -> None:
    """Our own write, decoded from the API server, is equal and its endpoints become identical objects."""
    it = Pipeline()
    offered = build.view("eu", build.endpoints(250))
    it.run(offered)
    it.slices = tuple(msgspec.json.decode(msgspec.json.encode(slice_), type=Slice) for slice_ in it.slices)
    assert it.plan(offered).writes == 0
    assert it.desired is not None
    (group,) = it.desired.groups
    assert all(
        endpoint is offered.endpoints["IPv4"][endpoint.address]
        for slice_ in group.slices
        for endpoint in slice_.endpoints
    )


def test_groups_share_the_sources_mapping() -> None:
    """A plain target uses the source's mapping without copying it."""
    it = two()
    eu, us = view("eu", "ab"), view("us", "cd")
    it.run(eu, us)
    it.run(eu, us)
    assert it.desired is not None
    assert [group.endpoints for group in it.desired.groups] == [eu.endpoints["IPv4"], us.endpoints["IPv4"]]
    assert it.desired.groups[0].endpoints is eu.endpoints["IPv4"]
    assert it.desired.groups[0].key == GroupKey("eu", "IPv4")


# --- properties ----------------------------------------------------------------------------------------------------

NODES = st.sets(st.sampled_from("abcdef")).map(lambda found: "".join(sorted(found)))
STEP = st.tuples(
    NODES,
    NODES,
    st.sampled_from([0.0, 2.0, 5.0, 40.0]),
    st.sampled_from(["", "", "", "eu", "us"]),
    st.sampled_from([False, False, False, True]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=8), st.sampled_from(["merge", "failover"]))
def test_an_address_that_stays_is_never_missing(steps: list[tuple[str, str, float, str, bool]], strategy: Any) -> None:
    """With merge, an address is published as long as any source claims it, once in the end, without idle writes."""
    it = two(strategy=strategy)
    eu, us = "", ""
    for nodes_eu, nodes_us, after, broken, restart in steps:
        if restart:
            it.restart()
        eu, us = nodes_eu, nodes_us
        offers = [
            build.view(cluster, unknown="x") if cluster == broken else view(cluster, nodes)
            for cluster, nodes in (("eu", eu), ("us", us))
        ]
        before = {name for found in names(it.published()).values() for name in found}
        published = names(it.run(*offers, after=after))
        everything = "".join(published.values())
        if strategy == "merge":
            known = (eu if broken != "eu" else "") + (us if broken != "us" else "")
            assert set(known) <= set(everything)
            assert before & set(known) <= set(everything)
    final = view("eu", eu), view("us", us)
    for _ in range(8):
        it.run(*final, after=400)
    everything = "".join(names(it.published()).values())
    assert len(everything) == len(set(everything))
    if strategy == "merge":
        assert set(everything) == set(eu + us)
    else:
        assert set(everything) == set(eu or us)
    assert it.plan(*final).writes == 0
    it.restart()
    assert it.plan(*final).writes == 0


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["eu", "us", "ap"]), NODES, min_size=3), st.randoms(use_true_random=False))
def test_order_of_endpoints_does_not_matter(nodes: dict[str, str], random: Any) -> None:
    """Views with endpoints in another order give the same writes."""

    def made(shuffle: bool) -> tuple[Slice, ...]:
        it = Pipeline(build.target("ap", "eu", "us", endpoints_per_slice=2))
        offers = []
        for cluster in ("ap", "eu", "us"):
            content = list(eps(*nodes[cluster]).items())
            if shuffle:
                random.shuffle(content)
            offers.append(build.view(cluster, dict(content)))
        it.run(*offers)
        return it.slices

    assert made(shuffle=True) == made(shuffle=False)
