"""The page: rendering, escaping of untrusted texts, and updates of open pages."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from hub_testkit import make_node
from msgspec.structs import replace

from hub.events.timeline import Mark, Point, Recent, Span
from hub.model import TargetKey
from hub.report import page, stream
from hub.report.page import event, rendered_overview
from hub.report.page.search import Search
from hub.report.page.signs import (
    STATES,
    Needed,
    Sign,
    attention,
    cluster_sign,
    condition_sign,
    findings,
    guard_sign,
    health_sign,
    role_sign,
    service_sign,
)
from hub.report.site import Site, VersionedStatus
from hub.report.stream import Broadcaster
from hub.report.values import (
    Address,
    Allocation,
    Allocations,
    CloudAccount,
    Cluster,
    ClusterDetail,
    Held,
    NodeState,
    Noted,
    Refused,
    RegistryState,
    RegistryWithheld,
    Replica,
    ReservedAddress,
    Resolved,
    Service,
    ServiceDetail,
    Source,
    SourceDetail,
    Status,
    Step,
)
from tests.support.waiting import until
from tests.unit.report.conftest import Watched

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&{{7*7}}"
HELD = Held(
    "eu",
    "IPv4",
    "RemovalWithheld",
    "abc",
    ("10.0.0.1", "10.0.0.2"),
    "2026-01-01T00:00:00Z",
    "2 would go",
    "hub approve x abc",
)


KEY = TargetKey("edge", "payments")
OTHER = {"type": "InternalIP", "address": "10.0.0.77"}


class Tags(HTMLParser):
    """Parses HTML into tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag."""
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Record text."""
        self.text += data


def hostile_status() -> Status:
    """A status whose every text is hostile."""
    withheld = RegistryWithheld(HOSTILE, HOSTILE, (HOSTILE,), 1, 2, HOSTILE, HOSTILE)
    held = Held(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE, HOSTILE, HOSTILE)
    source = Source(HOSTILE, 1, 2, HOSTILE)
    service = Service(
        HOSTILE, HOSTILE, problem=HOSTILE, sources=(source,), withheld=(held,), findings=(Noted(HOSTILE, HOSTILE),)
    )
    texts = dict.fromkeys(("node", "since", "cause", "to", "approve"), HOSTILE)
    address = ReservedAddress(HOSTILE, HOSTILE, HOSTILE, HOSTILE, **texts)  # type: ignore[arg-type]
    allocation = Allocation(HOSTILE, HOSTILE, HOSTILE, HOSTILE, "False", HOSTILE, HOSTILE, addresses=(address,))
    return Status(
        Replica(HOSTILE, HOSTILE, HOSTILE, "standby", HOSTILE, error=HOSTILE),
        RegistryState(withheld, HOSTILE, (HOSTILE,)),
        (Cluster(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, HOSTILE),),
        (service,),
        Allocations(HOSTILE, HOSTILE, (CloudAccount(HOSTILE, HOSTILE, (HOSTILE,), error=HOSTILE),), (allocation,)),
    )


def test_strangers_texts_stay_texts() -> None:
    """Untrusted texts make no tags, attributes or templates on any page or in any event."""
    moment = VersionedStatus("v", hostile_status(), 60.0, 0, {HOSTILE: (Span(0, HOSTILE),)})
    recent = Recent(
        0, (HOSTILE, ""), (Point(0, (1, 0), 0),), (Mark(1, "withheld", HOSTILE), Mark(2, "leader", HOSTILE))
    )
    step = Step(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    service = ServiceDetail(moment.status.services[0], (step,), (Address(HOSTILE, HOSTILE, HOSTILE, (step,)),), 0, 1)
    node = NodeState(
        HOSTILE,
        eligible=False,
        reason=HOSTILE,
        message=HOSTILE,
        resolution=Resolved("absent", reason=HOSTILE),
        addresses=(HOSTILE,),
        rejected=(Refused(HOSTILE, HOSTILE),),
    )
    cluster = ClusterDetail(moment.status.clusters[0], (SourceDetail(HOSTILE, HOSTILE, (HOSTILE,), None, (node,)),))
    sent = event(VersionedStatus("u", Status(allocations=Allocations("enforce"))), moment, set())
    rendered = [
        rendered_overview(moment).decode(),
        rendered_overview(moment, Search(HOSTILE)).decode(),
        page._render("service.html", moment, recent, detail=service, limit=100).decode(),
        page._render("cluster.html", moment, detail=cluster).decode(),
        *json.loads(sent.split(b"data: ", 1)[1])["html"].values(),
    ]
    assert len(rendered) == 10
    for text in rendered:
        tags = Tags(text)
        assert [attributes for tag, attributes in tags.found if tag == "script"] in (
            [],
            [{"src": "/static/page.js", "defer": None}],
        )
        assert not any(tag == "img" or any(name.startswith("on") for name in attrs) for tag, attrs in tags.found)
        assert "{{7*7}}" in tags.text
    assert b"\n" not in sent.split(b"data: ", 1)[1].rstrip(b"\n"), "an event is one line"


async def test_a_hostile_node_is_shown_as_text(watched: Watched) -> None:
    """A node's hostile address reaches the page through the whole hub, and is escaped there."""
    watched.remote.nodes.add(make_node("n4", "<b>bold</b>"))
    await until(lambda: len(watched.hub.fleet.clusters["eu"].nodes) == 4)
    text = ""
    async with asyncio.timeout(10):
        while "bold" not in text:
            _, text, _ = await watched.get("/clusters/eu")
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "<b>bold" not in text


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (Cluster("a", state="Ready"), "✓ Ready"),
        (Cluster("a", "standby", state="Ready"), "✓ Ready, standby"),
        (Cluster("a", state="Unreachable"), "✗ Unreachable"),
        (Cluster("a", state="Degraded"), "! Degraded"),
        (Cluster("a", state="Ready", error="401"), "! Ready, with an error"),
        (Cluster("a", "broken"), "✗ broken entry"),
        (Cluster("a", "frozen"), "‖ frozen"),
        (Cluster("a", state="New"), "○ New"),
    ],
)
def test_a_cluster_is_read_without_colours(cluster: Cluster, words: str) -> None:
    """A cluster's state has a symbol and words; the colour adds no information."""
    sign = cluster_sign(cluster)
    assert f"{sign.symbol} {sign.words}" == words


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (Service("a/b", ready=2, total=2), "✓ followed"),
        (Service("a/b", ready=1, total=2), "! followed, not all ready"),
        (Service("a/b", ready=0, total=2), "✗ nothing ready"),
        (Service("a/b"), "! empty"),
        (Service("a/b", "the Service does not exist"), "! the Service does not exist"),
        (Service("a/b", "standby: as published", ready=1, total=1), "○ standby: as published"),
        (Service("a/b", paused=True), "‖ paused"),
        (Service("a/b", problem="403"), "✗ not written"),
        (Service("a/b", ready=2, total=2, withheld=(HELD,)), "! followed, removals withheld"),
        (Service("a/b", ready=2, total=2, sources=(Source("eu", 2, 2, "timeout"),)), "? a source is unknown"),
        (Service("a/b", ready=2, total=2, findings=(Noted("PortMismatch", "no"),)), "! followed, with findings"),
    ],
)
def test_a_service_is_read_without_colours(service: Service, words: str) -> None:
    """A Service's sign is that of its worst state."""
    sign = service_sign(service)
    assert f"{sign.symbol} {sign.words}" == words


@pytest.mark.parametrize(
    ("function", "state", "expected"),
    [
        (cluster_sign, Cluster("a"), Sign("idle", "○", "not followed")),
        (cluster_sign, Cluster("a", state="Ready"), Sign("good", "✓", "Ready")),
        (
            cluster_sign,
            Cluster("a", "standby", state="Ready", error="x"),
            STATES["Ready, with an error"]._replace(words="Ready, with an error, standby"),
        ),
        (cluster_sign, Cluster("a", state="Unreachable", error="x"), Sign("bad", "✗", "Unreachable")),
        (service_sign, Service("a/b", "frozen"), Sign("warn", "!", "frozen")),
        (service_sign, Service("a/b", "standby", ready=1, total=2), Sign("idle", "○", "standby")),
        (service_sign, Service("a/b", "standby", total=2), Sign("bad", "✗", "nothing ready")),
        (
            service_sign,
            Service("a/b", ready=2, total=2, withheld=(HELD,), findings=(Noted("x", "2 would go"),)),
            Sign("warn", "!", "followed, removals withheld"),
        ),
        (guard_sign, Service("a/b"), Sign("good", "✓", "withholds nothing")),
        (guard_sign, Service("a/b", withheld=(HELD, HELD)), Sign("warn", "!", "withholds 4")),
        (health_sign, Service("a/b"), Sign("idle", "○", "no endpoints")),
        (
            health_sign,
            Service("a/b", total=3, unhealthy=1, draining=2),
            Sign("bad", "✗", "0 of 3 ready, 1 unhealthy, 2 draining"),
        ),
        (health_sign, Service("a/b", ready=2, total=3, unhealthy=1), Sign("warn", "!", "2 of 3 ready, 1 unhealthy")),
        (health_sign, Service("a/b", ready=3, total=3), Sign("good", "✓", "3 of 3 ready")),
        (condition_sign, "not ready", Sign("warn", "!", "not ready")),
        (condition_sign, "new", Sign("idle", "○", "new")),
        (role_sign, "leader", Sign("good", "●", "leads")),
        (role_sign, "standby", Sign("idle", "○", "standby")),
    ],
)
def test_a_sign_has_a_kind_a_symbol_and_words(function: Callable[[Any], Sign], state: Any, expected: Sign) -> None:
    """The kind of a sign, which selects the colour, agrees with its symbol and words."""
    assert function(state) == expected


def test_findings_of_withheld_removals_are_not_repeated() -> None:
    """A withheld removal is shown on its own, so its finding is left out."""
    other = Noted("PortMismatch", "eu: which port?")
    service = Service("a/b", withheld=(HELD,), findings=(Noted("RemovalWithheld", HELD.message), other))
    assert findings(service) == (other,)


def test_nothing_needs_attention() -> None:
    """A hub without problems has an empty list; an error of the hub cluster is the first entry."""
    assert attention(Status()) == ()
    status = Status(Replica(error="403"), services=(Service("a/b", problem="409"),))
    assert attention(status) == (
        Needed("bad", "Hub cluster", "403"),
        Needed("bad", "Not written", "409", service="a/b"),
    )


def test_withheld_removals_are_listed_with_their_commands() -> None:
    """Withheld removals have their approval commands, problems their texts; the worst comes first."""
    registry = RegistryState(
        RegistryWithheld("R", "h", ("cluster a",), 1, 2, "much", "hub approve registry h"), "bad", ("e",)
    )
    status = Status(registry=registry, services=(Service("a/b", problem="403", withheld=(HELD,)),))
    found = attention(status)
    assert [needed.title for needed in found] == [
        "Registry rejected",
        "Registry entry frozen",
        "Not written",
        "Registry removal withheld",
        "RemovalWithheld in eu",
    ]
    assert [needed.command for needed in found if needed.command] == ["hub approve registry h", "hub approve x abc"]
    text = rendered_overview(VersionedStatus("v", status)).decode()
    assert "<code>hub approve registry h</code>" in text
    assert "<code>hub approve x abc</code>" in text


WRONG = "its kube-system Namespace has UID 2, or: hub approve evil, that of this name's cluster was 1: correct it"


def test_clusters_that_need_an_operator_are_listed() -> None:
    """Clusters that need an operator are listed with their approval commands; those that may recover alone are not."""
    clusters = (
        Cluster("a", state="Ready"),
        Cluster("b", state="Ready", error="401: renew the token"),
        Cluster("c", state="Degraded", error="403, or: hub approve cluster/c evil"),
        Cluster("d", state="WrongCluster", error=f"{WRONG}, or: hub approve cluster/d abc -n x"),
        Cluster("e", state="Unreachable", error="timeout"),
        Cluster("f", state="Syncing", error="Syncing"),
        Cluster("g", "broken", error="shown as an entry"),
    )
    status = Status(clusters=clusters)
    assert [
        (needed.kind, needed.title, needed.cluster, needed.text, needed.command) for needed in attention(status)
    ] == [
        ("bad", "WrongCluster", "d", WRONG, "hub approve cluster/d abc -n x"),
        ("warn", "Ready, with an error", "b", "401: renew the token", ""),
        ("warn", "Degraded", "c", "403, or: hub approve cluster/c evil", ""),
    ]
    text = rendered_overview(VersionedStatus("v", status)).decode()
    needed = text[text.index('id="attention"') : text.index('id="h-clusters"')]
    assert '<strong>WrongCluster</strong> · <a href="/clusters/d">d</a>' in needed
    assert "<code>hub approve cluster/d abc -n x</code>" in needed


async def test_approval_command_is_found_in_the_identity_error(watched: Watched) -> None:
    """The page finds the command in the error text of the identity check."""
    doubt = watched.hub.identities.check("eu", "another")
    assert doubt is not None
    [needed] = attention(Status(clusters=(Cluster("eu", state="WrongCluster", error=doubt),)))
    assert needed.command.startswith("hub approve cluster/eu ")
    assert "hub approve" not in needed.text


def test_worst_entry_is_always_shown() -> None:
    """The worst entry is among those shown, however many removals are withheld."""
    services = [Service(f"a/s{number:03}", withheld=(HELD,)) for number in range(60)]
    status = Status(services=(*services, Service("a/z", problem="403")))
    text = rendered_overview(VersionedStatus("v", status)).decode()
    needed = text[text.index('id="attention"') : text.index('id="h-clusters"')]
    assert "<strong>Not written</strong>" in needed
    assert "and 11 more" in needed


@pytest.mark.parametrize(("offset", "back"), [(100, 0), (150, 50), (240, 140), (250, 150), (10**6, 150)])
def test_there_is_a_way_back_from_any_part_of_the_addresses(offset: int, back: int) -> None:
    """Every part of the addresses links to the previous one, even a part beyond the last address."""
    shown = tuple(Address(f"10.0.0.{number}", "ready", "eu") for number in range(min(100, max(0, 250 - offset))))
    detail = ServiceDetail(Service("a/b"), (), shown, offset, 250)
    text = page._render("service.html", VersionedStatus("v", Status()), detail=detail, limit=100).decode()
    assert f'<a href="?offset={back}">' in text
    assert ("; showing " in text) == bool(shown)


async def test_a_part_of_no_addresses_is_the_first_one(watched: Watched) -> None:
    """``limit=0`` shows the default number of addresses."""
    _, text, _ = await watched.get("/services/edge/payments?limit=0")
    assert text.count("<details") == 3
    assert "; showing " not in text


def test_a_page_is_accessible_in_the_basics() -> None:
    """Pages have a language, a title, one h1, labelled inputs, headers with scope, unique ids and a skip link."""
    status = Status(Replica(), clusters=(Cluster("eu"),), services=(Service("a/b"),))
    detail = ServiceDetail(status.services[0], (Step("a", "b", "c"),), (Address("10.0.0.1", "ready", "eu"),), 0, 1)
    moment = VersionedStatus("v", status)
    for text in (
        rendered_overview(moment).decode(),
        page._render("service.html", moment, detail=detail, limit=100).decode(),
    ):
        tags = Tags(text).found
        names = [tag for tag, _ in tags]
        assert ("html", {"lang": "en"}) in tags
        assert (names.count("title"), names.count("h1"), names.count("main")) == (1, 1, 1)
        ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
        assert len(ids) == len(set(ids))
        assert all("scope" in attrs for tag, attrs in tags if tag == "th")
        assert {attrs["for"] for tag, attrs in tags if tag == "label" and "for" in attrs} <= set(ids)
        assert {(attrs["aria-labelledby"] or "") for _, attrs in tags if "aria-labelledby" in attrs} <= set(ids)
        assert any(attrs.get("href") == "#main" for tag, attrs in tags if tag == "a")
        outside = [
            attrs for _, attrs in tags for name in ("src", "href") if re.match(r"\w+:|//", attrs.get(name) or "")
        ]
        assert outside == [], "an external asset"
        assert not any("style" in attrs for _, attrs in tags), "the policy forbids it"


def shown(text: str) -> list[str]:
    """The ids of the rows that are not hidden."""
    return [
        attrs["id"] or "" for tag, attrs in Tags(text).found if tag == "tr" and "id" in attrs and "hidden" not in attrs
    ]


@pytest.mark.parametrize(
    ("address", "rows"),
    [
        ("/", ["cluster:eu", "service:edge/payments"]),
        ("/?q=PAY", ["service:edge/payments"]),
        ("/?problems=1", []),
        ("/?q=eu&problems=1", []),
    ],
)
async def test_search_in_the_address_works_without_javascript(watched: Watched, address: str, rows: list[str]) -> None:
    """The server shows the rows that a search finds, and the form shows the search."""
    await until(lambda: watched.hub.reconciler.problem(KEY) == "" and watched.hub.reconciler.last(KEY) is not None)
    _, text, headers = await watched.get(address)
    assert shown(text) == rows
    form = {attrs.get("name"): attrs for tag, attrs in Tags(text).found if tag == "input"}
    assert (form["q"]["value"] or "") == address.partition("q=")[2].partition("&")[0].lower()
    assert ("checked" in form["problems"]) == ("problems=1" in address)
    assert "form-action 'self'" in headers["Content-Security-Policy"]


async def test_recent_changes_are_drawn_from_the_running_hub(watched: Watched) -> None:
    """A deleted node is a step of the Service's chart; the cluster's page shows since when it is Ready."""
    recent = watched.hub.timelines.of(KEY)
    assert recent is not None
    assert recent.points[-1].ready == (3, 0)
    watched.remote.nodes.delete("n3")
    await until(lambda: (now := watched.hub.timelines.of(KEY)) is not None and now.points[-1].ready == (2, 0))
    _, text, _ = await watched.get("/services/edge/payments")
    assert "now 2" in text
    assert "since the start of this process at" in text
    assert [mark.kind for mark in recent.marks] == ["leader"]
    _, text, _ = await watched.get("/clusters/eu")
    assert re.search(r"since \d\d:\d\d UTC: (Pending|Syncing|Ready) \d", text)


async def test_running_hub_records_cluster_states_and_a_lost_lead(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that changes is recorded at once; without the lead, the endpoints of a Service are unknown."""
    hub = watched.hub

    def states() -> list[str]:
        return [span.state for span in hub.timelines.clusters["eu"]]

    await until(lambda: hub.timelines.of(KEY) is not None and states()[-1] == "Ready")
    assert states()[0] == "Pending"
    with monkeypatch.context() as patched:
        patched.setattr(hub.fleet, "problem", lambda _: "401")
        hub._cluster_changed("eu")
    assert states()[-1] == "Ready, with an error"
    hub._put_in_force(replace(hub.registry, clusters={}, targets={}))
    assert hub.timelines.clusters == {}
    monkeypatch.setattr(hub.leading, "held", frozenset())
    hub._rights_changed()
    recent = hub.timelines.of(KEY)
    assert recent is not None
    assert recent.points[-1].not_ready is None
    assert recent.marks[-1].about == "this process no longer leads"


async def test_page_without_news_keeps_its_etag(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawings end at whole minutes, so that a reader with the same page gets 304."""
    monkeypatch.setattr(watched.hub.clock, "wall", lambda: 1_800_000_030.0)
    await until(lambda: watched.hub.reconciler.written_at(KEY) is not None)
    _, _, headers = await watched.get("/")
    monkeypatch.setattr(watched.hub.clock, "wall", lambda: 1_800_000_050.0)
    await asyncio.sleep(1.1)  # beyond the time for which answers are cached
    status, _, _ = await watched.get("/", headers={"If-None-Match": headers["ETag"]})
    assert status == 304


# --- live ------------------------------------------------------------------------------------------------


def told(sent: bytes) -> tuple[str, Any]:
    """The name and the data of an event."""
    name, data = sent.decode().removeprefix("event: ").split("\ndata: ")
    return name, json.loads(data)


def test_event_has_only_changes() -> None:
    """An event has the changed rows, the removed rows, and the names of outdated pages."""
    old = Status(clusters=(Cluster("eu"), Cluster("us")), services=(Service("a/b"), Service("a/c")))
    new = Status(clusters=(Cluster("eu", error="x"), Cluster("us")), services=(Service("a/c"), Service("a/d")))
    name, data = told(event(VersionedStatus("1", old), VersionedStatus("2", new), {"a/c"}))
    assert name == "change"
    assert sorted(data["html"]) == ["cluster:eu", "map", "service:a/d"]
    assert (data["version"], data["gone"], data["touched"]) == ("2", ["service:a/b"], ["a/c", "a/d"])
    assert (data["clusters"], data["html"]["cluster:eu"].startswith("<tr")) == (["eu"], True)


def test_role_and_problems_update_on_open_pages() -> None:
    """The replica's role and the list of problems are updated separately."""
    old, new = Status(Replica(role="standby")), Status(Replica(role="leader"), RegistryState(rejected="x"))
    _, data = told(event(VersionedStatus("1", old), VersionedStatus("2", new), set()))
    assert sorted(data["html"]) == ["attention", "replica"]


def test_too_many_changed_rows_reload_the_page() -> None:
    """If too many rows changed, the event makes pages reload instead of having megabytes."""
    many = tuple(Service(f"a/s{number}") for number in range(page.MAX_ROWS + 1))
    old, new = VersionedStatus("1", Status()), VersionedStatus("2", Status(services=many))
    assert told(event(old, new, set())) == ("reload", {"version": "2"})
    touched = {service.name for service in many}
    assert told(event(VersionedStatus("1", Status()), VersionedStatus("1", Status()), touched))[1]["touched"] is None


def test_as_many_changed_rows_as_fit_are_sent() -> None:
    """The limits count all changed rows, and all Services with a new decision."""
    clusters = tuple(Cluster(f"c{number}") for number in range(100))
    services = tuple(Service(f"a/s{number:03}") for number in range(page.MAX_ROWS - 100))
    new = Status(clusters=clusters, services=services)
    old, moment = VersionedStatus("1", Status()), VersionedStatus("2", new)
    touched = {f"b/{number:03}" for number in range(page.MAX_ROWS - len(services))}
    name, data = told(event(old, moment, touched, {"c0", "x"}))
    assert (name, len(data["html"])) == ("change", page.MAX_ROWS + 1)
    assert data["touched"] == [service.name for service in services] + sorted(touched)
    assert data["clusters"] == sorted({"x", *(cluster.name for cluster in clusters)})
    more = VersionedStatus("2", replace(new, services=(*services, Service("a/z"))))
    assert told(event(old, more, set()))[0] == "reload"


def test_an_equal_row_is_not_sent_again() -> None:
    """Rows that are equal but not the same object have not changed; a removed row changes the map."""
    old = Status(clusters=(Cluster("eu"),), services=(Service("a/b"), Service("a/c")))
    new = Status(clusters=(Cluster("eu"),), services=(Service("a/b"),))
    name, data = told(event(VersionedStatus("1", old), VersionedStatus("2", new), set()))
    assert (name, sorted(data["html"]), data["gone"], data["touched"]) == ("change", ["map"], ["service:a/c"], [])
    new = replace(new, services=(*new.services, Service("a/c")), clusters=())
    assert told(event(VersionedStatus("1", old), VersionedStatus("2", new), set()))[1]["gone"] == ["cluster:eu"]


def test_drawings_end_at_the_next_whole_minute() -> None:
    """A time within a minute is rounded up, a whole minute is kept."""
    for at, end in ((1_800_000_000.0, "08:00"), (1_800_000_000.5, "08:01"), (1_800_000_060.0, "08:01")):
        moment = VersionedStatus("v", Status(), at)
        detail = ServiceDetail(Service("a/b"))
        text = page._render("service.html", moment, Recent(1_799_990_000, ("",)), detail=detail, limit=100).decode()
        assert f"from 05:13 to {end} UTC" in text


def test_event_has_the_map_only_if_it_looks_different() -> None:
    """A new time of the last write changes a row, but not the map."""
    old, new = Status(services=(Service("a/b"),)), Status(services=(Service("a/b", changed="2026-01-01T00:00:00Z"),))
    _, data = told(event(VersionedStatus("1", old), VersionedStatus("2", new), set()))
    assert sorted(data["html"]) == ["service:a/b"]


async def test_changed_node_updates_its_cluster_page_on_a_standby(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a standby, a changed node updates the page of its cluster and no other page."""
    monkeypatch.setattr(watched.hub.leading, "writes", lambda _: False)
    changes = page.Changes(Site(watched.hub))
    assert await changes.next_event() == b""
    unit = watched.hub.fleet.clusters["eu"]
    before = unit.version
    watched.remote.nodes.update("n1", lambda node: node["status"].update(addresses=[OTHER]))
    await until(lambda: unit.version != before)
    _, data = told(await changes.next_event())
    assert (data["clusters"], data["touched"]) == (["eu"], [])


class Script:
    """A source of events and a clock that the test controls."""

    def __init__(self) -> None:
        self.looks = 0
        self.next = b""
        self.tick = asyncio.Event()
        self.slept: list[float] = []

    async def look(self) -> bytes:
        """Return the next event."""
        self.looks += 1
        return self.next

    async def sleep(self, seconds: float) -> None:
        """Wait until the test sets ``tick``."""
        self.slept.append(seconds)
        await self.tick.wait()
        self.tick.clear()

    async def once(self, sent: bytes) -> None:
        """Run one more look that returns ``sent``."""
        self.next, before = sent, self.looks
        self.tick.set()
        while self.looks == before:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_changes_are_polled_only_while_pages_are_open() -> None:
    """Looking for changes begins with the first reader, ends after the last, and is shared by all readers."""
    script = Script()
    live = Broadcaster(script.look, script.sleep)
    assert script.looks == 0
    readers = [live.join() for _ in range(200)]
    await asyncio.sleep(0)
    await script.once(b"news")
    assert [reader.events.get_nowait() for reader in readers] == [b"news"] * 200
    assert (script.looks, script.slept[0]) == (2, stream.PACE)
    for reader in readers:
        live.leave(reader)
    script.tick.set()
    await asyncio.sleep(0.01)
    looks = script.looks
    script.tick.set()
    await asyncio.sleep(0.01)
    assert (script.looks, len(live)) == (looks, 0)
    await live.close()


async def test_a_reader_that_falls_behind_is_dropped_and_the_others_are_not() -> None:
    """A reader with too many waiting events is dropped at once."""
    script = Script()
    live = Broadcaster(script.look, script.sleep)
    slow, quick = live.join(), live.join()
    await asyncio.sleep(0)
    for number in range(stream.MAX_WAITING + 1):
        await script.once(b"%d" % number)
        assert quick.events.get_nowait() == b"%d" % number
    assert slow.events.get_nowait() is None
    assert len(live) == 1
    await live.close()
    assert quick.events.get_nowait() is None


async def test_a_failure_to_compute_an_event_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and the next attempt follows."""
    looks: list[bytes | Exception] = [RuntimeError("x"), b"news"]

    async def look() -> bytes:
        found = looks.pop(0) if looks else b""
        if isinstance(found, Exception):
            raise found
        return found

    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    live = Broadcaster(look, sleep)
    reader = live.join()
    assert await reader.events.get() == b"news"
    assert "open status pages are not updated" in caplog.text
    await live.close()


async def read(answer: aiohttp.ClientResponse, name: str) -> Any:
    """The data of the next event with this name."""
    async with asyncio.timeout(15):
        while True:
            line = (await answer.content.readline()).decode()
            assert line, "the stream has ended"
            if line.strip() == f"event: {name}":
                return json.loads((await answer.content.readline()).decode().removeprefix("data: "))


async def test_two_hundred_open_pages_get_the_new_row(watched: Watched) -> None:
    """After a node is deleted, every open page gets the Service's new row, and no page delays the hub's shutdown."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        pages = [await session.get(f"{watched.url}/events") for _ in range(200)]
        hello = [await read(answer, "hello") for answer in pages]
        assert len({event_["version"] for event_ in hello}) == 1
        assert pages[0].headers["Content-Security-Policy"].startswith("default-src 'none'")
        watched.remote.nodes.delete("n3")
        for answer in pages:
            change = await read(answer, "change")
            while "service:edge/payments" not in change["html"]:
                change = await read(answer, "change")
            assert "2 of 2 ready" in change["html"]["service:edge/payments"]


async def test_a_dead_browser_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read is disconnected when sending exceeds its deadline."""
    monkeypatch.setattr(page, "SEND_TIMEOUT", 0.2)

    async def look() -> bytes:
        return b"event: change\ndata: " + b"x" * (4 << 20) + b"\n\n"

    live = Broadcaster(look)
    site = cast("Any", SimpleNamespace(snapshot=lambda: VersionedStatus("1", Status())))

    async def handler(request: web.Request) -> web.StreamResponse:
        return await page.stream(request, site, live)

    app = web.Application()
    app.add_routes([web.get("/events", handler)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    with socket.socket() as dead:
        dead.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        dead.settimeout(0.0)
        await asyncio.get_running_loop().sock_connect(dead, runner.addresses[0])
        dead.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: len(live) == 1)
        await until(lambda: len(live) == 0)
        assert runner.server is not None
        await until(lambda: not runner.server.connections)
    await live.close()
    await runner.cleanup()


async def test_excess_pages_get_503_with_retry_after(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Excess pages get 503 with Retry-After; a page that closes makes room."""
    monkeypatch.setattr(stream, "READERS", 1)
    async with watched.session.get(f"{watched.url}/events") as first:
        await read(first, "hello")
        status, _, headers = await watched.get("/events")
        assert (status, headers["Retry-After"]) == (503, "30")
    async with asyncio.timeout(20):
        while True:
            async with watched.session.get(f"{watched.url}/events") as again:
                if again.status == 200:
                    break
            await asyncio.sleep(0.1)
