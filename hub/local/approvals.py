"""Approvals: what an operator lets happen although the hub would withhold it.

One ConfigMap in the hub's namespace holds them, an entry per approval: its key is the hash that the hub
shows beside what it withholds, its value says what for, by whom and until when. Whoever may write that
ConfigMap decides; every replica reads it. An entry that cannot be read approves nothing, and one that has
expired neither. Nothing here knows what a hash stands for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from hub.aio.clock import Clock
from hub.errors import AlreadyExists, Conflict, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import CONFIG_MAPS, decode_config_map
from hub.local.config_maps import TIMEOUT, collection, fetch
from hub.model import MANAGED_BY, ConfigMap
from hub.remote.status import StartingServer

log = logging.getLogger(__name__)

GOOD_FOR: Final = 3600.0
"""Seconds: long enough for the hub to come back from a restart, too short to be forgotten."""
TRIES: Final = 5
"""Attempts to write while others write too."""
DEFAULT_OWNER: Final = "default"
DEFAULT_NAMESPACE: Final = "default"
"""What ``hub approve`` assumes."""
NOTHING: Final[frozenset[str]] = frozenset()


class Approval(msgspec.Struct, frozen=True):
    """One entry.

    Attributes:
        kind: service, cluster or registry.
        target: ``namespace/name``, the cluster's name, or "".
        by: who approved.
        expires: when it ends.
    """

    kind: str
    target: str
    by: str
    expires: Annotated[datetime, msgspec.Meta(tz=True)]


def config_map(owner: str) -> str:
    """The ConfigMap with the approvals of an owner."""
    return f"endpointslice-hub-approvals-{owner}"


def read(data: Mapping[str, str]) -> dict[str, Approval]:
    """The readable entries of a ConfigMap, by hash."""
    found: dict[str, Approval] = {}
    for key, text in data.items():
        try:
            found[key] = msgspec.json.decode(text, type=Approval)
        except (msgspec.DecodeError, UnicodeEncodeError):
            log.warning("approvals: entry %s is not readable and approves nothing", key)
    return found


def merged(data: Mapping[str, str], name: str, approval: Approval, wall: float) -> dict[str, str]:
    """A ConfigMap's data with one more entry and without those that have expired; what is not readable stays."""
    ended = {key for key, each in read(data).items() if each.expires.timestamp() <= wall}
    kept = {key: text for key, text in data.items() if key not in ended}
    return {**kept, name: msgspec.json.encode(approval).decode()}


def flags(owner: str, namespace: str) -> str:
    """The options by which ``hub approve`` finds the approvals of a hub, with a space before each."""
    text = f" --owner {owner}" if owner != DEFAULT_OWNER else ""
    return text + (f" --lease-namespace {namespace}" if namespace != DEFAULT_NAMESPACE else "")


def subject(text: str) -> tuple[str, str]:
    """Kind and target of what is approved: ``registry``, ``cluster/NAME`` or ``NAMESPACE/SERVICE``."""
    if text == "registry":
        return "registry", ""
    kind, _, name = text.partition("/")
    return ("cluster", name) if kind == "cluster" else ("service", text)


async def approve(
    client: Client, namespace: str, owner: str, name: str, what: tuple[str, str], by: str, wall: float
) -> Approval:
    """Write an approval that is good for an hour.

    Args:
        client: the hub cluster's.
        namespace: the hub's.
        owner: whose hub is meant.
        name: the hash.
        what: as of :func:`subject`.
        by: who approves.
        wall: Unix time.

    Raises:
        HubError: it could not be written.
    """
    where = collection(namespace)
    path = f"{where}/{config_map(owner)}"
    approval = Approval(*what, by, datetime.fromtimestamp(int(wall + GOOD_FOR), UTC))
    for attempt in range(1, TRIES + 1):
        try:
            found = await _find(client, path)
            if found is None:
                body = {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": config_map(owner),
                        "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, "endpointslice-hub/owner": owner},
                    },
                    "data": merged({}, name, approval, wall),
                }
                await client.request("POST", where, body=msgspec.json.encode(body), timeout=TIMEOUT)
            else:
                # With the resourceVersion it was read with: never over somebody else's entry.
                found["data"] = merged(found.get("data") or {}, name, approval, wall)
                await client.request("PUT", path, body=msgspec.json.encode(found), timeout=TIMEOUT)
        except (AlreadyExists, Conflict):
            if attempt == TRIES:
                raise
        else:
            break
    return approval


async def _find(client: Client, path: str) -> dict[str, Any] | None:
    try:
        return await fetch(client, path, dict[str, Any])
    except NotFound:
        return None


class Approvals:
    """Follows the ConfigMap; a hub whose account may not read it has no approvals, and says so once.

    Args:
        client: the hub cluster's.
        namespace: the hub's.
        owner: whose approvals.
        on_change: called when there are other approvals than before.

    Attributes:
        problem: why they are not known; "" where they are.
    """

    def __init__(self, client: Client, clock: Clock, namespace: str, owner: str, on_change: Callable[[], None]) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._name = config_map(owner)
        self._on_change = on_change
        self._until: dict[str, float] = {}
        """Hash -> when it expires, Unix time."""
        self.problem = ""
        self._starting = StartingServer()

    def valid(self) -> frozenset[str]:
        """The hashes that are approved now."""
        if not self._until:
            return NOTHING
        now = self._clock.wall()
        return frozenset(name for name, until in self._until.items() if now < until)

    async def run(self) -> None:
        """Follow until cancelled."""
        await Reflector(
            "approvals",
            self._client,
            CONFIG_MAPS,
            self,
            self,
            self._clock,
            params={"fieldSelector": f"metadata.name={self._name}"},
            namespace=self._namespace,
        ).run()

    async def look(self) -> None:
        """Read them once; what cannot be read approves nothing."""
        path = f"{collection(self._namespace)}/{self._name}"
        try:
            self._take([decode_config_map(await self._client.request("GET", path, timeout=TIMEOUT))])
        except NotFound:
            self._take([])
        except HubError as error:
            self.failed(error)

    # --- the reflector's store -------------------------------------------------------------------------

    def replace(self, objects: dict[Any, ConfigMap], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """A complete list: one or none."""
        self._take(objects.values())

    def upsert(self, key: Any, value: ConfigMap, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """It is new or changed."""
        self._take([value])

    def delete(self, key: Any, value: ConfigMap, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """It is gone, and all approvals with it."""
        self._take([])

    def _take(self, found: Iterable[ConfigMap]) -> None:
        approvals = {name: each for value in found for name, each in read(value.data).items()}
        until = {name: each.expires.timestamp() for name, each in approvals.items()}
        news = sorted(until.items() - self._until.items())
        if until == self._until:
            return
        self._until = until
        for name, _ in news:
            each = approvals[name]
            log.info("approved by %s: %s", each.by, f"{each.kind} {each.target} {name}".replace("  ", " "))
        self._on_change()

    # --- the reflector's observer ------------------------------------------------------------------------

    def listing(self) -> None:
        """A list is needed; what was approved stays so until it expires."""

    def answered(self) -> None:
        """They are known."""
        self._starting.over(None)
        if self.problem:
            log.info("approvals are known again")
        self.problem = ""

    def failed(self, error: HubError) -> None:
        """Say it once per kind of failure."""
        text = str(error)
        if isinstance(error, Forbidden):
            where = f"the ConfigMap {self._name} in namespace {self._namespace}"
            text = f"403: the hub's account lacks the rule «{CONFIG_MAPS.rule}» for {where}"
            self._take([])
        if self._starting.over(error) and text != self.problem:
            log.warning("approvals are not known, 'hub approve' has no effect: %s", text)
            self.problem = text
