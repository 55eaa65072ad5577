"""Values of Secrets, read from a simulated hub cluster."""

from __future__ import annotations

import pytest
from hub_testkit import SimulatedCluster

from hub.errors import CredentialError
from hub.kube.client import Client
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.kube.resolver import LookupPool
from hub.observe.local.secrets import Secrets
from hub.runtime.clock import SystemClock


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("user", "Secret access/cloud: has no key 'user'"),
        ("bytes", "Secret access/cloud: key 'bytes' is not text in base64"),
    ],
)
async def test_unusable_key_of_a_secret_is_named_with_its_namespace(key: str, message: str) -> None:
    """A key is read as text; the error for a key that is missing or no text names the namespace and the Secret."""
    pool, clock = LookupPool(), SystemClock()
    async with SimulatedCluster("hub") as sim:
        sim.namespaces.add({"metadata": {"name": "access"}})
        metadata = {"name": "cloud", "namespace": "access"}
        sim.secrets.add({"metadata": metadata, "data": {"token": "aHVudGVyMg==", "bytes": "/w=="}})
        access = parse_kubeconfig(sim.kubeconfig().encode(), origin="a test", policy=KubeconfigPolicy(), context=None)
        async with Client(Credentials(access, clock), pool) as client:
            secrets = Secrets(client, clock, "access")
            assert await secrets.text("cloud", "token") == "hunter2"
            with pytest.raises(CredentialError) as caught:
                await secrets.text("cloud", key)
    pool.close()
    assert str(caught.value) == message
