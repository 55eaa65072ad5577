"""The provider ``simulated-cloud`` as an installed plugin: its clouds are those that tests put into :data:`CLOUDS`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

import pytest
from hub_testkit.addresses.cloud import SimulatedCloud
from hub_testkit.addresses.simulated import SimulatedPlugin

from hub.observe.providers.catalog import Catalog, installed
from hub.plugin import ProviderType, hookimpl

CLOUDS: dict[str, SimulatedCloud] = {}
_PLUGIN = SimulatedPlugin(CLOUDS)


@hookimpl
def hub_register_providers() -> Iterable[ProviderType]:
    """The type of the kit."""
    return _PLUGIN.hub_register_providers()


def install(patch: pytest.MonkeyPatch) -> dict[str, SimulatedCloud]:
    """Make hubs and ``hub check`` in this process find the provider; returns the clouds by name."""
    point = importlib.metadata.EntryPoint("simulated-cloud", __name__, "hub.providers")
    for user in ("hub.app.hub", "hub.cli.checking"):
        patch.setattr(f"{user}.Catalog", lambda: Catalog(lambda: [*installed(), point]))
    CLOUDS.clear()
    return CLOUDS
