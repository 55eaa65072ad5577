"""Keeps the history of all Services in memory, and in one ConfigMap of the hub's namespace.

The process that made the entries writes the ConfigMap: a minute after the first entry that is not stored, when it
loses the Lease, and when it ends. So a change needs no write of its own, and ``kill -9`` loses a minute at most. Each
write reads the ConfigMap first and adds its entries to the stored ones, so replicas that write different Services, or
one after the other, lose nothing of each other. A standby reads it once a minute. Content that cannot be read is
ignored, which is logged, and replaced by the next write.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import io
import logging
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from hub.decide.history import (
    NOTHING,
    PER_SERVICE,
    TOTAL,
    Entries,
    Entry,
    LastingStates,
    lasting_states,
    merged,
    newest,
)
from hub.errors import AlreadyExists, ApiError, BadAnswer, Conflict, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.model import LABEL_OWNER, MANAGED_BY, TargetKey
from hub.observe.local.config_maps import TIMEOUT, collection, fetch
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

RULE: Final = "configmaps: get, create, update"
DATA_KEY: Final = "history.json.gz"
PERIOD: Final = 60.0
"""Seconds from the first entry that is not stored to the write, and between two reads of a standby."""
PACKED_LIMIT: Final = 256 << 10
"""Maximum bytes of the packed history. The oldest entries are left out if it needs more."""
UNPACKED_LIMIT: Final = 8 << 20
"""Maximum bytes of the unpacked history."""
TRIES: Final = 5
"""Maximum attempts to write the ConfigMap while other replicas write it too."""
VERSION: Final = 1
RECENT: Final = 256
"""Entries that later equal ones are replaced with: the passes over all Services of a node make equal entries."""


def config_map(owner: str) -> str:
    """The name of the ConfigMap with the history of an owner."""
    return f"endpointslice-hub-history-{owner}"


# --- the stored form -----------------------------------------------------------------------------


class _Document(msgspec.Struct):
    version: int
    services: dict[str, tuple[Entry, ...]]


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _ConfigMap(msgspec.Struct, rename="camel"):
    metadata: _Meta
    binary_data: dict[str, str] | None = None

    @property
    def packed(self) -> str:
        return (self.binary_data or {}).get(DATA_KEY, "")


def pack(entries: Entries) -> str:
    """The entries as text of a ConfigMap; without the oldest ones if they do not fit."""
    while True:
        services = {str(key): entries[key] for key in sorted(entries)}
        plain = msgspec.json.encode(_Document(VERSION, services))
        small = gzip.compress(plain, mtime=0)
        if len(small) <= PACKED_LIMIT and len(plain) <= UNPACKED_LIMIT:
            return base64.b64encode(small).decode()
        share = min(PACKED_LIMIT / len(small), UNPACKED_LIMIT / len(plain))
        entries = newest(entries, int(sum(map(len, entries.values())) * share * 0.9))


def unpack(text: str) -> Entries:
    """The entries in the text of a ConfigMap.

    Raises:
        ValueError: the text is not a history of this version.
    """
    try:
        with gzip.open(io.BytesIO(base64.b64decode(text, validate=True))) as stream:
            plain = stream.read(UNPACKED_LIMIT + 1)
        if len(plain) > UNPACKED_LIMIT:
            raise ValueError(f"larger than {UNPACKED_LIMIT >> 20} MiB")
        found = msgspec.json.decode(plain, type=_Document)
    except (binascii.Error, OSError, EOFError, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if found.version != VERSION:
        raise ValueError(f"version {found.version}, which this hub does not know")
    shared: dict[Entry, Entry] = {}
    entries: dict[TargetKey, tuple[Entry, ...]] = {}
    for name, ring in found.services.items():
        if not ring:
            continue
        namespace, _, service = name.partition("/")
        ordered = sorted((shared.setdefault(entry, entry) for entry in ring), key=lambda entry: entry.at)
        entries[TargetKey(namespace, service)] = tuple(ordered[-PER_SERVICE:])
    return newest(entries, TOTAL)


async def _fetch(client: Client, namespace: str, owner: str) -> _ConfigMap | None:
    """The ConfigMap; None if there is none."""
    try:
        return await fetch(client, f"{collection(namespace)}/{config_map(owner)}", _ConfigMap)
    except NotFound:
        return None


async def read(client: Client, namespace: str, owner: str) -> Entries | None:
    """The stored history of an owner; None if none is stored.

    Raises:
        BadAnswer: the ConfigMap holds no history of this version.
        HubError: the ConfigMap cannot be read.
    """
    found = await _fetch(client, namespace, owner)
    if found is None:
        return None
    try:
        return unpack(found.packed)
    except ValueError as error:
        raise BadAnswer(200, "", f"{DATA_KEY} cannot be read ({error})", what=config_map(owner)) from error


# --- memory and store ----------------------------------------------------------------------------


class History:
    """The history of all Services.

    Args:
        client: client of the hub cluster.
        namespace: the hub's namespace.
        owner: owner of the registry.
        leading: returns whether this process writes any Service now; if not, it reads what the leader stored.

    Attributes:
        problem: why the history is not stored, or could not be read; "" if neither is the case.
    """

    def __init__(self, client: Client, clock: Clock, namespace: str, owner: str, leading: Callable[[], bool]) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._owner = owner
        self._leading = leading
        self._entries: dict[TargetKey, tuple[Entry, ...]] = {}
        self._lasting: dict[TargetKey, LastingStates] = {}
        self._number = 0
        self._recent: dict[Entry, Entry] = {}
        self._stored = ""
        """The text of the ConfigMap that the memory contains all entries of."""
        self._due: float | None = None
        """When to write; None if everything is stored."""
        self._read_at = float("-inf")
        self._backoff = Backoff(base=2.0, cap=300.0)
        self._lock = asyncio.Lock()
        self.problem = ""

    # --- memory --------------------------------------------------------------------------------------

    def of(self, key: TargetKey) -> tuple[Entry, ...]:
        """The entries of a Service, oldest first."""
        return self._entries.get(key, ())

    def entries(self) -> Entries:
        """The entries of all Services; the returned mapping does not change."""
        return dict(self._entries)

    def lasting_states(self, key: TargetKey) -> LastingStates:
        """The states of a Service that last."""
        return self._lasting.get(key, NOTHING)

    def add(self, key: TargetKey, entries: Sequence[Entry]) -> None:
        """Add entries of a Service."""
        if not entries:
            return
        ring = (*self.of(key), *map(self._shared, entries))[-PER_SERVICE:]
        self._number += len(ring) - len(self.of(key))
        self._entries[key] = ring
        self._update_lasting(key)
        if self._number > 1.1 * TOTAL:
            self._replace(newest(self._entries, TOTAL))
        if self._due is None:
            self._due = self._clock.now() + PERIOD

    def _shared(self, entry: Entry) -> Entry:
        """An equal entry of another Service if there is one, so that both are one object in memory."""
        if (known := self._recent.get(entry)) is not None:
            return known
        if len(self._recent) >= RECENT:
            del self._recent[next(iter(self._recent))]
        self._recent[entry] = entry
        return entry

    def _replace(self, entries: dict[TargetKey, tuple[Entry, ...]]) -> None:
        changed = [
            key for key in entries.keys() | self._entries.keys() if entries.get(key) is not self._entries.get(key)
        ]
        self._entries, self._number = entries, sum(map(len, entries.values()))
        for key in changed:
            self._update_lasting(key)

    def _update_lasting(self, key: TargetKey) -> None:
        if (found := lasting_states(self.of(key))) is not NOTHING:
            self._lasting[key] = found
        else:
            self._lasting.pop(key, None)

    # --- store ---------------------------------------------------------------------------------------

    def rights_changed(self) -> None:
        """Write soon what is not stored, and read: this process writes other Services than before."""
        self._read_at = float("-inf")
        if self._due is not None:
            self._due = self._clock.now()

    async def run(self) -> None:
        """Write and read when it is due, until cancelled."""
        while True:
            now = self._clock.now()
            if self._due is not None and now >= self._due:
                await self.flush()
            elif now >= self._read_at:
                await self.load()
            await self._clock.sleep(1.0)

    async def load(self) -> None:
        """Read the ConfigMap and add its entries to the memory; a failure is logged."""
        async with self._lock:
            self._read_at = float("inf") if self._leading() else self._clock.now() + PERIOD
            try:
                await self._read()
            except HubError as error:
                self._log_failure(error, "read")
                self._read_at = self._clock.now() + PERIOD
            else:
                self.problem = ""

    async def flush(self) -> None:
        """Write the entries that are not stored; a failure is logged, and the write is tried again by :meth:`run`."""
        async with self._lock:
            if self._due is None:
                return
            self._due = None  # entries that are added from here on set it again
            try:
                await self._write_merged()
            except HubError as error:
                now = self._clock.now()
                self._due = now + self._backoff.next(now)
                self._log_failure(error, "stored")
            except asyncio.CancelledError:
                self._due = self._clock.now()
                raise
            else:
                self._backoff.reset()
                self.problem = ""

    async def _read(self) -> _ConfigMap | None:
        """Read the ConfigMap, and add its entries to the memory; None if there is none."""
        found = await _fetch(self._client, self._namespace, self._owner)
        if found is None:
            return None
        if (text := found.packed) != self._stored:
            try:
                stored = await asyncio.to_thread(unpack, text)
            except ValueError as error:
                where = f"ConfigMap {self._namespace}/{config_map(self._owner)}"
                log.warning("the history in %s is ignored, and replaced by the next write: %s", where, error)
            else:
                self._replace(merged(stored, self._entries))
            self._stored = text
        return found

    async def _write_merged(self) -> None:
        """Write; if another replica has written since the read, read and write again."""
        for _ in range(TRIES - 1):
            with suppress(AlreadyExists, Conflict):
                return await self._write()
        return await self._write()

    async def _write(self) -> None:
        found = await self._read()
        text = await asyncio.to_thread(pack, self.entries())
        if found is not None and text == self._stored:
            return
        where, name = collection(self._namespace), config_map(self._owner)
        meta: dict[str, Any] = {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, LABEL_OWNER: self._owner},
        }
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": {DATA_KEY: text}}
        if found is None:
            await self._client.request("POST", where, body=msgspec.json.encode(body), timeout=TIMEOUT)
        else:
            # The PUT has the resourceVersion of the GET, so that it fails if another replica has written since.
            meta["resourceVersion"] = found.metadata.resource_version
            await self._client.request("PUT", f"{where}/{name}", body=msgspec.json.encode(body), timeout=TIMEOUT)
        self._stored = text

    def _log_failure(self, error: HubError, what: str) -> None:
        """Log a failure: an API error that differs from the last one as a warning, others for debugging."""
        text = str(error)
        if isinstance(error, Forbidden):
            where = f"the ConfigMap {config_map(self._owner)} in namespace {self._namespace}"
            text = f"403: the hub's account lacks the rule «{RULE}» for {where}"
        level = logging.WARNING if isinstance(error, ApiError) and text != self.problem else logging.DEBUG
        log.log(level, "the history is not %s, it is only in memory: %s", what, text)
        self.problem = text
