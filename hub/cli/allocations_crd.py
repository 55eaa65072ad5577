"""The CustomResourceDefinition of NetIPAllocation, for ``hub allocations crd``."""

from __future__ import annotations

from importlib import resources


def text() -> str:
    """The definition as YAML, the same text that the chart installs."""
    return (resources.files("hub.allocations") / "netipallocation.yaml").read_text("utf-8")
