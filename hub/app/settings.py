"""What a hub is told from outside, and what its probe endpoints look at."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hub.election.elector import Timing
from hub.model import TargetKey
from hub.observe.local.approvals import DEFAULT_OWNER

SETTLE_SECONDS = 30.0
"""How long one-shot commands wait for remote clusters and providers."""


class Options(msgspec.Struct, frozen=True):
    """What the command line decides.

    Attributes:
        registry: path of clusters.yaml, as the user gave it.
        kubeconfig: of the hub cluster; None = in-cluster, then KUBECONFIG.
        namespace: of the Lease (``--lease-namespace``).
        secrets_namespace: where kubeconfig Secrets are read.
        credentials_dir: folder of credential files; None = the registry's.
        timing: of the election.
        lease: name of the Lease; None = by the owner.
        content: the registry itself, where it is in no file; ``registry`` only names it then, and its folder.
        take_over: targets whose slices become ours although another hub of our owner wrote them.
        events: write Kubernetes Events.
        fall_back: start with the last accepted registry where the file is rejected.
        owner: whose that is, where the file does not say its owner.
        shards: Leases that the targets are divided over.
        target_namespaces: the only ones whose Services and slices are read and written; empty = all.
    """

    registry: str
    kubeconfig: str | None = None
    dry_run: bool = False
    leader_elect: bool = True
    namespace: str = "default"
    secrets_namespace: str | None = None
    removal_grace: float = 60.0
    allow_exec: frozenset[str] = frozenset()
    allow_api_hosts: frozenset[str] = frozenset()
    credentials_dir: str | None = None
    settle: float = SETTLE_SECONDS
    timing: Timing = msgspec.field(default_factory=Timing)
    lease: str | None = None
    content: bytes | None = None
    take_over: frozenset[TargetKey] = frozenset()
    events: bool = True
    fall_back: bool = False
    owner: str = DEFAULT_OWNER
    target_namespaces: tuple[str, ...] = ()
    shards: int = 1

    def kubeconfig_folders(self) -> tuple[Path, ...]:
        """Where kubeconfigs given by path must be, and the files that they name."""
        folder = Path(self.registry).absolute().parent  # symlinks stay: those of a ConfigMap flip while the hub runs
        return (folder, Path(self.credentials_dir)) if self.credentials_dir else (folder,)


class Health(msgspec.Struct):
    """What the probe endpoints look at. Never a remote cluster."""

    beat: float = 0.0
    local_synced: bool = False
    stopping: bool = False


def lease_name(owner: str) -> str:
    """The Lease of an owner."""
    return f"endpointslice-hub-{owner}"
