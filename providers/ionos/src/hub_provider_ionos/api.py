"""Requests lists from the IONOS API. A list is complete, or there is an error that says what failed.

The SDK builds URLs and headers; its models, retries and fingerprint option are not used. Everything that it raises (its
own errors, urllib3's, a KeyError for a 429 without Retry-After) becomes an error of the plugin API. The SDK is imported
in a thread, with the first request.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from hub.plugin import (
    CredentialError,
    HubContext,
    ProviderError,
    SecretValue,
    TerminalProviderError,
    TransientProviderError,
)
from hub.plugin.spec import Uncertain
from hub_provider_ionos import inventory
from hub_provider_ionos.account import Account, Login, Usage
from hub_provider_ionos.failures import (
    RetryLater,
    Unauthorised,
    cloud_error,
    describe_connection_error,
    error_for,
    may_have_arrived,
    refusal,
)
from hub_provider_ionos.inventory import Fleet, Malformed, Page, PoolNode
from hub_provider_ionos.permit import NotSent, Permit
from hub_provider_ionos.sdk import Sdk, open_sdk

T = TypeVar("T")

PAGE: Final = 1000
"""Items per page: the API's default for servers and LANs, far below its maximum."""

MAX_PAGES: Final = 200
"""The most pages of one list. An API that never ends a list is an error instead of an endless loop."""

READS: Final = 3
"""How often a list is read from the start if it changes between its pages."""

PARALLEL: Final = 2
"""The most requests to one API address at a time, so that requests that hang leave threads for other APIs."""

ANSWER: Final = 25.0
"""Seconds until a read times out, even if its thread is still busy. A change ends only with its thread."""


class Call(NamedTuple):
    """One request.

    Attributes:
        about: What is requested, in words for error messages.
        api: The SDK's class.
        method: The class's method, without ``_with_http_info``.
        arguments: Positional arguments of the method.
        options: Keyword arguments of the method.
        write: Whether it is a change. Its answer is the path in the header Location, or None.
        permit: Of a change; it is asked immediately before the change is sent.
        cloud: Whether it changes an object of a load balancer: its errors are those that the cloud controller knows.
    """

    about: str
    api: str
    method: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]
    write: bool = False
    permit: Permit | None = None
    cloud: bool = False


class Api:
    """Sends the requests of one account to its API.

    Args:
        hub: The hub's services: clock, threads, secrets.
        account: The credential and the API.
        slots: Limits the requests at a time to this API address, across all accounts.
    """

    def __init__(self, hub: HubContext, account: Account, slots: asyncio.Semaphore) -> None:
        self.account = account
        self.usage = Usage()
        self._hub = hub
        self._slots = slots
        self._secret: SecretValue | None = None
        self.last_secret = ""
        """The token or password of the last request."""
        self._blocked_until = -math.inf
        self._lock = threading.Lock()
        self._sdk: Sdk | None = None

    # --- lists -----------------------------------------------------------------------------------------

    async def fleet(self, datacenter: str) -> Fleet:
        """Returns all servers of a data center.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: There is no complete answer.
        """
        where = f"of data center {datacenter}"
        lans = Call(f"the LANs {where}", "LANsApi", "datacenters_lans_get", (datacenter,), {"depth": 1})
        servers = Call(f"the servers {where}", "ServersApi", "datacenters_servers_get", (datacenter,), {"depth": 3})
        networks = await self.whole_list(lans, inventory.lan_of, _read_lan)
        listed = await self.whole_list(servers, inventory.uuid_of, inventory.server)
        failover = [pair for groups, _ in networks for pair in groups]
        public = [lan for _, lan in networks if lan is not None]
        return await self._hub.run_sync(inventory.fleet, listed, failover, public)

    async def pool_nodes(self, cluster: str) -> tuple[PoolNode, ...]:
        """Returns all nodes of a managed Kubernetes cluster.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: There is no complete answer.
        """
        where = f"of Kubernetes cluster {cluster}"
        about = Call(f"the node pools {where}", "KubernetesApi", "k8s_nodepools_get", (cluster,), {"depth": 1})
        found: list[PoolNode] = []
        for pool, _ in await self._whole(about, _keep):
            nodes = Call(
                f"the nodes of pool {pool} {where}",
                "KubernetesApi",
                "k8s_nodepools_nodes_get",
                (cluster, pool),
                {"depth": 1},
            )
            found += await self._whole(nodes, inventory.pool_node)
        return tuple(sorted(found))

    def close(self) -> None:
        """Closes idle connections; a request in progress ends by itself."""
        if self._sdk is not None:
            self._sdk.close()

    async def credential_changed(self, before: str) -> bool:
        """Whether the credential now differs from ``before``. False if it cannot be read."""
        try:
            return await self._read_secret() != before
        except (CredentialError, ProviderError):
            return False

    async def whole_list(
        self, call: Call, identify: Callable[[object, str], str], read: Callable[[str, Mapping[str, object]], T]
    ) -> list[T]:
        """Returns every item of a paged list.

        A full page is never taken for the last one, even if it names no next page. Pages overlap by one item: if the
        first item of a page is not on the page before, items were removed meanwhile and others moved to pages already
        read. Then the list is read again from the start.
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
            if not page.more and len(ids) < page.full:
                return list(found.values())
            if len(found) == before or len(found) > inventory.MAX_ITEMS:
                raise TransientProviderError(f"{call.about}: the pages do not end (after {len(found)} items)")
            offset += len(ids) - 1
        raise TransientProviderError(f"{call.about}: more than {MAX_PAGES} pages")

    async def _whole(self, call: Call, read: Callable[[str, Mapping[str, object]], T]) -> list[T]:
        """Returns every item of a list that the API does not page; an answer that names a next page is an error."""
        page, items = await self._page(call, inventory.uuid_of, read, PAGE)
        if page.more:
            raise TransientProviderError(
                f"{call.about}: the answer is only one page, and this list cannot be requested by page"
            )
        return items

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
        """Sends a request. If the credential is refused, reads it again and retries once with the new one.

        Args:
            call: The request.
            parse: Reads the answer's body; runs in a thread.

        Raises:
            TransientProviderError, TerminalProviderError, CredentialError: The request failed; the message names the
                API and what was requested.
        """
        wait = self._blocked_until - self._hub.clock.now()
        if wait > 0:
            raise RetryLater(f"{self.account.url}: told to wait for {wait:.0f} s more", retry_after=wait)
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
                async with asyncio.timeout(None if call.write else ANSWER):
                    value, headers = await self._hub.run_sync(self._request, call, login, parse)
            except TimeoutError as error:
                raise TransientProviderError(
                    f"{self.account.url} does not answer for {call.about} within {ANSWER:g} s"
                ) from error
            except Malformed as error:
                kind = Uncertain if call.cloud else TransientProviderError
                raise kind(f"{self.account.url}: {call.about}: {error}") from error
            except NotSent as error:
                raise TransientProviderError(f"{self.account.url}: {call.about} was not sent: {error}") from error
            except TerminalProviderError:  # the proxy cannot be used
                raise
            except Exception as error:  # noqa: BLE001 - the SDK lets errors of any library through
                raise self._translated(call, error) from None  # the error's own text may repeat the credential
        self._note(headers)
        return value

    def _request(self, call: Call, login: Login, parse: Callable[[object], T]) -> tuple[T, Mapping[str, str]]:
        """Sends the request and blocks until the answer is parsed; runs in a thread."""
        with self._lock:
            if self._sdk is None:
                self._sdk = open_sdk(self.account, PARALLEL, self._hub.proxy(self.account.url))
        options: dict[str, Any] = {"response_type": "object", "_request_timeout": (5.0, 15.0), **call.options}
        if self.account.contract is not None:
            options["x_contract_number"] = self.account.contract
        client = self._sdk.client(login, call.permit.check if call.permit is not None else None)
        method = getattr(getattr(self._sdk.package, call.api)(client), f"{call.method}_with_http_info")
        data, status, headers = method(*call.arguments, **options)
        expected = 202 if call.write else 200
        if status != expected:
            raise Malformed(f"the answer has status {status} instead of {expected}")
        return parse(headers.get("Location") if call.write else data), headers

    async def _read_secret(self, *, reload: bool = False) -> str:
        if self._secret is None:
            self._secret = self._hub.secret(dict(self.account.secret))
        return await self._secret.get(reload=reload)

    async def _login(self, *, reload: bool = False) -> Login:
        text = self.last_secret = await self._read_secret(reload=reload)
        if self.account.username:
            return Login(username=self.account.username, password=text)
        token = _token_of(text)
        if not token.isascii() or not token.isprintable() or " " in token:
            raise CredentialError(f"{self.account.credential} holds characters a token cannot have")
        return Login(token=token)

    def redact(self, text: str) -> str:
        """Removes credentials from a text of the API; the hub does not know a token that is a part of its file."""
        return self._hub.redact(text.replace(_token_of(self.last_secret) or "\0", "***"))

    # --- rate limit and errors -------------------------------------------------------------------------

    def _note(self, headers: Mapping[str, str]) -> None:
        self.usage.remaining = _number(headers.get("X-RateLimit-Remaining"))
        self.usage.limit = _number(headers.get("X-RateLimit-Limit"))

    def _translated(self, call: Call, error: Exception) -> ProviderError:
        if isinstance(error, ImportError):
            return TerminalProviderError(f"the package ionoscloud cannot be imported: {error}")
        refused = refusal(error)
        if refused is None:
            kind = Uncertain if call.cloud and may_have_arrived(error) else TransientProviderError
            return kind(f"{self.account.url} does not answer for {call.about}: {describe_connection_error(error)}")
        if refused.headers:
            self._note(refused.headers)
        self.usage.limited += refused.status == 429
        said = self.redact(refused.said)
        what = f"{self.account.url} answers {refused.status} for {call.about}" + (f": {said}" if said else "")
        found = (cloud_error(refused, what) if call.cloud else None) or error_for(
            refused, what, self.account.credential, self._hub.clock.wall(), write=call.write
        )
        if isinstance(found, RetryLater):
            self._blocked_until = self._hub.clock.now() + (found.retry_after or 0.0)
        return found


def _token_of(text: str) -> str:
    """The token in a credential: the text itself, or the first one of ``{"tokens": […]}``, as IONOS mounts it."""
    if not text.startswith("{"):
        return text
    try:
        found: object = json.loads(text)["tokens"][0]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return text
    return found if isinstance(found, str) else text


def _keep(identity: str, item: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    return identity, item


def _read_lan(identity: str, item: Mapping[str, object]) -> tuple[list[tuple[int, str]], int | None]:
    """Returns the failover addresses of a LAN, and its number if it is public."""
    return inventory.failover_addresses(identity, item), int(identity) if inventory.is_public(item) else None


def _number(value: str | None) -> int | None:
    """Parses a header with a count; None if it is missing or no number."""
    return int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 10 else None
