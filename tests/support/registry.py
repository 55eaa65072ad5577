"""Registries that tests load."""

from __future__ import annotations

from hub.errors import RegistryError
from hub.registry.file import Loaded
from hub.registry.spec import Registry


def strict(loaded: Loaded) -> Registry:
    """The registry of a file without any problem.

    Raises:
        RegistryError: there is one.
    """
    if loaded.problems:
        raise RegistryError(loaded.problems)
    return loaded.registry
