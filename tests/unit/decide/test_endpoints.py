"""Sets of endpoints: equal sets give equal results, whatever is cached."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide import endpoints
from hub.decide.endpoints import EndpointSet, GroupKey, Published, SliceContent, prepare, published_groups
from hub.model import DRAINING, FAILED, PUBLISHED, Endpoint, Slice
from tests.support import build

EU, US = GroupKey("eu", "IPv4"), GroupKey("us", "IPv4")

STATES = st.sampled_from([PUBLISHED, DRAINING])


class Index:
    """The groups of one target over a sequence of observations."""

    def __init__(self) -> None:
        self._last: Mapping[GroupKey, Published] = {}

    def groups(self, observed: Sequence[Slice], renames: Mapping[str, str]) -> Mapping[GroupKey, Published]:
        """The current groups."""
        self._last = published_groups(observed, renames, self._last)
        return self._last


def published(*contents: int) -> Published:
    """Slices with these endpoints, by number; a number that appears twice is a duplicate."""
    return Published(tuple(prepare(build.slice(f"s-{i}", build.endpoints(1, n))) for i, n in enumerate(contents)))


def test_slices_are_in_order_of_their_numbers() -> None:
    """Slices are sorted by number, not as text; names without a valid number come last, by name."""
    names = ["s-2", "s-10", "s-999999999", "s-9999999999", "s-x", "s-٣", "z"]
    observed = [build.slice(name) for name in reversed(names)]
    found = Index().groups(observed, {})[EU]
    assert [slice_.slice.name for slice_ in found.slices] == names


def test_the_other_groups_are_the_same_objects() -> None:
    """A changed slice gives its group a new object and leaves the other groups' objects alone."""
    index = Index()
    eu, us = build.slice("s-0", build.endpoints(1)), build.slice("s-1", build.endpoints(1, 5), cluster="us")
    before = index.groups([eu, us], {})
    after = index.groups([build.slice("s-0", build.endpoints(2)), us], {})
    assert after[US] is before[US]
    assert list(after[EU].endpoints) == [build.address(0), build.address(1)]


def test_the_same_slices_give_the_same_group() -> None:
    """Unchanged slices give the same group object, in whatever order they come."""
    index = Index()
    observed = [build.slice("s-0", build.endpoints(1))]
    assert index.groups(tuple(observed), {})[EU] is index.groups(observed, {})[EU]


def test_renamed_cluster_moves_its_slices() -> None:
    """A rename of a cluster in the registry moves its slices to the new name's group."""
    index = Index()
    observed = [build.slice("s-0", build.endpoints(1))]
    index.groups(observed, {})
    assert list(index.groups(observed, {"eu": "us"})) == [US]


def test_the_first_of_duplicates_counts() -> None:
    """Of an address in two slices, the one in the lower-numbered slice counts; within a slice, the first."""
    one, other = build.endpoint("10.0.0.1", "a"), build.endpoint("10.0.0.1", "b")
    two_slices = (build.slice("s-0", [one]), build.slice("s-1", [other]))
    for slices in (two_slices, (build.slice("s-0", [one, other]),)):
        found = Published(tuple(map(prepare, slices)))
        assert (found.duplicates, found.endpoints) == (True, {"10.0.0.1": one})


def test_different_addresses_are_no_duplicates() -> None:
    """A group has duplicates only if an address appears twice."""
    assert [published(1, 2).duplicates, published(1, 2, 1).duplicates] == [False, True]


def test_difference() -> None:
    """The difference has removed endpoints as published, changed ones as pairs, and added addresses sorted."""
    was = build.endpoints(3)
    wanted = {**build.endpoints(2, 1), **build.endpoints(2, 7)}
    wanted[build.address(2)] = msgspec.structs.replace(wanted[build.address(2)], conditions=DRAINING)
    found = published(0, 1, 2).difference(dict(reversed(wanted.items())))
    assert found.removed == build.endpoints(1)
    assert found.changed == {build.address(2): (was[build.address(2)], wanted[build.address(2)])}
    assert found.added == (build.address(7), build.address(8))


def test_difference_with_duplicates() -> None:
    """A missing address is added even if duplicates make the published count equal the wanted one."""
    found = published(0, 0).difference(build.endpoints(2))
    assert (found.removed, found.added) == ({}, (build.address(1),))


def test_slices_without_their_endpoints_addresses() -> None:
    """An endpoint without addresses is read as one with the address ""."""
    bare = prepare(build.slice("s", [Endpoint((), PUBLISHED), build.endpoint("10.0.0.1")]))
    assert bare.addresses == ("", "10.0.0.1")


def test_slices_on_their_way_out_do_not_count() -> None:
    """Slices that are being deleted are ignored; slices after them count."""
    observed = [build.slice("s-0", build.endpoints(1), deleting=True), build.slice("s-1", build.endpoints(1, 1))]
    assert list(Index().groups(observed, {})[EU].endpoints) == [build.address(1)]


ENDPOINTS = st.lists(
    st.builds(lambda n, conditions: build.endpoint(build.address(n), conditions=conditions), st.integers(0, 3), STATES),
    max_size=4,
)
OBSERVED = st.dictionaries(st.sampled_from(["s-0", "s-1", "s-2"]), st.tuples(ENDPOINTS, st.sampled_from(["eu", "us"])))


@given(st.lists(OBSERVED, min_size=1, max_size=5))
def test_history_does_not_matter(steps: list[dict[str, tuple[list[Endpoint], str]]]) -> None:
    """After any sequence of observations, an index gives the same result as a fresh one."""
    index = Index()
    for step in steps:
        observed = [build.slice(name, content, cluster=cluster) for name, (content, cluster) in step.items()]
        found, fresh = index.groups(observed, {}), Index().groups(build.fresh_copies(observed), {})
        assert list(found) == list(fresh)
        for key, group in found.items():
            other = fresh[key]
            assert group.duplicates is other.duplicates
            for mine, anew in zip(group.slices, other.slices, strict=True):
                assert (mine.slice, mine.addresses, mine.endpoints) == (anew.slice, anew.addresses, anew.endpoints)
            assert list(group.endpoints.items()) == list(other.endpoints.items())
            assert group.difference({}) == other.difference({})
            assert bool(group) is bool(other)


# --- mappings that know what they were made from ------------------------------------------------------


class Untouched(EndpointSet):
    """Endpoints that fail the test if they are read."""

    def get(self, address: str, default: object = None) -> Endpoint:  # type: ignore[override]
        raise AssertionError(f"{address} was looked at")


def test_only_slices_with_a_changed_address_are_looked_at() -> None:
    """Only slices with a changed address are compared, also for the change after that."""
    wanted = EndpointSet(build.endpoints(4))
    first, second = published(1).slices[0], prepare(build.slice("s-1", build.endpoints(2, 1)))
    assert (first.content.holds(wanted), second.content.holds(wanted)) == (True, True)
    other = Untouched({**wanted, build.address(3): build.endpoint("10.9.9.9")}, wanted, frozenset([build.address(3)]))
    assert (first.content.holds(other), second.content.holds(other)) == (True, True)
    last = Untouched(other, other, frozenset([build.address(0)]))
    assert second.content.holds(last)
    assert first.content.holds(EndpointSet(other, other, frozenset([build.address(0)])))


def test_a_set_does_not_change() -> None:
    """No method of a dict changes an EndpointSet."""
    made = EndpointSet(build.endpoints(1))
    for change in (made.clear, made.popitem, lambda: made.update({}), lambda: made.pop(build.address(0))):
        with pytest.raises(TypeError, match="does not change"):
            change()
    with pytest.raises(TypeError):
        made[build.address(1)] = build.endpoint()
    assert made == build.endpoints(1)
    assert hash(made) == hash(EndpointSet(build.endpoints(1)))


def test_changed_since_lists_all_differing_addresses() -> None:
    """changed_since contains all addresses that differ from another set, whether or not it is the parent."""
    one = EndpointSet(build.endpoints(2))
    new = build.endpoint(build.address(1), "other")
    two = one.overlay({build.address(0): None, build.address(1): new, build.address(7): build.endpoint("x")})
    expected = {build.address(0), build.address(1), build.address(7)}
    assert two.changed_since(one) == two.changed_since(dict(one)) == expected
    assert EndpointSet(two).changed_since(one) == expected
    assert two.changed_since(two) == frozenset()


def test_an_overlay_is_made_once() -> None:
    """The same changes give the same object, and an overlay without changes is the set itself."""
    one = EndpointSet(build.endpoints(3))
    changes = {build.address(0): None, build.address(9): build.endpoint("y")}
    assert one.overlay(changes) is one.overlay(dict(changes))
    assert one.overlay({build.address(5): None, build.address(1): one[build.address(1)]}) is one
    assert one.without([build.address(0)]) == build.endpoints(2, 1)


def test_set_without_its_parent_is_compared_in_full() -> None:
    """A set does not keep its parent alive; without the parent it is compared in full."""
    one = EndpointSet(build.endpoints(2))
    two = EndpointSet({**one, **build.endpoints(1, 2)}, one, frozenset([build.address(2)]))
    copy = dict(one)
    del one
    assert two.changed_since(copy) == {build.address(2)}


EDITS = st.dictionaries(st.integers(0, 5), st.none() | STATES, max_size=3)


@given(st.lists(st.tuples(EDITS, st.none() | OBSERVED, st.booleans()), min_size=1, max_size=8))
def test_steps_lead_where_a_fresh_comparison_does(
    steps: list[tuple[dict[int, object], dict[str, tuple[list[Endpoint], str]] | None, bool]],
) -> None:
    """After any sequence of changes, the difference equals that of plain mappings."""
    index, wanted = Index(), EndpointSet()
    observed = [build.slice("s-0", [])]
    for edits, seen, asked in steps:
        new = dict(wanted)
        for number, conditions in edits.items():
            address = build.address(number)
            if conditions is None:
                new.pop(address, None)
            else:
                new[address] = build.endpoint(address, conditions=conditions)
        changed = frozenset(each for each in new.keys() | wanted.keys() if new.get(each) is not wanted.get(each))
        wanted = EndpointSet(new, wanted, changed)
        if seen is not None:
            observed = [build.slice(name, content) for name, (content, _) in seen.items()]
        found = index.groups(observed, {}).get(EU)
        if asked and found is not None:
            fresh = Index().groups(build.fresh_copies(observed), {})[EU]
            assert found.difference(wanted) == fresh.difference(dict(wanted))


# --- Services that publish the same view --------------------------------------------------------------------


def test_equal_slices_share_one_content() -> None:
    """Equal slices of two Services share one content, so the difference is computed once."""
    indices = Index(), Index()
    observed = [[build.slice(f"s-{i}", build.endpoints(2, 2 * i), service=name) for i in range(2)] for name in "ab"]
    wanted = EndpointSet(build.endpoints(4))
    for index, mine in zip(indices, observed, strict=True):
        assert index.groups(mine, {})[EU].difference(wanted).added == ()
    changed = EndpointSet(build.endpoints(3), wanted, frozenset([build.address(3)]))
    differences = []
    for index, mine in zip(indices, observed, strict=True):
        again = [msgspec.structs.replace(mine[0], resource_version="2"), mine[1]]  # a label of the first one changed
        differences.append(index.groups(again, {})[EU].difference(changed))
    assert list(differences[0].removed) == [build.address(3)]
    assert differences[0] is differences[1]


def test_equal_slices_share_a_content_and_others_do_not() -> None:
    """Slices with equal endpoints share a content even if they were decoded separately."""
    one, equal = (SliceContent.of(tuple(build.endpoints(2).values())) for _ in range(2))
    drained = [build.endpoint(text, conditions=DRAINING) for text in build.endpoints(2)]
    assert one is equal
    assert SliceContent.of(tuple(drained)) is not one
    assert SliceContent.of(tuple(drained), one).draining == 2


def test_unused_contents_are_freed() -> None:
    """Contents and their cached results are freed with the last slice that uses them."""
    gc.collect()
    before = len(endpoints._contents)
    index, wanted = Index(), EndpointSet(build.endpoints(2))
    for number in range(10):
        index.groups([build.slice("s-0", build.endpoints(2), resource_version=str(number))], {})[EU].difference(wanted)
        assert len(endpoints._contents) <= before + 2
    del index
    assert len(endpoints._contents) == before


def test_equal_endpoints_get_the_same_tuple() -> None:
    """All Services that want equal endpoints get the same tuple."""
    content = SliceContent(tuple(build.endpoints(3).values()))
    kept = content.kept(build.endpoints(2))
    assert kept == tuple(build.endpoints(2).values())
    assert content.kept(EndpointSet(build.endpoints(2))) is kept
    assert content.kept(EndpointSet(build.endpoints(5))) is content.endpoints
    new = build.endpoint("10.9.9.9")
    assert content.intern((*kept, new)) is content.intern((*kept, new))


def test_first_of_duplicates_is_compared() -> None:
    """Of duplicates, removals and changes refer to the first endpoint."""
    ready, draining = build.endpoint("10.0.0.1"), build.endpoint("10.0.0.1", conditions=DRAINING)
    found = Published((prepare(build.slice("s-0", [ready])), prepare(build.slice("s-1", [draining]))))
    assert found.difference({}).removed == {"10.0.0.1": ready}
    failed = build.endpoint("10.0.0.1", conditions=FAILED)
    assert found.difference({"10.0.0.1": failed}).changed == {"10.0.0.1": (ready, failed)}
