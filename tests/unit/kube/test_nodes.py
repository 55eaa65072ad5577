"""Nodes in protobuf are the Nodes that JSON gives; a real API server judges that too, in integration."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.errors import BadAnswer
from hub.kube import nodes
from hub.kube.protobuf import MAGIC
from hub.kube.wire import NODES
from hub.model import Node
from tests.unit.kube.test_protobuf import message

TEXT = st.text(max_size=12)
TIMES = st.integers(0, 1 << 32).map(lambda when: datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
OBJECTS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.text(min_size=1, max_size=12), "labels": st.dictionaries(TEXT, TEXT, max_size=4)},
            optional={"creationTimestamp": TIMES, "deletionTimestamp": TIMES},
        )
    },
    optional={
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "providerID": TEXT,
                "unschedulable": st.booleans(),
                "taints": st.lists(
                    st.fixed_dictionaries({"key": TEXT, "effect": TEXT}, optional={"value": TEXT}), max_size=3
                ),
            },
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "conditions": st.lists(
                    st.fixed_dictionaries(
                        {"type": st.sampled_from(["Ready", "DiskPressure", "ReadyToo", "", "Rea"]), "status": TEXT},
                        optional={"lastTransitionTime": TIMES, "lastHeartbeatTime": TIMES, "message": TEXT},
                    ),
                    max_size=4,
                ),
                "addresses": st.lists(st.fixed_dictionaries({"type": TEXT, "address": TEXT}), max_size=3),
                "nodeInfo": st.fixed_dictionaries({"machineID": TEXT, "systemUUID": TEXT}),
                "images": st.lists(TEXT, max_size=5),
            },
        ),
    },
)


def when(text: str) -> bytes:
    """A ``Time``."""
    return message((1, int(datetime.fromisoformat(text).timestamp())), (2, 0))


def texts(found: dict[str, Any], **numbers: int) -> list[tuple[int, bytes | int]]:
    """String fields, where they are set."""
    return [(number, found[name].encode()) for name, number in numbers.items() if name in found]


def binary(found: dict[str, Any]) -> bytes:
    """A Node as the API server writes it."""
    meta, spec, status = found["metadata"], found.get("spec", {}), found.get("status", {})
    head = texts(meta, name=1)
    head += [(8, when(meta["creationTimestamp"]) if "creationTimestamp" in meta else b"")]
    head += [(9, when(meta["deletionTimestamp"]))] if "deletionTimestamp" in meta else []
    head += [(11, message((1, key.encode()), (2, value.encode()))) for key, value in meta["labels"].items()]
    head += [(17, message((1, b"kubelet"), (7, b"{" * 300)))]
    conditions = [
        message(
            *texts(each, type=1, status=2),
            (3, when(each["lastHeartbeatTime"]) if "lastHeartbeatTime" in each else b""),
            (4, when(each["lastTransitionTime"]) if "lastTransitionTime" in each else b""),
            *texts(each, message=6),
        )
        for each in status.get("conditions", [])
    ]
    parts: list[tuple[int, bytes | int]] = [(1, message(*head))]
    if "spec" in found:
        taints = [message(*texts(each, key=1, value=2, effect=3)) for each in spec.get("taints", [])]
        cordoned = [(4, int(spec["unschedulable"]))] if "unschedulable" in spec else []
        parts.append(
            (2, message((1, b"10.0.0.0/24"), *texts(spec, providerID=3), *cordoned, *[(5, each) for each in taints]))
        )
    if "status" in found:
        info = [(7, message(*texts(status["nodeInfo"], machineID=1, systemUUID=2)))] if "nodeInfo" in status else []
        parts.append(
            (
                3,
                message(
                    (1, message((1, b"cpu"), (2, message((1, b"8"))))),
                    *[(4, each) for each in conditions],
                    *[(5, message(*texts(each, type=1, address=2))) for each in status.get("addresses", [])],
                    *info,
                    *[(8, message((1, each.encode()), (2, 1 << 40))) for each in status.get("images", [])],
                ),
            )
        )
    return message(*parts)


def page(*items: bytes, kind: str = "NodeList", version: str = "7", token: str = "") -> bytes:
    """An answer to a list."""
    meta = message((2, version.encode()), (3, token.encode()), (4, 12))
    raw = message((1, meta), *[(2, each) for each in items])
    return MAGIC + message((1, message((1, b"v1"), (2, kind.encode()))), (2, raw), (3, b""), (4, b""))


@given(st.lists(OBJECTS, max_size=3, unique_by=lambda found: str(found["metadata"])))
def test_both_encodings_are_the_same_nodes(found: list[dict[str, Any]]) -> None:
    """Field by field, whatever is absent, repeated or not in use."""
    body: dict[str, Any] = {
        "kind": "NodeList",
        "metadata": {"resourceVersion": "7", "continue": "more"},
        "items": found,
    }
    assert NODES.list_page(page(*map(binary, found), token="more")) == NODES.list_page(json.dumps(body).encode())


def test_order_of_fields_is_the_servers_business() -> None:
    """A condition that does not begin with its type is read all the same."""
    condition = message((2, b"True"), (4, when("2026-11-21T10:00:00Z")), (1, b"Ready"))
    node = message((3, message((8, b"image"), (4, condition))), (1, message((11, b""), (1, b"n1"))))
    assert NODES.list_page(page(node))[0] == {"n1": Node("n1", "True", "2026-11-21T10:00:00Z", labels={"": ""})}


def test_a_list_of_something_else_is_a_bad_answer() -> None:
    """As in JSON, and so is a list without a version."""
    with pytest.raises(BadAnswer, match="PodList instead of a NodeList"):
        NODES.list_page(page(kind="PodList"))
    with pytest.raises(BadAnswer, match="without a resourceVersion"):
        NODES.list_page(page(version=""))


def test_a_time_outside_the_calendar_is_a_bad_answer() -> None:
    """Not an overflow somewhere."""
    with pytest.raises(BadAnswer, match="outside the calendar"):
        NODES.list_page(page(message((1, message((1, b"n1"), (8, message((1, (1 << 63) - 1))))))))


@given(OBJECTS, st.integers(0), st.binary(min_size=1, max_size=4))
def test_damaged_bytes_are_read_or_a_bad_answer(found: dict[str, Any], place: int, damage: bytes) -> None:
    """Cut short or written over: never another error."""
    whole = page(binary(found))
    at = place % len(whole)
    for body in (whole[: max(at, len(MAGIC))], whole[:at] + damage + whole[at + len(damage) :]):
        try:
            NODES.list_page(body)
        except BadAnswer:
            continue


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    """Hostile lists end as a ValueError, or as a page."""
    try:
        nodes.list_page(MAGIC + data)
    except ValueError:
        return


def test_a_label_that_is_the_nodes_name_is_no_other_string() -> None:
    """In a list as in a watch; other labels are one string in all Nodes that have them."""
    listed = [
        {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": "a-zone", "pool": f"of-{name}"}}}
        for name in ("".join(["n", "1"]), "".join(["n", "2"]))
    ]
    found = list(NODES.list_page(page(*map(binary, listed)))[0].values())
    lines = [json.dumps({"type": "ADDED", "object": each}).encode() for each in listed]
    for one, other in (found, [NODES.event(line).object for line in lines]):
        assert one.labels == {"kubernetes.io/hostname": "n1", "zone": "a-zone", "pool": "of-n1"}
        assert one.labels["kubernetes.io/hostname"] is one.name
        assert one.labels["zone"] is other.labels["zone"]


def test_strings_of_nodes_that_are_gone_do_not_pile_up() -> None:
    """Lists of ever other nodes, each with a label and a time of its own, leave no more than a small table behind."""
    for number in range(0, 6000, 100):
        found = [
            {
                "metadata": {
                    "name": f"n{each}",
                    "labels": {"kubernetes.io/hostname": f"n{each}"},
                    "creationTimestamp": f"2026-11-{each // 1440 + 1:02}T{each // 60 % 24:02}:{each % 60:02}:00Z",
                }
            }
            for each in range(number, number + 100)
        ]
        assert len(NODES.list_page(page(*map(binary, found)))[0]) == 100
    assert max(len(nodes._labels), len(nodes._times)) <= 2000
