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
        extensions=[
            "x",
            {"name": "other", "extension": 1},
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x", "n": 1}},
        ],
    )
    assert access.auth == Exec(
        command="/usr/local/bin/aws",
        args=("eks", "get-token"),
        env=(("AWS_PROFILE", "hub"), ("EMPTY", "")),
        api_version="client.authentication.k8s.io/v1beta1",
        provide_cluster_info=True,
        cluster_config='{"audience": "x", "n": 1}',
    )


@pytest.mark.parametrize(
    ("command", "runs"),
    [("aws", "/opt/a/aws"), ("/opt/b/aws", "/opt/b/aws"), ("aws/x", "/etc/aws/x"), ("login", "/opt/login")],
)
def test_allowed_program_is_run(command: str, runs: str) -> None:
    """A path must be listed as it is; of several programs with the name, the first in order is run."""
    policy = KubeconfigPolicy(frozenset({"/opt/login", "/opt/b/aws", "/opt/a/aws", "/etc/aws/x"}), base=Path("/etc"))
    auth = parse({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command}}, policy).auth
    assert auth == Exec(runs)


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


WRITTEN = """\
current-context: {current}
clusters:
- name: c
  cluster:
    server: {server}
contexts:
- name: hub
  context: {context}
users:
- name: u
  user: {user}
"""
"""A kubeconfig with one context; the server is in line 5, the context in 8, the user in 11."""
LOGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/opt/login"}
MAY_RUN = KubeconfigPolicy(allow_exec=frozenset({"/opt/login"}))


def plugin(**fields: Any) -> dict[str, Any]:
    """A user with a plugin."""
    return {"exec": {**LOGIN, **fields}}


CLUSTER = 'x:5: context "hub", cluster "c"'
CONTEXT = 'x:8: context "hub"'
USER = 'x:11: context "hub", user "u"'
NO_LINE = 'x: context "hub", user "u"'
EXEC = f"{USER}, exec"
PAIR = "is missing: certificate and key come as a pair"
ANONYMOUS = "has no credential, and the hub never connects anonymously; give a token or a client certificate"
UNSAFE = "may not be set here: it changes what the program runs"
NO_TERMINAL = "the hub has no terminal; use a plugin mode that needs none"
NO_BASE64 = "is not base64; write it with: base64 -w0 FILE"
IMPERSONATION = "impersonation is not supported; give the hub an account of its own"
NO_PEM = "in PEM format; encode the PEM file with: base64 -w0 FILE"
NO_CERTIFICATE = f"contains no certificate {NO_PEM}"
NO_BASIC = "Kubernetes no longer has basic authentication; give a token or a client certificate"
NOT_RUN = "the hub may not run this program; start it with --allow-exec"
REFUSALS: list[tuple[str, Any, str]] = [
    ("current", "hubb", 'x: its current-context "hubb" is not among its contexts; did you mean hub? it has: "hub"'),
    ("current", None, 'x: no context given and no current-context set; it has: "hub"'),
    ("current", ["hub"], "x: current-context: must be text; put it in quotes"),
    ("server", "https://admin@api", f"{CLUSTER}: server: must not hold a user or password; use the user entry"),
    ("server", "https://:hunter2@api", f"{CLUSTER}: server: must not hold a user or password; use the user entry"),
    ("server", "https://api/a//b", f"{CLUSTER}: server: must be https://HOST:PORT, at most with a plain path"),
    ("server", "https://api/a/..", f"{CLUSTER}: server: must be https://HOST:PORT, at most with a plain path"),
    ("server", "https://api:0", f"{CLUSTER}: server: needs a host and a port between 1 and 65535"),
    ("server", "https://:1", f"{CLUSTER}: server: needs a host and a port between 1 and 65535"),
    ("context", {"cluster": "c", "user": "u", "namespace": "A"}, f"{CONTEXT}: namespace: is not a namespace name"),
    ("context", {"cluster": "c", "user": "u", "namespace": "a" * 64}, f"{CONTEXT}: namespace: is not a namespace name"),
    ("context", {"cluster": "c", "user": "u", "namespce": "a"}, f"{CONTEXT}: unknown field; did you mean namespace?"),
    ("context", {"cluster": "c"}, "x: context \"hub\": user: is missing; name one of the file's users"),
    ("context", {"cluster": "d", "user": "u"}, f'{CONTEXT}: cluster: there is no cluster "d"; add it to clusters'),
    ("user", {}, f"{NO_LINE}: {ANONYMOUS}"),
    ("user", {"tokn": "x"}, f"{USER}: unknown field; did you mean token?"),
    ("user", {"token": ["x"]}, f"{USER}: token: must be text; put it in quotes"),
    ("user", {"client-certificate-data": b64(PEM)}, f"{NO_LINE}: client-key: {PAIR}"),
    ("user", {"client-key-data": b64(KEY)}, f"{NO_LINE}: client-certificate: {PAIR}"),
    ("user", {"client-key-data": b64(PEM)}, f"{USER}: client-key-data: contains no private key {NO_PEM}"),
    ("user", {"client-certificate-data": b64(KEY)}, f"{USER}: client-certificate-data: {NO_CERTIFICATE}"),
    ("user", {"client-certificate-data": [PEM]}, f"{USER}: client-certificate-data: must be text; put it in quotes"),
    ("user", {"client-certificate-data": f"!{b64(PEM)}"}, f"{USER}: client-certificate-data: {NO_BASE64}"),
    ("user", {"token": "x", "as": True}, f"{USER}: as: {IMPERSONATION}"),
    ("user", {"token": "x", "as-user-extra": {"a": ["b"]}}, f"{USER}: as-user-extra: {IMPERSONATION}"),
    ("user", {"username": "x"}, f"{USER}: username: {NO_BASIC}"),
    ("user", {"password": "x"}, f"{USER}: password: {NO_BASIC}"),
    ("user", {"auth-provider": {"name": "x"}}, (f"{USER}: auth-provider: was removed from Kubernetes; give a token, a "
                                               "certificate or an exec plugin")),
    ("user", {"token": "x", **plugin()}, f"{USER}: exec: cannot go with another credential; keep one of them"),
    ("user", {"client-certificate-data": b64(PEM), "client-key-data": b64(KEY), **plugin()},
     f"{USER}: exec: cannot go with another credential; keep one of them"),
    ("user", {"exec": "login"}, f"{USER}: exec: must be a mapping with command and apiVersion"),
    ("exec", {"apiVersion": None}, (f"{EXEC}: apiVersion: must be client.authentication.k8s.io/v1 or "
                                   "client.authentication.k8s.io/v1beta1; update the plugin's configuration")),
    ("exec", {"command": None}, f"{EXEC}: command: is missing; name the program"),
    ("exec", {"command": "/opt/login/x"}, f"{EXEC}: command: {NOT_RUN} /opt/login/x"),
    ("exec", {"command": "bin/login"}, f"{EXEC}: command: must be an absolute path"),
    ("exec", {"command": "a b"}, f"{EXEC}: command: {NOT_RUN} PROGRAM"),
    ("exec", {"command": "kubelogin"}, f"{EXEC}: command: {NOT_RUN} kubelogin"),
    ("exec", {"args": "x"}, f"{EXEC}: args: must be a list of texts; put numbers in quotes"),
    ("exec", {"args": ["x", 1]}, f"{EXEC}: args: must be a list of texts; put numbers in quotes"),
    ("exec", {"args": ["a\0"]}, f"{EXEC}: args: must be a list of texts; put numbers in quotes"),
    ("exec", {"env": "x"}, f"{EXEC}: env: must be a list of name and value"),
    ("exec", {"env": ["x"]}, f"{EXEC}: env: an entry lacks a usable name"),
    ("exec", {"env": [{"name": "1a"}]}, f"{EXEC}: env: an entry lacks a usable name"),
    ("exec", {"env": [{"name": "A", "value": 1}]}, f'{EXEC}: env: the value of "A" must be text; put it in quotes'),
    ("exec", {"env": [{"name": "A", "value": "\0"}]}, f'{EXEC}: env: the value of "A" must be text; put it in quotes'),
    ("exec", {"env": [{"name": "LD_PRELOAD"}]}, f'{EXEC}: env: "LD_PRELOAD" {UNSAFE}'),
    ("exec", {"interactiveMode": "Always"}, f"{EXEC}: interactiveMode: {NO_TERMINAL}"),
    ("exec", {"provideClusterInfo": "true"}, f"{EXEC}: provideClusterInfo: must be true or false, without quotes"),
]  # fmt: skip


@pytest.mark.parametrize("nothing", ["null", '""', "false", "[]", "{}"])
def test_field_without_effect_is_no_reason_to_refuse(nothing: str) -> None:
    """Fields that are refused may be present with a value that kubectl ignores."""
    fields = ("as", "as-uid", "as-groups", "as-user-extra", "username", "password", "auth-provider")
    assert parse({"token": "x", **{name: json.loads(nothing) for name in fields}}).auth == Token(Secret("x"))


@pytest.mark.parametrize(("where", "value", "says"), REFUSALS)
def test_refusal_names_line_entry_and_field(where: str, value: Any, says: str) -> None:
    """The whole message has the file, the line if the field is present, the entry, the field and the problem."""
    parts: dict[str, Any] = {
        "current": "hub",
        "server": "https://api",
        "context": {"cluster": "c", "user": "u"},
        "user": {"token": "x"},
        **({"user": plugin(**value)} if where == "exec" else {where: value}),
    }
    data = WRITTEN.format_map({name: json.dumps(part) for name, part in parts.items()}).encode()
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(data, origin="x", policy=MAY_RUN)
    assert str(caught.value) == says


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
