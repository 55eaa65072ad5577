"""Requests to the Brightbox API: token, limits, and errors in the plugin API's own words."""

from __future__ import annotations

import asyncio
import base64
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypedDict
from urllib.parse import urlsplit

import msgspec

from hub.plugin import HubContext, SecretValue, TerminalProviderError, TransientProviderError
from hub.plugin.clouds import CloudConflict, CloudRefusal, QuotaExceeded, Uncertain
from hub_provider_brightbox.shapes import Object, as_list, as_object, as_objects, is_list

if TYPE_CHECKING:
    from aiohttp import ClientResponse


DEFAULT_URL: Final = "https://api.gb1.brightbox.com"
LIMIT: Final = 64 << 20
"""The largest answer, in bytes."""
ID: Final = re.compile(r"(srv|lba|cip|grp|fwp|fwr)-[0-9a-z]{5,}")
PATH: Final = re.compile(rf"[a-z_]+(/{ID.pattern}(/[a-z_]+)?)?")
"""All paths that are ever requested: whatever an answer or a record names, nothing else gets into one."""
RENEW_AT: Final = 0.8
"""Share of a token's life after which it is renewed."""
LIFE: Final = 5400.0
"""Seconds after which a token is renewed if its answer does not say how long it lives; it is documented as 2 h."""
QUOTA_WAIT: Final = 300.0
RATE_WAIT: Final = 60.0
"""Seconds to wait after a used-up quota, and after a rate limit without a Retry-After."""
READS: Final = 8
"""Most reads under way: one balancer with TLS is one request, and an account may have dozens."""
MEMBERS: Final = 20_000
"""Servers that are remembered by id, so that the same server of many balancers takes memory once."""


class Client:
    """One account.

    Args:
        hub: The hub's services.
        url: The API's address, without ``/1.0``.
        client: The id of the API client.
        secret: Its secret.

    Raises:
        TerminalProviderError: The address is not one that may be contacted.
    """

    def __init__(self, hub: HubContext, url: str, client: SecretValue, secret: SecretValue) -> None:
        self.url = url.rstrip("/")
        hub.check_api_host(_host(self.url), _host(DEFAULT_URL))
        self._hub = hub
        self._client = client
        self._secret = secret
        self._token = ""
        """Kind and token, as the header Authorization has them."""
        self._renew_at = -math.inf
        self._renewing = asyncio.Lock()
        self._reads = asyncio.Semaphore(READS)
        self._members: dict[str, Member] = {}

    async def get(self, path: str) -> Object:
        """Reads one object.

        Raises:
            KeyError: The object does not exist.
            ProviderError: There is no complete answer.
        """
        found = as_object(await self._ask(path))
        if not path.endswith(f"/{found.get('id')}"):
            raise TransientProviderError(f"{self.url}: the answer to GET {path} is not about that object")
        return found

    async def list(self, path: str) -> list[Object]:
        """Reads a whole list; anything else than an array of objects with ids is an error."""
        try:
            found = await self._ask(path)
        except KeyError as error:
            raise TransientProviderError(f"{error.args[0]}: it is no Brightbox API, check url") from None
        objects = as_objects(found)
        if not is_list(found) or len(objects) != len(found):
            raise TransientProviderError(f"{self.url}: GET {path} did not answer with a list of objects")
        if not all(ID.fullmatch(str(each.get("id"))) for each in objects):
            raise TransientProviderError(f"{self.url}: GET {path} answered with objects without a valid id")
        return objects

    async def write(self, method: str, path: str, body: Object | None = None) -> Object:
        """Makes one write, and returns the object that it answers with; {} if it answers with nothing.

        Raises:
            KeyError: The object does not exist.
            Uncertain: The request was sent and has no complete answer.
            ProviderError: Nothing was changed.
        """
        answer = await self._request(method, path, body)
        found = as_object(answer)
        if answer not in (None, {}) and not ID.fullmatch(str(found.get("id"))):
            raise Uncertain(f"{self.url}: {method} {path} did not answer with an object")
        return found

    async def _ask(self, path: str) -> object:
        async with self._reads:
            return await self._request("GET", path, None)

    async def _request(self, method: str, path: str, body: Object | None) -> object:
        what = f"{self.url}: {method} {path}"
        if not PATH.fullmatch(path):
            raise TransientProviderError(f"{self.url}: {method} of an object without a valid id is not sent")
        url = f"{self.url}/1.0/{path}"
        status, text, headers = await self._send(method, url, await self._login(again=False), body)
        if status == 401:
            status, text, headers = await self._send(method, url, await self._login(again=True), body)
        if 200 <= status < 300:
            if any("next" in link for link in headers.getall("Link", ())):
                raise TransientProviderError(f"{what}: the answer is only one page of several")
            try:
                return decoded(text, self._members) if text.strip() else {}
            except (ValueError, RecursionError):
                kind = TransientProviderError if method == "GET" else Uncertain
                raise kind(f"{what}: the answer is not JSON") from None
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
        self, method: str, url: str, login: str, body: Object | None, form: bool = False
    ) -> tuple[int, bytes, Any]:
        """Sends one request; an answer that is cut is an error, and after a write an Uncertain."""
        from aiohttp import ClientConnectorError, ClientError

        data: dict[str, Any] = {"data": body} if form else {"json": body} if body is not None else {}
        where, headers = urlsplit(url).path, {"Authorization": login}
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
            status, text, _ = await self._send("POST", f"{self.url}/token/", login, form, form=True)
            name, said = _problem(text)
            if status in (400, 401, 403):
                said = self._hub.redact(said)
                raise TerminalProviderError(f"{self.url}: the API client is refused: {status} {name}: {said}")
            try:
                found = as_object(msgspec.json.decode(text) if status == 200 else {})
                # The kind as the original's OAuth library sends it.
                token = f"{found.get('token_type') or 'Bearer'} {found['access_token']}"
                life = float(found.get("expires_in") or LIFE / RENEW_AT)
            except (ValueError, KeyError, TypeError, RecursionError):
                after = RATE_WAIT if status == 429 else None
                raise TransientProviderError(
                    f"{self.url}: POST /token/ answers {status} without a token", after
                ) from None
            self._token, self._renew_at = token, self._hub.clock.now() + life * RENEW_AT
            return token


class Member(TypedDict):
    """A server in a group or load balancer."""

    id: str


_rows = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]]).decode
_members = msgspec.json.Decoder(list[Member]).decode


def decoded(text: bytes, members: dict[str, Member]) -> object:
    """An answer, but of the servers of groups and load balancers only their ids; equal ones are the same object.

    An answer embeds a dozen fields of each: 50 load balancers of 500 nodes would take 100 MiB.

    Args:
        text: the answer.
        members: the servers of earlier answers by id.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    if len(members) > MEMBERS:
        members.clear()
    try:
        found: dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]] = _rows(text)
    except msgspec.ValidationError:
        answer: object = msgspec.json.decode(text)  # neither an object nor a list of objects
        return answer
    if isinstance(found, dict):
        return _object(found, members)
    return [_object(row, members) for row in found]


def _object(row: Mapping[str, msgspec.Raw], members: dict[str, Member]) -> Object:
    return {key: _value(key, raw, members) for key, raw in row.items()}


def _value(key: str, raw: msgspec.Raw, members: dict[str, Member]) -> object:
    if key in ("nodes", "servers"):
        with suppress(msgspec.ValidationError):
            return [members.setdefault(each["id"], each) for each in _members(raw)]
    value: object = msgspec.json.decode(raw)
    return value


async def _read(answer: ClientResponse, what: str, kind: type[TransientProviderError]) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > LIMIT:
            raise kind(f"{what} answers with more than {LIMIT >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _host(url: str) -> str:
    """The host of the API's address; the client's secret is sent there, so only loopback may do without TLS.

    Raises:
        TerminalProviderError: It is no such address.
    """
    parts = urlsplit(url)
    plain = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not (plain or parts.scheme == "https") or not parts.hostname or "@" in url or parts.path or parts.query:
        raise TerminalProviderError("url must be https://HOST, without a path")
    return parts.netloc


def _problem(text: bytes) -> tuple[str, str]:
    """The name and the words of an error."""
    try:
        found = as_object(msgspec.json.decode(text))
    except (ValueError, RecursionError):
        return "", ""
    said = "; ".join(map(str, as_list(found.get("errors")))) or str(found.get("error_description") or "")
    return str(found.get("error_name") or found.get("error") or "")[:64], said[:200]
