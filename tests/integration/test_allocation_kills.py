"""Hub processes that are killed, paused and stopped in the middle of a move of a reserved address.

A real API server, real processes, and the fakes of the providers. Proxies in front of both find the exact request at
which a process is killed. What was done is judged from the API server's audit log and the log of the cloud's proxies.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.killing.clouds import CLOUDS
from tests.support.killing.judge import began, judge
from tests.support.killing.stage import Point, Process, Stage, When, asks, expected, points, record
from tests.support.replicas import DURATION
from tests.support.waiting import eventually

W: Final = 1.0
"""Seconds that an operation of the cloud takes."""
CHANGES: Final = {"simulated": 3, "gcp": 4, "aws": 2, "azure": 2, "ionos": 2}
"""Changes of the cloud in an undisturbed move: detach, attach, and on some clouds making room and restoring."""
COMPARES_NOTHING: Final = ("aws", "ionos")
"""Clouds that accept what is so already: EC2 an association, IONOS a list of addresses. A late request counts as a
change there, without an effect."""
KILLS: Final = 100
"""Kills of a leader on each cloud."""
WHENS: Final[tuple[When, ...]] = ("before", "after", "late", "pending")


def done_before(stage: Stage, point: Point) -> bool:
    """Whether an earlier leader has done a step: the restore goes on beside the label, at which that leader was killed.

    Without this, a test would wait for a request that nobody has to send any more.
    """
    if point.step in ("record Restoring", "restore"):
        return any(written.act.kind == "restore" for written in stage.written)
    entry = stage.status()["addresses"][0]
    return point.step == "end of record" and entry.get("lastNode") == "n1" and "move" not in entry


def play(stage: Stage, killed_at: list[Point], length: float = W) -> None:
    """Move the address; kill the leader at each of these points, one after the other, and judge the end."""
    stage.cloud.length(length)
    stage.start()
    stage.drain()
    for point in killed_at:
        if not done_before(stage, point):
            stage.spring(point).start()
    assert stage.end(DURATION + 30 + 3 * W) == expected(stage)
    again = stage.kind in COMPARES_NOTHING and any(point.when == "late" for point in killed_at)
    judge(stage, None if again else CHANGES[stage.kind])


SAMPLE: Final[tuple[tuple[str, When], ...]] = (
    ("record Detaching", "before"),
    ("record Detaching", "after"),
    ("detach", "late"),
    ("make room", "after"),
    ("attach", "after"),
    ("label on", "before"),
    ("restore", "late"),
    ("end of record", "before"),
)


def test_a_move_survives_eight_kills(hub_cluster: ApiServer, tmp_path: Path) -> None:
    """A move whose leader is killed eight times ends as an undisturbed one, and each step has one effect.

    Without a record a new leader waits one lease duration; a record is continued at once.
    """
    with Stage(hub_cluster, tmp_path, "gcp") as stage:
        named = {(point.step, when): point for when in WHENS for point in points(stage.cloud, when, slow=True)}
        play(stage, [named[step] for step in SAMPLE], 0.3)
        takeovers = began(stage)
        assert takeovers[0] >= DURATION
        assert max(takeovers[1:]) < 2.0, takeovers


@pytest.mark.nightly
@pytest.mark.parametrize("length", [0.0, W])
@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("kind", CLOUDS)
def test_a_move_survives_a_kill_at_every_step(
    hub_cluster: ApiServer, tmp_path: Path, kind: str, when: When, length: float
) -> None:
    """A move whose leader is killed at every step, one process after the other, ends as an undisturbed one."""
    with Stage(hub_cluster, tmp_path, kind) as stage:
        found = points(stage.cloud, when, slow=length > 0)
        if not found:
            pytest.skip(f"{kind} has no operations that take time")
        play(stage, found, length)


def single_kills() -> list[tuple[str, int]]:
    """As many as make a hundred kills on each cloud, together with those of a kill at every step."""
    found = []
    for kind, cloud in CLOUDS.items():
        chained = sum(len(points(cloud, when, slow=slow)) for when in WHENS for slow in (False, True))
        found += [(kind, number) for number in range(KILLS - chained)]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "number"), single_kills())
def test_a_move_survives_one_kill(hub_cluster: ApiServer, tmp_path: Path, kind: str, number: int) -> None:
    """A move whose leader is killed once, at any of its steps, ends as an undisturbed one."""
    with Stage(hub_cluster, tmp_path, kind) as stage:
        found = [point for when in WHENS for point in points(stage.cloud, when, slow=True)]
        again, step = divmod(number, len(found))
        play(stage, [found[step]], (W, W / 3, 2 * W)[again])


# --- paused and stopped --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("gcp", "detach"),
        *(pytest.param(kind, "detach", marks=pytest.mark.nightly) for kind in ("simulated", "aws", "azure", "ionos")),
        *(pytest.param(kind, "attach", marks=pytest.mark.nightly) for kind in CLOUDS),
    ],
)
def test_a_leader_that_is_paused_in_a_call_writes_nothing_afterwards(
    hub_cluster: ApiServer, tmp_path: Path, kind: str, step: str
) -> None:
    """SIGSTOP in a call for longer than the Lease: the other process goes on, and after SIGCONT nothing is sent.

    The call itself takes effect late, and harms nothing.
    """
    with Stage(hub_cluster, tmp_path, kind) as stage:
        stage.start()
        stage.drain()
        point = Point(f"{step}, late", "late", cloud=asks(step), late=DURATION + 2.0)  # type: ignore[arg-type]
        paused = stage.spring(point, Process.pause)
        stage.end(DURATION + 30)
        time.sleep(2.5)  # until the late request has arrived
        paused.go_on()
        resumed = time.time()
        eventually(lambda: "no longer leads" in paused.log.read_text(), 10)
        time.sleep(1.0)
        assert stage.state() == expected(stage)
        assert [written for written in stage.written if written.replica == paused.name and written.at > resumed] == []
        judge(stage, None if kind in COMPARES_NOTHING else CHANGES[kind])


@pytest.mark.nightly
@pytest.mark.parametrize("kind", CLOUDS)
def test_a_late_attach_never_makes_a_second_holder(hub_cluster: ApiServer, tmp_path: Path, kind: str) -> None:
    """A dead leader's attach that arrives after its successor has brought the address elsewhere is refused.

    The node that does not get the address has what it had.
    """
    with Stage(hub_cluster, tmp_path, kind) as stage:
        stage.start()
        stage.drain()
        stage.spring(Point("attach, late", "late", cloud=asks("attach"), late=DURATION + 16.0))
        sprung = time.monotonic()
        stage.cordon("n1", on=False)
        stage.unready("n3")
        eventually(lambda: stage.settled_at("n1"), DURATION + 15)
        time.sleep(max(0.0, sprung + DURATION + 18.0 - time.monotonic()))
        state = stage.state()
        assert state["holders"] == {stage.moving: "n1", stage.staying: "n2", stage.foreign: "stranger"}
        assert state["labels"] == ["n1", "n2"]
        assert state["ephemeral"]["n3"] == bool(stage.cloud.before)


def test_a_move_goes_on_without_waiting_after_sigterm(hub_cluster: ApiServer, tmp_path: Path) -> None:
    """SIGTERM in the middle of a move hands the record over: the other process sends the next step within 2 s."""
    with Stage(hub_cluster, tmp_path, "gcp") as stage:
        stage.start()
        stage.drain()
        point = Point("record Attaching, after", "after", record("Attaching"))
        stopped = stage.spring(point, lambda process: process.send(signal.SIGTERM))
        assert stage.end(15) == expected(stage)
        first = next(written for written in stage.written if written.replica != stopped.name)
        assert first.at - stage.sprung[-1] < 2.0
        judge(stage, CHANGES["gcp"])
