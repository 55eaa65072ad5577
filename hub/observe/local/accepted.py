"""Keeps the last accepted registry in the hub cluster, so that the hub can start while its file is rejected.

The leader writes the accepted file's bytes into one ConfigMap for each owner, in the hub's namespace. The hub checks
them again before it uses them, and resolves relative paths from the folder of the rejected file. A registry never
contains secrets, so the ConfigMap contains none.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import gzip
import io
import logging
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from hub.errors import ApiError, BadAnswer, Forbidden, HubError, NotFound, RegistryError
from hub.kube.client import Client
from hub.model import ANNOTATION_WITHHELD, LABEL_OWNER, MANAGED_BY
from hub.observe.local.config_maps import TIMEOUT, collection, fetch
from hub.registry import isolated
from hub.registry.file import MAX_BYTES, Loaded
from hub.registry.file import read as read_file
from hub.runtime.backoff import Backoff
from hub.runtime.clock import Clock, rfc3339

log = logging.getLogger(__name__)

RULE: Final = "configmaps: get, create, update"
PLAIN: Final = "clusters.yaml"
PACKED: Final = "clusters.yaml.gz"
ACCEPTED_AT: Final = "endpointslice-hub/accepted-at"
ROOM: Final = 1_000_000
"""Maximum bytes of content: a ConfigMap holds 1 MiB, keys included (k8s.io/api/core/v1 MaxSecretSize)."""
LEGIBLE: Final = 500_000
"""Maximum bytes of content that is kept as readable text; longer content is compressed."""
OWNER_LINE: Final = re.compile(
    rb"""^owner:[ \t]*["']?([A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)["']?[ \t]*(?:#.*)?\r?$""", re.MULTILINE
)
"""The top-level key ``owner``, found even in a file that is not valid YAML; the value must fit the owner label."""


def config_map(owner: str) -> str:
    """The name of the ConfigMap with the last accepted registry of an owner."""
    return f"endpointslice-hub-registry-{owner}"


def owner_in(content: bytes) -> str:
    """The owner named in a file that cannot be parsed; "" if it names none, or two different ones."""
    found = {match.group(1).decode() for match in OWNER_LINE.finditer(content)}
    return found.pop() if len(found) == 1 else ""


class Kept(msgspec.Struct, frozen=True):
    """A registry as the ConfigMap holds it.

    Attributes:
        content: the file's bytes.
        at: when the file was accepted, RFC 3339; "" if the ConfigMap does not say it.
    """

    content: bytes
    at: str


async def withheld(client: Client, namespace: str, owner: str) -> bool:
    """Whether a removal was withheld when the last hub of this owner ended; True if the ConfigMap cannot be read."""
    try:
        found = await _get(client, namespace, owner)
    except (NotFound, Forbidden):  # without the right to read it, the hub has not written it either
        return False
    except HubError as error:
        log.warning("cannot read whether a removal was withheld before: %s; assuming that one was", error)
        return True
    return ANNOTATION_WITHHELD in (found.metadata.annotations or {})


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _ConfigMap(msgspec.Struct, rename="camel"):
    metadata: _Meta
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None


async def _get(client: Client, namespace: str, owner: str) -> _ConfigMap:
    return await fetch(client, f"{collection(namespace)}/{config_map(owner)}", _ConfigMap)


async def read(client: Client, namespace: str, owner: str) -> Kept:
    """Read the last accepted registry of an owner.

    Raises:
        NotFound: none is kept.
        BadAnswer: the ConfigMap does not hold a registry.
        HubError: the ConfigMap cannot be read.
    """
    found = await _get(client, namespace, owner)
    try:
        content = _content(found)
    except (binascii.Error, OSError, EOFError, ValueError, zlib.error) as error:
        raise BadAnswer(200, "", f"{PACKED} cannot be read ({error})", what=config_map(owner)) from error
    if not content or len(content) > MAX_BYTES:
        raise BadAnswer(200, "", f"neither {PLAIN} nor {PACKED} holds a registry", what=config_map(owner))
    return Kept(content, (found.metadata.annotations or {}).get(ACCEPTED_AT, ""))


def _content(found: _ConfigMap) -> bytes:
    if (text := (found.data or {}).get(PLAIN)) is not None:
        return text.encode()
    with gzip.open(io.BytesIO(base64.b64decode((found.binary_data or {}).get(PACKED, "")))) as stream:
        return stream.read(MAX_BYTES + 1)


def packed(content: bytes) -> dict[str, dict[str, str]] | None:
    """The content as fields of the ConfigMap, compressed if necessary; None if it is too large even then."""
    if len(content) <= LEGIBLE:
        return {"data": {PLAIN: content.decode()}}
    small = gzip.compress(content, mtime=0)
    if len(small) > ROOM:
        return None
    return {"binaryData": {PACKED: base64.b64encode(small).decode()}}


async def load_kept(client: Client, namespace: str, path: str, owner: str) -> tuple[Loaded | None, str]:
    """Load the kept registry, to be used instead of a rejected file.

    Args:
        client: client of the hub cluster.
        namespace: the hub's namespace.
        path: path of the rejected file.
        owner: owner of the registry, if the rejected file names none.

    Returns:
        The registry and when it was accepted ("?" = not known); (None, "") if none can be used, which is logged.
    """
    content = b""
    with suppress(RegistryError):
        content = await asyncio.to_thread(read_file, path)
    owner = owner_in(content) or owner
    where = f"ConfigMap {namespace}/{config_map(owner)}"
    try:
        kept = await read(client, namespace, owner)
        loaded = await asyncio.to_thread(isolated.loads, kept.content, path)
    except NotFound:
        return None, ""
    except RegistryError as error:
        log.warning("the last accepted registry in %s cannot be used: %s", where, error)
        return None, ""
    except HubError as error:
        log.warning("the last accepted registry in %s cannot be read: %s", where, error)
        return None, ""
    if loaded.registry.owner != owner:
        log.warning("the registry in %s belongs to owner %s: not used", where, loaded.registry.owner)
        return None, ""
    log.warning("the registry is rejected: the one accepted at %s is in force, from %s", kept.at or "?", where)
    return replace(loaded, content=b""), kept.at or "?"


class Keeper:
    """Writes each accepted registry once, while this process leads.

    Args:
        client: client of the hub cluster.
        namespace: the hub's namespace.
        owner: owner of the registry.
        leading: returns whether this process leads.

    Attributes:
        problem: why the last accepted registry was not kept; "" if it was.
    """

    def __init__(self, client: Client, clock: Clock, namespace: str, owner: str, leading: Callable[[], bool]) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._owner = owner
        self._leading = leading
        self._content = b""
        self._at = 0.0
        self._withheld: str | None = None
        self._news = asyncio.Event()
        self.problem = ""

    def keep(self, content: bytes) -> None:
        """Note that a file with this content is in force, and write it if this process leads."""
        self._content, self._at = content, self._clock.wall()
        self._news.set()

    def note_withheld(self, name: str) -> None:
        """Note the hash of the removal that is withheld now; "" = none. Until the first call, the annotation stays."""
        if name != self._withheld:
            self._withheld = name
            self._news.set()

    def begin_leading(self) -> None:
        """Note that this process begins to lead: the previous leader may have written another registry."""
        self._news.set()

    async def run(self) -> None:
        """Write accepted registries until cancelled."""
        backoff = Backoff(base=2.0, cap=300.0)
        while True:
            await self._news.wait()
            self._news.clear()
            if not self._content or not self._leading():
                continue
            try:
                await self._write_content(self._content)
            except HubError as error:
                self._log_failure(error)
                self._news.set()
                await self._clock.sleep(backoff.next(self._clock.now()))
            else:
                backoff.reset()
                self.problem = ""

    async def _write_content(self, content: bytes) -> None:
        """Write the ConfigMap, unless it has this content and the right annotation already."""
        try:
            known = await _get(self._client, self._namespace, self._owner)
        except NotFound:
            known = None
        noted = (known.metadata.annotations or {}) if known is not None else {}
        notes = {ACCEPTED_AT: rfc3339(self._at)}
        held = noted.get(ANNOTATION_WITHHELD, "") if self._withheld is None else self._withheld
        with suppress(binascii.Error, OSError, EOFError, ValueError, zlib.error):
            if known is not None and _content(known) == content:
                if noted.get(ANNOTATION_WITHHELD, "") == held:
                    return
                notes[ACCEPTED_AT] = noted.get(ACCEPTED_AT, "")
        if held:
            notes[ANNOTATION_WITHHELD] = held
        body = await asyncio.to_thread(packed, content)
        if body is None:
            log.warning("the registry is too large to be kept for a restart: more than 1 MB compressed")
            return
        where, name = collection(self._namespace), config_map(self._owner)
        if known is None:
            await self._write("POST", where, self._body(body, notes, ""))
        else:
            # The PUT has the resourceVersion of the GET, so that it fails if another leader has written since.
            version = known.metadata.resource_version
            await self._write("PUT", f"{where}/{name}", self._body(body, notes, version))
        log.info("the registry is kept in ConfigMap %s/%s", self._namespace, name)

    def _body(self, content: dict[str, dict[str, str]], notes: dict[str, str], version: str) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "name": config_map(self._owner),
            "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, LABEL_OWNER: self._owner},
            "annotations": notes,
        }
        if version:
            meta["resourceVersion"] = version
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **content}

    async def _write(self, method: str, path: str, body: dict[str, Any]) -> None:
        encoded = msgspec.json.encode(body)
        await self._client.request(method, path, body=encoded, timeout=TIMEOUT, admit=self._still_leads)

    def _still_leads(self) -> None:
        """Refuse a write that is about to be sent after this process has lost the Lease."""
        if not self._leading():
            raise HubError("this process no longer leads")

    def _log_failure(self, error: HubError) -> None:
        """Log a failure: an API error that differs from the last one as a warning, others for debugging."""
        text = str(error)
        if isinstance(error, Forbidden):
            where = f"the ConfigMap {config_map(self._owner)} in namespace {self._namespace}"
            text = f"403: the hub's account lacks the rule «{RULE}» for {where}"
        level = logging.WARNING if isinstance(error, ApiError) and text != self.problem else logging.DEBUG
        log.log(level, "the registry is not kept for a restart: %s", text)
        self.problem = text
