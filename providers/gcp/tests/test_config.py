"""The configuration of an account."""

from __future__ import annotations

from typing import Any

import pytest
from hub_provider_gcp import GcpConfig
from pydantic import ValidationError


def test_config_needs_only_the_project() -> None:
    """By default all regions are listed, with the hub's own identity."""
    config = GcpConfig.model_validate({"project": "team-project"})
    assert (config.regions, config.endpoint) == ((), "https://compute.googleapis.com")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"project": "../x"}, "project"),
        ({"project": "Team-Project"}, "project"),
        ({"regions": ["us-west1", "us-west1"]}, "names a region twice"),
        ({"regions": ["../x"]}, "regions.0"),
        ({"region": "us-west1"}, "Extra inputs"),
        ({"endpoint": "http://compute.example"}, "must be https"),
        ({"endpoint": "https://compute.example/path"}, "without a path"),
        ({"endpoint": "https://user@compute.example"}, "without a path"),
        ({"credentials": "a-secret"}, "never the secret itself"),
        ({"credentials": {"default": False}}, "default"),
        ({"credentials": {"default": True, "env": "KEY"}}, "Extra inputs"),
        ({"credentials": {"env": "KEY", "file": "key.json"}}, "credentials"),
        ({"credentials": {}}, "credentials"),
    ],
)
def test_config_refuses(more: dict[str, Any], words: str) -> None:
    """A mistake is an error that names the key."""
    with pytest.raises(ValidationError, match=words):
        GcpConfig.model_validate({"project": "team-project", **more})


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:8080/", "https://Compute-x.p.googleapis.com"])
def test_config_accepts_other_endpoints(endpoint: str) -> None:
    """An endpoint is an https URL, or an http URL of this machine."""
    config = GcpConfig.model_validate({"project": "team-project", "endpoint": endpoint})
    assert config.endpoint == endpoint.lower().rstrip("/")
