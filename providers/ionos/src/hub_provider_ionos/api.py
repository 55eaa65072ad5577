"""The IONOS API as this provider needs it: whole lists, or an error that names the culprit. Never a part of one.

The SDK makes URLs and headers; its models, retries and fingerprint option stay unused. Everything it raises
(its own errors, urllib3's, a KeyError for a 429 without Retry-After) becomes one of the hub's. The SDK is
imported in a thread, with the first request.
"""

from __future__ import annotations

import asyncio
import email.utils
import http.client
import importlib
import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar, cast

from hub.plugin import (
    CredentialError,
    HubContext,
    ProviderError,
    SecretValue,
    TerminalProviderError,
    TransientProviderError,
)
from hub_provider_ionos import inventory
from hub_provider_ionos.inventory import Fleet, Malformed, Page, PoolNode

T = TypeVar("T")

PAGE: Final = 1000
"""Items asked for at once: the API's default for servers and LANs, far below its maximum."""

MAX_PAGES: Final = 200
READS: Final = 3
"""Times a list is read that changes between its pages."""

PARALLEL: Final = 2
"""Requests to one API address at a time: one that hangs leaves threads for the others."""

ANSWER: Final = 25.0
"""Seconds until a request is given up, whatever its thread does."""

RATE_LIMITED: Final = 60.0
"""Seconds to wait after a 429 that does not say how long: limits are per minute."""

MAX_WAIT: Final = 3600.0


class Login(NamedTuple):
    """The credential of one request."""

    token: str = ""
    username: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """Who asks which API; equal accounts share everything.

    Attributes:
        secret: reference of the token or the password, as sorted pairs.
        username: "" = the secret is a token.
        ca: PEM text; "" = the public authorities.
    """

    url: str
    secret: tuple[tuple[str, str], ...]
    username: str = ""
    contract: int | None = None
    ca: str = field(default="", repr=False)

    @property
    def credential(self) -> str:
        """The credential in words."""
        names = dict(self.secret)
        place = f"Secret {names['secret']}, key {names['key']}" if "secret" in names else " ".join(*self.secret)
        return f"the {'password' if self.username else 'token'} from {place}"


@dataclass(slots=True)
class Usage:
    """What the API said of its rate limit, and what was asked.

    Attributes:
        requests: sent so far.
        limited: of these, answered 429.
        remaining: X-RateLimit-Remaining of the last answer; None = not said.
        limit: X-RateLimit-Limit, requests a minute.
    """

    requests: int = 0
    limited: int = 0
    remaining: int | None = None
    limit: int | None = None

    @property
    def stretch(self) -> int:
        """How many times slower than configured the lists should come."""
        if self.remaining is None:
            return 1
        share = self.remaining / self.limit if self.limit else self.remaining / 100
        return 8 if share < 0.05 else 4 if share < 0.1 else 2 if share < 0.25 else 1


class Call(NamedTuple):
    """One request: the SDK's class and method, its arguments, and what it is about in words."""

    about: str
    api: str
    method: str
    arguments: tuple[str, ...]
    options: Mapping[str, int]


class Api:
    """Asks one API for one account.

    Args:
        slots: bounds the requests to this API address, also those of other accounts.
    """

    def __init__(self, hub: HubContext, account: Account, slots: asyncio.Semaphore) -> None:
        self.account = account
        self.usage = Usage()
        self._hub = hub
        self._slots = slots
        self._secret: SecretValue | None = None
        self._used = ""
        """The credential as it was last tried."""
        self._blocked_until = -math.inf
        self._lock = threading.Lock()
        self._sdk: Any = None

    # --- lists -----------------------------------------------------------------------------------------

    async def fleet(self, datacenter: str) -> Fleet:
        """All servers of a data center.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: there is no complete answer.
        """
        where = f"of data center {datacenter}"
        lans = Call(f"the LANs {where}", "LANsApi", "datacenters_lans_get", (datacenter,), {"depth": 1})
        servers = Call(f"the servers {where}", "ServersApi", "datacenters_servers_get", (datacenter,), {"depth": 3})
        failover = await self._all(lans, inventory.lan_of, inventory.failover_addresses)
        listed = await self._all(servers, inventory.uuid_of, inventory.server)
        flat = [address for group in failover for address in group]
        return await self._hub.run_sync(inventory.fleet, listed, flat)

    async def pool_nodes(self, cluster: str) -> tuple[PoolNode, ...]:
        """All nodes of a managed Kubernetes cluster.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: there is no complete answer.
        """
        where = f"of Kubernetes cluster {cluster}"
        about = Call(f"the node pools {where}", "KubernetesApi", "k8s_nodepools_get", (cluster,), {"depth": 1})
        found: list[PoolNode] = []
        for pool, _ in (await self._page(about, inventory.uuid_of, _keep, PAGE))[1]:
            nodes = Call(
                f"the nodes of pool {pool} {where}",
                "KubernetesApi",
                "k8s_nodepools_nodes_get",
                (cluster, pool),
                {"depth": 1},
            )
            found += (await self._page(nodes, inventory.uuid_of, inventory.pool_node, PAGE))[1]
        return tuple(sorted(found))

    def close(self) -> None:
        """Let go of the connections; a request under way ends by itself."""
        if self._sdk is not None:
            self._sdk.close()

    async def credential_changed(self) -> bool:
        """Whether the credential reads differently than when it was last tried."""
        try:
            return await self._read_secret() != self._used
        except (CredentialError, ProviderError):
            return False

    async def _all(
        self, call: Call, identify: Callable[[object, str], str], read: Callable[[str, Mapping[str, object]], T]
    ) -> list[T]:
        """Every item of a paged list.

        Pages overlap by one item: where the item at the seam was not seen before, the list has shrunk and others
        slipped past. Then it is read again.
        """
        for _ in range(READS):
            found = await self._read_through(call, identify, read)
            if found is not None:
                return found
        raise TransientProviderError(f"{call.about}: the list keeps changing while it is read")

    async def _read_through(
        self, call: Call, identify: Callable[[object, str], str], read: Callable[[str, Mapping[str, object]], T]
    ) -> list[T] | None:
        found: dict[str, T] = {}
        offset = 0
        for number in range(MAX_PAGES):
            paged = call._replace(options={**call.options, "offset": offset, "limit": PAGE})
            page, items = await self._page(paged, identify, read, PAGE)
            ids = [name for name, _ in page.items]
            if number and (not ids or ids[0] not in found):
                return None
            before = len(found)
            found.update(zip(ids, items, strict=True))
            if not page.more and (page.more is False or len(ids) < page.full):
                return list(found.values())
            if len(found) == before or len(found) > inventory.MAX_ITEMS:
                raise TransientProviderError(f"{call.about}: the pages do not end (after {len(found)} items)")
            offset += len(ids) - 1
        raise TransientProviderError(f"{call.about}: more than {MAX_PAGES} pages")

    async def _page(
        self,
        call: Call,
        identify: Callable[[object, str], str],
        read: Callable[[str, Mapping[str, object]], T],
        limit: int,
    ) -> tuple[Page, list[T]]:
        def parse(data: object) -> tuple[Page, list[T]]:
            page = inventory.page(data, limit, identify)
            return page, [read(name, item) for name, item in page.items]

        return await self.ask(call, parse)

    # --- one request -----------------------------------------------------------------------------------

    async def ask(self, call: Call, parse: Callable[[object], T]) -> T:
        """Send a request, and once more with a new credential where the old one is refused.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: it failed; the message names the place.
        """
        wait = self._blocked_until - self._hub.clock.now()
        if wait > 0:
            raise TransientProviderError(f"{self.account.url}: told to wait for {wait:.0f} s more", retry_after=wait)
        login = await self._login()
        try:
            return await self._send(call, login, parse)
        except Unauthorised as error:
            again = await self._login(reload=True)
            if again == login:
                raise TerminalProviderError(str(error)) from error
        try:
            return await self._send(call, again, parse)
        except Unauthorised as error:
            raise TerminalProviderError(str(error)) from error

    async def _send(self, call: Call, login: Login, parse: Callable[[object], T]) -> T:
        async with self._slots:
            self.usage.requests += 1
            try:
                async with asyncio.timeout(ANSWER):
                    value, headers = await self._hub.run_sync(self._request, call, login, parse)
            except TimeoutError as error:
                raise TransientProviderError(
                    f"{self.account.url} does not answer for {call.about} within {ANSWER:g} s"
                ) from error
            except Malformed as error:
                raise TransientProviderError(f"{self.account.url}: {call.about}: {error}") from error
            except Exception as error:  # the SDK raises whatever it meets
                raise self._translated(call, error) from error
        self._note(headers)
        return value

    def _request(self, call: Call, login: Login, parse: Callable[[object], T]) -> tuple[T, Mapping[str, str]]:
        """In a thread."""
        with self._lock:
            if self._sdk is None:
                self._sdk = _open_sdk(self.account)
        options: dict[str, Any] = {"response_type": "object", "_request_timeout": (5.0, 15.0), **call.options}
        if self.account.contract is not None:
            options["x_contract_number"] = self.account.contract
        client = self._sdk.client(login)
        method = getattr(getattr(self._sdk.package, call.api)(client), f"{call.method}_with_http_info")
        data, status, headers = method(*call.arguments, **options)
        if status != http.client.OK:
            raise Malformed(f"the answer has status {status} instead of 200")
        return parse(data), headers

    async def _read_secret(self, *, reload: bool = False) -> str:
        if self._secret is None:
            self._secret = self._hub.secret(dict(self.account.secret))
        return await self._secret.get(reload=reload)

    async def _login(self, *, reload: bool = False) -> Login:
        text = self._used = await self._read_secret(reload=reload)
        if self.account.username:
            return Login(username=self.account.username, password=text)
        if not text.isascii() or not text.isprintable() or " " in text:
            raise CredentialError(f"{self.account.credential} holds characters a token cannot have")
        return Login(token=text)

    # --- what it means ---------------------------------------------------------------------------------

    def _note(self, headers: Mapping[str, str]) -> None:
        self.usage.remaining = _number(headers.get("X-RateLimit-Remaining"))
        self.usage.limit = _number(headers.get("X-RateLimit-Limit"))

    def _translated(self, call: Call, error: Exception) -> Exception:
        if isinstance(error, ImportError):
            return TerminalProviderError(f"the package ionoscloud cannot be imported: {error}")
        refused = _api_error(error)
        if refused is None:
            return TransientProviderError(f"{self.account.url} does not answer for {call.about}: {_network(error)}")
        headers: Mapping[str, str] = refused.headers or {}
        if headers:
            self._note(headers)
        status = int(refused.status or 0)
        said = self._hub.redact(_messages(refused.body))
        what = f"{self.account.url} answers {status} for {call.about}" + (f": {said}" if said else "")
        if status == 429 or (status == 503 and "Retry-After" in headers):
            self.usage.limited += status == 429
            wait = _retry_after(headers.get("Retry-After"), self._hub.clock.wall())
            self._blocked_until = self._hub.clock.now() + wait
            return TransientProviderError(f"{what}; asking again in {wait:.0f} s", retry_after=wait)
        if status == 401:
            return Unauthorised(f"{what}; renew {self.account.credential}")
        if status in (402, 403):
            return TerminalProviderError(f"{what}; the account lacks the right to read them")
        if status == 404:
            return TerminalProviderError(f"{what}; it does not exist, or the account cannot see it")
        if 300 <= status <= 399:
            return TerminalProviderError(f"{what}; redirects are not followed, correct apiUrl")
        if status == 408 or status >= 500:
            return TransientProviderError(what)
        return TerminalProviderError(what)


class Unauthorised(ProviderError):
    """401: the credential is not accepted."""


class _Sdk:
    """The SDK's package, and what clients of one account share."""

    def __init__(self, package: Any, account: Account, transport: Any) -> None:
        self.package = package
        self._url = account.url
        self._transport = transport

    def client(self, login: Login) -> Any:
        """A client for one request: what carries the credential is not shared between threads."""
        with _levels_kept():
            configuration = self.package.Configuration(
                host=self._url,
                token=login.token or None,
                username=login.username or None,
                password=login.password or None,
            )
            configuration.max_retries = 1  # its waiting times are meant to be seconds, and are 100 of them
            configuration.proxy = None  # as everywhere in the hub: none from the environment
            client = self.package.ApiClient(configuration)
        client.rest_client = self._transport
        return client

    def close(self) -> None:
        """Close idle connections."""
        self._transport.close()


def _open_sdk(account: Account) -> _Sdk:
    with _levels_kept():
        package = importlib.import_module("ionoscloud")
        transport = importlib.import_module("hub_provider_ionos.transport")
    return _Sdk(package, account, transport.Transport(account.ca, PARALLEL))


_levels = threading.Lock()


@contextmanager
def _levels_kept() -> Generator[None, None, None]:
    """The SDK's configuration sets levels of other people's loggers, and http.client's, for the whole process."""
    with _levels:
        loggers = [logging.getLogger(name) for name in ("urllib3", "ionoscloud")]
        before = [(logger, logger.level) for logger in loggers]
        debug = http.client.HTTPConnection.debuglevel
        try:
            yield
        finally:
            http.client.HTTPConnection.debuglevel = debug
            for logger, level in before:
                logger.setLevel(level)


def _keep(identity: str, item: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    return identity, item


def _api_error(error: BaseException) -> Any:
    """The SDK's own error: this one, or the one it stumbled over while it handled it."""
    module = sys.modules.get("ionoscloud.exceptions")
    current: BaseException | None = error if module is not None else None
    while current is not None and not isinstance(current, getattr(module, "ApiException")):  # noqa: B009 - untyped
        current = current.__context__
    return current


def _network(error: BaseException) -> str:
    """A failed connection in words; addresses and object ids of urllib3's text are nobody's business."""
    names = {
        "NewConnectionError": "connection refused or no route",
        "NameResolutionError": "the name does not resolve",
        "ConnectTimeoutError": "no connection in time",
        "ReadTimeoutError": "no answer in time",
        "SSLError": "its certificate is not accepted (caFile names another authority)",
        "ProtocolError": "the answer was cut short",
        "IncompleteRead": "the answer was cut short",
    }
    current: BaseException | None = error
    while current is not None:
        name = type(current).__name__
        if name in names:
            return names[name]
        if name == "TooMuch":
            return str(current)
        current = current.__cause__ or current.__context__
    return type(error).__name__


def _messages(body: object) -> str:
    """What the API's error body says; nothing of a body that is not the API's."""
    try:
        said = json.loads(body) if isinstance(body, str | bytes) else None
    except (ValueError, RecursionError):
        return ""
    if not isinstance(said, Mapping):
        return ""
    messages = cast("Mapping[str, object]", said).get("messages")
    listed = cast("list[object]", messages) if isinstance(messages, list) else []
    texts = [cast("Mapping[str, object]", each).get("message") for each in listed if isinstance(each, Mapping)]
    return "; ".join(text for text in texts if isinstance(text, str))[:200]


def _retry_after(value: str | None, wall: float) -> float:
    """Seconds a Retry-After asks for: a number, or an HTTP date."""
    wait = RATE_LIMITED
    if value is not None:
        try:
            wait = float(value)
        except ValueError:
            try:
                wait = email.utils.parsedate_to_datetime(value).timestamp() - wall
            except (ValueError, OverflowError):
                wait = RATE_LIMITED
    return min(max(1.0, wait if math.isfinite(wait) else RATE_LIMITED), MAX_WAIT)


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 10 else None
