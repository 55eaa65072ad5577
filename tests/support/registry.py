"""A helper to load registries."""

from __future__ import annotations

from hub.errors import RegistryError
from hub.registry.file import Loaded
from hub.registry.spec import Registry


def strict(loaded: Loaded) -> Registry:
    """The registry of a file that has no problem.

    Raises:
        RegistryError: the file has a problem.
    """
    if loaded.problems:
        raise RegistryError(loaded.problems)
    return loaded.registry
