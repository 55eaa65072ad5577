"""How ``plan`` and ``status`` print a withheld removal: what, since when, and the command that approves it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hub.cli.render import count
from hub.model import join_first
from hub.report.values import Held, RegistryWithheld

NAMED: Final = 5
"""Most addresses that a table lists."""


def lines(removal: Held) -> Iterable[str]:
    """The removals of one source and family that the guard withholds."""
    yield f"= withheld: {removal.reason}: {removal.message}"
    named = join_first(removal.addresses, NAMED)
    yield f"  {count(len(removal.addresses), 'endpoint')}: {named}; since {removal.since}"
    yield f"  approve with: {removal.approve}"


def registry_lines(removal: RegistryWithheld | None) -> Iterable[str]:
    """A mass removal from the registry that is withheld; no lines if there is none."""
    if removal is not None:
        yield f"= withheld: {removal.reason}: {removal.message}"
        yield f"  approve with: {removal.approve}"
