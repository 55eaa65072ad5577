"""Finds and loads the consumers that ``views.hooks`` names: entry points of group ``hub.views``, each a pluggy plugin.

Only named consumers are imported, each in its own thread.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

from pluggy import PluginValidationError

from hub.errors import HubError, did_you_mean
from hub.plugin.hooks import plugin_manager
from hub.plugin.views import VIEWS_ENTRY_POINT_GROUP

Find = Callable[[], Iterable[importlib.metadata.EntryPoint]]

HOOKS: Final = ("hub_endpoint_upserted", "hub_endpoint_deleted", "hub_endpoints_listed")


class ConsumerUnavailable(HubError):
    """A consumer cannot be used: it is not installed, ambiguous, or its hooks are invalid."""


def installed() -> Iterable[importlib.metadata.EntryPoint]:
    """The consumers of all installed distributions."""
    return importlib.metadata.entry_points(group=VIEWS_ENTRY_POINT_GROUP)


def load(name: str, find: Find = installed) -> Any:
    """The hooks of a consumer; imports it, which may block or raise anything.

    Raises:
        ConsumerUnavailable: no distribution or several provide the consumer, it implements no hook, or a hook is async.
    """
    points = list(find())
    mine = [point for point in points if point.name == name]
    if not mine:
        names = sorted({point.name for point in points})
        hint = did_you_mean(name, names, f"known: {', '.join(names) or 'none'}")
        raise ConsumerUnavailable(f"no installed distribution has it in group {VIEWS_ENTRY_POINT_GROUP} ({hint})")
    if len(mine) > 1:
        owners = ", ".join(sorted(map(_owner, mine)))
        raise ConsumerUnavailable(f"several distributions have it: {owners}; uninstall all but one")
    manager = plugin_manager()
    try:
        manager.register(mine[0].load(), name=name)
        manager.check_pending()
    except PluginValidationError as error:
        raise ConsumerUnavailable(f"wrong hook: {error}") from error
    found = {hook: [impl.function for impl in getattr(manager.hook, hook).get_hookimpls()] for hook in HOOKS}
    for hook in [hook for hook, functions in found.items() if any(map(_never_runs, functions))]:
        raise ConsumerUnavailable(
            f"{_owner(mine[0])}/{name}: {hook} is async and would never run; "
            "make it a plain function, which may block: it is called in a thread of its own"
        )
    if not any(found.values()):
        raise ConsumerUnavailable(f"{mine[0].value} implements none of {', '.join(HOOKS)} (is @hookimpl missing?)")
    return manager.hook


def _never_runs(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _owner(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def describe(error: BaseException) -> str:
    """A consumer's exception as one line."""
    text = " ".join(str(error).split())[:256]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
