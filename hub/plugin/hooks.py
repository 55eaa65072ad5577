"""The pluggy manager with all hooks of the hub, for loading providers and consumers, and for the test kit."""

from __future__ import annotations

import pluggy

from hub.plugin import spec, views


def plugin_manager() -> pluggy.PluginManager:
    """Return a manager without plugins. Its ``check_pending`` raises for a misspelt hook."""
    manager = pluggy.PluginManager(spec.NAMESPACE)
    manager.add_hookspecs(spec)
    manager.add_hookspecs(views)
    return manager
