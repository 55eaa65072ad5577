"""Cases of docs/security.md that need a whole hub: hostile remote clusters, hostile kubeconfigs, and the log.

The hub is the real one, on simulated clusters; the log is recorded at its lowest level.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import ssl
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_testkit import SimulatedCluster, make_node, make_service, make_slice

from hub.app.hub import Hub, Options, assemble
from hub.cli.logs import JsonFormatter, TextFormatter
from hub.kube.credentials import Credentials
from hub.kube.kubeconfig import KubeconfigPolicy, load_kubeconfig
from hub.runtime.clock import SystemClock
from tests.support import build
from tests.support.waiting import until

CANARY = "hunter2-hunter2-hunter2"
"""Every secret in here contains it."""
PEM = ssl.DER_cert_to_PEM_cert(CANARY.encode() * 9)
SERVICE_CIDR = "10.96.0.0/16"
API_SERVER, POD = "10.7.0.250", "10.7.0.251"
"""The hub cluster's own: within the allowedCIDRs of the remote cluster."""


class Log(logging.Handler):
    """All log lines, in both formats."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[str] = []
        self._formatters = (TextFormatter(), JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [each.format(record) for each in self._formatters]
        if record.exc_info:
            self.lines += traceback.format_exception(*record.exc_info)
        self.lines += [repr(each) for each in record.args or ()] if isinstance(record.args, tuple) else []

    @property
    def text(self) -> str:
        """All logged text."""
        return "\n".join(self.lines)


@pytest.fixture
def log() -> Iterator[Log]:
    """The log of this process at its lowest level, as with ``-v``, libraries included."""
    handler, root = Log(), logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)


class World:
    """A hub cluster, the remote cluster ``eu``, and a registry with the Service ``edge/payments``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.here, self.remote = SimulatedCluster("hub"), SimulatedCluster("eu")
        self.cluster: dict[str, Any] = {
            "name": "eu",
            "kubeconfig": {"path": "eu"},
            "allowedCIDRs": ["0.0.0.0/0", "::/0"],
            "provider": {"name": "node-addresses"},
        }
        self.more: list[dict[str, Any]] = []
        self.here.put(make_service("edge", "payments", ports=[{"port": 443}]))

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[Hub]:
        """Start the hub; an existing kubeconfig in the folder is kept."""
        async with AsyncExitStack() as stack:
            for each in (self.here, self.remote):
                await stack.enter_async_context(each)
            if not (self.folder / "eu").exists():
                self.remote.write_kubeconfig(self.folder / "eu")
            names = [{"cluster": each["name"]} for each in (self.cluster, *self.more)]
            service = {"name": "payments", "namespace": "edge", "sources": names, "ports": [{"port": 30443}]}
            registry = {"version": 1, "clusters": [self.cluster, *self.more], "services": [service]}
            self.path.write_text(json.dumps(registry))
            kubeconfig = str(self.here.write_kubeconfig(self.folder / "hub"))
            given = Options(str(self.path), kubeconfig, leader_elect=False, **options)
            hub = await stack.enter_async_context(assemble(given))
            stop = asyncio.Event()
            task = asyncio.create_task(hub.run(stop))
            try:
                yield hub
            finally:
                stop.set()
                await task

    def published(self) -> set[str]:
        """All addresses in slices of the namespace ``edge``."""
        return {
            address
            for slice_ in self.here.slices.list()
            if slice_["metadata"]["namespace"] == "edge"
            for endpoint in slice_["endpoints"] or ()
            for address in endpoint["addresses"]
        }

    @property
    def path(self) -> Path:
        """The registry file."""
        return self.folder / "clusters.yaml"

    def token(self) -> str:
        """The remote cluster's token."""
        return str(yaml.safe_load(self.remote.kubeconfig())["users"][0]["user"]["token"])

    def kubeconfig(self, user: Mapping[str, Any], **cluster: Any) -> str:
        """A kubeconfig of the remote cluster, with another user and other fields of the cluster."""
        document = yaml.safe_load(self.remote.kubeconfig())
        document["users"][0]["user"] = dict(user)
        document["clusters"][0]["cluster"] |= cluster
        return yaml.safe_dump(document)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world in which nothing runs yet."""
    (tmp_path / "hub").mkdir()
    return World(tmp_path / "hub")


def says(hub: Hub, words: str) -> Callable[[], bool]:
    """Whether the hub reports this problem of the cluster ``eu``."""
    return lambda: words in said(hub)


def said(hub: Hub) -> str:
    """The problem of the cluster ``eu``; "" if there is none, or the cluster is not known yet."""
    unit = hub.fleet.clusters.get("eu")
    return unit.status.error if unit is not None else ""


def problems(hub: Hub) -> str:
    """The problems of the source ``legacy``."""
    return "".join(each.problem for key, each in hub.fleet.sources.items() if key.cluster == "legacy")


# --- addresses -------------------------------------------------------------------------------------------


NEVER = (
    "127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "169.254.169.254", "169.254.7.7", "fe80::1", "fd00:ec2::254",
    "fd20:ce::254", "100.100.100.200", "168.63.129.16", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::",
    "64:ff9b::a9fe:a9fe", "2001:0:1::1", "224.0.0.1", "239.1.2.3", "ff02::1", "255.255.255.255", "240.0.0.1",
    "010.0.0.1", "0x7f.1", "2130706433", "10.0.0.1%eth0", "10.0.0.1/32", " 10.0.0.1", "metadata.google.internal", "",
)  # fmt: skip


async def test_forbidden_addresses_of_a_hostile_cluster_are_not_published(world: World) -> None:
    """Of nodes with one forbidden address each and an honest node, only the honest one is published."""
    for number, address in enumerate(NEVER):
        world.remote.nodes.add(make_node(f"bad{number}", address))
    world.remote.nodes.add(make_node("good", "10.0.0.1"))
    async with world.running():
        await until(lambda: bool(world.published()))
        world.remote.nodes.add(make_node("later", "10.0.0.2"))  # when it is there, so would the others be
        await until(lambda: "10.0.0.2" in world.published())
        assert world.published() == {"10.0.0.1", "10.0.0.2"}


async def test_a_hostile_cluster_publishes_nothing_of_the_hub_cluster_or_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub cluster's own addresses, another cluster's and those outside allowedCIDRs are not published."""
    monkeypatch.setenv("POD_IP", POD)
    world.here.put(make_slice("default", "kubernetes", "kubernetes", [API_SERVER]))
    other = SimulatedCluster("us")
    other.nodes.add(make_node("n1", "10.8.0.1"))
    world.cluster["allowedCIDRs"] = ["10.0.0.0/8"]
    world.remote.nodes.add(make_node("good", "10.7.0.1"))
    world.more = [
        {**world.cluster, "name": "us", "kubeconfig": {"path": "us"}, "allowedCIDRs": ["10.8.0.0/16"]},
    ]
    async with other:
        other.write_kubeconfig(world.folder / "us")
        async with world.running() as hub:
            await until(lambda: world.published() == {"10.7.0.1", "10.8.0.1"})
            # The simulator has no ServiceCIDR objects.
            cidrs = tuple((network, "in a Service CIDR") for network in build.networks(SERVICE_CIDR))
            hub.fleet.update(hub.registry, (*hub.own_networks.networks, *cidrs))
            for number, address in enumerate(("10.96.0.1", "10.8.0.1", "192.0.2.1", API_SERVER, POD)):
                world.remote.nodes.add(make_node(f"bad{number}", address))
            world.remote.nodes.add(make_node("later", "10.7.0.2"))
            await until(lambda: "10.7.0.2" in world.published())
            assert world.published() == {"10.7.0.1", "10.7.0.2", "10.8.0.1"}
            holders = {
                slice_["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"]
                for slice_ in world.here.slices.list()
                if "10.8.0.1" in str(slice_["endpoints"])
            }
            assert holders == {"us"}


# --- kubeconfigs from Secrets ----------------------------------------------------------------------------


def program(folder: Path) -> Path:
    """A program that creates a file when it runs."""
    made = folder / "login"
    made.write_text(f"#!/bin/sh\ntouch {folder}/it-ran\n")
    made.chmod(0o755)
    return made


READS = {
    "tokenFile": {"tokenFile": "{fifo}"},
    "client-certificate": {"client-certificate": "{fifo}", "client-key-data": "aGk="},
    "client-key": {"client-certificate-data": base64.b64encode(PEM.encode()).decode(), "client-key": "{fifo}"},
}


@pytest.mark.parametrize("what", ["exec", "certificate-authority", *READS])
async def test_a_kubeconfig_from_a_secret_runs_and_reads_nothing(world: World, what: str) -> None:
    """A kubeconfig from a Secret may not name programs or files, not even with --allow-exec.

    The file that it names is a pipe, so the test notices if a process opens it for reading.
    """
    fifo, login = world.folder / "pipe", program(world.folder)
    os.mkfifo(fifo)
    user: dict[str, Any] = {"token": CANARY}
    cluster: dict[str, Any] = {}
    if what == "exec":
        user = {
            "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(login), "interactiveMode": "Never"}
        }
    elif what == "certificate-authority":
        cluster = {what: str(fifo), "certificate-authority-data": None}
    else:
        user = {key: value.format(fifo=fifo) for key, value in READS[what].items()}
    world.cluster["kubeconfig"] = {"secret": "eu", "key": "kubeconfig"}
    async with world.remote:
        text = world.kubeconfig(user, **cluster)
    data = {"kubeconfig": base64.b64encode(text.encode()).decode()}
    world.here.put({"kind": "Secret", "metadata": {"name": "eu", "namespace": "default"}, "data": data})
    async with world.running(secrets_namespace="default") as hub:
        await until(says(hub, what))
        assert says(hub, "--allow-exec" if what == "exec" else "may not refer to files")()
        with pytest.raises(OSError, match="No such device"):  # nobody reads
            os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    assert not (world.folder / "it-ran").exists()


# --- what is logged --------------------------------------------------------------------------------------


USERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a token that is not accepted": ({"token": CANARY}, {}),
    "a token that no header takes": ({"token": f"{CANARY}\r\nX: y"}, {}),
    "basic authentication": ({"username": "admin", "password": CANARY}, {}),
    "a client key that is none": (
        {
            "client-certificate-data": base64.b64encode(PEM.encode()).decode(),
            "client-key-data": base64.b64encode(PEM.replace("CERTIFICATE", "PRIVATE KEY").encode()).decode(),
        },
        {},
    ),
    "a password in the URL": ({"token": CANARY}, {"server": f"https://admin:{CANARY}@127.0.0.1:1"}),
    "a bearer in the URL": ({"token": CANARY}, {"server": f"https://127.0.0.1:1/?access_token={CANARY}"}),
    "a proxy with a password": ({"token": CANARY}, {"proxy-url": f"http://x:{CANARY}@127.0.0.1:1"}),
    "a socks proxy with a password": ({"token": CANARY}, {"proxy-url": f"socks5://{CANARY}:{CANARY}@127.0.0.1:1"}),
    "a proxy's password with a slash": ({"token": CANARY}, {"proxy-url": f"http://x:{CANARY}/@127.0.0.1:1"}),
    "nobody who listens": ({"token": CANARY}, {"server": "https://127.0.0.1:1"}),
    "an authority that is none": (
        {"token": CANARY},
        {"certificate-authority-data": base64.b64encode(PEM.encode()).decode()},
    ),
    "a program that prints it": (
        {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "/bin/sh",
                "args": ["-c", f"echo token={CANARY}; echo password: {CANARY} >&2; exit 1"],
                "env": [{"name": "LOGIN_TOKEN", "value": CANARY}],
                "interactiveMode": "Never",
            }
        },
        {},
    ),
}


@pytest.mark.parametrize("case", USERS)
async def test_no_secret_is_logged_at_any_level(world: World, log: Log, case: str) -> None:
    """Failures are logged with all their details, but without credentials."""
    user, cluster = USERS[case]
    async with world.remote:
        (world.folder / "eu").write_text(world.kubeconfig(user, **cluster))
        world.remote.nodes.add(make_node("n1", "10.0.0.1"))
        async with world.running(allow_exec=frozenset({"/bin/sh"})) as hub:
            await until(lambda: bool(said(hub)))
            error = said(hub)
    assert CANARY not in error
    assert error in log.text  # it is this that was looked at
    assert CANARY not in log.text
    assert base64.b64encode(PEM.encode()).decode()[:60] not in log.text


async def test_a_good_token_is_not_logged_either(world: World, log: Log) -> None:
    """The log of a working hub contains no cluster's token, at the lowest level and with libraries."""
    world.remote.nodes.add(make_node("n1", "10.0.0.1"))
    async with world.running():
        await until(lambda: world.published() == {"10.0.0.1"})
    assert "10.0.0" in log.text or "published" in log.text
    assert world.remote.token not in log.text
    assert world.here.token not in log.text


# --- labels, Events, lines -------------------------------------------------------------------------------


HOSTILE = (
    "n\n2026-01-01T00:00:00.000Z INFO hub: all is well",
    "\x1b[2J\x1b[31m",
    "a" * 3_000,
    "\u202egnp.exe",
    "é\x00\x7f",
    "<b>",
)


async def test_names_of_a_hostile_cluster_reach_no_label_and_forge_no_line(world: World, log: Log) -> None:
    """Hostile node names and zones are accepted by the API, but get into no label and forge no log line."""
    from hub.kube import wire

    world.remote.nodes.add(make_node("good", "10.0.0.1"))
    world.remote.nodes.add(make_node("good2", "127.0.0.1"))  # a finding, and so an Event
    async with world.running() as hub:
        await until(lambda: world.published() == {"10.0.0.1"})
        store = hub.fleet.clusters["eu"]._store
        for number, text in enumerate(HOSTILE):  # as a hostile API server says it: the simulator is an honest one
            node = make_node("x", f"10.0.1.{number}", labels={"topology.kubernetes.io/zone": text})
            node["metadata"] |= {"name": text, "resourceVersion": str(10**6 + number)}
            event = wire.NODES.event(json.dumps({"type": "ADDED", "object": node}).encode())
            store.upsert(event.key, event.object, event.resource_version)
            bad = make_node("y", "127.0.0.1")
            bad["metadata"] |= {"name": text + "y", "resourceVersion": str(10**6 + number)}
            event = wire.NODES.event(json.dumps({"type": "ADDED", "object": bad}).encode())
            store.upsert(event.key, event.object, event.resource_version)
        await until(lambda: len(world.published()) == 1 + len(HOSTILE))
        logging.getLogger("hub.test").warning("a node called %s", HOSTILE[0])
    for each in world.here.slices.list():
        labels = each["metadata"]["labels"]
        assert not any(text in f"{key}={value}" for key, value in labels.items() for text in HOSTILE)
    for line in log.text.split("\n"):
        assert not line.startswith("2026-01-01T00:00:00.000Z INFO hub: all is well")
        assert "\x1b" not in line


async def test_service_labels_cannot_set_ownership_labels(world: World) -> None:
    """Labels of a Service cannot set the managed-by, source or owner label of its slices."""
    forged = {
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": "other",
        "multicluster.kubernetes.io/source-cluster": "us",
        "endpointslice-hub/owner": "other",
        "app": "payments",
    }
    world.here.put(make_service("edge", "payments", ports=[{"port": 443}], labels=forged))
    world.remote.nodes.add(make_node("n1", "10.0.0.1"))
    async with world.running():
        await until(lambda: world.published() == {"10.0.0.1"})
    [slice_] = world.here.slices.list()
    labels = slice_["metadata"]["labels"]
    assert {key: labels[key] for key in forged} == {
        "endpointslice.kubernetes.io/managed-by": "endpointslice-hub",
        "kubernetes.io/service-name": "payments",
        "multicluster.kubernetes.io/source-cluster": "eu",
        "endpointslice-hub/owner": "default",
        "app": "payments",
    }


# --- the registry's paths --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../outside.json", "/etc/hostname", "sub/../../outside.json", "link.json"])
async def test_an_inventory_outside_of_its_folders_is_not_read(world: World, path: str) -> None:
    """An inventory outside its folders, by path or by link, is refused with its name and not published."""
    records = [{"name": "x", "private_ip": "10.0.0.66", "ready": True, "worker": True}]
    (world.folder.parent / "outside.json").write_text(json.dumps(records))
    (world.folder / "link.json").symlink_to(world.folder.parent / "outside.json")
    (world.folder / "sub").mkdir()
    world.remote.nodes.add(make_node("n1", "10.0.0.1"))
    legacy = {
        "name": "legacy",
        "allowedCIDRs": ["0.0.0.0/0"],
        "provider": {"name": "inventory", "config": {"file": path}},
    }
    world.more = [legacy]
    async with world.running() as hub:
        await until(lambda: "outside" in problems(hub))
        assert Path(path).name in problems(hub)
        await until(lambda: bool(world.published()))
        assert world.published() == {"10.0.0.1"}


KUBECONFIG_PATHS = ["../outside/eu", "/etc/passwd", "sub/../../outside/eu", "link"]


@pytest.mark.parametrize("path", KUBECONFIG_PATHS)
async def test_a_kubeconfig_outside_of_its_folders_is_not_read(world: World, path: str) -> None:
    """A kubeconfig.path that leads out of the registry's folder is refused, with line, key, folder and flag."""
    await kubeconfig_outside(world)
    world.cluster["kubeconfig"] = {"path": path}
    async with world.running() as hub:
        await until(says(hub, f"clusters[0].kubeconfig.path: {path} lies outside {world.folder}; "))
        assert f"{world.path}:1:" in said(hub)
        assert "--credentials-dir" in said(hub)
        assert world.published() == set()


@pytest.mark.parametrize("path", [path for path in KUBECONFIG_PATHS if "passwd" not in path])
async def test_a_kubeconfig_in_the_credentials_dir_is_read(world: World, path: str) -> None:
    """A kubeconfig may be in the folder of --credentials-dir as well as in the registry's folder."""
    folder = await kubeconfig_outside(world)
    world.cluster["kubeconfig"] = {"path": path}
    async with world.running(credentials_dir=str(folder)):
        await until(lambda: world.published() == {"10.0.0.1"})


async def kubeconfig_outside(world: World) -> Path:
    """The folder of a working kubeconfig outside the registry's folder."""
    folder = world.folder.parent / "outside"
    folder.mkdir()
    async with world.remote:
        world.remote.write_kubeconfig(folder / "eu")
    (world.folder / "link").symlink_to(folder / "eu")
    (world.folder / "sub").mkdir()
    world.remote.nodes.add(make_node("n1", "10.0.0.1"))
    return folder


@pytest.mark.parametrize("key", ["tokenFile", "client-certificate", "client-key", "certificate-authority"])
@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "link"])
async def test_a_kubeconfig_reads_no_file_outside_of_its_folders(world: World, key: str, path: str) -> None:
    """A file that a kubeconfig names must also be in the registry's folder or in --credentials-dir."""
    outside, inside = world.folder.parent / "outside", world.folder / "inside"
    for file in (outside, inside):
        file.write_text("content")
    (world.folder / "link").symlink_to(outside)
    pair = {"client-certificate": str(inside), "client-key": str(inside)}
    users = {"tokenFile": {key: path}, "certificate-authority": {"token": "t"}}
    more = {key: path, "certificate-authority-data": None} if key == "certificate-authority" else {}
    async with world.remote:
        (world.folder / "eu").write_text(world.kubeconfig(users.get(key, pair | {key: path}), **more))
    async with world.running() as hub:
        await until(says(hub, f": {key}: {path} lies outside {world.folder}; "))
        assert f"kubeconfig {world.folder}/eu:" in said(hub)
        assert "--credentials-dir" in said(hub)


async def test_a_token_file_that_becomes_a_link_to_elsewhere_is_not_read(world: World) -> None:
    """The location of a kubeconfig's files is checked at every read, not only when the kubeconfig is read."""
    outside, inside = world.folder.parent / "outside", world.folder / "token"
    outside.write_text("another-token")
    async with world.remote:
        inside.write_text(world.token())
        (world.folder / "eu").write_text(world.kubeconfig({"tokenFile": "token"}))
        access = load_kubeconfig(world.folder / "eu", policy=KubeconfigPolicy(folders=(world.folder,)))
        credentials = Credentials(access, SystemClock())
        before = await credentials.headers()
        inside.unlink()
        inside.symlink_to(outside)
        assert await credentials.reload() is False
        assert await credentials.headers() == before


async def test_a_kubeconfig_in_a_mounted_config_map_is_read(world: World) -> None:
    """Links through ..data stay inside the folder, so a mounted kubeconfig and its token are read."""
    version = world.folder / "..2026_01_01"
    version.mkdir()
    async with world.remote:
        (version / "token").write_text(world.token())
        (version / "eu").write_text(world.kubeconfig({"tokenFile": "token"}))
    (world.folder / "..data").symlink_to(version.name)
    for name in ("eu", "token"):
        (world.folder / name).symlink_to(f"..data/{name}")
    world.remote.nodes.add(make_node("n1", "10.0.0.1"))
    async with world.running():
        await until(lambda: world.published() == {"10.0.0.1"})
