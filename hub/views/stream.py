"""``/api/v1/endpoints``: views as a list, or as a stream of NDJSON or server-sent events.

The events come from :mod:`hub.views.channel`. :func:`answer` depends only on a query and headers; :func:`handler` makes
an aiohttp handler of it. The listener has checked the caller's permission before.

    GET ?gather=true&compat=dcontroller     a snapshot, a bookmark, then deltas, for ten minutes
        &resume=TOKEN                       deltas after the token only (server-sent events: Last-Event-ID)
        &watch=false                        a list as one JSON document
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from hub.views.channel import Channel, Framing, TokenTooOld
from hub.views.shapes import API_VERSION, Shape

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger(__name__)

PATH: Final = "/api/v1/endpoints"
READERS: Final = 1536
"""Most concurrent readers of all shapes; a quarter of the listener's connections remains for pages and scrapes."""
SETTLE_TIMEOUT: Final = 5.0
"""Seconds that a reader waits for clusters without a complete answer; then the bookmark names these clusters."""
STREAM_SECONDS: Final = 600.0
"""Seconds after which a stream ends; the reader must connect again, and its bearer token is checked again."""
STREAM_JITTER: Final = 0.1
"""Largest random share by which a stream ends earlier, so that readers that connected together return at different
times."""
KEEP_ALIVE: Final = 30.0
"""Seconds without an event after which a bookmark is sent, so that proxies keep the connection and the reader's resume
token stays new."""
WRITE_TIMEOUT: Final = 30.0
"""Seconds for a reader to receive one piece; then its connection is closed."""
PIECE_BYTES: Final = 1 << 18
"""Bytes written at once, so that WRITE_TIMEOUT is for one piece and not for a whole snapshot."""
CONTENT_TYPES: Final[Mapping[Framing, str]] = {"ndjson": "application/x-ndjson", "sse": "text/event-stream"}
_FLAGS: Final = {"": True, "true": True, "1": True, "false": False, "0": False}
_KNOWN: Final = frozenset(("gather", "compat", "resume", "watch", "format"))


class Source(Protocol):
    """All views, as :class:`hub.views.service.EndpointViews`."""

    def channel(self, shape: Shape) -> Channel:
        """The stream in one shape."""
        ...

    async def settled(self, seconds: float) -> None:
        """Wait until every cluster has answered or failed."""
        ...

    @property
    def readers(self) -> int:
        """Number of readers of all streams."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response."""

    status: int
    title: str
    detail: str

    @property
    def body(self) -> bytes:
        """The body, as RFC 9457 defines it."""
        return msgspec.json.encode({"status": self.status, "title": self.title, "detail": self.detail})


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects as one JSON document."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Subscription:
    """A stream for one reader.

    Attributes:
        position: only the events after this position are sent; None = a snapshot is sent first.
    """

    channel: Channel
    framing: Framing
    position: int | None

    async def pieces(self) -> AsyncIterator[bytes]:
        """The pieces to send; the last one is a bookmark, unless the reader was too slow."""
        channel, loop = self.channel, asyncio.get_running_loop()
        until = loop.time() + STREAM_SECONDS * (1 - random.uniform(0, STREAM_JITTER))
        channel.readers += 1
        try:
            position = self.position
            if position is None:
                position, text = channel.snapshot(self.framing)
                for start in range(0, len(text), PIECE_BYTES):
                    yield text[start : start + PIECE_BYTES]
            else:
                yield channel.bookmark(self.framing, position)
            while (left := until - loop.time()) > 0:
                if not await _within(min(KEEP_ALIVE, left), channel.wait_for_events(position)):
                    yield channel.bookmark(self.framing, position)
                    continue
                try:
                    position, text = channel.since(position, self.framing)
                except TokenTooOld:
                    channel.dropped += 1
                    log.info("views: a reader was too slow and is dropped")
                    return
                for start in range(0, len(text), PIECE_BYTES):
                    yield text[start : start + PIECE_BYTES]
            yield channel.bookmark(self.framing, position)
        finally:
            channel.readers -= 1


async def answer(
    views: Source | None, query: Mapping[str, str], headers: Mapping[str, str]
) -> Refusal | Listing | Subscription:
    """The answer to a request.

    Args:
        views: None if the registry has no ``views``.
        query: of the URL.
        headers: ``Accept: text/event-stream`` selects server-sent events, as ``format=sse`` does.
    """
    if views is None:
        return Refusal(404, "Not Found", "the registry has no views: block, so nothing is followed; add views: {}")
    try:
        gather, watch = _flag(query, "gather", default=False), _flag(query, "watch", default=True)
        compat = _one_of(query, "compat", ("", "dcontroller")) == "dcontroller"
        form = _one_of(query, "format", ("", "ndjson", "sse"))
    except ValueError as error:
        return Refusal(400, "Bad Request", str(error))
    if unknown := sorted(query.keys() - _KNOWN):
        return Refusal(400, "Bad Request", f"{unknown[0][:40]} is not a parameter; known: {', '.join(sorted(_KNOWN))}")
    if views.readers >= READERS:
        return Refusal(503, "Service Unavailable", f"{READERS} readers follow already; try another replica")
    await views.settled(SETTLE_TIMEOUT)
    channel = views.channel(Shape(gather, compat))
    if not watch:
        return Listing(_document(channel))
    wants_events = "text/event-stream" in headers.get("Accept", "")
    framing: Framing = "sse" if form == "sse" or (wants_events and form != "ndjson") else "ndjson"
    token = query.get("resume") or headers.get("Last-Event-ID", "")
    if not token:
        return Subscription(channel, framing, None)
    try:
        return Subscription(channel, framing, channel.resume(token))
    except TokenTooOld as error:
        return Refusal(410, "Gone", str(error))


def _document(channel: Channel) -> bytes:
    head = b'{"apiVersion":"%s","kind":"EndpointViewList","metadata":{"resourceVersion":"%s"},"items":['
    head %= API_VERSION.encode(), channel.token(channel.position).encode()
    return head + b",".join(channel.objects()) + b"]}\n"


def _flag(query: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = query.get(name)
    if text is None:
        return default
    if text not in _FLAGS:
        raise ValueError(f"{name} must be true or false")
    return _FLAGS[text]


def _one_of(query: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    text = query.get(name, "")
    if text not in words:
        raise ValueError(f"{name} must be {' or '.join(word for word in words if word)}")
    return text


async def _within(seconds: float, wait: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await wait
    except TimeoutError:
        return False
    return True


def handler(views: Callable[[], Source | None]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """An aiohttp handler for :data:`PATH`; ``views`` returns the views at the time of a request."""
    from aiohttp import web

    async def serve(request: web.Request) -> web.StreamResponse:
        found = await answer(views(), request.query, request.headers)
        if isinstance(found, Refusal):
            return web.Response(status=found.status, body=found.body, content_type="application/problem+json")
        if isinstance(found, Listing):
            return web.Response(body=found.body, content_type="application/json")
        headers = {
            **request.get("headers", {}),
            "Content-Type": CONTENT_TYPES[found.framing],
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        pieces = found.pieces()
        try:
            async for piece in pieces:
                async with asyncio.timeout(WRITE_TIMEOUT):
                    await response.write(piece)
        except TimeoutError:
            found.channel.dropped += 1
            log.info("views: a reader does not read and is dropped")
            if request.transport is not None:
                request.transport.abort()
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        return response

    serve.endless = True  # type: ignore[attr-defined] # the listener's timeout does not apply to streams
    return serve
