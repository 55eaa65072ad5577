"""The soak test's script and its judges. No soak runs here; every judge gets a run that it must not pass."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import soak_verdict as verdict
from benchmarks.slices import Conditions, Endpoint, Meta, Slice
from benchmarks.soak import EXPECTED, Run, about
from benchmarks.soak_remotes import FAULTS as BREAKS
from benchmarks.soak_script import CALM, EDITS, FAULTS, GRACE, LATE, Fault, Fleet, Step, Truth, script
from benchmarks.soak_verdict import Expected, Soak, theil_sen
from benchmarks.soak_watch import Recorder
from hub.registry.load import load

HOUR = 3600.0
FLEET = Fleet()


# --- the script ------------------------------------------------------------------------------------


def test_script_is_its_seeds() -> None:
    """The same seed gives the same hour, and another seed another one."""
    assert script(1, HOUR, FLEET, 10) == script(1, HOUR, FLEET, 10)
    assert script(1, HOUR, FLEET, 10) != script(2, HOUR, FLEET, 10)


@pytest.mark.parametrize("seed", range(5))
def test_script_replaces_a_tenth_of_the_nodes_per_hour(seed: int) -> None:
    """The script replaces ten times as many nodes as production does with 1 % per hour."""
    replaced = [step for step in script(seed, HOUR, FLEET, 10).steps if step.action == "replace"]
    assert len(replaced) == pytest.approx(0.1 * FLEET.clusters * FLEET.nodes, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_script_breaks_everything_it_can(seed: int) -> None:
    """An hour has every kind of fault and edit, and four failures of the hub's API server."""
    made = script(seed, HOUR, FLEET, 10)
    kinds = [fault.what for fault in made.faults]
    assert set(kinds) == {*FAULTS, "hub-api", "registry"}
    assert kinds.count("hub-api") == 4
    assert {step.what for step in made.steps if step.action == "edit"} == set(EDITS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("seconds", [180.0, HOUR])
def test_no_faults_in_quiet_stretches(seed: int, seconds: float) -> None:
    """There are no faults in quiet stretches, and no changes in the last seconds."""
    made = script(seed, seconds, FLEET, 10)
    for begin, end in made.quiet:
        assert not [fault for fault in made.faults if fault.begin < end and fault.end > begin]
    last = max(step.at + (step.seconds if step.action == "unready" else 0) for step in made.steps)
    assert last <= seconds - CALM


@pytest.mark.parametrize("seed", range(5))
def test_script_breaks_a_cluster_once_at_a_time(seed: int) -> None:
    """Faults of one cluster do not overlap, because healing a cluster ends all its faults."""
    made = script(seed, HOUR, FLEET, 10)
    for name in FLEET.names:
        mine = sorted((fault for fault in made.faults if fault.cluster == name), key=lambda each: each.begin)
        assert all(one.end < other.begin for one, other in pairwise(mine))


def test_script_ends_with_the_registry_as_it_was() -> None:
    """The last edits undo earlier ones."""
    edits = [step.what for step in script(1, HOUR, FLEET, 10).steps if step.action == "edit"]
    assert edits[-3:] == ["drop-source", "repair-file", "add-service"]


def test_every_fault_can_be_carried_out() -> None:
    """The simulated clusters support every fault of the script."""
    assert BREAKS.keys() | {"die", "provider"} == FAULTS.keys()


# --- what ought to be ------------------------------------------------------------------------------


def small() -> Truth:
    """Six clusters of three nodes; svc-0 has sources c0 and c2."""
    truth = Truth(Fleet(6, 3, 2))
    assert truth.sources["svc-0"] == ["c0", "c2"]
    return truth


def test_truth_has_the_nodes_of_all_sources() -> None:
    """The truth of a Service is the nodes of all its sources and of no other cluster."""
    assert small().wanted("svc-0", 0) == {f"10.{c}.0.{n}" for c in (0, 2) for n in (1, 2, 3)}


def test_node_that_stays_may_not_go() -> None:
    """A node that stays must remain published, whatever is wrong with its cluster."""
    assert not small().may_leave("svc-0", "10.0.0.1", 100.0)


def test_replaced_node_may_go() -> None:
    """The address of a replaced node may go and never comes back; the new node's is wanted."""
    truth = small()
    old = truth.pick("c0", 0)
    new = truth.join("c0")
    truth.leave("c0", old)
    assert truth.may_leave("svc-0", old.address, 5.0)
    assert old.address not in truth.wanted("svc-0", 5.0)
    assert new.address in truth.wanted("svc-0", 5.0)


def test_node_that_is_not_ready_may_go_after_the_grace_only() -> None:
    """A node that is not Ready may go after the grace, until shortly after it is Ready again."""
    truth = small()
    node = truth.pick("c0", 0)
    node.unready = 10.0
    early, late = 10.0 + GRACE - 3, 10.0 + GRACE + 1
    assert (truth.may_leave("svc-0", node.address, early), truth.may_leave("svc-0", node.address, late)) == (
        False,
        True,
    )
    assert node.address in truth.wanted("svc-0", early)
    assert node.address not in truth.wanted("svc-0", late)
    node.unready, node.ready_again = None, 100.0
    assert truth.may_leave("svc-0", node.address, 100.0 + LATE - 1)
    assert not truth.may_leave("svc-0", node.address, 100.0 + LATE + 1)


def test_source_that_left_the_registry_may_go() -> None:
    """The endpoints of a source that left the registry may go from that Service only."""
    truth = small()
    truth.sources["svc-1"] = ["c0"]
    truth.drop("svc-0", "c0", 1.0)
    assert truth.may_leave("svc-0", "10.0.0.1", 2.0)
    assert not truth.may_leave("svc-1", "10.0.0.1", 2.0)
    assert truth.wanted("svc-0", 2.0) == {f"10.2.0.{n}" for n in (1, 2, 3)}


def test_registry_of_a_soak_is_accepted(tmp_path: Path) -> None:
    """Every edit leaves a valid registry without warnings, except the edit that breaks it."""
    fleet = Fleet(20, 3, 8)
    run = Run(tmp_path, fleet, script(1, 180, fleet, 10))
    run.remotes_info["providers"] = {name: {"name": "node-addresses"} for name in fleet.names}
    rng = random.Random(1)
    for what in (*EDITS, *EDITS):
        run._edit(Step(0.0, "edit", node=rng.randrange(1 << 30), what=what))
        text = run.path.read_text()
        if what == "break-file":
            with pytest.raises(yaml.YAMLError):
                yaml.safe_load(text)
        else:
            loaded = load(run.path)
            assert not loaded.problems
            assert {key.name for key in loaded.registry.targets} == run.truth.sources.keys()
    assert run.truth.sources == Truth(fleet).sources


# --- the recorder ----------------------------------------------------------------------------------


class Recorded:
    """A recorder over a world of two Services, whose slices the test sets."""

    def __init__(self) -> None:
        self.truth = small()
        self.now = 0.0
        self.recorder = Recorder(self.truth, lambda: self.now)
        for service in self.truth.sources:
            self.take("ADDED", f"{service}-1", service, *sorted(self.truth.wanted(service, 0)))

    def take(self, kind: str, name: str, service: str, *addresses: str, ready: bool = True) -> None:
        """A change of a slice."""
        labels = {"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "endpointslice-hub"}
        endpoints = [Endpoint([address], Conditions(ready)) for address in addresses]
        self.recorder.record(kind, Slice(Meta(name, "1", labels), endpoints))


def test_recorder_accepts_the_expected_slices() -> None:
    """With the expected slices, nothing is lost or wrong."""
    recorded = Recorded()
    assert (recorded.recorder.lost, recorded.recorder.wrong()) == ([], [])


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
def test_recorder_sees_an_endpoint_leave(kind: str) -> None:
    """An endpoint that leaves without a reason is lost, and missing from then on."""
    recorded = Recorded()
    rest = sorted(recorded.truth.wanted("svc-0", 0))[1:]
    recorded.take(kind, "svc-0-1", "svc-0", *rest)
    assert recorded.recorder.lost[0] == "0.0 s: 10.0.0.1 left in svc-0"
    assert len(recorded.recorder.lost) == (1 if kind == "MODIFIED" else 6)
    assert recorded.recorder.wrong()[0].startswith("svc-0: ")


def test_recorder_remembers_a_loss_that_was_made_good() -> None:
    """An endpoint that was missing for a moment counts as lost."""
    recorded = Recorded()
    all_of_them = sorted(recorded.truth.wanted("svc-0", 0))
    recorded.take("MODIFIED", "svc-0-1", "svc-0", *all_of_them[1:])
    recorded.take("MODIFIED", "svc-0-1", "svc-0", *all_of_them)
    assert len(recorded.recorder.lost) == 1
    assert recorded.recorder.wrong() == []


def test_recorder_sees_an_endpoint_shown_as_not_ready() -> None:
    """An endpoint that is shown as not ready counts as lost, because consumers send nothing to it."""
    recorded = Recorded()
    recorded.take("MODIFIED", "svc-0-1", "svc-0", *sorted(recorded.truth.wanted("svc-0", 0)), ready=False)
    assert "10.0.0.1 is shown as not ready in svc-0" in recorded.recorder.lost[0]
    assert "6 not ready" in recorded.recorder.wrong()[0]


def test_recorder_lets_endpoints_move_between_slices() -> None:
    """An endpoint may be in two slices while it moves from one to the other."""
    recorded = Recorded()
    first, *rest = sorted(recorded.truth.wanted("svc-0", 0))
    recorded.take("ADDED", "svc-0-2", "svc-0", first)
    assert recorded.recorder.wrong() == [f"svc-0: 1 twice: {first}"]
    recorded.take("MODIFIED", "svc-0-1", "svc-0", *rest)
    assert (recorded.recorder.lost, recorded.recorder.wrong()) == ([], [])


def test_recorder_lets_replaced_nodes_go() -> None:
    """A replaced node may go, and the new one is missing until it is published."""
    recorded = Recorded()
    old = recorded.truth.pick("c0", 0)
    new = recorded.truth.join("c0")
    recorded.truth.leave("c0", old)
    assert "1 missing: 10.0.0.4; 1 too much: 10.0.0.1" in recorded.recorder.wrong()[0]
    recorded.take("MODIFIED", "svc-0-1", "svc-0", *sorted(recorded.truth.wanted("svc-0", 0)))
    assert new.address == "10.0.0.4"
    assert (recorded.recorder.lost, recorded.recorder.wrong()) == ([], [])


def test_recorder_reports_slices_of_removed_services() -> None:
    """Slices of a Service that left the registry are wrong."""
    recorded = Recorded()
    recorded.truth.sources.pop("svc-1")
    assert "too much" in recorded.recorder.wrong()[0]


# --- the judges ------------------------------------------------------------------------------------

BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
WARNED = Expected(re.compile(r"cluster (?P<cluster>\S+): Unreachable: "), frozenset({"die"}))


def sample(at: float, **changed: float) -> dict[str, float]:
    """One sample of a hub that does not grow."""
    steady = {"rss": 200.0, "pss": 190.0, "fds": 80.0, "tasks": 120.0, "threads": 8.0, "files": 0.0, "cpu": 8.0}
    return {"at": at, **steady, "behind": 0.0, **changed}


def run_of(**changed: Any) -> Soak:
    """An hour without problems, except for the given changes; one sample every 20 s."""
    well = Soak(
        seconds=HOUR,
        samples=[sample(at) for at in range(0, 3600, 20)],
        quiet=((100.0, 300.0), (3400.0, 3600.0)),
        faults=[Fault("die", "c1", 1000.0, 1060.0)],
        log=[],
        began=BEGAN,
        lost=[],
        wrong=[],
    )
    return dataclasses.replace(well, **changed)


def growing(key: str, per_hour: float) -> Soak:
    """A figure that grows steadily."""
    return run_of(samples=[sample(at, **{key: sample(at)[key] + per_hour * at / HOUR}) for at in range(0, 3600, 20)])


def missed(soak: Soak) -> list[str]:
    """The first word of every missed verdict."""
    return [each.what.partition(",")[0] for each in verdict.verdicts(soak, [WARNED]) if not each.met]


def entry(at: float, message: str, level: str = "warning", **more: str) -> str:
    """A line of the log."""
    time = datetime.fromtimestamp(BEGAN + at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": time, "level": level, "logger": "hub.x", "message": message, **more})


def test_good_run_passes() -> None:
    """A good run passes all judges."""
    assert missed(run_of()) == []


def test_theil_sen_is_the_median_slope() -> None:
    """The slope is exact for a line, and a burst on a fifth of the line hardly changes it."""
    straight = [(float(x), 3.0 * x + 1) for x in range(50)]
    assert theil_sen(straight) == pytest.approx(3.0)
    burst = [(x, y + (1000 if 20 <= x < 30 else 0)) for x, y in straight]
    assert theil_sen(burst) == pytest.approx(3.0, abs=0.1)
    assert theil_sen([(1.0, 1.0)]) == 0.0


def test_memory_that_grows_is_missed() -> None:
    """2 MiB per hour count as a leak, 0.5 MiB do not."""
    assert missed(growing("rss", 2.0)) == ["memory"]
    assert missed(growing("rss", 0.5)) == []


def test_early_memory_growth_is_not_a_leak() -> None:
    """Growth in the first third of a run does not count as a leak."""
    samples = [sample(at, rss=150.0 + min(at, 1100) / 20) for at in range(0, 3600, 20)]
    assert missed(run_of(samples=samples)) == []


@pytest.mark.parametrize("key", ["fds", "tasks"])
def test_single_leaked_descriptor_is_found(key: str) -> None:
    """A single leaked descriptor or task is found, even if the slope does not show it."""
    samples = [sample(at, **{key: sample(at)[key] + (at > 3300)}) for at in range(0, 3600, 20)]
    assert missed(run_of(samples=samples)) == [verdict.COUNTS[key]]


@pytest.mark.parametrize("key", list(verdict.COUNTS))
def test_counts_that_grow_are_missed(key: str) -> None:
    """Ten more per hour are a leak."""
    assert missed(growing(key, 10.0)) == [verdict.COUNTS[key]]


def test_threads_of_the_pool_may_come_late() -> None:
    """New threads are accepted up to the size of the event loop's pool on a small machine."""
    for more, found in ((4, []), (5, ["threads"])):
        samples = [sample(at, threads=8.0 + (more if at > 700 else 0)) for at in range(0, 3600, 20)]
        assert missed(run_of(samples=samples)) == found


def test_run_that_was_not_watched_to_its_end_is_not_judged() -> None:
    """A run with samples of only its first half is not judged."""
    with pytest.raises(ValueError, match="not watched"):
        verdict.judge_memory(run_of(samples=run_of().samples[:90]))
    with pytest.raises(ValueError, match="quiet stretch"):
        verdict.judge_count(run_of(samples=run_of().samples[:90]), "fds")


def test_lost_endpoint_is_missed() -> None:
    """One lost endpoint fails the run."""
    assert missed(run_of(lost=["5.0 s: 10.0.0.1 left in svc-0"])) == ["endpoints lost"]


def test_wrong_slices_at_the_end_are_missed() -> None:
    """One Service with wrong slices at the end fails the run."""
    assert missed(run_of(wrong=["svc-0: 1 missing: 10.0.0.1"])) == ["wrong at the end"]


@pytest.mark.parametrize(
    "line",
    [
        entry(500, "cluster c1: Unreachable: no answer"),
        entry(1200, "cluster c1: Unreachable: no answer"),
        entry(1010, "cluster c2: Unreachable: no answer"),
        entry(1010, "cluster c1: WrongCluster: another one answers"),
        entry(1010, "cluster c1: Unreachable: no answer", "error", traceback="Traceback …"),
        entry(1010, "something failed", "error"),
        entry(1010, "all is well", "info", traceback="Traceback …"),
        "Fatal Python error: Segmentation fault",
        '"a string"',
    ],
    ids=["before", "long after", "another cluster", "another state", "traceback", "error", "info", "no JSON", "string"],
)
def test_line_that_no_fault_explains_is_missed(line: str) -> None:
    """A warning is only expected about a broken cluster, during its fault or just after it."""
    assert missed(run_of(log=[line])) == ["log lines outside the list written before"]


@pytest.mark.parametrize(
    "line",
    [
        entry(1010, "cluster c1: Unreachable: no answer"),
        entry(1100, "cluster c1: Unreachable: no answer"),
        entry(500, "cluster c2: Ready", "info"),
    ],
)
def test_line_that_a_fault_explains_is_fine(line: str) -> None:
    """A warning that a fault explains is accepted, and so is a line that only reports a change."""
    assert missed(run_of(log=[line])) == []


def test_list_of_expected_lines_has_only_faults_there_are() -> None:
    """Every expected line names at least one fault, and only faults that exist."""
    assert EXPECTED
    for each in EXPECTED:
        assert each.faults
        assert each.faults <= {*FAULTS, "hub-api", "registry", *verdict.UNPLANNED}


def test_graph_shows_a_run() -> None:
    """The graph shows the run with its judged slope."""
    text = verdict.graph(growing("rss", 2.0), "Soak")
    assert "Theil–Sen +2.00 MiB/h" in text
    assert text.count("<polyline") == 7


def test_machine_faults_are_shown_separately() -> None:
    """Faults of the machine are shown separately from those of the script, in text and graph."""
    fleet = Fleet(6, 3, 2)
    plan = script(1, HOUR, fleet, 10)
    busy = [Fault("busy", "", at, at + 5) for at in (10.0, 20.0)]
    found = {
        "script": dataclasses.asdict(plan),
        "fleet": dataclasses.asdict(fleet),
        "faults": [dataclasses.asdict(each) for each in (*busy, Fault("die", "c1", 30.0, 40.0))],
        "samples": [sample(at, waited=0.5) for at in range(0, 3600, 20)],
        "when": "2026-01-01",
        "machine": "2 cores",
        "reports": 1234,
        "slices_seen": 99,
    }
    text = about(found)
    assert "1 faults: die 1." in text
    assert "no core for 2.5 % of the time; 0 requests" in text
    assert "1,234 reports came in" in text
