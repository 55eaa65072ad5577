"""Where the hub finds the access to its own cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.errors import KubeconfigError
from hub.kube.cluster_access import ClusterAccess, Token, TokenFile
from hub.kube.hub_access import in_cluster_servers, load_hub_access, load_in_cluster
from hub.kube.secret import Secret


def config(user: dict[str, Any], **cluster: Any) -> str:
    """A kubeconfig with one context."""
    return yaml.safe_dump(
        {
            "current-context": "hub",
            "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **cluster}}],
            "contexts": [{"name": "hub", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": user}],
        }
    )


def service_account(folder: Path) -> dict[str, str]:
    """A mounted service account and its environment."""
    for name, text in (("token", "t"), ("ca.crt", "PEM"), ("namespace", "hub-system\n")):
        (folder / name).write_text(text)
    return {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}


def test_in_cluster_access_reads_files_later(tmp_path: Path) -> None:
    """Token and CA are kept as paths, since both are rotated; the namespace is that of the Pod."""
    access = load_in_cluster(service_account(tmp_path), tmp_path)
    assert access == ClusterAccess(
        server="https://[fd00::1]:443",
        auth=TokenFile(tmp_path / "token"),
        origin="in-cluster service account",
        ca_file=tmp_path / "ca.crt",
        namespace="hub-system",
    )


def test_in_cluster_access_needs_environment_and_token(tmp_path: Path) -> None:
    """Without the environment variables or the token, there is no in-cluster access."""
    environ = service_account(tmp_path)
    assert load_in_cluster({}, tmp_path) is None
    for name in environ:
        assert load_in_cluster({**environ, name: ""}, tmp_path) is None
    (tmp_path / "token").unlink()
    assert load_in_cluster(environ, tmp_path) is None


@pytest.mark.parametrize("written", [None, " \n"])
def test_in_cluster_access_may_lack_a_namespace(tmp_path: Path, written: str | None) -> None:
    """A service account without a namespace file, or with an empty one, has no namespace; IPv4 has no brackets."""
    environ = {**service_account(tmp_path), "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    if written is None:
        (tmp_path / "namespace").unlink()
    else:
        (tmp_path / "namespace").write_text(written)
    access = load_in_cluster(environ, tmp_path)
    assert access is not None
    assert (access.server, access.namespace) == ("https://10.96.0.1:443", None)


def test_hub_access_prefers_the_given_path(tmp_path: Path) -> None:
    """--kubeconfig takes precedence over the environment."""
    (tmp_path / "mine").write_text(config({"token": "mine"}))
    (tmp_path / "env").write_text(config({"token": "env"}))
    access = load_hub_access(tmp_path / "mine", environ={"KUBECONFIG": str(tmp_path / "env")})
    assert access.auth == Token(Secret("mine"))


def test_hub_access_merges_kubeconfig_as_kubectl(tmp_path: Path) -> None:
    """The first file that defines a name or a current context wins; missing files are skipped."""
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text(yaml.safe_dump({"users": [{"name": "u", "user": {"tokenFile": "token"}}]}))
    (tmp_path / "b/c").write_text(config({"token": "later"}, **{"certificate-authority": "ca.crt"}))
    listed = os.pathsep.join(["", *(str(tmp_path / name) for name in ("missing", "a", "b/c"))])
    access = load_hub_access(environ={"KUBECONFIG": listed})
    assert (access.auth, access.ca_file) == (TokenFile(tmp_path / "token"), tmp_path / "b/ca.crt")
    assert access.origin == f'kubeconfig {tmp_path}/a, {tmp_path}/b/c, context "hub"'


def test_hub_access_falls_back_on_the_home_folder(tmp_path: Path) -> None:
    """Without flag, cluster and KUBECONFIG, ~/.kube/config is used."""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(config({"token": "home"}))
    assert load_hub_access(environ={"HOME": str(tmp_path)}).auth == Token(Secret("home"))


def test_hub_access_error_names_places_and_flag(tmp_path: Path) -> None:
    """If nothing is found, the error names the places and the flag."""
    with pytest.raises(KubeconfigError, match=r"/\.kube/config does not exist; give --kubeconfig FILE"):
        load_hub_access(environ={"HOME": str(tmp_path)})


NAMES = {
    ("kubernetes", 443),
    ("kubernetes.default", 443),
    ("kubernetes.default.svc", 443),
    ("kubernetes.default.svc.cluster.local", 443),
}


@pytest.mark.parametrize(
    ("host", "port", "more"),
    [
        ("FD00:0::1", "6443", {("fd00::1", 6443)}),
        ("10.96.0.1", "443", {("10.96.0.1", 443)}),
        ("10.96.0.1", "", set()),
        ("10.96.0.1", "https", set()),
        ("", "443", set()),
    ],
)
def test_in_cluster_servers_covers_names_and_address(host: str, port: str, more: set[tuple[str, int]]) -> None:
    """The hub cluster is recognized by its names and by the address in the environment, in any spelling."""
    servers = in_cluster_servers({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})
    assert servers == NAMES | more
    assert in_cluster_servers({}) == NAMES
