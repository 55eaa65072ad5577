"""The map: boxes and groups, lines, and what a search leaves of it."""

from __future__ import annotations

import pytest

from hub.report.page.flows import MOST, ROW, WIDEST, Box, Link, Map, drawn, folded, placed
from hub.report.page.flows import _cluster as item
from hub.report.page.search import Search, search_of
from hub.report.page.signs import Sign
from hub.report.values import Cluster, Held, Service, Source, Status

HELD = Held("us", "IPv4", "RemovalWithheld", "abc", ("10.0.0.1",), "", "1 would go", "hub approve a/b abc")
TWO = Status(
    clusters=(Cluster("eu", state="Ready", nodes=3), Cluster("us", state="Unreachable", nodes=1)),
    services=(
        Service("edge/pay", ready=4, total=4, sources=(Source("eu", 3, 3), Source("us", 1, 1)), withheld=(HELD,)),
        Service("edge/web", ready=0, total=0, sources=(Source("eu"),)),
    ),
)


def fleet(number: int, name: str = "cluster-{:03}", state: str = "Ready") -> tuple[Cluster, ...]:
    """Clusters in one state."""
    return tuple(Cluster(name.format(each), state=state, nodes=1) for each in range(number))


def test_every_cluster_and_service_is_a_box_with_a_link_and_every_source_a_line() -> None:
    """Boxes link to their pages; lines are as wide as their share of the endpoints, and say what is wrong."""
    found = drawn(TWO)
    assert [(box.label, box.href, box.note) for box in (*found.clusters, *found.services)] == [
        ("eu", "/clusters/eu", "3 nodes"),
        ("us", "/clusters/us", "1 node"),
        ("edge/pay", "/services/edge/pay", "4/4 ready"),
        ("edge/web", "/services/edge/web", "0/0 ready"),
    ]
    assert {line.text: line.width for line in found.lines} == {
        "eu → edge/pay: 3/3 ready": round(WIDEST * 3 / 4, 1),
        "us → edge/pay: 1/1 ready, removal withheld": WIDEST / 4,
        "eu → edge/web: 0/0 ready, no endpoints": 2.0,
    }
    assert (found.endpoints, found.height) == (4, 2 * ROW)


def test_lines_of_a_box_lie_next_to_each_other() -> None:
    """The two lines that end at a box touch and do not overlap."""
    ends = sorted(
        (float(line.path.rpartition(" ")[2]), line.width) for line in drawn(TWO).lines if "edge/pay" in line.text
    )
    (upper, wide), (lower, narrow) = ends
    assert lower - upper == pytest.approx((wide + narrow) / 2, abs=0.2)
    assert (upper - wide / 2 + lower + narrow / 2) / 2 == pytest.approx(ROW / 2, abs=0.2)


def test_whole_drawing() -> None:
    """Lines begin and end in the middle of their boxes, in the order of their other ends."""
    found = drawn(TWO)
    assert [(line.path, line.width, line.middle) for line in found.lines] == [
        ("M0 25.0C50 25.0 50 22.2 100 22.2", 22.5, 22.7),
        ("M0 37.2C50 37.2 50 78.0 100 78.0", 2.0, 55.4),
        ("M0 78.0C50 78.0 50 37.2 100 37.2", 7.5, 55.4),
    ]
    assert [box.members for box in found.clusters] == [("eu",), ("us",)]
    assert drawn(Status()) == Map()


def test_columns_of_different_length_fill_the_same_height() -> None:
    """The boxes of the shorter column are farther apart, and so are the ends of their lines."""
    names = ("a", "b", "c")
    services = tuple(Service(f"n/{name}", sources=(Source("eu"),)) for name in names)
    found = drawn(Status(clusters=(Cluster("eu"),), services=services))
    assert (found.height, found.endpoints) == (3 * ROW, 0)
    assert [(line.path, line.width) for line in found.lines] == [
        ("M0 76.0C50 76.0 50 26.0 100 26.0", 2.0),
        ("M0 78.0C50 78.0 50 78.0 100 78.0", 2.0),
        ("M0 80.0C50 80.0 50 130.0 100 130.0", 2.0),
    ]


def test_a_line_through_groups_has_the_sums_of_their_links() -> None:
    """One line joins two groups; it is as wide as all its endpoints, and says what is wrong with some of them."""
    clusters = Box("all", Sign("good", "✓", "Ready"), "2 clusters", "", ("eu", "us"))
    services = Box("all", Sign("good", "✓", "followed"), "1 Service", "", ("a/b",))
    links = [
        Link("eu", "a/b", Sign("good", "✓", "ready"), 2, 2),
        Link("us", "a/b", Sign("warn", "!", "not all ready"), 1, 3),
    ]
    [line] = placed((clusters,), (services,), links).lines
    assert (line.width, line.middle, line.text) == (WIDEST, 50.0, "all → all: 3/5 ready, not all ready")


def test_problems_are_drawn_on_top() -> None:
    """A line with a problem comes after the lines without."""
    assert [line.sign.kind for line in drawn(TWO).lines] == ["good", "idle", "warn"]


@pytest.mark.parametrize(
    ("source", "held", "sign"),
    [
        (Source("us", 2, 2), (), "✓ ready"),
        (Source("us", 1, 2), (), "! not all ready"),
        (Source("us", 0, 2), (), "✗ nothing ready"),
        (Source("us"), (), "○ no endpoints"),
        (Source("us", 2, 2), (HELD,), "! removal withheld"),
        (Source("us", 2, 2, "timeout"), (HELD,), "? source unknown"),
    ],
)
def test_a_line_is_read_without_colours(source: Source, held: tuple[Held, ...], sign: str) -> None:
    """A line has a symbol and words for its state."""
    [line] = drawn(Status(services=(Service("a/b", sources=(source,), withheld=held),))).lines
    assert f"{line.sign.symbol} {line.sign.words}" == sign


def test_source_without_a_row_is_a_box_too() -> None:
    """The hub cluster, and a cluster that the registry dropped, have boxes of their own."""
    service = Service("a/b", sources=(Source("local", 1, 1), Source("old", 1, 1)))
    found = drawn(Status(services=(service,)))
    assert [(box.label, box.sign.words, box.href) for box in found.clusters] == [
        ("local", "hub cluster", "/clusters/local"),
        ("old", "not in the registry", ""),
    ]


def test_hundreds_of_clusters_are_folded_by_state_and_name_with_counts() -> None:
    """Problems stay single; others are grouped by the beginning of their names; no cluster is lost."""
    clusters = (*fleet(480), *fleet(3, "bad-{}", "Unreachable"), *fleet(2, "warn-{}", "Degraded"))
    boxes = folded([item(cluster) for cluster in clusters], "cluster")
    assert len(boxes) <= MOST
    assert [box.label for box in boxes[:5]] == ["bad-0", "bad-1", "bad-2", "warn-0", "warn-1"]
    assert [(box.label, box.note, box.sign.words, box.href) for box in boxes[5:7]] == [
        ("cluster-0…", "100 clusters", "Ready", "/?q=cluster-0"),
        ("cluster-1…", "100 clusters", "Ready", "/?q=cluster-1"),
    ]
    assert sorted(name for box in boxes for name in box.members) == sorted(cluster.name for cluster in clusters)


def test_groups_follow_the_parts_of_names() -> None:
    """Services are grouped by namespace first; a group of problems links to problems only."""
    names = [f"{namespace}/s{number}" for namespace in ("edge", "shop") for number in range(200)]
    broken = tuple(Service(name, problem="403") for name in names)
    boxes = drawn(Status(services=broken)).services
    assert [(box.label, box.note, box.href) for box in boxes] == [
        ("edge/…", "200 Services", "/?q=edge%2F&problems=1"),
        ("shop/…", "200 Services", "/?q=shop%2F&problems=1"),
    ]


def test_a_column_has_exactly_as_many_boxes_as_it_may() -> None:
    """As many objects as boxes stay single; one more makes a group, which leaves room for each other state."""
    fine, bad = fleet(3, "fine-{}"), fleet(1, "x-{}", "Unreachable")
    assert [box.label for box in folded([item(cluster) for cluster in (*fine, *bad)], "cluster", most=4)] == [
        "fine-0",
        "fine-1",
        "fine-2",
        "x-0",
    ]
    many = (*fleet(4, "fine-{}"), *bad, *fleet(2, "warn-{}", "Degraded"), *fleet(3, "idle-{}", "Pending"))
    boxes = folded([item(cluster) for cluster in many], "cluster", most=5)
    assert [(box.label, box.note, box.sign.kind, box.href) for box in boxes] == [
        ("x-0", "1 node", "bad", "/clusters/x-0"),
        ("warn-0", "1 node", "warn", "/clusters/warn-0"),
        ("warn-1", "1 node", "warn", "/clusters/warn-1"),
        ("idle-…", "3 clusters", "idle", "/?q=idle-"),
        ("fine-…", "4 clusters", "good", "/?q=fine-"),
    ]


def test_a_group_of_different_states_says_what_they_have_in_common() -> None:
    """A group of clusters that are idle for different reasons has the words of the kind."""
    clusters = (*fleet(2, "a-{}", "Pending"), *fleet(2, "a-x{}", "Syncing"))
    [box] = folded([item(cluster) for cluster in clusters], "cluster", most=1)
    assert (box.label, box.sign, box.note) == ("a-…", Sign("idle", "…", "waiting or paused"), "4 clusters")


def test_a_group_link_narrows_the_search() -> None:
    """The link of a group keeps the search for problems; if it would change nothing, it leads to the table."""
    clusters = [item(cluster) for cluster in fleet(5, "a-{}")]
    assert [box.href for box in folded(clusters, "cluster", Search("-", problems=True), most=4)] == [
        "/?q=a-&problems=1"
    ]
    assert [box.href for box in folded(clusters, "cluster", Search("a-"), most=4)] == ["#h-clusters"]


def test_a_cluster_that_is_not_followed_has_no_number_of_nodes() -> None:
    """A cluster without nodes has 0 nodes; a cluster whose nodes are not known has no number."""
    boxes = drawn(Status(clusters=(Cluster("a", nodes=0), Cluster("b")))).clusters
    assert [box.note for box in boxes] == ["0 nodes", ""]


def test_names_that_cannot_be_grouped_are_one_box() -> None:
    """A group whose link would change nothing leads to the table."""
    names = [chr(97 + number // 26) + chr(97 + number % 26) for number in range(26 * 26)]
    [box] = folded([item(Cluster(name, state="Ready")) for name in names], "cluster")
    assert (box.label, box.note, box.href) == ("676 clusters", "676 clusters", "#h-clusters")


def test_folded_lines_add_up_and_show_the_worst_state() -> None:
    """The line of two groups has all their endpoints and the worst of their states."""
    clusters = fleet(100)
    services = tuple(
        Service(
            f"edge/s{number:03}",
            ready=2,
            total=2,
            sources=(Source(cluster.name, 2, 2, "late" if number == 7 else None),),
        )
        for number, cluster in enumerate(clusters)
    )
    found = drawn(Status(clusters=clusters, services=services))
    assert len(found.clusters) <= MOST
    assert found.endpoints == 200
    [worst] = [line for line in found.lines if line.sign.kind == "warn"]
    assert worst.text == "cluster-00… → edge/s007: 2/2 ready, source unknown"


def test_search_keeps_what_it_finds_and_what_that_is_linked_to() -> None:
    """The map of a search has the Services that match, and their clusters."""
    found = drawn(TWO, Search("web"))
    assert ([box.label for box in found.clusters], [box.label for box in found.services]) == (["eu"], ["edge/web"])
    healthy = Status(
        clusters=fleet(2), services=(Service("a/b", ready=1, total=1, sources=(Source("cluster-000", 1, 1),)),)
    )
    assert drawn(healthy, Search(problems=True)).clusters == ()


@pytest.mark.parametrize("search", [Search(), Search("a/b c&d", problems=True), Search(problems=True)])
def test_search_survives_in_an_address(search: Search) -> None:
    """The address of a search gives the same search again."""
    from urllib.parse import parse_qsl, urlsplit

    assert search_of(dict(parse_qsl(urlsplit(search.address).query))) == search


def test_search_is_bounded_and_forgiving() -> None:
    """Capitals, spaces and unknown values do no harm; a search is no longer than a name."""
    assert search_of({"q": f"  PAY{'x' * 500}", "problems": "yes"}) == Search(f"pay{'x' * 250}")
