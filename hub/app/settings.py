"""The options of a hub, and the state that its probe endpoints report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hub.election.elector import Timing
from hub.kube.proxy import Proxies
from hub.model import TargetKey
from hub.observe.local.approvals import DEFAULT_OWNER

SETTLE_SECONDS = 30.0
"""Maximum seconds that one-shot commands wait for remote clusters and providers."""


class Options(msgspec.Struct, frozen=True):
    """The options of the command line.

    Attributes:
        registry: path of clusters.yaml, as the user gave it.
        kubeconfig: kubeconfig of the hub cluster; None = in-cluster, then KUBECONFIG, then ~/.kube/config.
        dry_run: write nothing; log what would be written.
        leader_elect: write only while holding the Lease.
        namespace: the hub's own namespace, which holds its Lease (``--lease-namespace``).
        secrets_namespace: namespace of the kubeconfig Secrets; None = ``namespace``.
        removal_grace: seconds before slices are deleted that the registry no longer asks for.
        allow_exec: programs that kubeconfigs and inventories may run.
        allow_api_hosts: hosts that providers may contact in addition to their default.
        credentials_dir: folder of credential files; None = the registry's folder.
        settle: maximum seconds that one-shot commands wait for remote clusters and providers.
        timing: times of the election.
        lease: name of the Lease; None = the name that follows from the owner.
        content: the registry's text if it is not in a file; then ``registry`` is a made-up name in its folder.
        take_over: targets whose slices this hub owns although another hub of the same owner wrote them.
        events: write Kubernetes Events.
        fall_back: if the file is rejected at start, use the last accepted registry.
        owner: owner of that registry, if the rejected file does not name one.
        target_namespaces: the only namespaces whose Services and slices are read and written; empty = all.
        shards: number of Leases that the targets are divided over.
        proxies: proxies of the environment for remote clusters and providers; None = the environment is not used.
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
    proxies: Proxies | None = None

    def kubeconfig_folders(self) -> tuple[Path, ...]:
        """Folders in which kubeconfigs that are given by path must be, and the files that they name."""
        # Not resolved: the symlinks of a mounted ConfigMap change while the hub runs.
        folder = Path(self.registry).absolute().parent
        return (folder, Path(self.credentials_dir)) if self.credentials_dir else (folder,)


class Health(msgspec.Struct):
    """The state that the probe endpoints report. It never depends on a remote cluster.

    Attributes:
        beat: monotonic time of the last heartbeat; the event loop is blocked if it is old.
        local_synced: whether the hub cluster has been read.
        stopping: whether the hub is shutting down.
    """

    beat: float = 0.0
    local_synced: bool = False
    stopping: bool = False


def lease_name(owner: str) -> str:
    """The name of an owner's Lease."""
    return f"endpointslice-hub-{owner}"
