"""Commands that run a hub once end with an error if they cannot read the hub cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hub_testkit import SimulatedCluster

from hub.app.hub import Options, assemble
from hub.app.oneshot import observing
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
