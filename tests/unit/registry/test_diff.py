"""The difference of two registries: what a reload must touch."""

from __future__ import annotations

from typing import Any

import pytest

from hub.model import TargetKey
from hub.registry.diff import Changes, RegistryDiff, diff, reuse
from hub.registry.load import loads
from hub.registry.spec import Registry

BASE = """\
version: 1
clusters:
  - {name: a, allowedCIDRs: [10.0.0.0/8], provider: {name: p}}
  - {name: b, allowedCIDRs: [10.0.0.0/8], provider: {name: p}}
services:
  - {name: s, namespace: n, sources: [{cluster: a}]}
  - {name: t, namespace: n, sources: [{cluster: b}]}
"""
S, T = TargetKey("n", "s"), TargetKey("n", "t")
NO_CLUSTERS: Changes[str] = Changes(frozenset(), frozenset(), frozenset(), frozenset())
NO_TARGETS: Changes[TargetKey] = Changes(frozenset(), frozenset(), frozenset(), frozenset())


def read(old: str = "", new: str = "") -> Registry:
    """The registry of BASE with one change."""
    assert old in BASE
    return loads(BASE.replace(old, new, 1).encode(), "f").registry if old else loads(BASE.encode(), "f").registry


def test_comment_changes_nothing() -> None:
    """A new comment makes no difference, and an empty difference is false."""
    found = diff(read(), read("version: 1\n", "# hello\nversion: 1\n"))

    assert found == RegistryDiff(NO_CLUSTERS, NO_TARGETS)
    assert not found


@pytest.mark.parametrize("kind", ["added", "removed", "changed", "broken"])
def test_any_kind_of_change_is_something_to_do(kind: str) -> None:
    """One entry of any kind in one section makes the whole difference true."""
    touched: Any = {**dict.fromkeys(("added", "removed", "changed", "broken"), frozenset()), kind: frozenset({"a"})}

    assert Changes(**touched)
    assert RegistryDiff(Changes(**touched), NO_TARGETS)
    assert RegistryDiff(NO_CLUSTERS, Changes(**touched))
    assert RegistryDiff(NO_CLUSTERS, NO_TARGETS, settings=True)


def test_added_and_removed_are_found() -> None:
    """A renamed service counts as one removed and one added."""
    found = diff(read(), read("name: t", "name: u"))

    assert found.targets == Changes(frozenset({TargetKey("n", "u")}), frozenset({T}), frozenset(), frozenset())
    assert found


def test_cluster_change_touches_its_targets_only_where_it_shows() -> None:
    """Another provider of a cluster changes the cluster and the targets that use it, and no others."""
    found = diff(read(), read("{name: p}}\n  - {name: b", "{name: q}}\n  - {name: b"))

    assert found.clusters.changed == {"a"}
    assert found.targets.changed == {S}


def test_broken_entry_is_not_removed() -> None:
    """An entry that breaks counts as broken, and as changed once it is repaired."""
    good, bad = read(), read("sources: [{cluster: a}]", "sources: [{cluster: zzz}]")

    assert diff(good, bad).targets == Changes(frozenset(), frozenset(), frozenset(), frozenset({S}))
    assert diff(bad, good).targets == Changes(frozenset(), frozenset(), frozenset({S}), frozenset())
    assert not diff(bad, bad)


def test_an_entry_that_is_broken_otherwise_is_looked_at_again() -> None:
    """A broken entry whose problem changes is listed again, so that its status shows the current problem."""
    bad, other = read("sources: [{cluster: a}]", "sources: [{cluster: zzz}]"), read("[{cluster: a}]", "[{cluster: y}]")

    assert diff(bad, other).targets == Changes(frozenset(), frozenset(), frozenset(), frozenset({S}))


def test_settings_concern_everything() -> None:
    """Another owner or other denied networks are reported separately from the entries."""
    found = diff(read(), read("version: 1\n", "version: 1\ndeniedCIDRs: [10.1.0.0/16]\n"))

    assert found.settings
    assert not found.targets
    assert found


# --- what did not change -------------------------------------------------------------------------------


def test_equal_specs_are_the_old_objects() -> None:
    """Specs that are equal are the objects of the old registry."""
    old, new = read(), read("version: 1\n", "# hello\nversion: 1\n")
    found = reuse(old, new)
    assert found == new
    for one, other in ((found.clusters, old.clusters), (found.targets, old.targets)):
        assert all(one[key] is other[key] for key in one)


def test_changed_target_is_new_with_old_sources() -> None:
    """A changed target is a new object, but its unchanged sources are the old objects."""
    old = read()
    found = reuse(old, read("sources: [{cluster: a}]", "sources: [{cluster: b}, {cluster: a}]"))
    assert [source.cluster for source in found.targets[S].sources] == ["b", "a"]
    assert found.targets[S].sources[1] is old.targets[S].sources[0]
    assert found.targets[T] is old.targets[T]
    found = reuse(old, read("name: t, namespace: n", "name: t, namespace: n, ports: [{port: 1}]"))
    assert found.targets[T].ports is not None
    assert found.targets[T].sources[0] is old.targets[T].sources[0]


def test_added_and_removed_targets_do_not_affect_others() -> None:
    """Targets that were added or removed do not affect the result."""
    new = read("name: t", "name: u")
    assert reuse(read(), new) == new
