"""Finds the access to the hub cluster itself: the Pod's service account, or a kubeconfig of the user."""

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
    """The access to the hub cluster: ``path`` if given, else in-cluster, else KUBECONFIG, else ~/.kube/config.

    KUBECONFIG may list several files, which are merged as kubectl does: the first file that defines a name wins.
    If a ``context`` is given, the in-cluster account is skipped, since contexts exist in kubeconfigs only.

    Raises:
        KubeconfigError: the first of these that exists is not usable, or none exists.
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
    """The access with the Pod's mounted service account; None outside a cluster."""
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
    """Host and port of the hub cluster's API server under each of its in-cluster names.

    Used for ``KubeconfigPolicy.denied_servers``.
    """
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    servers = {(name, 443) for name in names}
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if host and port.isdecimal():
        servers.add((same_host(host), int(port)))
    return frozenset(servers)
