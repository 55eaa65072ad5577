"""How the leader replaces a token in a Secret, with clients that give prepared answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from hub.errors import Conflict, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.secret import Secret
from hub.observe.local.secrets import Secrets
from hub.onboarding.credential import kubeconfig, secret
from hub.onboarding.manifests import Manifest
from hub.onboarding.renewal import Remote, Renewal, due
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

    async def request(
        self, method: str, path: str, *, body: bytes = b"", admit: Callable[[], None] | None = None, **_: Any
    ) -> bytes:
        if admit is not None:
            admit()
        if method == "PUT":
            self.written.append((path, json.loads(body)))
        if isinstance(self.answer, HubError):
            raise self.answer
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


@pytest.mark.parametrize(
    ("wall", "is_due"),
    [(END - 1501, False), (END - 1500, True), (END, True), (END + 1, True)],
)
def test_tokens_are_due_after_half_of_their_life(wall: float, *, is_due: bool) -> None:
    """A token is due from half of its life on; one without begin or end is never due."""
    assert due(Secret(token(END)), wall) is is_due
    assert not due(None, wall)
    assert not due(Secret("opaque"), wall)
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "x", "exp": END}).encode()).rstrip(b"=").decode()
    assert not due(Secret(f"e30.{claims}.c2ln"), wall)


class World:
    """A hub cluster, cluster eu and the renewal, with a clock of their own."""

    def __init__(self, *, leads: bool = True) -> None:
        self.clock = ManualClock(CLOCK.time, CLOCK.wall_time)
        self.api = Api(secret("eu", "ops", CONTENT))
        self.eu = Eu(END + 1)
        self.remotes: dict[str, Remote] = {"eu": cast("Remote", self.eu)}
        client = cast("Client", self.api)
        self.leads = leads
        self.renewal = Renewal(
            Secrets(client, self.clock, "ops"), client, lambda: self.remotes, self.clock, lambda: self.leads
        )

    async def attempts(self, seconds: float) -> int:
        """The number of attempts after so many seconds more."""
        self.clock.advance(seconds)
        await self.renewal.renew_due()
        return self.renewal.counts.total()


async def test_attempts_are_repeated_after_a_failure_and_a_success() -> None:
    """After a failure the next attempt waits, longer each time; a success is not repeated for 10 s."""
    world = World()
    cast("Api", world.eu.client).answer = {"status": {"token": token(END)}}
    assert [await world.attempts(seconds) for seconds in (0, 1, 60, 1, 600)] == [1, 1, 2, 2, 3]
    assert list(world.renewal.problems) == ["eu"]
    cast("Api", world.eu.client).answer = {"status": {"token": token(END + 9000)}}
    assert [await world.attempts(seconds) for seconds in (600, 9)] == [4, 4]
    assert world.renewal.problems == {}
    assert await world.attempts(1) == 5
    assert world.renewal.counts == {("eu", "failed"): 3, ("eu", "succeeded"): 2}


async def test_secret_of_others_is_read_again_after_ten_minutes() -> None:
    """A Secret that is not renewed is not read at every check."""
    world = World()
    unlabelled = secret("eu", "ops", CONTENT)
    unlabelled["metadata"]["labels"] = {}
    world.api.answer = unlabelled
    await world.attempts(0)
    world.api.answer = secret("eu", "ops", CONTENT)
    assert [await world.attempts(seconds) for seconds in (599, 1)] == [0, 1]


async def test_clusters_that_are_gone_are_forgotten() -> None:
    """The problem of a cluster that is removed from the registry ends, and so does its waiting time."""
    world = World()
    cast("Api", world.eu.client).answer = {"status": {"token": token(END)}}
    await world.attempts(0)
    world.remotes = {}
    assert await world.attempts(0) == 1
    assert world.renewal.problems == {}
    world.remotes = {"eu": cast("Remote", world.eu)}
    assert await world.attempts(0) == 2


async def test_process_that_stops_leading_writes_nothing() -> None:
    """A process that does not lead any more neither requests a token nor writes one, and counts no failure."""
    world = World(leads=False)
    assert await world.attempts(0) == 0
    assert (world.api.written, world.renewal.problems) == ([], {})


@pytest.mark.parametrize("missing", ["mismatch", "client", "secret"])
async def test_only_known_clusters_with_a_secret_are_renewed(missing: str) -> None:
    """No token is renewed for a cluster that is not connected, is another one, or whose kubeconfig is a file."""
    world = World()
    eu: Any = world.eu
    if missing == "mismatch":
        eu.mismatch = "another cluster"
    elif missing == "client":
        eu.client = None
    else:
        eu.spec = ClusterSpec("eu", None)
    assert await world.attempts(0) == 0


@pytest.mark.parametrize(
    ("where", "error", "problem"),
    [
        (
            "remote",
            Forbidden(403, "Forbidden", "no", what="POST /api/v1/namespaces/hub/serviceaccounts/reader/token"),
            (
                "403: its account may not create tokens of itself («serviceaccounts/token: create»); "
                "apply what 'hub cluster add eu --print-manifests' prints there"
            ),
        ),
        (
            "remote",
            NotFound(404, "NotFound", "no", what="POST /api/v1/namespaces/hub/serviceaccounts/reader/token"),
            "its account does not exist any more; run 'hub cluster add eu --from-kubeconfig …' again",
        ),
        (
            "hub",
            Forbidden(403, "Forbidden", "no", what="GET /api/v1/namespaces/ops/secrets/eu"),
            "403: the hub's account lacks the rule «secrets eu: get, update» in the hub cluster",
        ),
        ("hub", NotFound(404, "NotFound", "no", what="GET /secrets/eu"), "GET /secrets/eu: 404 NotFound: no"),
        ("hub", Conflict(409, "Conflict", "no", what="PUT /secrets/eu"), "Secret eu changed meanwhile"),
    ],
)
async def test_problems_say_what_to_do(where: str, error: HubError, problem: str) -> None:
    """The problem names the cluster that refuses and the next step."""
    world = World()
    (world.api if where == "hub" else cast("Api", world.eu.client)).answer = error
    await world.attempts(0)
    assert world.renewal.problems == {"eu": problem}
