"""Targets: files that people write (the registry, kubeconfigs, inventories)."""

# ruff: noqa: PT017 - one check serves accepted and refused inputs

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import yaml
from hub_provider_inventory import InventoryError, parse, snapshot

from hub.decide.snapshot_view import view_of_snapshot
from hub.errors import KubeconfigError, RegistryError
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.plugin.answers import read_snapshot
from hub.registry.diff import diff
from hub.registry.load import loads
from tests.fuzz.checks import ACCEPTED, ALLOWED, CANARY, REFUSED, check_message, check_publishable
from tests.fuzz.mutate import as_json

ROOT: Final = Path(__file__).parents[2]

# --- the registry ----------------------------------------------------------------------------------------


EXAMPLE: Final = (ROOT / "clusters.example.yaml").read_bytes()
REGISTRY: Final = yaml.safe_load(EXAMPLE)
VIEWS: Final = {
    **{key: REGISTRY[key] for key in ("version", "owner", "clusters")},
    "views": {"selector": "service.metadata.name.startsWith('a')", "key": "name"},
}
LOADED: Final = loads(EXAMPLE, "clusters.yaml").registry


def as_yaml(tree: Any) -> bytes:
    """Encode a tree as block YAML, or as JSON if the YAML dumper cannot encode it."""
    try:
        text: bytes = yaml.dump(tree, Dumper=yaml.CSafeDumper, encoding="utf-8")
    except (yaml.YAMLError, UnicodeError):
        return as_json(tree)
    return text


def registry(content: bytes) -> str:
    """A registry loads or is refused; every problem has a position in the file and a message."""
    try:
        loaded = loads(content, "clusters.yaml")
        problems = loaded.problems
        diff(LOADED, loaded.registry)
        outcome = ACCEPTED
    except RegistryError as error:
        problems, outcome = error.problems, REFUSED
        assert problems
    # A problem may be at the end of the file, and YAML has more kinds of line breaks than splitlines().
    last = len(content.decode(errors="replace").splitlines()) + 2
    for problem in problems:
        assert problem.message
        assert problem.file == "clusters.yaml"
        if not problem.message.startswith("is empty"):  # this problem has no position
            assert 1 <= problem.line <= last, problem
            assert problem.column >= 1
        check_message(str(problem))
    return outcome


# --- kubeconfigs -----------------------------------------------------------------------------------------


PEM: Final = ssl.DER_cert_to_PEM_cert(CANARY.encode() * 9)
DATA: Final = {
    "client-certificate-data": b64encode(PEM.encode()).decode(),
    "client-key-data": b64encode(PEM.replace("CERTIFICATE", "PRIVATE KEY").encode()).decode(),
}
PLUGIN: Final = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "/opt/login",
    "args": ["--password", CANARY],
    "env": [{"name": "LOGIN_PASSWORD", "value": CANARY}],
    "interactiveMode": "Never",
    "provideClusterInfo": True,
}
USERS: Final[tuple[dict[str, Any], ...]] = ({"token": CANARY}, DATA, {"exec": PLUGIN}, {"tokenFile": "/srv/token"})
KUBECONFIGS: Final = [
    {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "hub",
        "preferences": {},
        "clusters": [
            {
                "name": "prod",
                "cluster": {
                    "server": "https://api.example.com:6443/k8s",
                    "certificate-authority-data": DATA["client-certificate-data"],
                    "tls-server-name": "api.internal",
                    "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}],
                },
            }
        ],
        "contexts": [{"name": "hub", "context": {"cluster": "prod", "user": "reader", "namespace": "edge"}}],
        "users": [{"name": "reader", "user": user}],
    }
    for user in USERS
]
POLICIES: Final = (
    KubeconfigPolicy(denied_servers=frozenset({("10.96.0.1", 443)})),
    KubeconfigPolicy(
        allow_exec=frozenset({"/opt/login"}),
        folders=(Path("/etc/kubeconfigs"), Path("/srv")),
        base=Path("/etc/kubeconfigs"),
    ),
    KubeconfigPolicy(trusted=True),
)


def kubeconfig(data: bytes) -> str:
    """Under every policy, a kubeconfig gives access by TLS with a credential, or an error without any of its values."""
    outcome = REFUSED
    for policy in POLICIES:
        try:
            access = parse_kubeconfig(data, origin="Secret hub/prod, key kubeconfig", policy=policy)
        except KubeconfigError as error:
            assert str(error).startswith("Secret hub/prod, key kubeconfig"), str(error)
            # Messages quote names, and an edit may have put the secret into a name.
            assert re.sub(f'"[^"]*{CANARY}[^"]*"', "", check_message(str(error))).find(CANARY) < 0
        else:
            assert access.server.startswith("https://")
            assert access.auth is not None
            assert CANARY not in repr(access)
            assert access.server.isprintable()
            assert access.origin.isprintable()
            outcome = ACCEPTED
    return outcome


# --- inventories -----------------------------------------------------------------------------------------


RECORDS: Final = [
    {"name": "w1", "private_ip": "10.0.0.1", "ready": True, "worker": True, "zone": "a"},
    {"name": "w2", "private_ip": "10.0.0.2", "ready": False, "worker": True, "ips": ["fd00::2", "10.0.0.3"]},
    {"name": "cp", "ips": ["10.0.0.9"], "ready": True, "worker": False, "zone": None, "rack": {"row": [1, 2.5, None]}},
]


def inventory(document: bytes) -> str:
    """Valid records can be published and others are named in a problem, or the document is refused with its name."""
    try:
        offered = snapshot("legacy.json", parse("legacy.json", document))
    except InventoryError as error:
        assert check_message(str(error)).startswith("legacy.json: ")
        return REFUSED
    assert offered.complete == (not offered.problems)
    for problem in offered.problems:
        check_message(problem)
    check_publishable(view_of_snapshot("legacy", read_snapshot(offered), None, ALLOWED, 5_000))
    return ACCEPTED
