"""What holds of everything that is read, whoever wrote it."""

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
"""Stands in every secret of the documents; no message may show it."""
ACCEPTED, REFUSED = "accepted", "refused"
"""How an input may end."""
NOW: Final = build.READY_SINCE_WALL + 1000.0
ALLOWED: Final = AddressPolicy(build.networks("10.0.0.0/8", "fd00::/8"))


def one_line(text: str) -> str:
    """A message: not empty, printable, on one line."""
    assert text
    assert text.isprintable(), repr(text[:500])
    return text


def publishable(result: ViewResult) -> None:
    """What a source offers can be written and shown, and every address of it is allowed."""
    for family, endpoints in result.view.endpoints.items():
        assert all(ALLOWED.accepts(address) for address in endpoints)
        written(Slice("edge", "payments-1", family, tuple(endpoints.values()), (Port("https", 443),)))
    msgspec.json.encode([*result.reports.values(), *result.findings, result.rejected])
    for finding in result.findings:
        one_line(finding.message)


def written(value: Slice) -> None:
    """Both encodings take it."""
    SliceEncoder().encode(value)
    json.loads(wire.encode_slice(value))
