"""The fake as a server on loopback: tokens, pages, and faults."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import urlencode

from aiohttp import web

from hub_provider_azure.testing.cloud import SUBSCRIPTION, Cloud, Document, Refusal, Request

TENANT = "40000000-0000-4000-8000-000000000001"
CLIENT = "50000000-0000-4000-8000-000000000001"

Fault = Literal[
    "error",
    "garbage",
    "no-key",
    "no-list",
    "lost-page",
    "cut",
    "slow",
    "lost-answer",
    "unauthorized",
    "throttled",
    "silent",
]


@dataclass(slots=True)
class _Broken:
    fault: Fault
    left: int | None
    on: Literal["any", "read", "write"]


class FakeAzure(Cloud):
    """The fake. It serves inside ``async with``.

    Args:
        clock: returns the time in seconds.
        port: where to listen; 0 = any free port.
        printer: called with a line for each request.

    Attributes:
        client_secret: the accepted secret; change it to let a login fail.
        token_seconds: how long a token is valid.
        tokens: all tokens that were issued.
        valid: those that are accepted; clear it to let them expire.
        requests: all requests so far.
        latency: seconds that every answer takes.
        page: the most items of a page.
        foreign_next: whether the next page is on another host.
        retry_after: Retry-After of a 429; "" = none.
        polling: Retry-After of operations; "" = none.
        named: whether the answer to a PUT names its operation.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        port: int = 0,
        printer: Callable[[str], object] = lambda _: None,
    ) -> None:
        super().__init__(clock)
        self.client_secret = "fake~client~secret"  # noqa: S105 - not a secret
        self.token_seconds = 3600
        self.tokens: list[str] = []
        self.valid: set[str] = set()
        self.requests: list[Request] = []
        self.latency = 0.0
        self.page = 100
        self.foreign_next = False
        self.retry_after = "1"
        self.polling = ""
        self.named = True
        self.cannot: dict[Any, str] = {}
        self._printer = printer
        self._faults: list[_Broken] = []
        self._healed = asyncio.Event()
        self._port = port
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._healed.set()
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def host(self) -> str:
        """The value for ``--allow-api-host``."""
        return f"127.0.0.1:{self._port}"

    @property
    def config(self) -> dict[str, Any]:
        """``config`` of an account; the client secret is in the environment variable AZURE_CLIENT_SECRET."""
        return {
            "subscription": SUBSCRIPTION,
            "resourceGroups": [self.group.upper()],
            "credentials": {
                "tenantId": TENANT,
                "clientId": CLIENT,
                "clientSecret": {"env": "AZURE_CLIENT_SECRET"},
            },
            "endpoint": f"http://{self.host}",
            "authority": f"http://{self.host}",
        }

    # --- faults ----------------------------------------------------------------------------------------

    def operations(self, seconds: float, *, ill: bool = False) -> None:
        """Sets how long the next operations take; ``inf`` = for ever."""
        self.length, self.ill = seconds, "InternalServerError" if ill else ""

    def fail(self, fault: Fault, *, times: int | None = 1, on: Literal["any", "read", "write"] = "any") -> None:
        """Makes the next requests fail.

        Besides the kit's faults: no-list answers ``[]``; cut and slow stop inside a body, and cut ends the connection.
        """
        self._faults.append(_Broken(fault, times, on))

    def heal(self) -> None:
        """Ends all faults."""
        self._faults.clear()
        self._healed.set()
        self._healed = asyncio.Event()

    def _fault(self, request: web.Request, kind: str) -> Fault | None:
        for broken in self._faults:
            second = "$skiptoken" in request.query
            if broken.on not in ("any", kind) or (broken.fault == "lost-page" and not second):
                continue
            if broken.left is not None:
                broken.left -= 1
                if broken.left <= 0:
                    self._faults.remove(broken)
            return broken.fault
        return None

    # --- answers ---------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.lower()
        login = "/oauth2/" in path
        kind: Literal["read", "write", "login"] = "login" if login else "read" if request.method == "GET" else "write"
        made = Request(kind, f"{request.method} {path}")
        self.requests.append(made)
        if self.latency:
            await asyncio.sleep(self.latency)
        body = await request.text()
        answer = self._token(request, await request.post()) if login else await self._resource(request, kind, body)
        made.status = 0 if request.transport is None or request.transport.is_closing() else answer.status
        self._printer(f"{made.status} {made.text}")
        return answer

    def _token(self, request: web.Request, form: Mapping[str, Any]) -> web.Response:
        if request.method == "GET":
            accepted = request.headers.get("Metadata") == "true"
        else:
            accepted = form.get("client_secret") == self.client_secret or "client_assertion" in form
        if not accepted:
            text = f"AADSTS7000215: Invalid client secret provided: {form.get('client_secret')}"
            return _json({"error": "invalid_client", "error_description": text}, 401)
        token = f"eyJ0eXAi.fake-access-token-{len(self.tokens) + 1}.c2lnbmF0dXJl"
        self.tokens.append(token)
        self.valid.add(token)
        expires = int(time.time()) + self.token_seconds
        answer = {"access_token": token, "expires_in": self.token_seconds, "expires_on": str(expires), "resource": "x"}
        return _json(answer | {"token_type": "Bearer"})

    def _broken(self, fault: Fault | None, authorization: str) -> web.Response | None:
        """Returns the answer without effect that a fault or a wrong token leads to."""
        if fault == "throttled":
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return _json({"error": {"code": "TooManyRequests", "message": "too many requests"}}, 429, headers)
        if fault == "error":
            return web.Response(status=500, text=f"<html>failed for {authorization}</html>", content_type="text/html")
        if fault == "unauthorized" or authorization.removeprefix("Bearer ") not in self.valid:
            text = f"the token {authorization} has expired"
            return _json({"error": {"code": "ExpiredAuthenticationToken", "message": text}}, 401)
        if fault in ("no-key", "lost-page", "no-list"):
            return _json([] if fault == "no-list" else {})
        return None

    async def _resource(self, request: web.Request, kind: str, body: str) -> web.StreamResponse:
        fault = self._fault(request, kind)
        if fault == "silent":
            await self._healed.wait()
        if broken := self._broken(fault, request.headers.get("Authorization", "")):
            return broken
        try:
            answer = self._route(request, body)
        except Refusal as refusal:
            answer = _json(refusal.body, refusal.status)
        if fault == "garbage":
            return web.Response(text="<html>welcome</html>", content_type="text/html")
        if fault == "lost-answer" and request.transport is not None:
            request.transport.abort()
        if fault in ("cut", "slow"):
            return await self._cut(request, slow=fault == "slow")
        return answer

    async def _cut(self, request: web.Request, *, slow: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"value": [')
        if slow:
            await self._healed.wait()
        if request.transport is not None:
            request.transport.abort()
        return response

    def _route(self, request: web.Request, body: str) -> web.Response:
        self.settle()
        key, method = request.path.lower(), request.method
        if "api-version" not in request.query:
            raise Refusal(400, "MissingApiVersionParameter")
        if not key.startswith(f"/subscriptions/{SUBSCRIPTION}/"):
            raise Refusal(404, "SubscriptionNotFound")
        if "/locations/" in key:
            return self._operation(key.rpartition("/")[2])
        if key.endswith("/publicipaddresses"):
            return self._list(request, key)
        if method == "PUT":
            return self._put(key, json.loads(body), request.headers.get("If-Match"))
        found = self.addresses.get(key) or self.interfaces.get(key) or self.machines.get(key)
        if found is None:
            raise Refusal(404, "ResourceNotFound", f"The Resource '{key}' was not found.")
        if key in self.machines and request.query.get("$expand") != "instanceView":
            found = found | {"properties": {k: v for k, v in found["properties"].items() if k != "instanceView"}}
        return _json(found)

    def _list(self, request: web.Request, key: str) -> web.Response:
        prefix = key.removesuffix("providers/microsoft.network/publicipaddresses")
        if "/resourcegroups/" in prefix and f"/resourcegroups/{self.group.lower()}/" not in prefix:
            raise Refusal(404, "ResourceGroupNotFound")
        items: list[Document] = [document for id_, document in sorted(self.addresses.items()) if id_.startswith(prefix)]
        lost = any(broken.fault == "lost-page" for broken in self._faults)
        size = len(items) // 2 if lost else self.page
        start = int(request.query.get("$skiptoken", "0"))
        answer: Document = {"value": items[start : start + size]}
        if start + size < len(items) or (lost and not start):
            query = urlencode({"api-version": request.query["api-version"], "$skiptoken": start + size})
            host = "example.invalid" if self.foreign_next else self.host
            answer["nextLink"] = f"http://{host}{request.path}?{query}"
        return _json(answer)

    def _put(self, key: str, sent: Document, etag: str | None) -> web.Response:
        id_, document = self.put(key, sent, etag)
        path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Network/locations/{self.region}/operations/{id_}"
        headers = (
            {}
            if not self.named
            else {"Azure-AsyncOperation": f"https://elsewhere.invalid{path}?api-version=2024-05-01&t=1&c=MII&s=x"}
        )
        return _json(document, 200, headers | ({"Retry-After": self.polling} if self.polling else {}))

    def _operation(self, id_: str) -> web.Response:
        operation = self.pending.get(id_)
        if operation is None:
            raise Refusal(404, "NotFound")
        headers = {"Retry-After": self.polling} if self.polling else {}
        if not operation.ended:
            return _json({"status": "InProgress"}, 200, headers)
        if operation.error:
            return _json({"status": "Failed", "error": {"code": operation.error, "message": "made to fail"}})
        return _json({"status": "Succeeded"})


def _json(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(body, status=status, headers=headers)
