"""``hub cluster add`` and ``remove`` against simulated API servers, with a token in the Secret that is still good."""

from __future__ import annotations

import base64
import ipaddress
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hub_testkit import SimulatedCluster, make_node

from hub.errors import HubError
from hub.onboarding.add import AddResult, add
from hub.onboarding.credential import content_of, secret
from hub.onboarding.manifests import Access, Manifest
from hub.onboarding.options import ClusterOptions, ClusterSecret, open_cluster_secret
from hub.onboarding.remote import Refused, Step, removal_commands
from hub.onboarding.remove import RemoveResult, remove
from hub.runtime.clock import SystemClock

ACCESS = Access("eu")
KEPT = [Step("ServiceAccount endpointslice-hub/endpointslice-hub", "kept"), Step("Secret default/eu", "unchanged")]
REGISTRY = (
    "version: 1\nclusters:\n  - name: us\n    allowedCIDRs: [10.9.0.0/24]\n    provider: {name: node-addresses}\n"
)


def token() -> str:
    """An unsigned token of the account for the next hour."""
    now = int(time.time())
    claims = {"sub": "system:serviceaccount:{}:{}".format(*ACCESS.account), "iat": now, "exp": now + 3600}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.c2ln"


@pytest.fixture
async def hub_kubeconfig(tmp_path: Path) -> AsyncIterator[str]:
    """The kubeconfig of a hub cluster that has the Secret of cluster eu, which has one node."""
    async with SimulatedCluster("eu") as remote, SimulatedCluster("hub") as here:
        remote.nodes.add(make_node("n1", "10.1.0.1"))
        good = token()
        remote.tokens[good] = "reader"
        here.secrets.add(secret("eu", "default", remote.kubeconfig(good)))
        yield str(here.write_kubeconfig(tmp_path / "hub"))


async def run(hub_kubeconfig: str, registry: Path | None) -> tuple[AddResult, list[Step]]:
    """Add cluster eu with ``--apply``; returns the result and the steps."""
    path = str(registry) if registry is not None else None
    options = ClusterOptions(ACCESS, hub_kubeconfig=hub_kubeconfig, registry=path, apply=True)
    steps: list[Step] = []
    return await add(options, SystemClock(), steps), steps


async def test_apply_without_a_registry_leaves_the_entry_to_the_user(hub_kubeconfig: str) -> None:
    """Without ``--registry`` the entry is in the result, since there is no file to add it to."""
    result, steps = await run(hub_kubeconfig, None)
    assert (result.secret, steps) == (None, KEPT)
    assert "name: eu" in result.entry
    assert "allowedCIDRs: [10.1.0.0/24]" in result.entry


async def test_apply_adds_the_entry_to_the_registry(hub_kubeconfig: str, tmp_path: Path) -> None:
    """With ``--registry`` the entry is added to the file, and nothing is left to the user."""
    registry = tmp_path / "clusters.yaml"
    registry.write_text(REGISTRY)
    result, steps = await run(hub_kubeconfig, registry)
    assert (result.secret, result.entry) == (None, "")
    assert steps == [*KEPT, Step(f"cluster eu in {registry}", "created")]
    text = registry.read_text()
    assert text.startswith(REGISTRY)
    assert "  - name: eu\n    kubeconfig: {secret: eu}\n" in text


@pytest.mark.parametrize(
    ("forbidden", "message"), [(False, "has no namespace nope; create it"), (True, "create ServiceAccount")]
)
async def test_apply_checks_the_namespace_of_the_secret_first(tmp_path: Path, forbidden: bool, message: str) -> None:
    """A missing namespace of the Secret is refused before the remote cluster is contacted, if it may be read."""
    async with SimulatedCluster("eu") as remote, SimulatedCluster("hub") as here:
        if forbidden:
            here.forbid("get", "namespaces")
        admin = str(remote.write_kubeconfig(tmp_path / "eu"))
        options = ClusterOptions(
            ACCESS,
            kubeconfig=admin,
            hub_kubeconfig=str(here.write_kubeconfig(tmp_path / "hub")),
            secrets_namespace="nope",
            apply=True,
        )
        steps: list[Step] = []
        with pytest.raises(HubError, match=message):
            await add(options, SystemClock(), steps)
        assert bool(remote.requests) is forbidden
        assert steps == [] or forbidden


async def test_a_registry_that_does_not_exist_has_a_next_step(hub_kubeconfig: str, tmp_path: Path) -> None:
    """A missing registry file is refused with what to write into a new one, and the command accepts such a file."""
    registry = tmp_path / "clusters.yaml"
    with pytest.raises(HubError, match="does not exist; check the path, or create it with the line: version: 1"):
        await run(hub_kubeconfig, registry)
    registry.write_text("version: 1\n")
    await run(hub_kubeconfig, registry)
    assert "name: eu" in registry.read_text()
