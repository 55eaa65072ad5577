"""The routes for programs: ``/api/v1``, ``/openapi.json`` and ``/metrics``."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from hub.model import TargetKey
from hub.report import reasons
from hub.report.allocations import allocations_of
from hub.report.clouds import clouds_of
from hub.report.detail import ADDRESSES, cluster_detail, prepare_detail
from hub.report.openapi import document
from hub.report.past import history as past
from hub.report.site import Site
from hub.report.state import last_decision
from hub.report.values import ServiceDetail

NAME: Final = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
"""Name of a namespace, Service or cluster."""
LIMIT: Final = 1000
"""Most addresses, or entries of the history, in one answer."""
HISTORY: Final = 100
"""Entries of the history in one answer by default."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(site: Site) -> list[web.RouteDef]:
    """The routes of the API."""

    async def status(request: web.Request) -> web.StreamResponse:
        snapshot = site.snapshot()

        async def made() -> bytes:
            return msgspec.json.encode(snapshot.status)

        return answer(request, await site.cached(("status", snapshot.version), made))

    async def service(request: web.Request) -> web.StreamResponse:
        found = await service_of(site, request, number(request, "limit", ADDRESSES, LIMIT))
        return answer(request, msgspec.json.encode(found))

    async def cluster(request: web.Request) -> web.StreamResponse:
        name = named(request, "name")

        async def made() -> bytes:
            found = cluster_detail(site.hub, name)
            if found is None:
                raise web.HTTPNotFound
            return await asyncio.to_thread(msgspec.json.encode, found)

        return answer(request, await site.cached(("cluster", name), made))

    async def why(request: web.Request) -> web.StreamResponse:
        query = request.query
        return answer(request, await _reasons(site, query.get("subject", ""), query.get("cluster", "")))

    async def metrics(request: web.Request) -> web.StreamResponse:
        content_type, body = await site.metrics.text(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    return [
        web.get("/api/v1/status", status),
        web.get("/api/v1/services/{namespace}/{name}", service),
        web.get("/api/v1/clusters/{name}", cluster),
        web.get("/api/v1/why", why),
        web.get("/api/v1/history", partial(_history, site)),
        web.get("/api/v1/allocations", partial(_allocations, site)),
        web.get("/api/v1/clouds", partial(_clouds, site)),
        web.get("/openapi.json", _openapi),
        web.get("/metrics", metrics),
    ]


async def _openapi(request: web.Request) -> web.StreamResponse:
    return answer(request, document())


async def _reasons(site: Site, subject: str, cluster: str) -> bytes:
    if not reasons.SUBJECT.fullmatch(subject) or (cluster and not NAME.fullmatch(cluster)):
        raise web.HTTPBadRequest

    async def made() -> bytes:
        explain = reasons.prepare_why(site.hub, subject, cluster=cluster)
        return await asyncio.to_thread(lambda: msgspec.json.encode(explain()))

    found: bytes = await site.cached(("why", subject, cluster), made)
    return found


async def _allocations(site: Site, request: web.Request) -> web.StreamResponse:
    async def made() -> bytes:
        return msgspec.json.encode(allocations_of(site.hub))

    return answer(request, await site.cached(("allocations",), made))


async def _clouds(site: Site, request: web.Request) -> web.StreamResponse:
    async def made() -> bytes:
        return msgspec.json.encode(clouds_of(site.hub))

    return answer(request, await site.cached(("clouds",), made))


async def _history(site: Site, request: web.Request) -> web.StreamResponse:
    service = request.query.get("service", "")
    namespace, _, name = service.partition("/")
    if service and not (NAME.fullmatch(namespace) and NAME.fullmatch(name)):
        raise web.HTTPBadRequest
    limit = number(request, "limit", HISTORY, LIMIT)
    key = TargetKey(namespace, name) if service else None

    async def made() -> bytes:
        entries, problem = site.hub.history.entries(), site.hub.history.problem
        return await asyncio.to_thread(lambda: msgspec.json.encode(past(entries, key, limit, problem)))

    return answer(request, await site.cached(("history", key, limit), made))


def named(request: web.Request, part: str) -> str:
    """A name in the path.

    Raises:
        HTTPNotFound: the name is not valid.
    """
    name = request.match_info[part]
    if not NAME.fullmatch(name):
        raise web.HTTPNotFound
    return name


async def service_of(site: Site, request: web.Request, limit: int) -> ServiceDetail:
    """The Service that the path names, with at most ``limit`` addresses from the query's ``offset``."""
    key = TargetKey(named(request, "namespace"), named(request, "name"))
    offset = number(request, "offset", 0, 10**6)

    async def made() -> ServiceDetail | None:
        explain = prepare_detail(site.hub, site.snapshots, key, offset, limit)
        return await asyncio.to_thread(explain) if explain is not None else None

    decision = last_decision(site.hub, key).desired  # a cached answer is used only for the same decision
    version = site.snapshot().version
    found: ServiceDetail | None = await site.cached(("service", key, offset, limit, version), made, of=decision)
    if found is None:
        raise web.HTTPNotFound
    return found


def number(request: web.Request, name: str, default: int, most: int) -> int:
    """A number in the query, at most ``most``.

    Raises:
        HTTPBadRequest: the value is not a number of at most seven digits.
    """
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise web.HTTPBadRequest
    return min(int(text), most)


def answer(
    request: web.Request, body: bytes, content_type: str = "application/json", charset: str | None = None
) -> web.Response:
    """A response with the body and its ETag; status 304 if the caller's ``If-None-Match`` has this ETag."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in (known.strip() for known in request.headers.get("If-None-Match", "").replace("W/", "").split(",")):
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type=content_type, charset=charset, headers=headers)


def constant(body: bytes, content_type: str) -> Handler:
    """A handler that answers with a constant body."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return answer(request, body, content_type, "utf-8")

    return handler
