"""Kubeconfigs as ordinary tools write them."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.errors import KubeconfigError
from hub.kube.cluster_access import ClientCertificate, ClusterAccess, Exec, Token, TokenFile
from hub.kube.hub_access import load_hub_access
from hub.kube.kubeconfig import KubeconfigPolicy, load_kubeconfig, parse_kubeconfig
from hub.kube.proxy import Login, Proxy
from hub.kube.secret import Secret

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n"
STRICT = KubeconfigPolicy()
FILES = KubeconfigPolicy(folders=(Path("/"),))


def b64(text: str) -> str:
    """Base64, as in the -data fields."""
    return base64.b64encode(text.encode()).decode()


def config(user: dict[str, Any], context: str = "hub", server: str = "https://api:6443", **cluster: Any) -> str:
    """A kubeconfig with one context."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "preferences": {},
            "current-context": context,
            "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
            "contexts": [{"name": context, "context": {"cluster": "c", "user": "u", "namespace": "edge"}}],
            "users": [{"name": "u", "user": user}],
        }
    )


def parse(user: dict[str, Any], policy: KubeconfigPolicy = STRICT, **cluster: Any) -> ClusterAccess:
    """Parse a kubeconfig with one context."""
    return parse_kubeconfig(config(user, **cluster).encode(), origin="here", policy=policy)


def test_parse_gives_the_whole_access() -> None:
    """Every field of the chosen context is read; data takes precedence over files."""
    access = parse(
        {"token": "abc\n"},
        **{
            "certificate-authority-data": b64(PEM),
            "certificate-authority": "/ignored",
            "tls-server-name": "api.internal",
            "proxy-url": "http://joe:p%40ss@proxy:3128",
            "disable-compression": True,
            "insecure-skip-tls-verify": False,
        },
    )
    assert access == ClusterAccess(
        server="https://api:6443",
        auth=Token(Secret("abc")),
        origin='here, context "hub"',
        ca_data=PEM.encode(),
        tls_server_name="api.internal",
        proxy=Proxy("http", "proxy", 3128, Login(Secret("joe"), Secret("p@ss"))),
        namespace="edge",
    )


@pytest.mark.parametrize(
    ("written", "server"),
    [
        ("https://API.example.com:443/", "https://api.example.com"),
        ("https://rancher.example.com/k8s/clusters/c-m-x1/", "https://rancher.example.com/k8s/clusters/c-m-x1"),
        ("https://[2001:DB8::1]:6443", "https://[2001:db8::1]:6443"),
        ("https://127.0.0.1:40001", "https://127.0.0.1:40001"),
        ("https://[::1]:40001", "https://[::1]:40001"),
        ("https://1a2b.gr7.eu-central-1.eks.amazonaws.com.", "https://1a2b.gr7.eu-central-1.eks.amazonaws.com"),
    ],
)
def test_server_is_normalised(written: str, server: str) -> None:
    """The server is normalized: lower case, no default port, no final slash."""
    assert parse({"token": "x"}, server=written).server == server


def test_certificate_from_data() -> None:
    """A client certificate in the document has its key as a Secret."""
    auth = parse({"client-certificate-data": b64(PEM), "client-key-data": b64(KEY), "client-key": "/ignored"}).auth
    assert auth == ClientCertificate(PEM.encode(), Secret(KEY))
    assert "AAAA" not in repr(auth)


def test_certificate_and_token_stand_together() -> None:
    """A kubeconfig may have both, as AKS admin files do; both are sent."""
    auth = parse({"client-certificate-data": b64(PEM), "client-key-data": b64(KEY), "token": "abc"}).auth
    assert auth == ClientCertificate(PEM.encode(), Secret(KEY), Token(Secret("abc")))


def test_base64_may_be_folded() -> None:
    """Base64 with line breaks is accepted."""
    folded = "\n".join(b64(PEM)[at : at + 20] for at in range(0, len(b64(PEM)), 20))
    assert parse({"token": "x"}, **{"certificate-authority-data": folded}).ca_data == PEM.encode()


def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    """Relative paths start from the folder of the kubeconfig; symlinks are allowed and files are read later."""
    user = {"client-certificate": "certs/hub.crt", "client-key": "/keys/hub.key"}
    (tmp_path / "real").write_text(config(user, **{"certificate-authority": "ca.crt"}))
    (tmp_path / "link").symlink_to("real")
    access = load_kubeconfig(tmp_path / "link", policy=FILES)
    assert access.ca_file == tmp_path / "ca.crt"
    assert access.auth == ClientCertificate(tmp_path / "certs/hub.crt", Path("/keys/hub.key"))


def test_token_file_wins_over_token(tmp_path: Path) -> None:
    """The field tokenFile takes precedence over token, as in client-go."""
    assert parse({"token": "old", "tokenFile": "/srv/token"}, FILES).auth == TokenFile(Path("/srv/token"))


def test_symlink_to_the_hubs_own_token_is_refused(tmp_path: Path) -> None:
    """A symlink to the hub's own service account token is refused."""
    (tmp_path / "token").symlink_to("/var/run/secrets/kubernetes.io/serviceaccount/token")
    with pytest.raises(KubeconfigError, match="the hub's own credentials"):
        parse({"tokenFile": str(tmp_path / "token")}, FILES)


PLUGIN = {
    "apiVersion": "client.authentication.k8s.io/v1beta1",
    "command": "aws",
    "args": ["eks", "get-token"],
    "env": [{"name": "AWS_PROFILE", "value": "hub"}, {"name": "EMPTY", "value": ""}],
    "interactiveMode": "IfAvailable",
    "provideClusterInfo": True,
    "installHint": "install it",
}


def test_exec_by_bare_name_runs_the_program_of_the_flag() -> None:
    """A command without a folder runs the program of the operator's flag, not the one on PATH."""
    access = parse(
        {"exec": PLUGIN},
        KubeconfigPolicy(allow_exec=frozenset({"/usr/local/bin/aws"})),
        extensions=[{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x", "n": 1}}],
    )
    assert access.auth == Exec(
        command="/usr/local/bin/aws",
        args=("eks", "get-token"),
        env=(("AWS_PROFILE", "hub"), ("EMPTY", "")),
        api_version="client.authentication.k8s.io/v1beta1",
        provide_cluster_info=True,
        cluster_config='{"audience": "x", "n": 1}',
    )


def test_exec_in_the_hubs_kubeconfig_needs_no_flag(tmp_path: Path) -> None:
    """The hub's own kubeconfig may run any program with any environment."""
    plugin = {**PLUGIN, "command": "./bin/login", "env": [{"name": "PATH", "value": "/opt"}]}
    (tmp_path / "config").write_text(config({"exec": plugin}))
    auth = load_hub_access(tmp_path / "config").auth
    assert isinstance(auth, Exec)
    assert (auth.command, auth.env) == (str(tmp_path / "bin/login"), (("PATH", "/opt"),))


def test_unknown_context_error_lists_contexts() -> None:
    """The error for an unknown context names the file, the nearest name and all names."""
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(config({"token": "x"}).encode(), origin="kubeconfig /x", policy=STRICT, context="hbu")
    assert str(caught.value) == 'kubeconfig /x: no context "hbu"; did you mean hub? it has: "hub"'


def test_unknown_context_among_many_is_short() -> None:
    """The error lists only a few of hundreds of contexts."""
    contexts = [{"name": f"ctx-{n:03}", "context": {"cluster": "c", "user": "u"}} for n in range(300)]
    data = yaml.safe_dump({"contexts": contexts}).encode()
    with pytest.raises(KubeconfigError, match=r'"ctx-009" and 290 more$'):
        parse_kubeconfig(data, origin="x", policy=STRICT, context="zzz")


def test_json_is_yaml() -> None:
    """Kubeconfigs in JSON are accepted, also with a byte order mark."""
    data = b"\xef\xbb\xbf" + json.dumps(yaml.safe_load(config({"token": "t"}))).encode()
    assert parse_kubeconfig(data, origin="x", policy=STRICT).auth == Token(Secret("t"))


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "large", "unreadable"])
def test_unreadable_file_is_named(tmp_path: Path, kind: str) -> None:
    """A missing, oversized or special file gives a one-line error, and a FIFO does not block."""
    path = tmp_path / "kubeconfig"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(b"#" * ((1 << 20) + 1))
    elif kind == "unreadable":
        path.symlink_to("/proc/self/mem/x")
    with pytest.raises(KubeconfigError, match=f"^kubeconfig {path}: cannot be read: [a-zA-Z]"):
        load_kubeconfig(path, policy=FILES)
