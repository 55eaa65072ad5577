"""Checks that apply to all inputs."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from hub.decide.addresses import AddressPolicy
from hub.decide.view import ViewResult
from hub.kube import wire
from hub.kube.protobuf import SliceEncoder
from hub.model import Port, Slice
from tests.support import build

CANARY: Final = "hunter2hunter2"
"""The secret in all documents; no message may have it."""
ACCEPTED, REFUSED = "accepted", "refused"
"""The possible outcomes of an input."""
NOW: Final = build.READY_SINCE_WALL + 1000.0
ALLOWED: Final = AddressPolicy(build.networks("10.0.0.0/8", "fd00::/8"))


def check_message(text: str) -> str:
    """A message is not empty, printable, and on one line; returns it."""
    assert text
    assert text.isprintable(), repr(text[:500])
    return text


def check_publishable(result: ViewResult) -> None:
    """The endpoints of a source can be encoded, and all their addresses are allowed."""
    for family, endpoints in result.view.endpoints.items():
        assert all(ALLOWED.accepts(address) for address in endpoints)
        check_encodable(Slice("edge", "payments-1", family, tuple(endpoints.values()), (Port("https", 443),)))
    msgspec.json.encode([*result.reports.values(), *result.findings, result.rejected])
    for finding in result.findings:
        check_message(finding.message)


def check_encodable(value: Slice) -> None:
    """Both encodings accept the slice."""
    SliceEncoder().encode(value)
    json.loads(wire.encode_slice(value))
