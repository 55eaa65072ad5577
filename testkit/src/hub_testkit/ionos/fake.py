"""The fake as a server: credentials, rate limit and faults."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from hub_testkit.ionos import shapes
from hub_testkit.ionos.contents import BASE
from hub_testkit.ionos.routes import BODY, Handler, Routes, missing, refusal


@dataclass(slots=True)
class Fault:
    """A fault that matching requests get instead of the usual answer.

    Attributes:
        status, body, content_type: The answer.
        headers: Additional headers of the answer.
        cut: Reset the connection in the middle of the body.
        trickle: Seconds between single bytes of the body; 0 = all at once.
        trickle_headers: Send headers byte by byte, every ``trickle`` seconds, without end.
        hang: Do not answer until :meth:`FakeIonos.heal`.
        path: Only requests whose path ends with this are affected.
        left: How many requests are still affected; None = all until :meth:`FakeIonos.heal`.
        skip: How many matching requests are answered normally before.
    """

    status: int = 503
    body: str = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    trickle: float = 0.0
    trickle_headers: bool = False
    hang: bool = False
    path: str = ""
    left: int | None = 1
    skip: int = 0


class FakeIonos(Routes):
    """The fake API. It serves inside ``async with``.

    Args:
        token: The accepted token; change :attr:`token` to let it expire.
        max_limit: The most items of a page, whatever limit is requested.
        tls: Serve https with this context; None = http.

    Attributes:
        requests: The number of requests by path without ids, such as ``datacenters/servers``.
        paths: Path and query of every request, in order.
        headers: Headers of the last request.
        username, password: Accepted in addition to the token, if ``username`` is set.
        contract: The contract number that requests must have; None = none is required.
        latency: Seconds that every answer takes.
        rate_limit: The number of requests that are answered before a 429; :meth:`refill` counts from 0 again. None = no
            limit.
        rate_remaining: The value of X-RateLimit-Remaining; None = the number of requests that are left.
        retry_after: The value of Retry-After in a 429; "" = no such header.
        in_flight, most_in_flight: Requests in progress now, and the most at any time.
    """

    def __init__(
        self,
        token: str = "fake-token",  # noqa: S107 - a fake token
        max_limit: int = 10_000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(max_limit, tls)
        self.token = token
        self.username = ""
        self.password = ""
        self.contract: int | None = None
        self.latency = 0.0
        self.rate_limit: int | None = None
        self.rate_remaining: int | None = None
        self.retry_after = "1"
        self.requests: Counter[str] = Counter()
        self.paths: list[str] = []
        self.headers: Mapping[str, str] = {}
        self.in_flight = 0
        self.most_in_flight = 0
        self._spent = 0
        self._faults: list[Fault] = []
        self._runner: web.AppRunner | None = None
        self._hanging = asyncio.Event()

    # --- serving ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        app = web.Application()
        for path, (name, handler) in self._reads().items():
            app.router.add_get(f"{BASE}{path}", self._answer(handler, name))
        nic = f"{BASE}/datacenters/{{dc}}/servers/{{server}}/nics/{{nic}}"
        app.router.add_patch(nic, self._answer(self._patch_nic, "nics"))
        app.router.add_route("*", "/{tail:.*}", self._answer(lambda _: missing(), "unknown"))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._hanging.set()
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None
        self._hanging = asyncio.Event()

    # --- faults ----------------------------------------------------------------------------------------

    def fail_next(self, status: int = 503, times: int | None = 1, **fault: Any) -> None:
        """Adds a :class:`Fault`.

        Args:
            status: The status of the answers.
            times: The number of requests; None = all until :meth:`heal`.
            **fault: Other attributes of the fault.
        """
        body = fault.pop(
            "body", "" if status == 200 else json.dumps(shapes.refusal(status, str(status), "made to fail"))
        )
        self._faults.append(Fault(status=status, body=body, left=times, **fault))

    def heal(self) -> None:
        """Ends all faults."""
        self._faults.clear()
        self._hanging.set()
        self._hanging = asyncio.Event()

    def refill(self) -> None:
        """Resets the rate limit, as at the start of a new minute."""
        self._spent = 0

    # --- answers ---------------------------------------------------------------------------------------

    def _answer(self, handler: Handler, name: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
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

    def _checked(self, request: web.Request, handler: Handler) -> web.Response:
        self._spent += 1
        limit = self.rate_limit if self.rate_limit is not None else 6000
        left = max(0, limit - self._spent)
        if self.rate_limit is not None and self._spent > self.rate_limit:
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            response = web.json_response({"message": "rate limit exceeded"}, status=429, headers=headers)
        elif not self._authorised(request):
            response = refusal(401, "315", "Unauthorized")
        elif self.contract is not None and request.headers.get("X-Contract-Number") != str(self.contract):
            response = refusal(403, "301", "the contract is not yours")
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
        if fault.trickle_headers and request.transport is not None:
            request.transport.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not request.transport.is_closing():
                request.transport.write(b"x")
                await asyncio.sleep(fault.trickle)
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
