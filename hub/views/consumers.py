"""Finds and loads the consumers that ``views.hooks`` names: entry points of group ``hub.views``, each a pluggy plugin.

Nothing is imported but what is named; loading happens in the consumer's own thread.
"""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable, Iterable
from typing import Any, Final

import pluggy

from hub.errors import UsageError
from hub.plugin import spec
from hub.plugin.spec import NAMESPACE, VIEWS_ENTRY_POINT_GROUP

Find = Callable[[], Iterable[importlib.metadata.EntryPoint]]

HOOKS: Final = ("hub_endpoint_upserted", "hub_endpoint_deleted", "hub_endpoints_listed")


class ConsumerUnavailable(UsageError):
    """A consumer cannot be used: not installed, ambiguous, or it implements no hook."""


def installed() -> Iterable[importlib.metadata.EntryPoint]:
    """The consumers of all installed distributions."""
    return importlib.metadata.entry_points(group=VIEWS_ENTRY_POINT_GROUP)


def load(name: str, find: Find = installed) -> Any:
    """The hooks of a consumer; imports it, which may block or raise anything.

    Raises:
        ConsumerUnavailable: there is none, or several, or it has none of our hooks.
    """
    points = list(find())
    mine = [point for point in points if point.name == name]
    if not mine:
        close = difflib.get_close_matches(name, [point.name for point in points], n=1)
        hint = (
            f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted({p.name for p in points})) or 'none'}"
        )
        raise ConsumerUnavailable(f"no installed distribution has it in group {VIEWS_ENTRY_POINT_GROUP} ({hint})")
    if len(mine) > 1:
        owners = ", ".join(sorted(point.dist.name if point.dist else point.value for point in mine))
        raise ConsumerUnavailable(f"several distributions have it: {owners}; uninstall all but one")
    manager = pluggy.PluginManager(NAMESPACE)
    manager.add_hookspecs(spec)
    try:
        manager.register(mine[0].load(), name=name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise ConsumerUnavailable(f"wrong hook: {error}") from error
    if not any(getattr(manager.hook, hook).get_hookimpls() for hook in HOOKS):
        raise ConsumerUnavailable(f"{mine[0].value} implements none of {', '.join(HOOKS)} (is @hookimpl missing?)")
    return manager.hook
