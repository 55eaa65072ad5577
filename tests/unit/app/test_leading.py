"""Which replica acts for a cluster."""

from __future__ import annotations

from typing import Any, cast

from hub.app.leading import Leading
from hub.registry.spec import ClusterSpec, ProviderRef, Registry
from hub.runtime.clock import SystemClock

CLUSTERS = [f"c{number}" for number in range(20)]
REGISTRY = Registry("default", {name: ClusterSpec(name, ProviderRef("node-addresses")) for name in CLUSTERS}, {})


def leading(*held: int, count: int) -> Leading:
    """The rights of a process that holds these shards."""
    made = Leading(lambda _: cast("Any", None), "me", SystemClock(), REGISTRY, list, lambda: None, count=count)
    made.held = frozenset(held)
    return made


def test_one_replica_acts_for_a_cluster() -> None:
    """With two shards, each cluster has exactly one replica that acts for it; both replicas act for some."""
    one, other = leading(0, count=2), leading(1, count=2)
    acts = {name: (one.acts_for(name), other.acts_for(name)) for name in CLUSTERS}
    assert set(acts.values()) == {(True, False), (False, True)}


def test_only_the_leader_acts_for_clusters() -> None:
    """Without shards, the leader acts for all clusters and a standby for none."""
    assert all(leading(0, count=1).acts_for(name) for name in CLUSTERS)
    assert not any(leading(count=1).acts_for(name) for name in CLUSTERS)
