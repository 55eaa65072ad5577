"""The dashboard of allocations: a real Prometheus answers every one of its queries."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hub.allocating.metrics_catalog import FAMILIES, PREFIX, STATUSES, WAITING_REASONS, Family
from tests.support.ports import free_port
from tests.support.prometheus import ALERTS, Prometheus
from tests.support.waiting import eventually

DASHBOARD: dict[str, Any] = json.loads((ALERTS.parent / "dashboards" / "ip-address-controller.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
KNOWN = {family.name: family for family in FAMILIES}
VALUES = {"cluster": ("", "eu"), "status": STATUSES, "reason": WAITING_REASONS}
"""Label -> its values; any other label has one value."""


def exposition(scrape: int) -> str:
    """Every family of the catalog, for two clusters; counters and histograms grow with each scrape."""
    return "".join(f"{line}\n" for family in FAMILIES for line in lines(family, scrape))


def lines(family: Family, scrape: int) -> Iterator[str]:
    """The lines of one family."""
    yield f"# TYPE {family.name} {family.kind.replace('info', 'gauge')}"
    for values in itertools.product(*(VALUES.get(label, ("x",)) for label in family.labels)):
        labels = ",".join(f'{name}="{value}"' for name, value in zip(family.labels, values, strict=True))
        if family.kind == "histogram":
            for bound in (*family.buckets, "+Inf"):
                yield f'{family.name}_bucket{{{labels},le="{bound}"}} {scrape}'
            yield f"{family.name}_sum{{{labels}}} {scrape}"
            yield f"{family.name}_count{{{labels}}} {scrape}"
        else:
            yield f"{family.name}{{{labels}}} {scrape if family.kind == 'counter' else 1}"


@contextmanager
def served() -> Iterator[str]:
    """Serve the exposition on loopback; the address."""
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exposition(next(numbers)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_every_query_of_the_dashboard_has_series(tmp_path: Path) -> None:
    """With the cluster All, which also means no cluster label, and with one cluster, every query has numbers."""
    assert len(QUERIES) > 30
    with served() as address, Prometheus(tmp_path, address, free_port()) as prometheus:
        eventually(lambda: prometheus.query(f"rate({PREFIX}reconcile_total[20s]) > 0"), 30)
        for query, cluster in itertools.product(QUERIES, (".*", "eu")):
            asked = query.replace("$__rate_interval", "20s").replace("$cluster", cluster)
            assert [each["value"][1] for each in prometheus.series(asked) if each["value"][1] != "NaN"], asked
        both = {each["metric"].get("cluster") for each in prometheus.query(f'{PREFIX}crd_status{{cluster=~".*"}}')}
        assert both == {None, "eu"}


@pytest.mark.parametrize("query", QUERIES)
def test_query_of_the_dashboard_uses_the_catalog(query: str) -> None:
    """Metrics and the labels by which they are aggregated exist, and `cluster` selects, where a metric has it."""
    selectors = re.findall(rf"({PREFIX}\w+)(\{{[^}}]*\}})?", query)
    assert selectors
    for name, selector in selectors:
        family = KNOWN.get(name) or KNOWN[re.sub(r"_(bucket|count|sum)$", "", name)]
        assert ('cluster=~"$cluster"' in selector) is ("cluster" in family.labels)
        by = {label for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(", ")}
        assert by <= {*family.labels, "le"}


def test_dashboard_has_the_identity_of_the_one_it_replaces() -> None:
    """Uid and title are those of ip-address-controller, and the variable `cluster` has the value .* for All."""
    assert (DASHBOARD["uid"], DASHBOARD["title"]) == ("ip-address-controller", "IP Address Controller")
    [_, cluster] = DASHBOARD["templating"]["list"]
    assert (cluster["name"], cluster["allValue"]) == ("cluster", ".*")
    assert cluster["definition"] == "label_values(netipallocation_crd_status, cluster)"


def test_panels_do_not_overlap() -> None:
    """Every panel has a place of its own in the grid of 24 columns, and a number of its own."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))
        assert not cells & taken, panel["title"]
        assert max(columns) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
