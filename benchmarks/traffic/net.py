"""Network namespaces on a bridge, all in a user namespace of their own, so that traffic never leaves the machine.

The benchmark runs in the first network namespace, which has the bridge. Each node and each consumer has a namespace of
its own, kept open by a file descriptor of this process, so all of them disappear with it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

INSIDE = "HUB_TRAFFIC_INSIDE_NAMESPACE"
PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "nft": "nftables"}
"""The programs, and the Debian package of each."""
GATEWAY = "10.7.0.1"
CLONE_NEWNET = 0x40000000
ENTER = ("unshare", "--user", "--map-root-user", "--net")


class NetworkUnavailable(RuntimeError):
    """The network cannot be made here. The message names the culprit and the next step."""


def check() -> None:
    """Check that the network can be made.

    Raises:
        NetworkUnavailable: it cannot.
    """
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        packages = " ".join(sorted({PROGRAMS[name] for name in missing}))
        raise NetworkUnavailable(f"{' and '.join(missing)} not installed: run make deps, or apt-get install {packages}")
    rule = "nft add table ip probe && ip link add probe type bridge"
    tried = subprocess.run([*ENTER, "sh", "-c", rule], capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode != 0:
        said = " ".join(tried.stderr.split())[:200] or f"exit {tried.returncode}"
        raise NetworkUnavailable(f"a network namespace with a bridge and nftables cannot be made: {said}")


def enter(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the same program inside its own user and network namespace."""
    argv = [*ENTER, sys.executable, "-m", "benchmarks.traffic", *arguments]
    os.execvpe(argv[0], argv, {**os.environ, INSIDE: "1"})


class Host:
    """A namespace with one interface on the bridge.

    Attributes:
        path: the namespace, as a path that other processes can open.
    """

    def __init__(self, number: int, address: str) -> None:
        self.address = address
        self._closed = False
        self._port = f"port{number}"
        self._namespace = _new_namespace()
        self.path = f"/proc/{os.getpid()}/fd/{self._namespace}"
        _run(["ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.path])
        _run(["ip", "link", "set", self._port, "master", "bridge0", "up"])
        inside = (
            "link set lo up",
            f"addr add {address}/16 dev eth0",
            "link set eth0 up",
            f"route add default via {GATEWAY}",
        )
        self.run(["ip", "-batch", "-"], "\n".join(inside))

    def command(self, argv: Sequence[str]) -> list[str]:
        """A command that runs ``argv`` inside."""
        return ["nsenter", f"--net={self.path}", *argv]

    def run(self, argv: Sequence[str], text: str = "") -> str:
        """Run a short command inside, and return what it printed."""
        return _run(self.command(argv), text)

    def link(self, state: str) -> None:
        """Set the link ``up`` or ``down``, at the switch: the host itself notices nothing."""
        _run(["ip", "link", "set", self._port, state])

    def close(self) -> None:
        """Remove the interface, as if the machine were gone. A second call does nothing."""
        if not self._closed:
            self._closed = True
            _run(["ip", "link", "delete", self._port])
            os.close(self._namespace)


class Network:
    """The bridge, and the hosts on it. One at a time can exist in a namespace."""

    def __init__(self) -> None:
        lines = (
            "link set lo up",
            "link add bridge0 type bridge",
            f"addr add {GATEWAY}/16 dev bridge0",
            "link set bridge0 up",
        )
        _run(["ip", "-batch", "-"], "\n".join(lines))
        self._hosts: list[Host] = []

    def host(self, address: str) -> Host:
        """A new host with this address."""
        self._hosts.append(Host(len(self._hosts), address))
        return self._hosts[-1]

    def close(self) -> None:
        """Remove all hosts and the bridge."""
        for host in self._hosts:
            host.close()
        _run(["ip", "link", "delete", "bridge0"])


def _new_namespace() -> int:
    """Make a network namespace in a thread, which leaves this one, and return its descriptor."""
    made: list[int] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def make() -> None:
        if libc.unshare(CLONE_NEWNET) == 0:
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        else:
            made.append(-ctypes.get_errno())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made or made[0] < 0:
        raise NetworkUnavailable(
            f"a network namespace cannot be made: {os.strerror(-made[0]) if made else 'no thread'}"
        )
    return made[0]


def _run(argv: Sequence[str], text: str = "") -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise NetworkUnavailable(f"{' '.join(argv)}: {' '.join(done.stderr.split())[:300]}")
    return done.stdout
