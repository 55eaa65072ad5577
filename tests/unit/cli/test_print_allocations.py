"""How commands print reserved addresses."""

from __future__ import annotations

import json

import click
import pytest
from msgspec.structs import replace

from hub.cli.changes import print_plan
from hub.cli.exits import Exit
from hub.cli.print_allocations import show
from hub.cli.print_status import show as show_status
from hub.cli.print_status import text
from hub.cli.reserved import moves, summary
from hub.cli.watch_status import changes
from hub.report.allocations import Write
from hub.report.values import Allocation, Allocations, CloudAccount, ReservedAddress, Status

A1, A2, A3 = "34.1.2.1", "34.1.2.2", "34.1.2.3"
UNCHANGED = "Plan: 0 services to change; 0 unchanged; endpoints: 0 added, 0 removed, 0 changed"
SINCE = "2026-01-01T00:00:00Z"
APPROVE = "hub approve allocation/web abc"
WEB = Allocation(
    "web",
    "local",
    "main",
    "gcp",
    "True",
    "Attached",
    "2 of 3 addresses attached",
    3,
    2,
    addresses=(
        ReservedAddress(A1, "Attached", node="n1", since=SINCE),
        ReservedAddress(A2, "Pending", "NoNode", "no node can take it", to="n3", cause="Free"),
        ReservedAddress(A3, "Leaving", "Withheld", "cordoned", "n2", cause="Drained", hash="abc", approve=APPROVE),
    ),
)
FOUND = Allocations("enforce", "", (CloudAccount("main", "gcp", ("local",), "ready"),), (WEB,))
UNKNOWN = replace(
    FOUND, allocations=(replace(WEB, ready="Unknown", reason="Unknown", addresses=(ReservedAddress(A1, "Unknown"),)),)
)


def test_allocations_are_a_table_each(capsys: pytest.CaptureFixture[str]) -> None:
    """An allocation has a line with its place and state, and a table of its addresses."""
    paused = replace(WEB, name="api", paused=True, account="", message="", addresses=())
    assert show(replace(FOUND, allocations=(WEB, paused)), None, "table") == Exit.OK
    assert click.unstyle(capsys.readouterr().out).splitlines() == [
        "web on local, account main: 2 of 3 addresses attached",
        "  ADDRESS    STATE      NODE   SINCE                  REASON",
        "  34.1.2.1   Attached   n1     2026-01-01T00:00:00Z   -",
        "  34.1.2.2   Pending    -      -                      NoNode no node can take it",
        "  34.1.2.3   Leaving    n2     -                      Withheld cordoned",
        "",
        "api on local, account none, paused: no status yet",
    ]


def test_allocations_as_json_have_the_keys_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    """The document has only the allocation that was asked for."""
    assert show(replace(FOUND, allocations=(WEB, replace(WEB, name="api"))), "web", "json") == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["apiVersion", "kind", "mode", "trouble", "accounts", "allocations"]
    assert [allocation["name"] for allocation in found["allocations"]] == ["web"]
    assert found["allocations"][0]["addresses"][2]["approve"] == APPROVE


def test_unknown_addresses_and_trouble_have_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """What is unknown makes the exit code 4, and warnings say why; a name that is not known makes it 1."""
    account = replace(FOUND.accounts[0], error="timeout")
    assert show(replace(UNKNOWN, accounts=(account,)), None, "table") == Exit.UNKNOWN
    assert show(replace(FOUND, trouble="no CRD"), None, "table") == Exit.UNKNOWN
    assert show(FOUND, "wbe", "table") == Exit.CHANGES
    assert show(Allocations(), None, "table") == Exit.OK
    assert capsys.readouterr().err.splitlines() == [
        "Warning: account main: timeout",
        "Warning: allocations: no CRD",
        "Error: there is no NetIPAllocation wbe (did you mean web?)",
        "Warning: the registry has no allocations:",
    ]


def test_plan_has_a_line_for_each_move(capsys: pytest.CaptureFixture[str]) -> None:
    """A move is a change; a withheld one is not, and has its command."""
    assert print_plan((), moves=moves(FOUND))
    assert click.unstyle(capsys.readouterr().out).splitlines() == [
        "34.1.2.2   free → n3       Free",
        "34.1.2.3   n2 → withheld   Drained",
        "  approve with: hub approve allocation/web abc",
        f"{UNCHANGED}; 1 reserved address to move; 1 reserved address waiting",
    ]
    withheld = [move for move in moves(FOUND) if move.hash]
    assert not print_plan((), moves=withheld)
    assert "to move" not in capsys.readouterr().out


def test_plan_lists_waiting_addresses_which_are_no_change(capsys: pytest.CaptureFixture[str]) -> None:
    """An address in its grace stays for now, and so do those of a paused allocation that are not yet moving."""
    grace = ReservedAddress(A1, "Leaving", "Grace", node="n1", cause="Drained")
    free = ReservedAddress(A2, "Pending", "Observe", to="n3", cause="Free")
    attaching = ReservedAddress(A3, "Attaching", node="n2", to="n4", cause="Drained")
    attached = ReservedAddress("34.1.2.4", "Attached", node="n5")
    paused = replace(WEB, paused=True, addresses=(free, attaching))
    found = moves(replace(FOUND, allocations=(replace(WEB, addresses=(grace, attached)), paused)))
    assert print_plan((), moves=found)
    assert click.unstyle(capsys.readouterr().out).splitlines()[:3] == [
        "34.1.2.1   n1 → waits: Grace      Drained",
        "34.1.2.2   free → waits: Paused   Free",
        "34.1.2.3   n2 → n4                Drained",
    ]
    assert not print_plan((), moves=found[:2])


def test_plan_as_json_names_the_moves(capsys: pytest.CaptureFixture[str]) -> None:
    """The document has the moves if the registry has allocations, else no such key."""
    assert print_plan((), "json", moves=moves(FOUND))
    found = json.loads(capsys.readouterr().out)
    assert found["changes"]
    assert found["addresses"] == [
        {"address": A2, "from": "", "to": "n3", "cause": "Free", "reason": "NoNode", "waitsUntil": "", "approve": ""},
        {
            "address": A3,
            "from": "n2",
            "to": "",
            "cause": "Drained",
            "reason": "Withheld",
            "waitsUntil": "",
            "approve": APPROVE,
        },
    ]
    assert not print_plan((), "json")
    assert "addresses" not in json.loads(capsys.readouterr().out)


def test_status_has_one_line_about_allocations() -> None:
    """The line has the mode, the numbers, and allocations and accounts with problems."""
    assert text(Status(allocations=FOUND)) == "allocations (enforce): 2 of 3 addresses attached"
    account = replace(FOUND.accounts[0], error="timeout")
    assert summary(replace(UNKNOWN, accounts=(account,))) == (
        "allocations (enforce): 2 of 3 addresses attached; web: Unknown; main: timeout"
    )
    assert summary(replace(FOUND, trouble="no CRD")) == "allocations (enforce): no CRD"
    assert list(changes(Status(allocations=FOUND), Status(allocations=UNKNOWN))) == [
        "allocations: allocations (enforce): 2 of 3 addresses attached; web: Unknown"
    ]


def test_status_with_unknown_addresses_is_incomplete(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code of ``hub status`` is 4 if the state of an address is unknown, or no allocation is served."""
    codes = [
        show_status(Status(allocations=found), "table") for found in (FOUND, UNKNOWN, replace(FOUND, trouble="no CRD"))
    ]
    assert codes == [Exit.OK, Exit.UNKNOWN, Exit.UNKNOWN]
    assert capsys.readouterr().out


def test_plan_lists_labels_evictions_and_finalizers(capsys: pytest.CaptureFixture[str]) -> None:
    """What is written besides moves has a line each, is a change, and is in the document."""
    writes = [Write("eviction", "Pod edge/web-1", "evicted from node n1"), Write("label", "node n2", "+ip.ready=true")]
    assert print_plan((), moves=(), writes=writes)
    assert click.unstyle(capsys.readouterr().out).splitlines() == [
        "eviction   Pod edge/web-1   evicted from node n1",
        "label      node n2          +ip.ready=true",
        f"{UNCHANGED}; 2 changes of labels, Pods and finalizers",
    ]
    assert print_plan((), "json", moves=(), writes=writes)
    found = json.loads(capsys.readouterr().out)
    assert found["changes"]
    assert found["writes"][1] == {"kind": "label", "target": "node n2", "change": "+ip.ready=true"}
