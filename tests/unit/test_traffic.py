"""The figures of the traffic benchmark and how they are judged. No traffic flows here."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.traffic import report
from benchmarks.traffic.__main__ import parse
from benchmarks.traffic.figures import Arm, Figures, Request, Story, figures

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
