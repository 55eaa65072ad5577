"""docs/tutorial.md, done as it says: its files, its commands, its outputs. API servers stand in for kind's clusters."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.apiserver.server import ApiServer
from tests.support.hub import ROOT, World, node
from tests.support.waiting import eventually

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.compile(r"^```(sh|yaml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who follows the page from its top, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blocks: Iterator[tuple[str, str]] = iter(BLOCKS.findall(PAGE))
        self._running: subprocess.Popen[bytes] | None = None

    def next(self, kind: str) -> str:
        """The next block of the page, which must be of this kind."""
        found, text = next(self._blocks)
        assert found == kind
        return text

    def commands(self) -> list[str]:
        """The lines of the next block of commands."""
        return self.next("sh").splitlines()

    def hub(self, line: str, code: int = 0) -> str:
        """Run a command of the page; what it prints."""
        done = subprocess.run(
            self._argv(line), cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(self, line: str) -> None:
        """Start the command that does not end."""
        argv = [*self._argv(line), "--health-probe-bind-address", "0", "--listen", "0"]
        self._running = subprocess.Popen(argv, cwd=self.folder, env=self._environment(), stderr=subprocess.DEVNULL)

    def interrupt(self) -> int:
        """Ctrl-C."""
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        return self._running.wait(20)

    def close(self) -> None:
        """Leave nothing running."""
        if self._running is not None and self._running.poll() is None:
            self._running.kill()
            self._running.wait(10)

    @staticmethod
    def _argv(line: str) -> list[str]:
        program, *arguments = shlex.split(line)
        assert program == "hub"
        return [sys.executable, "-m", "hub", *arguments]

    @staticmethod
    def _environment() -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": "/nosuch", "COLUMNS": "120"}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Before the first line."""
    made = Reader(tmp_path)
    yield made
    made.close()


def test_the_tutorial_works(reader: Reader, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> None:
    """Every file and every `hub` command of the page, in its order, with the exit codes and the outputs it shows."""
    world = World(reader.folder, hub_cluster, dict(zip(("eu", "us"), remote_clusters, strict=False)))

    clusters = reader.commands()
    assert "kind create cluster --name eu --config remote.yaml" in clusters
    (reader.folder / "kubeconfigs").mkdir()
    for name, server in {"hub": hub_cluster, **world.remotes}.items():
        server.kubeconfig(reader.folder / "kubeconfigs" / name)
    for third, (name, server) in enumerate(world.remotes.items()):
        for number, role in enumerate(("control-plane", "worker", "worker2")):
            labels = {"node-role.kubernetes.io/control-plane": ""} if role == "control-plane" else {}
            body = node(f"{name}-{role}", f"172.18.{third}.{number + 2}", labels=labels)
            server.api.post("/api/v1/nodes", {"metadata": body["metadata"]})
            server.api.patch(f"/api/v1/nodes/{name}-{role}/status", {"status": body["status"]})
    assert reader.commands() == ["pip install . ./providers/node-addresses"]

    _, service = yaml.safe_load_all(reader.next("yaml"))  # the namespace edge is there
    hub_cluster.api.post("/api/v1/namespaces/edge/services", service)
    assert len(reader.commands()) == 1
    (reader.folder / "clusters.yaml").write_text(reader.next("yaml"))
    check, online, plan = reader.commands()
    reader.hub(check)
    reader.hub(online)
    shows(reader.next("text"), reader.hub(plan, code=1))
    assert world.slices() == []

    [run] = reader.commands()
    reader.run(run)
    world.awaits("172.18.0.3", "172.18.0.4", timeout=20)
    status, nodes = reader.commands()
    reader.hub(status)
    shows(reader.next("text"), reader.hub(nodes))

    (reader.folder / "clusters.yaml").write_text(reader.next("yaml"))
    everything = ("172.18.0.3", "172.18.0.4", "172.18.1.3", "172.18.1.4")
    world.awaits(*everything, timeout=20)
    [why] = reader.commands()
    [words] = re.findall(r"^Its first line says `(.*?)`", PAGE, re.MULTILINE)
    assert words in reader.hub(why).splitlines()[1]  # below the names of the columns
    assert len(world.slices()) == 2

    stop, status = reader.commands()
    assert stop == "docker stop us-control-plane"
    world.remotes["us"].kill()
    reader.hub(status, code=2)
    assert world.published() == sorted(everything)
    world.remotes["us"].ensure_running()

    assert reader.interrupt() == 0
    assert world.published() == sorted(everything)
    [purge] = reader.commands()
    reader.hub(purge)
    eventually(lambda: world.slices() == [])
    assert list(BLOCKS.findall(PAGE))[-1][1].strip() == purge


def shows(expected: str, printed: str) -> None:
    """Every line that the page shows is printed, whatever the width of the columns."""
    words = [line.split() for line in printed.splitlines()]
    assert [line for line in expected.splitlines() if line.split() not in words] == [], printed
