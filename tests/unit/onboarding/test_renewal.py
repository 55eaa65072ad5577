"""How the leader replaces a token in a Secret, with clients that give prepared answers."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import pytest

from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.secret import Secret
from hub.observe.local.secrets import Secrets
from hub.onboarding.credential import kubeconfig, secret
from hub.onboarding.manifests import Manifest
from hub.onboarding.renewal import Remote, Renewal
from hub.registry.spec import ClusterSpec, KubeconfigSecret
from tests.support.clocks import ManualClock

CLOCK = ManualClock()
END = CLOCK.wall() + 1000
"""The end of the present token, of whose life more than half is over."""


def token(end: float) -> str:
    """An unsigned token of a ServiceAccount that ends at this Unix time."""
    claims = {"sub": "system:serviceaccount:hub:reader", "iat": CLOCK.wall() - 2000, "exp": end}
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{part}.c2ln"


SERVER = b"""
clusters: [{name: eu, cluster: {server: "https://192.0.2.1"}}]
users: [{name: hub, user: {token: t}}]
contexts: [{name: eu, context: {cluster: eu, user: hub}}]
current-context: eu
"""
ACCESS = parse_kubeconfig(SERVER, origin="a test", policy=KubeconfigPolicy(), context=None)
CONTENT = kubeconfig("eu", ACCESS, None, Secret(token(END)))


class Api:
    """An API server that gives the same answer to every request and notes what is written."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.written: list[Any] = []
        access = parse_kubeconfig(CONTENT.encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
        self.access = Credentials(access, CLOCK)

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: Any) -> bytes:
        if method == "PUT":
            self.written.append((path, json.loads(body)))
        return json.dumps(self.answer).encode()


class Eu:
    """Remote cluster ``eu``, whose answer to a TokenRequest is a token that ends at ``end``."""

    spec = ClusterSpec("eu", None, kubeconfig=KubeconfigSecret("eu"))
    mismatch = ""

    def __init__(self, end: float) -> None:
        self.client = cast("Client", Api({"status": {"token": token(end)}}))


async def renew(end: float, stored: Manifest | None = None) -> tuple[Api, Renewal]:
    """Renew the token once; returns the hub cluster and the result.

    Args:
        end: the end of the new token.
        stored: the Secret; None = one with the token in use.
    """
    api = Api(stored or secret("eu", "ops", CONTENT))
    client, remotes = cast("Client", api), {"eu": cast("Remote", Eu(end))}
    renewal = Renewal(Secrets(client, CLOCK, "ops"), client, lambda: remotes, CLOCK, lambda: True)
    await renewal.renew_due()
    return api, renewal


async def test_new_token_replaces_the_old_one() -> None:
    """A token that ends later than the present one is written into the kubeconfig of the Secret."""
    api, renewal = await renew(END + 1)
    [(path, body)] = api.written
    assert path == "/api/v1/namespaces/ops/secrets/eu"
    assert base64.b64decode(body["data"]["kubeconfig"]).decode() == CONTENT.replace(token(END), token(END + 1))
    assert (renewal.counts, renewal.problems) == ({("eu", "succeeded"): 1}, {})


@pytest.mark.parametrize("end", [END, END - 1])
async def test_token_that_does_not_end_later_is_not_written(end: float) -> None:
    """The renewal fails, and the Secret stays as it is, if the new token ends no later than the present one."""
    api, renewal = await renew(end)
    assert (api.written, renewal.counts) == ([], {("eu", "failed"): 1})
    assert "a token that does not end later than the present one" in renewal.problems["eu"]


async def test_token_that_another_process_has_renewed_is_not_renewed_again() -> None:
    """If the Secret no longer contains the token in use, nothing is written, which is neither success nor failure."""
    newer = secret("eu", "ops", CONTENT.replace(token(END), token(END + 1)))
    api, renewal = await renew(END + 2, newer)
    assert (api.written, renewal.counts, renewal.problems) == ([], {}, {})


async def test_secret_without_the_hubs_label_is_not_written() -> None:
    """A Secret without the hub's label managed-by is not renewed, because someone else maintains it."""
    unlabelled = secret("eu", "ops", CONTENT)
    unlabelled["metadata"]["labels"] = {}
    api, renewal = await renew(END + 1, unlabelled)
    assert (api.written, renewal.counts, renewal.problems) == ([], {}, {})
