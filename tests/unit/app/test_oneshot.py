"""Commands that run a hub once end with an error if they cannot read the hub cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.hub import Options, assemble
from hub.app.oneshot import observing, one_pass
from hub.errors import HubError


@pytest.mark.parametrize(
    ("answers", "message"), [(True, "hub cluster: 403: .* lacks the rule «services"), (False, "hub cluster: no answer")]
)
async def test_unreadable_hub_cluster_is_an_error(tmp_path: Path, *, answers: bool, message: str) -> None:
    """The error names the answer of the hub cluster, or says that there was none within ``settle`` seconds."""
    (tmp_path / "clusters.yaml").write_text("version: 1\n")
    async with SimulatedCluster("hub") as sim:
        kubeconfig = str(sim.write_kubeconfig(tmp_path / "hub"))
        options = Options(str(tmp_path / "clusters.yaml"), kubeconfig, settle=10.0 if answers else 0.1)
        async with assemble(options) as hub:
            if answers:
                sim.forbid("list", "services")
            else:
                sim.hang()
            with pytest.raises(HubError, match=message):
                async with asyncio.timeout(10), observing(hub):
                    pass


@pytest.mark.parametrize("dry_run", [False, True])
async def test_one_pass_publishes_what_is_known(tmp_path: Path, *, dry_run: bool) -> None:
    """One pass writes the slices of every target; a dry run decides and writes none."""
    async with SimulatedCluster("hub") as here, SimulatedCluster("eu") as eu:
        here.put(make_service("edge", "payments"))
        eu.nodes.add(make_node("n1", "10.0.0.1"))
        cluster = {
            "name": "eu",
            "kubeconfig": {"path": str(eu.write_kubeconfig(tmp_path / "eu"))},
            "allowedCIDRs": ["10.0.0.0/8"],
            "provider": {"name": "node-addresses"},
        }
        service = {"name": "payments", "namespace": "edge", "sources": [{"cluster": "eu"}], "ports": [{"port": 30443}]}
        registry = {"version": 1, "clusters": [cluster], "services": [service]}
        (tmp_path / "clusters.yaml").write_text(json.dumps(registry))
        options = Options(
            str(tmp_path / "clusters.yaml"),
            str(here.write_kubeconfig(tmp_path / "hub")),
            leader_elect=False,
            dry_run=dry_run,
        )
        async with assemble(options) as hub:
            hub.leading.begin()
            async with observing(hub):
                [decision] = await one_pass(hub)
        published = [each["endpoints"][0]["addresses"] for each in here.slices.list()]
    assert (str(decision.target), decision.status) == ("edge/payments", "")
    assert published == ([] if dry_run else [["10.0.0.1"]])
