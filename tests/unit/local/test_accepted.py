"""The last accepted registry: how it is packed, whose it is, when it is written."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import random
from typing import Any, cast

import pytest

from hub.aio.clock import SystemClock
from hub.errors import BadAnswer, Conflict, Forbidden, NotFound
from hub.kube.client import Client
from hub.local.accepted import LEGIBLE, PACKED, PLAIN, Keeper, owner_in, packed, read
from hub.registry.file import MAX_BYTES

CONTENT = b"version: 1\nowner: default  # \xc3\xa4\n"
PATH = "/api/v1/namespaces/ops/configmaps"


class Api:
    """One ConfigMap, or none."""

    def __init__(self, stored: dict[str, Any] | None = None) -> None:
        self.stored = stored
        self.writes: list[str] = []
        self.errors: list[Exception] = []

    async def request(self, method: str, path: str, *, body: bytes = b"", admit: Any = None, **_: Any) -> bytes:
        if admit is not None:
            admit()
        if method != "GET":
            self.writes.append(f"{method} {path}")
            if self.errors:
                raise self.errors.pop(0)
            self.stored = json.loads(body)
        if self.stored is None:
            raise NotFound(404)
        return json.dumps(self.stored).encode()


class Hasty(SystemClock):
    """Pauses are over at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def keeper(api: Api) -> Keeper:
    """Of the owner default in the namespace ops, in a process that leads."""
    return Keeper(cast("Client", api), Hasty(), "ops", "default", lambda: True)


async def run(each: Keeper, api: Api, writes: int) -> None:
    """Let it work until there were so many writes, and long enough for another one that should not be."""
    task = asyncio.create_task(each.run())
    async with asyncio.timeout(10):
        while len(api.writes) < writes:  # noqa: ASYNC110 - a thread packs meanwhile
            await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("content", "owner"),
    [
        ("owner: team-a\n", "team-a"),
        ("version: [\nowner: 'team.a'   # ours\r\nclusters: {", "team.a"),
        ('owner: "x"\n', "x"),
        ("  owner: nested\n", ""),
        ("# owner: comment\n", ""),
        ("owner: a\nowner: b\n", ""),
        ("owner: two words\n", ""),
        ("owner: ../../x\n", ""),
        ("owner: -\n", ""),
        (f"owner: {'a' * 64}\n", ""),
        ("owner:\n", ""),
        ("", ""),
    ],
)
def test_the_owner_of_a_file_that_cannot_be_read(content: str, owner: str) -> None:
    """One top-level line says it; anything doubtful says nothing."""
    assert owner_in(content.encode()) == owner


def test_the_owner_of_no_text_at_all() -> None:
    """Bytes that are no UTF-8 stop nothing."""
    assert owner_in(b"\xff\xfe\nowner: a\n\x00") == "a"


async def test_content_is_read_back_as_it_was() -> None:
    """Legible, packed, or refused because it does not fit."""
    for content in (CONTENT, CONTENT + b"# x\n" * LEGIBLE):
        body = packed(content)
        assert body is not None
        kept = await read(cast("Client", Api({"metadata": {}, **body})), "ops", "default")
        assert kept.content == content
    assert packed(random.Random(1).randbytes(1_100_000)) is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": {"other": "x"}},
        {"data": {PLAIN: ""}},
        {"binaryData": {PACKED: "no base64!"}},
        {"binaryData": {PACKED: base64.b64encode(b"no gzip").decode()}},
        {"binaryData": {PACKED: base64.b64encode(gzip.compress(CONTENT)[:-9]).decode()}},
        {"binaryData": {PACKED: base64.b64encode(gzip.compress(b"0" * (MAX_BYTES + 1))).decode()}},
        {"data": {PLAIN: "x" * (MAX_BYTES + 1)}},
    ],
    ids=["empty", "other key", "no text", "no base64", "no gzip", "cut short", "bomb", "too large"],
)
async def test_what_is_no_registry_is_refused(body: dict[str, Any]) -> None:
    """Somebody changed it: it is an error that names the ConfigMap, and no bomb."""
    with pytest.raises(BadAnswer, match="endpointslice-hub-registry-default"):
        await read(cast("Client", Api({"metadata": {}, **body})), "ops", "default")


async def test_it_is_written_once() -> None:
    """Created, then replaced with the version it was read with; the same content again is no write."""
    api = Api()
    for content, writes in ((CONTENT, 1), (CONTENT, 1), (CONTENT + b"# more\n", 2)):
        each = keeper(api)
        each.accepted(content)
        await run(each, api, writes)
        assert len(api.writes) == writes
        assert api.stored is not None
        api.stored["metadata"]["resourceVersion"] = "7"
    assert api.writes == [f"POST {PATH}", f"PUT {PATH}/endpointslice-hub-registry-default"]


async def test_garbage_is_replaced() -> None:
    """What is kept and cannot be read does not stay for that."""
    api = Api({"metadata": {"resourceVersion": "7"}, "binaryData": {PACKED: "no base64!"}})
    each = keeper(api)
    each.accepted(CONTENT)
    await run(each, api, 1)
    assert api.stored is not None
    assert api.stored["data"] == {PLAIN: CONTENT.decode()}
    assert api.stored["metadata"]["resourceVersion"] == "7"


async def test_a_standby_writes_nothing_until_it_leads() -> None:
    """Then it keeps what it has accepted."""
    api, leads = Api(), [False]
    each = Keeper(cast("Client", api), Hasty(), "ops", "default", lambda: leads[0])
    each.accepted(CONTENT)
    await run(each, api, 0)
    assert api.writes == []
    leads[0] = True
    each.led()
    await run(each, api, 1)
    assert api.writes == [f"POST {PATH}"]


async def test_a_failure_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """The rule that is missing is named; a conflict is read anew."""
    caplog.set_level(logging.INFO)
    api = Api()
    api.errors = [Forbidden(403), Forbidden(403), Conflict(409)]
    each = keeper(api)
    each.accepted(CONTENT)
    await run(each, api, 4)
    assert len(api.writes) == 4
    assert each.problem == ""
    assert caplog.text.count("403: the hub's account lacks the rule «configmaps: get, create, update»") == 1
    assert "the registry is kept in ConfigMap ops/endpointslice-hub-registry-default" in caplog.text
