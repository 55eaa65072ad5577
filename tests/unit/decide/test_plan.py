"""From wanted endpoints to writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.decide.endpoints import EndpointGroup, GroupKey, Published, published_groups
from hub.decide.plan import Identity, Plan, apply_plan, endpoint_changes, plan, state_of
from hub.model import DRAINING, Endpoint, OwnerReference, Port, Service, Slice
from tests.support import build

IDENTITY = Identity("default", "hub/one")
KEY = GroupKey("eu", "IPv4")


def groups(
    wanted: Mapping[str, Endpoint],
    observed: tuple[Slice, ...] = (),
    *,
    drop: bool = False,
    ports: tuple[Port, ...] = (build.PORT,),
) -> list[EndpointGroup]:
    """The one group of cluster eu."""
    published = published_groups(observed, {}, {}).get(KEY, Published())
    found = published.difference(wanted)
    slices = published.slices
    return [
        EndpointGroup(
            KEY,
            wanted,
            ports,
            slices,
            duplicates=False,
            removed=found.removed,
            changed=found.changed,
            added=found.added,
            drop=drop,
        )
    ]


def planned(
    wanted: Mapping[str, Endpoint], observed: tuple[Slice, ...] = (), service: Service | None = None, **more: Any
) -> Plan:
    """A plan for the one group of cluster eu."""
    made = groups(wanted, observed, **{key: more.pop(key) for key in ("drop", "ports") if key in more})
    return plan(service or build.service(), made, more.pop("identity", IDENTITY), **more)


def published(count: int = 3, **more: Any) -> tuple[Slice, ...]:
    """The slices with ``count`` endpoints that a hub published before, as observed."""
    return apply_plan((), planned(build.endpoints(count), **more))


def test_a_new_slice_has_everything() -> None:
    """A new slice has labels, annotation, owner, ports and endpoints, but no uid or resourceVersion."""
    service = build.service(labels={"team": "pay"})
    (made,) = planned(build.endpoints(1), service=service).creates
    assert msgspec.structs.replace(made, name="") == Slice(
        namespace="edge",
        name="",
        address_type="IPv4",
        endpoints=(build.endpoint("10.0.0.0", "n0"),),
        ports=(build.PORT,),
        labels={
            "team": "pay",
            "kubernetes.io/service-name": "payments",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-hub",
            "multicluster.kubernetes.io/source-cluster": "eu",
            "endpointslice-hub/owner": "default",
        },
        annotations={"endpointslice-hub/lease": "hub/one"},
        owners=(OwnerReference("v1", "Service", "payments", build.UID),),
    )


def test_reserved_labels_are_not_copied() -> None:
    """A Service's labels are copied, except those that are the hub's or reserved by Kubernetes."""
    reserved = {
        "kubernetes.io/service-name": "evil",
        "multicluster.kubernetes.io/source-cluster": "evil",
        "multicluster.kubernetes.io/service-name": "evil",
        "endpointslice-hub/owner": "evil",
        "endpoint-copier/source": "evil",
        "endpointslice.kubernetes.io/managed-by": "evil",
        "service.kubernetes.io/headless": "evil",
    }
    own = {"app.kubernetes.io/name": "x", "team": "y", "service.kubernetes.io/service-proxy-name": "z"}
    (made,) = planned(build.endpoints(1), service=build.service(labels={**reserved, **own})).creates
    (plain,) = planned(build.endpoints(1)).creates
    assert made.labels == {**own, **plain.labels}


def test_headless_services_are_labelled() -> None:
    """Slices of a headless Service have Kubernetes' headless label with an empty value."""
    (made,) = planned(build.endpoints(1), service=build.service(headless=True)).creates
    assert made.labels["service.kubernetes.io/headless"] == ""


def test_equal_means_no_write() -> None:
    """A slice that is published as wanted is not written, even after decoding."""
    observed = tuple(msgspec.json.decode(msgspec.json.encode(slice_), type=Slice) for slice_ in published(250))
    found = planned(build.endpoints(250), observed)
    assert (found.writes, found.unchanged) == (0, 3)


def test_one_change_of_a_thousand_is_one_update() -> None:
    """One changed endpoint causes one update with the observed resourceVersion."""
    observed = published(1000)
    observed = tuple(msgspec.structs.replace(slice_, uid="u", resource_version="7") for slice_ in observed)
    wanted = build.endpoints(1000)
    wanted["10.0.1.1"] = msgspec.structs.replace(wanted["10.0.1.1"], conditions=DRAINING)
    found = planned(wanted, observed)
    assert (found.writes, len(found.updates), found.unchanged) == (1, 1, 9)
    assert (found.updates[0].uid, found.updates[0].resource_version) == ("u", "7")


@pytest.mark.parametrize(
    "damage",
    [
        {"ports": ()},
        {"labels": {"kubernetes.io/service-name": "payments", "multicluster.kubernetes.io/source-cluster": "eu"}},
        {"annotations": {}},
        {"owners": ()},
        {"owners": (OwnerReference("v1", "Service", "payments", "an-older-uid"),)},
        {"endpoints": ()},
    ],
)
def test_drift_is_repaired_in_place(damage: dict[str, Any]) -> None:
    """A slice that another writer changed is corrected by one update of that slice."""
    whole = published(150)
    observed = (msgspec.structs.replace(whole[0], **damage), whole[1])
    repaired = planned(build.endpoints(150), observed)
    assert [slice_.name for slice_ in repaired.updates] == [whole[0].name]
    assert apply_plan(observed, repaired) == whole


def test_extra_labels_are_removed() -> None:
    """Labels that others add are removed, because labels decide who reads a slice."""
    (whole,) = published()
    observed = msgspec.structs.replace(whole, labels={**whole.labels, "extra": "1"})
    assert planned(build.endpoints(3), (observed,)).updates == (whole,)


def test_foreign_annotations_are_kept() -> None:
    """An annotation of another tool causes no write and is kept by writes."""
    (whole,) = published()
    observed = msgspec.structs.replace(whole, annotations={**whole.annotations, "tool/mark": "1"})
    assert planned(build.endpoints(3), (observed,)).writes == 0
    (updated,) = planned(build.endpoints(2), (observed,)).updates
    assert updated.annotations == observed.annotations


def test_annotations_of_a_later_version_are_kept() -> None:
    """Annotations of a later version are kept, so a downgrade causes no writes and loses nothing."""
    (whole,) = published()
    observed = msgspec.structs.replace(whole, annotations={**whole.annotations, "endpointslice-hub/x": "1"})
    assert planned(build.endpoints(3), (observed,)).writes == 0
    (updated,) = planned(build.endpoints(2), (observed,)).updates
    assert updated.annotations == observed.annotations


def test_an_outdated_annotation_of_ours_is_set_right() -> None:
    """An annotation that this version writes is updated if its value is outdated."""
    (whole,) = published()
    observed = msgspec.structs.replace(whole, annotations={**whole.annotations, "endpointslice-hub/state": "{}"})
    assert planned(build.endpoints(3), (observed,)).updates == (whole,)


def test_new_ports_keep_the_slices() -> None:
    """Changed ports are written to the same slices."""
    observed = published(150)
    found = planned(build.endpoints(150), observed, ports=(Port("https", 30444),))
    assert [slice_.name for slice_ in found.updates] == [slice_.name for slice_ in observed]
    assert (found.creates, found.deletes) == ((), ())


def test_new_owner_keeps_the_slices() -> None:
    """Slices of a previous owner are adopted by an update."""
    observed = published(150)
    found = planned(build.endpoints(150), observed, identity=Identity("other", "hub/two"))
    assert [slice_.name for slice_ in found.updates] == [slice_.name for slice_ in observed]


def test_state_stands_on_the_lowest_slice() -> None:
    """The guard's record is on the lowest-numbered slice of the group and is read from there."""
    observed = published(250, states={KEY: "{}"})
    assert [slice_.annotations.get("endpointslice-hub/state") for slice_ in observed] == ["{}", None, None]
    (it,) = groups({}, observed)
    assert state_of(it) == "{}"


def test_a_changed_state_is_one_write() -> None:
    """A changed record causes one write, of the slice that carries it."""
    observed = published(250, states={KEY: "a"})
    found = planned(build.endpoints(250), observed, states={KEY: "b"})
    assert [slice_.name for slice_ in found.updates] == [observed[0].name]
    assert planned(build.endpoints(250), observed, states={KEY: "a"}).writes == 0


def test_empty_record_removes_the_annotation() -> None:
    """An empty record removes the annotation."""
    observed = published(2, states={KEY: "a"})
    assert planned(build.endpoints(2), observed).updates == published(2)


def test_state_of_nothing() -> None:
    """A group without slices or without a record has an empty state."""
    assert [state_of(groups({})[0]), state_of(groups({}, published())[0])] == ["", ""]


def test_record_moves_when_its_slice_is_deleted() -> None:
    """If the slice with the record is deleted, the new lowest slice gets the record in the same plan."""
    observed = published(150, states={KEY: "a"})
    keep = {endpoint.address: endpoint for endpoint in observed[1].endpoints}
    after = apply_plan(observed, planned(keep, observed, states={KEY: "a"}))
    assert [each.annotations.get("endpointslice-hub/state") for each in after] == ["a"]


def test_taken_names_are_skipped() -> None:
    """The name of a foreign slice is not used."""
    names = [slice_.name for slice_ in published(150)]
    found = planned(build.endpoints(150), taken=[names[0]])
    assert [slice_.name for slice_ in found.creates] == [names[1], names[0][:-1] + "2"]


def test_slice_name_has_service_hash_and_number() -> None:
    """A name is the Service's name, a hash of owner, cluster, family and ports, and a number."""
    (eu,) = groups(build.endpoints(1))
    several = [
        plan(build.service(), [eu], IDENTITY),
        plan(build.service(), [eu], Identity("other", "hub/one")),
        plan(build.service(), [msgspec.structs.replace(eu, key=GroupKey("us", "IPv4"))], IDENTITY),
        plan(build.service(), [msgspec.structs.replace(eu, key=GroupKey("eu", "IPv6"))], IDENTITY),
        plan(build.service(), [msgspec.structs.replace(eu, ports=(Port("https", 30444),))], IDENTITY),
        plan(build.service("shop"), [eu], IDENTITY),
    ]
    names = [slice_.name for found in several for slice_ in found.creates]
    assert len(set(names)) == len(several)
    assert [re.fullmatch(r"(payments|shop)-[0-9a-f]{8}-0", each) is not None for each in names] == [True] * len(names)
    assert planned(build.endpoints(1), identity=Identity("default", "hub/two")).creates[0].name == names[0]


def test_new_endpoints_go_where_a_write_is_due_anyway() -> None:
    """A slice with a wrong label takes new endpoints, even if another one would be filled better."""
    one, other = published(150, limit=75)
    wrong = msgspec.structs.replace(one, endpoints=one.endpoints[:50], labels={**one.labels, "extra": "1"})
    wanted = {each.address: each for each in (*wrong.endpoints, *other.endpoints)} | build.endpoints(1, 500)
    found = planned(wanted, (wrong, other))
    assert ([slice_.name for slice_ in found.updates], found.writes) == ([one.name], 1)


def test_default_limit_is_100_endpoints() -> None:
    """The default limit is 100 endpoints per slice, as in Kubernetes."""
    assert [len(slice_.endpoints) for slice_ in planned(build.endpoints(101)).creates] == [100, 1]


def test_dropped_groups_are_deleted() -> None:
    """The slices of a former source are deleted as observed."""
    observed = published(150)
    assert planned({}, observed, drop=True).deletes == observed


def test_emptied_groups_keep_a_slice() -> None:
    """A source without endpoints keeps one empty slice."""
    observed = published(150)
    found = planned({}, observed)
    assert ([slice_.endpoints for slice_ in found.updates], found.deletes) == ([()], observed[1:])


def test_limit_is_honoured() -> None:
    """No slice gets more endpoints than the limit."""
    assert [len(slice_.endpoints) for slice_ in planned(build.endpoints(25), limit=10).creates] == [10, 10, 5]


def test_several_groups_in_order() -> None:
    """Writes are in the order of the groups."""
    (eu,) = groups(build.endpoints(1))
    both = [msgspec.structs.replace(eu, key=GroupKey(cluster, "IPv4")) for cluster in "ba"]
    found = plan(build.service(), both, IDENTITY)
    assert [slice_.cluster for slice_ in found.creates] == ["b", "a"]


def test_endpoint_changes() -> None:
    """Added, changed and removed endpoints are listed in order with before and after; unchanged ones are not."""
    observed = published(4)
    wanted = build.endpoints(5)
    del wanted["10.0.0.0"]
    wanted["10.0.0.2"] = msgspec.structs.replace(wanted["10.0.0.2"], conditions=DRAINING)
    found = endpoint_changes(observed, planned(wanted, observed))
    assert [(each.kind, each.cluster, each.address) for each in found] == [
        ("removed", "eu", "10.0.0.0"),
        ("changed", "eu", "10.0.0.2"),
        ("added", "eu", "10.0.0.4"),
    ]
    old = build.endpoints(4)
    assert [each.before for each in found] == [old["10.0.0.0"], old["10.0.0.2"], None]
    assert [each.after for each in found] == [None, wanted["10.0.0.2"], wanted["10.0.0.4"]]


NUMBERS = st.sets(st.integers(0, 60))


@settings(max_examples=200, deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS, st.integers(1, 20))
def test_a_plan_is_idempotent(before: set[int], after: set[int], drained: set[int], limit: int) -> None:
    """After a plan is carried out, the next plan has no writes and exactly the wanted endpoints are published."""
    wanted = {
        address: msgspec.structs.replace(endpoint, conditions=DRAINING) if i in drained else endpoint
        for i in sorted(after)
        for address, endpoint in build.endpoints(1, i).items()
    }
    observed = apply_plan((), planned({a: e for i in before for a, e in build.endpoints(1, i).items()}, limit=limit))
    result = apply_plan(observed, planned(wanted, observed, limit=limit))
    assert planned(wanted, result, limit=limit).writes == 0
    assert {endpoint.address: endpoint for slice_ in result for endpoint in slice_.endpoints} == wanted
    assert sum(len(slice_.endpoints) for slice_ in result) == len(wanted)


@settings(max_examples=100, deadline=None)
@given(NUMBERS, NUMBERS, st.randoms(use_true_random=False))
def test_order_of_observed_slices_does_not_matter(before: set[int], after: set[int], random: Any) -> None:
    """Observed slices in another order give the same plan."""
    old = {a: e for i in before for a, e in build.endpoints(1, i).items()}
    new = {a: e for i in after for a, e in build.endpoints(1, i).items()}
    observed = list(apply_plan((), planned(old, limit=7)))
    first = planned(new, tuple(observed), limit=7)
    random.shuffle(observed)
    assert planned(new, tuple(observed), limit=7) == first


UIDS = {"eu": "uid-1"}


def uids(slices: tuple[Slice, ...]) -> list[str | None]:
    """The cluster UID on each slice."""
    return [slice_.annotations.get("endpointslice-hub/cluster-uid") for slice_ in slices]


def test_new_slices_carry_the_clusters_uid() -> None:
    """Every new slice has the cluster's UID, so any slice that remains shows it."""
    assert uids(published(250, uids=UIDS)) == ["uid-1"] * 3


def test_missing_uid_causes_no_write() -> None:
    """A missing UID on a slice, or a UID that is not known any more, causes no write."""
    assert planned(build.endpoints(250), published(250), uids=UIDS).writes == 0
    assert planned(build.endpoints(250), published(250, uids=UIDS)).writes == 0


def test_an_uid_rides_on_the_next_write_and_stays() -> None:
    """The next write of a slice adds the UID; a write while the UID is unknown keeps it."""
    observed = apply_plan(published(250), planned(build.endpoints(249), published(250), uids=UIDS))
    assert sorted(uids(observed), key=str) == [None, None, "uid-1"]
    kept = apply_plan(published(1, uids=UIDS), planned(build.endpoints(2), published(1, uids=UIDS)))
    assert uids(kept) == ["uid-1"]


def test_approved_uid_replaces_the_old_one() -> None:
    """It was approved; with the old one on a slice a restarted hub would doubt it again."""
    found = planned(build.endpoints(150), published(150, uids=UIDS), uids={"eu": "uid-2"})
    assert (len(found.updates), found.writes) == (2, 2)
    assert uids(found.updates) == ["uid-2"] * 2
