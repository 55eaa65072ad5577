"""Access to the hub cluster itself: the Pod's own service account, or a kubeconfig that the user gives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hub.errors import KubeconfigError
from hub.kube.cluster_access import ClusterAccess, TokenFile
from hub.kube.hosts import same_host
from hub.kube.kubeconfig import KubeconfigPolicy, access_of, load_kubeconfig
from hub.kube.kubeconfig_document import merged, parse_document, read_kubeconfig

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a Pod's own credentials."""


def load_hub_access(
    path: str | Path | None = None, *, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> ClusterAccess:
    """Access to the hub cluster: ``path`` if given, else in-cluster, else KUBECONFIG, else ~/.kube/config.

    KUBECONFIG may list several files, which are merged as kubectl does: the first to define a name wins.
    A ``context`` means a kubeconfig, so the in-cluster account is passed over then.

    Raises:
        KubeconfigError: the first of these that exists cannot be used, or none exists.
    """
    policy = KubeconfigPolicy(trusted=True)
    if path is not None:
        return load_kubeconfig(path, policy=policy, context=context)
    if context is None and (access := load_in_cluster(environ)) is not None:
        return access
    listed = [Path(item) for item in environ.get("KUBECONFIG", "").split(os.pathsep) if item]
    candidates = listed or [Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"]
    found = [item for item in candidates if item.exists()]
    if not found:
        raise KubeconfigError(
            f"no access to the hub cluster: not running in a cluster, and {' or '.join(map(str, candidates))} "
            "does not exist; give --kubeconfig FILE"
        )
    documents = [parse_document(read_kubeconfig(item), f"kubeconfig {item}", item.absolute().parent) for item in found]
    return access_of(merged(documents), policy, context)


def load_in_cluster(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> ClusterAccess | None:
    """The Pod's own access, from the mounted service account; None outside a cluster."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    token = folder / "token"
    if not host or not port or not token.exists():
        return None
    try:
        namespace = (folder / "namespace").read_text("utf-8").strip() or None
    except OSError:
        namespace = None
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        auth=TokenFile(token),
        origin="in-cluster service account",
        ca_file=folder / "ca.crt",
        namespace=namespace,
    )


def in_cluster_servers(environ: Mapping[str, str] = os.environ) -> frozenset[tuple[str, int]]:
    """The hub cluster's own API server under its in-cluster names, for ``KubeconfigPolicy.denied_servers``."""
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    servers = {(name, 443) for name in names}
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if host and port.isdecimal():
        servers.add((same_host(host), int(port)))
    return frozenset(servers)
