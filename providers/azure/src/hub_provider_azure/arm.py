"""Requests to Azure Resource Manager for one account: credential, pages, rate limit, errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

from hub.plugin import HubContext, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import QuotaExceeded
from hub_provider_azure.config import host_of
from hub_provider_azure.failures import decoded, error_for, problem_in, retry_after
from hub_provider_azure.http import Answer, fetch

if TYPE_CHECKING:
    from hub_provider_azure.login import Login

NETWORK: Final = "2024-05-01"
COMPUTE: Final = "2024-07-01"
"""Versions of the APIs Microsoft.Network and Microsoft.Compute."""

MAX_PAGES: Final = 1000


class Reply(NamedTuple):
    """A successful answer.

    Attributes:
        document: the JSON object of its body.
        operation: the path of the operation that Azure-AsyncOperation names, on whatever host; "" if none.
        wait: the seconds of Retry-After; 0 if there is none.
    """

    document: dict[str, Any]
    operation: str = ""
    wait: float = 0.0


class Arm:
    """The API of one account.

    Args:
        hub: the hub's context.
        endpoint: scheme and host of the API.
        login: the account's access tokens.
        account: the account's name in words.
    """

    def __init__(self, hub: HubContext, endpoint: str, login: Login, account: str) -> None:
        self._hub = hub
        self._endpoint = endpoint
        self._login = login
        self.account = account
        self._quiet_until = 0.0

    async def get(self, path: str, version: str, **query: str) -> Reply:
        """Reads a resource.

        Raises:
            NotFound: it does not exist.
            ProviderError: as for all calls of an AddressProvider.
        """
        return await self._request("GET", f"{path}?{urlencode({'api-version': version, **query})}")

    async def put(self, path: str, version: str, document: Mapping[str, Any], etag: str) -> Reply:
        """Writes a resource if it still has this etag; raises AddressConflict if not."""
        return await self._request("PUT", f"{path}?{urlencode({'api-version': version})}", document, etag)

    async def items(self, path: str, version: str) -> list[dict[str, Any]]:
        """Reads all pages of a list. An incomplete list is an error."""
        found: list[dict[str, Any]] = []
        target = f"{path}?{urlencode({'api-version': version})}"
        for _ in range(MAX_PAGES):
            document = (await self._request("GET", target)).document
            page, more = document.get("value"), document.get("nextLink")
            if not isinstance(page, list) or not all(isinstance(item, dict) for item in cast("list[object]", page)):
                raise TransientProviderError(f"{self.account}: GET {path}: the answer has no list")
            found += cast("list[dict[str, Any]]", page)
            if not more:
                return found
            target = self._own_path(more)
            if not target:
                raise TransientProviderError(f"{self.account}: GET {path}: the next page is not on {self._endpoint}")
        raise TransientProviderError(f"{self.account}: GET {path}: more than {MAX_PAGES} pages")

    def error(self, document: Mapping[str, Any], what: str) -> Exception:
        """Returns the error of an operation that ended with one."""
        return error_for(0, problem_in(document), f"{self.account}: {what}", self._hub.redact, None, write=True)

    def _own_path(self, link: object) -> str:
        """Returns path and query of a link to the endpoint; "" for a link to another host."""
        if not isinstance(link, str) or len(link) > 8192 or not link.isascii():
            return ""
        scheme, host, path, query, _ = urlsplit(link)
        here = f"{scheme}://{host}".lower() in (self._endpoint, f"{self._endpoint}:443")
        return f"{path}?{query}" if here and path.startswith("/") else ""

    async def _request(
        self, method: str, target: str, document: Mapping[str, Any] | None = None, etag: str = ""
    ) -> Reply:
        what = f"{self.account}: {method} {host_of(self._endpoint)}{target.partition('?')[0]}"
        if (left := self._quiet_until - self._hub.clock.now()) > 0:
            raise QuotaExceeded(f"{what}: not sent, Azure asked for a pause of {left:.0f} s more", retry_after=left)
        try:
            return await self._exchange(method, target, what, document, etag)
        except QuotaExceeded as error:
            self._quiet_until = self._hub.clock.now() + (error.retry_after or 0.0)
            raise

    async def _exchange(
        self, method: str, target: str, what: str, document: Mapping[str, Any] | None, etag: str
    ) -> Reply:
        token = await self._login.token()
        answer = await self._send(method, target, what, token, document, etag)
        if answer.status == 401:
            token = await self._login.token(refused=token)
            answer = await self._send(method, target, what, token, document, etag)
        if answer.status == 401:
            raise TerminalProviderError(f"{what}: 401 also with a new token; check the identity and its tenant")
        found = decoded(answer.body)
        wait = retry_after(answer.headers, self._hub.clock.wall())
        if answer.status >= 300:

            def redact(text: str) -> str:
                return self._hub.redact(text.replace(token, "***"))

            raise error_for(answer.status, problem_in(found), what, redact, wait, write=method != "GET")
        if not isinstance(found, dict):
            raise TransientProviderError(f"{what}: {answer.status} with a body that is no JSON object")
        link = urlsplit(answer.headers.get("Azure-AsyncOperation", ""))
        return Reply(cast("dict[str, Any]", found), link.path, wait or 0.0)

    async def _send(
        self, method: str, target: str, what: str, token: str, document: Mapping[str, Any] | None, etag: str
    ) -> Answer:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if document is None:
            return await fetch(self._hub.http, method, self._endpoint + target, what, headers=headers)
        headers |= {"Content-Type": "application/json", "If-Match": etag}
        body = json.dumps(document).encode()
        return await fetch(self._hub.http, method, self._endpoint + target, what, headers=headers, data=body)
