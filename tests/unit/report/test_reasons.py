"""The explanation of an address, a node or a Service, with the history of what is gone and hints for unknown names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from hub.decide.decision import Decision
from hub.decide.history import Entry, Named
from hub.decide.view import NodeReport, ViewResult
from hub.model import SourceView, TargetKey
from hub.report.reasons import SUBJECT, prepare_why
from hub.report.values import Step, Why
from tests.support import build
from tests.unit.report.still import KEY, StillHub, registry
from tests.unit.report.test_allocations import hub_with

OTHER = TargetKey("edge", "orders")


def why(hub: StillHub, subject: str, results: list[Decision] | None = None) -> Why:
    """The explanation of a subject."""
    return prepare_why(cast("Any", hub), subject, results)()


def running() -> StillHub:
    """A hub with one node, whose address is published in ``edge/payments``; ``edge/orders`` is a broken entry."""
    hub = StillHub(
        build.slice("a", [build.endpoint("10.0.0.1", "n1")]),
        registry=registry("eu", broken_targets={OTHER: "no port"}),
    )
    hub.decided(build.decision(unknown={"us": "timeout"}))
    hub.fleet.clusters["eu"] = SimpleNamespace(nodes={"node-one": build.node("node-one", "10.0.0.1")})
    report = NodeReport("n1", eligible=True, addresses=("10.0.0.1",))
    hub.reconciler.view = lambda source: ViewResult(SourceView(source.cluster, None, {}), {"n1": report})
    gone = Named("10.0.0.9", "n9")
    hub.history.entries = lambda: {
        KEY: (Entry(1_800_000_000, "removed", "deleted", "eu", "IPv4", (gone,), 1),),
        TargetKey("edge", "old"): (Entry(1_800_000_000, "paused", "annotated"),),
    }
    return hub


def test_a_published_address_is_explained_as_an_address() -> None:
    """The unknown sources of all Services are listed, since any of them might have the address."""
    found = why(running(), "10.0.0.1")
    assert (found.is_, found.known, found.hint) == ("address", True, "")
    assert ("published", "ready") in {(step.stage, step.outcome) for step in found.steps}
    assert found.unknown == ("cluster us: timeout", "service edge/orders: no port")
    assert len(set(found.steps)) == len(found.steps)


def test_unread_allocations_make_only_unknown_subjects_incomplete() -> None:
    """An address that nothing has may be a reserved one; an address that is published, and a Service, need no doubt."""
    hub: Any = running()
    unread = hub_with(trouble="no CRD")
    hub.allocating = unread.allocating
    hub.registry = msgspec.structs.replace(hub.registry, allocations=unread.allocating.spec)
    trouble = "allocations: no CRD"
    assert trouble in why(hub, "198.18.0.1").unknown
    assert trouble not in why(hub, "10.0.0.1").unknown
    assert trouble not in why(hub, "edge/payments").unknown


@pytest.mark.parametrize("subject", ["10.0.0.9", "n9"])
def test_what_is_gone_has_its_history(subject: str) -> None:
    """The history of an address or node that neither a cluster nor a slice has is followed by a line about now."""
    kind: Any = "address" if subject[0] == "1" else "node"
    found = why(running(), subject)
    assert (found.is_, found.known, found.hint) == (kind, True, "")
    assert found.steps[:2] == (
        Step("history", "edge/payments", "removed", "2027-01-15T08:00:00Z: 10.0.0.9, node n9 of eu: deleted"),
        Step("history", "now", "gone", f"no cluster and no slice has the {kind} {subject} now"),
    )


def test_a_service_that_is_gone_has_its_history() -> None:
    """A Service that only the history knows was known."""
    assert why(running(), "edge/old") == Why(
        "edge/old",
        "Service",
        steps=(
            Step("history", "edge/old", "paused", "2027-01-15T08:00:00Z: annotated"),
            Step("history", "now", "gone", "no cluster and no slice has the Service edge/old now"),
        ),
    )


@pytest.mark.parametrize(
    ("subject", "kind", "hint"),
    [
        ("edge/paymnts", "Service", "edge/payments"),
        ("edge/order", "Service", "edge/orders"),
        ("node-on", "node", "node-one"),
        ("10.0.0.77", "address", ""),
        ("zzz", "node", ""),
    ],
)
def test_an_unknown_subject_has_a_hint(subject: str, kind: str, hint: str) -> None:
    """The hint is the closest name of the same kind; an address has none."""
    found = why(running(), subject)
    assert (found.is_, found.known, found.hint) == (kind, False, hint)


def test_only_the_service_itself_is_decided_about() -> None:
    """The explanation of a Service has the unknown sources of this Service; given decisions are used as they are."""
    hub = running()
    found = why(hub, str(KEY))
    assert (found.is_, found.known, found.unknown) == ("Service", True, ("cluster us: timeout",))
    assert found.steps[0] == Step("service", str(KEY), "followed", "1 published, 1 ready, in 1 slices")
    results = [Decision(KEY, status="paused", unknown={"eu": "401"}), Decision(OTHER, unknown={"asia": "away"})]
    found = why(hub, str(KEY), results)
    assert (found.steps[0].outcome, found.unknown) == ("paused", ("cluster eu: 401",))
    assert why(hub, "n1", results).unknown == (
        "cluster asia: away",
        "cluster eu: 401",
        "service edge/orders: no port",
    )


@pytest.mark.parametrize(
    ("subject", "valid"),
    [
        ("10.0.0.1", True),
        ("fd00::1", True),
        ("::1", True),
        ("Node.1", True),
        ("a/b", True),
        ("", False),
        ("a/", False),
        ("a/b/c", False),
        ("a b", False),
        ("a" * 253, True),
        ("a" * 254, False),
    ],
)
def test_subjects_are_addresses_and_names(subject: str, *, valid: bool) -> None:
    """Anything else is refused before the facts are gathered."""
    assert bool(SUBJECT.fullmatch(subject)) is valid
