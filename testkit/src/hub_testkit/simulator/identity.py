"""The certificate of all simulated clusters, and kubeconfigs that trust it."""

from __future__ import annotations

import base64
import ssl
from functools import cache
from importlib import resources

import msgspec

_HERE = resources.files("hub_testkit.simulator")


def _pem(name: str) -> str:
    text = (_HERE / name).read_text()
    return text[text.index("-----BEGIN") :]


AUTHORITY = _pem("loopback-ca.pem")
"""The certificate authority, in PEM. It signed one certificate for loopback names; its key was destroyed."""


@cache
def server_tls() -> ssl.SSLContext:
    """Returns the server's TLS context, the same for all simulated clusters, as they share the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with resources.as_file(_HERE / "loopback.pem") as path:
        context.load_cert_chain(path)
    return context


def client_tls() -> ssl.SSLContext:
    """Returns a TLS context that trusts only :data:`AUTHORITY`."""
    return ssl.create_default_context(cadata=AUTHORITY)


def kubeconfig(name: str, url: str, user: str, token: str) -> str:
    """Returns a kubeconfig with everything inline; cluster and context are called ``name``."""
    ca = base64.b64encode(AUTHORITY.encode()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority-data": ca}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    # Every JSON document is a YAML document.
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode() + "\n"
