"""The status page. It updates itself, and works without JavaScript, without colours and on a phone.

Texts may come from a remote cluster (a node's name, a cloud's message). Therefore templates escape all values, and the
script inserts only rendered rows into the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from functools import cache, partial
from importlib import resources
from typing import Any, Final

import jinja2
import msgspec
from aiohttp import web

from hub.events.timeline import Recent
from hub.model import TargetKey
from hub.report.api import answer, constant, named, number, service_of
from hub.report.detail import ADDRESSES, cluster_detail
from hub.report.page.charts import Strip, chart, strip
from hub.report.page.clouds import parts
from hub.report.page.flows import drawn
from hub.report.page.pools import pools
from hub.report.page.search import EVERYTHING, Search, search_of
from hub.report.page.signs import FILTERS, attention
from hub.report.site import Site, VersionedStatus
from hub.report.stream import Broadcaster
from hub.report.values import Cluster, ClusterDetail, Service, Status

MAX_ROWS: Final = 300
"""Most changed rows in one event; if more rows changed, the event makes open pages reload."""
HEARTBEAT: Final = 15.0
"""Seconds without an event after which a comment is sent, in order to detect closed connections."""
STREAM_SECONDS: Final = 600.0
"""Seconds after which a stream ends; the page connects again, and its token is checked again."""
SEND_TIMEOUT: Final = 10.0
"""Seconds for sending one event; then the connection is closed."""
ASSETS: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


@cache
def templates() -> jinja2.Environment:
    """The Jinja environment of the pages."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("hub.report.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(FILTERS)
    return found


def routes(site: Site, live: Broadcaster) -> list[web.RouteDef]:
    """The routes of the page."""

    async def overview(request: web.Request) -> web.StreamResponse:
        snapshot, search = site.snapshot(), search_of(request.query)

        async def made() -> bytes:
            return await asyncio.to_thread(rendered_overview, snapshot, search)

        return answer(request, await site.cached(("overview", snapshot.version, search), made), "text/html", "utf-8")

    async def service(request: web.Request) -> web.StreamResponse:
        limit = number(request, "limit", ADDRESSES, ADDRESSES) or ADDRESSES
        snapshot, found = site.snapshot(), await service_of(site, request, limit)
        recent = site.hub.timelines.of(TargetKey(*found.service.name.split("/", 1)))
        body = await asyncio.to_thread(_render, "service.html", snapshot, detail=found, limit=limit, recent=recent)
        return answer(request, body, "text/html", "utf-8")

    async def cluster(request: web.Request) -> web.StreamResponse:
        snapshot, name = site.snapshot(), named(request, "name")

        async def made() -> ClusterDetail | None:
            return cluster_detail(site.hub, name)

        found = await site.cached(("cluster page", name), made)
        if found is None:
            raise web.HTTPNotFound
        body = await asyncio.to_thread(_render, "cluster.html", snapshot, detail=found)
        return answer(request, body, "text/html", "utf-8")

    async def events(request: web.Request) -> web.StreamResponse:
        return await stream(request, site, live)

    events.endless = True  # type: ignore[attr-defined]  # hub.report.web sets no deadline for it
    folder = resources.files("hub.report.page") / "static"
    assets = [
        web.get(f"/static/{name}", constant((folder / name).read_bytes(), type_)) for name, type_ in ASSETS.items()
    ]
    return [
        web.get("/", overview),
        web.get("/services/{namespace}/{name}", service),
        web.get("/clusters/{name}", cluster),
        web.get("/events", events, allow_head=False),
        *assets,
    ]


def rendered_overview(snapshot: VersionedStatus, search: Search = EVERYTHING) -> bytes:
    """The overview page, with what a search finds."""
    status = snapshot.status
    shown, clouds = pools(status.allocations), parts(status.clouds)
    return _render("overview.html", snapshot, search=search, map=drawn(status, search), pools=shown, clouds=clouds)


def _render(template: str, snapshot: VersionedStatus, recent: Recent | None = None, **more: object) -> bytes:
    found = templates().get_template(template)
    status = snapshot.status
    return found.render(
        version=snapshot.version,
        status=status,
        attention=attention(status),
        strip=partial(_strip, snapshot),
        chart=chart(recent, _minute(snapshot)) if recent is not None else None,
        **more,
    ).encode()


def _minute(snapshot: VersionedStatus) -> float:
    """The time that drawings end at: the next whole minute, so that a page without news keeps its ETag for a minute."""
    return -(-snapshot.at // 60) * 60


def _strip(snapshot: VersionedStatus, cluster: str) -> Strip:
    return strip(snapshot.states.get(cluster, ()), snapshot.since, _minute(snapshot))


# --- what changes on an open page ------------------------------------------------------------------


class Changes:
    """Computes the events for open pages."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._last: VersionedStatus | None = None

    async def next_event(self) -> bytes:
        """An event with the changes since the last call; b"" if nothing changed."""
        old, new = self._last, self._site.snapshot()
        self._last = new
        touched, renewed = self._site.changed_targets(), self._site.changed_clusters()
        if old is None or (old.version == new.version and not touched and not renewed):
            return b""
        return await asyncio.to_thread(event, old, new, {str(target) for target in touched}, renewed)


def event(old: VersionedStatus, new: VersionedStatus, touched: set[str], renewed: Collection[str] = ()) -> bytes:
    """An event for open pages: changed rows, removed rows, and the Services and clusters whose pages are outdated.

    Args:
        old: the snapshot that the pages show.
        new: the present snapshot.
        touched: names of Services with a new decision.
        renewed: names of clusters with changed Nodes or views.
    """
    clusters = _differing(old.status.clusters, new.status.clusters)
    services = _differing(old.status.services, new.status.services)
    gone = sorted(_ids(old.status) - _ids(new.status))
    data: dict[str, object] = {"version": new.version}
    addresses, clouds = new.status.allocations, new.status.clouds
    appeared = (old.status.allocations is None) != (addresses is None)  # the page has the part, or has it no more
    appeared |= (old.status.clouds is None) != (clouds is None)
    if appeared or len(clusters) + len(services) > MAX_ROWS:
        return _event("reload", data)
    rows: Any = templates().get_template("rows.html").module
    html = {f"cluster:{cluster.name}": str(rows.cluster(cluster, _strip(new, cluster.name))) for cluster in clusters}
    html |= {f"service:{service.name}": str(rows.service(service)) for service in services}
    if (clusters or services or gone) and (map_ := drawn(new.status)) != drawn(old.status):
        html["map"] = str(rows.map(map_))
    if addresses is not None and addresses != old.status.allocations:
        html["allocations"] = str(rows.allocations(addresses, pools(addresses)))
    if clouds is not None and clouds != old.status.clouds:
        html["clouds"] = str(rows.clouds(parts(clouds)))
    if _summary(old.status) != _summary(new.status):
        html["replica"] = str(rows.replica(new.status.hub))
        html["attention"] = str(rows.attention(attention(new.status)))
    touched = touched | {service.name for service in services}
    return _event(
        "change",
        {
            **data,
            "html": html,
            "gone": gone,
            "touched": sorted(touched) if len(touched) <= MAX_ROWS else None,
            "clusters": sorted({*renewed, *(cluster.name for cluster in clusters)}),
        },
    )


def _summary(status: Status) -> object:
    return status.hub, attention(status)


def _differing(old: Iterable[Cluster | Service], new: Iterable[Cluster | Service]) -> list[Cluster | Service]:
    known = {item.name: item for item in old}
    return [item for item in new if known.get(item.name) is not item and known.get(item.name) != item]


def _ids(status: Status) -> set[str]:
    return {f"cluster:{cluster.name}" for cluster in status.clusters} | {
        f"service:{service.name}" for service in status.services
    }


def _event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


async def stream(request: web.Request, site: Site, live: Broadcaster) -> web.StreamResponse:
    """Server-sent events, until the page is closed, falls behind, or has been open for long."""
    if live.full:
        return web.Response(status=503, text="too many open pages\n", headers={"Retry-After": "30"})
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
    )
    reader = live.join()
    try:
        await response.prepare(request)
        await _send(response, b"retry: 3000\n" + _event("hello", {"version": site.snapshot().version}))
        loop = asyncio.get_running_loop()
        until = loop.time() + STREAM_SECONDS
        while loop.time() < until:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    event = await reader.events.get()
            except TimeoutError:
                event = b": still here\n\n"
            if event is None:
                break
            await _send(response, event)
    except (ConnectionError, TimeoutError):
        response.force_close()
        if request.transport is not None:
            request.transport.abort()  # do not wait until the buffered data is sent
    finally:
        live.leave(reader)
    return response


async def _send(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(SEND_TIMEOUT):
        await response.write(data)
