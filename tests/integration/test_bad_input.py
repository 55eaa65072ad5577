"""Faults of clusters, kubeconfigs, inventories and registries never affect a healthy cluster.

Each test runs a whole hub with one healthy simulated cluster and one misbehaving source for each line of a table. Every
Service takes endpoints from the healthy cluster and from one misbehaving source. The error must name the misbehaving
source, changes of the healthy cluster must arrive, and no endpoint may be missing at any moment.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hub_testkit import SimulatedCluster, make_node, make_service

from hub.app.hub import Hub, Options, assemble
from hub.cli import cli
from hub.kube import client as client_module
from hub.kube import reflector as reflector_module
from hub.registry import watch as registry_watch
from hub.report.facts import inspected
from tests.support.apiserver.pki import Authority

HEALTHY = "eu"
RECORDS = [{"name": "a", "private_ip": "10.200.0.1", "ready": True, "worker": True}]
SECOND_PAGE = {"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "9", "continue": "more"}}

Mischief = Callable[[SimulatedCluster], object]


# --- a world of simulated clusters -----------------------------------------------------------------------


class World:
    """A hub cluster, the healthy cluster, and further sources. Each source has a Service of the same name.

    Attributes:
        sims: The simulated clusters by name, including the healthy one.
        entries: The cluster entries of the registry by name.
        addresses: The node addresses by source.
        lost: The published endpoints that were missing at some moment, as (Service, address).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = SimulatedCluster("hub")
        self.sims: dict[str, SimulatedCluster] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self.addresses: dict[str, set[str]] = {}
        self.lost: set[tuple[str, str]] = set()

    def add(self, name: str, *, nodes: int = 2, **entry: Any) -> None:
        """Add a cluster with some Nodes and a Service."""
        sim = self.sims[name] = SimulatedCluster(name)
        sim.bookmark_interval = 0.2
        net = f"10.{len(self.sims)}"
        self.addresses[name] = {f"{net}.{number // 200}.{number % 200 + 1}" for number in range(nodes)}
        for number, address in enumerate(sorted(self.addresses[name])):
            sim.nodes.add(make_node(f"n{number}", address))
        self.entries[name] = {"kubeconfig": {"path": name}, "provider": {"name": "node-addresses"}, **entry}

    def inventory(self, name: str, **config: Any) -> None:
        """Add a source that reads an inventory instead of a cluster."""
        self.addresses[name] = {record["private_ip"] for record in RECORDS}
        self.entries[name] = {"provider": {"name": "inventory", "config": {"interval": "1s", **config}}}

    def write(self, *, per_slice: int = 100) -> Path:
        """Write the registry. Returns its path."""
        clusters = [{"name": name, "allowedCIDRs": ["10.0.0.0/8"], **entry} for name, entry in self.entries.items()]
        services = [
            {
                "name": name,
                "namespace": "default",
                "sources": [{"cluster": cluster} for cluster in dict.fromkeys((HEALTHY, name))],
                "ports": [{"port": 30443}],
                "endpointsPerSlice": per_slice,
            }
            for name in self.entries
        ]
        path = self.folder / "clusters.yaml"
        path.write_text(json.dumps({"version": 1, "clusters": clusters, "services": services}))
        return path

    def wanted(self, name: str) -> set[str]:
        """The addresses that a Service must have."""
        return self.addresses[name] | self.addresses[HEALTHY]

    def published(self) -> dict[str, set[str]]:
        """The published addresses by Service."""
        found: dict[str, set[str]] = {name: set() for name in self.entries}
        for slice_ in self.hub.slices.list():
            addresses = (endpoint["addresses"][0] for endpoint in slice_.get("endpoints") or ())
            found[slice_["metadata"]["labels"]["kubernetes.io/service-name"]].update(addresses)
        return found

    def complete(self) -> bool:
        """Whether every Service has exactly the addresses that it must have."""
        return self.published() == {name: self.wanted(name) for name in self.entries}

    def watched(self) -> bool:
        """Whether every cluster has an open watch of its Nodes. Tests that cut streams need one to cut."""
        return all(sim.streams("nodes") for sim in self.sims.values())

    def grow(self, name: str, address: str) -> None:
        """Add a Node to a cluster."""
        self.sims[name].nodes.add(make_node(f"n-{address}", address))
        self.addresses[name].add(address)

    async def watch_losses(self) -> None:
        """Compare the published addresses with the previous sample, forever, and add missing ones to ``lost``."""
        had = self.published()
        while True:
            await asyncio.sleep(0.02)
            now = self.published()
            self.lost |= {(name, address) for name in had for address in had[name] - now[name]}
            had = now


@asynccontextmanager
async def serving(world: World) -> AsyncIterator[None]:
    """Run all simulated clusters, with their kubeconfigs and Services in place."""
    for name in world.entries:
        world.hub.put(make_service("default", name))
    async with AsyncExitStack() as stack:
        for name, sim in [("hub", world.hub), *world.sims.items()]:
            await stack.enter_async_context(sim)
            sim.write_kubeconfig(world.folder / name)
        yield


@asynccontextmanager
async def running(world: World, **options: Any) -> AsyncIterator[Hub]:
    """Run a hub, and record endpoints that go missing."""
    given = Options(str(world.folder / "clusters.yaml"), str(world.folder / "hub"), leader_elect=False, **options)
    stop = asyncio.Event()
    async with assemble(given) as hub:
        tasks = [asyncio.create_task(hub.run(stop)), asyncio.create_task(world.watch_losses())]
        try:
            yield hub
        finally:
            stop.set()
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        tasks[0].result()


def problem(hub: Hub, name: str) -> str:
    """The problem that the hub reports for a source; empty without one."""
    return "".join(source.problem for key, source in hub.fleet.sources.items() if key.cluster == name)


async def until(condition: Callable[[], object], seconds: float, what: Callable[[], object]) -> None:
    """Wait for a condition. Fails after ``seconds`` with what ``what`` returns."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the world under test raises no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what()}") from None


async def named(hub: Hub, expected: Mapping[str, str], seconds: float = 20.0) -> None:
    """Wait until the problem of every source contains the text that the table expects."""

    def missing() -> dict[str, str]:
        return {name: problem(hub, name) for name, says in expected.items() if says not in problem(hub, name)}

    await until(lambda: not missing(), seconds, missing)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world that has only the healthy cluster."""
    made = World(tmp_path)
    made.add(HEALTHY)
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the client's timeouts: 1 s to connect, 1.5 s of silence, 1.5 s for each page of a list."""
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 1.0)
    monkeypatch.setattr(client_module, "SILENCE_TIMEOUT", 1.5)
    monkeypatch.setattr(reflector_module, "LIST_TIMEOUT", 1.5)


# --- the registry ----------------------------------------------------------------------------------------


def last(text: str, old: str, new: str) -> str:
    """Replace the last occurrence, which breaks the entry of the last cluster and not the healthy one's."""
    return new.join(text.rsplit(old, 1))


BOMB = "a: &a [x,x]\n" + "".join(f"{b}: &{b} [*{a},*{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
REGISTRIES: dict[str, tuple[Callable[[str], str], str]] = {
    "broken YAML": (lambda text: text + "}", "clusters.yaml:1:"),
    "unknown key": (lambda text: last(text, '"allowedCIDRs"', '"allowedCIDR"'), "did you mean allowedCIDRs"),
    "duplicate name": (lambda text: text.replace('"name": "us"', '"name": "eu"'), "clusters[1].name"),
    "dangling cluster": (lambda text: text.replace('"cluster": "us"', '"cluster": "uk"'), "uk"),
    "wrong type": (lambda text: last(text, '["10.0.0.0/8"]', "7"), "clusters[1].allowedCIDRs: "),
    "another version": (lambda text: text.replace('"version": 1', '"version": 9'), "version"),
    "empty file": (lambda text: "", "is empty (start with version: 1)"),
    "10 MB": (lambda text: text + " " * (10 << 20), "is too large"),
    "aliases that blow up": (lambda text: BOMB, "b: has an anchor"),
}
"""Name -> how the file is broken, and the error that both the running hub and ``hub check`` report."""


async def test_registries_that_cannot_be_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub names the bad file and position, keeps all endpoints, and follows every cluster as before."""
    monkeypatch.setattr(registry_watch, "INTERVAL", 0.1)
    world.add("us")
    path = world.write()
    good = path.read_text()
    async with serving(world), running(world) as hub:
        await until(world.complete, 20, world.published)
        for number, (name, (spoil, says)) in enumerate(REGISTRIES.items()):

            def said() -> str:
                return str(hub.rejected or "") + "".join(map(str, hub.problems))

            path.write_text(spoil(good))
            await until(lambda says=says: says in said(), 10, lambda name=name: (name, said()))  # type: ignore[misc]
            checked = await asyncio.to_thread(CliRunner().invoke, cli, ["check", str(path)])
            assert (says in checked.output, checked.exit_code in (1, 3)) == (True, True), (name, checked.output)
            world.grow(HEALTHY, f"10.1.9.{number + 1}")
            await until(lambda: world.published()[HEALTHY] == world.wanted(HEALTHY), 5, world.published)
            path.write_text(good)
            await until(lambda: not said(), 10, said)
            world.grow("us", f"10.2.9.{number + 1}")
            await until(world.complete, 5, world.published)
        assert world.lost == set()


# --- API servers -----------------------------------------------------------------------------------------


def half_a_list(sim: SimulatedCluster) -> None:
    """Deliver the first page of a list and fail the second."""
    for _ in range(50):
        sim.garbage(1, verb="list", body=json.dumps({**SECOND_PAGE, "items": sim.nodes.list()[:1]}).encode())
        sim.fail_next(1, status=500, verb="list", message="etcdserver: request timed out")
    sim.cut_stream(how="expire")


def refusing(status: int, **more: Any) -> Mischief:
    """Refuse every request with this status."""

    def begin(sim: SimulatedCluster) -> None:
        sim.refuse(status, **more)
        sim.cut_stream()

    return begin


def garbage(body: bytes, verb: str) -> Mischief:
    """Answer with 200 and a body that is not a valid response."""

    def begin(sim: SimulatedCluster) -> None:
        sim.garbage(None, verb=verb, body=body)
        sim.cut_stream(how="expire" if verb == "list" else "reset")

    return begin


def forbidden(sim: SimulatedCluster) -> None:
    """Take away the account's role."""
    sim.forbid("*", "nodes")
    sim.cut_stream()


def revoked(sim: SimulatedCluster) -> None:
    """Make the token invalid."""
    sim.rotate_token()
    sim.cut_stream()


SERVERS: dict[str, tuple[Mischief, str]] = {
    "frozen": (lambda sim: sim.hang(), "Unreachable: https://127.0.0.1"),
    "answers-401": (revoked, "Degraded: 401: the credential is not accepted; renew the kubeconfig's user"),
    "answers-403": (
        forbidden,
        "Degraded: 403: the account lacks the rule «nodes: get, list, watch»; grant it in cluster answers-403",
    ),
    "answers-429": (refusing(429, retry_after=1), "Degraded: watch /api/v1/nodes: 429"),
    "answers-500": (refusing(500, message="boom"), "Degraded: 500: the API server failed: boom"),
    "login-page-for-lists": (garbage(b"<html>log in</html>", "list"), "Degraded: /api/v1/nodes: 200"),
    "login-page-for-watches": (garbage(b"<html>log in</html>\n", "watch"), "Degraded: "),
    "list-cut-short": (garbage(b'{"kind":"NodeList","metadata":{"resourceVersion":"9"},"items":[', "list"), "Degraded"),
    "list-of-pods": (garbage(b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[]}', "list"), "PodList"),
    "list-without-an-end": (
        garbage(json.dumps({**SECOND_PAGE, "items": []}).encode(), "list"),
        "goes on with the same page for ever",
    ),
    "page-2-fails": (half_a_list, "Degraded: 500: the API server failed: etcdserver"),
}
"""Name -> what the cluster starts to do, and the problem that the hub reports while it lasts."""


@contextmanager
def black_hole(port: int) -> Iterator[None]:
    """Listen on a port, accept connections and never answer."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        yield


@pytest.mark.usefixtures("impatient")
async def test_servers_that_begin_to_misbehave(world: World) -> None:
    """The hub names each problem, keeps the endpoints, delays no other cluster, and follows each again afterwards."""
    for name in (*SERVERS, "dead", "black-hole", "slow", "expired-410"):
        world.add(name)
    world.write()
    async with serving(world), running(world) as hub:
        await until(lambda: world.complete() and world.watched(), 30, world.published)
        for name, (begin, _) in SERVERS.items():
            begin(world.sims[name])
        await world.sims["dead"].stop()
        await world.sims["black-hole"].stop()
        world.sims["slow"].latency = 0.3
        for name in ("slow", "expired-410"):
            world.sims[name].cut_stream(how="expire")

        with black_hole(int(world.sims["black-hole"].url.rpartition(":")[2])):
            says = {name: says for name, (_, says) in SERVERS.items()}
            await named(hub, {**says, "dead": "connection refused", "black-hole": "no answer in time"})
            for name in (HEALTHY, "slow", "expired-410"):
                await until(lambda name=name: not problem(hub, name), 10, lambda name=name: problem(hub, name))  # type: ignore[misc]
                world.grow(name, f"{min(world.addresses[name]).rpartition('.')[0]}.99")
            await until(world.complete, 5, world.published)

        for name in (*SERVERS, "dead", "black-hole"):
            sim = world.sims[name]
            await sim.start()
            sim.heal()
            sim.permit()
            sim.write_kubeconfig(world.folder / name)
            world.grow(name, f"{min(world.addresses[name]).rpartition('.')[0]}.99")
        await until(world.complete, 60, world.published)
        assert world.lost == set()


# --- kubeconfigs, and servers that are bad from the start ------------------------------------------------------


def edited(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Callable[[Path], object]:
    """Change the cluster section or the user section of a kubeconfig."""

    def begin(path: Path) -> None:
        content = yaml.safe_load(path.read_text())
        change(content["clusters"][0]["cluster"], content["users"][0]["user"])
        path.write_text(yaml.safe_dump(content))

    return begin


def directory(path: Path) -> None:
    """Replace the file with a directory, which no user can read as a file (file permissions would not stop root)."""
    path.unlink()
    path.mkdir()


def expired_certificate(_: dict[str, Any], user: dict[str, Any]) -> None:
    """A client certificate that expired yesterday, and a token that no server accepts."""
    leaf = Authority("clients").client("hub", lifetime=timedelta(days=-1))
    pairs = {"client-certificate-data": leaf.pem, "client-key-data": leaf.key_pem}
    user.update({key: base64.b64encode(pem.encode()).decode() for key, pem in pairs.items()}, token="nonsense")


def runs_a_program(_: dict[str, Any], user: dict[str, Any]) -> None:
    """A credential program that --allow-exec does not list."""
    user.clear()
    user["exec"] = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/true", "interactiveMode": "Never"}


KUBECONFIGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "missing: cannot be read: No such file"),
    "unreadable": (directory, "unreadable"),
    "empty": (lambda path: path.write_text(""), "empty"),
    "no-yaml": (lambda path: path.write_text("{"), "no-yaml"),
    "wrong-context": (lambda path: None, "nowhere"),
    "client-certificate-expired": (edited(expired_certificate), "expired"),
    "exec-not-allowed": (edited(runs_a_program), "--allow-exec"),
    "plain-http": (edited(lambda cluster, _: cluster.update(server="http://127.0.0.1:1")), "plain-http"),
}
"""Name -> what happens to the kubeconfig while the hub is stopped, and the problem that the hub reports."""


@pytest.mark.usefixtures("impatient")
async def test_kubeconfigs_and_servers_that_are_bad_from_the_start(world: World) -> None:
    """A hub that starts into these faults adopts its slices, names each problem, and serves the healthy cluster."""
    gone = ("dead", "server-certificate-expired")
    for name in (*KUBECONFIGS, *SERVERS, *gone):
        world.add(name)
    world.write()
    leaf = Authority("servers").server("127.0.0.1", lifetime=timedelta(days=-1))
    async with serving(world):
        async with running(world):
            await until(world.complete, 30, world.published)
        for name in gone:
            await world.sims[name].stop()
        for name, (begin, _) in SERVERS.items():
            begin(world.sims[name])
        for name, (spoil, _) in KUBECONFIGS.items():
            spoil(world.folder / name)
        world.entries["wrong-context"]["kubeconfig"] = {"path": "wrong-context", "context": "nowhere"}
        world.write()
        port = world.sims["server-certificate-expired"].url.rpartition(":")[2]
        async with serving_tls(int(port), leaf.pem, leaf.key_pem), running(world) as hub:
            says = {name: says for name, (_, says) in {**SERVERS, **KUBECONFIGS}.items()}
            says |= {"dead": "connection refused", "server-certificate-expired": "its certificate is not accepted"}
            says |= {"answers-429": "429", "login-page-for-watches": ""}
            await named(hub, says)
            assert [name for name in says if not problem(hub, name) and says[name]] == []
            world.grow(HEALTHY, "10.1.0.99")
            await until(world.complete, 5, world.published)
            assert world.lost == set()


@asynccontextmanager
async def serving_tls(port: int, certificate: str, key: str) -> AsyncIterator[None]:
    """A TLS server that presents this certificate and closes every connection."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as pem:
        pem.write(certificate + "\n" + key)
        pem.flush()
        context.load_cert_chain(pem.name)
    async with await asyncio.start_server(close, "127.0.0.1", port, ssl=context):
        yield


# --- nodes -----------------------------------------------------------------------------------------------------


async def test_nodes_with_bad_addresses(world: World) -> None:
    """Bad addresses are rejected with a reason; nodes with a good address are published, one per address."""
    odd = {
        "none": ("", "the Node has no InternalIP address"),
        "malformed": ("10.2.0.999", "'10.2.0.999'"),
        "zeros": ("010.002.000.007", "'010.002.000.007'"),
        "loopback": ("127.0.0.1", "127.0.0.1 loopback"),
        "link-local": ("169.254.1.1", "169.254.1.1 link-local"),
        "metadata": ("169.254.169.254", "169.254.169.254 cloud metadata"),
        "mapped": ("::ffff:10.2.0.5", "::ffff:10.2.0.5 IPv4-mapped"),
    }
    world.add("odd", nodes=1)
    for name, (address, _) in odd.items():
        world.sims["odd"].nodes.add(make_node(name, address))
    (good,) = world.addresses["odd"]
    world.sims["odd"].nodes.add(make_node("duplicate", good))
    world.write()
    async with serving(world), running(world) as hub:
        await until(world.complete, 20, world.published)
        (odd_source,) = inspected(hub, "odd")
        reports = odd_source.result.reports
        said = {name: report.message + "".join(map(" ".join, report.rejected)) for name, report in reports.items()}
        assert {name: said[name] for name, (_, reason) in odd.items() if reason not in said[name]} == {}
        assert [name for name in odd if reports[name].addresses] == []
        assert f"{good} is published for node" in said["n0"] + said["duplicate"]


@pytest.mark.parametrize(("per_slice", "slices"), [(100, 11), (1000, 2)])
async def test_more_endpoints_than_one_slice_may_hold(world: World, per_slice: int, slices: int) -> None:
    """All of 1,001 endpoints are published, in as few slices as possible."""
    world.add("large", nodes=1001)
    world.write(per_slice=per_slice)
    async with serving(world), running(world):
        await until(world.complete, 30, lambda: {name: len(found) for name, found in world.published().items()})
        found = [
            slice_ for slice_ in world.hub.slices.list() if slice_["endpoints"][0]["addresses"][0].startswith("10.2.")
        ]
        assert (len(found), max(len(slice_["endpoints"]) for slice_ in found)) == (slices, per_slice)


# --- inventories -----------------------------------------------------------------------------------------------

DOCUMENTS: dict[str, tuple[bytes, str]] = {
    "half-written": (json.dumps(RECORDS).encode()[:30], "not JSON"),
    "nothing-in-it": (b"", "not JSON"),
    "nan": (b'[{"name": NaN}]', "NaN"),
    "ten-megabytes": (b" " * (10 << 20), "larger than"),
    "half-a-record": (b'[{"name": "a"}]', "rejected"),
}
PROGRAMS: dict[str, tuple[str, str]] = {
    "hangs": ("sleep 60", "did not end within 1 s"),
    "floods": ("yes", "wrote more than"),
    "exits-1": ("exit 1", "ended with 1"),
    "prints-nothing": ("true", "printed nothing"),
}


async def test_inventories_that_go_bad(world: World) -> None:
    """The hub names a half-written file or a failing program, and removes no endpoint."""
    good = json.dumps(RECORDS)
    for name in (*DOCUMENTS, "byte-order-mark"):
        (world.folder / f"{name}.json").write_text(good)
        world.inventory(name, file=f"{name}.json")
    for name in PROGRAMS:
        path = world.folder / f"{name}.sh"
        path.write_text(f"#!/bin/sh\necho '{good}'\n")
        path.chmod(0o755)
        world.inventory(name, command=[str(path)], timeout="1s")
    world.write()
    allowed = frozenset(str(world.folder / f"{name}.sh") for name in PROGRAMS)
    async with serving(world), running(world, allow_exec=allowed) as hub:
        await until(world.complete, 20, world.published)
        for name, (content, _) in DOCUMENTS.items():
            (world.folder / f"{name}.json").write_bytes(content)
        two = [*RECORDS, {**RECORDS[0], "name": "b", "private_ip": "10.200.0.2"}]
        (world.folder / "byte-order-mark.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(two).encode())
        world.addresses["byte-order-mark"].add("10.200.0.2")
        for name, (body, _) in PROGRAMS.items():
            path = world.folder / f"{name}.new"
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
            path.rename(world.folder / f"{name}.sh")
        says = {name: says for name, (_, says) in {**DOCUMENTS, **PROGRAMS}.items()}
        await named(hub, says)
        assert all(name in problem(hub, name) for name in says)
        world.grow(HEALTHY, "10.1.0.99")
        await until(world.complete, 5, world.published)
        assert world.lost == set()
