"""The stream over HTTP: refusals, events, a thousand readers, and slow readers."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector, web

from hub.views import stream
from hub.views.channel import Channel
from hub.views.shapes import Shape
from hub.views.stream import Listing, Refusal, Subscription, answer, handler
from tests.support.virtual import LoopClock
from tests.unit.views.support import World


class Source:
    """The views of ``world`` as a source of streams."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.channels: dict[Shape, Channel] = {}

    def channel(self, shape: Shape) -> Channel:
        """The channel in this shape, created at the first call."""
        if shape not in self.channels:
            self.channels[shape] = Channel(shape, LoopClock())
            self.world.board.listen(self.channels[shape].changed)
        return self.channels[shape]

    async def settled(self, seconds: float) -> None:
        """Wait only for the board."""
        await self.world.settle()

    @property
    def readers(self) -> int:
        """The number of readers of all channels."""
        return sum(channel.readers for channel in self.channels.values())


async def asked(source: Source | None, headers: Mapping[str, str] | None = None, **query: str) -> Any:
    """The answer to a request."""
    return await answer(source, query, headers or {})


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ({"gather": "yes"}, "gather must be true or false"),
        ({"compat": "other"}, "compat must be dcontroller"),
        ({"format": "xml"}, "format must be ndjson or sse"),
        ({"wacth": "1"}, "wacth is not a parameter; known: compat, format, gather, resume, watch"),
    ],
)
async def test_a_wrong_parameter_is_named(query: dict[str, str], detail: str) -> None:
    """The error names the parameter and its valid values."""
    found = await asked(Source(World()), **query)
    assert (found.status, found.detail) == (400, detail)


@pytest.mark.parametrize(
    ("query", "shape", "watch"),
    [
        ({}, Shape(), True),
        ({"gather": "", "watch": "1"}, Shape(gather=True), True),
        ({"gather": "true", "watch": "true"}, Shape(gather=True), True),
        ({"gather": "false", "watch": "0"}, Shape(), False),
        ({"gather": "0", "watch": "false", "compat": "dcontroller"}, Shape(compat=True), False),
        ({"compat": "", "watch": ""}, Shape(), True),
    ],
)
async def test_parameters_select_the_shape(query: dict[str, str], shape: Shape, *, watch: bool) -> None:
    """A flag without a value is true; without the flag, objects are not gathered and the stream is watched."""
    source = Source(World())
    found = await asked(source, **query)
    assert isinstance(found, Subscription if watch else Listing)
    assert list(source.channels) == [shape]


@pytest.mark.parametrize(
    ("accept", "form", "framing"),
    [
        ("", "", "ndjson"),
        ("*/*", "", "ndjson"),
        ("text/event-stream", "", "sse"),
        ("text/html, text/event-stream", "", "sse"),
        ("text/event-stream", "ndjson", "ndjson"),
        ("text/event-stream", "sse", "sse"),
        ("", "sse", "sse"),
        ("", "ndjson", "ndjson"),
    ],
)
async def test_format_in_the_query_comes_before_the_accept_header(accept: str, form: str, framing: str) -> None:
    """A browser's EventSource sends the header, other clients may use the parameter."""
    found = await asked(Source(World()), {"Accept": accept}, format=form)
    assert (found.framing, found.position) == (framing, None)


async def test_token_in_the_query_comes_before_the_header() -> None:
    """A token selects the position after which events are sent."""
    source = Source(World())
    channel = source.channel(Shape())
    source.world.put("a", "10.0.0.1")
    await source.world.settle()
    older, newer = channel.token(0), channel.token(1)
    assert (await asked(source, {"Last-Event-ID": newer})).position == 1
    assert (await asked(source, {"Last-Event-ID": newer}, resume=older)).position == 0
    assert (await asked(source, {"Last-Event-ID": newer}, resume="")).position == 1


async def test_whole_list() -> None:
    """An empty list is a complete document with the token to resume from."""
    source = Source(World())
    token = source.channel(Shape()).token(0)
    found = await asked(source, watch="0")
    assert found.body.decode() == (
        '{"apiVersion":"endpointslice-hub/v1","kind":"EndpointViewList",'
        f'"metadata":{{"resourceVersion":"{token}"}},"items":[]}}\n'
    )


async def test_large_snapshot_and_delta_are_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece has the same size but the last; together they are the whole text."""
    monkeypatch.setattr(stream, "PIECE_BYTES", 100)
    source = Source(World())
    channel = source.channel(Shape())
    source.world.put("a", "10.0.0.1", "10.0.0.2")
    await source.world.settle()
    pieces = (await asked(source)).pieces()
    for news in (False, True):
        if news:
            source.world.put("a", "10.0.0.3")
            await source.world.settle()
        text = channel.since(2, "ndjson")[1] if news else channel.snapshot("ndjson")[1]
        found = [await anext(pieces) for _ in range(-(-len(text) // 100))]
        assert b"".join(found) == text
        assert {len(piece) for piece in found[:-1]} == {100}
    await pieces.aclose()


async def test_answers_over_http_have_their_types_and_headers() -> None:
    """Errors, lists and both streams have their content types; HEAD is answered without a body."""
    source = Source(World())
    found = {}
    async with listening(source) as url, ClientSession() as session:
        for method, query in (
            ("GET", "?x=1"),
            ("GET", "?watch=0"),
            ("HEAD", ""),
            ("GET", ""),
            ("GET", "?format=sse"),
        ):
            async with session.request(method, url + query) as response:
                found[f"{method} {query}"] = (response.status, response.content_type)
                if method == "GET" and query in ("", "?format=sse"):
                    assert (response.headers["Cache-Control"], response.headers["X-Accel-Buffering"]) == (
                        "no-store",
                        "no",
                    )
                    assert b"Bookmark" in await response.content.readany()
    assert found == {
        "GET ?x=1": (400, "application/problem+json"),
        "GET ?watch=0": (200, "application/json"),
        "HEAD ": (200, "application/x-ndjson"),
        "GET ": (200, "application/x-ndjson"),
        "GET ?format=sse": (200, "text/event-stream"),
    }


async def test_no_views_no_stream() -> None:
    """Without ``views`` in the registry the answer is 404 with the remedy."""
    found = await asked(None)
    assert isinstance(found, Refusal)
    assert found.status == 404
    assert json.loads(found.body)["detail"].endswith("add views: {}")


async def test_a_token_that_is_too_old_is_gone() -> None:
    """An old token in the query or in Last-Event-ID gets 410 with the next step."""
    source = Source(World())
    for found in (await asked(source, resume="0-1"), await asked(source, {"Last-Event-ID": "0-1"})):
        assert (found.status, found.title) == (410, "Gone")
        assert "start again without one, with a snapshot" in found.detail


async def test_a_list_is_one_document_to_go_on_from() -> None:
    """The resourceVersion of a list is a resume token."""
    source = Source(World())
    source.world.put("a", "10.0.0.1")
    found = await asked(source, watch="false", gather="")
    assert isinstance(found, Listing)
    body = json.loads(found.body)
    assert [item["spec"]["addresses"] for item in body["items"]] == [["10.0.0.1"]]
    resumed = await asked(source, resume=body["metadata"]["resourceVersion"], gather="1")
    assert isinstance(resumed, Subscription)


async def test_too_many_readers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers beyond the limit get 503; present readers are not affected."""
    monkeypatch.setattr(stream, "READERS", 1)
    source = Source(World())
    pieces = (await asked(source)).pieces()
    await anext(pieces)
    assert (await asked(source)).status == 503
    await pieces.aclose()
    assert isinstance(await asked(source), Subscription)


async def test_an_idle_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle stream gets bookmarks with the present token."""
    monkeypatch.setattr(stream, "KEEP_ALIVE", 0.01)
    pieces = (await asked(Source(World()))).pieces()
    first, second = await anext(pieces), await anext(pieces)
    assert first == second
    assert json.loads(second)["type"] == "Bookmark"
    await pieces.aclose()


@pytest.mark.parametrize("busy", [False, True])
async def test_a_stream_ends_in_time_and_is_gone_on_with(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ends with a bookmark, from which the next stream resumes."""
    monkeypatch.setattr(stream, "STREAM_SECONDS", 0.05)
    source = Source(World())
    heard: list[bytes] = []
    async with asyncio.timeout(5):
        async for piece in (await asked(source)).pieces():
            heard.append(piece)
            if busy:
                source.world.put("a", f"10.0.0.{len(heard) % 250}")
        assert source.readers == 0
        end = json.loads(heard[-1])
        source.world.put("a", "10.0.0.255")
        await source.world.settle()
        again = (await asked(source, resume=end["resourceVersion"])).pieces()
        begin, news = json.loads(await anext(again)), await anext(again)
    assert (end["type"], begin) == ("Bookmark", end)
    assert b'"Added"' in news
    assert b"10.0.0.255" in news
    await again.aclose()


@asynccontextmanager
async def listening(source: Source) -> AsyncIterator[str]:
    """An HTTP server with the stream on loopback; yields its URL."""
    app = web.Application()
    app.router.add_get(stream.PATH, handler(lambda: source))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{stream.PATH}"
    finally:
        await runner.cleanup()


async def test_a_thousand_readers_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand readers get the snapshot and all changes in order, which are encoded once for each format."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    source = Source(World())
    source.world.put("a", "10.0.0.1")
    framed: list[int] = []
    since = Channel.since

    async def read(session: ClientSession, url: str, number: int, ready: asyncio.Semaphore) -> list[str]:
        accept = {"Accept": "text/event-stream"} if number % 2 else {}
        async with session.get(url, headers=accept) as response:
            found: list[str] = []
            async for line in response.content:
                if line.startswith((b"{", b"data: ")):
                    event = json.loads(line.removeprefix(b"data: "))
                    found.append(event["type"] + event["object"].get("spec", {}).get("address", ""))
                    if event["type"] == "Bookmark":
                        ready.release()
                    if len(found) == 5:
                        break
            return found

    def counted(channel: Channel, position: int, framing: Any) -> Any:
        if (position, framing) not in channel._framed:
            framed.append(position)
        return since(channel, position, framing)

    monkeypatch.setattr(Channel, "since", counted)
    ready = asyncio.Semaphore(0)
    async with listening(source) as url, ClientSession(connector=TCPConnector(limit=0)) as session:
        readers = [asyncio.create_task(read(session, url, number, ready)) for number in range(1000)]
        for _ in readers:
            await asyncio.wait_for(ready.acquire(), 60)
        assert source.readers == 1000
        source.world.put("a", "10.0.0.2")
        await source.world.settle()
        source.world.put("a", "10.0.0.2", "10.0.0.3")
        found = await asyncio.wait_for(asyncio.gather(*readers), 60)

    expected = ["Added10.0.0.1", "Bookmark", "Added10.0.0.2", "Deleted10.0.0.1", "Added10.0.0.3"]
    assert [events for events in found if events != expected] == []
    assert len(framed) <= 6


async def test_a_reader_that_does_not_read_is_dropped_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not read is disconnected after PATIENCE, without affecting others."""
    monkeypatch.setattr(stream, "WRITE_TIMEOUT", 1.0)
    source = Source(World())
    for number in range(400):
        source.world.put(f"s{number}", *[f"10.{number >> 8}.{number & 255}.{last}" for last in range(1, 51)])
    async with listening(source) as url, ClientSession() as session, AsyncExitStack() as stack:
        port = int(url.split(":")[2].split("/")[0])
        asleep = socket.socket()
        asleep.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asleep.connect(("127.0.0.1", port))
        stack.callback(asleep.close)
        asleep.sendall(f"GET {stream.PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with session.get(url) as awake:
            lines = 0
            async for line in awake.content:
                lines += 1
                if json.loads(line)["type"] == "Bookmark":
                    break
            channel = source.channel(Shape())
            async with asyncio.timeout(10):
                while channel.dropped == 0:  # noqa: ASYNC110 - a number
                    await asyncio.sleep(0.01)
            source.world.put("s0", "10.9.9.9")
            changed = json.loads(await awake.content.readline())
            counts = channel.dropped, channel.readers

    assert lines == 20001
    assert changed["object"]["spec"]["address"] == "10.9.9.9"
    assert counts == (1, 1)


async def test_a_reader_that_falls_out_of_the_log_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of a reader that falls behind the log ends instead of missing events."""
    monkeypatch.setattr("hub.views.channel.LOG_EVENTS", 4)
    source = Source(World())
    source.world.put("a", "10.0.0.0")
    pieces = (await asked(source)).pieces()
    await anext(pieces)
    for number in range(1, 9):
        source.world.put("a", f"10.0.0.{number}")
        await source.world.settle()
    with pytest.raises(StopAsyncIteration):
        await anext(pieces)
    channel = source.channel(Shape())
    assert (channel.dropped, channel.readers) == (1, 0)
