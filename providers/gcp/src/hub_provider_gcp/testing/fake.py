"""A fake Compute Engine API with its login services, on loopback."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, cast

from aiohttp import web

from hub_provider_gcp.testing.cloud import API, Cloud, Problem, missing

PROJECT: Final = "team-project"
EMAIL: Final = f"hub@{PROJECT}.iam.gserviceaccount.com"
SUBJECT: Final = "federated-subject-token"
AUDIENCE: Final = "https://oauth2.googleapis.com/token"
HOUR: Final = 3600.0

ANSWERS: Final[dict[str, tuple[int, str, dict[str, str]]]] = {
    "garbage": (200, "<html>welcome</html>", {}),
    "no-key": (200, "{}", {}),
    "list": (200, "[]", {}),
    "html": (500, "<html>backend failure</html>", {}),
    "redirect": (302, "", {"Location": "/elsewhere"}),
    "not-found-html": (404, "<html>not here</html>", {}),
}
"""Faults with a fixed answer: status, body, headers."""

PROBLEMS: Final[dict[str, Problem]] = {
    "unauthorized": Problem(401, "authError", "Invalid Credentials"),
    "throttled": Problem(429, "rateLimitExceeded", "Rate Limit Exceeded"),
    "throttled-without-time": Problem(429, "rateLimitExceeded", "Rate Limit Exceeded"),
    "quota": Problem(403, "quotaExceeded", "Quota exceeded for quota metric 'Queries'"),
    "forbidden": Problem(403, "forbidden", "Required 'compute.instances.addAccessConfig' permission for 'projects/p'"),
    "conflict": Problem(409, "conflict", "The resource was changed"),
    "not-ready": Problem(400, "resourceNotReady", "The resource is not ready"),
    "policy": Problem(412, "conditionNotMet", "Constraint constraints/compute.vmExternalIpAccess violated"),
}
"""Faults with an error of the API."""


@dataclass
class Served:
    """A request that the fake received; the status is 0 until it is answered."""

    kind: Literal["read", "write", "login"]
    text: str
    status: int = 0


@dataclass
class _Fault:
    name: str
    left: int | None
    on: str


@dataclass
class Faults:
    """The faults that wait for a request."""

    waiting: list[_Fault] = field(default_factory=list[_Fault])

    def take(self, kind: str, *, later_page: bool) -> str:
        """Returns the fault of a request; "" if it shall succeed."""
        for fault in self.waiting:
            if fault.left == 0 or fault.on not in ("any", kind) or (fault.name == "lost-page" and not later_page):
                continue
            fault.left = None if fault.left is None else fault.left - 1
            return fault.name
        return ""


class GcpFake:
    """A project behind an API on loopback, as an async context manager.

    Attributes:
        cloud: the project; tests change it directly.
        log: all requests, oldest first.
        secrets: the token of the federated identity, and all access tokens that were issued so far.
        public_key: PEM text of a service account's public key; "" = the fake has no service account.
        lifetime: seconds that a token is valid.
        login_status: the status of the token endpoint's answers, which then have no token; 0 = it works.
        page: the most addresses in a page, if the request does not ask for fewer.
        latency: seconds before each answer.
        port: of the server; 0 before the start = a free one.
        shown: called with each request after its answer.
    """

    def __init__(self, port: int = 0) -> None:
        self.cloud = Cloud(PROJECT)
        self.log: list[Served] = []
        self.secrets = [SUBJECT]
        self.public_key = ""
        self.lifetime = HOUR
        self.login_status = 0
        self.page = 500
        self.latency = 0.0
        self.port = port
        self.shown: Callable[[Served], object] = _ignore
        self._faults = Faults()
        self._valid: dict[str, float] = {}
        self._healed = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
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
        """The ``endpoint`` of a configuration."""
        return f"http://{self.host}"

    def key_file(self) -> str:
        """A credential file for a federated identity, which needs no cryptography; all its URLs are the fake's."""
        pool = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/fake"
        return json.dumps(
            {
                "type": "external_account",
                "audience": pool,
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
                "token_url": f"{self.url}/token",
                "credential_source": {"url": f"{self.url}/subject"},
            }
        )

    # --- faults --------------------------------------------------------------------------------------

    def fail(self, fault: str, *, times: int | None = 1, on: str = "any") -> None:
        """Makes the next requests fail; requests for a token always work.

        Args:
            fault: one of :data:`ANSWERS` or :data:`PROBLEMS`, or: error (a 5xx that repeats the token), lost-page
                (pages of two addresses, and errors after the first page), lost-answer, silent, cut (half a body), slow
                (a body that does not end).
            times: how many requests; None = all until :meth:`heal`.
            on: "read", "write" or "any".
        """
        self._healed.clear()
        if fault == "lost-page":
            self.page = 2
        self._faults.waiting.append(_Fault(fault, times, on))

    def heal(self) -> None:
        """Ends all faults and lets go of silent requests."""
        self._faults.waiting.clear()
        self.page = 500
        self._healed.set()

    def expire_tokens(self) -> None:
        """Makes all tokens invalid."""
        self._valid.clear()

    # --- serving -------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        login = not path.startswith("/compute/")
        served = Served("login" if login else "write" if request.method == "POST" else "read", _text(request))
        self.log.append(served)
        await asyncio.sleep(self.latency)
        try:
            response = await (self._login(request) if login else self._answer(request, served.kind))
        except Problem as problem:
            response = _refusal(problem)
        served.status = response.status
        if isinstance(response, _Cut):
            served.status = 0
            await response.prepare(request)
            await response.write(response.part)
            if response.hang:
                await self._healed.wait()
            if request.transport is not None:
                request.transport.abort()
        self.shown(served)
        return response

    async def _answer(self, request: web.Request, kind: str) -> web.StreamResponse:
        fault = self._faults.take(kind, later_page="pageToken" in request.query)
        if fault == "silent":
            await self._healed.wait()
            return _Cut(b"")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if fault in ("error", "lost-page"):
            raise Problem(503, "backendError", f"backend error with {request.headers.get('Authorization')}")
        if fault in ANSWERS:
            status, body, headers = ANSWERS[fault]
            return web.Response(status=status, text=body, headers=headers)
        if fault in PROBLEMS:
            return _refusal(PROBLEMS[fault], {"Retry-After": "1"} if fault == "throttled" else {})
        if self._valid.get(token, 0.0) <= time.monotonic():
            raise PROBLEMS["unauthorized"]
        self.cloud.settle()
        found = json.dumps(await self._route(request)).encode()
        if fault in ("cut", "slow", "lost-answer"):
            return _Cut(b"" if fault == "lost-answer" else found[: len(found) // 2], hang=fault == "slow")
        return web.Response(body=found, content_type="application/json")

    async def _route(self, request: web.Request) -> dict[str, Any]:
        parts = request.path.removeprefix("/compute/v1/projects/").split("/")
        if parts[0] != self.cloud.project:
            raise Problem(404, "notFound", f"The resource 'projects/{parts[0]}' was not found")
        match request.method, *parts[1:]:
            case "GET", "aggregated", "addresses":
                return self._aggregated(request)
            case "GET", "regions", region, "addresses":
                return self._regional(request, region)
            case "GET", "zones", zone, "instances", name:
                return self.cloud.show_vm(zone, name)
            case "GET", "zones", zone, "operations", name:
                return self.cloud.show_operation(zone, name)
            case "POST", "zones", zone, "instances", name, ("addAccessConfig" | "deleteAccessConfig") as verb:
                body = cast("dict[str, Any]", await request.json()) if request.can_read_body else {}
                return self.cloud.show_operation(zone, self.cloud.write(zone, name, verb, request.query, body))
            case _:
                raise missing(self.cloud.project, "/".join(parts[1:]))

    def _page(self, request: web.Request, rows: list[Any]) -> tuple[list[Any], dict[str, str]]:
        start = int(request.query.get("pageToken", "0"))
        end = start + min(int(request.query.get("maxResults", "500")), self.page)
        return rows[start:end], {"nextPageToken": str(end)} if end < len(rows) else {}

    def _regional(self, request: web.Request, region: str) -> dict[str, Any]:
        entries = [entry for entry in self.cloud.addresses.values() if entry.region == region]
        rows, more = self._page(request, entries)
        items = {"items": [self.cloud.show_address(entry) for entry in rows]} if rows else {}
        return {"kind": "compute#addressList", "id": f"regions/{region}", **items, **more}

    def _aggregated(self, request: web.Request) -> dict[str, Any]:
        rows, more = self._page(request, list(self.cloud.addresses.values()))
        empty = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}}
        items: dict[str, Any] = {"regions/europe-west9": empty}
        for entry in rows:
            scope = f"regions/{entry.region}" if entry.region else "global"
            items.setdefault(scope, {"addresses": []})["addresses"].append(self.cloud.show_address(entry))
        return {"kind": "compute#addressAggregatedList", "id": f"{API}/aggregated", "items": items, **more}

    # --- logging in ------------------------------------------------------------------------------------

    async def _login(self, request: web.Request) -> web.Response:
        """The token endpoint for keys and for federated identities, and the metadata server."""
        if request.path == "/computeMetadata/v1/project/project-id":
            return web.Response(text=PROJECT)
        if request.path.startswith("/computeMetadata/v1/") and request.headers.get("Metadata-Flavor") == "Google":
            return self._issue()
        if request.path == "/subject":
            return web.Response(text=SUBJECT)
        if request.path != "/token":
            raise Problem(404, "notFound", "no such page")
        if self.login_status:
            return web.json_response({}, status=self.login_status)
        form = await request.post()
        federated = form.get("subject_token") == SUBJECT
        if not federated and not (self.public_key and _signed(str(form.get("assertion", "")), self.public_key)):
            return web.json_response({"error": "invalid_grant", "error_description": "Invalid JWT"}, status=400)
        return self._issue()

    def _issue(self) -> web.Response:
        token = f"ya29.{uuid.uuid4().hex}"
        self.secrets.append(token)
        self._valid[token] = time.monotonic() + self.lifetime
        body = {"access_token": token, "expires_in": int(self.lifetime), "token_type": "Bearer"}
        issued = "urn:ietf:params:oauth:token-type:access_token"
        return web.json_response({**body, "issued_token_type": issued})


def _ignore(_: Served) -> None:
    """Shows nothing."""


class _Cut(web.StreamResponse):
    """An answer whose connection breaks after a part of its body.

    Args:
        part: the part.
        hang: whether the connection stays open until the fake heals.
    """

    def __init__(self, part: bytes, *, hang: bool = False) -> None:
        super().__init__(headers={"Content-Length": "1000000"})
        self.part = part
        self.hang = hang


def _text(request: web.Request) -> str:
    """Method, path and query of a request, without the requestId, which differs between runs."""
    query = {key: value for key, value in request.query.items() if key != "requestId"}
    return f"{request.method} {request.path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")


def _refusal(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    detail = {"message": problem.message, "domain": "global", "reason": problem.reason}
    body = {"error": {"code": problem.status, "message": problem.message, "errors": [detail]}}
    return web.json_response(body, status=problem.status, headers=headers)


def _signed(assertion: str, key: str) -> bool:
    """Whether a JWT is signed with a key for the audience that google-auth names, and has not expired."""
    from google.auth import jwt

    decoder: Any = jwt  # google-auth has no types here
    try:
        return bool(decoder.decode(assertion, certs=key, audience=AUDIENCE)["iss"] == EMAIL)
    except (ValueError, KeyError):
        return False
