"""The catalog of reasons, and its reference page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hub.controlling.carry import FAILED
from hub.events import catalog
from hub.events.catalog import REASONS, Reason

ROOT = Path(__file__).parents[3]
PROMISED = [
    "EndpointsPublished",
    "EmptyResultHeld",
    "EmptyResultAccepted",
    "FilteredEmpty",
    "RemovalWithheld",
    "PlanReleased",
    "ApprovalUsed",
    "ClusterUnreachable",
    "ClusterRecovered",
    "ClusterDisrupted",
    "WrongCluster",
    "OwnerConflict",
    "ProviderFailed",
    "NodeAmbiguous",
    "NodeUnresolved",
    "PanicMode",
    "ForeignSlice",
    "SelectorPresent",
    "PortMismatch",
    "PortNotAllowed",
    "FamilyNotInService",
    "LocalTrafficPolicy",
    "InvalidAddressSkipped",
    "CredentialExpiring",
    "RegistryRejected",
    "RegistryRemovalWithheld",
    "CopyNotAllowed",
]


def test_every_promised_reason_is_there() -> None:
    """Alerts and users depend on these names."""
    assert set(PROMISED) <= REASONS.keys()


def test_the_reference_is_current() -> None:
    """If this fails, run ``.venv/bin/python -m hub.events.catalog``."""
    assert (ROOT / "docs/reference/events.md").read_text() == catalog.text()


@pytest.mark.parametrize("reason", REASONS.values(), ids=lambda reason: reason.name)
def test_event_reasons_are_valid(reason: Reason) -> None:
    """Names are CamelCase of at most 128 characters, a Warning has a remedy, and no text breaks the page's table."""
    assert re.fullmatch(r"[A-Z][A-Za-z]{1,127}", reason.name)
    assert re.fullmatch(r"[A-Z][A-Za-z]{1,127}", reason.action)
    assert reason.remedy or reason.type == "Normal"
    assert "|" not in reason.meaning + reason.remedy


@pytest.mark.parametrize("reason", REASONS.values(), ids=lambda reason: reason.name)
def test_a_reason_is_one_that_something_in_the_hub_gives(reason: Reason) -> None:
    """Every reason is the name of a finding in the hub, or is reported by hub/events/watch.py."""
    sources = [file for file in (ROOT / "hub").rglob("*.py") if "events" not in file.parts]
    sources += (ROOT / "providers").glob("*/src/**/*.py")
    named = any(f'"{reason.name}"' in file.read_text() for file in sources)
    constants = {value.name: name for name, value in vars(catalog).items() if isinstance(value, Reason)}
    told = f"reasons.{constants.get(reason.name)}" in (ROOT / "hub/events/watch.py").read_text()
    assert named or told


def reasons_of(source: str) -> set[str]:
    """The reasons of findings, waits, refusals and occurrences that a module of the cloud controller writes out."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", "")).strip("_")
            found += node.args[:1] if name in ("Finding", "Notice", "Wait", "Refused", "Refusal") else []
            found += node.args[1:2] if name == "happened" else []
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("reason", "refused"):
            found += node.value.elts[:1] if isinstance(node.value, ast.Tuple) else [node.value]
    words = {str(value.value) for value in found if isinstance(value, ast.Constant)}
    return {word for word in words if re.fullmatch("[A-Z][A-Za-z]+", word)}


def test_reasons_of_clouds_are_in_the_catalog() -> None:
    """What the cloud controller and the plugins here say about Nodes and Services is in the catalog and its page."""
    files = [file for room in ("controller", "controlling") for file in (ROOT / "hub" / room).rglob("*.py")]
    files += (ROOT / "providers").glob("*/src/**/*.py")
    given = set(FAILED.values()).union(*(reasons_of(file.read_text()) for file in files))
    assert {"CloudIPInUse", "NoPorts", "UpdatedLoadBalancer", "WrongAccount"} <= given, "the search finds them"
    assert given - REASONS.keys() == set()


def test_source_reasons_have_an_event_per_cluster() -> None:
    """Only reasons that concern one source have an Event for each source cluster."""
    assert {reason.name for reason in REASONS.values() if reason.by_source} == {
        "ClusterDegraded",
        "ClusterDisrupted",
        "ClusterUnreachable",
        "CredentialExpiring",
        "EmptyResultHeld",
        "FamilyNotInService",
        "FilteredEmpty",
        "InvalidAddressSkipped",
        "NodeAmbiguous",
        "NodeUnresolved",
        "PortMismatch",
        "PortNotAllowed",
        "ProviderFailed",
        "RemovalWithheld",
        "WrongCluster",
        "ZoneNotInHub",
        "ZoneNotMapped",
    }
