"""Tests of the inventory provider: polling static lists, files and programs."""

from __future__ import annotations

import asyncio
import json
import stat
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import hub_provider_inventory
import pytest
from hub_provider_inventory import Inventory, InventoryConfig
from hub_testkit.conformance import ProviderConformance
from hub_testkit.contexts import LocalCluster, LocalHub
from pydantic import ValidationError

from hub.plugin import Snapshot, TerminalProviderError, TransientProviderError

RECORDS = [
    {"name": "a", "private_ip": "10.9.0.1", "ready": True, "worker": True},
    {"name": "b", "private_ip": "10.9.0.2", "ready": True, "worker": True, "ips": ["10.9.1.2", "fd00::2"]},
]
PRINT_ONE = """printf '[{"name": "%s", "private_ip": "10.9.0.1", "ready": true, "worker": true}]'"""


class FastClock:
    """A clock whose sleeps return at once; ``slept`` lists their lengths in seconds."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def script(folder: Path, body: str) -> str:
    """Writes an executable shell script and returns its path."""
    path = folder / "inventory.sh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@asynccontextmanager
async def opened(folder: Path, clock: FastClock | None = None, **config: Any) -> AsyncGenerator[Inventory, None]:
    """Opens the provider as the hub does; the configured program is allowed."""
    parsed = InventoryConfig.model_validate(config)
    allowed = frozenset(parsed.command[:1] if parsed.command else ())
    async with LocalHub(allow_exec=allowed, clock=clock) as hub:
        cluster = LocalCluster(hub, folder=str(folder))
        async with hub_provider_inventory.open_provider(cluster, parsed, None) as provider:
            yield provider


async def first(provider: Inventory) -> Snapshot:
    """Returns the first snapshot of a watch."""
    async for snapshot in provider.watch():
        return snapshot
    raise AssertionError


async def names(folder: Path, **config: Any) -> list[str]:
    """Returns the names of the endpoints in the first snapshot."""
    async with opened(folder, **config) as provider:
        return [endpoint.name for endpoint in (await first(provider)).endpoints]


async def failure(folder: Path, **config: Any) -> TransientProviderError:
    """Returns the error that a watch raises instead of its first snapshot."""
    async with opened(folder, **config) as provider:
        with pytest.raises(TransientProviderError) as caught:
            await first(provider)
        return caught.value


async def test_static_records(tmp_path: Path) -> None:
    """Records written in the registry become endpoints."""
    assert await names(tmp_path, static=RECORDS) == ["a", "b"]


async def test_a_file_is_read_again_at_every_poll(tmp_path: Path) -> None:
    """Each poll yields a snapshot, changed or not, and polls are about an interval apart."""
    path = tmp_path / "legacy.json"
    path.write_text(json.dumps(RECORDS))
    clock = FastClock()
    async with opened(tmp_path, clock, file="legacy.json", interval="20s") as provider:
        seen: list[list[str]] = []
        async for snapshot in provider.watch():
            seen.append([endpoint.name for endpoint in snapshot.endpoints])
            if len(seen) == 2:
                path.write_text(json.dumps(RECORDS[:1]))
            if len(seen) == 3:
                break
    assert seen == [["a", "b"], ["a", "b"], ["a"]]
    assert all(18 <= seconds <= 22 for seconds in clock.slept)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps(RECORDS).encode()[:40], "legacy.json: not JSON at line 1"),
        (b"", "legacy.json: not JSON at line 1"),
        (b'[{"name": NaN}]', "legacy.json: not JSON: NaN is not allowed"),
        (b" " * (10 << 20), "larger than 4194304 bytes"),
        (b'[{"name": "a", "private_ip": "10.9.0.1"}]', "all 1 records are rejected; record 0 ('a'): ready is missing"),
    ],
)
async def test_a_bad_file_is_an_error_and_asked_for_again_after_the_interval(
    tmp_path: Path, content: bytes, says: str
) -> None:
    """The error for a half-written, empty, oversized or useless file names it; the retry comes an interval later."""
    (tmp_path / "legacy.json").write_bytes(content)
    error = await failure(tmp_path, file="legacy.json", interval="20s")
    assert says in str(error)
    assert "legacy.json" in str(error)
    assert error.retry_after == 20


async def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """A missing file is a transient error, because it may appear later."""
    assert "gone.json: No such file" in str(await failure(tmp_path, file="gone.json"))


async def test_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    """A registry cannot make the hub read files outside the allowed folders."""
    async with opened(tmp_path, file="/etc/passwd") as provider:
        with pytest.raises(TerminalProviderError, match="outside"):
            await first(provider)


async def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    """A byte order mark, as some editors write it, is skipped."""
    (tmp_path / "legacy.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(RECORDS).encode())
    assert await names(tmp_path, file="legacy.json") == ["a", "b"]


async def test_a_program_prints_the_inventory(tmp_path: Path) -> None:
    """The program gets its arguments unchanged, without a shell that would expand them."""
    program = script(
        tmp_path, 'printf \'[{"name": "%s", "private_ip": "10.9.0.1", "ready": true, "worker": true}]\' "$1"'
    )
    assert await names(tmp_path, command=[program, "a $(b) c"]) == ["a $(b) c"]


async def test_a_program_sees_only_the_environment_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program inherits only the variables listed in ``environment``, and no other secret of the hub."""
    monkeypatch.setenv("HUB_SECRET", "hunter2")
    monkeypatch.setenv("SITE", "eu")
    program = script(
        tmp_path,
        f'{PRINT_ONE} "${{HUB_SECRET:-none}}-$SITE"',
    )
    assert await names(tmp_path, command=[program], environment=["SITE", "NOT_SET"]) == ["none-eu"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("exit 1", "inventory.sh ended with 1"),
        ("echo 'no route to host' >&2; exit 3", "inventory.sh ended with 3: no route to host"),
        ("echo 'token=hunter2' >&2; exit 3", "inventory.sh ended with 3: token=***"),
        ("echo '[]'; exit 1", "inventory.sh ended with 1"),
        ("kill -9 $$", "inventory.sh ended with -9"),
        ("true", "inventory.sh printed nothing"),
        ("echo oops >&2", "inventory.sh printed nothing"),
        ("echo '[{'", "inventory.sh: not JSON"),
        ("sleep 60", "did not end within 1 s"),
        ("sleep 60 & wait", "did not end within 1 s"),
        ("yes", "wrote more than 4194304 bytes"),
        ("yes >&2", "wrote more than 4096 bytes"),
    ],
)
async def test_a_program_that_fails_is_an_error(tmp_path: Path, body: str, says: str) -> None:
    """A program that fails, is killed, prints nothing, prints no JSON, hangs or floods is an error that names it."""
    error = await failure(tmp_path, command=[script(tmp_path, body)], timeout="1s", interval="30s")
    assert says in str(error)
    assert str(tmp_path) in str(error)
    assert error.retry_after == 30


async def test_a_program_needs_a_flag(tmp_path: Path) -> None:
    """A program that --allow-exec does not name is refused on opening, before it runs."""
    async with LocalHub() as hub:
        config = InventoryConfig(command=(script(tmp_path, "echo '[]'"),))
        with pytest.raises(TerminalProviderError, match="--allow-exec"):
            async with hub_provider_inventory.open_provider(LocalCluster(hub), config, None):
                pass


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"file": "a", "static": []},
        {"file": "a", "command": ["b"]},
        {"command": []},
        {"command": "echo []"},
        {"command": [1]},
        {"file": ""},
        {"file": "a\0b"},
        {"static": {}},
        {"file": "a", "interval": "100ms"},
        {"file": "a", "interval": 15},
        {"file": "a", "interval": "25h"},
        {"command": ["a"], "timeout": "1m"},
        {"file": "a", "environment": ["HOME"]},
        {"path": "a"},
    ],
)
def test_wrong_configuration_is_refused(config: dict[str, Any]) -> None:
    """The configuration needs exactly one source, a program as a list, and durations with units and within bounds."""
    with pytest.raises(ValidationError):
        InventoryConfig.model_validate(config)


class TestConformanceOfAFile(ProviderConformance):
    """The provider follows the rules of the plugin API when it reads a file."""

    plugin = hub_provider_inventory
    name = "inventory"
    config = {"file": "/nowhere/inventory.json"}
    addresses = {"a": ("10.9.0.1",), "b": ("10.9.0.2", "10.9.1.2", "fd00::2")}

    def _folder(self, content: str) -> tempfile.TemporaryDirectory[str]:
        folder = tempfile.TemporaryDirectory()
        Path(folder.name, "inventory.json").write_text(content)
        return folder

    @asynccontextmanager
    async def surroundings(self) -> AsyncGenerator[Mapping[str, Any], None]:
        with self._folder(json.dumps(RECORDS)) as folder:
            yield {"file": f"{folder}/inventory.json", "interval": "1s"}

    @asynccontextmanager
    async def breakage(self) -> AsyncGenerator[Mapping[str, Any], None]:
        with self._folder("[{") as folder:
            yield {"file": f"{folder}/inventory.json"}


class TestConformanceOfAProgram(ProviderConformance):
    """The provider follows the rules of the plugin API when it runs a program."""

    plugin = hub_provider_inventory
    name = "inventory"
    config = {"command": ["/bin/echo", json.dumps(RECORDS)]}

    def hub(self) -> LocalHub:
        return LocalHub(allow_exec=frozenset({"/bin/echo", "/bin/false"}))

    @asynccontextmanager
    async def breakage(self) -> AsyncGenerator[Mapping[str, Any], None]:
        yield {"command": ["/bin/false"]}
