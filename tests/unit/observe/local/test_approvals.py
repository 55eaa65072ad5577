"""Approvals: what the ConfigMap holds, when they expire, and which entries are ignored."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from hub.errors import ClusterUnreachable, Forbidden
from hub.kube.client import Client
from hub.model import ConfigMap
from hub.observe.local.approvals import GOOD_FOR, Approval, Approvals, config_map, merged, read, subject
from tests.support.clocks import ManualClock

NOW = 1_800_000_000.0


def approval(seconds: float = GOOD_FOR) -> Approval:
    """An approval that ends this many seconds after NOW."""
    return Approval("service", "edge/payments", "me@here", datetime.fromtimestamp(NOW + seconds, UTC))


def following() -> tuple[Approvals, ManualClock, list[frozenset[str]]]:
    """Approvals, their clock, and the valid hashes at each change."""
    clock, heard = ManualClock(wall_time=NOW), list[frozenset[str]]()
    client: Client = None  # type: ignore[assignment]  # nothing is asked here
    found = Approvals(client, clock, "default", "default", lambda: heard.append(found.valid()))
    return found, clock, heard


def holding(*names: str, seconds: float = GOOD_FOR) -> ConfigMap:
    """A ConfigMap with approvals of these hashes."""
    data: dict[str, str] = {}
    for name in names:
        data = merged(data, name, approval(seconds), NOW)
    return ConfigMap("default", config_map("default"), data)


def test_approval_entry_has_kind_target_operator_and_expiry() -> None:
    """An entry is readable JSON with kind, target, operator and expiry."""
    data = merged({}, "abcdef012345", approval(), NOW)
    assert json.loads(data["abcdef012345"]) == {
        "kind": "service",
        "target": "edge/payments",
        "by": "me@here",
        "expires": "2027-01-15T09:00:00Z",
    }


def test_merging_drops_expired_and_keeps_unreadable_entries() -> None:
    """Expired entries are dropped; valid ones and those that cannot be read stay."""
    data = merged(merged({"note": "keep me"}, "old", approval(-1), NOW), "young", approval(), NOW)
    assert sorted(merged(data, "new", approval(), NOW)) == ["new", "note", "young"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "{}",
        "\udc00",
        '{"kind":"service","target":"a/b","by":"me","expires":"tomorrow"}',
        '{"kind":"service","target":"a/b","by":"me","expires":"2999-01-01T00:00:00"}',
        '{"kind":"service","target":"a/b","by":"me","expires":null}',
    ],
)
def test_unreadable_entry_approves_nothing(text: str) -> None:
    """An entry that cannot be read, or lacks a valid expiry with a time zone, is ignored."""
    assert read({"abcdef012345": text}) == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("registry", ("registry", "")),
        ("cluster/eu", ("cluster", "eu")),
        ("edge/payments", ("service", "edge/payments")),
        ("edge/registry", ("service", "edge/registry")),
    ],
)
def test_approval_target_is_a_service_cluster_or_registry(text: str, what: tuple[str, str]) -> None:
    """The command line accepts ``registry``, ``cluster/NAME`` and ``NAMESPACE/SERVICE``."""
    assert subject(text) == what


def test_approval_expires() -> None:
    """An approval is no longer valid once its time has come."""
    found, clock, _ = following()
    found.upsert(None, holding("a", "b"), "1")
    assert found.valid() == found.approvers().keys() == {"a", "b"}
    clock.wall_time = NOW + GOOD_FOR
    assert found.valid() == frozenset()
    assert found.approvers() == {}


def test_approval_change_is_reported_once_after_it_applies() -> None:
    """Every change, including a deletion, is reported once, when the new state already applies."""
    found, _, heard = following()
    found.replace({1: holding("a")}, "1")
    found.upsert(1, holding("a"), "2")
    found.upsert(1, holding("a", "b"), "3")
    found.delete(1, holding("a", "b"), "4")
    assert heard == [{"a"}, {"a", "b"}, frozenset()]


def test_approvals_outlast_an_api_that_is_away_but_not_a_lost_permission(caplog: pytest.LogCaptureFixture) -> None:
    """Approvals stay valid while the API is unreachable; a 403 revokes them and is logged once."""
    found, _, _ = following()
    found.upsert(1, holding("a"), "1")
    found.failed(ClusterUnreachable("gone"))
    assert found.valid() == {"a"}
    for _ in range(4):  # the first 403s may come from a server that is starting
        found.failed(Forbidden(403))
        assert found.valid() == frozenset()
    assert caplog.text.count("configmaps: get, list, watch") == 1
