"""Access tokens: of a service account's key, of workload identity federation, or of the metadata server.

google-auth exchanges the credential for a token. It blocks, so it runs in a thread, but its requests run in the event
loop with the same limits as all others. It is imported with the first credential.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from hub.plugin import SecretValue, TerminalProviderError, TransientProviderError
from hub.plugin.addresses import AccountContext
from hub.plugin.fields import SecretRef
from hub_provider_gcp.config import DefaultCredentials, is_loopback
from hub_provider_gcp.http import TOTAL, Answer, fetch

SCOPES: Final = {
    "service_account": ["https://www.googleapis.com/auth/compute"],
    "external_account": ["https://www.googleapis.com/auth/cloud-platform"],  # the token service accepts no narrower one
}
METADATA_HOST: Final = "metadata.google.internal"
METADATA_PATH: Final = "/computeMetadata/v1/instance/service-accounts/default/token"
METADATA_PROJECT: Final = "/computeMetadata/v1/project/project-id"
LOGIN_HOST: Final = "oauth2.googleapis.com"
MARGIN: Final = 60.0
"""Seconds before its end that a token is replaced. The metadata server gives a new one 300 s before the end."""
MAX_FILE: Final = 1 << 20

_PROJECT: Final = re.compile(r"([a-z0-9.-]{1,63}:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")

Refresh = Callable[[Any], None]


class Login:
    """The access token of one account.

    Args:
        account: the hub's services.
        credentials: where the credential is.
    """

    def __init__(self, account: AccountContext, credentials: DefaultCredentials | SecretRef) -> None:
        self._hub = account.hub
        self._what = f"account {account.name}"
        self._lock = asyncio.Lock()
        self._token = ""
        self._until = 0.0
        self._secret: SecretValue | None = None
        self._file = ""
        if isinstance(credentials, SecretRef):
            self._secret = account.hub.secret(credentials.ref())
            self.place = f"the credential from {' '.join(f'{key} {name}' for key, name in credentials.ref().items())}"
        else:
            self._file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
            self.place = f"the credential from {self._file}" if self._file else "the identity of the metadata server"

    async def token(self, refused: str = "") -> str:
        """Returns a token.

        Args:
            refused: a token that the API refused; the credential is read again unless another call did so.

        Raises:
            TerminalProviderError: the credential is not valid, or refused.
            TransientProviderError: there is no answer.
        """
        async with self._lock:
            reload = bool(refused) and refused == self._token
            if reload or self._hub.clock.now() >= self._until:
                self._token, seconds = await self._renew(reload)
                self._until = self._hub.clock.now() + seconds - MARGIN
            return self._token

    async def project(self) -> str:
        """Returns the project that the key file names, or that this machine is in.

        Raises:
            TerminalProviderError: there is none.
            TransientProviderError: the metadata server does not answer.
        """
        found: Any = ""
        if self._secret is None and not self._file:
            answer, _ = await self._ask_metadata(METADATA_PROJECT)
            found = answer.data.decode("ascii", "replace").strip() if answer.status == 200 else ""
        else:
            text = await (self._secret.get() if self._secret else self._hub.run_sync(self._read, self._file))
            try:
                found = json.loads(text)["project_id"]
            except (ValueError, KeyError, TypeError, RecursionError):
                found = ""
        if not isinstance(found, str) or not _PROJECT.fullmatch(found):
            raise TerminalProviderError(f"{self._what}: {self.place} names no project; write project: into config")
        return found

    async def _renew(self, reload: bool) -> tuple[str, float]:
        if self._secret is not None:
            return await self._exchange(await self._secret.get(reload=reload))
        if self._file:
            return await self._exchange(await self._hub.run_sync(self._read, self._file))
        return await self._metadata()

    def _read(self, path: str) -> str:
        try:
            with Path(path).open(encoding="utf-8") as file:
                return file.read(MAX_FILE)
        except (OSError, ValueError) as error:
            raise TerminalProviderError(
                f"{self._what}: GOOGLE_APPLICATION_CREDENTIALS: cannot read {path} ({type(error).__name__})"
            ) from None

    async def _ask_metadata(self, path: str) -> tuple[Answer, str]:
        """Returns an answer of the metadata server, and how errors name it."""
        host = os.environ.get("GCE_METADATA_HOST", METADATA_HOST)
        what = f"{self._what}: metadata server {host}, which only exists on Google Cloud (elsewhere give credentials)"
        self._hub.check_api_host(host, METADATA_HOST)
        headers = {"Metadata-Flavor": "Google"}
        return await fetch(self._hub.http, "GET", f"http://{host}{path}", what, headers=headers), what

    async def _metadata(self) -> tuple[str, float]:
        """Asks the metadata server, also for GKE's workload identity."""
        answer, what = await self._ask_metadata(METADATA_PATH)
        if answer.status == 404:
            raise TerminalProviderError(f"{what}: this machine has no service account; assign one")
        try:
            body = json.loads(answer.data)
            return str(body["access_token"]), float(body["expires_in"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise TransientProviderError(f"{what}: {answer.status}, no token in the answer") from None

    async def _exchange(self, text: str) -> tuple[str, float]:
        """Exchanges a key for a token."""
        requests = _Requests(self, asyncio.get_running_loop())
        return await self._hub.run_sync(self._refresh, text, requests)

    def _refresh(self, text: str, requests: _Requests) -> tuple[str, float]:
        """Runs google-auth in a thread. Its messages are not quoted: they have parts of the login service's answer."""
        from google.auth.exceptions import GoogleAuthError

        try:
            credentials = _load(json.loads(text))
            credentials.refresh(requests)
            expiry: datetime = credentials.expiry.replace(tzinfo=UTC)
            return str(credentials.token), (expiry - datetime.now(UTC)).total_seconds()
        except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if requests.status == 0:
                fault = f"{self.place} is not valid ({type(error).__name__})"
                raise TerminalProviderError(f"{self._what}: {fault}; give a key file of a service account") from None
            code = re.search(r"\binvalid_[a-z]{1,20}\b|\bunauthorized_client\b", str(error))
            said = f"{requests.status} {code[0] if code else ''}".strip()
            if 400 <= requests.status <= 499:
                raise TerminalProviderError(
                    f"{self._what}: the login is refused ({said}); replace {self.place}"
                ) from None
            raise TransientProviderError(f"{self._what}: the login service's answer is broken ({said})") from None

    async def request(self, method: str, url: str, body: Any, headers: Mapping[str, str] | None) -> Answer:
        """Sends a request of google-auth, if the hub may contact its host.

        A failure is not google-auth's TransportError, which it would answer with up to five more requests.

        Raises:
            TerminalProviderError: the credential names a host that ``--allow-api-host`` does not name.
            TransientProviderError: there is no complete answer, or the login service cannot answer now.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme != "https" and not is_loopback(host):
            raise TerminalProviderError(f"{self._what}: {self.place} names a URL of {host!r} that is not https")
        if not host.endswith(".googleapis.com"):
            self._hub.check_api_host(parts.netloc, LOGIN_HOST)
        what = f"{self._what}: login at {host}"
        answer = await fetch(self._hub.http, method, url, what, data=body, headers=dict(headers or {}))
        if answer.status in (408, 429) or answer.status >= 500:
            raise TransientProviderError(f"{what}: {answer.status}")
        return answer


class _Requests:
    """The transport that google-auth calls in its thread.

    Args:
        login: sends the requests.
        loop: the loop that they run in.

    Attributes:
        status: the HTTP status of the last answer; 0 before the first.
    """

    def __init__(self, login: Login, loop: asyncio.AbstractEventLoop) -> None:
        self._login = login
        self._loop = loop
        self.status = 0

    def __call__(
        self, url: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None, **_: Any
    ) -> Answer:
        future = asyncio.run_coroutine_threadsafe(self._login.request(method, url, body, headers), self._loop)
        try:
            answer = future.result(TOTAL + 1.0)
        except TimeoutError:
            future.cancel()
            raise TransientProviderError("the login took too long") from None
        self.status = answer.status
        return answer


def _load(info: Any) -> Any:
    """Returns google-auth's credentials for a key file.

    Programs that a file names are not run, and of other clouds only those that need a URL or a file are supported.
    """
    kind = cast("dict[str, Any]", info).get("type")
    if kind == "service_account":
        from google.oauth2 import service_account

        return cast("Any", service_account.Credentials).from_service_account_info(info, scopes=SCOPES[kind])
    if kind == "external_account" and "executable" not in info["credential_source"]:
        from google.auth import identity_pool

        return cast("Any", identity_pool.Credentials).from_info(info, scopes=SCOPES[kind])
    if kind == "authorized_user":
        from google.oauth2 import credentials

        return cast("Any", credentials.Credentials).from_authorized_user_info(info)
    raise ValueError("this type of credential is not supported")
