"""How many files this process may open, and how many a fleet needs."""

from __future__ import annotations

import resource
from typing import Final

BASE: Final = 100
"""The interpreter, logs, probes, the hub cluster's connections, up to 16 writes in flight."""
PER_CLUSTER: Final = 4
"""A watch, a list at the same time, a read of the kubeconfig, a provider's connection."""
HIGHEST_LIMIT: Final = 1 << 16
"""The highest limit set: programs that a kubeconfig runs inherit it, and some close every possible file number."""


def needed(clusters: int) -> int:
    """Open files needed for ``clusters`` remote clusters."""
    return BASE + PER_CLUSTER * clusters


def available() -> int:
    """Open files that ``hub run`` may have on this machine: it raises the soft limit up to the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return HIGHEST_LIMIT if hard == resource.RLIM_INFINITY else min(hard, HIGHEST_LIMIT)


def raise_limit() -> None:
    """Raise the soft limit to what :func:`available` says, as Go programs do: 1,024 is too low for a big fleet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < available():
        resource.setrlimit(resource.RLIMIT_NOFILE, (available(), hard))
