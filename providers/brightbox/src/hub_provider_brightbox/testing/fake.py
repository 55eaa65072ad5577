"""A fake Brightbox API on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Self

from aiohttp import web

from hub_provider_brightbox.testing.account import CLIENT, LETTERS, SECRET, FakeAccount, Problem
from hub_provider_brightbox.testing.control import control
from hub_provider_brightbox.testing.shapes import account as fake_account

ANSWERS: Final[dict[str, tuple[int, str, dict[str, str]]]] = {
    "empty-object": (200, "{}", {}),
    "empty": (200, "[]", {}),
    "null": (200, "null", {}),
    "html": (502, "<html>bad gateway</html>", {}),
    "html-200": (200, "<html>welcome</html>", {}),
    "error": (503, '{"error_name": "maintenance", "errors": ["later"]}', {}),
    "throttled": (429, '{"error_name": "rate_limited", "errors": []}', {"Retry-After": "1"}),
    "throttled-without-time": (429, '{"error_name": "rate_limited", "errors": []}', {}),
    "quota": (403, '{"error_name": "Forbidden", "errors": ["Account limit reached, please contact support"]}', {}),
    "forbidden": (403, '{"error_name": "Forbidden", "errors": ["not allowed"]}', {}),
    "page": (200, "[]", {"Link": '</1.0/servers?page=2>; rel="next"'}),
    "refused": (422, '{"error_name": "invalid_resource", "errors": ["is invalid"]}', {}),
}
"""Faults with a fixed answer: status, body, headers."""


@dataclass
class Served:
    """A request that the fake received; the status is 0 until it is answered."""

    method: str
    path: str
    body: str = ""
    status: int = 0

    @property
    def text(self) -> str:
        """Method and path."""
        return f"{self.method} {self.path}"

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET" and not self.path.startswith("/token")


@dataclass
class Fault:
    """A fault that waits for requests; ``left`` None = for all until the fake heals, ``skip`` = so many work before."""

    name: str
    left: int | None
    method: str
    path: str
    on: Literal["any", "read", "write"]
    skip: int

    def concerns(self, served: Served) -> bool:
        """Whether a request is one that may fail."""
        kind = self.on in ("any", "write" if served.writes else "read")
        return kind and self.left != 0 and self.method in ("", served.method) and self.path in served.path


class BrightboxFake:
    """An account behind an API on loopback, as an async context manager.

    Attributes:
        account: the account; tests change it directly.
        log: all requests, oldest first.
        life: seconds that a token lives; ``inf`` = for ever.
        latency: seconds before each answer.
        port: of the server; 0 before the start = a free one.
        shuffled: whether lists, and the servers in objects, come in another order each time.
        elsewhere: where redirects lead to.
        shown: called with each request after its answer.
        cut: called with each write; "before" = the connection ends and nothing is made, "after" = it is made, but the
            connection ends without an answer, "" = it is answered.
    """

    def __init__(self, port: int = 0) -> None:
        self.account = FakeAccount()
        self.log: list[Served] = []
        self.life = math.inf
        self.latency = 0.0
        self.port = port
        self.shuffled = False
        self.elsewhere = "https://elsewhere.test"
        self.shown: Callable[[Served], object] = lambda _: None
        self.cut: Callable[[Served], str] = lambda _: ""
        self._number = 0
        self._tokens: dict[str, float] = {}
        self._faults: list[Fault] = []
        self._healed = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/fake/{path:.*}", partial(control, self))
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
        """The ``url`` of a configuration."""
        return f"http://{self.host}"

    @property
    def writes(self) -> list[str]:
        """Method and path of all requests that change something."""
        return [row.text for row in self.log if row.writes]

    # --- faults -------------------------------------------------------------------------------------------

    def fail(
        self,
        fault: str,
        *,
        times: int | None = 1,
        method: str = "",
        path: str = "",
        on: Literal["any", "read", "write"] = "any",
        skip: int = 0,
    ) -> None:
        """Make the next requests fail.

        Args:
            fault: one of :data:`ANSWERS`, or: lost-answer (it is made, and the connection ends), lost-request (the
                connection ends, and nothing is made), silent (no answer until :meth:`heal`; it is made then), half (a
                list without its second half), expire (401), cut (the answer ends in its middle), large (65 MiB),
                redirect (to :attr:`elsewhere`), quoting (a 503 that repeats the credential).
            times: how many requests; None = all until :meth:`heal`.
            method: only requests with this method.
            path: only requests whose path contains this.
            on: only requests that change something, or only those that do not.
            skip: so many of these requests work before.
        """
        self._healed.clear()
        self._faults.append(Fault(fault, times, method, path, on, skip))

    def heal(self) -> None:
        """End all faults, and let go of silent requests."""
        self._faults.clear()
        self._healed.set()

    def _take(self, served: Served) -> str:
        for fault in self._faults:
            if fault.concerns(served):
                if fault.skip:
                    fault.skip -= 1
                    continue
                if fault.left is not None:
                    fault.left -= 1
                return fault.name
        return ""

    # --- serving ------------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        served = Served(request.method, request.path, (await request.read()).decode())
        self.log.append(served)
        answer = await self._answer(request, served)
        served.status = answer.status
        self.shown(served)
        return answer

    async def _answer(self, request: web.Request, served: Served) -> web.StreamResponse:
        if self.latency:
            await asyncio.sleep(self.latency)
        fault = self._take(served)
        if fault == "silent":
            await self._healed.wait()
        if fault in ANSWERS:
            status, text, headers = ANSWERS[fault]
            return web.Response(status=status, text=text, headers=headers, content_type="application/json")
        if fault == "redirect":
            return web.Response(status=302, headers={"Location": f"{self.elsewhere}{served.path}"})
        if fault == "quoting":
            return _problem(Problem(503, "maintenance", f"no {request.headers.get('Authorization', '')} now"))
        if served.path == "/token/":
            return self._token(request)
        answer = self._data(request, served, fault)
        return await _in_part(request, answer) if fault == "cut" else answer

    def _data(self, request: web.Request, served: Served, fault: str) -> web.Response:
        if fault == "expire":
            self._tokens.clear()
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme not in ("Bearer", "OAuth") or self._tokens.get(token, 0.0) < time.monotonic():
            return _problem(Problem(401, "unauthorized", "the token is not valid"))
        cut = self.cut(served) if served.writes else ""
        if cut == "before" or fault == "lost-request":
            return _end(request)
        try:
            status, found = self._handle(served)
        except Problem as problem:
            return _problem(problem)
        if isinstance(found, list):
            listed: list[Any] = [*found]
            if self.shuffled:
                random.shuffle(listed)
                for part in (each.get(key) for each in listed for key in ("nodes", "servers", "listeners", "rules")):
                    random.shuffle(part or [])
            found = listed[: len(listed) // 2] if fault == "half" else listed
        text = json.dumps(found)
        if fault == "lost-answer" or cut == "after":
            return _end(request)
        if fault == "large":
            text += " " * (65 << 20)
        return web.Response(status=status, text=text, content_type="application/json")

    def _token(self, request: web.Request) -> web.Response:
        wanted = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {wanted}":
            text = '{"error": "invalid_client", "error_description": "the client is not known"}'
            return web.Response(status=401, text=text, content_type="application/json")
        self._number += 1
        token = f"token-{self._number}"
        self._tokens[token] = time.monotonic() + self.life
        found: dict[str, Any] = {"access_token": token, "token_type": "Bearer"}
        if self.life != math.inf:
            found["expires_in"] = self.life
        return web.Response(text=json.dumps(found), content_type="application/json")

    def _handle(self, served: Served) -> tuple[int, Any]:
        version, _, rest = served.path.strip("/").partition("/")
        if (served.method, version, rest) == ("GET", "1.0", "accounts"):
            return 200, [fake_account()]
        parts = rest.split("/")
        if version != "1.0" or parts[0] not in LETTERS or len(parts) > 3:
            raise Problem(404, "missing_resource", f"no path {served.path}")
        body: dict[str, Any] = json.loads(served.body) if served.body else {}
        collection, account = parts[0], self.account
        match served.method, parts[1:]:
            case "GET", []:
                return 200, account.read(collection)
            case "GET", [id_]:
                return 200, account.read(collection, id_)
            case "POST", []:
                return 202 if collection == "load_balancers" else 201, account.create(collection, body)
            case "PUT", [id_]:
                return 202 if collection == "load_balancers" else 200, account.change(collection, id_, body)
            case "DELETE", [id_]:
                return 202 if collection == "load_balancers" else 200, account.delete(collection, id_)
            case "POST", [id_, action]:
                return 202, account.act(collection, id_, action, body)
            case _:
                raise Problem(405, "method_not_allowed", served.text)


def _end(request: web.Request) -> web.Response:
    """End the connection; the answer is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


async def _in_part(request: web.Request, answer: web.Response) -> web.StreamResponse:
    """Send half of an answer, and end the connection."""
    text = answer.body if isinstance(answer.body, bytes) else b""
    part = web.StreamResponse(status=answer.status, headers={"Content-Length": str(len(text))})
    await part.prepare(request)
    await part.write(text[: len(text) // 2])
    if request.transport is not None:
        request.transport.abort()
    return part


def _problem(problem: Problem) -> web.Response:
    text = json.dumps({"error_name": problem.name, "errors": [problem.message]})
    return web.Response(status=problem.status, text=text, content_type="application/json")
