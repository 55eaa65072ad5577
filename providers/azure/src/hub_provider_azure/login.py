"""Access tokens for Azure Resource Manager, from azure-identity. Imported with the first account.

The library sends its requests through the hub's session, so that they have the hub's proxy and limits. It repeats
nothing, and its own cache is not used: it writes a log record for each token that it takes from there.
"""

from __future__ import annotations

import asyncio
import logging
import re
from types import TracebackType
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import AsyncHttpResponse, AsyncHttpTransport
from azure.core.rest import HttpRequest
from azure.identity.aio import ClientSecretCredential, ManagedIdentityCredential, WorkloadIdentityCredential

from hub.plugin import HubContext, ProviderError, TerminalProviderError, TransientProviderError
from hub_provider_azure.config import AzureConfig
from hub_provider_azure.failures import decoded, error_for, problem_in, retry_after
from hub_provider_azure.http import Answer, fetch

EARLY: Final = 300.0
"""Seconds before its expiry at which a token is replaced."""

# The errors raised here say the same, without the texts of other systems that the library logs.
logging.getLogger("azure.identity").setLevel(logging.CRITICAL)


class Refused(TerminalProviderError):
    """The login service or the API refuses the credential."""


class Login:
    """The access token of one account.

    Args:
        hub: the hub's context.
        config: the account's configuration.
        account: the account's name in words.
    """

    def __init__(self, hub: HubContext, config: AzureConfig, account: str) -> None:
        self._hub = hub
        self._config = config
        self._what = f"{account}: login with {config.credentials.place}"
        secret = config.credentials.client_secret
        self._secret = None if secret is None else hub.secret(secret.ref())
        self._lock = asyncio.Lock()
        self._token, self._expires = "", 0.0

    async def token(self, refused: str = "") -> str:
        """Returns a valid access token.

        Args:
            refused: a token that the API does not accept; it is replaced, and the credential is read again.

        Raises:
            Refused: the login service does not accept the credential, also after it was read again.
            TransientProviderError: the login service does not answer.
            CredentialError: the credential is missing or unreadable.
        """
        async with self._lock:
            if self._token and self._token != refused and self._hub.clock.wall() < self._expires - EARLY:
                return self._token
            reload = bool(refused)
            self._token = ""
            try:
                self._token, self._expires = await self._log_in(reload=reload)
            except Refused:
                if reload or self._secret is None:
                    raise
                self._token, self._expires = await self._log_in(reload=True)
            return self._token

    async def _log_in(self, *, reload: bool) -> tuple[str, float]:
        secret = "" if self._secret is None else await self._secret.get(reload=reload)
        try:
            credential = self._credential(secret)
            token = await credential.get_token(f"{self._config.endpoint}/.default")
        except OSError as error:
            raise TransientProviderError(f"{self._what}: cannot read the token file: {error.strerror}") from None
        except ValueError:
            raise TerminalProviderError(
                f"{self._what}: no workload identity in the environment; see the label azure.workload.identity/use"
            ) from None
        except AzureError as error:
            raise self._error(error) from None
        return token.token, float(token.expires_on)

    def _credential(
        self, secret: str
    ) -> ClientSecretCredential | ManagedIdentityCredential | WorkloadIdentityCredential:
        chosen, authority = self._config.credentials, self._config.authority
        options: dict[str, Any] = {"transport": _Transport(self._hub, authority, self._what), "retry_total": 0}
        if chosen.managed_identity is not None:
            return ManagedIdentityCredential(client_id=chosen.managed_identity.client_id, **options)
        options["authority"] = _as_https(authority)
        if chosen.workload_identity:
            return WorkloadIdentityCredential(**options)
        return ClientSecretCredential(chosen.tenant_id or "", chosen.client_id or "", secret, **options)

    def _error(self, error: BaseException) -> ProviderError:
        cause: BaseException | None = error
        while cause is not None:  # the library replaces errors of the transport by its own
            if isinstance(cause, ProviderError):
                return cause
            cause = cause.__cause__
        code = re.search(r"AADSTS[0-9]{4,9}", str(error))
        return Refused(f"{self._what} is refused{f' ({code[0]})' if code else ''}; renew or assign it")


def _as_https(url: str) -> str:
    """Returns the URL that the library is given: it accepts https only. :class:`_Transport` puts http back."""
    return f"https://{url.partition('://')[2]}"


class _Response(AsyncHttpResponse):
    """An answer, as the library reads it."""

    def __init__(self, request: Any, answer: Answer) -> None:
        super().__init__(request, None)
        self.status_code = answer.status
        self.headers = dict(answer.headers)
        self.reason = ""
        self.content_type = "application/json"
        self._body = answer.body

    def body(self) -> bytes:
        return self._body


class _Transport(AsyncHttpTransport[HttpRequest, AsyncHttpResponse]):
    """Sends the library's requests through the hub's session."""

    def __init__(self, hub: HubContext, authority: str, what: str) -> None:
        self._hub = hub
        self._authority = authority
        self._what = what

    async def send(self, request: HttpRequest, **_: Any) -> AsyncHttpResponse:
        url = request.url
        if url.startswith(prefix := f"{_as_https(self._authority)}/"):
            url = f"{self._authority}/{url.removeprefix(prefix)}"
        answer = await fetch(
            self._hub.http, request.method, url, self._what, headers=dict(request.headers), data=request.content
        )
        document = decoded(answer.body)
        if answer.status in (408, 429) or answer.status >= 500 or not isinstance(document, dict):
            wait = retry_after(answer.headers, self._hub.clock.wall())
            status = answer.status if answer.status >= 300 else 502
            raise error_for(status, problem_in(document), self._what, self._hub.redact, wait, write=False)
        return _Response(request, answer)

    async def open(self) -> None:
        """The session is the hub's."""

    async def close(self) -> None:
        """The session is the hub's."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Does nothing."""
