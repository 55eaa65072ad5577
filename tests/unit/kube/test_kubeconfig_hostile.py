"""Hostile kubeconfigs, each with a twin that differs in one field and loads.

The twin proves that this field is the reason for the refusal. No message may show a value: every secret in this module
contains the word hunter2.
"""

from __future__ import annotations

import base64
import copy
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.errors import KubeconfigError
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.kubeconfig_document import quote
from hub.kube.kubeconfig_yaml import MAX_BYTES, MAX_DEPTH, MAX_NODES, parse_yaml

ORIGIN = "Secret hub/prod, key kubeconfig"
VERSION = "client.authentication.k8s.io/v1"
PEM = ssl.DER_cert_to_PEM_cert(b"hunter2 is no certificate, but this is read later")
KEY = PEM.replace("CERTIFICATE", "PRIVATE KEY")


def b64(text: str) -> str:
    """Base64, as in the -data fields."""
    return base64.b64encode(text.encode()).decode()


class Absent:
    """Marks a field that is absent."""


ABSENT = Absent()
TOKEN = {"token": "hunter2-token"}
CERTIFICATE = {"client-certificate-data": b64(PEM), "client-key-data": b64(KEY)}
PLUGIN = {"exec": {"apiVersion": VERSION, "command": "/opt/login", "args": ["--for", "hunter2"], "env": []}}
BASE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "hub",
    "clusters": [{"name": "prod", "cluster": {"server": "https://api.example.com:6443"}}],
    "contexts": [{"name": "hub", "context": {"cluster": "prod", "user": "reader"}}],
    "users": [{"name": "reader", "user": TOKEN}],
}
PLACES: dict[str, tuple[str | int, ...]] = {
    "root": (),
    "cluster": ("clusters", 0, "cluster"),
    "context": ("contexts", 0, "context"),
    "user": ("users", 0, "user"),
    "exec": ("users", 0, "user", "exec"),
    "env": ("users", 0, "user", "exec", "env"),
}


STRICT = KubeconfigPolicy()


@dataclass(frozen=True)
class Case:
    """``field`` holds ``bad`` in the hostile document and ``good`` in its twin."""

    id: str
    where: str
    bad: object
    good: object
    says: str
    user: dict[str, Any] = field(default_factory=lambda: TOKEN)
    policy: KubeconfigPolicy = STRICT


FILES = KubeconfigPolicy(folders=(Path("/etc/kubeconfigs"), Path("/srv"), Path("/run")), base=Path("/etc/kubeconfigs"))
MAY_RUN = KubeconfigPolicy(allow_exec=frozenset({"/opt/login"}))
DENIED = KubeconfigPolicy(
    denied_servers=frozenset({("kubernetes.default.svc", 443), ("10.96.0.1", 443), ("fd00::1", 443)})
)
URL = "https://api.example.com:6443"


def server(id_: str, bad: str, says: str = "server: ", good: str = URL, policy: KubeconfigPolicy = DENIED) -> Case:
    """A case with a server that must not be contacted."""
    return Case(f"server-{id_}", "cluster.server", bad, good, says, policy=policy)


def program(id_: str, field_: str, bad: object, good: object, says: str) -> Case:
    """A case with an exec plugin that is refused, although the program of its twin is allowed."""
    return Case(f"exec-{id_}", f"exec.{field_}", bad, good, says, PLUGIN, MAY_RUN)


CASES = [
    # whom we would talk to
    server("plain-http", "http://api.example.com:6443", "must start with https://"),
    server("other-scheme", "file:///etc/passwd", "must start with https://"),
    server("no-scheme", "api.example.com:6443", "must start with https://"),
    server("userinfo", "https://admin:hunter2@api.example.com", "user or password"),
    server("query", f"{URL}?token=hunter2", "plain path"),
    server("fragment", f"{URL}#hunter2", "plain path"),
    server("dot-dot", f"{URL}/k8s/../hunter2", "plain path", f"{URL}/k8s/clusters/c-x1"),
    server("encoded-path", f"{URL}/%2e%2e/hunter2", "plain path"),
    server("port-0", "https://api.example.com:0", "port"),
    server("port-large", "https://api.example.com:65536", "not a URL", "https://api.example.com:65535"),
    server("port-word", "https://api.example.com:hunter2", "not a URL"),
    server("no-host", "https://:6443", "host"),
    server("empty", "", "missing"),
    server("number", 6443, "must be text"),  # type: ignore[arg-type]
    server("newline", f"{URL}\nHost: hunter2", "not printable"),
    server("space", "https://api.example.com evil", "not a host name"),
    server("international", "https://äpi.example.com", "xn--"),
    server("brackets", "https://[hunter2]:6443", "not a URL", "https://[2001:db8::1]:6443"),
    server("metadata-aws", "https://169.254.169.254", "metadata", "https://169.253.169.254"),
    server("metadata-name", "https://metadata.google.internal", "metadata"),
    server("metadata-name-dot", "https://METADATA.google.internal.", "metadata"),
    server("metadata-alibaba", "https://100.100.100.200", "metadata", "https://100.100.100.201"),
    server("metadata-azure", "https://168.63.129.16", "metadata"),
    server("metadata-ipv6", "https://[fd00:ec2::254]", "metadata", "https://[fd00:ec2::255]"),
    server("metadata-mapped", "https://[::ffff:169.254.169.254]", "metadata"),
    server("metadata-6to4", "https://[2002:a9fe:a9fe::1]", "metadata"),
    server("metadata-decimal", "https://2852039166", "canonical"),
    server("metadata-hex", "https://0xa9fea9fe", "canonical"),
    server("metadata-octal", "https://0251.0376.0251.0376", "canonical"),
    server("metadata-short", "https://169.16689662", "canonical"),
    server("link-local", "https://169.254.7.7:6443", "link-local"),
    server("link-local-ipv6", "https://[fe80::1]:6443", "link-local"),
    server("unspecified", "https://0.0.0.0:6443", "not an address of one machine", "https://127.0.0.1:6443"),
    server("multicast", "https://224.0.0.1", "not an address of one machine"),
    server("broadcast", "https://255.255.255.255", "not an address of one machine"),
    server("hub-cluster-name", "https://kubernetes.default.svc", "local", "https://kubernetes.default.svc:6443"),
    server("hub-cluster-address", "https://10.96.0.1:443/", "local", "https://10.96.0.1:6443"),
    server("hub-cluster-mapped", "https://[::ffff:10.96.0.1]", "local", "https://[::ffff:10.96.0.2]"),
    server("metadata-nat64", "https://[64:ff9b::a9fe:a9fe]", "metadata", "https://[64:ff9b::a01:203]"),
    server("zone", "https://[2001:db8::1%25eth0]:6443", "zone", "https://[::1]:6443"),
    server("hub-cluster-ipv6", "https://[FD00:0::1]", "local", "https://[fd00::2]"),
    Case("insecure", "cluster.insecure-skip-tls-verify", bad=True, good=False, says="remove this field and give"),
    Case("insecure-text", "cluster.insecure-skip-tls-verify", "true", None, "true or false"),
    Case("proxy-scheme", "cluster.proxy-url", "ftp://x:hunter2@proxy:21", "http://x:hunter2@proxy:21", "must be http://"),
    Case("proxy-path", "cluster.proxy-url", "http://hunter2/@proxy", "http://hunter2%2F@proxy", "%XX"),
    Case("proxy-port", "cluster.proxy-url", "http://x:hunter2@proxy:0", "http://x:hunter2@proxy:1", "1 and 65535"),
    Case("proxy-metadata", "cluster.proxy-url", "socks5://[::ffff:169.254.169.254]", "socks5://[::1]", "metadata"),
    Case("proxy-number", "cluster.proxy-url", 3128, "http://proxy:3128", "must be text"),
    Case("proxy-newline", "cluster.proxy-url", "http://x\r\nhunter2@proxy", "https://proxy", "not printable"),
    Case("server-name", "cluster.tls-server-name", "evil\r\nhunter2", "api.internal", "not printable"),
    Case("server-name-bad", "cluster.tls-server-name", "hunter2/..", "10.0.0.1", "not a host name"),
    Case("ca-file-from-secret", "cluster.certificate-authority", "/etc/ca", ABSENT, "may not refer to files"),
    Case("ca-not-base64", "cluster.certificate-authority-data", "hunter2!", b64(PEM), "not base64"),
    Case("ca-not-pem", "cluster.certificate-authority-data", b64("hunter2"), b64(PEM), "no certificate in PEM format"),
    Case("ca-number", "cluster.certificate-authority-data", 7, b64(PEM), "must be text"),
    Case("ca-is-key", "cluster.certificate-authority-data", b64(KEY), b64(PEM), "no certificate in PEM format"),
    Case("cluster-unknown", "cluster.certificate-authority-date", b64(PEM), ABSENT, "certificate-authority-data"),
    # who we would be
    Case("anonymous", "user.token", ABSENT, "hunter2", "never connects anonymously"),
    Case("anonymous-empty", "user.token", "", "hunter2", "never connects anonymously"),
    Case("anonymous-null", "user.token", None, "hunter2", "never connects anonymously"),
    Case("token-number", "user.token", 2_000_000, "2000000", "must be text"),
    Case("token-header-injection", "user.token", "hunter2\r\nX-Remote-User: admin", "hunter2\n", "cannot have"),
    Case("token-not-ascii", "user.token", "hünter2", "hunter2", "cannot have"),
    Case("token-endless", "user.token", "hunter2" * 10_000, "hunter2" * 9_000, "cannot have"),
    Case("token-file-from-secret", "user.tokenFile", "/etc/hostname", ABSENT, "may not refer to files"),
    Case("token-file-own", "user.tokenFile", "/var/run/secrets/kubernetes.io/serviceaccount/token",
         "/var/run/secrets/remote/token", "hub's own", policy=FILES),
    Case("token-file-own-dots", "user.tokenFile", "../../run/secrets/kubernetes.io/serviceaccount/token",
         "../../run/secrets/remote/token", "hub's own", policy=FILES),
    Case("token-file-environ", "user.tokenFile", "/proc/self/environ", "/srv/self/environ", "pseudo", policy=FILES),
    Case("token-file-relative", "user.tokenFile", "token", "/srv/token", "absolute",
         policy=KubeconfigPolicy(folders=(Path("/srv"),))),
    Case("token-file-outside", "user.tokenFile", "/etc/hostname", "/srv/token", "set --credentials-dir", policy=FILES),
    Case("token-file-dots", "user.tokenFile", "../hostname", "token", "set --credentials-dir", policy=FILES),
    Case("ca-file-outside", "cluster.certificate-authority", "/etc/ca", "/srv/ca", "--credentials-dir", policy=FILES),
    Case("token-file-nul", "user.tokenFile", "/srv/to\0ken", "/srv/token", "not printable", policy=FILES),
    Case("impersonate", "user.as", "system:admin", "", "impersonation"),
    Case("impersonate-uid", "user.as-uid", "0", "", "impersonation"),
    Case("impersonate-groups", "user.as-groups", ["system:masters"], [], "impersonation"),
    Case("impersonate-extra", "user.as-user-extra", {"scopes": ["hunter2"]}, {}, "impersonation"),
    Case("username", "user.username", "hunter2", ABSENT, "basic authentication"),
    Case("password", "user.password", "hunter2", "", "basic authentication"),
    Case("auth-provider", "user.auth-provider", {"name": "oidc", "config": {"client-secret": "hunter2"}}, ABSENT,
         "was removed"),
    Case("user-unknown", "user.tokenfile", "/hunter2", ABSENT, "tokenFile"),
    Case("user-unknown-secret", "user.hunter2", "x", ABSENT, "remove it"),
    Case("key-missing", "user.client-key-data", ABSENT, b64(KEY), "client-key: is missing", CERTIFICATE),
    Case("certificate-missing", "user.client-certificate-data", ABSENT, b64(PEM), "come as a pair", CERTIFICATE),
    Case("key-not-base64", "user.client-key-data", "hunter2", b64(KEY), "not base64", CERTIFICATE),
    Case("key-not-pem", "user.client-key-data", b64("hunter2"), b64(KEY), "no private key in PEM format", CERTIFICATE),
    Case("key-file-from-secret", "user.client-key", "/hunter2", ABSENT, "may not refer to files"),
    # what we would run
    Case("exec-from-stranger", "user.exec", PLUGIN["exec"], ABSENT, "--allow-exec /opt/login"),
    program("other-program", "command", "/bin/sh", "/opt/login", "--allow-exec /bin/sh"),
    program("bare-other-program", "command", "sh", "login", "--allow-exec sh"),
    program("dot-dot", "command", "/opt/../bin/sh", "/opt/login", "--allow-exec"),
    program("shell", "command", "/opt/login; hunter2", "/opt/login", "--allow-exec PROGRAM"),
    program("relative", "command", "./login", "/opt/login", "absolute"),
    program("no-command", "command", ABSENT, "/opt/login", "is missing"),
    program("old-version", "apiVersion", "client.authentication.k8s.io/v1alpha1", f"{VERSION}beta1", "apiVersion"),
    program("no-version", "apiVersion", ABSENT, VERSION, "apiVersion"),
    program("asks", "interactiveMode", "Always", "IfAvailable", "has no terminal"),
    program("args-text", "args", "--token hunter2", ["--token", "hunter2"], "list of texts"),
    program("args-numbers", "args", [1], ["1"], "list of texts"),
    program("env-preload", "env", [{"name": "LD_PRELOAD", "value": "/tmp/hunter2.so"}],
            [{"name": "LOGIN_PROFILE", "value": "/tmp/hunter2.so"}], "LD_PRELOAD"),
    program("env-path", "env", [{"name": "PATH", "value": "/tmp"}], [{"name": "PATHS", "value": "/tmp"}], "PATH"),
    program("env-python", "env", [{"name": "PYTHONPATH", "value": "/tmp"}], [], "PYTHONPATH"),
    program("env-name", "env", [{"name": "A=B", "value": "x"}], [{"name": "A", "value": "x"}], "usable name"),
    program("env-value", "env", [{"name": "A", "value": 2}], [{"name": "A", "value": "2"}], "must be text"),
    program("env-mapping", "env", {"A": "hunter2"}, [], "list of name and value"),
    program("unknown", "stdin", "hunter2", ABSENT, "remove it"),
    Case("exec-and-token", "user.token", "hunter2", ABSENT, "keep one", PLUGIN, MAY_RUN),
    Case("exec-text", "user.exec", "/opt/login", PLUGIN["exec"], "must be a mapping", PLUGIN, MAY_RUN),
    # which entries
    Case("no-current", "root.current-context", ABSENT, "hub", 'it has: "hub"'),
    Case("wrong-current", "root.current-context", "hubb", "hub", "did you mean hub?"),
    Case("dangling-cluster", "context.cluster", "prd", "prod", "did you mean prod?"),
    Case("dangling-user", "context.user", "root", "reader", "there is no user"),
    Case("no-user", "context.user", ABSENT, "reader", "user: is missing"),
    Case("namespace", "context.namespace", "../kube-system", "kube-system", "not a namespace name"),
    Case("kind", "root.kind", "Secret", "Config", "decoded value"),
    Case("version", "root.apiVersion", "v2", "v1", "not a kubeconfig"),
    Case("users-mapping", "root.users", {"reader": TOKEN}, BASE["users"], "must be a list"),
    Case("users-nameless", "root.users", [{"user": TOKEN}], BASE["users"], "needs a name"),
    Case("users-twice", "root.users", BASE["users"] * 2, BASE["users"], "is taken"),
    Case("clusters-text", "root.clusters", "hunter2", BASE["clusters"], "must be a list"),
]  # fmt: skip


def build(case: Case, value: object) -> bytes:
    """The document with ``value`` in the case's field."""
    document = copy.deepcopy(BASE)
    document["users"][0]["user"] = copy.deepcopy(case.user)
    place, _, name = case.where.partition(".")
    at: Any = document
    for step in PLACES[place]:
        at = at[step]
    if isinstance(value, Absent):
        at.pop(name, None)
    else:
        at[name] = value
    dumper = yaml.SafeDumper
    dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign,assignment]
    return yaml.dump(document, Dumper=dumper, allow_unicode=True, width=1 << 20).encode()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_hostile_kubeconfig_is_refused_and_its_twin_loads(case: Case) -> None:
    """The refusal names the field and the next step and quotes no value."""
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(build(case, case.bad), origin=ORIGIN, policy=case.policy)
    message = str(caught.value)
    assert (message.startswith(ORIGIN), case.says in message, "hunter2" in message) == (True, True, False), message
    assert message.isprintable()
    parse_kubeconfig(build(case, case.good), origin=ORIGIN, policy=case.policy)


TEXT = yaml.safe_dump(BASE)
LAUGHS = "\n".join(["l0: &l0 [x, x]", *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 9))])

DOCUMENTS: list[tuple[str, bytes, bytes, str]] = [
    ("alias", b"a: &x hunter2\nb: *x\n", b"a: hunter2\nb: hunter2\n", ":1: YAML anchors and aliases"),
    ("alias-bomb", LAUGHS.encode(), b"l0: [x, x]\n", ":1: YAML anchors and aliases"),
    ("anchor-alone", b"a: &x hunter2\n", b"a: hunter2\n", ":1: YAML anchors and aliases"),
    ("alias-key", b"a: 1\n? *x\n: hunter2\n", b"a: 1\nb: hunter2\n", ":2: YAML anchors and aliases"),
    ("merge-key", b"<<: {a: hunter2}\n", b"'<<': {a: hunter2}\n", ":1: YAML merge keys"),
    ("tag-python", b"a: !!python/object/apply:os.system [hunter2]\n", b"a: [hunter2]\n", ":1: YAML tags"),
    ("tag-plain", b"a: !!str hunter2\n", b"a: hunter2\n", ":1: YAML tags"),
    ("tag-key", b"!!str a: hunter2\n", b"a: hunter2\n", ":1: YAML tags"),
    ("duplicate-key", b"a: x\nb: y\na: hunter2\n", b"a: x\nb: y\nc: hunter2\n", ":3: a key is written twice"),
    ("nested-duplicate", b"a: {b: 1, b: hunter2}\n", b"a: {b: 1, c: hunter2}\n", ":1: a key is written twice"),
    ("mapping-key", b"? {a: hunter2}\n: x\n", b"? a\n: x\n", ":1: a key that is not text"),
    ("two-documents", b"a: 1\n---\n", b"a: 1\n", "a second YAML document"),
    ("deep", b"a: " + b"[" * 40 + b"]" * 40 + b"\n", b"a: " + b"[" * 20 + b"]" * 20 + b"\n", "nested deeper"),
    ("many", b"a: [" + b"1," * 30_000 + b"]\n", b"a: [" + b"1," * 10_000 + b"]\n", "more than 20000 values"),
    ("broken", b"a: [hunter2\n", b"a: [hunter2]\n", "not valid YAML"),
    ("tab", b"a:\n\tb: hunter2\n", b"a:\n  b: hunter2\n", ":2:1: not valid YAML"),
    ("control-character", b"a: \x07hunter2\n", b"a: hunter2\n", "characters that YAML does not allow"),
    ("latin-1", b"a: h\xfcnter2 hunter2\n", "a: hünter2\n".encode(), "not UTF-8"),
    ("utf-16", TEXT.encode("utf-16"), b"", "not UTF-8"),
    ("large", b"#" * (MAX_BYTES - len(TEXT) + 1), b"#" * (MAX_BYTES - len(TEXT) - 1), "larger than 1048576 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "good", "says"), [case[1:] for case in DOCUMENTS], ids=[case[0] for case in DOCUMENTS])
def test_hostile_yaml_is_refused_and_its_twin_loads(bad: bytes, good: bytes, says: str) -> None:
    """Hostile YAML is refused by the parser with its line and without any of its content."""
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(bad + TEXT.encode(), origin=ORIGIN, policy=KubeconfigPolicy())
    message = str(caught.value)
    assert (message.startswith(ORIGIN), says in message, "hunter2" in message) == (True, True, False), message
    parse_kubeconfig(good + b"\n" + TEXT.encode(), origin=ORIGIN, policy=KubeconfigPolicy())


@pytest.mark.parametrize(
    ("of_size", "largest", "says"),
    [
        (lambda size: b"[" * size + b"]" * size, MAX_DEPTH + 1, "nested deeper than 32 levels"),
        (lambda size: b"{a: " * size + b"}" * size, MAX_DEPTH, "nested deeper than 32 levels"),
        (lambda size: b"[" + b"1," * size + b"]", MAX_NODES - 1, "more than 20000 values"),
        (lambda size: b"#" * size, MAX_BYTES, "larger than 1048576 bytes"),
    ],
    ids=["lists", "mappings", "values", "bytes"],
)
def test_largest_yaml_is_parsed_and_larger_is_refused(of_size: Callable[[int], bytes], largest: int, says: str) -> None:
    """A document at a limit is parsed, and one above it is refused; the keys of a mapping are one level deeper."""
    parse_yaml(of_size(largest), ORIGIN)
    with pytest.raises(KubeconfigError, match=says):
        parse_yaml(of_size(largest + 1), ORIGIN)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"a: [1\nb: 2\n", "x:2:2: not valid YAML; check indentation and quotes there"),
        (b"a: {b: 1\n", "x:2:1: not valid YAML; check indentation and quotes there"),
        (b"a: 'b\n", "x:2:1: not valid YAML; check indentation and quotes there"),
        (b"a: \x07", "x: not valid YAML: it holds characters that YAML does not allow"),
        (b"a: 1\n---\nb: 1\n", "x:2: a second YAML document; keep one kubeconfig in a file"),
        (b"a: 1\nb:\n  c: &d e\n", "x:3: YAML anchors and aliases are not accepted; write the value out"),
    ],
)
def test_yaml_error_has_the_place_of_the_problem(document: bytes, says: str) -> None:
    """Lines and columns begin at 1; the place is that of the problem, not that of the value around it."""
    with pytest.raises(KubeconfigError) as caught:
        parse_yaml(document, "x")
    assert str(caught.value) == says


def test_yaml_values_are_those_of_json() -> None:
    """Null, bool and JSON numbers are values; quoted ones and all other scalars are text."""
    document = b"""
n: [null, ~, Null, '', 'null', "~"]
b: [true, True, yes, on, false, no, off, 'true', "no"]
i: [7, -7, 0, '7', 0x10, 1_000, 010]
f: [1.5, -1e3, .5, .inf, '1.5']
t: [2026-01-01, a b, "<<"]
e:
"""
    found = parse_yaml(document, "x")
    assert found == {
        "n": [None, None, None, "", "null", "~"],
        "b": [True, True, True, True, False, False, False, "true", "no"],
        "i": [7, -7, 0, "7", "0x10", "1_000", "010"],
        "f": [1.5, "-1e3", ".5", ".inf", "1.5"],
        "t": ["2026-01-01", "a b", "<<"],
        "e": None,
    }
    assert found.lines == {"n": 2, "b": 3, "i": 4, "f": 5, "t": 6, "e": 7}


EMPTY = "empty; write the file with: kubectl config view --flatten --minify"
NO_MAPPING = "not a kubeconfig: a mapping with clusters, contexts and users is expected"
NO_CONFIG = "not a kubeconfig: kind Config of apiVersion v1 is expected"
NAMELESS = "users[0]: needs a name (text; put it in quotes)"
NO_CONTEXT = "no context given and no current-context set; it has: no contexts at all"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", f"x: {EMPTY}"),
        (b"# nothing\n", f"x: {EMPTY}"),
        (b"null", f"x: {EMPTY}"),
        (b"hunter2", f"x: {NO_MAPPING}"),
        (b"[hunter2]", f"x: {NO_MAPPING}"),
        (b"7", f"x: {NO_MAPPING}"),
        (b"{}", f"x: {NO_CONTEXT}"),
        (b"contexts: []", f"x: {NO_CONTEXT}"),
        (b"current-context: ''\nkind: Config\napiVersion: v1", f"x: {NO_CONTEXT}"),
        (b"current-context: 7", "x: current-context: must be text; put it in quotes"),
        (b"kind: Secret", f"x: {NO_CONFIG}; give the decoded value of its key, not the Secret"),
        (b"kind: Pod", f"x: {NO_CONFIG}"),
        (b"apiVersion: v2", f"x: {NO_CONFIG}"),
        (b"a: 1\nusers: {}", "x:2: users: must be a list of entries with name and user"),
        (b"contexts: x", "x:1: contexts: must be a list of entries with name and context"),
        (b"users: [x]", f"x: {NAMELESS}"),
        (b"users: [{name: ''}]", f"x: {NAMELESS}"),
        (b"users: [{name: 7}]", f"x: {NAMELESS}"),
        (b"users: [{name: u}, {name: u}]", 'x: users[1]: the name "u" is taken; rename one'),
        (b"users: [{name: u, user: x}]", f"x: {NO_CONTEXT}"),
    ],
)
def test_document_that_is_no_kubeconfig_is_refused(document: bytes, says: str) -> None:
    """The error says what is expected, and quotes nothing but names."""
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(document, origin="x", policy=KubeconfigPolicy())
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("hub", '"hub"'),
        ("x" * 100, f'"{"x" * 100}"'),
        ("x" * 101, f'"{"x" * 100}"'),
        ("\n" + "x" * 99, f"'\\n{'x' * 99}'"),
        ("\n" + "x" * 100, f"'\\n{'x' * 98}\\u2026'"),
    ],
)
def test_a_name_is_quoted_on_one_line_and_cut(name: str, shown: str) -> None:
    """Of a name, 100 characters are shown; one that is not printable is escaped."""
    assert quote(name) == shown


def test_other_entries_of_the_file_are_not_judged() -> None:
    """Only the entries of the chosen context are checked."""
    document = copy.deepcopy(BASE)
    document["users"].append({"name": "evil", "user": PLUGIN})
    document["clusters"].append({"name": "evil", "cluster": {"server": "http://169.254.169.254"}})
    document["contexts"].append({"name": "evil", "context": {"cluster": "evil", "user": "evil"}})
    data = yaml.safe_dump(document).encode()
    assert parse_kubeconfig(data, origin=ORIGIN, policy=KubeconfigPolicy()).server == URL
    with pytest.raises(KubeconfigError, match='context "evil"'):
        parse_kubeconfig(data, origin=ORIGIN, policy=KubeconfigPolicy(), context="evil")


def test_names_in_messages_cannot_forge_lines() -> None:
    """A context name with line breaks or terminal codes is escaped and cut."""
    document = copy.deepcopy(BASE)
    document["contexts"][0]["name"] = "x\n\x1b[2Jall is well" + "y" * 500
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(yaml.safe_dump(document).encode(), origin=ORIGIN, policy=KubeconfigPolicy())
    assert (str(caught.value).isprintable(), len(str(caught.value)) < 400) == (True, True)


def test_table_holds_at_least_sixty_kubeconfigs() -> None:
    """The table has the number of cases that the threat model asks for."""
    assert len({case.id for case in CASES}) == len(CASES) >= 60
