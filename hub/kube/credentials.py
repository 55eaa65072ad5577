"""Keeps the credentials of one cluster current: rotated files, exec plugins, expiry.

A credential that cannot be renewed stays in use until it expires. After that, requests fail; none is sent anonymously.
Deadlines use the monotonic clock, so a jump of the wall clock neither expires nor revives a credential. Messages never
contain a credential, and quote the output of plugins only after it was redacted.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import shutil
import ssl
from collections.abc import Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from hub.errors import CredentialError
from hub.kube import tls
from hub.kube.cluster_access import ClientCertificate, ClusterAccess, Exec, Token, TokenFile, usable_token
from hub.kube.proxy import Proxy
from hub.kube.secret import Secret
from hub.kube.tokens import Life, token_life
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock, rfc3339
from hub.runtime.files import ConfinedPath, OutsideFolders, read_regular, signature
from hub.runtime.process import ProcessError, redact, run_program
from hub.runtime.rounds import own_round
from hub.runtime.threads import NoAnswer, Reader

log = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_INTERVAL: Final = 5.0
"""Seconds between two checks of rotated files; a check takes one ``stat`` per file."""

FILE_LIMIT: Final = 1 << 20
"""The largest file that is read, in bytes: far more than any token or CA bundle needs."""

READ_TIMEOUT: Final = 5.0
"""Seconds for reading one file; a mount that takes longer counts as hung."""

EXEC_TIMEOUT: Final = 15.0
"""Seconds for one run of a plugin."""
EXEC_STDOUT: Final = 64 << 10
"""The largest output of a plugin, in bytes."""
EXEC_STDERR: Final = 64 << 10
"""The largest stderr of a plugin, in bytes. Some plugins print long warnings; 256 characters of them are shown."""

RENEW_BEFORE: Final = 300.0
"""Seconds before its expiry at which a plugin's credential is renewed, or at half its life if that is later."""

SOON: Final = 14 * 86_400.0
"""A credential with at most this many seconds left may be reported as expiring soon (see :func:`ends_soon`)."""
SOON_SHARE: Final = 0.2
"""A credential with at most this share of its life left may be reported as expiring soon."""

RELOAD_INTERVAL: Final = 10.0
"""Seconds between two runs of a plugin because of a 401, at least: a server may answer 401 to every request."""


class _Material(msgspec.Struct, frozen=True):
    """The content of a source: the credentials and CA of a connection, and when they expire (Unix time)."""

    token: Secret | None = None
    certificate: bytes | None = None
    key: Secret | None = None
    ca: bytes | None = None
    expires: float | None = None
    begins: float | None = None
    """When the part that expires first became valid."""

    def same_tls(self, other: _Material) -> bool:
        """Whether both lead to the same TLS context."""
        return (self.ca, self.certificate, self.key) == (other.ca, other.certificate, other.key)


class _Source(Protocol):
    async def read(self, *, force: bool) -> tuple[_Material, float]:
        """Read the source; returns the material and the seconds until the next check. ``force`` is set after a 401."""
        ...


class Credentials:
    """The current credentials of one cluster, for its client.

    The client calls :meth:`headers` before every request. When :attr:`generation` has changed since a connection was
    opened, the client replaces the connection by a new one with :meth:`ssl_context`.
    """

    def __init__(self, access: ClusterAccess, clock: Clock) -> None:
        self.access = access
        self._clock = clock
        ca = access.ca_data if access.ca_file is None else _File(access, access.ca_file, "CA file")
        self._source: _Source = (
            _Plugin(access, access.auth, ca, clock)
            if isinstance(access.auth, Exec)
            else _Files(access, access.auth, ca)
        )
        self._lock = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._backoff = Backoff(base=2.0, cap=60.0, jitter=0.2)
        self._material: _Material | None = None
        self._headers: Mapping[str, str] = {}
        self._context: ssl.SSLContext | None = None
        self._proxy_context: ssl.SSLContext | None = None
        self._generation = 0
        self._check_at = float("-inf")
        self._ends_at = float("inf")
        self._problem = ""  # why the last refresh failed; empty after a good one

    def __repr__(self) -> str:
        return f"Credentials({self.access.origin})"

    @property
    def server(self) -> str:
        """``https://host[:port][/path]`` without a final slash."""
        return self.access.server

    @property
    def server_hostname(self) -> str | None:
        """The name to verify instead of the server's host, or None."""
        return self.access.tls_server_name

    @property
    def proxy(self) -> Proxy | None:
        """The proxy that leads to the server; None = it is contacted directly."""
        return self.access.proxy

    @property
    def generation(self) -> int:
        """A number that grows whenever :meth:`ssl_context` is replaced."""
        return self._generation

    async def headers(self) -> Mapping[str, str]:
        """The Authorization header, or no header if a client certificate is the whole credential.

        Raises:
            CredentialError: there is no usable credential.
        """
        if self._clock.now() < self._check_at and self._usable():
            return self._headers
        if not self._usable():
            await self._renew()
        elif self._under_way or self._lock.locked():
            return self._headers  # another task renews the credentials; the current ones are still valid
        else:
            await self._uncancelled(self._renew())
        if not self._usable():
            raise CredentialError(self._problem)
        return self._headers

    async def _uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` in a task of its own, which continues if the caller is cancelled.

        Calls for the Lease have a timeout of 3 s. Without the task, each of them would start a slower plugin and kill
        it again.
        """
        task = asyncio.create_task(work, name=f"credentials of {self.access.origin}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(task)
        finally:
            del task  # breaks the cycle of an error's traceback -> this frame -> task -> error

    async def _renew(self) -> None:
        async with self._lock:
            if self._clock.now() >= self._check_at:
                await self._refresh(force=False)

    def ssl_context(self) -> ssl.SSLContext:
        """The TLS context of the current generation; available after :meth:`headers` has succeeded once.

        Raises:
            CredentialError: no credential has been read yet.
        """
        if self._context is None:
            raise CredentialError(self._problem or f"{self.access.origin}: no credential has been read yet")
        return self._context

    def proxy_context(self) -> ssl.SSLContext | None:
        """The TLS context for an https proxy: it trusts the same authorities, and has no client certificate.

        None until :meth:`headers` has succeeded once.
        """
        return self._proxy_context

    async def reload(self, used: Mapping[str, str] | None = None) -> bool:
        """Read the source again after a 401. True = a retry may succeed, since the credentials have changed.

        Args:
            used: the headers that were refused, if the caller has them. If they are no longer the current ones, another
                call has already reloaded the credentials and nothing is read.

        Raises:
            CredentialError: the credential has expired by its own date, which explains the 401.
        """
        return await self._uncancelled(self._reload(used))

    async def _reload(self, used: Mapping[str, str] | None) -> bool:
        async with self._lock:
            if used is not None and dict(used) != dict(self._headers):
                return True
            before = (self._headers, self._generation)
            await self._refresh(force=True)
            if before != (self._headers, self._generation):
                return True
            ended = self.expires_at()
            if ended is not None and ended <= self._clock.wall():
                raise CredentialError(f"{self.access.origin}: the credential expired at {rfc3339(ended)}; renew it")
            return False

    def expires_at(self) -> float | None:
        """When the current credential expires according to its own content (Unix time); None = unknown."""
        return self._material.expires if self._material is not None else None

    def expiring(self) -> float | None:
        """When the current credential expires (Unix time), if that is soon and no plugin renews it; else None."""
        material = self._material
        if material is None or material.expires is None:
            return None
        if isinstance(self.access.auth, Exec) and not self._problem:
            return None
        return material.expires if ends_soon(material.begins, material.expires, self._clock.wall()) else None

    def _usable(self) -> bool:
        """Whether there is a credential to send.

        An expired one counts as unusable only if its renewal failed. Otherwise the server decides.
        """
        return self._material is not None and (not self._problem or self._clock.now() < self._ends_at)

    async def _refresh(self, *, force: bool) -> None:
        """Read the source. After a failure, the message is in ``_problem`` and the current credential stays in use."""
        try:
            material, good_for = await self._source.read(force=force)
            if self._material is None or not material.same_tls(self._material):
                await own_round()
                self._context = tls.client_context(
                    material.ca, material.certificate, material.key, what=self.access.origin
                )
                self._proxy_context = self._context
                if self.access.proxy is not None and material.certificate is not None:
                    self._proxy_context = tls.client_context(material.ca, what=self.access.origin)
                self._generation += 1
        except CredentialError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("%s%s", error, "; the credential in use stays until it expires" if self._usable() else "")
            now = self._clock.now()
            self._check_at = now + self._backoff.next(now)
            return
        now = self._clock.now()
        if material != self._material:
            self._material = material
            self._headers = {"Authorization": f"Bearer {material.token.reveal()}"} if material.token else {}
            self._ends_at = float("inf") if material.expires is None else now + material.expires - self._clock.wall()
        self._backoff.reset()
        self._problem = ""
        self._check_at = now + good_for


class _File:
    """A file that may be rotated: it is read again when its status has changed."""

    def __init__(self, access: ClusterAccess, path: Path, what: str) -> None:
        self._path = path
        self._confined = ConfinedPath(path, *access.folders) if access.folders else None
        self._what = f"{access.origin}: {what} {path}"
        self._seen: tuple[int, ...] = ()
        self._data = b""
        self._reader = Reader(READ_TIMEOUT)

    async def read(self, *, force: bool) -> bytes:
        """The current content. ``force`` reads the file even if its status has not changed.

        Raises:
            CredentialError: the file is missing, unreadable, empty or too large, or its mount does not answer.
        """
        try:
            return await self._reader.call(self._read, force)
        except NoAnswer as error:
            raise CredentialError(f"{self._what}: {error}") from None

    def _read(self, force: bool) -> bytes:
        try:
            # Symlinks are resolved every time, since a mounted Secret is rotated by replacing one.
            real = self._confined.real() if self._confined is not None else os.path.realpath(self._path)
            seen = signature(os.stat(real))  # noqa: PTH116 - realpath returns a string
            if force or seen != self._seen:
                self._data = read_regular(real, FILE_LIMIT, follow=False).data
                self._seen = seen
        except OutsideFolders as error:
            raise CredentialError(f"{self._what} {error.strerror}") from None
        except OSError as error:
            raise CredentialError(f"{self._what}: cannot be read: {error.strerror}") from None
        if not self._data.strip():
            self._seen = ()
            raise CredentialError(f"{self._what}: empty")
        return self._data


class _Files:
    """A source of tokens and certificates, each in the kubeconfig itself or in a file."""

    def __init__(
        self, access: ClusterAccess, auth: Token | TokenFile | ClientCertificate, ca: bytes | _File | None
    ) -> None:
        token = auth.token if isinstance(auth, ClientCertificate) else auth
        self._origin = access.origin
        self._ca = ca
        self._token = _File(access, token.path, "token file") if isinstance(token, TokenFile) else token
        self._certificate: bytes | _File | None = None
        self._key: Secret | _File | None = None
        if isinstance(auth, ClientCertificate):
            certificate, key = auth.certificate, auth.key
            self._certificate = (
                _File(access, certificate, "client certificate file") if isinstance(certificate, Path) else certificate
            )
            self._key = _File(access, key, "client key file") if isinstance(key, Path) else key
        parts = (self._ca, self._token, self._certificate, self._key)
        self._interval = CHECK_INTERVAL if any(isinstance(part, _File) for part in parts) else float("inf")

    async def read(self, *, force: bool) -> tuple[_Material, float]:
        certificate, key, token = self._certificate, self._key, self._token
        if isinstance(certificate, _File):
            certificate = await certificate.read(force=force)
        if isinstance(key, _File):
            key = Secret((await key.read(force=force)).decode("ascii", "ignore"))
        value = token.value if isinstance(token, Token) else None
        if isinstance(token, _File):
            text = (await token.read(force=force)).decode("utf-8", "replace").strip()
            if not usable_token(text):
                raise CredentialError(f"{self._origin}: token file holds no token (one line of printable characters)")
            value = Secret(text)
        ca = await _content(self._ca, force=force)
        begins, expires = _earliest(token_life(value), _certificate_life(certificate))
        return _Material(value, certificate, key, ca, expires, begins), self._interval


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Status | None = None


class _Plugin:
    """A source that runs a client-go credential plugin; its credential is cached until shortly before it expires."""

    def __init__(self, access: ClusterAccess, plugin: Exec, ca: bytes | _File | None, clock: Clock) -> None:
        self._access = access
        self._plugin = plugin
        self._ca = ca
        self._clock = clock
        self._what = f"{access.origin}: exec plugin {Path(plugin.command).name}"
        self._material: _Material | None = None
        self._renew_at = float("-inf")
        self._ran_at = float("-inf")

    async def read(self, *, force: bool) -> tuple[_Material, float]:
        ca = await _content(self._ca, force=force)
        now = self._clock.now()
        due = now >= self._renew_at or (force and now - self._ran_at >= RELOAD_INTERVAL)
        if self._material is None or due:
            self._ran_at = now
            self._material = await self._run(ca)
            self._renew_at = self._renewal(self._material.expires)
        interval = CHECK_INTERVAL if isinstance(self._ca, _File) else float("inf")
        return replace(self._material, ca=ca), min(interval, self._renew_at - self._clock.now())

    def _renewal(self, expires: float | None) -> float:
        """When to run the plugin again, on the monotonic clock."""
        if expires is None:
            return float("inf")  # the credential is kept until the server answers 401, as in client-go
        left = expires - self._clock.wall()
        return self._clock.now() + max(left - RENEW_BEFORE, left / 2)

    async def _run(self, ca: bytes | None) -> _Material:
        plugin = self._plugin
        base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        program = plugin.command
        if "/" not in program:
            program = shutil.which(program, path=base.get("PATH")) or ""
        if not program:
            raise CredentialError(f"{self._what}: not found on PATH; install it or name it by its full path")
        env = base | dict(plugin.env) | {"KUBERNETES_EXEC_INFO": self._info(ca)}
        try:
            done = await run_program(
                [program, *plugin.args],
                env=env,
                timeout=EXEC_TIMEOUT,
                stdout_limit=EXEC_STDOUT,
                stderr_limit=EXEC_STDERR,
            )
        except ProcessError as error:
            raise CredentialError(f"{self._what}: {error}") from None
        if done.exit_code != 0:
            known = [*plugin.args, *(value for _, value in plugin.env)]
            known += self._access.proxy.secrets() if self._access.proxy is not None else ()
            said = redact(done.stderr, known) or "nothing on stderr"
            raise CredentialError(f"{self._what}: exit code {done.exit_code}: {said}")
        return self._material_of(done.stdout)

    def _material_of(self, stdout: bytes) -> _Material:
        try:
            answer = msgspec.json.decode(stdout, type=_ExecCredential)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise CredentialError(f"{self._what}: printed no ExecCredential in JSON") from None
        if answer.kind != "ExecCredential" or answer.api_version != self._plugin.api_version:
            raise CredentialError(f"{self._what}: printed no ExecCredential of {self._plugin.api_version}")
        status = answer.status or _Status()
        certificate = (status.client_certificate_data or "").encode() or None
        key = Secret(status.client_key_data) if status.client_key_data else None
        token = Secret(status.token.strip()) if status.token else None
        if token is None and certificate is None:
            raise CredentialError(f"{self._what}: gave neither a token nor a client certificate")
        if (certificate is None) != (key is None):
            raise CredentialError(f"{self._what}: gave half of a client certificate and key pair")
        if token is not None and not usable_token(token.reveal()):
            raise CredentialError(f"{self._what}: gave a token with characters a token cannot have")
        said = self._timestamp(status.expiration_timestamp)
        begins, expires = _earliest(
            (None, said) if said is not None else None, token_life(token), _certificate_life(certificate)
        )
        if expires is not None and expires <= self._clock.wall():
            raise CredentialError(
                f"{self._what}: gave a credential that expired at {rfc3339(expires)}, or this machine's clock is wrong"
            )
        return _Material(token, certificate, key, None, expires, begins)

    def _timestamp(self, text: str | None) -> float | None:
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise CredentialError(f"{self._what}: its expirationTimestamp is not an RFC 3339 time")
        return moment.timestamp()

    def _info(self, ca: bytes | None) -> str:
        """The value of KUBERNETES_EXEC_INFO, the plugin's only input from the hub."""
        spec: dict[str, object] = {"interactive": False}
        if self._plugin.provide_cluster_info:
            cluster: dict[str, object] = {"server": self._access.server}
            if self._access.tls_server_name:
                cluster["tls-server-name"] = self._access.tls_server_name
            if self._access.proxy is not None:
                cluster["proxy-url"] = self._access.proxy.url.reveal()
            if ca is not None:
                cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
            if (config := json.loads(self._plugin.cluster_config)) is not None:
                cluster["config"] = config
            spec["cluster"] = cluster
        return json.dumps({"apiVersion": self._plugin.api_version, "kind": "ExecCredential", "spec": spec})


def ends_soon(begins: float | None, ends: float, wall: float) -> bool:
    """Whether a credential expires soon: it has at most 14 days left, and at most a fifth of its whole life.

    A certificate for one year is reported two weeks before its end, and one for a month six days before. A token for
    one hour is not reported before 80 % of its life, at which a kubelet replaces it. Times are Unix times; if
    ``begins`` is None, only the 14 days count.
    """
    left = ends - wall
    if begins is not None and left > SOON_SHARE * (ends - begins):
        return False
    return left <= SOON


def _certificate_life(certificate: bytes | None) -> Life | None:
    return tls.validity(certificate) if certificate is not None else None


async def _content(source: bytes | _File | None, *, force: bool) -> bytes | None:
    return await source.read(force=force) if isinstance(source, _File) else source


def _earliest(*lives: Life | None) -> tuple[float | None, float | None]:
    """The begin and end of the life that ends first; (None, None) if no end is known."""
    return min((life for life in lives if life is not None), key=lambda life: life[1], default=(None, None))
