"""Reads Secrets of one namespace of the hub cluster: kubeconfigs, and credentials of providers.

Every Secret that is read gets its own watch, so that the hub's account needs rights only for Secrets by name. If
the account may not watch a Secret, callers read it again every half minute. Values are never logged.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from typing import Any, Final

from hub.errors import CredentialError, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.kube.reflector import Reflector, RelistSlots
from hub.kube.wire import SECRETS, SecretData, decode_secret
from hub.runtime.clock import Clock
from hub.runtime.supervise import supervise

log = logging.getLogger(__name__)

TIMEOUT: Final = 10.0
"""Seconds to read a Secret."""
FORGET: Final = 600.0
"""Seconds after the last read until the watch of a Secret ends: its cluster has left the registry."""
SWEEP: Final = 60.0
"""Seconds between searches for such Secrets."""
GONE: Final = "-"
"""The version of a Secret that does not exist."""


class Secrets:
    """Reads Secrets, and follows them while :meth:`run` runs.

    Args:
        client: client of the hub cluster.
        clock: source of time.
        namespace: namespace of the Secrets.
    """

    def __init__(self, client: Client, clock: Clock, namespace: str) -> None:
        self.namespace = namespace
        self._client = client
        self._clock = clock
        self._used_at: dict[str, float] = {}
        self._followed: dict[str, tuple[_Followed, asyncio.Task[None]]] = {}
        self._slots = RelistSlots()
        self._running = False

    async def read(self, name: str) -> Mapping[str, str]:
        """The base64 values of a Secret, from its watch or by a request.

        Raises:
            NotFound: the Secret does not exist.
            HubError: the Secret cannot be read.
        """
        followed = self._mark_used(name)
        if followed is None or followed.version is None:
            body = await self._client.request("GET", self.path(name), timeout=TIMEOUT)
            return decode_secret(body).data
        if followed.found is None:
            raise NotFound(404, "NotFound", f'secrets "{name}" not found', what=f"GET {self.path(name)}")
        return followed.found.data

    async def text(self, name: str, key: str) -> str:
        """The value of one key.

        Raises:
            CredentialError: the Secret does not have it as text.
            HubError: as for :meth:`read`.
        """
        data = await self.read(name)
        try:
            return base64.b64decode(data[key]).decode()
        except KeyError:
            problem = f"has no key {key!r}"
        except ValueError:
            problem = f"key {key!r} is not text in base64"
        raise CredentialError(f"Secret {self.namespace}/{name}: {problem}")

    def version(self, name: str) -> str | None:
        """The Secret's version, which changes with it; None if it is not followed (yet): only a read shows a change."""
        followed = self._mark_used(name)
        return followed.version if followed is not None else None

    def path(self, name: str) -> str:
        """API path of a Secret."""
        return f"/api/v1/namespaces/{self.namespace}/secrets/{name}"

    async def run(self) -> None:
        """Follow the Secrets that are read, until cancelled."""
        self._running = True
        try:
            for name in self._used_at:
                self._follow(name)
            while True:
                await self._clock.sleep(SWEEP)
                self._sweep()
        finally:
            self._running = False
            tasks = [task for _, task in self._followed.values()]
            self._followed.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _mark_used(self, name: str) -> _Followed | None:
        """Note that a Secret is in use, and follow it; None unless :meth:`run` runs."""
        self._used_at[name] = self._clock.now()
        if self._running and name not in self._followed:
            self._follow(name)
        found = self._followed.get(name)
        return found[0] if found is not None else None

    def _follow(self, name: str) -> None:
        followed = _Followed(name)
        what = f"Secret {name}"
        reflector = Reflector(
            what,
            self._client,
            SECRETS,
            followed,
            followed,
            self._clock,
            params={"fieldSelector": f"metadata.name={name}"},
            namespace=self.namespace,
            slots=self._slots,
        )
        task = asyncio.create_task(supervise(what, reflector.run, self._clock), name=what)
        self._followed[name] = (followed, task)

    def _sweep(self) -> None:
        old = self._clock.now() - FORGET
        for name in [name for name, at in self._used_at.items() if at < old]:
            del self._used_at[name]
            found = self._followed.pop(name, None)
            if found is not None:
                found[1].cancel()


class _Followed:
    """One Secret as its watch shows it; store and observer of a reflector.

    Attributes:
        found: the Secret; None if it does not exist or is not known.
        version: the Secret's version; None while it may be outdated.
    """

    def __init__(self, name: str) -> None:
        self.found: SecretData | None = None
        self.version: str | None = None
        self._name = name
        self._refused = False

    def replace(self, objects: dict[Any, SecretData], resource_version: str) -> None:  # noqa: ARG002 - a Store
        self.found = next(iter(objects.values()), None)

    def upsert(self, key: Any, value: SecretData, resource_version: str) -> None:  # noqa: ARG002 - a Store
        self.found = value
        self._current()

    def delete(self, key: Any, value: SecretData, resource_version: str) -> None:  # noqa: ARG002 - a Store
        self.found = None
        self._current()

    def listing(self) -> None:
        self.version = None

    def answered(self) -> None:
        self._refused = False
        self._current()

    def failed(self, error: HubError) -> None:
        self.version = None
        if isinstance(error, Forbidden) and not self._refused:
            self._refused = True
            log.info(
                "Secret %s is read every half minute: the hub's account may not watch it (it lacks «%s»)",
                self._name,
                SECRETS.rule,
            )

    def _current(self) -> None:
        self.version = self.found.version if self.found is not None else GONE
