"""What several commands print about clusters whose cloud controller the hub is."""

from __future__ import annotations

from collections.abc import Iterable

from hub.cli.render import warn
from hub.report.values import ClusterCloud


def unknown(found: ClusterCloud) -> bool:
    """Whether the state of the cluster or of its cloud is not known now."""
    return bool(found.error or found.problem)


def warn_of(found: Iterable[ClusterCloud]) -> None:
    """Warn of clusters and clouds that are not known, and of what is withheld."""
    for cluster in found:
        for text in dict.fromkeys(filter(None, (cluster.problem, cluster.error))):
            warn(f"cloud of cluster {cluster.cluster}: {text}")
        told = [(one.state, one.message) for one in cluster.nodes]
        told += [(one.state, one.message) for one in cluster.balancers]
        for message in dict.fromkeys(message for state, message in told if state == "withheld"):
            warn(f"cluster {cluster.cluster}: withheld: {message}")
