"""HTTP: paths, tokens and rights, bodies, watch streams."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from hub_testkit.simulator import answers
from hub_testkit.simulator.answers import Refusal
from hub_testkit.simulator.api import Api
from hub_testkit.simulator.checks import Place
from hub_testkit.simulator.faults import Fault, Faults
from hub_testkit.simulator.listing import check_watch_options, integer, list_body, selection
from hub_testkit.simulator.requests import (
    decoded,
    delete_options,
    is_dry_run,
    mutation,
    place_of,
    read_body,
    verb_of,
)
from hub_testkit.simulator.rights import Rights
from hub_testkit.simulator.store import Match, Store, Stored, Watcher, event_line, full_body

Json = dict[str, Any]

VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.4",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "gc",
    "platform": "linux/amd64",
}
WATCH_SECONDS = 1800
"""The shortest default timeout of a watch; the longest is twice it (AS/pkg/server/config.go, MinRequestTimeout)."""
BOOKMARK_LEAD = 2.0
"""Seconds before its timeout in which a watch gets final bookmarks (AS/pkg/storage/cacher/cache_watcher.go)."""

_HEALTH = frozenset({"/readyz", "/livez", "/healthz"})
_TRUE = frozenset({"1", "true", "True", ""})


class HttpFrontend:
    """Answers HTTP requests. Public attributes may be changed at any time.

    Attributes:
        latency: Seconds that every answer is delayed.
        bookmark_interval: Seconds between bookmarks of a watch that requested them.
        requests: The number of requests by (verb, resource). A path that is no resource counts as ("get", path).
    """

    def __init__(self, store: Store, api: Api, faults: Faults, rights: Rights) -> None:
        self._store = store
        self._api = api
        self._faults = faults
        self._rights = rights
        self._random = random.Random()
        self.latency = 0.0
        self.bookmark_interval = 60.0
        self.requests: Counter[tuple[str, str]] = Counter()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
        try:
            return await self._answer(request)
        except Refusal as refusal:
            return _refused(refusal)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        place = place_of(request)
        verb = verb_of(request, place)
        resource = place.kind.resource if place else request.path
        self.requests[verb, resource] += 1
        if self.latency:
            await asyncio.sleep(self.latency)
        fault = self._faults.next_for(verb, resource)
        if fault is not None and (answer := await self._fail(request, fault)) is not None:
            return answer
        user = self._rights.user(request.headers.get("Authorization", ""))
        if place is None:
            return _plain(request, user)
        self._rights.check(user, verb, place)
        if verb == "watch":
            return await self._watch(request, place)
        answer = await self._do(request, place, verb)
        if fault is not None and fault.action == "lose":
            abort(request)
        return answer

    async def _do(self, request: web.BaseRequest, place: Place, verb: str) -> web.Response:
        if verb == "list":
            return _json(list_body(self._store, place, request.query))
        if verb == "get":
            return self._get(request, place)
        return self._write(request, place, verb, await read_body(request))

    async def _fail(self, request: web.BaseRequest, fault: Fault) -> web.StreamResponse | None:
        """Applies a fault; None = answer normally."""
        if fault.action == "hang":
            await fault.healed.wait()
        elif fault.action == "cut":
            abort(request)
        elif fault.action == "garbage":
            return web.Response(body=fault.body, content_type=fault.content_type)
        elif fault.action == "answer":
            headers = {"Retry-After": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
            if fault.status == 429:
                # The API server's flow control sends this before the request reaches the API, so it is no Status.
                text = fault.message or "Too many requests, please try again later."
                return web.Response(status=429, text=f"{text}\n", headers=headers)
            return _refused(fault.refusal, headers)
        return None

    # --- reading -------------------------------------------------------------------------------

    def _get(self, request: web.BaseRequest, place: Place) -> web.Response:
        version = request.query.get("resourceVersion", "")
        if version and not version.isdigit():
            text = (
                f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
            )
            raise Refusal(500, text, "")
        if version and int(version) > self._store.version:
            raise answers.version_too_large(int(version), self._store.version)
        return self._object(place, self._api.get(place))

    async def _watch(self, request: web.BaseRequest, place: Place) -> web.StreamResponse:
        query = request.query
        match = selection(place, query)
        seconds = integer(query.get("timeoutSeconds") or "0")
        check_watch_options(query)
        if (version := query.get("resourceVersion", "")) and not version.isdigit():
            text = (
                f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
            )
            raise Refusal(500, text, "")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            watcher = self._watcher(place, query, match)
        except Refusal as gone:
            # Measured: a watch at an expired version answers 200 with an ERROR event, which is the only line.
            await response.prepare(request)
            await response.write(event_line("ERROR", msgspec.json.encode(gone.body)))
            return response
        if request.transport is not None:
            watcher.abort = request.transport.abort
        try:
            await response.prepare(request)
            await self._stream(response, watcher, place, query, float(seconds or self._random_seconds()))
        except ConnectionResetError:
            pass  # the client is gone, which is how most watches end
        finally:
            watcher.close()
        return response

    def _watcher(self, place: Place, query: Mapping[str, str], match: Match) -> Watcher:
        """Opens a watch, with the events that it sends at once."""
        table, version = self._store[place.kind], query.get("resourceVersion", "")
        initial = query.get("sendInitialEvents")
        fresh = version in ("", "0") if initial is None else initial in _TRUE
        if not fresh:
            # Initial events are declined and there is no version: the watch starts with the next change.
            return table.watch(match, int(version) if version not in ("", "0") else self._store.version)
        watcher = table.watch(match, self._store.version)
        for stored in sorted(table.objects.values(), key=lambda stored: stored.key):
            if match(stored):
                watcher.push_line(event_line("ADDED", full_body(place.kind, stored.body)))
        if query.get("allowWatchBookmarks") in _TRUE:
            watcher.push_line(self._bookmark(place, initial_end=True))
        return watcher

    async def _stream(
        self, response: web.StreamResponse, watcher: Watcher, place: Place, query: Mapping[str, str], seconds: float
    ) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        marks = query.get("allowWatchBookmarks") in _TRUE
        due = _next_bookmark(clock(), end, self.bookmark_interval) if marks else end
        while True:
            await self._faults.until_unfrozen(watcher.resource)
            if watcher.pending:
                await response.write(watcher.take())
            if watcher.reset:
                watcher.abort()
            if watcher.ended or clock() >= end:
                return
            await watcher.wait(max(0.0, min(due, end) - clock()))
            if marks and not watcher.pending and due <= clock() < end:
                watcher.push_line(self._bookmark(place))
                due = _next_bookmark(clock(), end, self.bookmark_interval)

    def _bookmark(self, place: Place, *, initial_end: bool = False) -> bytes:
        meta: Json = {"resourceVersion": str(self._store.version)}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        kind = place.kind
        return event_line("BOOKMARK", full_body(kind, msgspec.json.encode({"metadata": meta, **kind.empty})))

    def _random_seconds(self) -> float:
        return WATCH_SECONDS * (1.0 + self._random.random())

    # --- writing -------------------------------------------------------------------------------

    def _write(self, request: web.BaseRequest, place: Place, verb: str, body: bytes) -> web.Response:
        dry_run = is_dry_run(request.query, verb)
        if verb == "create":
            return self._object(place, self._api.create(place, decoded(request, place, body), dry_run=dry_run), 201)
        if verb == "update":
            return self._object(place, self._api.update(place, decoded(request, place, body), dry_run=dry_run))
        if verb == "patch":
            change = mutation(request.content_type, place, body)
            return self._object(place, self._api.patch(place, change, dry_run=dry_run))
        options = delete_options(request.query, body)
        dry_run = dry_run or "All" in options.get("dryRun", [])
        if verb == "deletecollection":
            return self._delete_collection(request, place, options, dry_run=dry_run)
        stored, gone = self._api.delete(place, options, dry_run=dry_run)
        if not gone or place.kind.deletion_returns_object:
            return self._object(place, stored)
        details = answers.details_of(stored.name, place.kind.group, place.kind.resource) | {"uid": stored.uid}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return _json(msgspec.json.encode(status))

    def _delete_collection(
        self, request: web.BaseRequest, place: Place, options: Mapping[str, Any], *, dry_run: bool
    ) -> web.Response:
        listed = list_body(self._store, place, request.query)
        match = selection(place, request.query)
        for stored in [stored for stored in self._store[place.kind].objects.values() if match(stored)]:
            self._api.delete(Place(place.kind, stored.namespace, stored.name), options, dry_run=dry_run)
        return _json(listed)

    def _object(self, place: Place, stored: Stored, status: int = 200) -> web.Response:
        return _json(full_body(place.kind, stored.body) + b"\n", status)


# --- answering ---------------------------------------------------------------------------------


def _plain(request: web.BaseRequest, user: str | None) -> web.Response:
    """Answers paths that are no resources."""
    path, public = request.path, request.path in _HEALTH or request.path == "/version"
    if user is None and not (public and request.method == "GET"):
        text = f'forbidden: User "system:anonymous" cannot {request.method.lower()} path "{path}"'
        raise Refusal(403, text, details={})
    if path in _HEALTH:
        return web.Response(text="ok")
    if path == "/version":
        return _json(msgspec.json.encode(VERSION))
    return web.Response(status=404, text="404 page not found\n")


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, headers={"Content-Type": "application/json"})


def _refused(refusal: Refusal, headers: Mapping[str, str] | None = None) -> web.Response:
    response = _json(msgspec.json.encode(refusal.body) + b"\n", refusal.code)
    if refusal.retry_after is not None:
        response.headers["Retry-After"] = str(refusal.retry_after)
    response.headers.update(headers or {})
    return response


def abort(request: web.BaseRequest) -> None:
    """Resets the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("cut on purpose")


def _next_bookmark(now: float, end: float, interval: float) -> float:
    """Returns the time of the next bookmark: every ``interval``, and every second of the lead before the end."""
    lead = end - BOOKMARK_LEAD
    return min(now + interval, lead if now < lead else now + 1.0)
