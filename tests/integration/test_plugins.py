"""Third-party plugins: one that is built, installed and used as by its users, and many broken ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.apiserver.server import ApiServer
from tests.support.hub import ROOT, HubProcess, World, add_node, node
from tests.support.waiting import eventually
from tests.unit.observe.providers.plugins import GOOD, distribution


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Clusters eu and us with one Service each, ``payments`` and ``orders``."""
    made = World(tmp_path, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False))).prepare()
    made.add_service("payments")
    made.add_service("orders")
    return made


def register(world: World, **us: object) -> None:
    """Write a registry in which cluster us uses this provider."""
    services = [world.service("payments", "eu"), world.service("orders", "us")]
    world.write([world.cluster("eu"), world.cluster("us", provider=us)], services)


# a working plugin


class Environment:
    """A new virtual environment with the hub and the plugin; dependencies come from this process's environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "venv"
        self.python = str(self.folder / "bin" / "python")
        self._run(sys.executable, "-m", "venv", str(self.folder))
        [site] = self.folder.glob("lib/python*/site-packages")
        # Python searches folders in a .pth file, but does not read .pth files in them (those of editable installs).
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))

    def hub(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run ``hub`` in this environment and return its output."""
        return self._run(str(self.folder / "bin" / "hub"), *arguments, cwd=cwd)

    def run(self, *arguments: str, cwd: Path) -> str:
        """Run Python in this environment and return its output."""
        return self._run(self.python, *arguments, cwd=cwd)

    def build_and_install(self, project: Path, into: Path) -> None:
        """Build a project with its backend and install it with pip, both without an index."""
        code = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
        wheel = self._run(self.python, "-c", code, str(into), cwd=project).split()[-1]
        pip = ("-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", "--quiet")
        self._run(self.python, *pip, str(into / wheel))

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "VIRTUAL_"))}
        done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Cloud(ThreadingHTTPServer):
    """The API of acme: answers GET /servers with ``servers`` if the token is right."""

    def __init__(self, servers: Mapping[str, str]) -> None:
        self.servers = servers
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Cloud

    def do_GET(self) -> None:
        allowed = self.path == "/servers" and self.headers["Authorization"] == "Bearer t0ken"
        servers = [{"id": key, "address": value} for key, value in self.server.servers.items()]
        body = json.dumps(servers).encode() if allowed else b""
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """A cloud with two servers."""
    with Cloud({"s1": "10.8.0.1", "s2": "10.8.0.2"}) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the hub, its test kit, and each kind of plugin that ``hub plugin new`` generates."""
    folder = tmp_path_factory.mktemp("plugins")
    made = Environment(folder)
    made.build_and_install(ROOT, folder)
    made.build_and_install(ROOT / "testkit", folder)
    for name, options in {"acme": (), "acme-list": ("--endpoints",), "acme-cloud": ("--cloud",)}.items():
        made.hub("plugin", "new", name, *options, cwd=folder)
        made.build_and_install(folder / f"endpointslice-hub-{name}", folder)
    return made


def add_server(server: ApiServer, name: str, ident: str) -> None:
    """Create a Ready Node that names its server in acme."""
    server.api.post("/api/v1/nodes", {"metadata": {"name": name}, "spec": {"providerID": f"acme://{ident}"}})
    server.api.patch(f"/api/v1/nodes/{name}/status", {"status": node(name)["status"]})


def test_an_installed_plugin_is_listed_with_its_origin(environment: Environment) -> None:
    """``hub providers -v`` shows distribution, version, file, state and schema."""
    said = environment.hub("providers", "-v", "-o", "json")
    listed = {provider["name"]: provider for provider in json.loads(said)["providers"]}
    acme = listed["acme"]
    assert (acme["distribution"], acme["version"], acme["state"]) == ("endpointslice-hub-acme", "0.1.0", "ok")
    assert Path(acme["file"]).is_relative_to(environment.folder)
    assert set(acme["schema"]["properties"]) == {"apiUrl", "token", "refresh"}
    assert listed["acme-list"]["state"] == "ok"
    assert listed["acme-cloud"]["state"] == "ok"


def test_an_installed_cloud_passes_the_rules(environment: Environment, tmp_path: Path) -> None:
    """The wheel of ``hub plugin new --cloud`` passes the rules for clouds, with the hub and the kit installed, too."""
    written = environment.folder.parent / "endpointslice-hub-acme-cloud" / "tests"
    tests = shutil.copytree(written, tmp_path / "tests")  # without the sources beside them
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = tests\n")
    show = "import hub, hub_provider_acme_cloud, hub_testkit as kit; print(hub.__file__, kit.__file__)"
    said = environment.run("-c", f"{show}; print(hub_provider_acme_cloud.__file__)", cwd=tmp_path)
    assert [Path(path).is_relative_to(environment.folder) for path in said.split()] == [True, True, True]
    said = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), cwd=tmp_path)
    assert re.search(r"^21 passed", said, re.MULTILINE), said


@pytest.mark.parametrize("kind", ["acme", "acme-list"])
def test_a_plugin_from_elsewhere_publishes(
    world: World, environment: Environment, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A plugin that ``hub plugin new`` generates is built as a wheel, installed, and used by ``hub run``."""
    monkeypatch.setenv("ACME_TOKEN", "t0ken")
    token = {"env": "ACME_TOKEN"}
    config = {"apiUrl": f"http://127.0.0.1:{cloud.server_port}", "refresh": "1s", "token": token}
    register(world, name=kind, config=config)
    add_server(world.remotes["us"], "m1", "s1")
    add_server(world.remotes["us"], "m2", "s2")

    with HubProcess(world, "--allow-api-host", "127.0.0.1", python=environment.python, path=()) as hub:
        try:
            world.awaits("10.8.0.1", "10.8.0.2", service="orders", timeout=20)
            cloud.servers = {"s1": "10.8.0.1", "s2": "10.8.0.9"}
            world.awaits("10.8.0.1", "10.8.0.9", service="orders")
        except AssertionError as error:
            error.add_note(hub.log.read_text())
            raise
        assert hub.terminate()[0] == 0


# broken plugins


PREFIX = "\nimport asyncio, time\n"
ANSWER = "return {node.name: Found((node.addresses[0].address,)) for node in nodes}"
OPEN = "    yield Provider()"
HOOK = "return [NodeProviderType(name=NAME, open=open_provider, config=NoConfig)]"
SHARED = "@asynccontextmanager\nasync def shared(hub):\n    await asyncio.sleep(1e6)\n    yield\n\n@hookimpl"
TASK = (
    f"    async def work():\n        {{}}\n    task = asyncio.create_task(work())\n    await asyncio.sleep(0.1)\n{OPEN}"
)
RIGHT = GOOD.replace('return {node.name: Found(("10.0.0.1",)) for node in nodes}', ANSWER)


def changed(place: str, into: str) -> str:
    """The source of node-addresses with one replacement."""
    assert RIGHT.count(place) == 1
    return PREFIX + RIGHT.replace(place, into)


BROKEN: Mapping[str, tuple[str, str]] = {
    "import-fails": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "import-exits": ("raise SystemExit(0)", "importing plugin_hub_import_exits failed: SystemExit: 0"),
    "import-hangs": (
        f"import time; time.sleep(1e6)\n{RIGHT}",
        "importing plugin_hub_import_hangs did not end within 10 s",
    ),
    "hook-misspelt": (changed("def hub_register_providers", "def hub_register_provider"), "wrong hook: unknown hook"),
    "hook-hangs": (
        changed(HOOK, f"time.sleep(1e6); {HOOK}"),
        "importing plugin_hub_hook_hangs did not end within 10 s",
    ),
    "api-version": (changed(HOOK, HOOK.replace("open=", "api_version=99, open=")), "written for plugin API 99"),
    "open-exits": (changed(OPEN, f"    raise SystemExit(0)\n{OPEN}"), "raised SystemExit"),
    "open-hangs": (changed(OPEN, f"    await asyncio.sleep(1e6)\n{OPEN}"), ""),
    "shared-hangs": (changed("@hookimpl", SHARED).replace("NAME, open", "NAME, shared=shared, open"), ""),
    "resolve-exits": (changed(ANSWER, f"raise KeyboardInterrupt; {ANSWER}"), "raised KeyboardInterrupt"),
    "resolve-hangs": (changed(ANSWER, f"await asyncio.sleep(1e6); {ANSWER}"), ""),
    "resolve-floods": (changed(ANSWER, "return {f'x{n}': Found(('?',)) for n in range(100_000)}"), ""),
    "task-exits": (changed(OPEN, TASK.format("raise SystemExit(0)")), ""),
    "name-taken": (RIGHT, "several distributions provide it: hub-name-taken 1.2, second 1.2"),
}
"""Provider -> source of its plugin, and the expected text in the log; "" if only a deadline of 30 s shows the error."""

BLOCKING: Mapping[str, str] = {
    "resolve-blocks": changed(ANSWER, f"time.sleep(1e6); {ANSWER}"),
    "resolve-spins": changed(ANSWER, f"\n        while True: pass\n        {ANSWER}"),
    # longer than checks may be late on a busy machine, and too short for a new thread
    "resolve-blocks-a-little": changed(ANSWER, f"time.sleep(2); {ANSWER}"),
    "task-blocks": changed(OPEN, TASK.format("time.sleep(1e6)")),
}
"""Provider -> source of a plugin that blocks its event loop."""


def install(folder: Path, plugins: Mapping[str, str]) -> Path:
    """Write distributions of these plugins into a folder to import from."""
    (folder / "plugins").mkdir()
    for name, source in plugins.items():
        distribution(folder / "plugins", name, source)
        if name == "name-taken":
            distribution(folder / "plugins", name, source, dist="second")
    return folder / "plugins"


def slowest_change(world: World, first: int, seconds: float) -> float:
    """Add nodes to cluster eu for some seconds; returns the longest time until one was published."""
    slowest, end = 0.0, time.monotonic() + seconds
    wanted = world.published()
    for number in range(first, first + 100):
        add_node(world.remotes["eu"], f"n{number}", f"10.1.0.{number}")
        started = time.monotonic()
        wanted.append(f"10.1.0.{number}")
        world.awaits(*wanted)
        slowest = max(slowest, time.monotonic() - started)
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    return slowest


def test_broken_plugins_affect_only_their_clusters(world: World) -> None:
    """The log names each broken plugin; its cluster keeps its endpoints, and other clusters are not delayed."""
    plugins = install(world.folder, {name: source for name, (source, _) in BROKEN.items()})
    for name in BROKEN:
        world.add_service(name)

    def register_all(provider: str | None) -> None:
        broken = [
            world.cluster(f"us-{name}", kubeconfig={"path": "us"}, provider={"name": provider or name})
            for name in BROKEN
        ]
        services = [world.service(name, f"us-{name}") for name in BROKEN]
        world.write([world.cluster("eu"), *broken], [world.service("payments", "eu"), *services])

    register_all("node-addresses")
    add_node(world.remotes["eu"], "n1", "10.1.0.1")
    add_node(world.remotes["us"], "m1", "10.2.0.1")
    with HubProcess(world, path=(ROOT, plugins)) as hub:
        world.awaits("10.1.0.1", timeout=20)
        for name in BROKEN:
            world.awaits("10.2.0.1", service=name)
        register_all(None)
        assert slowest_change(world, 2, seconds=8) < 1.5, hub.log.read_text()
        for name, (_, says) in BROKEN.items():
            if says:
                eventually(lambda: said(hub, name, says), timeout=15)  # noqa: B023 - called before the next iteration
            assert world.published(name) == ["10.2.0.1"], name
        assert hub.terminate()[0] == 0


@pytest.mark.parametrize("name", BLOCKING)
def test_a_plugin_that_blocks_delays_no_other(world: World, name: str) -> None:
    """A plugin that blocks is named; its cluster keeps its endpoints, and other clusters are not delayed."""
    plugins = install(world.folder, {name: BLOCKING[name]})
    register(world, name="node-addresses")
    add_node(world.remotes["eu"], "n1", "10.1.0.1")
    add_node(world.remotes["us"], "m1", "10.2.0.1")
    with HubProcess(world, path=(ROOT, plugins)) as hub:
        world.awaits("10.1.0.1", timeout=20)
        world.awaits("10.2.0.1", service="orders")
        register(world, name=name)
        assert slowest_change(world, 2, seconds=4) < 1.5, hub.log.read_text()
        eventually(lambda: said(hub, name, "blocks its event loop ("))
        if name != "resolve-blocks-a-little":
            eventually(lambda: said(hub, name, "is started again in a new thread"), timeout=15)
            assert slowest_change(world, 102, seconds=1) < 1.5, hub.log.read_text()
        assert world.published("orders") == ["10.2.0.1"]
        assert hub.terminate()[0] == 0


def said(hub: HubProcess, provider: str, what: str) -> bool:
    """Whether the log has a text about a provider."""
    found = any(provider in line and what in line for line in hub.log.read_text().splitlines())
    assert found, f"nothing of {provider} and {what!r} in the log"
    return found
