"""The listener: addresses and names, headers, bad requests, caching, and the documents of the API."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import HTTPBadRequest

from hub.errors import HubError, UsageError
from hub.model import TargetKey
from hub.report import reasons, server, web
from hub.report.api import answer, number
from hub.report.openapi import document
from hub.report.server import Listen, listening
from hub.report.site import ANSWER_SECONDS, AT_ONCE, Site
from hub.report.state import PROBED
from hub.report.values import NOT_PROBED
from hub.report.web import is_own
from tests.support.waiting import until
from tests.unit.report.conftest import Watched, Where, nothing, watching

ROOT = Path(__file__).parents[3]


# --- where ---------------------------------------------------------------------------------------------


def test_heavy_libraries_are_imported_at_the_first_connection() -> None:
    """A hub without connections does not load aiohttp, jinja2 and prometheus_client."""
    code = (
        "import sys, hub.cli.run, hub.app.hub, hub.report.server\n"
        "print([name for name in ('aiohttp', 'jinja2', 'prometheus_client') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("host", [None, "0.0.0.0", "10.0.0.1", "::", "hub.example.com"])
def test_address_beyond_loopback_needs_an_explicit_choice(host: str | None) -> None:
    """An address beyond loopback needs an explicit choice about authentication."""
    with pytest.raises(UsageError, match="--listen-authenticate"):
        Listen(Where(host)).check()
    Listen(Where(host), authenticate=True).check()
    Listen(Where(host), unauthenticated=True).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_authentication(host: str) -> None:
    """Loopback needs no authentication, since local users could read the hub's files anyway."""
    Listen(Where(host)).check()


def test_a_certificate_comes_with_its_key() -> None:
    """A certificate without a key is an error instead of plain HTTP."""
    with pytest.raises(UsageError, match="go together"):
        Listen(Where(), cert_file="x").check()


@pytest.mark.parametrize(
    ("query", "found"),
    [("", 7), ("n=", 7), ("n=0", 0), ("n=12", 12), ("n=9999999", 1000), ("n=1000", 1000), ("n=1001", 1000)],
)
def test_number_in_the_query_has_a_default_and_a_limit(query: str, found: int) -> None:
    """A missing number is the default; a number of at most seven digits is limited."""
    assert number(make_mocked_request("GET", f"/?{query}"), "n", 7, 1000) == found


@pytest.mark.parametrize("query", ["n=10000000", "n=x", "n=-1", "n=²"])
def test_invalid_number_is_an_error(query: str) -> None:
    """A number has at most seven ASCII digits."""
    with pytest.raises(HTTPBadRequest):
        number(make_mocked_request("GET", f"/?{query}"), "n", 7, 1000)


@pytest.mark.parametrize("name", ["hub.example.com:443", "10.0.0.1:443", "[fd00::5]:443", "https://hub.example", ""])
def test_a_host_that_could_never_be_asked_for_is_refused(name: str) -> None:
    """A host with a port or a scheme would never match, so it is refused; the error names the flag."""
    with pytest.raises(UsageError, match=re.escape(f"--allowed-host {name}: neither name nor address")):
        Listen(Where(), allowed_hosts=frozenset({name})).check()
    Listen(Where(), allowed_hosts=ALLOWED).check()


async def test_explicit_address_in_use_is_an_error(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """If the default address is in use, the hub runs without the page; an explicit address is an error."""
    where = Where(*watched.place)
    with pytest.raises(HubError, match=r"--listen .*: address already in use; give another HOST:PORT"):
        async with listening(Listen(where), watched.hub):
            pass
    with caplog.at_level(logging.WARNING):
        async with listening(Listen(where, by_default=True), watched.hub) as urls:
            assert urls == ()
    assert "no status page: --listen" in caplog.text


async def test_off_listens_nowhere(watched: Watched) -> None:
    """``--listen 0`` opens no sockets."""
    async with listening(Listen(None), watched.hub) as urls:
        assert urls == ()


# --- what everybody gets ---------------------------------------------------------------------------------


EVERY_ANSWER_HAS_THE_SAM = [
    "/",
    "/services/edge/payments",
    "/clusters/eu",
    "/api/v1/status",
    "/static/page.js",
    "/metrics",
    "/nosuch",
]


async def test_every_answer_has_the_same_armour(watched: Watched) -> None:
    """Every answer has the security headers, and does not name the server's software."""
    for path in EVERY_ANSWER_HAS_THE_SAM:
        _, _, headers = await watched.get(path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Server"] == "endpointslice-hub"


WHO_HAS_IT_ALREADY_IS_TO = ["/", "/api/v1/status", "/openapi.json", "/static/page.css"]


async def test_matching_etag_gets_304(watched: Watched) -> None:
    """A request with a matching If-None-Match gets 304 without a body."""
    for path in WHO_HAS_IT_ALREADY_IS_TO:
        status, text, headers = await watched.get(path)
        assert (status, bool(text)) == (200, True)
        tag = headers["ETag"]
        for sent in (tag, f"W/{tag}", f'"other", {tag}'):
            assert (await watched.get(path, headers={"If-None-Match": sent}))[:2] == (304, "")
        assert (await watched.get(path, headers={"If-None-Match": '"other"'}))[0] == 200


def test_no_list_of_tags_takes_long_to_read() -> None:
    """Parsing If-None-Match takes linear time, since it would block the hub's event loop."""
    request = make_mocked_request("GET", "/", headers={"If-None-Match": "x" + " " * 40_000 + "x"})
    began = time.perf_counter()
    assert answer(request, b"").status == 200
    assert time.perf_counter() - began < 0.5


async def test_the_head_of_an_answer_can_be_asked_for(watched: Watched) -> None:
    """HEAD is answered without a body."""
    async with watched.session.head(f"{watched.url}/api/v1/status") as answer:
        assert answer.status == 200
        assert await answer.read() == b""


NOTHING_CAN_BE_CHANGED = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"]


async def test_other_methods_get_405(watched: Watched) -> None:
    """Other methods get 405 on every path."""
    for method in NOTHING_CAN_BE_CHANGED:
        for path in ("/", "/api/v1/status", "/nosuch"):
            async with watched.session.request(method, watched.url + path) as answer:
                assert answer.status == 405
                assert answer.headers["Allow"] == "GET, HEAD"


async def test_a_body_is_not_read(watched: Watched) -> None:
    """A GET with a body is refused without reading the body."""
    status, text, _ = await watched.get("/api/v1/status", data=b"x" * 100_000)
    assert (status, json.loads(text)["detail"]) == (413, "the request must have no body")


PATH_TRICKS_LEAD_NOWHERE = [
    "/../etc/passwd",
    "/static/../__init__.py",
    "/static/..%2f__init__.py",
    "/static/%2e%2e/page.css",
    "//static/page.css",
    "/static//page.css",
    "/static/page.css/",
    "/services/edge%2fpayments/x",
    "/services/edge/pay%00ments",
    "/services/EDGE/payments",
    "/services/edge/.",
    "/services/edge/" + "x" * 300,
    "/clusters/" + "a-" * 10,
    "/clusters/nosuch",
    "/services/edge/nosuch",
    "/api/v1/services/edge/nosuch",
    "/api/v1/clusters/nosuch",
    "/api/v1/status/",
    "/api",
    "\\",
]


async def test_path_tricks_lead_nowhere(watched: Watched) -> None:
    """Unusual paths, sent unchanged, get 404 or 400 and never a file."""
    for path in PATH_TRICKS_LEAD_NOWHERE:
        head, body = await raw(watched, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert head[9:12] in (b"404", b"400"), (path, head)
        assert b"import" not in body
        assert b"Traceback" not in body


A_NUMBER_THAT_IS_NONE_IS = ["offset=x", "offset=-1", "limit=1e9", "offset=٣", "limit=99999999"]


async def test_invalid_number_in_the_query_is_400(watched: Watched) -> None:
    """An invalid number in the query gets 400."""
    for query in A_NUMBER_THAT_IS_NONE_IS:
        assert (await watched.get(f"/api/v1/services/edge/payments?{query}"))[0] == 400


async def raw(watched: Watched, sent: bytes) -> tuple[bytes, bytes]:
    """Send bytes, and return head and body of everything that the server sends before it closes."""
    reader, writer = await asyncio.open_connection(*watched.place)
    writer.write(sent)
    async with asyncio.timeout(15):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


A_MALFORMED_REQUEST_IS_R = [
    b"nonsense\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
]


async def test_malformed_request_affects_no_other(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A malformed request gets 400, does not affect the next request, and logs no error."""
    for sent in A_MALFORMED_REQUEST_IS_R:
        head, body = await raw(watched, sent)
        assert head.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400")), head
        assert b"aiohttp" not in head
        assert b"Traceback" not in body
        assert (await watched.get("/api/v1/status"))[0] == 200
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_request_that_never_ends_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a complete request head is closed after a while."""
    monkeypatch.setattr(web, "IDLE", 0.3)
    async with watching(tmp_path) as watched:
        assert await raw(watched, b"") == (b"", b"")
        head, _ = await raw(watched, b"GET / HTTP/1.1\r\nHost: loc")
        assert head == b""


async def test_a_crowd_is_refused_and_the_next_one_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections beyond the limit are closed at once; when others close, new ones are served."""
    monkeypatch.setattr(web, "CONNECTIONS", 3)
    async with watching(tmp_path) as watched:
        first = [await asyncio.open_connection(*watched.place) for _ in range(3)]
        await asyncio.sleep(0)
        first[0][1].write(b"GET /static/page.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await first[0][0].readline()).startswith(b"HTTP/1.1 200")
        reader, writer = await asyncio.open_connection(*watched.place)
        assert await nothing(reader)
        for _, opened in (*first, (reader, writer)):
            opened.close()
        await asyncio.sleep(0.1)
        assert (await watched.get("/api/v1/status"))[0] == 200


async def test_answers_for_disconnected_callers_are_not_computed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers whose callers have disconnected are not computed, except those that have begun."""
    may, made = threading.Event(), []

    def prepared(_: object, subject: str, **_more: object) -> Callable[[], str]:
        made.append(subject)
        return lambda: subject if may.wait(10) else ""

    def answers() -> int:
        return sum(task.get_name() == "answer" for task in asyncio.all_tasks())

    assert (await watched.get("/services/edge/payments"))[0] == 200
    await asyncio.sleep(ANSWER_SECONDS)
    monkeypatch.setattr(reasons, "prepare_why", prepared)
    callers = []
    for caller in range(AT_ONCE + 10):
        _, writer = await asyncio.open_connection(*watched.place)
        writer.write(b"GET /api/v1/why?subject=n%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % caller)
        callers.append(writer)
    await until(lambda: answers() == AT_ONCE + 10)
    assert len(made) == AT_ONCE
    for writer in callers:
        writer.transport.abort()
    await until(lambda: answers() == AT_ONCE, 5)
    may.set()
    assert (await watched.get("/services/edge/payments"))[0] == 200
    assert len(made) == AT_ONCE


async def test_computation_continues_while_one_caller_waits(watched: Watched) -> None:
    """A computation continues while one of its callers waits; after all have gone, the next caller starts a new one."""
    site, may, made = Site(watched.hub), asyncio.Event(), []

    async def make(name: str) -> str:
        await may.wait()
        made.append(name)
        return name

    def ask(name: str) -> asyncio.Task[str]:
        return asyncio.create_task(site.cached(name, lambda: make(name)))

    others = [ask(f"other{number}") for number in range(AT_ONCE)]
    one, two, alone = ask("both"), ask("both"), ask("alone")
    await asyncio.sleep(0)
    one.cancel()
    alone.cancel()
    await asyncio.gather(one, alone, return_exceptions=True)
    again = ask("alone")
    may.set()
    async with asyncio.timeout(5):
        assert await asyncio.gather(two, again, *others) == ["both", "alone", "other0", "other1"]
    assert sorted(made) == ["alone", "both", "other0", "other1"]


async def test_a_defect_tells_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets 500 without details, and the traceback is logged."""

    def broken(_: Site) -> None:
        raise RuntimeError("a secret place")

    monkeypatch.setattr(Site, "snapshot", broken)
    status, text, _ = await watched.get("/api/v1/status")
    assert (status, json.loads(text)) == (500, {"status": 500, "title": "Internal Server Error", "detail": ""})
    assert "a secret place" in caplog.text


# --- under which name ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:8080", True),
        ("127.1.2.3", True),
        ("[::1]:8080", True),
        ("10.1.2.3:8080", True),
        ("hub.edge.svc", True),
        ("hub.edge.svc.:443", True),
        ("10.1.2.4", False),
        ("evil.example.com", False),
        ("127.0.0.1.nip.io", False),
        ("localhost.evil.example.com", False),
        ("", False),
        ("localhost:x", False),
        ("localhost@evil.example.com", False),
        ("user@localhost", False),
    ],
)
def test_a_host_is_one_of_ours_or_refused(host: str, own: bool) -> None:
    """Host may be loopback, the address of the connection, or an allowed name."""
    assert is_own(host, {"localhost", "hub.edge.svc"}, "10.1.2.3") is own


ALLOWED = frozenset({"Hub.Example.com", "final.example.com.", "fd00::5", "[FD00:0::6]"})
FOREIGN_AND_OWN = [
    ("evil.example.com", 421),
    ("[fd00::4]", 421),
    ("hub.example.com:8080", 200),
    ("final.example.com", 200),
    ("[fd00::5]:8080", 200),
    ("[fd00:0::6]", 200),
    (socket.gethostname(), 200),
]


async def test_a_foreign_name_is_refused(tmp_path: Path) -> None:
    """A Host header with a foreign name gets 421 (DNS rebinding); --allowed-host allows a name."""
    async with watching(tmp_path, Listen(Where(), allowed_hosts=ALLOWED)) as watched:
        for host, status in FOREIGN_AND_OWN:
            found, text, _ = await watched.get("/api/v1/status", headers={"Host": host})
            assert found == status, host
            assert ("edge/payments" in text) is (status == 200)


# --- documents ---------------------------------------------------------------------------------------------


async def test_the_status_is_the_whole_hub(watched: Watched) -> None:
    """The status has the replica, its clusters and its Services."""
    found = await watched.json("/api/v1/status")
    assert found["hub"]["role"] == "leader"
    assert found["hub"]["leader"] == found["hub"]["identity"]
    [cluster] = found["clusters"]
    assert (cluster["name"], cluster["state"], cluster["nodes"]) == ("eu", "Ready", 3)
    [service] = found["services"]
    assert (service["name"], service["status"], service["ready"], service["total"]) == ("edge/payments", "", 3, 3)
    assert service["changed"] is not None


async def test_a_standby_names_the_leader(tmp_path: Path) -> None:
    """A standby reports the clusters and slices that it follows, and the leader."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with watching(folders[0], leader_elect=True) as leader:
        other = json.loads((folders[0] / "clusters.yaml").read_text())
        assert other["services"]
        from hub.app.hub import Options, assemble

        options = Options(str(folders[0] / "clusters.yaml"), str(folders[0] / "hub"))
        async with assemble(options) as hub, listening(Listen(Where()), hub) as [url]:
            stop = asyncio.Event()
            running = asyncio.create_task(hub.run(stop))
            await until(lambda: bool(hub.elector.holder) and hub.local.synced and bool(hub.fleet.clusters["eu"].nodes))
            async with leader.session.get(f"{url}/api/v1/status") as answer:
                found = await answer.json()
            async with leader.session.get(f"{url}/services/edge/payments") as answer:
                assert answer.status == 200
            stop.set()
            await running
    assert (found["hub"]["role"], found["hub"]["leader"]) == ("standby", leader.hub.elector.identity)
    assert found["clusters"][0]["nodes"] == 3
    assert (found["services"][0]["status"], found["services"][0]["ready"]) == ("standby: as published", 3)


async def test_a_service_has_the_decisions_behind_each_address(watched: Watched) -> None:
    """Each address has the steps of hub why; ``offset`` and ``limit`` select a part of the addresses."""
    found = await watched.json("/api/v1/services/edge/payments")
    assert [address["address"] for address in found["addresses"]] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    stages = [step["stage"] for step in found["addresses"][0]["steps"]]
    assert stages[:5] == ["node", "eligibility", "resolution", "address", "published"]
    assert found["steps"][0]["outcome"] == "followed"
    part = await watched.json("/api/v1/services/edge/payments?offset=1&limit=1")
    assert ([address["address"] for address in part["addresses"]], part["offset"], part["number"]) == (
        ["10.0.0.2"],
        1,
        3,
    )


async def test_impossible_subject_is_400(watched: Watched) -> None:
    """A subject that no object can have gets 400."""
    for subject in ("", "../x", "a/b/c", "%00", "x" * 300, "<b>"):
        assert (await watched.get("/api/v1/why", params={"subject": subject}))[0] == 400


async def test_history_has_what_happened(watched: Watched) -> None:
    """The history has the newest events of a Service or of all, oldest of them first; a wrong name or limit is 400."""
    watched.remote.nodes.delete("n2")
    await until(lambda: len(watched.hub.history.of(TargetKey("edge", "payments"))) == 2)
    found = await watched.json("/api/v1/history?service=edge/payments")
    added, removed = found["entries"]
    assert (added["what"], added["count"], found["number"], found["problem"]) == ("added", 3, 2, "")
    assert removed == {
        "at": removed["at"],
        "service": "edge/payments",
        "what": "removed",
        "why": "its node is gone (provider node-addresses)",
        "cluster": "eu",
        "family": "IPv4",
        "endpoints": [{"address": "10.0.0.2", "node": "n2"}],
        "count": 1,
        "hash": "",
    }
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", removed["at"])
    assert (await watched.json("/api/v1/history"))["entries"] == [added, removed]
    assert (await watched.json("/api/v1/history?limit=1"))["entries"] == [removed]
    assert (await watched.json("/api/v1/history?limit=0"))["entries"] == []
    assert (await watched.json("/api/v1/history?service=edge/other"))["entries"] == []
    for query in ("service=edge", "service=edge/../x", "service=a/b/c", "limit=-1", "limit=x"):
        assert (await watched.get(f"/api/v1/history?{query}"))[0] == 400


async def test_a_cluster_has_its_nodes(watched: Watched) -> None:
    """A cluster's document has its nodes with their addresses."""
    found = await watched.json("/api/v1/clusters/eu")
    assert [(node["name"], node["addresses"]) for node in found["sources"][0]["nodes"]] == [
        (f"n{number}", [f"10.0.0.{number}"]) for number in (1, 2, 3)
    ]


async def test_metrics_are_on_the_same_listener(watched: Watched) -> None:
    """Metrics are served in the text format."""
    status, text, headers = await watched.get("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert "endpointslice_hub_" in text


async def test_the_description_of_the_api_is_served_and_current(watched: Watched) -> None:
    """If this fails, run ``python -m hub.report.openapi > docs/reference/openapi.json``."""
    assert (await watched.get("/openapi.json"))[1].encode() == document()
    assert (ROOT / "docs" / "reference" / "openapi.json").read_bytes() == document()


def test_check_verdict_says_only_whether_it_is_probed() -> None:
    """The verdict of a check says only whether it is probed."""
    verdict = json.loads(document())["components"]["schemas"]["Checked"]["properties"]["verdict"]
    assert verdict["enum"] == [NOT_PROBED, PROBED]


async def test_answers_are_as_described(watched: Watched) -> None:
    """Answers have only keys of their schemas, and all required ones."""
    schemas = json.loads(document())["components"]["schemas"]
    for path, name in (
        ("/api/v1/status", "Status"),
        ("/api/v1/services/edge/payments", "ServiceDetail"),
        ("/api/v1/clusters/eu", "ClusterDetail"),
        ("/api/v1/why?subject=10.0.0.1", "Why"),
        ("/api/v1/history", "History"),
    ):
        conforms(await watched.json(path), {"$ref": f"#/components/schemas/{name}"}, schemas)


def conforms(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Check objects and arrays against a schema."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        chosen = [option for option in schema["anyOf"] if (option.get("type") == "null") is (value is None)]
        conforms(value, chosen[0], schemas)
    elif schema.get("type") == "object":
        assert value.keys() <= schema["properties"].keys()
        assert set(schema["required"]) <= value.keys()
        for key, item in value.items():
            conforms(item, schema["properties"][key], schemas)
    elif schema.get("type") == "array":
        for item in value:
            conforms(item, schema["items"], schemas)
    else:
        kinds: dict[str, Callable[[Any], bool]] = {
            "string": lambda found: isinstance(found, str),
            "integer": lambda found: isinstance(found, int),
            "boolean": lambda found: isinstance(found, bool),
            "null": lambda found: found is None,
        }
        assert "enum" in schema or kinds[schema["type"]](value), (value, schema)


async def test_a_server_that_cannot_start_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The hub keeps running, and the waiting connection is answered after the retry."""
    real, tries = server.import_module, []

    def flaky(name: str) -> Any:
        tries.append(name)
        if len(tries) == 1:
            raise ImportError("no such thing")
        return real(name)

    monkeypatch.setattr(server, "import_module", flaky)
    monkeypatch.setattr(server, "RETRY", 0.01)
    async with watching(tmp_path) as watched:
        assert (await watched.get("/api/v1/status"))[0] == 200
    assert "the status page cannot be served" in caplog.text
