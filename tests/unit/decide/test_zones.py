"""Zone hints: the zones of remote nodes are translated, and the endpoints of a source have hints all or none."""

from __future__ import annotations

from typing import Any

from hub.decide.plan import Plan
from hub.decide.zones import in_hub_zone
from hub.model import Endpoint, Hints, NamedHint, Slice, SourceView
from hub.registry.spec import NodePolicy
from tests.support import build
from tests.support.build import Pipeline

ZONES = (("eu-1", "a"), ("eu-2", "b"))


def pipeline(*clusters: str, zones: tuple[tuple[str, str], ...] = ZONES, **more: Any) -> Pipeline:
    """A target whose sources map zones."""
    sources = tuple(build.source(cluster, nodes=NodePolicy(zones=zones)) for cluster in clusters or ("eu",))
    return Pipeline(build.target(sources=sources, **more))


def endpoint(address: str, node: str, zone: str | None, zones: tuple[tuple[str, str], ...] = ZONES) -> Endpoint:
    """An endpoint as views have it under a map."""
    return in_hub_zone(build.endpoint(address, node, zone=zone), dict(zones))


def offer(*names: str | None, zones: tuple[tuple[str, str], ...] = ZONES, **more: Any) -> SourceView:
    """A view of nodes n1, n2, … at 10.0.0.1, 10.0.0.2, … in these zones (None = no zone), under a map."""
    made = [endpoint(f"10.0.0.{n}", f"n{n}", name, zones) for n, name in enumerate(names, 1)]
    return build.view("eu", made, **more)


def hinted(endpoint: Endpoint) -> tuple[str | None, tuple[str, ...]]:
    """Zone and hints of an endpoint."""
    return endpoint.zone, tuple(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else ()


def published(it: Pipeline) -> list[tuple[str | None, tuple[str, ...]]]:
    """Zone and hints of all published endpoints, by address."""
    endpoints = [endpoint for slice_ in it.slices for endpoint in slice_.endpoints]
    return [hinted(endpoint) for endpoint in sorted(endpoints, key=lambda endpoint: endpoint.address)]


def writes(plan: Plan) -> tuple[Slice, ...]:
    """All writes of a plan."""
    return (*plan.creates, *plan.updates, *plan.deletes)


def messages(it: Pipeline) -> dict[str, str]:
    """The messages of the last pass's findings."""
    assert it.desired is not None
    return {finding.reason: finding.message for finding in it.desired.findings}


def test_endpoints_get_the_hub_zone_and_a_hint_for_it() -> None:
    """Every endpoint is in its hub zone and has a hint for it; another pass writes nothing."""
    it = pipeline()
    it.run(offer("eu-1", "eu-2"))
    assert published(it) == [("a", ("a",)), ("b", ("b",))]
    assert it.reasons() == []
    it.restart()
    assert writes(it.plan(offer("eu-1", "eu-2"))) == ()


def test_without_a_map_zones_stay() -> None:
    """Without ``zoneMap``, endpoints have the zone of their node, and no hints."""
    it = pipeline(zones=())
    it.run(offer("eu-1", None, zones=()))
    assert published(it) == [("eu-1", ()), (None, ())]
    assert it.reasons() == []


def test_one_unmapped_zone_takes_all_hints_of_the_source_away() -> None:
    """If the zone of one endpoint is not mapped, none of the source has hints; mapped zones are still translated."""
    it = pipeline(endpoints_per_slice=1)
    it.run(offer("eu-1", "eu-2"))
    it.run(offer("eu-1", "eu-2", "eu-3"))
    assert published(it) == [("a", ()), ("b", ()), ("eu-3", ())]
    assert messages(it) == {
        "ZoneNotMapped": "eu: no zone hints: 1 of 3 endpoints are in no known zone, such as 10.0.0.3, "
        "whose zone 'eu-3' is not in zoneMap"
    }
    it.run(offer("eu-1", "eu-2", "eu-2"))
    assert published(it) == [("a", ("a",)), ("b", ("b",)), ("b", ("b",))]


def test_a_node_without_a_zone_is_named() -> None:
    """The finding names an endpoint whose node has no zone."""
    it = pipeline()
    it.run(offer("eu-1", None))
    assert messages(it) == {
        "ZoneNotMapped": "eu: no zone hints: 1 of 2 endpoints are in no known zone, such as 10.0.0.2, which has no zone"
    }


def test_a_zone_that_the_hub_cluster_does_not_have_is_named() -> None:
    """A hub zone without a Node takes the hints away, once the zones of the hub cluster are known."""
    it = pipeline()
    it.hub_zones = frozenset("ac")
    it.run(offer("eu-1", "eu-2"))
    assert published(it) == [("a", ()), ("b", ())]
    assert messages(it) == {"ZoneNotInHub": "eu: no zone hints: zoneMap names b, where the hub cluster has no Node"}
    it.run(offer("eu-1", "eu-2"))  # nothing changes from here on but the zones of the hub cluster
    it.hub_zones = frozenset("ab")
    it.run(offer("eu-1", "eu-2"))
    assert published(it) == [("a", ("a",)), ("b", ("b",))]
    assert it.reasons() == []


def test_a_hub_cluster_without_zones_takes_hints_away() -> None:
    """If it is known that no Node of the hub cluster has a zone, there are no hints."""
    it = pipeline()
    it.hub_zones = frozenset()
    it.run(offer("eu-1"))
    assert (published(it), it.reasons()) == ([("a", ())], ["ZoneNotInHub"])


def test_sources_have_hints_independently() -> None:
    """A source with an unmapped zone does not change the slices of another source."""
    it = pipeline("eu", "us")
    other = build.view("us", [endpoint("10.1.0.1", "u1", "us-9")])
    it.run(offer("eu-1"), other)
    assert published(it) == [("a", ("a",)), ("us-9", ())]
    assert [finding.objects for finding in it.desired.findings] == [("us",)]  # type: ignore[union-attr]


def test_both_families_report_once() -> None:
    """A node with two addresses in an unmapped zone is one finding."""
    it = pipeline()
    it.service = build.service(families=("IPv4", "IPv6"))
    it.run(build.view("eu", [endpoint("10.0.0.1", "n1", "x")], [endpoint("fd00::1", "n1", "x")]))
    assert it.reasons() == ["ZoneNotMapped"]


def test_an_endpoint_whose_node_is_not_known_keeps_its_translated_zone() -> None:
    """A kept endpoint is not translated again, even if its hub zone is the name of a remote zone as well."""
    swapped = (("a", "b"), ("b", "a"))
    it = pipeline(zones=swapped)
    it.run(offer("a", "b", zones=swapped))
    assert published(it) == [("b", ("b",)), ("a", ("a",))]
    pending = offer("a", zones=swapped, nodes=("n1", "n2"), unknown_nodes=("n2",))
    assert writes(it.plan(pending)) == ()


def test_a_kept_endpoint_without_hints_takes_the_others_away() -> None:
    """A kept endpoint from before the map has no hint, so the source has none until its node is known again."""
    it = pipeline(zones=())
    it.run(offer("eu-1", "eu-2", zones=()))
    it.target = build.target(sources=(build.source("eu", nodes=NodePolicy(zones=ZONES)),))
    it.run(offer("eu-1", nodes=("n1", "n2"), unknown_nodes=("n2",)))
    assert published(it) == [("a", ()), ("eu-2", ())]
    it.run(offer("eu-1", "eu-2"))
    assert published(it) == [("a", ("a",)), ("b", ("b",))]


def test_hints_leave_with_the_map() -> None:
    """Once the registry has no map, no endpoint has hints, also one that is kept while its node is not known."""
    it = pipeline()
    it.run(offer("eu-1", "eu-2"))
    it.target = build.target(sources=(build.source("eu"),))
    it.run(offer("eu-1", zones=(), nodes=("n1", "n2"), unknown_nodes=("n2",)))
    assert published(it) == [("eu-1", ()), ("b", ())]


def test_an_unknown_source_keeps_its_hints() -> None:
    """While a source is unknown, its published endpoints keep their hints, also under another map."""
    it = pipeline()
    it.run(offer("eu-1"))
    other = (("eu-1", "c"), ("eu-2", "c"))
    it.target = build.target(sources=(build.source("eu", nodes=NodePolicy(zones=other)),))
    it.run(offer("eu-1", "eu-2", zones=other, unknown="unreachable"))
    assert published(it) == [("a", ("a",)), ("c", ("c",))]


def test_copies_in_the_hub_cluster_keep_their_own_hints() -> None:
    """The hints of endpoints that are copied within the hub cluster stay."""
    hints = Hints((NamedHint("z"),))
    it = Pipeline(build.target("local"))
    copied = build.endpoint("10.2.0.1", zone="z", hints=hints)
    it.run(build.view("local", [copied], copied=True, addresses_complete=frozenset(("10.2.0.1",))))
    it.run(build.view("local", [], complete=False, copied=True, addresses_complete=frozenset(("10.2.0.1",))))
    assert published(it) == [("z", ("z",))]
