"""The fake's state, routes and faults."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self
from uuid import uuid4

from aiohttp import web

from hub_provider_ionos.testing import shapes
from hub_provider_ionos.testing.shapes import Object

BASE: Final = "/cloudapi/v6"
BODY: Final = web.RequestKey("body", Object)
DEFAULT_LIMIT: Final = 100
"""Items of a page where none are asked for."""


@dataclass(slots=True)
class Fault:
    """What a request meets instead of an answer.

    Attributes:
        status, body, content_type: of the answer.
        headers: beside the usual ones.
        cut: end the connection in the middle of the body.
        trickle: seconds between single bytes of the body; 0 = all at once.
        hang: do not answer.
        path: only requests whose path ends with it.
        left: requests it still takes; None = all until :meth:`FakeIonos.heal`.
        skip: requests it lets pass before.
    """

    status: int = 503
    body: str = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    trickle: float = 0.0
    hang: bool = False
    path: str = ""
    left: int | None = 1
    skip: int = 0


@dataclass(slots=True)
class Datacenter:
    """Its servers and LANs by id, as the API shows them at full depth."""

    id: str
    name: str
    location: str
    servers: dict[str, Object] = field(default_factory=dict[str, Object])
    lans: dict[str, Object] = field(default_factory=dict[str, Object])


class FakeIonos:
    """Serves inside ``async with``.

    Args:
        token: the one that is accepted; change :attr:`token` and it has expired.
        max_limit: items a page holds at most, whatever is asked.

    Attributes:
        requests: path without ids -> times it was asked for, ``datacenters/servers``.
        paths: every request's path and query in order.
        headers: of the last request.
        username, password: accepted beside the token, where set.
        contract: the contract number that must come along; None = none need.
        latency: seconds every answer takes.
        rate_limit: requests that are answered before a 429; None = no limit, :meth:`refill` starts anew.
        rate_remaining: what X-RateLimit-Remaining says instead of the truth; None = the truth.
        retry_after: what a 429 says; "" = the header is left out.
        on_page: called before each page of servers with its offset.
        busy_for: requests to ``requests/ID/status`` until a change is done.
        fail_changes: changes end as FAILED.
        in_flight, most_in_flight: requests under way now, and at most ever.
    """

    def __init__(self, token: str = "fake-token", max_limit: int = 10_000) -> None:  # noqa: S107 - of a fake
        self.token = token
        self.max_limit = max_limit
        self.username = ""
        self.password = ""
        self.contract: int | None = None
        self.latency = 0.0
        self.rate_limit: int | None = None
        self.rate_remaining: int | None = None
        self.retry_after = "1"
        self.on_page: Callable[[int], None] | None = None
        self.busy_for = 1
        self.fail_changes = False
        self.datacenters: dict[str, Datacenter] = {}
        self.k8s: dict[str, dict[str, dict[str, Object]]] = {}
        """Cluster -> pool -> node id -> node."""
        self.requests: Counter[str] = Counter()
        self.paths: list[str] = []
        self.headers: Mapping[str, str] = {}
        self.in_flight = 0
        self.most_in_flight = 0
        self._spent = 0
        self._faults: list[Fault] = []
        self._pending: dict[str, tuple[int, Object, Object]] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._hanging = asyncio.Event()

    # --- serving ---------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """``apiUrl``."""
        return f"http://{self.host}{BASE}"

    @property
    def host(self) -> str:
        """For ``--allow-api-host``."""
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        app = web.Application()
        one = "/datacenters/{dc}"
        app.router.add_get(f"{BASE}{one}", self._answer(self._datacenter, "datacenters"))
        app.router.add_get(f"{BASE}{one}/servers", self._answer(self._servers, "datacenters/servers"))
        app.router.add_get(f"{BASE}{one}/servers/{{server}}", self._answer(self._server, "datacenters/server"))
        app.router.add_patch(f"{BASE}{one}/servers/{{server}}/nics/{{nic}}", self._answer(self._patch_nic, "nics"))
        app.router.add_get(f"{BASE}{one}/lans", self._answer(self._lans, "datacenters/lans"))
        app.router.add_get(f"{BASE}/requests/{{request}}/status", self._answer(self._request_status, "requests/status"))
        app.router.add_get(f"{BASE}/k8s/{{k8s}}/nodepools", self._answer(self._pools, "k8s/nodepools"))
        app.router.add_get(f"{BASE}/k8s/{{k8s}}/nodepools/{{pool}}/nodes", self._answer(self._nodes, "k8s/nodes"))
        app.router.add_route("*", "/{tail:.*}", self._answer(self._nothing, "unknown"))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._hanging.set()
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None
        self._hanging = asyncio.Event()

    # --- what there is ---------------------------------------------------------------------------------

    def add_datacenter(self, name: str = "dc", location: str = "de/fra", identity: str = "") -> str:
        """A data center with no servers; its id."""
        identity = identity or str(uuid4())
        self.datacenters[identity] = Datacenter(identity, name, location)
        return identity

    def add_server(
        self,
        datacenter: str,
        name: str,
        *ips: str,
        lan: int = 2,
        identity: str = "",
        zone: str = "AUTO",
        ipv6: Sequence[str] = (),
        null_ips: bool = False,
    ) -> str:
        """A running server with a NIC on one LAN; its id.

        ``ips`` are the NIC's; a load balancer's secondary address is one more of them. With ``null_ips`` the NIC says
        ``ips: null``, as one does that waits for its address.
        """
        identity = identity or str(uuid4())
        href = f"{self.url}/datacenters/{datacenter}/servers/{identity}"
        self.datacenters[datacenter].servers[identity] = shapes.server(identity, name, zone, href)
        self.add_lan(datacenter, lan)
        self.add_nic(datacenter, identity, *ips, lan=lan, ipv6=ipv6, null_ips=null_ips)
        return identity

    def add_nic(
        self, datacenter: str, server: str, *ips: str, lan: int, ipv6: Sequence[str] = (), null_ips: bool = False
    ) -> str:
        """One more NIC; its id."""
        items = self.server(datacenter, server)["entities"]["nics"]["items"]
        made = shapes.nic(len(items), lan, None if null_ips else ips, ipv6)
        items.append(made)
        return str(made["id"])

    def add_lan(self, datacenter: str, lan: int, *failover: str, public: bool = False) -> None:
        """A LAN, with the addresses of its failover groups."""
        lans = self.datacenters[datacenter].lans
        made = lans.setdefault(str(lan), shapes.lan(lan, public=public))
        if failover:
            made["properties"]["ipFailover"] = [{"ip": ip, "nicUuid": str(uuid4())} for ip in failover]

    def add_pool_node(self, cluster: str, name: str, private: str = "", public: str = "", pool: str = "") -> str:
        """A node of a managed Kubernetes cluster; its id."""
        identity = str(uuid4())
        pools = self.k8s.setdefault(cluster, {})
        pool = pool or next(iter(pools), str(uuid4()))
        pools.setdefault(pool, {})[identity] = shapes.pool_node(identity, name, private, public)
        return identity

    def server(self, datacenter: str, server: str) -> Object:
        """A server as it is kept; may be changed."""
        return self.datacenters[datacenter].servers[server]

    def set_state(self, datacenter: str, server: str, vm_state: str) -> None:
        """``RUNNING``, ``SHUTOFF``, …."""
        self.server(datacenter, server)["properties"]["vmState"] = vm_state

    def remove_server(self, datacenter: str, server: str) -> None:
        """It is gone."""
        del self.datacenters[datacenter].servers[server]

    # --- what goes wrong -------------------------------------------------------------------------------

    def fail_next(self, status: int = 503, times: int | None = 1, **fault: Any) -> None:
        """The next requests (None = all) are answered by a :class:`Fault`."""
        body = fault.pop(
            "body", "" if status == 200 else json.dumps(shapes.refusal(status, str(status), "made to fail"))
        )
        self._faults.append(Fault(status=status, body=body, left=times, **fault))

    def heal(self) -> None:
        """All faults end."""
        self._faults.clear()
        self._hanging.set()
        self._hanging = asyncio.Event()

    def refill(self) -> None:
        """A new minute begins for the rate limit."""
        self._spent = 0

    # --- answers ---------------------------------------------------------------------------------------

    def _answer(
        self, handler: Callable[[web.Request], web.Response], name: str
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            self.requests[name] += 1
            self.paths.append(request.path_qs)
            self.headers = dict(request.headers)
            if request.method == "PATCH":
                request[BODY] = await request.json()
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                if self.latency:
                    await asyncio.sleep(self.latency)
                fault = self._fault(request)
                response = await self._broken(request, fault) if fault else self._checked(request, handler)
            finally:
                self.in_flight -= 1
            return response

        return answer

    def _checked(self, request: web.Request, handler: Callable[[web.Request], web.Response]) -> web.Response:
        self._spent += 1
        limit = self.rate_limit if self.rate_limit is not None else 6000
        left = max(0, limit - self._spent)
        if self.rate_limit is not None and self._spent > self.rate_limit:
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            response = web.json_response({"message": "rate limit exceeded"}, status=429, headers=headers)
        elif not self._authorised(request):
            response = _refusal(401, "315", "Unauthorized")
        elif self.contract is not None and request.headers.get("X-Contract-Number") != str(self.contract):
            response = _refusal(403, "301", "the contract is not yours")
        else:
            response = handler(request)
        shown = left if self.rate_remaining is None else self.rate_remaining
        response.headers.update(
            {"X-RateLimit-Remaining": str(shown), "X-RateLimit-Limit": str(limit), "X-RateLimit-Burst": "10"}
        )
        return response

    def _authorised(self, request: web.Request) -> bool:
        sent = request.headers.get("Authorization", "")
        basic = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return sent == f"Bearer {self.token}" or (bool(self.username) and sent == f"Basic {basic}")

    def _fault(self, request: web.Request) -> Fault | None:
        for fault in self._faults:
            if not request.path.endswith(fault.path):
                continue
            if fault.skip:
                fault.skip -= 1
                return None
            if fault.left is not None:
                fault.left -= 1
                if fault.left <= 0:
                    self._faults.remove(fault)
            return fault
        return None

    async def _broken(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.hang:
            await self._hanging.wait()
        headers = {"Content-Type": fault.content_type, **fault.headers}
        if not fault.cut and not fault.trickle:
            return web.Response(status=fault.status, text=fault.body, headers=headers)
        response = web.StreamResponse(status=fault.status, headers=headers)
        body = fault.body.encode() or b'{"items": []'
        response.content_length = len(body) + 100
        await response.prepare(request)
        for byte in body:
            await response.write(bytes([byte]))
            if fault.trickle:
                await asyncio.sleep(fault.trickle)
        if request.transport is not None:
            request.transport.abort()
        return response

    # --- routes ----------------------------------------------------------------------------------------

    def _datacenter(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        if found is None:
            return _missing()
        properties = {"name": found.name, "location": found.location, "version": 1}
        return web.json_response({"id": found.id, "type": "datacenter", "properties": properties})

    def _servers(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        if self.on_page is not None:
            self.on_page(int(request.query.get("offset", 0)))
        return _missing() if found is None else self._page(request, list(found.servers.values()))

    def _lans(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        return _missing() if found is None else self._page(request, list(found.lans.values()))

    def _server(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        server = found.servers.get(request.match_info["server"]) if found else None
        depth = int(request.query.get("depth", 0))
        return _missing() if server is None else web.json_response(shapes.expanded(server, depth + 1))

    def _pools(self, request: web.Request) -> web.Response:
        pools = self.k8s.get(request.match_info["k8s"])
        if pools is None:
            return _missing()
        items = [{"id": pool, "type": "nodepool", "properties": {"name": pool[:8]}} for pool in pools]
        return self._unpaged(request, items)

    def _nodes(self, request: web.Request) -> web.Response:
        nodes = self.k8s.get(request.match_info["k8s"], {}).get(request.match_info["pool"])
        return _missing() if nodes is None else self._unpaged(request, list(nodes.values()))

    def _patch_nic(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        server: Object | None = found.servers.get(request.match_info["server"]) if found else None
        nics: list[Object] = server["entities"]["nics"]["items"] if server else []
        nic = next((each for each in nics if each["id"] == request.match_info["nic"]), None)
        if server is None or nic is None:
            return _missing()
        change = request[BODY]
        if not change.get("ips", [""]):  # null and [] mean: choose one
            change = {**change, "ips": (nic["properties"]["ips"] or ["10.7.255.254"])[:1]}
        identity = str(uuid4())
        self._pending[identity] = (self.busy_for, nic, change)
        nic["metadata"]["state"] = server["metadata"]["state"] = "BUSY"
        location = f"{self.url}/requests/{identity}/status"
        return web.json_response(shapes.expanded(nic, 1), status=202, headers={"Location": location})

    def _request_status(self, request: web.Request) -> web.Response:
        identity = request.match_info["request"]
        if identity not in self._pending:
            return _missing()
        left, nic, change = self._pending[identity]
        self._pending[identity] = (left - 1, nic, change)
        status = "RUNNING" if left > 0 else "FAILED" if self.fail_changes else "DONE"
        if left <= 0:
            self._finish(nic, change)
        return web.json_response({"id": identity, "metadata": {"status": status, "message": "", "targets": []}})

    def _finish(self, nic: Object, change: Object) -> None:
        if not self.fail_changes:
            nic["properties"].update(change)
        nic["metadata"]["state"] = "AVAILABLE"
        for datacenter in self.datacenters.values():
            for server in datacenter.servers.values():
                if nic in server["entities"]["nics"]["items"]:
                    server["metadata"]["state"] = "AVAILABLE"

    def _nothing(self, _request: web.Request) -> web.Response:
        return _missing()

    def _page(self, request: web.Request, items: list[Object]) -> web.Response:
        offset = int(request.query.get("offset", 0))
        limit = min(int(request.query.get("limit", DEFAULT_LIMIT)), self.max_limit)
        depth = int(request.query.get("depth", 0))
        links = {"self": str(request.url)}
        if offset + limit < len(items):
            links["next"] = f"{self.url}{request.path.removeprefix(BASE)}?offset={offset + limit}&limit={limit}"
        body: Object = {"id": "list", "type": "collection", "href": str(request.url)}
        if depth > 0:
            body["items"] = [shapes.expanded(item, depth) for item in items[offset : offset + limit]]
        return web.json_response({**body, "offset": offset, "limit": limit, "_links": links})

    def _unpaged(self, request: web.Request, items: list[Object]) -> web.Response:
        depth = int(request.query.get("depth", 0))
        listed = {"items": [shapes.expanded(item, depth) for item in items]} if depth > 0 else {}
        return web.json_response({"id": "list", "type": "collection", **listed})


def _refusal(status: int, code: str, message: str) -> web.Response:
    return web.json_response(shapes.refusal(status, code, message), status=status)


def _missing() -> web.Response:
    return _refusal(404, "309", "Resource does not exist")
