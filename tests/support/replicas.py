"""Several ``hub run`` processes with a real API server, while nodes change.

Each process has its own account, so that the server's audit log tells them apart.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from tests.support.api import ApiRefused
from tests.support.hub import HUB_RULES, ROOT, World

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
DURATION = 4
"""Seconds of a Lease. No write starts in its last two seconds."""
SHORT = (
    *("--leader-elect-lease-duration", f"{DURATION}s", "--leader-elect-renew-deadline", "2s"),
    *("--leader-elect-retry-period", "300ms"),
)
LEAVES = "karpenter.sh/disrupted"
"""A taint that excludes a node at once."""


class Replica:
    """One ``hub run`` with its own account, which tests start, pause, resume, stop and kill."""

    def __init__(self, world: World, name: str, *arguments: str) -> None:
        self.name = name
        self.log = world.folder / f"{name}.log"
        self.paused = False
        kubeconfig = world.folder / f"{name}.kubeconfig"
        world.hub_cluster.grant(name, *HUB_RULES)
        world.hub_cluster.certificate_kubeconfig(kubeconfig, name)
        self._argv = [sys.executable, "-m", "hub", "run", "--registry", str(world.path)]
        self._argv += ["--kubeconfig", str(kubeconfig), "--health-probe-bind-address", "0", "--listen", "0", *arguments]
        self._folder = world.folder
        self._child: subprocess.Popen[bytes] | None = None
        self._said = 0

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> Self:
        """Start it, with its name as the name of its Pod."""
        with self.log.open("ab") as log:
            self._said = log.tell()
            env = {**os.environ, "PYTHONPATH": str(ROOT), "POD_NAME": self.name}
            self._child = subprocess.Popen(self._argv, stdout=log, stderr=log, cwd=self._folder, env=env)
        return self

    def send(self, number: int) -> None:
        """Send a signal."""
        assert self._child is not None
        self._child.send_signal(number)

    def pause(self) -> None:
        """Send SIGSTOP."""
        self.send(signal.SIGSTOP)
        self.paused = True

    def go_on(self) -> None:
        """Send SIGCONT."""
        self.send(signal.SIGCONT)
        self.paused = False

    def terminate(self) -> float:
        """Send SIGTERM; returns the seconds until the end. The exit code must be 0."""
        started = time.monotonic()
        self.send(signal.SIGTERM)
        assert self._child is not None
        code = self._child.wait(30)  # enough for a busy machine
        young = self.log.stat().st_size == self._said  # it may not have installed its signal handlers yet
        assert code == 0 or (young and code == -signal.SIGTERM), f"exit {code}: {self.log.read_text()}"
        return time.monotonic() - started

    def kill(self) -> None:
        """Send SIGKILL, which also ends a paused process."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(10)
        self.paused = False


def trouble(
    made: Mapping[str, Replica],
    rng: random.Random,
    seconds: float,
    longest: float,
    leader: Callable[[], Replica | None] = lambda: None,
) -> None:
    """Kill, pause, restart and terminate replicas at random for some seconds; at the end all of them run.

    A pause takes at most ``longest`` seconds. At least one replica always runs. ``leader`` is chosen more often than
    the others.
    """
    end = time.monotonic() + seconds
    due: list[tuple[float, Callable[[], object]]] = []
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.2, 1.2))
        for entry in [entry for entry in due if entry[0] <= time.monotonic()]:
            due.remove(entry)
            entry[1]()
        victims = [replica for replica in made.values() if replica.running and not replica.paused]
        if len(victims) < 2:
            continue
        victim = rng.choice([*victims, *filter(None, [leader()])])
        if not victim.running or victim.paused:
            continue
        again = time.monotonic() + rng.uniform(0.3, longest)
        act = rng.choice((victim.pause, victim.pause, victim.kill, victim.terminate))
        act()
        due.append((again, victim.go_on if act == victim.pause else victim.start))
    for _, repair in due:
        repair()


@dataclass
class Change:
    """Changes nodes n0, n1 and n2 of some clusters in a thread, so that there are always writes; a context manager."""

    world: World
    rng: random.Random
    clusters: tuple[str, ...] = ("eu",)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        servers = [self.world.remotes[name] for name in self.clusters]
        self._apis = [server.api_with(server.token()) for server in servers]
        self._thread = threading.Thread(target=self._run, name="change")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._stop.wait(self.rng.uniform(0.05, 0.25)):
            # At most three of six nodes, so that the guard withholds nothing.
            path = f"/api/v1/nodes/n{self.rng.randrange(3)}"
            taints = self.rng.choice(([], [{"key": LEAVES, "effect": "NoSchedule"}]))
            with suppress(ApiRefused):
                self.rng.choice(self._apis).patch(path, {"spec": {"taints": taints}})

    def wanted(self, cluster: str = "eu") -> list[str]:
        """The addresses of a cluster that must be published, after the last change."""
        nodes = self.world.remotes[cluster].api.list("/api/v1/nodes")
        return sorted(
            node["status"]["addresses"][0]["address"]
            for node in nodes
            if LEAVES not in [taint["key"] for taint in node["spec"].get("taints") or []]
        )
