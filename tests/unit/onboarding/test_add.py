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


async def test_an_entry_in_the_registry_stays(hub_kubeconfig: str, tmp_path: Path) -> None:
    """A registry that has the cluster is not written again."""
    registry = tmp_path / "clusters.yaml"
    registry.write_text(REGISTRY)
    await run(hub_kubeconfig, registry)
    before = registry.read_text()
    result, steps = await run(hub_kubeconfig, registry)
    assert (result.entry, steps) == ("", [*KEPT, Step(f"cluster eu in {registry}", "unchanged")])
    assert registry.read_text() == before


@pytest.mark.parametrize(
    ("networks", "notes"),
    [
        ((), ("allowedCIDRs are a proposal, from the addresses of 1 nodes: review them",)),
        (("10.1.0.0/24",), ()),
        (
            ("10.2.0.0/24",),
            ("1 nodes are outside of --allowed-cidr, such as 10.1.0.1: they are not published",),
        ),
    ],
)
async def test_networks_are_checked_against_the_nodes(
    hub_kubeconfig: str, networks: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    """Proposed networks are to be reviewed; nodes outside of given networks are reported."""
    given = tuple(map(ipaddress.ip_network, networks))
    options = ClusterOptions(ACCESS, hub_kubeconfig=hub_kubeconfig, networks=given)
    result = await add(options, SystemClock(), [])
    assert result.notes == notes
    assert f"allowedCIDRs: [{(networks or ('10.1.0.0/24',))[0]}]" in result.entry


async def test_kubeconfigs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The hub cluster itself, another cluster than the Secret's, a missing and an empty Secret are refused."""
    async with SimulatedCluster("eu") as remote, SimulatedCluster("hub") as here, SimulatedCluster("us") as other:
        hub, own = str(here.write_kubeconfig(tmp_path / "hub")), str(here.write_kubeconfig(tmp_path / "own"))
        options = ClusterOptions(ACCESS, hub_kubeconfig=hub, apply=True)

        async def message(**changes: Any) -> str:
            with pytest.raises(HubError) as caught:
                await add(replace(options, **changes), SystemClock(), [])
            return str(caught.value)

        where = "Secret default/eu of the hub cluster"
        assert await message() == (
            f"{where} does not exist: give --from-kubeconfig FILE, a kubeconfig of an administrator"
        )
        assert await message(kubeconfig=own) == (
            "that kubeconfig leads to the hub cluster itself; in the registry use the cluster local"
        )
        here.secrets.add(secret("eu", "default", remote.kubeconfig()))
        assert await message(kubeconfig=str(other.write_kubeconfig(tmp_path / "us"))) == (
            f"{where} leads to {remote.url}, this kubeconfig to {other.url}: the name is taken; "
            "choose another, or give --rotate if eu has moved"
        )
        here.delete("Secret", "eu", "default")
        empty = secret("eu", "default", "")
        empty["data"] = {}
        here.secrets.add(empty)
        assert await message() == f"{where} holds no kubeconfig; give --from-kubeconfig FILE and --rotate"


async def test_secret_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A Secret without the hub's labels, or of another cluster, is neither used nor overwritten; errors have a hint."""
    where = "Secret default/eu of the hub cluster"
    async with SimulatedCluster("hub") as here:
        hub = str(here.write_kubeconfig(tmp_path / "hub"))
        async with open_cluster_secret(ClusterOptions(ACCESS, hub_kubeconfig=hub), SystemClock()) as store:
            assert await store.find() is None
            assert (await store.write("one", None), await store.write("two", await store.find())) == (
                "created",
                "updated",
            )
            assert content_of(await found(store)) == b"two"
            stale = await found(store)
            await store.write("three", stale)
            with pytest.raises(HubError, match=f"{where}: .*; it changed meanwhile: run the command again"):
                await store.write("four", stale)
            assert (await store.delete(), await store.delete()) == ("deleted", "absent")

            for labels in ({}, {**secret("us", "default", "")["metadata"]["labels"]}):
                foreign = secret("eu", "default", "x")
                foreign["metadata"]["labels"] = labels
                here.secrets.add(foreign)
                with pytest.raises(Refused, match=f"{where} exists and was not made by 'hub cluster add'; delete it"):
                    await store.find()
                here.delete("Secret", "eu", "default")

            here.forbid("*", "secrets")
            with pytest.raises(HubError, match="your account needs secrets: get, create, update, delete in namespace"):
                await store.find()
            await here.stop()
            with pytest.raises(HubError, match="check that --kubeconfig is that of the hub cluster, and that it can"):
                await store.find()


async def found(store: ClusterSecret) -> Manifest:
    """The Secret, which exists."""
    manifest = await store.find()
    assert manifest is not None
    return manifest


@pytest.mark.parametrize("apply", [False, True])
async def test_remove_takes_the_entry_and_the_secret_back(hub_kubeconfig: str, tmp_path: Path, *, apply: bool) -> None:
    """With ``--apply`` the entry and the Secret are deleted, without it they are only named."""
    registry = tmp_path / "clusters.yaml"
    registry.write_text(REGISTRY)
    await run(hub_kubeconfig, registry)
    with_entry = registry.read_text()
    options = ClusterOptions(ACCESS, hub_kubeconfig=hub_kubeconfig, registry=str(registry), apply=apply)
    done = "deleted" if apply else "to be deleted"
    for outcome in (done, "absent" if apply else done):
        steps: list[Step] = []
        result = await remove(options, SystemClock(), steps)
        assert steps == [Step(f"cluster eu in {registry}", outcome), Step("Secret default/eu", outcome)]
        assert result == RemoveResult(tuple(removal_commands(ACCESS)))
    assert registry.read_text() == (REGISTRY if apply else with_entry)


async def test_remove_says_why_the_remote_cluster_was_not_reached(hub_kubeconfig: str, tmp_path: Path) -> None:
    """If the remote cluster cannot be reached, the result has the reason and the commands for its owners."""
    async with SimulatedCluster("eu") as remote:
        path = str(remote.write_kubeconfig(tmp_path / "eu"))
    options = ClusterOptions(ACCESS, kubeconfig=path, hub_kubeconfig=hub_kubeconfig)
    result = await remove(options, SystemClock(), [])
    assert result.left == tuple(removal_commands(ACCESS))
    assert "run this command where that address can be reached" in result.problem


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
