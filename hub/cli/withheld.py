"""How what is withheld is printed by ``plan`` and ``status``: what, since when, and the command that lets it happen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hub.cli.render import count
from hub.model import few
from hub.report.values import Held, RegistryWithheld

NAMED: Final = 5
"""Addresses that a table names."""


def lines(each: Held) -> Iterable[str]:
    """What the guard holds back of one source and family."""
    yield f"= withheld: {each.reason}: {each.message}"
    named = few(each.addresses, NAMED)
    yield f"  {count(len(each.addresses), 'endpoint')}: {named}; since {each.since}"
    yield f"  approve with: {each.approve}"


def registry_lines(each: RegistryWithheld | None) -> Iterable[str]:
    """What a mass removal from the registry withholds; nothing where there is none."""
    if each is not None:
        yield f"= withheld: {each.reason}: {each.message}"
        yield f"  approve with: {each.approve}"
