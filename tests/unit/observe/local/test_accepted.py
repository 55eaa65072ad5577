"""The last accepted registry: how it is packed, which owner it has, and when it is written."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import random
from contextlib import suppress
from typing import Any, cast

import pytest

from hub.errors import BadAnswer, ClusterUnreachable, Conflict, Forbidden, Invalid, NotFound
from hub.kube.client import Client
from hub.model import ANNOTATION_WITHHELD, LABEL_OWNER, MANAGED_BY
from hub.observe.local.accepted import (
    ACCEPTED_AT,
    LEGIBLE,
    PACKED,
    PLAIN,
    ROOM,
    Keeper,
    load_kept,
    owner_in,
    packed,
    read,
    withheld,
)
from hub.registry.file import MAX_BYTES
from tests.support.clocks import HastyClock, ManualClock
from tests.unit.observe.local.one_config_map import Api

CONTENT = b"version: 1\nowner: default  # \xc3\xa4\n"
PATH = "/api/v1/namespaces/ops/configmaps"


def keeper(api: Api) -> Keeper:
    """A Keeper of owner ``default`` in namespace ``ops``, in a process that leads."""
    return Keeper(cast("Client", api), HastyClock(), "ops", "default", lambda: True)


async def run(each: Keeper, api: Api, writes: int) -> None:
    """Run the Keeper until it has made this many writes, and long enough for an unwanted further one."""
    task = asyncio.create_task(each.run())
    async with asyncio.timeout(10):
        while len(api.writes) < writes:  # noqa: ASYNC110 - a thread packs meanwhile
            await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0)
    await end(task)


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task that must still run."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


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
    """The owner is that of a single top-level ``owner`` line; anything ambiguous gives no owner."""
    assert owner_in(content.encode()) == owner


def test_the_owner_of_no_text_at_all() -> None:
    """The owner is also found in bytes that are not UTF-8."""
    assert owner_in(b"\xff\xfe\nowner: a\n\x00") == "a"


async def test_content_is_read_back_as_it_was() -> None:
    """Short content is stored as text, long content compressed; content that does not fit gives None."""
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
async def test_invalid_stored_registry_is_refused(body: dict[str, Any]) -> None:
    """Invalid content is an error that names the ConfigMap, and is never unpacked beyond the limit."""
    with pytest.raises(BadAnswer, match="endpointslice-hub-registry-default"):
        await read(cast("Client", Api({"metadata": {}, **body})), "ops", "default")


async def test_equal_content_is_written_once() -> None:
    """The ConfigMap is created, then replaced with its resourceVersion; equal content is not written again."""
    api = Api()
    for content, writes in ((CONTENT, 1), (CONTENT, 1), (CONTENT + b"# more\n", 2)):
        each = keeper(api)
        each.keep(content)
        await run(each, api, writes)
        assert len(api.writes) == writes
        assert api.stored is not None
        api.stored["metadata"]["resourceVersion"] = "7"
    assert api.writes == [f"POST {PATH}", f"PUT {PATH}/endpointslice-hub-registry-default"]


async def test_garbage_is_replaced() -> None:
    """Content that cannot be read is overwritten."""
    api = Api({"metadata": {"resourceVersion": "7"}, "binaryData": {PACKED: "no base64!"}})
    each = keeper(api)
    each.keep(CONTENT)
    await run(each, api, 1)
    assert api.stored is not None
    assert api.stored["data"] == {PLAIN: CONTENT.decode()}
    assert api.stored["metadata"]["resourceVersion"] == "7"


async def test_a_standby_writes_nothing_until_it_leads() -> None:
    """A standby writes its accepted registry when it begins to lead."""
    api, leads = Api(), [False]
    each = Keeper(cast("Client", api), HastyClock(), "ops", "default", lambda: leads[0])
    each.keep(CONTENT)
    await run(each, api, 0)
    assert api.writes == []
    leads[0] = True
    each.begin_leading()
    await run(each, api, 1)
    assert api.writes == [f"POST {PATH}"]


async def test_failed_write_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    """A missing RBAC rule is logged once; the write is retried after a 403 and after a conflict."""
    caplog.set_level(logging.INFO)
    api = Api()
    api.errors = [Forbidden(403), Forbidden(403), Conflict(409)]
    each = keeper(api)
    each.keep(CONTENT)
    await run(each, api, 4)
    assert len(api.writes) == 4
    assert each.problem == ""
    assert caplog.text.count("403: the hub's account lacks the rule «configmaps: get, create, update»") == 1
    assert "the registry is kept in ConfigMap ops/endpointslice-hub-registry-default" in caplog.text


async def test_stored_registry_has_owner_and_time() -> None:
    """Labels name the owner and an annotation the time; a new ConfigMap has no resourceVersion."""
    api = Api()
    each = Keeper(cast("Client", api), ManualClock(wall_time=1.8e9), "ops", "default", lambda: True)
    each.keep(CONTENT)
    await run(each, api, 1)
    assert api.stored == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "endpointslice-hub-registry-default",
            "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, LABEL_OWNER: "default"},
            "annotations": {ACCEPTED_AT: "2027-01-15T08:00:00Z"},
        },
        "data": {PLAIN: CONTENT.decode()},
    }
    assert (await read(cast("Client", api), "ops", "default")).at == "2027-01-15T08:00:00Z"


async def test_a_withheld_removal_is_noted_and_taken_back() -> None:
    """``withhold`` changes only its annotation; a Keeper that was not told keeps the present one."""
    api = Api()
    first = keeper(api)
    first.keep(CONTENT)
    await run(first, api, 1)
    assert await withheld(cast("Client", api), "ops", "default") is False
    assert api.stored is not None
    at = api.stored["metadata"]["annotations"][ACCEPTED_AT] = "2026-01-01T00:00:00Z"

    first.note_withheld("abc")
    await run(first, api, 2)
    assert api.stored["metadata"]["annotations"] == {ACCEPTED_AT: at, ANNOTATION_WITHHELD: "abc"}
    assert await withheld(cast("Client", api), "ops", "default") is True
    first.note_withheld("abc")
    await run(first, api, 2)

    second = keeper(api)
    second.keep(CONTENT)
    await run(second, api, 2)
    assert (len(api.writes), api.stored["metadata"]["annotations"][ANNOTATION_WITHHELD]) == (2, "abc")

    second.note_withheld("")
    await run(second, api, 3)
    assert (len(api.writes), api.stored["metadata"]["annotations"]) == (3, {ACCEPTED_AT: at})


@pytest.mark.parametrize(
    ("error", "found"), [(NotFound(404), False), (Forbidden(403), False), (ClusterUnreachable("x"), True)]
)
async def test_unreadable_withheld_state_counts_as_withheld(error: Exception, *, found: bool) -> None:
    """Without the ConfigMap or the right to read it, nothing was withheld; on other errors, assume so."""
    api = Api()
    api.away = error
    assert await withheld(cast("Client", api), "ops", "default") is found


@pytest.mark.parametrize(("size", "key"), [(LEGIBLE, "data"), (LEGIBLE + 1, "binaryData")])
def test_up_to_half_a_megabyte_stays_legible(size: int, key: str) -> None:
    """Content of up to LEGIBLE bytes is stored as text, longer content is compressed."""
    body = packed(b"#" * size)
    assert body is not None
    assert set(body) == {key}


def test_content_that_fits_when_compressed_is_stored() -> None:
    """Content is kept if it has at most ROOM bytes after compression."""
    noise = random.Random(1).randbytes(ROOM)
    over = len(gzip.compress(noise, mtime=0)) - ROOM
    assert over > 0
    assert packed(noise) is None
    assert packed(noise[: -2 * over]) is not None


async def test_too_large_registry_is_logged_and_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    """A registry that is too large is logged, and never written."""
    api = Api()
    each = keeper(api)
    each.keep(random.Random(1).randbytes(ROOM + 1000))
    task = asyncio.create_task(each.run())
    async with asyncio.timeout(10):
        while "too large" not in caplog.text:  # noqa: ASYNC110 - a thread packs meanwhile
            await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0)
    await end(task)
    assert (api.writes, each.problem) == ([], "")


async def test_former_leader_does_not_write() -> None:
    """Leadership is checked again right before the write."""
    api, answers = Api(), [True, False]
    each = Keeper(cast("Client", api), HastyClock(), "ops", "default", lambda: answers.pop(0) if answers else False)
    each.keep(CONTENT)
    await run(each, api, 0)
    assert api.writes == []


async def test_each_new_api_error_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """An error of the API is a warning unless it is the last one again; an API that is away is only for debugging."""
    caplog.set_level(logging.DEBUG, "hub.observe.local.accepted")
    api, problems = Api(), list[str]()
    api.errors = [Invalid(422, "", "a"), Invalid(422, "", "a"), Invalid(422, "", "b"), ClusterUnreachable("gone")]

    def leading() -> bool:
        problems.append(each.problem)
        return True

    each = Keeper(cast("Client", api), HastyClock(), "ops", "default", leading)
    each.keep(CONTENT)
    await run(each, api, 5)
    text = "the registry is not kept for a restart: "
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", f"{text}422 : a"),
        ("DEBUG", f"{text}422 : a"),
        ("WARNING", f"{text}422 : b"),
        ("DEBUG", f"{text}gone"),
        ("INFO", "the registry is kept in ConfigMap ops/endpointslice-hub-registry-default"),
    ]
    assert list(dict.fromkeys(problems)) == ["", "422 : a", "422 : b", "gone"]
    assert each.problem == ""


REGISTRY = b"version: 1\nowner: default\nclusters: []\n"


async def kept(content: bytes, owner: str, tmp_path: Any, file: bytes = b"clusters: [") -> tuple[Any, str]:
    """The result of ``load_kept`` for a rejected file, with this content kept for the owner."""
    (tmp_path / "clusters.yaml").write_bytes(file)
    body = packed(content)
    assert body is not None
    api = Api({"metadata": {"annotations": {ACCEPTED_AT: "2026-01-01T00:00:00Z"}}, **body})
    return await load_kept(cast("Client", api), "ops", str(tmp_path / "clusters.yaml"), owner)


async def test_the_last_accepted_registry_stands_in(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The kept registry is used, and the log names the time at which it was accepted."""
    loaded, at = await kept(REGISTRY, "default", tmp_path)
    assert (loaded.registry.owner, loaded.content, at) == ("default", b"", "2026-01-01T00:00:00Z")
    assert "the registry is rejected: the one accepted at 2026-01-01T00:00:00Z is in force" in caplog.text


@pytest.mark.parametrize(
    ("content", "owner", "file", "says"),
    [
        (REGISTRY, "other", b"", "belongs to owner default: not used"),
        (REGISTRY, "default", b"owner: other\nclusters: [", "belongs to owner default: not used"),
        (b"clusters: 7\n", "default", b"", "cannot be used"),
    ],
)
async def test_stored_registry_of_another_owner_is_not_used(
    content: bytes, owner: str, file: bytes, says: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner in the rejected file takes precedence; other owners and invalid content are not used."""
    assert await kept(content, owner, tmp_path, file) == (None, "")
    assert says in caplog.text


@pytest.mark.parametrize(("error", "says"), [(NotFound(404), ""), (ClusterUnreachable("away"), "cannot be read: away")])
async def test_no_registry_is_used_without_an_answer(
    error: Exception, says: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """If nothing is kept, nothing is logged; if the API does not answer, the log says so."""
    api = Api()
    api.away = error
    assert await load_kept(cast("Client", api), "ops", str(tmp_path / "none"), "default") == (None, "")
    assert bool(caplog.records) is bool(says)
    assert says in caplog.text
