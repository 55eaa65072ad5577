"""Tests of the recorder on a real etcd: it records every state in order, and reports gaps."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver import binaries
from tests.support.apiserver.fleet import ServerFleet
from tests.support.apiserver.process import Process, as_flags
from tests.support.faults.judge import Set, Truth, judge
from tests.support.faults.recorder import PREFIX, Recording
from tests.support.ports import free_port
from tests.support.waiting import eventually

ONE = Set("edge/payments", "eu")
A, B = "10.0.0.1", "10.0.0.2"


class Etcd:
    """An etcd that tests write to directly."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        url = f"http://127.0.0.1:{self.port}"
        flags = {
            "data-dir": folder / "data",
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": "http://127.0.0.1:0",
            "unsafe-no-fsync": "true",
            "log-level": "error",
        }
        self.process = Process("etcd", [str(binaries.ensure("etcd")["etcd"]), *as_flags(flags)], folder / "etcd.log")

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Call etcd's HTTP gateway."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", path, json.dumps(body))
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return found

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process.start()

        def answers() -> bool:
            try:
                return "version" in self.ask("/v3/maintenance/status")
            except (OSError, ValueError):
                return False

        eventually(answers, 30)

    def put(self, *addresses: str, name: str = "payments-0") -> str:
        """Write a slice of cluster eu; returns its key."""
        labels = {"kubernetes.io/service-name": "payments", "multicluster.kubernetes.io/source-cluster": "eu"}
        body = {
            "metadata": {"name": name, "namespace": "edge", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address]} for address in addresses],
        }
        self.ask("/v3/kv/put", key=_encoded(f"{PREFIX}edge/{name}"), value=_encoded(json.dumps(body)))
        return f"edge/{name}"

    def delete(self, name: str = "payments-0") -> None:
        """Delete a slice."""
        self.ask("/v3/kv/deleterange", key=_encoded(f"{PREFIX}edge/{name}"))

    def forget(self) -> None:
        """Compact everything up to now."""
        revision = self.ask("/v3/kv/range", key=_encoded("x"))["header"]["revision"]
        self.ask("/v3/kv/compaction", revision=revision, physical=True)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, server_fleet: ServerFleet) -> Iterator[Etcd]:
    """A running etcd. Without the programs for the fleet, the test is skipped."""
    made = Etcd(tmp_path_factory.mktemp("etcd"))
    made.start()
    yield made
    made.process.kill()


@pytest.fixture
def etcd(started: Etcd) -> Iterator[Etcd]:
    """A running etcd without content."""
    yield started
    for name in ("payments-0", "before", "after", "mark", "odd"):
        started.delete(name)


@pytest.fixture
def recording(etcd: Etcd, tmp_path: Path) -> Iterator[Recording]:
    """A running recorder."""
    with Recording(etcd.port, tmp_path / "recording.jsonl") as made:
        yield made


def states(recording: Recording) -> list[tuple[str, ...] | None]:
    """The addresses in each commit; None for a deletion."""
    return [commit.slice.addresses if commit.slice is not None else None for commit in recording.commits]


def test_every_state_is_recorded_with_its_time(etcd: Etcd, recording: Recording) -> None:
    """States and deletions are recorded in order, with times of this machine's monotonic clock."""
    began = time.monotonic()
    for addresses in ((A,), (A, B), (B,)):
        etcd.put(*addresses)
    etcd.delete()
    recording.sync(lambda: etcd.put(name="mark"))
    assert states(recording) == [(A,), (A, B), (B,), None, ()]
    times = [commit.at for commit in recording.commits]
    assert times == sorted(times)
    assert began <= times[0]
    assert times[-1] <= time.monotonic()
    assert recording.lost == ""


def test_initial_objects_are_not_writes(etcd: Etcd, tmp_path: Path) -> None:
    """Slices that exist when the recording begins are marked."""
    etcd.put(A)
    with Recording(etcd.port, tmp_path / "late.jsonl") as late:
        assert late.addresses("edge/payments") == {A}
        assert [commit.first for commit in late.commits] == [True]


def test_broken_watch_resumes_without_gaps_or_duplicates(etcd: Etcd, recording: Recording) -> None:
    """When a killed etcd is started again, no state is missing or recorded twice."""
    etcd.put(A)
    recording.sync(lambda: etcd.put(name="before"))
    etcd.process.kill()
    etcd.start()
    etcd.put(A, B)
    recording.sync(lambda: etcd.put(name="after"))
    assert states(recording) == [(A,), (), (A, B), ()]
    assert (recording.lost, recording.breaks > 0) == ("", True)


def test_gap_in_history_is_reported(etcd: Etcd, recording: Recording) -> None:
    """If the recorder is paused while its watch breaks and the history is compacted, the recording is lost."""
    etcd.put(A)
    recording.sync(lambda: etcd.put(name="before"))
    os.kill(recording.pid, signal.SIGSTOP)
    etcd.process.kill()
    etcd.start()
    etcd.put(A, B)
    etcd.put(A)
    etcd.put(A, B)
    etcd.forget()
    os.kill(recording.pid, signal.SIGCONT)
    recording.sync(lambda: etcd.put(name="after"))
    assert "refused" in recording.lost


def test_ended_recorder_is_reported(etcd: Etcd, recording: Recording) -> None:
    """If the recorder ends, the recording is lost."""
    os.kill(recording.pid, signal.SIGKILL)
    recording.sync(lambda: etcd.put(name="mark"))
    assert "the recorder has ended" in recording.lost


def test_stalled_recorder_is_reported(etcd: Etcd, recording: Recording) -> None:
    """If a mark does not arrive in time, the recording is lost."""
    os.kill(recording.pid, signal.SIGSTOP)
    recording.sync(lambda: etcd.put(name="mark"), timeout=0.5)
    os.kill(recording.pid, signal.SIGCONT)
    assert recording.lost == "slice edge/mark was not seen within 0.5 s"


def test_undecodable_value_is_a_gap(etcd: Etcd, recording: Recording) -> None:
    """If the server stores protobuf instead of JSON, the recording is lost."""
    etcd.ask("/v3/kv/put", key=_encoded(f"{PREFIX}edge/odd"), value=_encoded("k8s\0\n"))
    recording.wait(lambda: bool(recording.lost), 10)
    assert "JSONDecodeError" in recording.lost


def test_a_bad_removal_by_hand_is_judged_bad(etcd: Etcd, recording: Recording) -> None:
    """An endpoint that is removed for a moment is recorded, and judged as lost."""
    truth = Truth()
    for address in (A, B):
        truth.node_added(time.monotonic(), address, ONE)
    for addresses in ((A, B), (A,), (A, B)):
        etcd.put(*addresses)
    recording.sync(lambda: etcd.put(name="mark"))
    found = judge(recording.commits, truth)
    assert [(offence.kind, offence.set) for offence in found][:1] == [("lost", ONE)]
    assert B in found[0].text
