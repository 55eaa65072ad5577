"""The figures of the traffic benchmark and how they are judged. No traffic flows here."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.traffic import __main__ as traffic
from benchmarks.traffic import report
from benchmarks.traffic.__main__ import parse
from benchmarks.traffic.figures import ARMS, Arm, Figures, Request, Story, figures
from benchmarks.traffic.rows import ENVOY_ROWS, ROWS

RATE = 10.0
RESULT = {
    "date": "2026-01-02",
    "machine": {"cores": 2, "memory_gb": 24, "python": "3.11", "go": "1.26", "kubernetes": "1.35.4"},
    "broken": [],
}
ANSWERED = Figures(100, 0, None, None, None, 0.0, 0.0, {}, [0, 0])


def requests(*lost: int, address: str = "10.7.1.1", node: str = "eu-0") -> list[Request]:
    """Twenty requests in two seconds, of which those with these numbers are lost."""
    return [
        Request(number / RATE, 0.01, "" if number in lost else node, "refused" if number in lost else "", address)
        for number in range(20)
    ]


def test_lost_requests_are_counted_by_error_and_second() -> None:
    """The last lost one is counted from the fault."""
    found = figures(Story(requests(9, 12, 13), fault=0.5, removed={}, booted={}), RATE)
    assert (found.requests, found.lost, found.last_lost, found.errors) == (20, 3, 0.8, {"refused": 3})
    assert found.lost_by_second == [1, 2]
    assert (found.after_removal, found.first_request) == (None, None)
    assert Figures(**json.loads(json.dumps(dataclasses.asdict(found)))) == found  # saved and read again


def test_requests_after_a_removal_are_those_sent_to_its_address() -> None:
    """Lost requests count like answered ones; other addresses do not."""
    sent = [*requests(19), *requests(address="10.7.1.2")]
    assert figures(Story(sent, 0.0, {"10.7.1.1": 1.65}, {}), RATE).after_removal == 3


@pytest.mark.parametrize(("nodes", "seconds"), [({"eu-0": -0.5}, 0.5), ({"eu-0": 0.0, "eu-9": 1.0}, float("inf"))])
def test_new_node_waits_for_its_first_request(nodes: dict[str, float], seconds: float) -> None:
    """The slowest new node counts; one that gets no request waits forever."""
    assert figures(Story(requests(), 0.0, {}, nodes), RATE).first_request == seconds


@pytest.mark.parametrize(
    ("row", "lost", "missed"),
    [
        ("drain", {"reference": 0, "hub": 0, "health": 0}, []),
        ("drain", {"reference": 0, "hub": 1}, ["0 lost", "no more lost than by the reference"]),
        ("drain", {"hub": 1}, ["0 lost"]),
        ("node link down", {"reference": 700, "hub": 750, "health": 475}, []),
        (
            "node link down",
            {"reference": 700, "hub": 790, "health": 476},
            ["no more lost than by the reference", "at most 475 lost"],
        ),
        ("failover", {"reference": 10000, "health": 5000}, []),
    ],
)
def test_goals(row: str, lost: dict[Arm, int], missed: list[str]) -> None:
    """Rows without a dead node must lose nothing; health checks limit the rest; the reference is never better."""
    found = {row: {arm: dataclasses.replace(ANSWERED, lost=count) for arm, count in lost.items()}}
    assert [goal.text for goal in report.goals(found) if not goal.met] == missed


def test_document_has_every_row_and_the_problems() -> None:
    """A missed goal is in the table, and named below it."""
    rows: report.Found = {
        "drain": {"reference": ANSWERED, "hub": dataclasses.replace(ANSWERED, lost=2000, last_lost=1.5)},
        "node flaps": {"reference": ANSWERED, "hub": ANSWERED},
    }
    text = report.document(RESULT | {"broken": ["kube-proxy of hub has ended"]}, {"kube-proxy": rows})
    assert "| drain | 0 | 2,000 | missed |" in text
    assert "| node flaps | 0 | 0 | met |" in text
    assert "| drain | – | 1.5 |" in text
    assert "- kube-proxy: drain, hub: 0 lost\n" in text
    assert text.endswith("- kube-proxy of hub has ended")


def test_late_clients_and_a_changed_clock_are_reported() -> None:
    """Both may distort the figures, so the page says so."""
    late = figures(Story([request._replace(at=request.at + 0.7) for request in requests()], 0.0, {}, {}), RATE)
    jumped = dataclasses.replace(ANSWERED, jump=-3600.0)
    text = report.document(RESULT, {"envoy": {"drain": {"hub": late}, "failover": {"hub": jumped}}})
    assert text.endswith(
        "- envoy: failover: the wall clock jumped by -3600 s; the figures use the monotonic clock\n"
        "- envoy: the machine was overloaded: clients were up to 0.7 s late (drain)"
    )


def test_picture_draws_the_rows_with_loss() -> None:
    """Rows that are not measured are left out."""
    drawn = report.picture({"failover": {"hub": ANSWERED}, "drain": {"hub": ANSWERED}})
    assert ">failover</text>" in drawn
    assert "drain" not in drawn


def test_command_line_names_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown rows and arms are refused; --quick has five rows and two arms."""
    assert [*parse(["--quick"]).rows] == ["kube-proxy"]
    assert (len(parse(["--quick"]).rows["kube-proxy"]), parse(["--quick"]).arms) == (5, ["reference", "health"])
    with pytest.raises(SystemExit):
        parse(["--rows", "drain,drian"])
    assert "'drian' is not one of: rotation, drain" in capsys.readouterr().err


def test_quick_rows_are_those_of_the_docs() -> None:
    """``--quick`` plays an upgrade, a drain, an outage, a killed hub and a dead node."""
    assert parse(["--quick"]).rows == {
        "kube-proxy": ["rotation", "drain", "remote API dead", "hub kill -9", "node link down"]
    }


def test_page_lists_every_row_as_it_is_played() -> None:
    """The table of rows has the names and texts of the code."""
    rows = re.findall(
        r"^\| `([^`|]+)` \| ([^|]+) \|$", traffic.PAGE.read_text().partition("## The rows")[2], re.MULTILINE
    )
    assert rows == [(row.name, row.text) for row in ROWS]


def test_saved_figures_are_complete() -> None:
    """The last complete run has all arms of all rows through kube-proxy, and of eight through Envoy."""
    rows = json.loads(traffic.DATA.read_text())["rows"]
    found = {consumer: {row: [*arms] for row, arms in by_row.items()} for consumer, by_row in rows.items()}
    assert found == {
        "kube-proxy": {row.name: [*ARMS] for row in ROWS},
        "envoy": {row: [*ARMS] for row in ENVOY_ROWS},
    }


def test_a_complete_run_writes_the_page_the_graph_and_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written anew from the saved figures, all three are as they are; a part of the rows writes nothing."""
    before = {name: getattr(traffic, name) for name in ("PAGE", "PICTURE", "DATA")}
    for name, path in before.items():
        monkeypatch.setattr(traffic, name, tmp_path / path.name)
    page = before["PAGE"].read_text()
    text = re.sub(f"(?s)({re.escape(report.BEGIN)}).*({re.escape(report.END)})", r"\1\n\2", page)
    assert text != page
    traffic.PAGE.write_text(text)
    assert traffic.main(["--from", str(before["DATA"]), "--quick"]) == 0
    assert traffic.PAGE.read_text() == text
    assert traffic.main(["--from", str(before["DATA"])]) == 0
    assert {name: getattr(traffic, name).read_bytes() for name in before} == {
        name: path.read_bytes() for name, path in before.items()
    }
    assert "## Through envoy" in capsys.readouterr().out


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that do nothing; nft is missing."""
    for name in ("unshare", "nsenter", "ip"):
        (tmp_path / name).symlink_to("/bin/true")
    return tmp_path


def bench(path: str) -> subprocess.CompletedProcess[str]:
    """Run the bench with these programs."""
    command = [sys.executable, "-m", "benchmarks.traffic", "--quick"]
    env = {"PATH": path, "PYTHONPATH": str(traffic.ROOT)}
    return subprocess.run(command, cwd=traffic.ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_without_nft_it_says_so_and_exits_3(programs: Path) -> None:
    """The message names the missing program and its package."""
    done = bench(str(programs))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "cannot measure: nft not installed: run make deps, or apt-get install nftables\n"


def test_without_namespaces_it_says_so_and_exits_3(programs: Path) -> None:
    """The message has the reason that the system gives."""
    (programs / "nft").symlink_to("/bin/true")
    refused = programs / "unshare"
    refused.unlink()
    refused.write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2\nexit 1\n")
    refused.chmod(0o755)
    done = bench(f"{programs}:/bin:/usr/bin")
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot be made: unshare failed: Operation not permitted" in done.stderr
