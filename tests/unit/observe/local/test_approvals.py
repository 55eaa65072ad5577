"""Approvals: what the ConfigMap holds, when they expire, and which entries are ignored."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from hub.errors import AlreadyExists, BadAnswer, ClusterUnreachable, Conflict, Forbidden, HubError
from hub.kube.client import Client
from hub.model import MANAGED_BY, ConfigMap
from hub.observe.local.approvals import (
    GOOD_FOR,
    TRIES,
    Approval,
    Approvals,
    approve,
    config_map,
    flags,
    merged,
    read,
    subject,
)
from tests.support.clocks import ManualClock
from tests.unit.observe.local.one_config_map import Api

NOW = 1_800_000_000.0


def approval(seconds: float = GOOD_FOR) -> Approval:
    """An approval that ends this many seconds after NOW."""
    return Approval("service", "edge/payments", "me@here", datetime.fromtimestamp(NOW + seconds, UTC))


def following(api: Api | None = None) -> tuple[Approvals, ManualClock, list[frozenset[str]]]:
    """Approvals, their clock, and the valid hashes at each change."""
    clock, heard = ManualClock(wall_time=NOW), list[frozenset[str]]()
    found = Approvals(cast("Client", api), clock, "default", "default", lambda: heard.append(found.valid()))
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
    data = merged(merged({"note": "keep me"}, "old", approval(0), NOW - 1), "young", approval(1), NOW - 1)
    assert sorted(data) == ["note", "old", "young"]
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


@pytest.mark.parametrize(
    ("owner", "namespace", "text"),
    [
        ("default", "default", ""),
        ("a", "default", " --owner a"),
        ("default", "ops", " --lease-namespace ops"),
        ("a", "ops", " --owner a --lease-namespace ops"),
    ],
)
def test_command_names_only_options_that_are_not_the_default(owner: str, namespace: str, text: str) -> None:
    """The command that the hub prints has the options that differ from the defaults."""
    assert flags(owner, namespace) == text


PATH = "/api/v1/namespaces/ops/configmaps"
NAME = "endpointslice-hub-approvals-team"
NEW = Approval("service", "edge/payments", "me", datetime.fromtimestamp(NOW + GOOD_FOR, UTC))


async def approved(api: Api) -> Approval:
    """Approve the hash ``abc`` for owner ``team`` in namespace ``ops``."""
    return await approve(cast("Client", api), "ops", "team", "abc", ("service", "edge/payments"), "me", NOW + 0.5)


async def test_first_approval_creates_the_config_map() -> None:
    """The first approval creates the ConfigMap, with the labels of the hub."""
    api = Api()
    assert await approved(api) == NEW
    assert api.writes == [f"POST {PATH}"]
    assert api.stored == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": NAME,
            "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, "endpointslice-hub/owner": "team"},
        },
        "data": merged({}, "abc", NEW, NOW),
    }


@pytest.mark.parametrize("data", [None, {}, {"note": "keep me"}])
async def test_further_approval_changes_only_the_data(data: dict[str, str] | None) -> None:
    """A further approval replaces the ConfigMap; its version, its other fields and its other entries stay."""
    before: dict[str, Any] = {"metadata": {"name": NAME, "resourceVersion": "7"}, "immutable": False, "data": data}
    api = Api(dict(before))
    assert await approved(api) == NEW
    assert api.writes == [f"PUT {PATH}/{NAME}"]
    assert api.stored == {**before, "data": merged(data or {}, "abc", NEW, NOW)}


@pytest.mark.parametrize(
    ("error", "times", "writes"),
    [(Conflict(409), TRIES - 1, TRIES), (Conflict(409), TRIES, TRIES), (AlreadyExists(409), 1, 2)],
)
async def test_approval_is_repeated_after_a_conflict(error: HubError, times: int, writes: int) -> None:
    """A write that another client overtakes is repeated, and fails after the last attempt."""
    api = Api()
    api.errors = [error] * times
    if times < TRIES:
        assert await approved(api) == NEW
    else:
        with pytest.raises(Conflict):
            await approved(api)
    assert api.writes == [f"POST {PATH}"] * writes


async def test_other_errors_end_the_approval_at_once() -> None:
    """An error that is no conflict is raised after one attempt."""
    api = Api()
    api.errors = [Forbidden(403)]
    with pytest.raises(Forbidden):
        await approved(api)
    assert api.writes == [f"POST {PATH}"]


async def test_answer_that_is_no_config_map_is_an_error() -> None:
    """An answer that does not decode is an error that names the path, and is not overwritten."""
    api = Api(cast("Any", []))
    with pytest.raises(BadAnswer, match=f"{PATH}/{NAME}.*a ConfigMap that does not decode"):
        await approved(api)
    assert api.writes == []


async def test_one_pass_reads_the_approvals_once() -> None:
    """``read_once`` reads the ConfigMap; without one there are no approvals, and an error is kept as the problem."""
    api = Api({"metadata": {"namespace": "default", "name": config_map("default")}, "data": dict(holding("a").data)})
    found, _, _ = following(api)
    await found.read_once()
    assert (found.approvers(), found.problem) == ({"a": "me@here"}, "")
    api.away = ClusterUnreachable("gone")
    await found.read_once()
    assert (found.valid(), found.problem) == (frozenset("a"), "gone")
    api.stored, api.away = None, None
    await found.read_once()
    assert found.valid() == frozenset()


def test_log_names_each_new_approval_and_each_problem_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has each new approval with its operator, each new problem, and the end of a problem."""
    caplog.set_level(logging.INFO)
    found, _, _ = following()
    registry = Approval("registry", "", "you", approval().expires)
    both = merged(holding("a").data, "r", registry, NOW)
    found.answered()
    found.upsert(1, holding("a"), "1")
    found.upsert(1, ConfigMap("default", config_map("default"), both), "2")
    for error in ("gone", "gone", "lost"):
        found.failed(ClusterUnreachable(error))
    for _ in range(2):
        found.answered()
    found.failed(Forbidden(403))
    found.failed(Forbidden(403))
    found.answered()
    found.failed(Forbidden(403))
    found.upsert(1, ConfigMap("default", config_map("default"), {"x": "?"}), "3")
    assert found.problem == ""
    assert caplog.messages == [
        "approved by me@here: service edge/payments a",
        "approved by you: registry r",
        "approvals are not known, 'hub approve' has no effect: gone",
        "approvals are not known, 'hub approve' has no effect: lost",
        "approvals are known again",
        "approvals: entry x cannot be read and approves nothing",
    ]
