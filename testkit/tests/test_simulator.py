"""Tests of the simulated cluster's controls: what tests and the demo do to it, and how clients see that."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from hub_testkit import Refusal, SimulatedCluster, make_node, make_service, make_slice

NODES = "/api/v1/nodes"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)


@pytest.fixture
async def sim() -> AsyncIterator[SimulatedCluster]:
    """A running cluster with one Node and one Service."""
    cluster = SimulatedCluster("eu")
    cluster.nodes.add(make_node("n1", "10.7.0.1"))
    cluster.services.add(make_service("edge", "web"))
    async with cluster:
        cluster.requests.clear()
        yield cluster


class Http:
    """A plain HTTP client with a timeout of 10 s that closes its streams at the end."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.streams: list[aiohttp.ClientResponse] = []

    async def fetch(self, path: str = NODES, **query: str) -> tuple[int, Any]:
        """Sends a GET and returns the status and the decoded body."""
        async with self.session.get(path, params=query) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def post(self, path: str, body: Any) -> int:
        """Sends a POST and returns the status."""
        async with self.session.post(path, json=body) as response:
            return response.status

    async def watch(self, path: str = NODES, **query: str) -> aiohttp.ClientResponse:
        """Opens a watch of at most 10 seconds."""
        stream = await self.session.get(path, params={"watch": "1", "timeoutSeconds": "10", **query})
        self.streams.append(stream)
        return stream


@contextlib.asynccontextmanager
async def http(sim: SimulatedCluster, token: str | None = None) -> AsyncIterator[Http]:
    """Opens a client of a cluster."""
    async with aiohttp.ClientSession(
        sim.url,
        connector=aiohttp.TCPConnector(ssl=sim.client_tls()),
        headers={"Authorization": f"Bearer {token or sim.token}"},
        timeout=aiohttp.ClientTimeout(total=10),
    ) as session:
        client = Http(session)
        try:
            yield client
        finally:
            for stream in client.streams:
                stream.close()
    await asyncio.sleep(0.01)  # TLS transports close in the loop's next rounds


async def event(stream: aiohttp.ClientResponse) -> tuple[str, str]:
    """Reads the next event and returns its type and the object's name."""
    decoded = json.loads(await stream.content.readline())
    return decoded["type"], decoded["object"]["metadata"].get("name", "")


# --- serving -------------------------------------------------------------------------------------


async def test_kubeconfig_has_everything_inline(sim: SimulatedCluster, tmp_path: Path) -> None:
    """The kubeconfig names the server, carries CA and token, and only its owner may read the file."""
    path = sim.write_kubeconfig(tmp_path / "configs" / "eu")
    config = yaml.safe_load(path.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    assert (config["current-context"], cluster["server"], user) == ("eu", sim.url, {"token": sim.token})
    assert base64.b64decode(cluster["certificate-authority-data"]).decode() == sim.ca_pem
    assert path.stat().st_mode & 0o077 == 0


async def test_the_certificate_is_good_for_loopback_only(sim: SimulatedCluster) -> None:
    """A strict client accepts the shipped certificate for 127.0.0.1 and localhost and for nothing else."""
    context = sim.client_tls()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    port = int(sim.url.rpartition(":")[2])
    for name in ("127.0.0.1", "localhost"):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.transport.abort()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="example.com")
    await asyncio.sleep(0.01)


async def test_a_stopped_cluster_refuses_and_comes_back_as_it_was(sim: SimulatedCluster) -> None:
    """Stop breaks streams and refuses connections; start serves the same objects at the same address."""
    async with http(sim) as session:
        url, stream = sim.url, await session.watch(resourceVersion=str(sim.version))
        await sim.stop()
        with pytest.raises(BROKEN):
            await stream.content.readline()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.fetch()
        await sim.start()
        assert sim.url == url
        assert [item["metadata"]["name"] for item in (await session.fetch())[1]["items"]] == ["n1"]


async def test_a_connection_that_is_being_made_ends_with_the_others(sim: SimulatedCluster) -> None:
    """A connection whose TLS handshake is in progress when the cluster stops is closed and serves no watch."""
    request = (
        f"GET /api/v1/nodes?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {sim.add_token('late')}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sim.url.rpartition(":")[2]))

    async def watch() -> bytes:
        await writer.start_tls(sim.client_tls(), server_hostname="127.0.0.1")
        writer.write(request.encode())
        return await reader.readexactly(1)

    await asyncio.sleep(0.1)
    await sim.stop()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(watch(), 10)
    writer.transport.abort()


async def test_two_starts_are_one(sim: SimulatedCluster) -> None:
    """Starting a running cluster and stopping a stopped one do nothing."""
    url = sim.url
    await sim.start()
    assert sim.url == url
    await sim.stop()
    await sim.stop()


def test_a_cluster_that_never_served_has_no_address() -> None:
    """A cluster that was not started has no URL."""
    with pytest.raises(RuntimeError, match="simulated cluster eu was not started"):
        _ = SimulatedCluster("eu").url


# --- objects -------------------------------------------------------------------------------------


async def test_changes_from_python_reach_a_watch(sim: SimulatedCluster) -> None:
    """add, set_ready and delete cause one event each; setting the same status again causes none."""
    async with http(sim) as session:
        stream = await session.watch(resourceVersion=str(sim.version))
        sim.nodes.add(make_node("n2", "10.7.0.2"))
        sim.nodes.set_ready("n2", "False")
        sim.nodes.set_ready("n2", "False")
        sim.delete("Node", "n2")
        assert [await event(stream) for _ in range(3)] == [("ADDED", "n2"), ("MODIFIED", "n2"), ("DELETED", "n2")]


def test_put_creates_replaces_and_keeps_equal_objects() -> None:
    """Put creates or replaces an object, status included; an equal object is not written."""
    sim = SimulatedCluster()
    first = sim.put(make_node("n1", "10.7.0.1"))
    assert sim.put(make_node("n1", "10.7.0.1"))["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    second = sim.put(make_node("n1", "10.7.0.9"))
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["status"]["addresses"][0]["address"] == "10.7.0.9"


def test_arguments_are_not_changed() -> None:
    """The simulator does not modify the objects that it is given."""
    sim, service = SimulatedCluster(), make_service("edge", "web")
    copy = json.loads(json.dumps(service))
    sim.put(service)
    sim.put(service)
    assert service == copy


def test_set_ready_changes_the_condition_and_its_time() -> None:
    """set_ready changes status, reason and lastTransitionTime of the condition, as kube-controller-manager does."""
    sim = SimulatedCluster()
    sim.nodes.add(make_node("n1", "10.7.0.1", since="2024-01-01T00:00:00Z"))
    node = sim.nodes.set_ready("n1", "Unknown", since="2024-02-02T00:00:00Z")
    ready = next(item for item in node["status"]["conditions"] if item["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("Unknown", "NodeStatusUnknown")
    assert ready["lastTransitionTime"] == "2024-02-02T00:00:00Z"
    assert len(node["status"]["conditions"]) == 4


def test_a_heartbeat_changes_heartbeat_times_only() -> None:
    """A heartbeat changes a Node's heartbeat times and resourceVersion, and nothing else."""
    sim = SimulatedCluster()
    before = sim.nodes.add(make_node("n1", "10.7.0.1"))
    after = sim.nodes.heartbeat("n1")
    assert before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]
    for node in (before, after):
        del node["metadata"]["resourceVersion"]
        for condition in node["status"]["conditions"]:
            del condition["lastHeartbeatTime"]
    assert before == after


def test_objects_from_python_are_validated_too() -> None:
    """Objects added from Python are validated as an API server does."""
    sim = SimulatedCluster()
    with pytest.raises(Refusal, match="loopback range") as refused:
        sim.put(make_slice("edge", "a", "web", ["127.0.0.1"]))
    assert refused.value.code == 422
    with pytest.raises(ValueError, match="no kind 'Deployment'"):
        sim.put({"kind": "Deployment", "metadata": {"name": "p"}})


def test_bulky_node_is_as_large_as_a_real_one() -> None:
    """A bulky node has about 12 KB of JSON."""
    size = len(json.dumps(make_node("n1", "10.7.0.1", bulk=True)))
    assert 9_000 < size < 15_000


def test_deleting_a_namespace_removes_its_objects() -> None:
    """Deleting a namespace from Python removes its objects at once."""
    sim = SimulatedCluster()
    sim.put(make_service("edge", "web"))
    sim.namespaces.delete("edge")
    assert sim.services.list() == []


async def test_controllers_delete_slices_of_deleted_services(sim: SimulatedCluster) -> None:
    """With controllers a deleted Service takes its slices along; without them they stay."""
    for controllers in (True, False):
        cluster = SimulatedCluster(controllers=controllers)
        owner = cluster.put(make_service("edge", "web"))
        owned = make_slice("edge", "web-1", "web", ["10.7.0.1"])
        reference = {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": owner["metadata"]["uid"]}
        owned["metadata"]["ownerReferences"] = [reference]
        cluster.put(owned)
        cluster.services.delete("web", namespace="edge")
        assert len(cluster.slices) == (0 if controllers else 1)


def test_a_single_stack_cluster_has_one_family() -> None:
    """A Service gets only families of the cluster's Service network."""
    sim = SimulatedCluster(families=("IPv6",))
    spec = sim.put(make_service("edge", "web"))["spec"]
    assert spec["ipFamilies"] == ["IPv6"]
    assert ":" in spec["clusterIP"]


# --- what was asked, and rights ------------------------------------------------------------------


async def test_requests_are_counted_by_verb_and_resource(sim: SimulatedCluster) -> None:
    """Requests are counted by verb and resource, and writes and open watches separately."""
    async with http(sim) as session:
        await session.fetch()
        await session.watch(resourceVersion=str(sim.version))
        assert sim.streams("nodes") == 1
        assert dict(sim.requests) == {("list", "nodes"): 1, ("watch", "nodes"): 1}
        assert sim.writes == 0
        await session.post(SLICES, make_slice("edge", "a", "web", ["10.7.0.1"]))
        assert (sim.requests["create", "endpointslices"], sim.writes) == (1, 1)
    await asyncio.sleep(0.1)
    assert sim.streams() == 0


async def test_a_rotated_token_is_refused(sim: SimulatedCluster) -> None:
    """After a rotation the old token answers 401, the new one works, and another user's token still works."""
    old, other = sim.token, sim.add_token("reader")
    new = sim.rotate_token()
    codes = []
    for token in (old, new, other):
        async with http(sim, token) as session:
            codes.append((await session.fetch())[0])
    assert codes == [401, 200, 200]


async def test_forbidden_verbs_are_403_until_permitted(sim: SimulatedCluster) -> None:
    """A forbidden verb of a resource answers 403 until permit; other verbs still work."""
    sim.forbid("list", "nodes", "admin")
    async with http(sim) as session:
        status, body = await session.fetch()
        assert (status, body["message"]) == (
            403,
            'nodes is forbidden: User "admin" cannot list resource "nodes" in API group "" at the cluster scope',
        )
        assert (await session.fetch(f"{NODES}/n1"))[0] == 200
        sim.permit()
        assert (await session.fetch())[0] == 200


# --- faults --------------------------------------------------------------------------------------


async def test_fail_next_fails_so_many_matching_requests(sim: SimulatedCluster) -> None:
    """fail_next(2) fails the next two matching requests; other requests are answered and not counted."""
    sim.fail_next(2, status=503, verb="list", resource="nodes", message="no etcd")
    async with http(sim) as session:
        assert (await session.fetch("/api/v1/services"))[0] == 200
        answers = [await session.fetch() for _ in range(3)]
    assert [status for status, _ in answers] == [503, 503, 200]
    assert (answers[0][1]["reason"], answers[0][1]["message"]) == ("ServiceUnavailable", "no etcd")


async def test_too_many_requests_is_plain_text(sim: SimulatedCluster) -> None:
    """A 429 has Retry-After and plain text instead of a Status, because it is sent before the API is reached."""
    sim.fail_next(status=429, retry_after=3)
    async with http(sim) as session, session.session.get(NODES) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "3")
        assert (response.content_type, await response.text()) == (
            "text/plain",
            "Too many requests, please try again later.\n",
        )


async def test_refuse_lasts_until_healed(sim: SimulatedCluster) -> None:
    """Every matching request fails after refuse, until heal."""
    sim.refuse(500, verb="watch")
    async with http(sim) as session:
        for _ in range(3):
            async with await session.watch() as stream:
                assert stream.status == 500
        sim.heal()
        async with await session.watch() as stream:
            assert stream.status == 200


async def test_a_hanging_server_answers_when_healed(sim: SimulatedCluster) -> None:
    """While the server hangs, requests wait and open streams are silent; after heal both continue."""
    async with http(sim) as session:
        stream = await session.watch(resourceVersion=str(sim.version))
        sim.hang()
        sim.nodes.add(make_node("n2", "10.7.0.2"))
        listing = asyncio.create_task(session.fetch())
        line = asyncio.create_task(event(stream))
        done, _ = await asyncio.wait({listing, line}, timeout=0.2)
        assert not done
        sim.heal()
        assert (await listing)[0] == 200
        assert await line == ("ADDED", "n2")


async def test_hang_affects_only_the_next_request(sim: SimulatedCluster) -> None:
    """hang(1) affects only the next request."""
    sim.hang(1, verb="list")
    async with http(sim) as session:
        first = asyncio.create_task(session.fetch())
        await asyncio.sleep(0.05)
        assert (await session.fetch())[0] == 200
        assert not first.done()
        sim.heal()
        assert (await first)[0] == 200


async def test_a_client_may_leave_a_hanging_server(sim: SimulatedCluster) -> None:
    """Stop does not wait for hanging requests."""
    sim.hang()
    async with http(sim) as session:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.fetch()
        async with asyncio.timeout(2):
            await sim.stop()


async def test_garbage_has_status_200(sim: SimulatedCluster) -> None:
    """A garbage answer has status 200 and the given body, like a captive portal or a truncated list."""
    sim.garbage()
    sim.garbage(body=b'{"kind":"NodeList","items":[', content_type="application/json", verb="watch")
    async with http(sim) as session:
        assert await session.fetch() == (200, "<html><body>Please log in</body></html>")
        async with await session.watch() as stream:
            assert (stream.status, await stream.read()) == (200, b'{"kind":"NodeList","items":[')
        assert (await session.fetch())[0] == 200


async def test_a_dropped_request_was_never_done(sim: SimulatedCluster) -> None:
    """drop_next resets the connection before anything happens."""
    sim.drop_next(verb="create")
    async with http(sim) as session:
        with pytest.raises(BROKEN):
            await session.post(SLICES, make_slice("edge", "a", "web", ["10.7.0.1"]))
        assert len(sim.slices) == 0


async def test_a_lost_answer_was_done_all_the_same(sim: SimulatedCluster) -> None:
    """After lose_answer the client sees a reset, although the object was created."""
    sim.lose_answer(verb="create")
    async with http(sim) as session:
        with pytest.raises(BROKEN):
            await session.post(SLICES, make_slice("edge", "a", "web", ["10.7.0.1"]))
        assert len(sim.slices) == 1


async def test_streams_can_be_cut_in_four_ways(sim: SimulatedCluster) -> None:
    """A stream can be reset, ended as by a timeout, expired by a 410, or broken in the middle of a line."""
    async with http(sim) as session:
        for how, expected in (
            ("end", b""),
            ("expire", b'{"type":"ERROR","object":{"kind":"Status"'),
            ("half-line", b'{"type":"MODIFIED","object":{"kind":'),
        ):
            stream = await session.watch(resourceVersion=str(sim.version))
            assert sim.cut_stream("nodes", how=how) == 1  # type: ignore[arg-type]
            read = b""
            with contextlib.suppress(*BROKEN):
                async for chunk in stream.content.iter_any():
                    read += chunk
            assert read.startswith(expected)
            assert bool(read) is bool(expected)
        stream = await session.watch(resourceVersion=str(sim.version))
        assert (sim.cut_stream("services"), sim.cut_stream()) == (0, 1)
        with pytest.raises(BROKEN):
            await stream.content.readline()


async def test_a_line_can_be_injected(sim: SimulatedCluster) -> None:
    """An injected line appears between events, and the stream continues."""
    async with http(sim) as session:
        stream = await session.watch(resourceVersion=str(sim.version))
        assert sim.inject(b"garbage", "nodes") == 1
        sim.nodes.add(make_node("n2", "10.7.0.2"))
        assert await stream.content.readline() == b"garbage\n"
        assert await event(stream) == ("ADDED", "n2")


async def test_history_is_finite(sim: SimulatedCluster) -> None:
    """A watch from a version that is no longer in the history gets an ERROR event."""
    small = SimulatedCluster(history=3)
    start = small.version
    for n in range(4):
        small.nodes.add(make_node(f"n{n}", f"10.7.0.{n}"))
    async with small, http(small) as session:
        async with await session.watch(resourceVersion=str(start)) as stream:
            assert await event(stream) == ("ERROR", "")
        async with await session.watch(resourceVersion=str(start + 1)) as stream:
            assert await event(stream) == ("ADDED", "n1")


async def test_restore_brings_back_old_objects_and_versions(sim: SimulatedCluster) -> None:
    """Restore brings back old objects and versions, as from a backup, and resets streams."""
    past = sim.version
    sim.nodes.add(make_node("n2", "10.7.0.2"))
    future = sim.version
    async with http(sim) as session:
        stream = await session.watch(resourceVersion=str(future))
        sim.restore(past)
        with pytest.raises(BROKEN):
            await stream.content.readline()
        status, body = await session.fetch()
        assert [item["metadata"]["name"] for item in body["items"]] == ["n1"]
        assert (status, body["metadata"]["resourceVersion"]) == (200, str(past))
        assert (await session.fetch(resourceVersion=str(future)))[0] == 504


async def test_latency_delays_answers(sim: SimulatedCluster) -> None:
    """Every answer is delayed by the latency."""
    loop = asyncio.get_running_loop()
    async with http(sim) as session:
        await session.fetch()
        sim.latency = 0.15
        start = loop.time()
        await session.fetch()
        assert loop.time() - start >= 0.15


async def test_bookmarks_come_at_the_chosen_interval(sim: SimulatedCluster) -> None:
    """The interval between bookmarks can be shortened for tests."""
    sim.bookmark_interval = 0.05
    async with http(sim) as session:
        stream = await session.watch(resourceVersion=str(sim.version), allowWatchBookmarks="true")
        assert [await event(stream) for _ in range(3)] == [("BOOKMARK", "")] * 3


async def test_many_watchers_get_the_same_bytes(sim: SimulatedCluster) -> None:
    """Fifty watches get the same line for a change."""
    async with http(sim) as session:
        streams = [await session.watch(resourceVersion=str(sim.version)) for _ in range(50)]
        sim.nodes.add(make_node("n2", "10.7.0.2", bulk=True))
        lines = {await stream.content.readline() for stream in streams}
        assert len(lines) == 1
