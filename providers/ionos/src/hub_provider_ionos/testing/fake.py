"""A fake IONOS API for reserved addresses and load balancers, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, cast

from aiohttp import web

from hub_provider_ionos.testing.cloud import Cloud, Object, Problem, expanded, missing
from hub_provider_ionos.testing.network import FakeNetwork

BASE: Final = "/cloudapi/v6"
TOKEN: Final = "fake-token-1"  # noqa: S105 - a fake token

ANSWERS: Final[dict[str, tuple[int, str, dict[str, str]]]] = {
    "garbage": (200, "<html>welcome</html>", {}),
    "no-key": (200, "{}", {}),
    "list": (200, "[]", {}),
    "html": (502, "<html>bad gateway</html>", {}),
    "redirect": (302, "", {}),
    "throttled": (429, '{"message": "rate limit exceeded"}', {"Retry-After": "1"}),
    "throttled-without-time": (429, '{"message": "rate limit exceeded"}', {}),
}
"""Faults with a fixed answer: status, body, headers."""

PROBLEMS: Final[dict[str, Problem]] = {
    "unauthorized": Problem(401, "315", "Unauthorized"),
    "forbidden": Problem(403, "331", "Access Denied"),
    "missing": missing(),
    "conflict": Problem(409, "100", "the resource was changed"),
    "busy": Problem(422, "200", "[VDC-5-1] Operation cannot be executed since this NIC is busy"),
    "used": Problem(422, "100", "[VDC-5-3] IP is already in use"),
    "refused": Problem(422, "100", "[VDC-5-12] Attribute 'name' is too long"),
    "quota": Problem(422, "200", "[VDC-5-9] The resource limit of your contract is exceeded"),
}
"""Faults with an error of the API."""


@dataclass
class Served:
    """A request that the fake received; the status is 0 until it is answered."""

    kind: Literal["read", "write"]
    text: str
    body: str = ""
    status: int = 0


@dataclass
class Fault:
    """A fault that waits for requests; ``left`` None = for all until the fake heals."""

    name: str
    left: int | None
    on: str
    path: str


class IonosFake:
    """An account behind an API on loopback, as an async context manager.

    Attributes:
        cloud: the account; tests change it directly.
        network: its load balancers and IP blocks.
        log: all requests, oldest first.
        token: the accepted token; change it to let it expire.
        limit: requests that are answered before each one is a 429; None = no limit.
        page: the most items in a page, if the request does not ask for fewer.
        latency: seconds before each answer.
        port: of the server; 0 before the start = a free one.
        elsewhere: where redirects lead to.
        shown: called with each request after its answer.
        cut: called with each write; "before" = the connection ends and nothing is made, "after" = it is made, but the
            connection ends without an answer, "" = it is answered.
    """

    def __init__(self, port: int = 0) -> None:
        self.cloud = Cloud()
        self.network = FakeNetwork(self.cloud)
        self.log: list[Served] = []
        self.token = TOKEN
        self.limit: int | None = None
        self.page = 1000
        self.latency = 0.0
        self.port = port
        self.elsewhere = ""
        self.shown: Callable[[Served], object] = _ignore
        self.cut: Callable[[Served], str] = lambda _: ""
        self._faults: list[Fault] = []
        self._healed = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.heal()
        await self._runner.cleanup()

    @property
    def host(self) -> str:
        """Host and port, for ``--allow-api-host``."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The ``apiUrl`` of a configuration."""
        return f"http://{self.host}{BASE}"

    # --- faults --------------------------------------------------------------------------------------

    def fail(self, fault: str, *, times: int | None = 1, on: str = "any", path: str = "") -> None:
        """Makes the next requests fail.

        Args:
            fault: one of :data:`ANSWERS` or :data:`PROBLEMS`, or: error (a 503 that repeats the credential), lost-page
                (pages of two items, and errors after the first page), lost-answer, silent, cut (half a body), slow (a
                body that does not end).
            times: how many requests; None = all until :meth:`heal`.
            on: "read", "write" or "any".
            path: only requests whose path ends with this.
        """
        self._healed.clear()
        if fault == "lost-page":
            self.page = 2
        self._faults.append(Fault(fault, times, on, path))

    def heal(self) -> None:
        """Ends all faults and lets go of silent requests."""
        self._faults.clear()
        self.page = 1000
        self._healed.set()

    def _take(self, kind: str, request: web.Request) -> str:
        """Returns the fault of a request; "" if it shall succeed."""
        first_page = request.query.get("offset", "0") == "0"
        for fault in self._faults:
            if fault.left == 0 or fault.on not in ("any", kind) or not request.path.endswith(fault.path):
                continue
            if fault.name == "lost-page" and first_page:
                continue
            fault.left = None if fault.left is None else fault.left - 1
            return fault.name
        return ""

    # --- serving -------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        kind: Literal["read", "write"] = "read" if request.method == "GET" else "write"
        served = Served(kind, f"{request.method} {request.path_qs.removeprefix(BASE)}")
        self.log.append(served)
        served.body = (await request.read()).decode()
        await asyncio.sleep(self.latency)
        try:
            response = await self._answer(request, served)
        except Problem as problem:
            said = {"httpStatus": problem.status, "messages": [{"errorCode": problem.code, "message": problem.message}]}
            response = web.json_response(said, status=problem.status)
        left = 6000 if self.limit is None else max(0, self.limit - len(self.log))
        response.headers["X-RateLimit-Remaining"] = str(left)
        response.headers["X-RateLimit-Limit"] = str(self.limit or 6000)
        served.status = response.status
        if isinstance(response, _Cut):
            served.status = 0
            if response.part:
                await response.prepare(request)
                await response.write(response.part)
            if response.hang:
                await self._healed.wait()
            if request.transport is not None:
                request.transport.abort()
        self.shown(served)
        return response

    async def _answer(self, request: web.Request, served: Served) -> web.StreamResponse:
        fault = self._take(served.kind, request)
        if fault == "silent":
            await self._healed.wait()
            return _Cut(b"")
        if fault in ("error", "lost-page"):
            raise Problem(503, "0", f"maintenance, with {request.headers.get('Authorization')}")
        if self.limit is not None and len(self.log) > self.limit:
            fault = "throttled"
        if fault in PROBLEMS:
            raise PROBLEMS[fault]
        if fault in ANSWERS:
            status, text, headers = ANSWERS[fault]
            headers = {"Location": f"{self.elsewhere}/elsewhere"} if fault == "redirect" else headers
            return web.Response(status=status, text=text, headers=headers)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise PROBLEMS["unauthorized"]
        self.cloud.settle()
        cut = self.cut(served) if served.kind == "write" else ""
        if cut == "before":
            return _Cut(b"")
        if served.kind == "write":
            body, made = self._write(request, served)
            location = f"https://api.ionos.com{BASE}/requests/{made}/status"
        else:
            body, location = self._read(request), ""
        fault = "lost-answer" if cut else fault
        found = json.dumps(body).encode()
        if fault in ("cut", "slow", "lost-answer"):
            return _Cut(b"" if fault == "lost-answer" else found[: len(found) // 2], hang=fault == "slow")
        more = {"Location": location} if location else {}
        status = 202 if location else 200
        return web.Response(status=status, body=found, content_type="application/json", headers=more)

    def _read(self, request: web.Request) -> Object:
        """Returns the body of the answer to a GET."""
        cloud, network = self.cloud, self.network
        depth = int(request.query.get("depth", "0"))
        match request.path.removeprefix(BASE).strip("/").split("/"):
            case ["ipblocks"]:
                return self._page(request, network.listed())
            case ["datacenters", identity] if identity in cloud.datacenters:
                return {"id": identity, "properties": {"location": cloud.datacenters[identity].location}}
            case ["datacenters", identity, "networkloadbalancers"] if identity in cloud.datacenters:
                return self._page(request, network.listed(identity))
            case ["datacenters", identity, "servers"] if identity in cloud.datacenters:
                return self._page(request, list(cloud.datacenters[identity].servers.values()))
            case ["datacenters", identity, "lans"] if identity in cloud.datacenters:
                return self._page(request, list(cloud.datacenters[identity].lans.values()))
            case ["datacenters", identity, "servers", server, "nics", nic]:
                return expanded(cloud.find_nic(identity, server, nic), depth + 1)
            case ["requests"]:
                wanted = request.query.get("filter.url", "")
                ids = [identity for identity, change in cloud.requests.items() if wanted in change.path]
                return self._page(request, [cloud.show_request(identity) for identity in ids])
            case ["requests", identity, "status"]:
                return cloud.show_status(identity)
            case _:
                raise missing()

    def _write(self, request: web.Request, served: Served) -> tuple[Object, str]:
        """Returns the body of the answer to a change, and the id of its request."""
        path = request.path.removeprefix(BASE)
        parts, body = path.strip("/").split("/"), cast("dict[str, Any]", json.loads(served.body or "{}"))
        match request.method, parts:
            case "PATCH", ["datacenters", identity, "servers", server, "nics", nic]:
                found = self.cloud.find_nic(identity, server, nic)
                made = self.cloud.patch_nic(path, found, body)
            case _:
                found, made = self._network(request.method, parts, body)
        return expanded(found, 1), made

    def _network(self, method: str, parts: list[str], body: Object) -> tuple[Object, str]:
        """Returns an object of a load balancer that a write is about, and the id of the request."""
        network, known = self.network, self.cloud.datacenters
        match method, parts:
            case "POST", ["ipblocks"]:
                return network.create_block(body)
            case "PATCH", ["ipblocks", id_]:
                return network.change_block(id_, body)
            case "DELETE", ["ipblocks", id_]:
                return network.delete_block(id_)
            case "POST", ["datacenters", dc, "networkloadbalancers"] if dc in known:
                return network.create_balancer(dc, body)
            case "PATCH", ["datacenters", dc, "networkloadbalancers", id_] if dc in known:
                return network.change_balancer(dc, id_, body)
            case "DELETE", ["datacenters", dc, "networkloadbalancers", id_] if dc in known:
                return network.delete_balancer(dc, id_)
            case "POST", ["datacenters", dc, "networkloadbalancers", id_, "forwardingrules"] if dc in known:
                return network.create_rule(dc, id_, body)
            case "PATCH", ["datacenters", dc, "networkloadbalancers", id_, "forwardingrules", rule] if dc in known:
                return network.change_rule(dc, id_, rule, body)
            case "DELETE", ["datacenters", dc, "networkloadbalancers", id_, "forwardingrules", rule] if dc in known:
                return network.delete_rule(dc, id_, rule)
            case _:
                raise missing()

    def _page(self, request: web.Request, rows: list[Object]) -> Object:
        offset, limit = int(request.query.get("offset", "0")), int(request.query.get("limit", "100"))
        limit = min(limit, self.page)
        end, depth = offset + limit, int(request.query.get("depth", "0"))
        links = {"next": f"https://api.ionos.com{request.path}?offset={end}"} if end < len(rows) else {}
        items = {"items": [expanded(row, depth) for row in rows[offset:end]]} if depth else {}
        return {"id": "list", "type": "collection", **items, "offset": offset, "limit": limit, "_links": links}


def _ignore(_: Served) -> None:
    """Shows nothing."""


class _Cut(web.StreamResponse):
    """An answer whose connection breaks after a part of its body.

    Args:
        part: the part; empty = not even the status is sent.
        hang: whether the connection stays open until the fake heals.
    """

    def __init__(self, part: bytes, *, hang: bool = False) -> None:
        super().__init__(headers={"Content-Length": "1000000"})
        self.part = part
        self.hang = hang
