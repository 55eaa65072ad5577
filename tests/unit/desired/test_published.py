"""What is published, and how it differs from what is wanted."""

from __future__ import annotations

import gc

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hub import groups
from hub.desired.published import Contents, Index, Published, prepare
from hub.groups import Content, Endpoints, GroupKey
from hub.model import DRAINING, FAILED, PUBLISHED, Endpoint
from tests.support import build

EU, US = GroupKey("eu", "IPv4"), GroupKey("us", "IPv4")

STATES = st.sampled_from([PUBLISHED, DRAINING])


def published(*contents: int) -> Published:
    """Slices with these endpoints, by number; a number that appears twice is a duplicate."""
    return Published(tuple(prepare(build.slice(f"s-{i}", build.endpoints(1, n))) for i, n in enumerate(contents)))


def test_slices_are_in_order_of_their_numbers() -> None:
    """As numbers, not as text; names that end in none, or in one that is no index of ours, come last, by name."""
    names = ["s-2", "s-10", "s-999999999", "s-9999999999", "s-x", "s-٣", "z"]
    observed = [build.slice(name) for name in reversed(names)]
    found = Index().groups(observed, {})[EU]
    assert [each.slice.name for each in found.slices] == names


def test_the_other_groups_are_the_same_objects() -> None:
    """A changed slice makes its group anew, and leaves the neighbour's alone."""
    index = Index()
    eu, us = build.slice("s-0", build.endpoints(1)), build.slice("s-1", build.endpoints(1, 5), cluster="us")
    before = index.groups([eu, us], {})
    after = index.groups([build.slice("s-0", build.endpoints(2)), us], {})
    assert after[US] is before[US]
    assert list(after[EU].endpoints) == [build.address(0), build.address(1)]


def test_the_same_slices_give_the_same_mapping() -> None:
    """Nothing is looked at twice, in whatever sequence they come."""
    index = Index()
    observed = [build.slice("s-0", build.endpoints(1))]
    assert index.groups(tuple(observed), {}) is index.groups(observed, {})


def test_another_name_for_a_cluster_regroups() -> None:
    """The same slices belong to another source once the registry says so."""
    index = Index()
    observed = [build.slice("s-0", build.endpoints(1))]
    index.groups(observed, {})
    assert list(index.groups(observed, {"eu": "us"})) == [US]


def test_the_first_of_duplicates_counts() -> None:
    """An address in two slices is the one of the lower-numbered; in one slice, the one that comes first."""
    one, other = build.endpoint("10.0.0.1", "a"), build.endpoint("10.0.0.1", "b")
    two_slices = (build.slice("s-0", [one]), build.slice("s-1", [other]))
    for slices in (two_slices, (build.slice("s-0", [one, other]),)):
        found = Published(tuple(map(prepare, slices)))
        assert (found.duplicates, found.endpoints) == (True, {"10.0.0.1": one})


def test_difference() -> None:
    """Removed as published, changed from and to, added in order."""
    was = build.endpoints(3)
    wanted = {**build.endpoints(2, 1), **build.endpoints(2, 7)}
    wanted[build.address(2)] = msgspec.structs.replace(wanted[build.address(2)], conditions=DRAINING)
    found = published(0, 1, 2).difference(dict(reversed(wanted.items())))
    assert found.removed == build.endpoints(1)
    assert found.changed == {build.address(2): (was[build.address(2)], wanted[build.address(2)])}
    assert found.added == (build.address(7), build.address(8))


def test_difference_with_duplicates() -> None:
    """As many published as wanted, and yet one is missing: it is added."""
    found = published(0, 0).difference(build.endpoints(2))
    assert (found.removed, found.added) == ({}, (build.address(1),))


def test_slices_without_their_endpoints_addresses() -> None:
    """Whatever somebody wrote there is read, and can be taken away again."""
    bare = prepare(build.slice("s", [Endpoint((), PUBLISHED), build.endpoint("10.0.0.1")]))
    assert bare.addresses == ("", "10.0.0.1")


def test_slices_on_their_way_out_do_not_count() -> None:
    """Those after them do."""
    observed = [build.slice("s-0", build.endpoints(1), deleting=True), build.slice("s-1", build.endpoints(1, 1))]
    assert list(Index().groups(observed, {})[EU].endpoints) == [build.address(1)]


ENDPOINTS = st.lists(
    st.builds(lambda n, conditions: build.endpoint(build.address(n), conditions=conditions), st.integers(0, 3), STATES),
    max_size=4,
)
OBSERVED = st.dictionaries(st.sampled_from(["s-0", "s-1", "s-2"]), st.tuples(ENDPOINTS, st.sampled_from(["eu", "us"])))


@given(st.lists(OBSERVED, min_size=1, max_size=5))
def test_history_does_not_matter(steps: list[dict[str, tuple[list[Endpoint], str]]]) -> None:
    """After any sequence of observations an index says what a fresh one does: its memory only saves work."""
    index = Index()
    for step in steps:
        observed = [build.slice(name, content, cluster=cluster) for name, (content, cluster) in step.items()]
        found, fresh = index.groups(observed, {}), Index().groups(build.decoded_anew(observed), {})
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


class Untouched(Endpoints):
    """Endpoints nobody may look at."""

    def get(self, address: str, default: object = None) -> Endpoint:  # type: ignore[override]
        raise AssertionError(f"{address} was looked at")


def test_only_slices_with_a_changed_address_are_looked_at() -> None:
    """The others hold what they held; so they do for the next change after that."""
    wanted = Endpoints(build.endpoints(4))
    first, second = published(1).slices[0], prepare(build.slice("s-1", build.endpoints(2, 1)))
    assert (first.content.holds(wanted), second.content.holds(wanted)) == (True, True)
    other = Untouched({**wanted, build.address(3): build.endpoint("10.9.9.9")}, wanted, frozenset([build.address(3)]))
    assert (first.content.holds(other), second.content.holds(other)) == (True, True)
    last = Untouched(other, other, frozenset([build.address(0)]))
    assert second.content.holds(last)
    assert first.content.holds(Endpoints(other, other, frozenset([build.address(0)])))


def test_what_changed_is_known_of_the_last_step_only() -> None:
    """Two steps back nobody knows; nor where what came before is gone."""
    one = Endpoints(build.endpoints(1))
    two = Endpoints(build.endpoints(2), one, frozenset([build.address(1)]))
    three = Endpoints(build.endpoints(3), two, frozenset([build.address(2)]))
    assert (two.since(one), three.since(two)) == ({build.address(1)}, {build.address(2)})
    assert (three.since(one), one.since(None), two.since({})) == (None, None, None)
    before = dict(one)
    del one
    assert two.since(before) is None


EDITS = st.dictionaries(st.integers(0, 5), st.none() | STATES, max_size=3)


@given(st.lists(st.tuples(EDITS, st.none() | OBSERVED, st.booleans()), min_size=1, max_size=8))
def test_steps_lead_where_a_fresh_comparison_does(
    steps: list[tuple[dict[int, object], dict[str, tuple[list[Endpoint], str]] | None, bool]],
) -> None:
    """Whatever changes in between, asked after every step or not: the difference is that of plain mappings."""
    index, wanted = Index(), Endpoints()
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
        wanted = Endpoints(new, wanted, changed)
        if seen is not None:
            observed = [build.slice(name, content) for name, (content, _) in seen.items()]
        found = index.groups(observed, {}).get(EU)
        if asked and found is not None:
            fresh = Index().groups(build.decoded_anew(observed), {})[EU]
            assert found.difference(wanted) == fresh.difference(dict(wanted))


# --- Services that publish the same view --------------------------------------------------------------------


def test_what_one_service_found_out_the_others_take_over() -> None:
    """Slices of two Services that hold the same share a content, and its difference is made once."""
    indices = Index(), Index()
    observed = [[build.slice(f"s-{i}", build.endpoints(2, 2 * i), service=name) for i in range(2)] for name in "ab"]
    wanted = Endpoints(build.endpoints(4))
    for index, mine in zip(indices, observed, strict=True):
        assert index.groups(mine, {})[EU].difference(wanted).added == ()
    changed = Endpoints(build.endpoints(3), wanted, frozenset([build.address(3)]))
    differences = []
    for index, mine in zip(indices, observed, strict=True):
        again = [msgspec.structs.replace(mine[0], resource_version="2"), mine[1]]  # a label of the first one changed
        differences.append(index.groups(again, {})[EU].difference(changed))
    assert list(differences[0].removed) == [build.address(3)]
    assert differences[0] is differences[1]


def test_contents_that_are_the_same_do_not_wait_for_each_other() -> None:
    """Whichever was found first counts, and none leads back to another one that leads to it."""
    one, other = Content(tuple(build.endpoints(2).values())), Content(tuple(build.endpoints(2).values()))
    first, second = Endpoints(build.endpoints(2)), Endpoints(build.endpoints(2))
    assert one.holds(first)
    assert other.holds(second)
    assert other.holds(first)
    assert (one.same, other.same) == (None, one)
    assert one.holds(second)
    assert (one.same, other.same) == (other, None)


def test_contents_that_nobody_publishes_are_forgotten() -> None:
    """With the slices goes all that was found out about them."""
    gc.collect()
    before = len(groups._contents)
    index, wanted = Index(), Endpoints(build.endpoints(2))
    for number in range(10):
        index.groups([build.slice("s-0", build.endpoints(2), resource_version=str(number))], {})[EU].difference(wanted)
        assert len(groups._contents) <= before + 2
    del index
    assert len(groups._contents) == before


def test_what_is_left_of_a_content_is_made_once() -> None:
    """For everybody who wants the very same endpoints; equal ones are as good as the content's own."""
    content = Content(tuple(build.endpoints(3).values()))
    wanted = Endpoints(build.endpoints(2))
    assert content.kept(wanted) == tuple(build.endpoints(2).values())
    assert content.kept(wanted) is content.kept(wanted)
    assert content.kept(Endpoints(build.endpoints(5))) is content.endpoints
    rest, new = content.kept(wanted), build.endpoint("10.9.9.9")
    assert content.grown(rest, (new,)) == (*rest, new)
    assert content.grown(rest, (new,)) is content.grown(rest, (new,))
    assert content.grown(rest, (new, content.endpoints[2])) == (*rest, new, content.endpoints[2])


def test_of_duplicates_the_first_is_compared() -> None:
    """It is what consumers have: an address that is to go, or to change, is what its first endpoint is."""
    ready, draining = build.endpoint("10.0.0.1"), build.endpoint("10.0.0.1", conditions=DRAINING)
    contents = Contents((Content((ready,)), Content((draining,))))
    assert contents.difference({}).removed == {"10.0.0.1": ready}
    failed = build.endpoint("10.0.0.1", conditions=FAILED)
    assert contents.difference({"10.0.0.1": failed}).changed == {"10.0.0.1": (ready, failed)}
