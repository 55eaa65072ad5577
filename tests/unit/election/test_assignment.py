"""Assignment of targets to shards: the same in all processes, few clusters for each replica, few moves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hub.election.assignment import Assignment, shard
from hub.model import LOCAL, TargetKey
from hub.registry.diff import reuse
from hub.registry.spec import ClusterSpec, ProviderRef, Registry, SourceSpec, TargetSpec, ViewsSpec

NODES = ProviderRef("node-addresses")


def registry(sources: Mapping[str, Sequence[str]], *clusters: str, digest: str = "a" * 64) -> Registry:
    """A registry of Services ``edge/NAME`` with their source clusters, and of clusters that no Service needs."""
    targets = {
        TargetKey("edge", name): TargetSpec(
            TargetKey("edge", name), tuple(SourceSpec(cluster, NODES) for cluster in names)
        )
        for name, names in sources.items()
    }
    every = {LOCAL, *clusters, *(cluster for names in sources.values() for cluster in names)}
    return Registry("default", {name: ClusterSpec(name, NODES) for name in sorted(every)}, targets, digest=digest)


def key(name: str) -> TargetKey:
    """The key of the Service ``edge/NAME``."""
    return TargetKey("edge", name)


def fleet(pairs: int = 0) -> Registry:
    """500 clusters with four Services each; with ``pairs``, that many pairs of clusters that share their Services."""
    number = 2 * pairs or 500
    sources = {}
    for service in range(4 * number):
        cluster = service % number
        sources[f"s{service}"] = [f"c{cluster}", f"c{cluster ^ 1}"] if pairs else [f"c{cluster}"]
    return registry(sources)


@pytest.mark.parametrize("registry_", [fleet(), fleet(250)], ids=["one source", "pairs"])
def test_a_third_of_the_shards_needs_a_third_of_the_clusters(registry_: Registry) -> None:
    """A third of the shards needs about a third of the clusters, even if Services have two source clusters."""
    assignment = Assignment(registry_, 6)
    for replica in range(3):
        part = assignment.part({replica, replica + 3})
        assert 0.27 < len(part.targets) / len(registry_.targets) < 0.40
        assert 0.27 < len(part.clusters) / len(registry_.clusters) < 0.40


def test_common_failover_cluster_does_not_attract_services() -> None:
    """Services that all fail over to one cluster are spread over the shards by their other clusters."""
    sources = {f"s{number}": [f"c{number % 40}", "a-spare"] for number in range(80)}
    assignment = Assignment(registry(sources), 4)
    found = Counter(assignment.of(key(name)) for name in sources)
    assert (len(found), max(found.values()) < 40) == (4, True)
    assert all("a-spare" in assignment.part({number}).clusters for number in range(4))


def test_the_hash_is_the_same_in_every_process_and_version() -> None:
    """The hash does not depend on the process: otherwise two replicas could both write a Service, or neither."""
    assert [shard(f"cluster c{number}", 6) for number in range(8)] == [5, 5, 5, 0, 1, 5, 1, 5]
    code = "from hub.election.assignment import shard; print([shard(f'cluster c{n}', 6) for n in range(8)])"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        said = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True, timeout=60
        )
        assert said.stdout.decode().strip() == str([shard(f"cluster c{number}", 6) for number in range(8)])


def test_copy_is_assigned_by_its_own_name() -> None:
    """A copy is assigned by its own name, so neither another source nor its end moves it to another shard."""
    copy = TargetSpec(key("copy"), (SourceSpec(LOCAL, ProviderRef("service-copy", '{"name":"a"}')),))
    other = replace(copy, sources=(SourceSpec(LOCAL, ProviderRef("service-copy", '{"name":"b"}')),))
    shards = [
        Assignment(replace(registry({}), targets={key("copy"): spec}), 7).of(key("copy")) for spec in (copy, other)
    ]
    assert shards == [Assignment(registry({}), 7).of(key("copy"))] * 2


def test_an_order_of_sources_moves_nothing() -> None:
    """Another order of the same source clusters does not move a Service to another shard."""
    one, other = registry({"a": ["c1", "c2"]}), registry({"a": ["c2", "c1"]}, digest="b" * 64)
    assert Assignment(other, 16).moved(Assignment(one, 16)) == set()


def test_moved_lists_services_whose_shard_differs() -> None:
    """A Service that is added, removed or gets another source cluster may move; all others stay."""
    one, other = registry({"a": ["c1"], "b": ["c2"]}), registry({"a": ["c3"], "b": ["c2"], "new": ["c1"]})
    before, after = Assignment(one, 64), Assignment(other, 64)
    assert after.moved(before) == {key("a"), key("new")} == before.moved(after)
    assert before.mark == after.mark == "a" * 16


def test_cluster_no_longer_common_moves_unchanged_services() -> None:
    """New Services can make a cluster no longer common; ``moved`` also lists the unchanged Services that move by it."""
    few = {
        **{f"t{number}": [f"x{number}", "a-spare"] for number in range(6)},
        **{f"o{number}": [f"y{number}"] for number in range(12)},
    }
    more = {**few, **{f"new{number}": [f"z{number}"] for number in range(12)}}
    old = registry(few)
    before, after = Assignment(old, 6), Assignment(reuse(old, registry(more, digest="b" * 64)), 6)
    moved = {target for target in map(key, more) if before.of(target) != after.of(target)}
    assert any(key(name) in moved for name in few)
    assert after.moved(before) == moved


def test_copies_that_services_ask_for_move_nothing() -> None:
    """Copies by annotation do not move other targets: replicas see annotations at different times."""
    copy = (SourceSpec(LOCAL, ProviderRef("service-copy", '{"name":"a"}')),)
    found = registry(
        {
            **{f"t{number}": [f"x{number}", "a-spare"] for number in range(3)},
            **{f"o{number}": ["y"] for number in range(8)},
        }
    )
    copies = {key(f"copy{number}"): TargetSpec(key(f"copy{number}"), copy) for number in range(4)}
    one, other = Assignment(found, 6), Assignment(replace(found, targets={**found.targets, **copies}), 6)
    assert one.mark == other.mark
    assert {target: one.of(target) for target in found.targets} == {
        target: other.of(target) for target in found.targets
    }


def test_parts_include_hub_cluster_and_view_clusters() -> None:
    """Each part has the hub cluster and the clusters of views; a cluster that no target needs is in one part."""
    found = replace(registry({"a": ["c1"]}, "idle", "viewed"), views=ViewsSpec(("viewed",)))
    assignment = Assignment(found, 5)
    parts = [assignment.part({number}).clusters.keys() for number in range(5)]
    assert all({LOCAL, "viewed"} <= part for part in parts)
    assert [sum(name in part for part in parts) for name in ("c1", "idle")] == [1, 1]
    assert "c1" in parts[assignment.responsible_shard("c1")]
    assert assignment.part(()).targets == {}


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.lists(st.sampled_from("wxyz"), min_size=1), max_size=8),
    st.integers(1, 9),
)
def test_every_target_is_in_one_shard_with_all_it_needs(sources: dict[str, list[str]], count: int) -> None:
    """The parts of all shards make up the registry, and the responsible shard's part contains the cluster."""
    found = registry(sources)
    assignment = Assignment(found, count)
    parts = [assignment.part({number}) for number in range(count)]
    assert sorted(target for part in parts for target in part.targets) == sorted(found.targets)
    assert {name for part in parts for name in part.clusters} == set(found.clusters)
    for part in parts:
        assert {source.cluster for spec in part.targets.values() for source in spec.sources} <= part.clusters.keys()
    for name in found.clusters:
        assert name in parts[assignment.responsible_shard(name)].clusters
