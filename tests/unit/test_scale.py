"""The scale benchmark's own logic: simulated clusters, records and judgements. Nothing is measured here."""

from __future__ import annotations

import asyncio
import json
import time
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hub_testkit.simulator.identity import client_tls

from benchmarks.report import replace_block
from benchmarks.scale import __main__ as command
from benchmarks.scale import capacity, plot, report
from benchmarks.scale.ledger import Ledger
from benchmarks.scale.remotes import ADDRESSES, LOG, Change, Cluster, Pace, Remotes, address
from benchmarks.scale.run import stalls
from benchmarks.slices import Event, decode_event
from benchmarks.world import Row
from hub.cli import limits
from hub.decide.eligibility import LEAVING_TAINTS
from hub.kube.wire import NODES

ROOT = Path(__file__).parents[2]


def cluster(nodes: int = 3, changes: list[Change] | None = None) -> Cluster:
    """A cluster without watches."""
    return Cluster(7, nodes, (changes if changes is not None else []).append)


class TestCluster:
    """A simulated remote cluster, as the hub sees it."""

    def test_nodes_are_as_large_as_real_ones(self) -> None:
        """A node has 12 KB of JSON, and the hub decodes it as a Ready node with its own address."""
        body = cluster().list()
        assert 11_000 < len(body) / 3 < 13_000
        nodes, version, more = NODES.list_page(body)
        assert (sorted(nodes), version, more) == (["c7-worker-0", "c7-worker-1", "c7-worker-2"], "1000", "")
        assert {node.addresses[0].address for node in nodes.values()} == {address(7, number) for number in range(3)}

    def test_a_report_changes_times_and_nothing_else(self) -> None:
        """A heartbeat changes the bytes of a Node, but nothing that the hub keeps of it."""
        one = cluster(1)
        [node] = one.nodes.values()
        before, kept = one.render(node), NODES.list_page(one.list())[0]
        one.beat(node, b"2026-02-03T04:05:06Z")
        after = json.loads(one.render(node))
        assert one.render(node) != before
        assert {each["lastHeartbeatTime"] for each in after["status"]["conditions"]} == {"2026-02-03T04:05:06Z"}
        assert after["metadata"]["resourceVersion"] == "1001"
        again = NODES.list_page(one.list())[0]
        assert msgspec.json.encode(again) == msgspec.json.encode(kept)

    def test_a_replacement_comes_not_ready_and_uninitialized_first(self) -> None:
        """A replacement is published, and its time starts, when it becomes Ready."""
        changes: list[Change] = []
        one = cluster(1, changes)
        [old] = list(one.nodes.values())
        new = one.join()
        joined = json.loads(one.render(new))
        assert (joined["spec"]["taints"][0]["key"] in LEAVING_TAINTS, changes) == (True, [])
        one.make_ready(new)
        one.delete(old)
        assert [(name, ip, came) for _, name, ip, came in changes] == [
            ("c7", address(7, 1), True),
            ("c7", address(7, 0), False),
        ]
        assert "taints" not in json.loads(one.render(new))["spec"]

    def test_addresses_are_of_one_cluster_only(self) -> None:
        """The address of a replaced node is never used again in any cluster, and addresses can run out."""
        assert address(7, ADDRESSES - 1) < address(8, 0)
        with pytest.raises(ValueError, match="has had 4096 nodes"):
            address(7, ADDRESSES)


class TestRemotes:
    """The simulated API servers, over HTTPS."""

    @asynccontextmanager
    async def serving(self, tmp_path: Path) -> AsyncIterator[tuple[Remotes, aiohttp.ClientSession, str]]:
        """Two clusters, a client, and the URL of the second cluster."""
        remotes = Remotes(0, 2, 2)
        await remotes.serve()
        remotes.write_kubeconfigs(tmp_path)
        config = json.loads((tmp_path / "c1.kubeconfig").read_text())
        url = config["clusters"][0]["cluster"]["server"]
        connector = aiohttp.TCPConnector(ssl=client_tls())
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as session:
            yield remotes, session, url
        remotes.refuse()

    async def test_a_watch_goes_on_where_the_list_ended(self, tmp_path: Path) -> None:
        """A watch first sends the events since the list, then new ones, and then ends in time."""
        async with self.serving(tmp_path) as (remotes, session, url):
            one = remotes.clusters[1]
            version = (await (await session.get(f"{url}/api/v1/nodes")).json())["metadata"]["resourceVersion"]
            first = one.nodes["c1-worker-0"]
            one.beat(first, b"2026-02-03T04:05:06Z")
            query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "1"}
            async with session.get(f"{url}/api/v1/nodes", params=query) as answer:
                lines = [json.loads(await answer.content.readline())]
                one.delete(first)
                lines += [json.loads(line) async for line in answer.content]
            seen = [(each["type"], each["object"]["metadata"]["resourceVersion"]) for each in lines]
            assert seen == [("MODIFIED", "1001"), ("DELETED", "1002")]
            assert (lines[1]["object"]["kind"], one.watchers) == ("Node", set())

    async def test_a_version_that_is_forgotten_is_expired(self, tmp_path: Path) -> None:
        """A watch from before the remembered changes gets 410."""
        async with self.serving(tmp_path) as (remotes, session, url):
            for _ in range(LOG + 1):
                remotes.clusters[1].beat(remotes.clusters[1].nodes["c1-worker-0"], b"2026-02-03T04:05:06Z")
            query = {"watch": "true", "resourceVersion": "1000"}
            async with session.get(f"{url}/api/v1/nodes", params=query) as answer:
                assert (answer.status, (await answer.json())["reason"]) == (410, "Expired")

    async def test_each_cluster_has_a_name_of_its_own(self, tmp_path: Path) -> None:
        """Each cluster has its own kube-system UID."""
        async with self.serving(tmp_path) as (_, session, url):
            found = await (await session.get(f"{url}/api/v1/namespaces/kube-system")).json()
            missing = await session.get(f"{url}/api/v1/pods")
            assert (found["metadata"]["uid"][-2:], missing.status) == ("01", 404)

    async def test_dead_clusters_refuse_and_come_back(self, tmp_path: Path) -> None:
        """A dead cluster cuts open connections and refuses new ones; later it is back on the same port."""
        async with self.serving(tmp_path) as (remotes, session, url):
            query = {"watch": "true", "resourceVersion": "1000"}
            async with session.get(f"{url}/api/v1/nodes", params=query) as answer:
                await remotes.execute({"refuse": True})
                with pytest.raises(aiohttp.ClientError):
                    await answer.content.readline()
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"{url}/api/v1/nodes")
            await remotes.execute({"refuse": False})
            assert (await session.get(f"{url}/api/v1/nodes")).status == 200

    async def test_orders_are_carried_out(self, tmp_path: Path) -> None:
        """Nodes report and are replaced at the ordered pace."""
        async with self.serving(tmp_path) as (remotes, _, _):
            running = asyncio.create_task(remotes.run())
            await remotes.execute({"beat": 0.1, "replace_now": 1})
            changes: list[Any] = []
            async with asyncio.timeout(20):
                while len(changes) < 2 or remotes.clusters[0].version < 1020:
                    changes += (await remotes.execute({"changes": True}))["changes"]
                    await asyncio.sleep(0.05)
            running.cancel()
            (came, one, ip, appeared), (went, other, _, stayed) = changes
            assert (one == other, appeared, stayed, went - came) == (True, True, False, pytest.approx(1.0, abs=0.9))
            assert ip in (await remotes.execute({"addresses": True}))[one]

    def test_pace_is_even_and_does_not_catch_up(self) -> None:
        """Ten per second are ten in a second, and what is more than a second late is skipped."""
        pace = Pace(10.0, since=0.0)
        assert [pace.due(now) for now in (0.05, 0.1, 0.55, 1.0)] == [0, 1, 4, 5]
        assert (pace.due(100.0), pace.due(100.05), pace.due(100.1)) == (10, 0, 1)


def event(kind: str, name: str, *addresses: str, port: int = 30443) -> Event:
    """A watch event for slices of Service ``web``."""
    found = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses] or None,
        "ports": [{"port": port}],
    }
    return decode_event(json.dumps({"type": kind, "object": found}))


class TestLedger:
    """The harness's record of slices."""

    def test_coming_and_going_have_a_time(self) -> None:
        """An address comes with the first slice that has it and goes with the last one that loses it."""
        ledger, begin = Ledger(), time.monotonic()
        ledger.apply(event("ADDED", "web-0", "10.1.0.1"))
        came = ledger.came["web", "10.1.0.1"]
        ledger.apply(event("ADDED", "web-1", "10.1.0.1"))
        ledger.apply(event("MODIFIED", "web-0"))
        assert (ledger.came["web", "10.1.0.1"], ledger.went) == (came, {})
        ledger.apply(event("DELETED", "web-1", "10.1.0.1"))
        assert begin <= came <= ledger.went["web", "10.1.0.1"]
        assert ledger.events == {"web": 4}

    def test_service_with_other_addresses_is_wrong(self) -> None:
        """A Service is wrong if it has an address too many, one too few, or none."""
        ledger = Ledger()
        ledger.apply(event("ADDED", "web-0", "10.1.0.1", port=31000))
        wanted = [{"web": {"10.1.0.1"}}, {"web": {"10.1.0.1", "10.1.0.2"}}, {"web": set[str]()}, {"shop": {"10.1.0.1"}}]
        assert [bool(ledger.wrong(each)) for each in wanted] == [False, True, True, True]
        assert ledger.ports == {"web": 31000}

    def test_stalls_are_those_of_the_phase(self, tmp_path: Path) -> None:
        """The longest stall of a phase leaves out garbage collections; a missing file has no stalls."""
        file = tmp_path / "stalls"
        assert stalls(file, 0, 100)["stall_ms"] == 0
        file.write_text(
            "[5, 9.0, 0, -1]\n[50, 0.12, 0.04, -1]\n[51, 0.02, 0.01, -1]\n[52, 0.3, 0, 2]\n[200, 9.0, 0, -1]\n"
        )
        assert stalls(file, 10, 100) == {"stall_ms": 120.0, "stall_cpu_ms": 40.0, "stalls": 1, "gc_ms": 300.0}


def phase(**figures: Any) -> dict[str, Any]:
    """A phase with the figures that all phases have, and more."""
    cpu = {"remotes": 5.0, "kube-apiserver": 3.0, "etcd": 1.0, "harness": 0.5}
    rest = {"seconds": 60.0, "hub_cpu": 5.0, "cpu": cpu, "writes": 0, "late_ms": 10.0}
    return {**rest, "stall_ms": 20.0, "stall_cpu_ms": 15.0, "stalls": 0, "gc_ms": 5.0, **figures}


def phases(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A run that reaches every goal."""
    good = {
        "start": phase(right_s=20.0, right=True, cpu_s=12.0, rss_mib=500.0, pss_mib=490.0, peak_mib=590.0),
        "idle": phase(hub_cpu=9.0),
        report.OFTEN: phase(hub_cpu=55.0, rss_mib=500.0, pss_mib=490.0, peak_mib=590.0),
        report.REPLACED: phase(p50_s=0.05, p99_s=1.9, changes=100, missed=0, wrong=0),
        report.ALL_LIVE: phase(p50_s=0.05, p99_s=0.2, changes=100, missed=0),
        report.DEAD[0]: phase(p50_s=0.054, p99_s=0.2, changes=100, missed=0),
        "restart": phase(right_s=15.0, stop_s=0.2, rewritten=0),
    }
    return {name: {**good.get(name, {}), **changes.get(name, {})} for name in {**good, **changes}}


class TestGoals:
    """The goals, and whether a run reaches them."""

    def test_a_good_run_misses_nothing(self) -> None:
        """Every line with a goal says ok."""
        found = report.goals(phases())
        assert {line.name for line in found if line.met is False} == set()
        assert sum(line.met is True for line in found) == 9

    def test_dead_clusters_are_compared_with_before_and_after(self) -> None:
        """Dead clusters are not blamed for what is also slower before and after."""
        again = {report.LIVE_AGAIN: phase(p50_s=0.07, p99_s=0.3, changes=100, missed=0)}
        name = f"change → slices, p50, {report.DEAD[0]}"
        for value, met in ((0.066, True), (0.067, False)):
            found = report.goals(phases(**again, **{report.DEAD[0]: {"p50_s": value}}))
            [line] = [each for each in found if each.name == name]
            assert line.met is met
        assert line.measured == "1.12 × (0.050, 0.070 → 0.067 s; p99 0.200, 0.300 → 0.200 s)"

    @pytest.mark.parametrize(
        ("name", "change", "line"),
        [
            ("start", {"peak_mib": 601.0}, "memory, peak of all phases"),
            ("idle", {"hub_cpu": 10.1}, "idle CPU, a report per node every 5 min"),
            ("idle", {"writes": 1}, "writes while idle"),
            (report.OFTEN, {"hub_cpu": 61.0}, "idle CPU, a report per node every 10 s"),
            (report.REPLACED, {"p99_s": 2.01}, "change → slices, p99, 1 % replaced per minute"),
            (report.REPLACED, {"missed": 1}, "changes lost, and Services wrong afterwards"),
            (report.REPLACED, {"wrong": 1}, "changes lost, and Services wrong afterwards"),
            (report.DEAD[0], {"p50_s": 0.056}, f"change → slices, p50, {report.DEAD[0]}"),
            ("restart", {"rewritten": 1}, "restart: Services rewritten that need not be"),
            ("idle", {"stall_ms": 101.0}, "longest stall of the event loop"),
        ],
    )
    def test_each_goal_can_be_missed(self, name: str, change: dict[str, Any], line: str) -> None:
        """A figure beyond its goal misses this goal and no other."""
        missed = [line.name for line in report.goals(phases(**{name: change})) if line.met is False]
        assert missed == [line]

    def test_longest_stall_names_its_phase(self) -> None:
        """The line about the longest stall says in which phase it was."""
        [line] = [line for line in report.goals(phases(restart={"stall_ms": 250.0})) if "stall" in line.name]
        assert line.measured == "250 ms (restart)"

    def test_a_start_that_never_was_right_is_a_failure(self) -> None:
        """A start without a correct state is a failure, whatever else was measured."""
        assert report.good(phases())
        assert not report.good(phases(start={"right": False}))
        assert not report.good({})


def grown(exponent: float) -> dict[str, Any]:
    """A growth run in which every figure grows with this power of the number of clusters."""
    runs = []
    for size in (50, 100, 200):
        value = size**exponent
        figures = {
            "start": phase(right_s=value, right=True, cpu_s=value),
            report.OFTEN: phase(hub_cpu=value, peak_mib=value),
        }
        runs += [{"clusters": size, "nodes": 10, "services": 2, "round": n, "phases": figures} for n in range(3)]
    machine = {"cores": 2, "python": "3.11.7", "kubernetes": "1.35.4", "etcd": "3.6.8"}
    return {"date": "2026-01-01", "machine": machine, "pinned": "nobody", "runs": runs}


class TestGrowth:
    """The growth of figures with the fleet."""

    @pytest.mark.parametrize(("exponent", "word"), [(0.9, "ok"), (1.1, "ok"), (1.2, "missed")])
    def test_slope_is_judged(self, exponent: float, word: str) -> None:
        """A slope up to 1.1 counts as proportional, within noise."""
        lines = [line for line in report.growth(grown(exponent)).splitlines() if line.startswith("| start-up")]
        assert lines[0].endswith(f"| {exponent:.2f} | ≤ 1.1 | {word} |")

    def test_one_size_has_no_slope(self) -> None:
        """A single size has no slope."""
        assert (report.slope([(50, 1.0), (50, 2.0)]), report.slope([])) == (None, None)

    def test_picture_has_every_run(self) -> None:
        """The SVG is well-formed and has a panel per figure, a point per run, and the slope as text."""
        picture = ET.fromstring(plot.svg(grown(0.5)))
        space = "{http://www.w3.org/2000/svg}"
        texts = [each.text for each in picture.iter(f"{space}text")]
        assert len(list(picture.iter(f"{space}circle"))) == 9 * len(report.GROWING)
        assert sum("slope 0.50" in (text or "") for text in texts) == len(report.GROWING)

    def test_page_has_the_marks(self) -> None:
        """--write-docs finds the marks for both tables."""
        page = (ROOT / "docs" / "performance.md").read_text()
        for marks in ((report.BEGIN, report.END), (report.GROWTH_BEGIN, report.GROWTH_END)):
            assert "\n\nnew\n\n" in replace_block(page, "new", *marks)


class TestCommandLine:
    """The command line's arguments."""

    def test_default_is_the_fleet_with_goals(self) -> None:
        """The default is 500 clusters of 100 nodes with 2,000 Services, and growth in four sizes, three times."""
        given = command.parse([])
        assert (given.row, given.seconds, given.sizes, given.rounds) == (Row(500, 100, 4), 120, (50, 100, 200, 500), 3)
        assert command.parse(["--growth"]).seconds == 60

    @pytest.mark.parametrize(
        "arguments",
        [["--row", "20x10"], ["--row", "0x1x1"], ["--row", "1x501x1"], ["--sizes", "5000"], ["--rounds", "0"]],
    )
    def test_nonsense_is_refused(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        """Malformed and out-of-range arguments are usage errors."""
        with pytest.raises(SystemExit) as ended:
            command.parse(arguments)
        assert (ended.value.code, "error:" in capsys.readouterr().err) == (2, True)


def constants() -> dict[str, float]:
    """The constants in the repository."""
    found: dict[str, float] = json.loads(capacity.FILE.read_text())
    return found


class TestCapacity:
    """The numbers in docs/fleet-size.md."""

    def test_capacity_page_matches_the_constants(self) -> None:
        """The tables of the page match the constants; benchmarks.scale.capacity --write updates them."""
        page = capacity.PAGE.read_text()
        assert capacity.page(page, constants()) == page

    def test_every_constant_is_known(self) -> None:
        """Every constant has a meaning and a value."""
        assert constants().keys() == capacity.CONSTANTS.keys()

    def test_needs_follow_from_the_constants(self) -> None:
        """The needs of 10 clusters of 100 nodes in 2 shards match a calculation by hand with all constants 1."""
        fleet = capacity.Fleet(10, nodes=100, services=4, report=100.0, replaced=0.36, shards=2)
        found = {each.name: each.value for each in capacity.needs(fleet, dict.fromkeys(capacity.CONSTANTS, 1.0))}
        # A shard: 5 clusters, 500 nodes, 20 slices; 5 reports a second. All: 0.1 replacements a second, 8 writes each.
        assert found == pytest.approx(
            {
                "memory of each process": 1 + (5 + 500 + 20) / 1024,
                "CPU of each process": (1 + 5 * 1 + 5 * 1 + 0.8 / 2) / 10,
                "CPU time of a start": 0.005,
                "watches of each process": 5,
                "open files of each process": limits.needed(5),
                "node reports, each process": 5,
                "clusters.yaml": 50 / (1 << 20),
                "CPU time of an edit's check": 0.01,
                "slices in the hub cluster": 40,
                "slices written": 0.8,
                "API server and etcd for these": 0.8,
            }
        )

    def test_capacity_limits_are_exact(self) -> None:
        """One cluster more exceeds the limit and one less does not; the earliest limit comes first."""
        found = capacity.limits(constants(), memory_mib=4096, start_s=60)
        assert [clusters for _, clusters in found] == sorted(clusters for _, clusters in found)
        most = dict(found)["memory of 4 GiB"]
        values = [capacity.needs(capacity.Fleet(most + more), constants())[0].value for more in (0, 1)]
        assert values[0] <= 4096 < values[1]
        assert limits.needed(dict(found)["65,536 open files"]) <= limits.HIGHEST_LIMIT

    @pytest.mark.parametrize(("slice_", "at_least"), [(20.0, 20.0), (-0.2, 0.0)])
    def test_memory_fit_finds_each_cost(self, slice_: float, at_least: float) -> None:
        """The fit finds each memory cost from fleets that differ in one thing at a time; no cost is negative."""
        base, cluster, node = 50.0, 300.0, 4.0
        runs = []
        for row in command.CONSTANTS:
            kib = row.clusters * (cluster + row.nodes * node + row.services * max(1, row.nodes / 100) * slice_)
            figures = {"start": phase(peak_mib=base + kib / 1024, cpu_s=1.0)}
            runs.append({"clusters": row.clusters, "nodes": row.nodes, "services": row.services, "phases": figures})
        found = capacity.fit(runs)
        wanted = {"base_mib": base, "cluster_kib": cluster, "node_kib": node, "slice_kib": at_least}
        assert found == pytest.approx(wanted, rel=0.01)
        assert capacity.fit(runs[:1]) == {}

    def test_cpu_cost_is_the_difference_between_phases(self) -> None:
        """A CPU cost is the difference between two phases, divided by what differed."""
        server = {"kube-apiserver": 20.0, "etcd": 4.0, "remotes": 1.0, "harness": 1.0}
        runs = []
        for size in (100, 500):
            figures = {
                "start": phase(cpu_s=1.0 + size * 0.02),
                "idle": phase(hub_cpu=2 + size * 0.018, reports_per_s=size / 3),
                report.OFTEN: phase(hub_cpu=2 + size * 0.108, reports_per_s=size * 10 + size / 3),
                report.REPLACED_OFTEN: phase(hub_cpu=22 + size * 0.018, writes=6000, cpu=server),
            }
            runs.append({"clusters": size, "nodes": 100, "services": 4, "phases": figures})
        assert capacity.fit(runs) == {
            "report_ms": 0.09,
            "base_idle_ms": 20.0,
            "cluster_idle_ms": 0.15,
            "write_ms": 2.0,
            "server_write_ms": 2.0,
            "cluster_start_ms": 20.0,
        }
        assert capacity.fit(runs[:1]).keys() == {"report_ms", "write_ms", "server_write_ms"}

    def test_writing_puts_constants_and_page_in_step(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """--fit and --write update copies of the constants and the page."""
        for name in ("FILE", "PAGE"):
            copy = tmp_path / getattr(capacity, name).name
            copy.write_text(getattr(capacity, name).read_text())
            monkeypatch.setattr(capacity, name, copy)
        starts = [phase(cpu_s=each * 1.111) for each in (7, 9)]
        runs = [
            {"clusters": size, "nodes": 100, "services": 4, "phases": {"start": start}}
            for size, start in zip((7, 9), starts, strict=True)
        ]
        (tmp_path / "runs.json").write_text(json.dumps({"runs": runs}))
        assert capacity.main(["--fit", str(tmp_path / "runs.json"), "--write"]) == 0
        assert constants()["cluster_start_ms"] == 1111.0
        assert "| `cluster_start_ms` | 1111 ms |" in capacity.PAGE.read_text()
        assert "1111 ms" in capsys.readouterr().out
