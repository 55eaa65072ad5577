"""Checks of what ``resolve()`` and ``watch()`` give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, StrEnum
from typing import Any

import pytest

from hub.model import Hints, NamedHint, ObjectReference
from hub.plugin import Absent, Found, Port, Snapshot, SnapshotEndpoint, Unknown
from hub.plugin.answers import MAX_ADDRESSES, MAX_ENDPOINTS, MAX_TEXT, read_answer, read_snapshot

LONG = "x" * MAX_TEXT
ADDRESSES = tuple(f"10.0.0.{number}" for number in range(MAX_ADDRESSES))
HINTS = tuple(NamedHint(f"z{number}") for number in range(MAX_ADDRESSES))
TOO_LONG = f"a string of at most {MAX_TEXT} characters"


class Zone(StrEnum):
    """A str Enum, as some SDKs return it."""

    EAST = "east"


class Number(Enum):
    """An Enum that is no string."""

    ONE = 1


class Text(str):
    """A subclass of str that is no Enum."""

    __slots__ = ()


@pytest.mark.parametrize(
    "answer",
    [
        Found(("10.0.0.1",)),
        Found(ADDRESSES, LONG),
        Found(("ä",), Zone.EAST),
        Found(("10.0.0.1",), ""),
        Absent("not in the inventory"),
        Unknown("ü" * 1000),
    ],
)
def test_answer_of_the_right_types_is_returned(answer: Found | Absent | Unknown) -> None:
    """Resolutions within the limits are returned unchanged, for the requested nodes only."""
    assert read_answer(["n", "m"], {"n": answer, "o": 1, "p": None}) == ({"n": answer}, 2)
    assert read_answer(["n"], {"n": answer}) == ({"n": answer}, 0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([("n", Unknown("x"))], "resolve() returned list, not a mapping"),
        ({"n": None}, "resolve() answered None for 'n'"),
        ({"n": "10.0.0.1"}, "resolve() answered str for 'n', not Found, Absent or Unknown"),
        ({"n": Found(())}, f"resolve() answered Found for 'n' with 0 addresses (1 to {MAX_ADDRESSES})"),
        (
            {"n": Found((*ADDRESSES, "::1"))},
            f"resolve() answered Found for 'n' with {MAX_ADDRESSES + 1} addresses (1 to {MAX_ADDRESSES})",
        ),
        *(
            ({"n": Found(wrong)}, "resolve() answered Found for 'n' whose addresses are not a tuple of strings")  # type: ignore[arg-type]
            for wrong in ("10.0.0.1", ["10.0.0.1"], ("10.0.0.1", 5), ("\ud800",), None)
        ),
        *(
            ({"n": Found(("10.0.0.1",), wrong)}, f"resolve() answered Found for 'n' whose zone is not {TOO_LONG}")  # type: ignore[arg-type]
            for wrong in (None, 5, f"{LONG}x", "\ud800", Number.ONE, Text("a"))
        ),
        ({"n": Absent(5)}, "resolve() answered Absent for 'n' whose reason is not a string"),  # type: ignore[arg-type]
        ({"n": Unknown("\ud800")}, "resolve() answered Unknown for 'n' whose reason is not a string"),
    ],
)
def test_answer_of_a_wrong_type_is_refused(answer: Any, message: str) -> None:
    """One wrong type makes the whole answer an error that names the node."""
    with pytest.raises(TypeError) as caught:
        read_answer(["n"], answer)
    assert str(caught.value) == message


GOOD = SnapshotEndpoint("a", ("10.0.0.1",))


@pytest.mark.parametrize(
    "endpoint",
    [
        GOOD,
        SnapshotEndpoint(
            LONG,
            ADDRESSES,
            ready=False,
            serving=False,
            terminating=True,
            zone=LONG,
            hostname=LONG,
            node_name=LONG,
            target_ref=ObjectReference("Pod", "p", "n", "u"),
            hints=Hints(HINTS, HINTS),
            ports=(Port(LONG, 443, LONG, LONG), Port()),
        ),
    ],
)
def test_endpoint_of_the_right_types_is_accepted(endpoint: SnapshotEndpoint) -> None:
    """Endpoints within the limits are accepted, with and without their optional fields."""
    snapshot = Snapshot((endpoint,), complete=False, ports=(), problems=("p",), copied=True)

    assert read_snapshot(snapshot) is snapshot


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": ""}, "an endpoint without a name"),
        *(
            (fields, f"an endpoint with a field that is not a string of up to {MAX_TEXT} characters")
            for fields in ({"name": f"{LONG}x"}, {"zone": None}, {"hostname": 5}, {"node_name": "\ud800"})
        ),
        ({"addresses": ["10.0.0.1"]}, "endpoint 'a' whose addresses are not a tuple of strings"),
        ({"addresses": (1,)}, "endpoint 'a' whose addresses are not a tuple of strings"),
        ({"addresses": ()}, f"endpoint 'a' with 0 addresses (1 to {MAX_ADDRESSES})"),
        (
            {"addresses": (*ADDRESSES, "::1")},
            f"endpoint 'a' with {MAX_ADDRESSES + 1} addresses (1 to {MAX_ADDRESSES})",
        ),
        *(({flag: 1}, "endpoint 'a' whose conditions are not bools") for flag in ("ready", "serving", "terminating")),
        *(
            ({"target_ref": reference}, "endpoint 'a' with a wrong target_ref")
            for reference in ("Pod", ObjectReference("Pod", f"{LONG}x"))
        ),
        *(
            ({"hints": hints}, "endpoint 'a' with wrong hints")
            for hints in (
                "zone",
                Hints(("z",)),  # type: ignore[arg-type]
                Hints((), [NamedHint("z")]),  # type: ignore[arg-type]
                Hints((*HINTS, NamedHint("z"))),
                Hints((NamedHint("z"), NamedHint(f"{LONG}x"))),
            )
        ),
        *(
            ({"ports": ports}, "endpoint 'a' whose ports are not a tuple of Port")
            for ports in ([Port()], (443,), (Port(), Port("x", "443")))  # type: ignore[arg-type]
        ),
    ],
)
def test_endpoint_of_a_wrong_type_is_refused(wrong: Mapping[str, Any], message: str) -> None:
    """One wrong field makes the whole snapshot an error that names the endpoint."""
    with pytest.raises(TypeError) as caught:
        read_snapshot(Snapshot((replace(GOOD, name="b"), replace(GOOD, **wrong))))
    assert str(caught.value) == f"watch() gave {message}"


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        ((GOOD,), "tuple, not Snapshot"),
        (Snapshot((), complete=None), "a Snapshot whose complete is not a bool"),  # type: ignore[arg-type]
        (Snapshot((), problems=["p"]), "a Snapshot whose problems are not a tuple of strings"),  # type: ignore[arg-type]
        (Snapshot((), copied=1), "a Snapshot whose copied is not a bool"),  # type: ignore[arg-type]
        (Snapshot([GOOD]), "a Snapshot whose endpoints are not a tuple of SnapshotEndpoint"),  # type: ignore[arg-type]
        (Snapshot((GOOD, "b")), "a Snapshot whose endpoints are not a tuple of SnapshotEndpoint"),  # type: ignore[arg-type]
        (
            Snapshot((GOOD,) * (MAX_ENDPOINTS + 1)),
            f"{MAX_ENDPOINTS + 1} endpoints, more than {MAX_ENDPOINTS}",
        ),
        (Snapshot((GOOD, replace(GOOD, zone="z"))), "two endpoints called 'a'"),
    ],
)
def test_snapshot_of_a_wrong_type_is_refused(snapshot: Any, message: str) -> None:
    """A wrong type in the snapshot's own fields, too many endpoints and repeated names are refused."""
    with pytest.raises(TypeError) as caught:
        read_snapshot(snapshot)
    assert str(caught.value) == f"watch() gave {message}"


def test_endpoints_that_were_checked_before_are_not_checked_again() -> None:
    """An endpoint that is the same object as before is accepted; another one of this name is checked."""
    wrong = SnapshotEndpoint("a", ())

    assert read_snapshot(Snapshot((wrong,)), {"a": wrong}).endpoints == (wrong,)
    with pytest.raises(TypeError, match="endpoint 'a' with 0 addresses"):
        read_snapshot(Snapshot((wrong,)), {"a": GOOD})


def test_the_most_endpoints_are_accepted() -> None:
    """A snapshot may have exactly the most endpoints."""
    snapshot = Snapshot(tuple(SnapshotEndpoint(str(number), GOOD.addresses) for number in range(MAX_ENDPOINTS)))

    assert read_snapshot(snapshot, {endpoint.name: endpoint for endpoint in snapshot.endpoints}) is snapshot


@pytest.mark.parametrize("port", [Port("https", 443), Port("", None), Port("https", 443, app_protocol="http2")])
def test_port_of_the_right_types_is_accepted(port: Port) -> None:
    """A port may lack a name and a number."""
    assert read_snapshot(Snapshot((), ports=(port,))).ports == (port,)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": 7, "port": 443},
        {"name": "x" * 2000},
        {"port": "443"},
        {"port": True},
        {"protocol": None},
        {"app_protocol": 5},
    ],
)
def test_port_of_a_wrong_type_is_refused(fields: Mapping[str, Any]) -> None:
    """Both the texts and the number of a port must have the right type."""
    with pytest.raises(TypeError, match="ports are not a tuple of Port"):
        read_snapshot(Snapshot((), ports=(Port(**fields),)))
