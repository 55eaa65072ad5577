"""The benchmark's own logic: counting, comparing and writing. Nothing is measured here."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml

from benchmarks import bench, floor, measure, report, subjects
from benchmarks.slices import Event, decode_event
from benchmarks.world import Backend, Row, World, address, count_writes, node
from hub.model import PUBLISHED, Endpoint
from hub.registry.load import load
from tests.support.registry import strict

ROW = report.ROWS[0]
GOOD = {
    "converged": True,
    "missed": 0,
    "clusters": 4,
    "nodes": 500,
    "services": 100,
    "flips": 100,
    **dict.fromkeys((figure.key for figure in report.FIGURES), 10.0),
    "writes_per_flip": 25.0,
    "heartbeat_writes": 0,
}


def run(subject: str, number: int = 0, **changes: Any) -> dict[str, Any]:
    """A result of one run."""
    return {**GOOD, "subject": subject, "round": number, **changes}


def slice_event(kind: str, name: str, *addresses: str, service: str = "web", ready: bool | None = True) -> Event:
    """An event of a watch of slices."""
    endpoints = [{"addresses": [address], "conditions": {"ready": ready}} for address in addresses]
    meta = {"name": name, "labels": {"kubernetes.io/service-name": service}}
    return decode_event(json.dumps({"type": kind, "object": {"metadata": meta, "endpoints": endpoints or None}}))


class TestPublished:
    """The published addresses that the harness reads from its watch."""

    def test_address_in_two_slices_counts_once(self) -> None:
        """An address that moves between slices is published once."""
        published = measure.Published()
        published.apply(slice_event("ADDED", "web-0", "10.1.0.1", "10.1.0.2"))
        published.apply(slice_event("ADDED", "web-1", "10.1.0.2"))
        assert (published.count("web"), published.has("web", "10.1.0.2")) == (2, True)
        published.apply(slice_event("MODIFIED", "web-0", "10.1.0.1"))
        published.apply(slice_event("DELETED", "web-1"))
        assert (published.count("web"), published.has("web", "10.1.0.2")) == (1, False)

    def test_endpoint_that_is_not_ready_does_not_count(self) -> None:
        """An endpoint counts unless ready is false; a missing value means ready, as in Kubernetes."""
        published = measure.Published()
        published.apply(slice_event("ADDED", "web-0", "10.1.0.1", ready=False))
        published.apply(slice_event("ADDED", "web-1", "10.1.0.2", ready=None))
        assert [published.has("web", ip) for ip in ("10.1.0.1", "10.1.0.2")] == [False, True]

    def test_unknown_service_publishes_nothing(self) -> None:
        """A Service without slices has no addresses."""
        assert (measure.Published().count("web"), measure.Published().has("web", "10.1.0.1")) == (0, False)


class TestFigures:
    """Statistics and process figures."""

    def test_p99_is_the_hundredth_part_from_the_end(self) -> None:
        """The 99th percentile of 200 values is the 198th."""
        assert measure.p99([float(value) for value in range(200, 0, -1)]) == 198.0

    def test_p99_of_few_values_is_one_of_them(self) -> None:
        """A few values have a 99th percentile, and no values have zero."""
        assert (measure.p99([3.0]), measure.p99([])) == (3.0, 0.0)

    def test_usage_is_of_a_living_process(self) -> None:
        """This process has memory, a peak that is no smaller, and CPU time."""
        used = measure.usage(os.getpid())
        assert 0 < used.rss <= used.peak + 1
        assert used.cpu > 0

    def test_only_writes_on_slices_are_counted(self) -> None:
        """Reads and requests for other resources do not count."""
        line = 'apiserver_request_total{{code="200",resource="{}",verb="{}"}} {}'
        metrics = "\n".join(
            [
                "# TYPE apiserver_request_total counter",
                line.format("endpointslices", "PUT", 7),
                line.format("endpointslices", "POST", "1e+01"),
                line.format("endpointslices", "LIST", 100),
                line.format("services", "PUT", 100),
            ]
        )
        assert count_writes(metrics) == 17


def test_successors_are_other_nodes_at_other_addresses() -> None:
    """Replacement nodes have new names and new addresses of the same cluster."""
    made = [measure.successor(number, random.Random(1)) for number in range(measure.ROLLING_NODES)]
    addresses = {each["status"]["addresses"][0]["address"] for each in made}
    known = {address(cluster, number) for cluster in range(20) for number in range(5000)}
    assert (len(addresses), addresses & known) == (measure.ROLLING_NODES, set())
    assert {each["metadata"]["name"] for each in made} & {f"c0-worker-{number}" for number in range(5000)} == set()


class TestPacedChanges:
    """Nodes that change at a fixed pace, without waiting for the subject."""

    def test_changes_are_seen_in_any_order(self) -> None:
        """Each change has its own time, even if one write shows several; unseen changes are missing."""
        published = measure.Published()
        pending = measure.PendingChanges(published, "web")
        for number in (1, 2, 3):
            pending.add(f"10.1.0.{number}", ready=True)
        published.apply(slice_event("ADDED", "web-0", "10.1.0.2", "10.1.0.3"))
        assert not pending.check()
        assert (len(pending.milliseconds), pending.unpublished) == (2, 1)
        published.apply(slice_event("MODIFIED", "web-0", "10.1.0.1"))
        assert pending.check()
        assert (len(pending.milliseconds), pending.unpublished) == (3, 0)

    @pytest.mark.parametrize("nodes", [4, 100])
    def test_every_change_changes_something(self, nodes: int) -> None:
        """Each change alters its node, and only few nodes are not Ready at a time."""
        down: set[int] = set()
        most = 0
        for number, ready in measure.readiness_changes(1000, nodes):
            assert ready == (number in down)
            (down.discard if ready else down.add)(number)
            most = max(most, len(down))
        assert most == min(measure.MAX_NOT_READY, nodes // 2)


class TestComparison:
    """From runs to the table of results."""

    def test_medians_leave_out_what_failed(self) -> None:
        """A run that did not converge or missed a change does not count towards a median."""
        runs = [
            run("hub", 0, converge_s=1.0),
            run("hub", 1, converge_s=2.0),
            run("hub", 2, converge_s=9.0),
            run("hub", 3, converge_s=100.0, missed=1),
            {"subject": "hub", "round": 4, "converged": False, "missed": 0},
        ]
        assert report.medians(runs)["hub"]["converge_s"] == 2.0

    @pytest.mark.parametrize(("hub", "verdict"), [(12.0, "✓"), (12.04, "✓"), (12.1, "✗")])
    def test_goal_is_judged_as_printed(self, hub: float, verdict: str) -> None:
        """A ratio that is printed as the goal reaches the goal."""
        line = report.table(ROW, [run("goref"), run("hub", converge_s=hub)])[2]
        assert f"≤ 1.2 {verdict}" in line

    def test_counts_must_be_exact(self) -> None:
        """Writes per change equal the Services of a cluster, and heartbeats cause no writes."""
        lines = report.table(ROW, [run("hub", writes_per_flip=25.5, heartbeat_writes=1)])
        marks = {line.split(" | ")[0]: line for line in lines}
        assert "25 ✗" in marks["| writes per change"]
        assert "0 ✗" in marks["| writes by heartbeats"]

    @pytest.mark.parametrize(("hub", "verdict"), [(12.0, "✓"), (60.0, "✓"), (60.2, "✗")])
    def test_a_short_time_is_enough_at_a_pace(self, hub: float, verdict: str) -> None:
        """At a pace, a time of at most 60 ms passes whatever the ratio to the reference is."""
        lines = report.table(report.ROWS[3], [run("goref"), run("hub", paced20_p99_ms=hub)])
        [line] = [line for line in lines if line.startswith("| 20 changes a second → slice, p99")]
        assert f"≤ 1.5 or hub ≤ 60 {verdict}" in line

    @pytest.mark.parametrize(("hub", "verdict"), [(0.15, "✓"), (0.16, "✗")])
    def test_last_change_has_a_limit_of_its_own(self, hub: float, verdict: str) -> None:
        """The last change has an absolute limit, because the reference may need no time."""
        lines = report.table(ROW, [run("goref", rolling_last_s=0.0), run("hub", rolling_last_s=hub)])
        assert f"hub ≤ 0.15 {verdict}" in lines[-1]

    def test_figures_that_are_not_taken_are_left_out(self) -> None:
        """Figures of paced changes appear only in rows with one Service."""
        figures = {key: value for key, value in run("hub").items() if not key.startswith("paced")}
        assert not any("changes a second" in line for line in report.table(ROW, [figures]))

    def test_missing_subject_leaves_blanks(self) -> None:
        """Without the reference there is no ratio and no verdict."""
        assert report.table(ROW, [run("hub")])[2].count("–") == 4

    def test_order_alternates(self) -> None:
        """Every other round runs the subjects in reverse order."""
        assert [bench.order(["goref", "hub"], number) for number in (0, 1)] == [["goref", "hub"], ["hub", "goref"]]


class TestDocument:
    """The text that goes into docs/performance.md."""

    def document(self, *runs: dict[str, Any]) -> str:
        """A document with some runs."""
        machine = dict.fromkeys(("cores", "memory_gb", "arch", "python", "go", "kubernetes", "etcd"), "1")
        commands = {"import hub.cli": 0.1, "hub check clusters.example.yaml": 0.7}
        return report.document({"date": "2026-01-01", "machine": machine, "commands": commands, "runs": list(runs)})

    def test_each_row_has_a_table(self) -> None:
        """Rows keep their order and state how often they were measured."""
        text = self.document(run("hub"), run("hub", 1), run("hub", clusters=10, nodes=1000))
        assert text.index("**4 clusters × 500 nodes, 100 Services** (2 rounds") < text.index(
            "**10 clusters × 1,000 nodes, 100 Services** (1 round "
        )

    def test_failed_runs_are_mentioned(self) -> None:
        """A run that does not count is mentioned."""
        assert "1 of 2 runs" in self.document(run("hub"), run("hub", 1, missed=2))

    def test_slow_command_is_marked(self) -> None:
        """A command that misses its goal is marked."""
        text = self.document(run("hub"))
        assert ("0.10 | < 0.5 ✓" in text, "0.70 | < 0.5 ✗" in text) == (True, True)

    def test_block_is_replaced_and_nothing_else(self) -> None:
        """Only the text between the marks of the block changes, even next to other marks."""
        page = "before, [end]\n[begin]\nold\n[end]\nafter, [other end]\n"
        expected = "before, [end]\n[begin]\n\nnew\n\n[end]\nafter, [other end]\n"
        assert expected == report.replace_block(page, "new", "[begin]", "[end]")

    @pytest.mark.parametrize(
        ("page", "missing"),
        [("text", "[begin]"), ("[end] text", "[begin]"), ("[begin] text", "[end]"), ("[end] [begin] text", "[end]")],
    )
    def test_page_without_a_mark_is_refused(self, page: str, missing: str) -> None:
        """A page without a mark is an error that names the mark."""
        with pytest.raises(ValueError, match=rf"^the page has no {re.escape(missing)}$"):
            report.replace_block(page, "new", "[begin]", "[end]")


class TestCommandLine:
    """The command line's arguments."""

    def test_default_is_the_rows_with_goals(self) -> None:
        """Without arguments both rows are measured three times for all subjects."""
        given = bench.parse([])
        assert (given.rows, given.rounds, given.flips) == (list(report.GOALS), 3, 100)
        assert given.subjects == ["goref", "hub", "floor"]

    def test_rows_are_parsed(self) -> None:
        """A row has clusters, nodes per cluster and Services per cluster."""
        assert bench.parse(["--rows", "4x500x25,1x1x1"]).rows == [Row(4, 500, 25), Row(1, 1, 1)]

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--rows", "4x500"],
            ["--rows", "21x10x1"],
            ["--rows", "1x5001x1"],
            ["--rows", "0x1x1"],
            ["--subjects", "goref,nobody"],
            ["--flips", "0"],
            ["--heartbeats", "1000000"],
            ["--quick", "--write-docs"],
        ],
    )
    def test_nonsense_is_refused(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        """Malformed, out-of-range and misleading arguments are usage errors."""
        with pytest.raises(SystemExit) as ended:
            bench.parse(arguments)
        assert (ended.value.code, "error:" in capsys.readouterr().err) == (2, True)


class TestWork:
    """The work that all subjects get."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> World:
        """A world of one cluster, without its servers."""
        apis: list[Any] = [SimpleNamespace(server=SimpleNamespace(name=name)) for name in ("hub", "c0")]
        for name in ("hub", "c0"):
            (tmp_path / f"{name}.kubeconfig").touch()
        return World(Row(1, 10, 1), tmp_path, apis[0], (apis[1],), (Backend("c0", "edge", "svc-0-0", 30443),))

    def test_registry_of_the_hub_loads(self, world: World) -> None:
        """The hub's registry has no problems, and only the grace differs from the default."""
        file = world.folder / "clusters.yaml"
        file.write_text(yaml.safe_dump(subjects.registry(world)))
        registry = strict(load(file))
        [target] = registry.targets.values()
        assert (target.sources[0].cluster, target.sources[0].nodes.not_ready_grace) == ("c0", 0.0)

    def test_others_get_the_same_services(self, world: World) -> None:
        """The reference and the floor read kubeconfigs and Services from one file."""
        config = json.loads(Path(subjects.floor(world)[-1]).read_text())
        assert list(config["clusters"]) == ["c0"]
        assert config["services"] == [{"cluster": "c0", "namespace": "edge", "service": "svc-0-0", "port": 30443}]

    def test_node_is_as_large_as_a_real_one(self) -> None:
        """A Node has the 12 KB of a kubelet's Node, mostly images, and is the same every time."""
        made = [msgspec.json.encode(node(3, 260, random.Random(1))) for _ in range(2)]
        assert 7_000 < len(made[0]) < 14_000
        assert made[0] == made[1]

    def test_floor_publishes_ready_nodes(self) -> None:
        """The floor publishes the same address of a Ready Node as the others, and no Node that is not Ready."""
        made = node(3, 260, random.Random(1))
        found = msgspec.convert(made, floor.Node).endpoint()
        assert found == Endpoint((address(3, 260),), PUBLISHED, zone="de-fra-2")
        made["status"]["conditions"][-1]["status"] = "False"
        assert msgspec.convert(made, floor.Node).endpoint() is None
