"""Requests to the Brightbox API: token, limits, and errors in the plugin API's own words."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from hub.plugin import HubContext, SecretValue, TerminalProviderError, TransientProviderError
from hub.plugin.clouds import CloudConflict, CloudRefusal, QuotaExceeded, Uncertain
from hub_provider_brightbox.shapes import Object, as_object, as_objects

if TYPE_CHECKING:
    from aiohttp import ClientResponse

DEFAULT_URL: Final = "https://api.gb1.brightbox.com"
LIMIT: Final = 64 << 20
"""The largest answer, in bytes."""
RENEW_AT: Final = 0.8
"""Share of a token's life after which it is renewed."""
LIFE: Final = 5400.0
"""Seconds after which a token is renewed if its answer does not say how long it lives; it is documented as 2 h."""
QUOTA_WAIT: Final = 300.0
RATE_WAIT: Final = 60.0
"""Seconds to wait after a used-up quota, and after a rate limit without a Retry-After."""


class Client:
    """One account.

    Args:
        hub: The hub's services.
        url: The API's address, without ``/1.0``.
        client: The id of the API client.
        secret: Its secret.
    """

    def __init__(self, hub: HubContext, url: str, client: SecretValue, secret: SecretValue) -> None:
        self.url = url.rstrip("/")
        hub.check_api_host(urlsplit(self.url).netloc, urlsplit(DEFAULT_URL).netloc)
        self._hub = hub
        self._client = client
        self._secret = secret
        self._token = ""
        self._renew_at = -math.inf
        self._renewing = asyncio.Lock()

    async def get(self, path: str) -> Any:
        """Reads one object, or a list.

        Raises:
            KeyError: The object does not exist.
            ProviderError: There is no complete answer.
        """
        return await self._request("GET", path, None)

    async def list(self, path: str) -> list[Object]:
        """Reads a whole list; anything else than an array of objects with ids is an error."""
        found = await self._request("GET", path, None)
        objects = as_objects(found)
        if not isinstance(found, list) or len(objects) != len(cast("list[object]", found)):
            raise TransientProviderError(f"{self.url}: GET {path} did not answer with a list of objects")
        if not all(each.get("id") for each in objects):
            raise TransientProviderError(f"{self.url}: GET {path} answered with objects without an id")
        return objects

    async def write(self, method: str, path: str, body: Object | None = None) -> Object:
        """Makes one write, and returns the object that it answers with; {} if it answers with nothing.

        Raises:
            KeyError: The object does not exist.
            Uncertain: The request was sent and has no complete answer.
            ProviderError: Nothing was changed.
        """
        found = await self._request(method, path, body)
        if not isinstance(found, dict):
            raise Uncertain(f"{self.url}: {method} {path} did not answer with an object")
        return as_object(cast("object", found))

    async def _request(self, method: str, path: str, body: Object | None) -> Any:
        for attempt in (1, 2):
            token = await self._login(again=attempt == 2)
            status, text, headers = await self._send(
                method, f"{self.url}/1.0/{path}", {"Authorization": f"OAuth {token}"}, body
            )
            if status != 401 or attempt == 2:
                break
        what = f"{self.url}: {method} {path}"
        if 200 <= status < 300:
            if "next" in headers.get("Link", ""):
                raise TransientProviderError(f"{what}: the answer is only one page of several")
            try:
                return json.loads(text) if text.strip() else {}
            except ValueError as error:
                kind = TransientProviderError if method == "GET" else Uncertain
                raise kind(f"{what}: the answer is not JSON") from error
        raise self._error(status, text, headers, what, method)

    def _error(self, status: int, text: bytes, headers: Any, what: str, method: str) -> Exception:
        name, said = _problem(text)
        shown = f"{what}: {status} {name}: {self._hub.redact(said)}".rstrip(": ")
        if status == 404:
            return KeyError(shown)
        if status == 401:
            return TerminalProviderError(f"{shown}; check the API client and its secret")
        if status == 429:
            after = headers.get("Retry-After", "")
            return TransientProviderError(shown, float(after) if after.isdecimal() else RATE_WAIT)
        if status == 403 and "limit" in f"{name} {said}".lower():
            return QuotaExceeded(shown, QUOTA_WAIT)
        if status == 403:
            return TerminalProviderError(f"{shown}; the API client may not do that")
        if status in (409, 423) or "lock" in name.lower():
            return CloudConflict(shown)
        if status >= 500:
            return TransientProviderError(shown) if method == "GET" else Uncertain(shown)
        return CloudRefusal(shown)

    async def _send(
        self, method: str, url: str, headers: dict[str, str], body: Object | None, form: bool = False
    ) -> tuple[int, bytes, Any]:
        """Sends one request; an answer that is cut is an error, and after a write an Uncertain."""
        from aiohttp import ClientConnectorError, ClientError

        data: dict[str, Any] = {"data": body} if form else {"json": body} if body is not None else {}
        where = urlsplit(url).path
        kind = TransientProviderError if method == "GET" or form else Uncertain
        try:
            async with self._hub.http.request(method, url, headers=headers, allow_redirects=False, **data) as answer:
                if 300 <= answer.status < 400:
                    raise TransientProviderError(f"{self.url}: {method} {where} answers with a redirect, not followed")
                return answer.status, await _read(answer, f"{self.url}: {method} {where}", kind), answer.headers
        except ClientConnectorError as error:
            raise TransientProviderError(f"{self.url} cannot be reached: {type(error).__name__}") from None
        except (ClientError, TimeoutError, OSError) as error:
            raise kind(f"{self.url}: {method} {where} has no complete answer: {type(error).__name__}") from None

    async def _login(self, *, again: bool) -> str:
        """The token; a new one if it is about to expire, or was refused."""
        refused = self._token if again else ""
        async with self._renewing:
            if self._token and self._token != refused and self._hub.clock.now() < self._renew_at:
                return self._token
            pair = f"{await self._client.get(reload=again)}:{await self._secret.get(reload=again)}"
            login = f"Basic {base64.b64encode(pair.encode()).decode()}"
            form = {"grant_type": "client_credentials", "scope": "infrastructure"}
            status, text, _ = await self._send("POST", f"{self.url}/token/", {"Authorization": login}, form, form=True)
            name, said = _problem(text)
            if status in (400, 401, 403):
                raise TerminalProviderError(f"{self.url}: the API client is refused: {status} {name}: {said}")
            try:
                found = as_object(json.loads(text) if status == 200 else {})
                token, life = str(found["access_token"]), float(found.get("expires_in") or LIFE / RENEW_AT)
            except (ValueError, KeyError, TypeError) as error:
                raise TransientProviderError(f"{self.url}: POST /token/ answers {status} without a token") from error
            self._token, self._renew_at = token, self._hub.clock.now() + life * RENEW_AT
            return token


async def _read(answer: ClientResponse, what: str, kind: type[TransientProviderError]) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > LIMIT:
            raise kind(f"{what} answers with more than {LIMIT >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _problem(text: bytes) -> tuple[str, str]:
    """The name and the words of an error."""
    try:
        found = as_object(json.loads(text))
    except ValueError:
        return "", ""
    errors: Any = found.get("errors")
    listed = cast("list[Any]", errors) if isinstance(errors, list) else []
    said = "; ".join(map(str, listed)) or str(found.get("error_description") or "")
    return str(found.get("error_name") or found.get("error") or "")[:64], said[:200]
