"""The admin client against a simulated API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import yaml
from hub_testkit import SimulatedCluster

from hub.errors import AlreadyExists, ClusterUnreachable, Conflict, Forbidden, HubError, ServerFault, Unauthorized
from hub.kube.admin import SOME_LIMIT, Admin, Manifest, administer
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, parse_kubeconfig
from hub.runtime.clock import SystemClock
from tests.support.forward_proxy import ForwardProxy

EDGE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge", "labels": {"team": "a"}}}


@pytest.fixture
async def sim() -> AsyncIterator[SimulatedCluster]:
    """A simulated API server."""
    async with SimulatedCluster("eu") as made:
        yield made


@asynccontextmanager
async def admin_of(sim: SimulatedCluster, token: str | None = None) -> AsyncIterator[Admin]:
    """An admin client of the simulated server."""
    content = sim.kubeconfig(token).encode()
    access = parse_kubeconfig(content, origin="a test", policy=KubeconfigPolicy(), context=None)
    async with administer(Credentials(access, SystemClock())) as made:
        yield made


async def test_an_object_is_created_found_replaced_and_deleted(sim: SimulatedCluster) -> None:
    """A missing object is found as None, and deleting it returns False."""
    async with admin_of(sim) as admin:
        assert admin.server == sim.url
        assert await admin.find("Namespace", "edge") is None
        assert await admin.delete("Namespace", "edge") is False
        await admin.create(EDGE)
        found = await admin.find("Namespace", "edge")
        assert found is not None
        assert found["metadata"]["labels"]["team"] == "a"
        with pytest.raises(AlreadyExists):
            await admin.create(EDGE)
        changed = {**EDGE, "metadata": {**found["metadata"], "labels": {"team": "b"}}}
        await admin.replace(changed)
        assert sim.namespaces.get("edge")["metadata"]["labels"]["team"] == "b"
        with pytest.raises(Conflict):
            await admin.replace(changed)
        assert await admin.delete("Namespace", "edge") is True
        assert sim.namespaces.get("edge")["status"]["phase"] == "Terminating"


async def test_objects_of_a_namespace_are_listed_by_label_and_by_name(sim: SimulatedCluster) -> None:
    """``labelled`` lists all namespaces; ``some`` lists a few names of one namespace."""
    for namespace in ("edge", "other"):
        sim.namespaces.add({"metadata": {"name": namespace}})
    async with admin_of(sim) as admin:
        for number in range(SOME_LIMIT + 2):
            await admin.create(secret(f"s{number:02}", "edge", team="a"))
        await admin.create(secret("t", "other", team="a"))
        await admin.create(secret("u", "other", team="b"))
        found = await admin.list_labelled("Secret", "team=a")
        assert {item["kind"] for item in found} == {"Secret"}
        names = sorted((item["metadata"]["namespace"], item["metadata"]["name"]) for item in found)
        assert names == [*(("edge", f"s{number:02}") for number in range(SOME_LIMIT + 2)), ("other", "t")]
        assert await admin.some_names("Secret", "edge") == [f"s{number:02}" for number in range(SOME_LIMIT)]
        assert await admin.some_names("Secret", "other") == ["t", "u"]
        assert await admin.find("Secret", "t", "edge") is None
        assert await admin.delete("Secret", "t", "other") is True
        assert await admin.some_names("Secret", "other") == ["u"]
        with pytest.raises(AlreadyExists, match=r"^create Secret other/u: 409"):
            await admin.create(secret("u", "other"))


def secret(name: str, namespace: str, **labels: str) -> Manifest:
    """A Secret without content."""
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque"}


async def test_refused_call_is_named_with_its_status(sim: SimulatedCluster) -> None:
    """The error of a refused call names the call and the status."""
    sim.forbid("*", "namespaces")
    async with admin_of(sim) as admin:
        with pytest.raises(Forbidden, match=r"^read Namespace edge: 403"):
            await admin.find("Namespace", "edge")
        with pytest.raises(Forbidden, match=r"^create Namespace edge: 403"):
            await admin.create(EDGE)
        with pytest.raises(Forbidden, match=r"^delete Namespace edge: 403"):
            await admin.delete("Namespace", "edge")
    sim.permit()
    async with admin_of(sim) as admin:
        sim.refuse(503, resource="namespaces", message="etcd is away")
        with pytest.raises(ServerFault, match=r"503 .*: etcd is away"):
            await admin.find("Namespace", "edge")


async def test_refused_token_is_an_error(sim: SimulatedCluster) -> None:
    """A refused token is an error; the client does not continue anonymously."""
    async with admin_of(sim, "wrong") as admin:
        with pytest.raises(Unauthorized):
            await admin.find("Namespace", "edge")


async def test_a_server_that_is_away_is_unreachable(sim: SimulatedCluster) -> None:
    """A refused connection gives the same error as in the hub's own client."""
    async with admin_of(sim) as admin:
        url = sim.url
        await sim.stop()
        with pytest.raises(ClusterUnreachable, match=f"{url}: connection refused") as caught:
            await admin.find("Namespace", "edge")
        assert caught.value.kind == "refused"


async def test_non_object_answer_is_an_error(sim: SimulatedCluster) -> None:
    """An answer that is not an object, such as a proxy's page, is a HubError."""
    async with admin_of(sim) as admin:
        sim.garbage(resource="namespaces")
        with pytest.raises(HubError):
            await admin.find("Namespace", "edge")


@pytest.mark.parametrize("kind", ["http", "socks5"])
async def test_calls_pass_the_kubeconfigs_proxy(sim: SimulatedCluster, kind: str) -> None:
    """`hub cluster add` reaches a cluster as the hub does."""
    with ForwardProxy(kind, login="joe:hunter2") as proxy:
        document = yaml.safe_load(sim.kubeconfig())
        document["clusters"][0]["cluster"]["proxy-url"] = proxy.url()
        access = parse_kubeconfig(yaml.safe_dump(document).encode(), origin="a test", policy=KubeconfigPolicy())
        async with administer(Credentials(access, SystemClock())) as admin:
            await admin.create(EDGE)
            assert await admin.find("Namespace", "edge") is not None
        assert proxy.awaits(1)[0]["login"] == "joe:hunter2"


async def test_no_proxy_of_the_environment_is_asked(sim: SimulatedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies from the environment are ignored."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with admin_of(sim) as admin:
        assert await admin.find("Namespace", "edge") is None
