"""Type checkers refuse a provider type whose ``open`` does not fit, where the type is declared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

DECLARATIONS = """
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
from pydantic import BaseModel

from hub.plugin import (
    ClusterContext,
    EndpointProviderType,
    HubContext,
    NoConfig,
    Node,
    NodeProviderType,
    ProviderType,
    Resolution,
    Snapshot,
)


class Config(BaseModel):
    refresh: float = 30.0


class Other(msgspec.Struct, frozen=True):
    token: str = ""


class Cloud: ...


class Nodes:
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        return {}


class WrongAnswer:
    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, str]:
        return {}


class Endpoints:
    async def watch(self, /) -> AsyncIterator[Snapshot]:
        yield Snapshot(())


@asynccontextmanager
async def nodes(cluster: ClusterContext, config: Config, _shared: None, /) -> AsyncGenerator[Nodes, None]:
    yield Nodes()


@asynccontextmanager
async def plain(cluster: ClusterContext, _config: NoConfig, _shared: None, /) -> AsyncGenerator[Nodes, None]:
    yield Nodes()


@asynccontextmanager
async def sharing(cluster: ClusterContext, config: Config, shared: Cloud, /) -> AsyncGenerator[Nodes, None]:
    yield Nodes()


@asynccontextmanager
async def wrong(cluster: ClusterContext, config: Config, _shared: None, /) -> AsyncGenerator[WrongAnswer, None]:
    yield WrongAnswer()


@asynccontextmanager
async def endpoints(cluster: ClusterContext, config: Config, _shared: None, /) -> AsyncGenerator[Endpoints, None]:
    yield Endpoints()


@asynccontextmanager
async def cloud(hub: HubContext, /) -> AsyncGenerator[Cloud, None]:
    yield Cloud()


def refresh(config: Config) -> float:
    return config.refresh


def token(config: Other) -> str:
    return config.token


def right() -> Iterable[ProviderType]:
    yield NodeProviderType("a", nodes, Config)
    yield NodeProviderType("b", plain, NoConfig)
    yield NodeProviderType(name="c", open=sharing, config=Config, shared=cloud, poll_interval=refresh)
    yield EndpointProviderType("d", endpoints, Config, poll_interval=15.0)
"""

WRONG = {
    "another configuration": 'NodeProviderType("x", nodes, Other)',
    "no configuration": 'NodeProviderType("x", nodes, NoConfig)',
    "endpoints as nodes": 'NodeProviderType("x", endpoints, Config)',
    "nodes as endpoints": 'EndpointProviderType("x", nodes, Config)',
    "a provider that answers something else": 'NodeProviderType("x", wrong, Config)',
    "wants something shared": 'NodeProviderType("x", sharing, Config)',
    "gets something shared": 'NodeProviderType("x", nodes, Config, shared=cloud)',
    "an interval of another configuration": 'NodeProviderType("x", plain, NoConfig, poll_interval=refresh)',
    "a scope of another configuration": 'NodeProviderType("x", nodes, Config, scope=token)',
}
"""Mistake -> its source text."""


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """A module with valid declarations and one of each mistake, and the mistakes by line."""
    module = tmp_path_factory.mktemp("types") / "declared.py"
    lines = ["from __future__ import annotations", *DECLARATIONS.splitlines(), "", "", "WRONG = ("]
    mistakes = {}
    for mistake, written in WRONG.items():
        lines.append(f"    {written},")
        mistakes[len(lines)] = mistake
    module.write_text("\n".join([*lines, ")", ""]))
    return module, mistakes


def test_pyright_refuses_every_wrong_open(declared: tuple[Path, dict[int, str]]) -> None:
    """In strict mode, exactly the wrong declarations are refused."""
    module, mistakes = declared
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": [module.name]}
    (module.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(module.parent)]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    found = {issue["range"]["start"]["line"] + 1 for issue in json.loads(done.stdout)["generalDiagnostics"]}
    assert {mistakes.get(line, f"line {line}") for line in found} == set(WRONG)


def test_mypy_refuses_every_wrong_open(declared: tuple[Path, dict[int, str]]) -> None:
    """In strict mode, exactly the wrong declarations are refused."""
    module, mistakes = declared
    command = [
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--no-error-summary",
        "--cache-dir",
        ".cache",
        module.name,
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=module.parent,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert {mistakes.get(line, f"line {line}") for line in found} == set(WRONG), done.stdout + done.stderr
