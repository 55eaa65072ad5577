"""What a registry dropped, and which removals are withheld until an approval."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hub.model import Slice, TargetKey
from hub.observe.local.approvals import flags
from hub.registry.removals import Removals, digest, dropped
from hub.registry.spec import ClusterSpec, Registry
from tests.support import build


def registry(services: str, clusters: str, **more: Any) -> Registry:
    """A registry of Services and clusters with one-letter names."""
    targets = {TargetKey("edge", name): build.target(*clusters, name=name) for name in services}
    return Registry("default", {name: ClusterSpec(name, None) for name in clusters}, targets, **more)


def published(services: str, clusters: str, count: int = 10) -> list[Slice]:
    """A slice with ``count`` endpoints for each pair of a Service and a cluster."""
    return [
        build.slice(f"{service}-{cluster}-0", build.endpoints(count), service=service, cluster=cluster)
        for service in services
        for cluster in clusters
    ]


class World:
    """Removals with slices and approvals that the test sets."""

    def __init__(self, slices: list[Slice]) -> None:
        self.slices = slices
        self.approved: set[str] = set()
        self.looks = 0
        self.warned = False
        self.removals = Removals(self._slices, lambda: self.approved, " --owner x", lambda: self.warned)

    def _slices(self, _: Registry) -> list[Slice]:
        self.looks += 1
        return self.slices

    def held(self, registry: Registry) -> list[str]:
        """The withheld entries, after a decision for a registry."""
        found = self.removals.judge(registry)
        return list(found.entries) if found is not None else []


def test_entries_in_the_registry_are_not_dropped() -> None:
    """Slices of Services and clusters in the registry are not dropped."""
    assert dropped(registry("ab", "xy"), published("ab", "xy")) == ({}, 40)


def test_each_endpoint_is_counted_once() -> None:
    """An endpoint counts for its Service if that was dropped, else for its cluster; both are entries."""
    found = dropped(registry("a", "x"), published("ab", "xy"))
    assert found.entries == {"service edge/b": 20, "cluster y": 10}
    assert dropped(registry("a", "x"), published("b", "y")).entries == {"service edge/b": 10, "cluster y": 0}


@pytest.mark.parametrize(
    "asked",
    [
        Registry("default", {"x": ClusterSpec("x", None, formerly=("y",))}, registry("a", "x").targets),
        registry("a", "x", broken_clusters={"y": "bad"}, frozen_names=frozenset("y")),
        registry("a", "x", frozen_names=frozenset("y")),
        registry("", "x", broken_targets={TargetKey("edge", "a"): "bad"}),
    ],
    ids=["formerly", "broken-cluster", "former-name-of-a-broken-one", "broken-service"],
)
def test_frozen_or_renamed_entries_are_not_dropped(asked: Registry) -> None:
    """Former names and broken entries do not count as dropped."""
    assert dropped(asked, published("a", "xy")).entries == {}


def test_upsert_only_loses_no_source() -> None:
    """A cluster that only upsert-only Services used does not count as dropped."""
    target = with_policy(registry("a", "x"), "upsert-only")
    assert dropped(target, published("a", "xy")).entries == {}


def with_policy(asked: Registry, policy: Any) -> Registry:
    """The registry with another policy for every Service."""
    targets = {key: build.target("x", name=key.name, policy=policy) for key in asked.targets}
    return Registry("default", asked.clusters, targets)


@pytest.mark.parametrize(
    ("kept", "gone", "withheld"),
    [
        (1, 1, False),  # one entry, half of everything
        (8, 2, False),  # a fifth
        (7, 2, True),  # two of nine: more than a fifth
        (0, 2, True),
        (0, 1, False),
        (100, 20, False),  # many entries, a small share
        (100, 26, True),
    ],
)
def test_more_than_one_entry_and_a_fifth_is_withheld(kept: int, gone: int, *, withheld: bool) -> None:
    """A removal is withheld only if it exceeds both limits: one entry, and a fifth of the endpoints."""
    names = [f"s{number:03}" for number in range(kept + gone)]
    slices = [build.slice(f"{name}-0", build.endpoints(3), service=name) for name in names]
    targets = {TargetKey("edge", name): build.target("eu", name=name) for name in names[gone:]}
    world = World(slices)
    asked = Registry("default", {"eu": ClusterSpec("eu", None)}, targets)
    assert len(world.held(asked)) == (gone if withheld else 0)


def test_the_message_has_the_whole_command() -> None:
    """The command in the message has the options that ``hub approve`` needs."""
    world = World(published("abcdefgh", "x"))
    held = world.removals.judge(registry("a", "x"))
    assert held is not None
    assert held.approve == f"hub approve registry {digest(held.entries)} --owner x"
    assert "lacks 7 entries (service edge/b, " in held.message
    assert "and 2 more) with 70 of 80 endpoints" in held.message
    assert held.message.endswith(held.approve)
    assert (held.finding.reason, held.finding.objects) == ("RegistryRemovalWithheld", held.entries)


def test_approved_removal_continues_after_expiry() -> None:
    """A removal that began with an approval continues after the approval expires."""
    world = World(published("abcd", "x"))
    asked = registry("a", "x")
    held = world.removals.judge(asked)
    assert held is not None
    world.approved = {held.hash}
    assert world.held(asked) == []
    world.approved = set()
    world.slices = published("abc", "x")
    assert world.held(asked) == []
    assert world.removals.held(asked, "service edge/c") is None


def test_an_approval_is_good_for_fewer_but_not_for_more() -> None:
    """An approval allows its entries even if further entries are dropped, which stay withheld, or some came back."""
    world = World(published("abcdef", "x"))
    first = world.removals.judge(registry("abc", "x"))
    assert first is not None
    more = registry("a", "x")
    assert len(world.held(more)) == 5
    world.approved = {first.hash}
    assert world.held(more) == ["service edge/b", "service edge/c"]
    fewer = World(published("abcdef", "x"))
    assert fewer.held(registry("abc", "x"))
    fewer.approved = {first.hash}
    assert fewer.held(registry("abcd", "x")) == []


def test_a_hash_is_the_same_after_a_restart_and_elsewhere() -> None:
    """The hash depends only on the set of dropped entries."""
    one, other = World(published("abcd", "xy")), World(published("dcba", "yx", count=3))
    asked = registry("a", "x")
    first, second = one.removals.judge(asked), other.removals.judge(asked)
    assert first is not None
    assert second is not None
    assert first.hash == second.hash
    assert first.hash != digest(("service edge/b",))


def test_additions_do_not_release_a_withheld_removal() -> None:
    """A withheld removal stays withheld when the same file's new endpoints make its share small."""
    world = World(published("abcd", "x"))
    assert len(world.held(registry("abnopqrst", "x"))) == 2
    world.slices = published("abcdnopqrst", "x")
    assert len(world.held(registry("abnopqrstu", "x"))) == 2


def test_restart_does_not_release_a_withheld_removal() -> None:
    """A removal that was withheld before a restart is withheld after it, even if its share is small by then."""
    world, asked = World(published("abcdnopqrst", "x")), registry("abnopqrst", "x")
    assert world.held(asked) == []
    world.removals.reread(withheld=True)
    assert world.held(asked) == ["service edge/c", "service edge/d"]
    world.removals.reread()
    assert len(world.held(asked)) == 2


def test_reread_alone_withholds_nothing() -> None:
    """A removal that is allowed stays allowed when the next decision is forced and nobody withholds anything."""
    world, asked = World(published("abcdnopqrst", "x")), registry("abnopqrst", "x")
    assert world.held(asked) == []
    world.removals.reread()
    assert world.held(asked) == []
    assert world.looks == 2


def test_earlier_withheld_removal_does_not_affect_later_files() -> None:
    """A removal that was withheld before a restart has no effect if nothing is dropped at the first decision."""
    world = World(published("abcdnopqrst", "x"))
    world.removals.reread(withheld=True)
    assert world.held(registry("abcdnopqrst", "x")) == []
    assert world.held(registry("abnopqrst", "x")) == []


@pytest.mark.parametrize("heard", ["before the file", "after it"])
def test_removal_withheld_by_another_replica_is_withheld(heard: str) -> None:
    """While another replica withholds a removal, this one withholds it too, even if the share is small here."""
    world, asked = World(published("abcdnopqrst", "x")), registry("abnopqrst", "x")
    world.held(registry("abcdnopqrst", "x"))
    if heard == "after it":
        assert world.held(asked) == []
    world.warned = True
    if heard == "before the file":
        assert world.held(registry("abcdnopqrst", "x")) == []
    assert world.held(asked) == ["service edge/c", "service edge/d"]
    world.warned = False
    assert len(world.held(asked)) == 2
    looks = world.looks
    assert (len(world.held(asked)), world.looks) == (2, looks)


def test_single_remaining_removal_is_allowed() -> None:
    """A withheld removal is allowed when the file is repaired except for one entry."""
    world = World(published("abcd", "x"))
    assert len(world.held(registry("ab", "x"))) == 2
    assert world.held(registry("abc", "x")) == []


def test_single_removals_do_not_add_up() -> None:
    """Entries that are dropped one by one, by one file each, are not a mass removal."""
    world = World(published("abcd", "x"))
    assert world.held(registry("abc", "x")) == []
    assert world.held(registry("ab", "x")) == []
    assert world.held(registry("abc", "x")) == []


def test_returned_entry_counts_again() -> None:
    """An entry that was allowed to go and came back counts again when it is dropped again."""
    world = World(published("abcd", "x"))
    assert world.held(registry("abc", "x")) == []
    assert world.held(registry("abcd", "x")) == []
    assert len(world.held(registry("ab", "x"))) == 2


def test_slices_that_turn_up_later_are_judged_too(caplog: pytest.LogCaptureFixture) -> None:
    """Slices that appear later, such as a previous owner's, are judged; unknown entries cost one read each."""
    world = World([])
    asked = registry("a", "x")
    assert world.held(asked) == []
    world.slices = published("abc", "x")
    with caplog.at_level(logging.WARNING):
        assert world.removals.held(asked, "service edge/b") is not None
        assert world.removals.held(asked, "service edge/c") is not None
        assert world.removals.held(asked, "cluster nobody") is None
        assert world.removals.held(asked, "cluster nobody") is None
    assert world.looks == 3
    assert [record.message[:24] for record in caplog.records] == ["RegistryRemovalWithheld:"]


def test_new_leader_decides_again() -> None:
    """A new leader decides again, since another replica has written slices until now."""
    world = World(published("abcd", "x"))
    asked = registry("ab", "x")
    assert len(world.held(asked)) == 2
    world.slices = published("ab", "x")
    world.removals.reread()
    assert world.held(asked) == []


@pytest.mark.parametrize(
    ("owner", "namespace", "text"),
    [
        ("default", "default", ""),
        ("a", "default", " --owner a"),
        ("a", "b", " --owner a --lease-namespace b"),
    ],
)
def test_flags_are_those_that_differ_from_the_defaults(owner: str, namespace: str, text: str) -> None:
    """The shown command contains only the options that differ from the defaults."""
    assert flags(owner, namespace) == text
