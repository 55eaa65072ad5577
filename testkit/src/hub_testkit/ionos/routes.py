"""The fake's answers without faults: objects at a depth, pages, changes that are done later."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

from aiohttp import web

from hub_testkit.ionos import shapes
from hub_testkit.ionos.contents import BASE, Contents
from hub_testkit.ionos.shapes import Object

BODY: Final = web.RequestKey("body", Object)
DEFAULT_LIMIT: Final = 100
"""Items of a page if the request has no limit."""

Handler = Callable[[web.Request], web.Response]


class Routes(Contents):
    """The contents as the API returns them.

    Args:
        max_limit: The most items of a page, whatever limit is requested.
        tls: Serve https with this context; None = http.

    Attributes:
        on_page: Called with the offset before each page of servers.
        names_next: Whether a page links to the next one.
        pages_nodes: Lists of node pools and their nodes end after this number of items, with a link to a next page that
            cannot be requested; None = they are complete.
        busy_for: The number of requests to ``requests/ID/status`` until a change is done.
        fail_changes: Whether changes end as FAILED.
    """

    def __init__(self, max_limit: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(tls)
        self.max_limit = max_limit
        self.on_page: Callable[[int], None] | None = None
        self.names_next = True
        self.pages_nodes: int | None = None
        self.busy_for = 1
        self.fail_changes = False
        self._pending: dict[str, tuple[int, Object, Object]] = {}

    def _reads(self) -> Mapping[str, tuple[str, Handler]]:
        """Returns the paths of GET requests, each with the name that it is counted under and its handler."""
        one = "/datacenters/{dc}"
        return {
            one: ("datacenters", self._datacenter),
            f"{one}/servers": ("datacenters/servers", self._servers),
            f"{one}/servers/{{server}}": ("datacenters/server", self._server),
            f"{one}/lans": ("datacenters/lans", self._lans),
            "/requests/{request}/status": ("requests/status", self._request_status),
            "/k8s/{k8s}/nodepools": ("k8s/nodepools", self._pools),
            "/k8s/{k8s}/nodepools/{pool}/nodes": ("k8s/nodes", self._nodes),
        }

    def _datacenter(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        if found is None:
            return missing()
        properties = {"name": found.name, "location": found.location, "version": 1}
        return web.json_response({"id": found.id, "type": "datacenter", "properties": properties})

    def _servers(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        if self.on_page is not None:
            self.on_page(int(request.query.get("offset", 0)))
        return missing() if found is None else self._page(request, list(found.servers.values()))

    def _lans(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        return missing() if found is None else self._page(request, list(found.lans.values()))

    def _server(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        server = found.servers.get(request.match_info["server"]) if found else None
        depth = int(request.query.get("depth", 0))
        return missing() if server is None else web.json_response(shapes.expanded(server, depth + 1))

    def _pools(self, request: web.Request) -> web.Response:
        pools = self.k8s.get(request.match_info["k8s"])
        if pools is None:
            return missing()
        items = [{"id": pool, "type": "nodepool", "properties": {"name": pool[:8]}} for pool in pools]
        return self._unpaged(request, items)

    def _nodes(self, request: web.Request) -> web.Response:
        nodes = self.k8s.get(request.match_info["k8s"], {}).get(request.match_info["pool"])
        return missing() if nodes is None else self._unpaged(request, list(nodes.values()))

    def _patch_nic(self, request: web.Request) -> web.Response:
        found = self.datacenters.get(request.match_info["dc"])
        server: Object | None = found.servers.get(request.match_info["server"]) if found else None
        nics: list[Object] = server["entities"]["nics"]["items"] if server else []
        nic = next((nic for nic in nics if nic["id"] == request.match_info["nic"]), None)
        if server is None or nic is None:
            return missing()
        change = request[BODY]
        if not change.get("ips", [""]):  # null and [] let the API choose an address
            change = {**change, "ips": (nic["properties"]["ips"] or ["10.7.255.254"])[:1]}
        identity = str(uuid4())
        self._pending[identity] = (self.busy_for, nic, change)
        nic["metadata"]["state"] = server["metadata"]["state"] = "BUSY"
        location = f"{self.url}/requests/{identity}/status"
        return web.json_response(shapes.expanded(nic, 1), status=202, headers={"Location": location})

    def _request_status(self, request: web.Request) -> web.Response:
        identity = request.match_info["request"]
        if identity not in self._pending:
            return missing()
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

    def _page(self, request: web.Request, items: list[Object]) -> web.Response:
        offset = int(request.query.get("offset", 0))
        limit = min(int(request.query.get("limit", DEFAULT_LIMIT)), self.max_limit)
        depth = int(request.query.get("depth", 0))
        links = {"self": str(request.url)}
        if self.names_next and offset + limit < len(items):
            links["next"] = f"{self.url}{request.path.removeprefix(BASE)}?offset={offset + limit}&limit={limit}"
        body: Object = {"id": "list", "type": "collection", "href": str(request.url)}
        if depth > 0:
            body["items"] = [shapes.expanded(item, depth) for item in items[offset : offset + limit]]
        return web.json_response({**body, "offset": offset, "limit": limit, "_links": links})

    def _unpaged(self, request: web.Request, items: list[Object]) -> web.Response:
        depth = int(request.query.get("depth", 0))
        shown = items[: self.pages_nodes]
        listed: Object = {"items": [shapes.expanded(item, depth) for item in shown]} if depth > 0 else {}
        if len(shown) < len(items):
            listed["_links"] = {"next": f"{self.url}{request.path.removeprefix(BASE)}?offset={len(shown)}"}
        return web.json_response({"id": "list", "type": "collection", **listed})


def refusal(status: int, code: str, message: str) -> web.Response:
    """Returns an error answer in the API's form."""
    return web.json_response(shapes.refusal(status, code, message), status=status)


def missing() -> web.Response:
    """Returns the API's 404."""
    return refusal(404, "309", "Resource does not exist")
