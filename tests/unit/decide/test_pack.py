"""The distribution of endpoints over slices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.decide.endpoints import EndpointGroup, GroupKey, Published, PublishedSlice, prepare
from hub.decide.pack import Packed, names, pack
from hub.model import DRAINING, Endpoint
from tests.support import build

KEY = GroupKey("eu", "IPv4")


def group(wanted: Mapping[str, Endpoint], *slices: Iterable[str], **more: Any) -> EndpointGroup:
    """A group with slices s-0, s-1, …, which hold these addresses as ready endpoints."""
    contents = ([build.endpoint(address) for address in addresses] for addresses in slices)
    return grouped(wanted, *(prepare(build.slice(f"s-{i}", content)) for i, content in enumerate(contents)), **more)


def grouped(wanted: Mapping[str, Endpoint], *slices: PublishedSlice, **more: Any) -> EndpointGroup:
    """A group of these slices."""
    published = Published(slices)
    found = published.difference(wanted)
    return EndpointGroup(
        KEY,
        wanted,
        (build.PORT,),
        slices,
        published.duplicates,
        found.removed,
        found.changed,
        found.added,
        **more,
    )


def wanted(*addresses: str) -> dict[str, Endpoint]:
    """These addresses as ready endpoints."""
    return {address: build.endpoint(address) for address in addresses}


def content(published: PublishedSlice, endpoints: tuple[Endpoint, ...] | None) -> tuple[Endpoint, ...]:
    """The endpoints of a kept slice after packing."""
    return published.endpoints if endpoints is None else endpoints


def shown(packed: Packed) -> tuple[list[list[str]], list[list[str]], list[str]]:
    """Addresses of kept and created slices, and names of deleted slices."""
    return (
        [[each.address for each in content(published, endpoints)] for published, endpoints in packed.kept],
        [[endpoint.address for endpoint in endpoints] for endpoints in packed.created],
        [slice_.slice.name for slice_ in packed.deleted],
    )


def test_first_publication_fills_new_slices_in_order() -> None:
    """Without slices, sorted endpoints fill new slices up to the limit."""
    assert shown(pack(group(wanted("c", "a", "e", "b", "d")), 2)) == ([], [["a", "b"], ["c", "d"], ["e"]], [])


def test_no_endpoints_create_no_slice() -> None:
    """Without endpoints and slices, no slice is created."""
    assert pack(group({}), 100) == Packed(())


def test_equal_is_untouched() -> None:
    """A slice that need not change is kept with None."""
    it = group(wanted("a", "b"), "ab")
    ((_, endpoints),) = pack(it, 100).kept
    assert endpoints is None


def test_order_within_a_slice_is_kept() -> None:
    """Endpoints in a slice are not sorted, because that would be a write."""
    ((_, endpoints),) = pack(group(wanted("a", "b"), "ba"), 100).kept
    assert endpoints is None


def test_step_1_refreshes_in_place() -> None:
    """A changed endpoint keeps its slice and its place."""
    new = {**wanted("a", "b", "c"), "b": build.endpoint("b", conditions=DRAINING)}
    packed = pack(group(new, "abc"), 100)
    assert packed.kept[0][1] == tuple(new.values())


def test_step_1_drops_in_place() -> None:
    """An unwanted endpoint leaves its slice, and the others stay where they are."""
    assert shown(pack(group(wanted("a", "c", "d"), "abc", "d"), 100)) == ([["a", "c"], ["d"]], [], [])


def test_slice_that_is_written_anyway_is_filled_first() -> None:
    """A slice that loses an endpoint takes the new one, even if another slice has more room."""
    assert shown(pack(group(wanted("a", "c", "x"), "ab", "c"), 3)) == ([["a", "x"], ["c"]], [], [])


def test_step_2_takes_the_fullest_first() -> None:
    """Of two slices that are written anyway, the fuller one is filled first."""
    it = group(wanted("a", "c", "d", "x"), "ab", "cde")
    assert shown(pack(it, 3)) == ([["a"], ["c", "d", "x"]], [], [])


def test_step_2_breaks_ties_by_number() -> None:
    """Of equally full slices, the lowest-numbered one is filled first."""
    assert shown(pack(group(wanted("a", "c", "x"), "ab", "cd"), 3)) == ([["a", "x"], ["c"]], [], [])


def test_step_2_fills_dirty_slices() -> None:
    """A slice that is written for its labels takes new endpoints."""
    assert shown(pack(group(wanted("a", "b", "x"), "a", "b"), 9, dirty=["s-1"])) == ([["a"], ["b", "x"]], [], [])


def test_step_2_spills_over() -> None:
    """Endpoints that do not fit into the first slice go to the next one."""
    it = group(wanted("a", "c", "x", "y", "z"), "ab", "cd")
    assert shown(pack(it, 2)) == ([["a", "x"], ["c", "y"]], [["z"]], [])


def test_step_3_takes_the_best_fit() -> None:
    """The slice that is fullest afterwards takes the endpoints; of equals, the lowest-numbered one."""
    it = group(wanted(*"abcdef", "x"), "a", "bc", "de", "f")
    assert shown(pack(it, 3))[0] == [["a"], ["b", "c", "x"], ["d", "e"], ["f"]]


def test_step_3_never_splits_over_unchanged_slices() -> None:
    """Endpoints that do not fit into one existing slice go into a new one."""
    it = group(wanted(*"abcd", "x", "y"), "ab", "cd")
    assert shown(pack(it, 3)) == ([["a", "b"], ["c", "d"]], [["x", "y"]], [])


def test_step_3_full_slices_first() -> None:
    """More endpoints than one slice holds go into new full slices, and only the rest into an existing one."""
    it = group(wanted("a", *"vwxyz"), "a")
    assert shown(pack(it, 3)) == ([["a", "y", "z"]], [["v", "w", "x"]], [])


def test_emptied_slices_are_used_again() -> None:
    """An emptied slice is filled again, so a delete and a create become one update."""
    assert shown(pack(group(wanted("x", "y"), "a", "b"), 1)) == ([["x"], ["y"]], [], [])


def test_emptied_slice_comes_before_an_unchanged_one() -> None:
    """An emptied slice is filled before an unchanged one, because that is one write instead of two."""
    assert shown(pack(group(wanted("a", "x"), "a", "b"), 9)) == ([["a"], ["x"]], [], [])


def test_superfluous_slices_are_deleted() -> None:
    """A slice without endpoints is deleted if other slices have some."""
    assert shown(pack(group(wanted("a"), "a", "b"), 9)) == ([["a"]], [], ["s-1"])


def test_an_emptied_group_keeps_its_lowest_slice() -> None:
    """An emptied group keeps exactly one empty slice, the lowest-numbered one."""
    assert shown(pack(group({}, "a", "b", "c"), 9)) == ([[]], [], ["s-1", "s-2"])


def test_the_empty_slice_stays_untouched() -> None:
    """An empty slice is not written again."""
    ((_, endpoints),) = pack(group({}, ""), 9).kept
    assert endpoints is None


def test_the_empty_slice_is_filled_first() -> None:
    """New endpoints go into the empty slice."""
    assert shown(pack(group(wanted("a"), ""), 9)) == ([["a"]], [], [])


def test_a_dropped_group_leaves_nothing() -> None:
    """A dropped group leaves no empty slice."""
    assert shown(pack(group({}, "a", "b", drop=True), 9)) == ([], [], ["s-0", "s-1"])


def test_a_lower_limit_forces_no_rewrite() -> None:
    """A slice above the limit is not rewritten; it takes no endpoints and may shrink."""
    full = group(wanted(*"abcd", "x"), "abcd")
    assert shown(pack(full, 2)) == ([["a", "b", "c", "d"]], [["x"]], [])
    shrunk = group(wanted(*"abc", "x"), "abcd")
    assert shown(pack(shrunk, 2)) == ([["a", "b", "c"]], [["x"]], [])


@pytest.mark.parametrize("slices", [("ab", "bc"), ("abb", "c"), ("abc", "abc")])
def test_duplicates_are_repaired(slices: tuple[str, ...]) -> None:
    """A duplicate address stays only in the first slice."""
    kept, created, _ = shown(pack(group(wanted(*"abc"), *slices), 9))
    assert sorted(address for each in kept + created for address in each) == ["a", "b", "c"]


def test_no_rebalancing() -> None:
    """Half-empty slices are not merged."""
    it = group(wanted("a", "b", "c"), "a", "b", "c")
    assert all(endpoints is None for _, endpoints in pack(it, 9).kept)


# --- names ------------------------------------------------------------------------------------------


def first(count: int, service: str = "payments", key: GroupKey = KEY, taken: Iterable[str] = ()) -> list[str]:
    """The first names of a group."""
    fresh = names(service, "default", key, (build.PORT,), set(taken))
    return [next(fresh) for _ in range(count)]


def test_names_are_service_hash_number() -> None:
    """Names never change between versions, so hubs find old slices by number and two leaders collide."""
    assert first(2) == ["payments-189074af-0", "payments-189074af-1"]


def test_names_skip_the_taken() -> None:
    """A taken name is skipped."""
    all_three = first(3)
    assert first(2, taken=[all_three[0]]) == all_three[1:]


def test_names_differ_by_cluster_and_family() -> None:
    """Two groups of a Service never have the same names."""
    keys = [GroupKey(cluster, family) for cluster in ("eu", "us") for family in ("IPv4", "IPv6")]
    assert len({first(1, key=key)[0] for key in keys}) == 4


def test_names_fit_for_the_longest_service() -> None:
    """Names are valid for a Service name and a cluster name of 63 characters."""
    (name,) = first(1, "s" * 63, GroupKey("c" * 63, "IPv6"))
    assert len(name) <= 253
    assert name.startswith("s" * 63 + "-")


# --- properties --------------------------------------------------------------------------------------

ADDRESSES = st.sampled_from([build.address(i) for i in range(30)])
SETS = st.sets(ADDRESSES)


def carried_out(packed: Packed) -> list[list[str]]:
    """The contents of the slices after the plan."""
    kept, created, _ = shown(packed)
    return kept + created


@st.composite
def packings(draw: st.DrawFn) -> tuple[EndpointGroup, int]:
    """Slices of at most 5 endpoints, some wanted, some new, with a limit of 1 to 5; sometimes with a few changed."""
    published: list[str] = draw(st.permutations(sorted(draw(SETS))))
    placeholders: bool = draw(st.booleans())
    cuts = sorted(draw(st.lists(st.integers(0, len(published)), max_size=6)))
    slices = [published[a:b] for a, b in zip([0, *cuts], [*cuts, len(published)], strict=True)]
    slices = [part for whole in slices for part in (whole[:5], whole[5:10]) if part or placeholders]
    new = wanted(*draw(SETS))
    for address in draw(st.sets(ADDRESSES, max_size=3)):
        if address in new:
            new[address] = msgspec.structs.replace(new[address], conditions=DRAINING)
    return group(new, *slices), draw(st.integers(1, 5))


@settings(max_examples=400, deadline=None)
@given(packings())
def test_each_wanted_endpoint_is_in_exactly_one_slice(case: tuple[EndpointGroup, int]) -> None:
    """Each wanted endpoint is in exactly one slice, nothing else is, and no slice grows past the limit."""
    it, limit = case
    packed = pack(it, limit)
    found = [each for kept in packed.kept for each in content(*kept)]
    found += [endpoint for endpoints in packed.created for endpoint in endpoints]
    assert sorted(found, key=lambda each: each.address) == [it.endpoints[address] for address in sorted(it.endpoints)]
    before: dict[int, PublishedSlice] = {id(slice_): slice_ for slice_ in it.slices}
    assert all(len(content(*kept)) <= max(limit, len(before[id(kept[0])].addresses)) for kept in packed.kept)
    assert all(0 < len(endpoints) <= limit for endpoints in packed.created)
    assert len(packed.kept) + len(packed.deleted) == len(it.slices)


@settings(max_examples=400, deadline=None)
@given(packings())
def test_packing_again_changes_nothing(case: tuple[EndpointGroup, int]) -> None:
    """Packing the result again changes nothing, whether it was written or not."""
    it, limit = case
    slices = tuple(
        prepare(build.slice(f"s-{i}", [it.endpoints[address] for address in addresses]))
        for i, addresses in enumerate(carried_out(pack(it, limit)))
    )
    packed = pack(grouped(it.endpoints, *slices), limit)
    assert all(endpoints is None for _, endpoints in packed.kept)
    assert (packed.created, packed.deleted) == ((), ())


@settings(max_examples=200, deadline=None)
@given(packings(), st.randoms(use_true_random=False))
def test_order_of_the_wanted_does_not_matter(case: tuple[EndpointGroup, int], random: object) -> None:
    """The same endpoints in another order give the same slices."""
    it, limit = case
    items = list(it.endpoints.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    other = msgspec.structs.replace(it, endpoints=dict(items))
    assert shown(pack(other, limit)) == shown(pack(it, limit))


@settings(max_examples=200, deadline=None)
@given(packings())
def test_writes_are_few(case: tuple[EndpointGroup, int]) -> None:
    """At most one unchanged slice is written, however many endpoints are added."""
    it, limit = case
    packed = pack(it, limit)
    unchanged = {id(slice_) for slice_ in it.slices if slice_.addresses and slice_.content.holds(it.endpoints)}
    written = [each for each, endpoints in packed.kept if endpoints is not None]
    assert sum(1 for each in written if id(each) in unchanged) <= 1
