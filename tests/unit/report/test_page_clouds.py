"""Clouds on the status page."""

from __future__ import annotations

import json

from msgspec.structs import replace

from hub.report.page import event, rendered_overview
from hub.report.page.clouds import parts
from hub.report.page.search import EVERYTHING, Search
from hub.report.page.signs import attention
from hub.report.site import VersionedStatus
from hub.report.values import CloudBalancer, CloudFinding, CloudNode, ClusterCloud, Status
from tests.unit.report.test_page import Tags

WEB = CloudBalancer("edge/web", "ready", "2026-01-01T00:00:00Z", ingress=("lb.example.net",))
CLOUD = ClusterCloud(
    "eu",
    "brightbox",
    "eu",
    "manage",
    "held",
    since="2026-01-02T00:00:00Z",
    node_states={"ready": 3},
    node_since={"ready": "2026-01-03T00:00:00Z"},
    balancers=(WEB,),
)
BROKEN = replace(WEB, state="failing", message="the quota is used up", findings=(CloudFinding("QuotaExceeded", "x"),))
WITHHELD = CloudNode("n1", "withheld", message="2 of 3 are gone", provider_id="brightbox://srv-1")


def overview(*found: ClusterCloud, search: Search = EVERYTHING) -> str:
    """The first page with these clouds."""
    return rendered_overview(VersionedStatus("v", Status(clouds=found or None)), search).decode()


def test_a_cluster_has_duty_nodes_and_balancers_with_since() -> None:
    """Nodes are counted by state; each row says since when."""
    [part] = parts((CLOUD,))
    assert part.words == "duty held, 3 of 3 nodes and 1 of 1 balancers ready"
    assert [(row.what, row.sign.words, row.since, row.where) for row in part.rows] == [
        ("3 nodes", "ready", "2026-01-03T00:00:00Z", ""),
        ("Service edge/web", "ready", "2026-01-01T00:00:00Z", "lb.example.net"),
    ]
    text = Tags(overview(CLOUD)).text
    assert "2026-01-02 00:00:00 UTC" in text
    assert "eu on brightbox" in text
    assert parts(None) == ()


def test_troubled_nodes_and_balancers_come_first_and_open_the_part() -> None:
    """A Node that the Status names has its own row; the rest of its state is counted."""
    found = replace(CLOUD, node_states={"ready": 3, "withheld": 2}, nodes=(WITHHELD,), balancers=(BROKEN,))
    [part] = parts((found,))
    assert [(row.what, row.sign.kind) for row in part.rows] == [
        ("Service edge/web", "bad"),
        ("node n1", "warn"),
        ("1 more nodes", "warn"),
        ("3 nodes", "good"),
    ]
    assert part.rows[0].why == "the quota is used up; QuotaExceeded: x"
    assert ("details", {"id": "cloud:eu", "open": None}) in Tags(overview(found)).found
    assert ("details", {"id": "cloud:eu"}) in Tags(overview(CLOUD)).found


def test_search_finds_services_and_nodes() -> None:
    """Rows that a search does not find are hidden."""
    rows = [attrs for tag, attrs in Tags(overview(CLOUD, search=Search("web"))).found if tag == "tr"]
    assert [(attrs["data-key"], "hidden" in attrs) for attrs in rows if "data-key" in attrs] == [
        ("3 nodes ", True),
        ("service edge/web lb.example.net", False),
    ]


def test_page_without_clouds_has_no_part_about_them() -> None:
    """The part is shown only where a cluster has a cloud controller."""
    assert 'id="clouds"' not in overview()
    assert "mode observe" in overview(replace(CLOUD, mode="observe"))


def test_hostile_texts_stay_texts() -> None:
    """A cloud's words and names of objects are escaped."""
    bad = "<script>alert(1)</script>"
    found = replace(CLOUD, error=bad, leftovers=(bad,), balancers=(replace(BROKEN, message=bad),))
    assert "<script>alert" not in overview(found)


def test_an_open_page_gets_the_part_again() -> None:
    """A change replaces the part; a cluster that gets its first cloud makes the page load again."""
    old, new = (
        VersionedStatus("a", Status(clouds=(CLOUD,))),
        VersionedStatus("b", Status(clouds=(replace(CLOUD, duty="waiting"),))),
    )
    sent = event(old, new, set())
    assert "duty waiting" in json.loads(sent.split(b"data: ")[1])["html"]["clouds"]
    assert event(VersionedStatus("c", Status()), new, set()).startswith(b"event: reload")


def test_what_keeps_a_cloud_controller_from_its_work_needs_attention() -> None:
    """Errors, another controller, withheld deletions with their command, failing balancers, leftovers."""

    def listed(found: ClusterCloud) -> list[tuple[str, ...]]:
        return [needed[:4] for needed in attention(Status(clouds=(found,)))]

    assert listed(CLOUD) == []
    assert listed(replace(CLOUD, error="401")) == [("bad", "Cloud brightbox", "401", "")]
    other = replace(CLOUD, duty="elsewhere", reason="OtherCloudController", message="ccm holds it")
    assert listed(other) == [("warn", "Cloud brightbox: OtherCloudController", "ccm holds it", "")]
    assert listed(replace(CLOUD, approve="hub approve x abc", nodes=(WITHHELD,))) == [
        ("warn", "Cloud brightbox: deletions withheld", "2 of 3 are gone", "hub approve x abc")
    ]
    assert listed(replace(CLOUD, balancers=(BROKEN,))) == [
        ("bad", "Load balancer of edge/web: failing", "the quota is used up", "")
    ]
    [left] = listed(replace(CLOUD, leftovers=("old.edge.eu: load_balancer lba-1",)))
    assert left[2] == "1 in the cloud, such as old.edge.eu: load_balancer lba-1; hub purge --cloud eu"
