"""Requests: the token, limits, what is no answer, and the errors of the plugin API."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qs

import pytest
from hub_provider_brightbox.client import RATE_WAIT, Client, Member, decoded
from hub_provider_brightbox.shapes import as_list
from hub_provider_brightbox.testing import CLIENT, SECRET, BrightboxFake
from hub_testkit.contexts import LocalHub

from hub.plugin import ProviderError, TerminalProviderError, TransientProviderError
from hub.plugin.clouds import CloudConflict, CloudRefusal, QuotaExceeded, Uncertain
from tests.support.clocks import ManualClock

BODY = {"name": "x"}


class Account:
    """A client, its fake, and the hub's services."""

    def __init__(self, fake: BrightboxFake, hub: LocalHub, clock: ManualClock) -> None:
        self.fake, self.hub, self.clock = fake, hub, clock
        self.client = Client(hub, fake.url, hub.secret({"env": "ID"}), hub.secret({"env": "SECRET"}))

    @property
    def logins(self) -> int:
        """How often a token was asked for."""
        return sum(row.path == "/token/" for row in self.fake.log)


@pytest.fixture
async def at() -> AsyncGenerator[Account, None]:
    """A client of the fake."""
    clock = ManualClock()
    async with BrightboxFake() as fake:
        secrets = {"ID": CLIENT, "SECRET": SECRET}
        async with LocalHub(secrets=secrets, allow_api_hosts=frozenset((fake.host,)), clock=clock) as hub:
            yield Account(fake, hub, clock)


async def test_one_login_serves_all_requests(at: Account) -> None:
    """Requests at once share one login, made as the API documents it."""
    await asyncio.gather(*(at.client.list("servers") for _ in range(5)))
    assert at.logins == 1
    login = at.fake.log[0]
    assert parse_qs(login.body) == {"grant_type": ["client_credentials"], "scope": ["infrastructure"]}
    assert login.status == 200


@pytest.mark.parametrize(("life", "expected"), [(100.0, 80.0), (math.inf, 5400.0)])
async def test_a_token_is_renewed_before_it_expires(at: Account, life: float, expected: float) -> None:
    """At 80 % of the life that the answer states; after 90 minutes if it states none."""
    at.fake.life = life
    await at.client.list("servers")
    at.clock.advance(expected - 1)
    await at.client.list("servers")
    assert at.logins == 1
    at.clock.advance(2)
    await at.client.list("servers")
    assert at.logins == 2


async def test_a_refused_token_is_renewed_once(at: Account) -> None:
    """After a 401 the request is sent again with a new token; a second 401 is the credential's fault."""
    await at.client.list("servers")
    at.fake.fail("expire")
    assert await at.client.list("servers") == []
    assert at.logins == 2
    at.fake.fail("expire", times=None)
    with pytest.raises(TerminalProviderError, match="check the API client"):
        await at.client.list("servers")
    assert at.logins == 3


async def test_a_rotated_secret_is_read_again(at: Account) -> None:
    """After a 401 the credentials are read anew."""
    await at.client.list("servers")
    at.hub.secrets["SECRET"] = "wrong-secret-2"
    at.fake.fail("expire", times=None)
    with pytest.raises(TerminalProviderError, match="the API client is refused: 401 invalid_client") as caught:
        await at.client.list("servers")
    assert "wrong-secret-2" not in str(caught.value)
    assert base64.b64encode(b"cli-fake1:wrong-secret-2").decode() not in str(caught.value)


READS = [
    ("empty-object", TransientProviderError, "a list of objects"),
    ("null", TransientProviderError, "a list of objects"),
    ("html-200", TransientProviderError, "not JSON"),
    ("html", TransientProviderError, "502"),
    ("error", TransientProviderError, "503 maintenance: later"),
    ("page", TransientProviderError, "one page of several"),
    ("redirect", TransientProviderError, "redirect"),
    ("cut", TransientProviderError, "no complete answer"),
    ("lost-answer", TransientProviderError, "no complete answer"),
    ("large", TransientProviderError, "more than 64 MiB"),
    ("forbidden", TerminalProviderError, "may not do that"),
    ("throttled", TransientProviderError, "429 rate_limited"),
]


@pytest.mark.parametrize(("fault", "error", "words"), READS)
async def test_a_broken_answer_is_no_list(at: Account, fault: str, error: type[Exception], words: str) -> None:
    """Whatever is not a whole list raises; it never counts as an empty one."""
    at.fake.account.add_server()
    at.fake.fail(fault, path="/1.0/", times=None)
    with pytest.raises(error, match=words) as caught:
        await at.client.list("servers")
    assert not isinstance(caught.value, Uncertain)
    at.fake.heal()
    assert len(await at.client.list("servers")) == 1


WRITES = [
    ("null", False, None, ""),
    ("html-200", False, Uncertain, "not JSON"),
    ("empty", False, Uncertain, "with an object"),
    ("html", False, Uncertain, "502"),
    ("error", False, Uncertain, "503"),
    ("redirect", False, TransientProviderError, "redirect"),
    ("cut", True, Uncertain, "no complete answer"),
    ("lost-answer", True, Uncertain, "no complete answer"),
    ("quota", False, QuotaExceeded, "Account limit reached"),
    ("forbidden", False, TerminalProviderError, "may not do that"),
    ("throttled", False, TransientProviderError, "429"),
    ("refused", False, CloudRefusal, "422 invalid_resource: is invalid"),
]


@pytest.mark.parametrize(("fault", "made", "error", "words"), WRITES)
async def test_a_write_without_an_answer_is_uncertain(
    at: Account, fault: str, made: bool, error: type[Exception] | None, words: str
) -> None:
    """Sent and not answered wholly = Uncertain, and it is not sent a second time; a refusal made nothing."""
    await at.client.list("servers")
    at.fake.fail(fault, path="/1.0/")
    if error is None:
        assert await at.client.write("POST", "cloud_ips", BODY) == {}
    else:
        with pytest.raises(error, match=words) as caught:
            await at.client.write("POST", "cloud_ips", BODY)
        assert isinstance(caught.value, Uncertain) == (error is Uncertain)
    assert len(at.fake.account.objects["cloud_ips"]) == made
    assert at.fake.writes == ["POST /1.0/cloud_ips"]


async def test_a_connection_that_never_was_sent_nothing(at: Account) -> None:
    """A refused connection is Transient, not Uncertain, also for a write."""
    await at.client.list("servers")
    await at.fake.__aexit__()
    with pytest.raises(Uncertain):  # on the connection of the request before
        await at.client.write("POST", "cloud_ips", BODY)
    with pytest.raises(TransientProviderError, match="cannot be reached") as caught:
        await at.client.write("POST", "cloud_ips", BODY)
    assert not isinstance(caught.value, Uncertain)


@pytest.mark.parametrize(("fault", "after"), [("throttled", 1.0), ("throttled-without-time", RATE_WAIT)])
async def test_a_rate_limit_says_how_long_to_wait(at: Account, fault: str, after: float) -> None:
    """Retry-After, or 60 s."""
    at.fake.fail(fault, path="/1.0/")
    with pytest.raises(TransientProviderError) as caught:
        await at.client.list("servers")
    assert caught.value.retry_after == after


async def test_a_conflict_made_nothing(at: Account) -> None:
    """A mapped Cloud IP cannot be deleted, a locked balancer cannot be changed: CloudConflict."""
    cloud_ip = at.fake.account.add_cloud_ip()
    cloud_ip["server"] = {"id": at.fake.account.add_server()["id"]}
    with pytest.raises(CloudConflict, match="409 conflict"):
        await at.client.write("DELETE", f"cloud_ips/{cloud_ip['id']}")
    locked = at.fake.account.create("load_balancers", {"name": "x"})["id"]
    at.fake.account.objects["load_balancers"][locked]["locked"] = True
    with pytest.raises(CloudConflict, match="resource_locked"):
        await at.client.write("PUT", f"load_balancers/{locked}", BODY)


async def test_what_is_gone_is_a_key_error(at: Account) -> None:
    """404 of one object; of a list it means that this is not the API."""
    with pytest.raises(KeyError):
        await at.client.get("servers/srv-99999")
    with pytest.raises(TransientProviderError, match="check url"):
        await at.client.list("nothing")


@pytest.mark.parametrize(
    "path", ["servers/../x", "servers/srv-1", "servers/srv-12345?a=b", "servers/SRV-12345", "servers/srv-12345/a/b", ""]
)
async def test_hostile_ids_get_into_no_path(at: Account, path: str) -> None:
    """A path is words and one valid id; anything else is not sent."""
    with pytest.raises(ProviderError, match="without a valid id"):
        await at.client.write("DELETE", path)
    assert at.fake.log == []


@pytest.mark.parametrize("id_", [None, "", "srv-../x", 7])
async def test_a_list_with_a_strange_id_is_an_error(at: Account, id_: Any) -> None:
    """Objects without a valid id make the list broken."""
    at.fake.account.add_server()["id"] = id_
    at.fake.account.objects["servers"] = {str(id_): next(iter(at.fake.account.objects["servers"].values()))}
    from hub_provider_brightbox.testing import shapes

    original = shapes.reference
    shapes.reference = lambda collection, _: {**original(collection, "x"), "id": id_}  # type: ignore[assignment]
    try:
        with pytest.raises(TransientProviderError, match="without a valid id"):
            await at.client.list("servers")
    finally:
        shapes.reference = original


@pytest.mark.parametrize(
    "url",
    [
        "http://api.gb1.brightbox.com",
        "ftp://127.0.0.1",
        "https://user@api.gb1.brightbox.com",
        "https://api.gb1.brightbox.com/1.0",
        "https://elsewhere.test",
        "api.gb1.brightbox.com",
    ],
)
def test_another_address_is_refused(url: str) -> None:
    """Only the default host, or one that the hub's flags name; without TLS only loopback: the secret is sent there."""
    hub = LocalHub(secrets={"ID": CLIENT, "SECRET": SECRET}, allow_api_hosts=frozenset(("allowed.test",)))
    secret = hub.secret({"env": "ID"})
    with pytest.raises(TerminalProviderError):
        Client(hub, url, secret, secret)
    Client(hub, "https://api.gb1.brightbox.com/", secret, secret)
    Client(hub, "https://allowed.test", secret, secret)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'[{"id": "grp-1", "servers": [{"id": "srv-1", "name": "x"}], "fqdn": "f"}]', {"servers": [{"id": "srv-1"}]}),
        (b'[{"id": "lba-1", "nodes": [{"id": "srv-1", "status": "active"}]}]', {"nodes": [{"id": "srv-1"}]}),
        (b'[{"id": "srv-1", "zone": {"id": "zon-1", "handle": "z"}}]', {"zone": {"id": "zon-1", "handle": "z"}}),
        (b'[{"id": "grp-1", "servers": [{"name": "x"}, 7, null]}]', {"servers": [{"name": "x"}, 7, None]}),
        (b'[{"id": "grp-1", "servers": {"id": "srv-1"}}]', {"servers": {"id": "srv-1"}}),
    ],
)
def test_answers_keep_the_ids_of_embedded_servers(text: bytes, expected: dict[str, Any]) -> None:
    """Nothing else of them is used, and they make most of an answer; other values, also unexpected ones, stay."""
    [found] = as_list(decoded(text, {}))
    assert {key: found[key] for key in expected} == expected
    assert decoded(text[1:-1], {}) == found


def test_a_server_of_many_balancers_takes_memory_once() -> None:
    """The same server of two load balancers is the same object."""
    members: dict[str, Member] = {}
    one, other = as_list(decoded(b'[{"nodes": [{"id": "srv-1"}]}, {"nodes": [{"id": "srv-1"}]}]', members))
    [third] = as_list(decoded(b'[{"servers": [{"id": "srv-1"}]}]', members))
    assert one["nodes"][0] is other["nodes"][0] is third["servers"][0]


@pytest.mark.parametrize("text", [b"{}", b"null", b"[]", b"[1]", b'"x"', b'{"id": 1}', b'{"a": [{"id": "a", "b": 1}]}'])
def test_other_answers_are_decoded_as_they_are(text: bytes) -> None:
    """Only of servers something is left out."""
    assert decoded(text, {}) == json.loads(text)
