"""Builds and reads the kubeconfig for a remote cluster and the Secret that holds it. Pure."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import yaml

from hub.kube.cluster_access import ClusterAccess, Token
from hub.kube.secret import Secret
from hub.onboarding.manifests import ACCOUNT, Manifest, labels

KEY: Final = "kubeconfig"
"""The kubeconfig's key in the Secret: the default of ``kubeconfig.key`` in clusters.yaml."""


def kubeconfig(cluster: str, access: ClusterAccess, ca: bytes | None, token: Secret) -> str:
    """A kubeconfig without references to files: server and proxy of ``access``, CA (None = the system's), token."""
    server: dict[str, Any] = {"server": access.server}
    if ca is not None:
        server["certificate-authority-data"] = base64.b64encode(ca).decode()
    if access.tls_server_name:
        server["tls-server-name"] = access.tls_server_name
    if access.proxy is not None:
        server["proxy-url"] = access.proxy.url.reveal()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": server}],
        "users": [{"name": ACCOUNT, "user": {"token": token.reveal()}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": ACCOUNT}}],
        "current-context": cluster,
    }
    return str(yaml.safe_dump(content, sort_keys=False, width=1 << 20))  # wide, so that tokens are not wrapped


def secret(cluster: str, namespace: str, content: str) -> Manifest:
    """The Secret of a cluster; it has the cluster's name."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": cluster, "namespace": namespace, "labels": labels(cluster)},
        "type": "Opaque",
        "data": {KEY: base64.b64encode(content.encode()).decode()},
    }


def content_of(found: Manifest, key: str = KEY) -> bytes | None:
    """The decoded value of a Secret's key; None if it is missing or not base64."""
    try:
        return base64.b64decode((found.get("data") or {})[key], validate=True)
    except (KeyError, TypeError, binascii.Error):
        return None


def token_of(access: ClusterAccess) -> Secret | None:
    """The token of a kubeconfig; None if the kubeconfig has another kind of credential."""
    return access.auth.value if isinstance(access.auth, Token) else None


def with_token(content: bytes, old: Secret, new: Secret) -> bytes | None:
    """The kubeconfig with the old token replaced and all else unchanged; None if it does not contain the old token."""
    before = old.reveal().encode()
    return content.replace(before, new.reveal().encode()) if before in content else None


def replace_content(found: Manifest, key: str, content: bytes) -> Manifest:
    """The Secret with one key replaced. It keeps its resourceVersion, so the write fails if the Secret has changed."""
    meta = {name: value for name, value in found["metadata"].items() if name != "managedFields"}
    return {**found, "metadata": meta, "data": {**found["data"], key: base64.b64encode(content).decode()}}
