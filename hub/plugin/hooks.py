"""The plugin manager that knows every hook: used to load providers, to load consumers, and by the test kit."""

from __future__ import annotations

import pluggy

from hub.plugin import spec, views


def plugin_manager() -> pluggy.PluginManager:
    """A manager without plugins. Its ``check_pending`` refuses a hook that the hub would never call."""
    manager = pluggy.PluginManager(spec.NAMESPACE)
    manager.add_hookspecs(spec)
    manager.add_hookspecs(views)
    return manager
