"""The rules and the dashboard of ip-address-controller itself, from a clone of its repository.

They are not copied into this repository. The environment variable IP_ADDRESS_CONTROLLER names the clone, at version
1.1.0; without it, the tests that need the files are skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

VARIABLE = "IP_ADDRESS_CONTROLLER"


def manifest(name: str) -> dict[str, Any]:
    """A manifest of the clone's folder ``k8s``."""
    clone = os.environ.get(VARIABLE)
    if not clone:
        pytest.skip(f"{VARIABLE} NAMES NO CLONE OF ip-address-controller, NOT TESTED")
    return dict(yaml.safe_load((Path(clone) / "k8s" / name).read_text()))


def rules() -> list[dict[str, Any]]:
    """Its groups of alerting rules."""
    return list(manifest("prometheusrule.yaml")["spec"]["groups"])


def dashboard() -> dict[str, Any]:
    """Its dashboard."""
    [text] = manifest("grafana-dashboard-configmap.yaml")["data"].values()
    return dict(json.loads(text))
