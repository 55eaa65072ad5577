"""Approvals: withheld changes that an operator has allowed.

One ConfigMap in the hub's namespace has an entry for each approval. The key is the hash that the hub shows with the
withheld change; the value says what is approved, by whom and until when. Write access to that ConfigMap is the right to
approve; every replica reads it. An entry that cannot be read, or that has expired, approves nothing. This module does
not know what a hash stands for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from hub.errors import AlreadyExists, Conflict, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import CONFIG_MAPS, decode_config_map
from hub.model import MANAGED_BY, ConfigMap
from hub.observe.local.config_maps import TIMEOUT, collection, fetch
from hub.observe.remote.status import StartingServer
from hub.runtime.clock import Clock

log = logging.getLogger(__name__)

GOOD_FOR: Final = 3600.0
"""Seconds that an approval is valid: long enough to outlast a restart of the hub, and not much longer."""
TRIES: Final = 5
"""Maximum attempts to write the ConfigMap while other clients write it too."""
DEFAULT_OWNER: Final = "default"
DEFAULT_NAMESPACE: Final = "default"
"""Defaults of the options of ``hub approve``."""


class Approval(msgspec.Struct, frozen=True):
    """One entry of the ConfigMap.

    Attributes:
        kind: ``service``, ``cluster``, ``allocation``, ``cloud`` or ``registry``.
        target: ``namespace/name`` of the Service, the cluster's or the allocation's name, or "".
        by: name of the operator who approved.
        expires: when the approval ends.
    """

    kind: str
    target: str
    by: str
    expires: Annotated[datetime, msgspec.Meta(tz=True)]


def config_map(owner: str) -> str:
    """The name of the ConfigMap with the approvals of an owner."""
    return f"endpointslice-hub-approvals-{owner}"


def read(data: Mapping[str, str]) -> dict[str, Approval]:
    """The entries of a ConfigMap by hash, without those that cannot be read, which are logged."""
    found: dict[str, Approval] = {}
    for key, text in data.items():
        try:
            found[key] = msgspec.json.decode(text, type=Approval)
        except (msgspec.DecodeError, UnicodeEncodeError):
            log.warning("approvals: entry %s cannot be read and approves nothing", key)
    return found


def merged(data: Mapping[str, str], name: str, approval: Approval, wall: float) -> dict[str, str]:
    """A ConfigMap's data with the new entry and without expired ones; entries that cannot be read stay."""
    ended = {key for key, found in read(data).items() if found.expires.timestamp() <= wall}
    kept = {key: text for key, text in data.items() if key not in ended}
    return {**kept, name: msgspec.json.encode(approval).decode()}


def flags(owner: str, namespace: str) -> str:
    """The options that ``hub approve`` needs for this hub, each with a leading space."""
    text = f" --owner {owner}" if owner != DEFAULT_OWNER else ""
    return text + (f" --lease-namespace {namespace}" if namespace != DEFAULT_NAMESPACE else "")


def subject(text: str) -> tuple[str, str]:
    """Kind and target: of ``registry``, ``cluster``, ``allocation`` or ``cloud/NAME``, or ``NAMESPACE/SERVICE``."""
    if text == "registry":
        return "registry", ""
    kind, _, name = text.partition("/")
    return (kind, name) if kind in ("cluster", "allocation", "cloud") else ("service", text)


async def approve(
    client: Client, namespace: str, owner: str, name: str, what: tuple[str, str], by: str, wall: float
) -> Approval:
    """Write an approval that is valid for an hour.

    Args:
        client: client of the hub cluster.
        namespace: the hub's namespace.
        owner: the hub's owner.
        name: hash of the withheld change.
        what: kind and target, as :func:`subject` returns them.
        by: name of the operator.
        wall: Unix time now.

    Raises:
        HubError: the approval could not be written.
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
                # The PUT has the resourceVersion of the GET, so that it does not overwrite an entry of another client.
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
    """Follows the ConfigMap. If the hub's account may not read it, there are no approvals; a warning is logged once.

    Args:
        client: client of the hub cluster.
        namespace: the hub's namespace.
        owner: the hub's owner.
        on_change: called when the approvals have changed.

    Attributes:
        problem: why the approvals are not known; "" if they are.
    """

    def __init__(self, client: Client, clock: Clock, namespace: str, owner: str, on_change: Callable[[], None]) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._name = config_map(owner)
        self._on_change = on_change
        self._until: dict[str, float] = {}
        """Hash -> Unix time at which its approval expires."""
        self._by: dict[str, str] = {}
        self.problem = ""
        self._starting = StartingServer()

    def valid(self) -> frozenset[str]:
        """The hashes that are approved now."""
        now = self._clock.wall()
        return frozenset(name for name, until in self._until.items() if now < until)

    def approvers(self) -> Mapping[str, str]:
        """The hashes that are approved now, each with the name of the operator who approved it."""
        return {name: self._by[name] for name in self.valid()}

    async def run(self) -> None:
        """Follow the ConfigMap until cancelled."""
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

    async def read_once(self) -> None:
        """Read the ConfigMap once; used instead of :meth:`run` by commands that run one pass."""
        path = f"{collection(self._namespace)}/{self._name}"
        try:
            self._apply([decode_config_map(await self._client.request("GET", path, timeout=TIMEOUT))])
        except NotFound:
            self._apply([])
        except HubError as error:
            self.failed(error)

    # --- the reflector's store -------------------------------------------------------------------------

    def replace(self, objects: dict[Any, ConfigMap], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """A complete list: one ConfigMap or none."""
        self._apply(objects.values())

    def upsert(self, key: Any, value: ConfigMap, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """The ConfigMap is new or changed."""
        self._apply([value])

    def delete(self, key: Any, value: ConfigMap, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """The ConfigMap is gone, and all approvals with it."""
        self._apply([])

    def _apply(self, found: Iterable[ConfigMap]) -> None:
        approvals = {name: approval for value in found for name, approval in read(value.data).items()}
        until = {name: approval.expires.timestamp() for name, approval in approvals.items()}
        news = sorted(until.items() - self._until.items())
        if until == self._until:
            return
        self._until = until
        self._by = {name: approval.by for name, approval in approvals.items()}
        for name, _ in news:
            approval = approvals[name]
            # replace: an approval of the registry has no target
            log.info("approved by %s: %s", approval.by, f"{approval.kind} {approval.target} {name}".replace("  ", " "))
        self._on_change()

    # --- the reflector's observer ------------------------------------------------------------------------

    def listing(self) -> None:
        """A new list is needed; approvals stay valid until they expire."""

    def answered(self) -> None:
        """The approvals are known."""
        self._starting.should_warn(None)
        if self.problem:
            log.info("approvals are known again")
        self.problem = ""

    def failed(self, error: HubError) -> None:
        """Log a failure, unless it is the same as the last one; without the right to read, nothing is approved."""
        text = str(error)
        if isinstance(error, Forbidden):
            where = f"the ConfigMap {self._name} in namespace {self._namespace}"
            text = f"403: the hub's account lacks the rule «{CONFIG_MAPS.rule}» for {where}"
            self._apply([])
        if self._starting.should_warn(error) and text != self.problem:
            log.warning("approvals are not known, 'hub approve' has no effect: %s", text)
            self.problem = text
