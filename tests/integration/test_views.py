"""Endpoint views with real API servers: the command line, the stream, consumers, dead remote clusters."""

from __future__ import annotations

import http.client
import json
import queue
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hub.cli.exits import Exit
from tests.support.api import Object
from tests.support.apiserver.server import ApiServer
from tests.support.hub import REVIEW_RULES, ROOT, HubProcess, World
from tests.support.waiting import eventually

VIEW_RULES: tuple[Object, ...] = (
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
)
"""Rules for views in a remote cluster, in all namespaces."""
WANTED = {"dcontroller.io/endpointslice-controller-enabled": ""}
PORTS = [{"name": "http", "port": 80, "targetPort": 80}, {"name": "https", "port": 8843, "targetPort": 8843}]
SERVICES = "/api/v1/namespaces/edge/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/edge/endpointslices"
RECORDER = """
import json, os
from hub.cli.exits import Exit
from hub.plugin import hookimpl

def note(*words):
    with open(os.environ["RECORDER"], "a") as file:
        file.write(json.dumps(words) + "\\n")

@hookimpl
def hub_endpoint_upserted(view):
    note("upserted", view.port, view.addresses[0], view.stale)

@hookimpl
def hub_endpoint_deleted(view):
    note("deleted", view.port, view.addresses[0], view.stale)

@hookimpl
def hub_endpoints_listed(cluster, views):
    note("listed", cluster, len(views))
"""


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """A hub cluster and the remote cluster eu, whose Services the hub may read."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    remote_clusters[0].grant("hub", *VIEW_RULES)
    return made


def add_service(server: ApiServer, name: str = "testsvc") -> None:
    """Create a Service with two ports that requests views."""
    server.api.post(SERVICES, {"metadata": {"name": name, "annotations": WANTED}, "spec": {"ports": PORTS}})


def endpoints(addresses: Sequence[str]) -> list[Object]:
    """Ready endpoints; the last one has no conditions, which means ready."""
    ready = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses[:-1]]
    return [*ready, *({"addresses": [address]} for address in addresses[-1:])]


def add_slice(server: ApiServer, *addresses: str, name: str = "testsvc-1", service: str = "testsvc") -> None:
    """Create a slice with both ports."""
    ports = [{"name": port["name"], "port": port["port"]} for port in PORTS]
    meta = {"name": name, "labels": {"kubernetes.io/service-name": service}}
    body = {"metadata": meta, "addressType": "IPv4", "endpoints": endpoints(addresses), "ports": ports}
    server.api.post(SLICES, body)


def scale(server: ApiServer, *addresses: str, name: str = "testsvc-1") -> None:
    """Replace the addresses of a slice."""
    server.api.patch(f"{SLICES}/{name}", {"endpoints": endpoints(addresses)})


class Lines:
    """Reads JSON lines from a stream in a thread."""

    def __init__(self, stream: Any) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: Any) -> None:
        with suppress(OSError, ValueError, http.client.HTTPException, AttributeError):
            for line in iter(stream.readline, b""):
                self._queue.put(json.loads(line))

    def take(self, number: int, timeout: float = 15.0) -> list[Object]:
        """The next ``number`` events."""
        return [self._queue.get(timeout=timeout) for _ in range(number)]

    def until_bookmark(self) -> list[Object]:
        """The events up to the bookmark."""
        found: list[Object] = []
        while not found or found[-1]["type"] != "Bookmark":
            found += self.take(1)
        return found


@contextmanager
def command(world: World, *arguments: str) -> Iterator[Lines]:
    """Run ``hub endpoints --watch -o json``."""
    argv = [sys.executable, "-m", "hub", "endpoints", "--watch", "-o", "json", "--kubeconfig", str(world.kubeconfig)]
    child = subprocess.Popen([*argv, *arguments], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        yield Lines(child.stdout)
    finally:
        child.kill()
        child.communicate()


def listing(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``hub endpoints`` once."""
    argv = [sys.executable, "-m", "hub", "endpoints", "--kubeconfig", str(world.kubeconfig), *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def kinds(events: Sequence[Object]) -> list[str]:
    """The types of the events."""
    return [event["type"] for event in events]


def addresses(events: Sequence[Object]) -> set[tuple[int, str]]:
    """The port and address of each object."""
    return {(event["object"]["spec"]["port"], event["object"]["spec"]["address"]) for event in events}


def test_watch_has_the_events_of_dcontroller(world: World) -> None:
    """2 ports × 2 addresses give 4 upserts with exact names, another address 2, deleting the Service 6 deletes."""
    with command(world, "--compat", "dcontroller") as lines:
        assert kinds(lines.until_bookmark()) == ["Bookmark"]
        add_service(world.hub_cluster)
        add_slice(world.hub_cluster, "10.244.1.69", "10.244.1.90")
        first = lines.take(4)
        scale(world.hub_cluster, "10.244.1.69", "10.244.1.90", "10.244.1.91")
        second = lines.take(2)
        world.hub_cluster.api.delete(f"{SERVICES}/testsvc")
        third = lines.take(6)

    assert kinds(first) == ["Added"] * 4
    names = {event["object"]["metadata"]["name"] for event in first}
    assert {"testsvc-b9p5tj", "testsvc-8x1zl2", "testsvc-6kq57l"} < names
    assert kinds(second) == ["Added"] * 2
    assert addresses(second) == {(80, "10.244.1.91"), (8843, "10.244.1.91")}
    assert kinds(third) == ["Deleted"] * 6
    assert addresses(third) == addresses(first) | addresses(second)
    assert set(first[0]["object"]["spec"]) == {"serviceName", "type", "port", "targetPort", "protocol", "address"}


def test_views_are_gathered_and_withdrawn_with_the_annotation(world: World) -> None:
    """There is one object per port, updated as a whole, and deleted when the Service no longer requests views."""
    add_service(world.hub_cluster)
    add_slice(world.hub_cluster, "10.0.0.1")
    with command(world, "--gather") as lines:
        snapshot = lines.until_bookmark()
        scale(world.hub_cluster, "10.0.0.1", "10.0.0.2")
        updated = lines.take(2)
        gone = {"metadata": {"annotations": dict.fromkeys(WANTED)}}
        world.hub_cluster.api.patch(f"{SERVICES}/testsvc", gone)
        deleted = lines.take(2)

    names = ["testsvc-TCP-80", "testsvc-TCP-8843"]
    assert [event["object"]["metadata"]["name"] for event in snapshot[:-1]] == names
    assert kinds(updated) == ["Updated"] * 2
    assert updated[0]["object"]["spec"]["addresses"] == ["10.0.0.1", "10.0.0.2"]
    assert kinds(deleted) == ["Deleted"] * 2


def test_a_table_of_several_clusters_and_one_that_may_not_be_read(world: World, hub_cluster: ApiServer) -> None:
    """The table has the registry's clusters and Services; unreadable ones are named, and the exit code shows it."""
    add_service(hub_cluster)
    add_slice(hub_cluster, "10.0.0.1")
    add_service(world.remotes["eu"], "other")
    add_slice(world.remotes["eu"], "10.1.0.1", name="other-1", service="other")
    select = "cluster == 'local' || service.metadata.name.startsWith('oth')"
    world.write(views={"clusters": ["local", "eu"], "select": select})
    found = listing(world, "--registry", str(world.path))
    world.remotes["eu"].kubeconfig(world.folder / "eu", "nobody")
    refused = listing(world, "--registry", str(world.path), "-o", "json")

    rows = sorted(line.split()[:8] for line in found.stdout.splitlines()[1:])
    assert found.returncode == 0, found.stderr
    assert rows == [
        [cluster, "edge", service, "ClusterIP", "TCP", port, port, address]
        for cluster, service, address in (("eu", "other", "10.1.0.1"), ("local", "testsvc", "10.0.0.1"))
        for port in ("80", "8843")
    ]
    assert refused.returncode == Exit.UNKNOWN
    assert "cluster eu: 403: the account lacks the rule «services: get, list, watch" in refused.stderr
    assert {item["spec"]["cluster"] for item in json.loads(refused.stdout)["items"]} == {"local"}


def recorder(world: World) -> Path:
    """A folder to import from, with a consumer named ``recorder``."""
    folder = world.folder / "plugins"
    info = folder / "views_recorder-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: views-recorder\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hub.views]\nrecorder = views_recorder\n")
    (folder / "views_recorder.py").write_text(RECORDER)
    return folder


@contextmanager
def running(
    world: World, monkeypatch: pytest.MonkeyPatch, *path: Path, arguments: Sequence[str] = ()
) -> Iterator[tuple[str, HubProcess]]:
    """Run a hub with a listener; yields the listener's address and the hub."""
    monkeypatch.setenv("RECORDER", str(world.folder / "record"))
    process = HubProcess(world, "--listen", "127.0.0.1:0", "--leader-elect=false", *arguments, path=(ROOT, *path))
    with process:
        pattern = re.compile(r"status page.* on https?://(127\.0\.0\.1:\d+)")
        [place] = eventually(lambda: pattern.findall(process.log.read_text()), 20)
        yield place, process


@contextmanager
def stream(place: str, query: str = "", **headers: str) -> Iterator[http.client.HTTPResponse]:
    """Open the stream."""
    connection = http.client.HTTPConnection(place, timeout=30)
    connection.request("GET", f"/api/v1/endpoints{query}", headers=headers)
    line = connection.sock
    try:
        yield connection.getresponse()
    finally:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)  # end the reading thread, which closing the connection would wait for
        connection.close()


def recorded(world: World) -> list[Any]:
    """The calls that the consumer recorded."""
    file = world.folder / "record"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_running_hub_serves_a_stream_and_calls_consumers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream has a snapshot, a bookmark and deltas, and resumes from a token. Consumers get a list and deltas."""
    add_service(world.hub_cluster)
    add_slice(world.hub_cluster, "10.0.0.1", "10.0.0.2")
    world.write(views={"hooks": ["recorder"]})
    with running(world, monkeypatch, recorder(world)) as (place, _):
        with stream(place) as response:
            lines = Lines(response)
            snapshot = lines.until_bookmark()
            eventually(lambda: len(recorded(world)) == 5)  # consumers miss intermediate states
            scale(world.hub_cluster, "10.0.0.1", "10.0.0.2", "10.0.0.3")
            added = lines.take(2)
        eventually(lambda: len(recorded(world)) == 7)
        world.hub_cluster.api.delete(f"{SERVICES}/testsvc")
        with stream(place, f"?resume={added[1]['resourceVersion']}") as response:
            resumed = Lines(response).take(7)
        with stream(place, "", Accept="text/event-stream") as response:
            kind, first = response.headers["Content-Type"], response.readline()
        with stream(place, "?resume=elsewhere-5") as response:
            expired = response.status, json.loads(response.read())
        eventually(lambda: len(recorded(world)) == 13)
        notes = recorded(world)

    assert kinds(snapshot) == ["Added"] * 4 + ["Bookmark"]
    assert kinds(added) == ["Added"] * 2
    assert kinds(resumed) == ["Bookmark"] + ["Deleted"] * 6
    assert (kind, first[:4]) == ("text/event-stream", b"id: ")
    assert expired[0] == 410
    assert "start again without one" in expired[1]["detail"]
    assert [note[0] for note in notes] == ["upserted"] * 4 + ["listed"] + ["upserted"] * 2 + ["deleted"] * 6
    assert notes[4] == ["listed", "local", 4]


def test_view_stream_requires_authorization(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader needs a token of the hub cluster whose account may get the path."""
    server, right = world.hub_cluster, "/endpointslice-hub/api/v1/endpoints"
    server.grant("hub", *REVIEW_RULES)
    server.grant("reader", {"nonResourceURLs": [right], "verbs": ["get"]})
    add_service(server)
    add_slice(server, "10.0.0.1")
    world.write(views={})
    found: dict[str, Any] = {}
    with running(world, monkeypatch, arguments=("--listen-authenticate",)) as (place, _):
        for name in ("reader", "nobody", ""):
            headers = {"Authorization": f"Bearer {server.token(name)}"} if name else {}
            with stream(place, "", **headers) as response:
                found[name] = response.status, json.loads(response.readline())

    assert found["reader"][0] == 200
    assert found["reader"][1]["object"]["spec"]["address"] == "10.0.0.1"
    assert (found["nobody"][0], found[""][0]) == (403, 401)
    assert found["nobody"][1]["detail"].startswith(f"nobody may not get {right}")


def test_a_dead_remote_keeps_its_views_and_marks_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of a dead cluster stay and are marked as stale, until it returns."""
    eu = world.remotes["eu"]
    add_service(world.hub_cluster)
    add_slice(world.hub_cluster, "10.0.0.1")
    add_service(eu, "far")
    add_slice(eu, "10.1.0.1", name="far-1", service="far")
    world.write(views={"clusters": ["local", "eu"]})
    with running(world, monkeypatch) as (place, _), stream(place) as response:
        lines = Lines(response)
        snapshot = lines.until_bookmark()
        while len(snapshot) < 5:  # the reader connected before the remote cluster was read
            snapshot += lines.take(1)
        eu.kill()
        dead = lines.take(2, timeout=40)
        scale(world.hub_cluster, "10.0.0.2")
        beside = lines.take(4)
        eu.ensure_running()
        alive = lines.take(2, timeout=40)

    assert kinds(dead) == ["Updated"] * 2
    assert [event["object"]["spec"]["stale"] for event in dead] == [True, True]
    assert kinds(beside) == ["Added"] * 2 + ["Deleted"] * 2
    assert [event["object"]["spec"]["stale"] for event in alive] == [False, False]


def test_without_the_views_block_nothing_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the block no views are read, and the stream's answer says what to add."""
    world.write()
    mark = world.hub_cluster.audit_mark()
    with running(world, monkeypatch) as (place, process):
        with stream(place) as response:
            answer = response.status, json.loads(response.read())["detail"]
        process.terminate()
    lists = [request.uri for request in world.hub_cluster.requests(mark, "hub") if request.verb == "list"]

    assert answer == (404, "the registry has no views: block, so nothing is followed; add views: {}")
    assert len([path for path in lists if path.startswith("/api/v1/services?")]) == 1
    assert [path for path in lists if "/endpointslices?" in path and "labelSelector" not in path] == []
