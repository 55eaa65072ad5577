"""Detects that a name of the registry leads to another cluster, by the UID of the kube-system Namespace.

If a kubeconfig leads to another cluster than before (a swapped file, a rebuilt cluster), it looks as if every node had
been replaced. Therefore the hub remembers the UID of each cluster, and accepts another UID only with an approval. The
UID is remembered in this process and, for a restart, in an annotation on every slice that the hub writes; no slice is
written only to update it. If the hub may not read the Namespace, the cluster is not checked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from hub.approval import approval_hash
from hub.errors import BadAnswer
from hub.kube.client import Client
from hub.model import ANNOTATION_CLUSTER_UID, Slice
from hub.registry.spec import Registry

log = logging.getLogger(__name__)

PATH: Final = "/api/v1/namespaces/kube-system"
RULE: Final = "namespaces kube-system: get"
TIMEOUT: Final = 10.0
MAX_LENGTH: Final = 64
"""Maximum length of a valid UID; Kubernetes writes 36 characters."""


class _Meta(msgspec.Struct):
    uid: str = ""


class _Namespace(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_decode = msgspec.json.Decoder(_Namespace).decode


async def read_uid(client: Client) -> str:
    """The UID of a cluster's kube-system Namespace.

    Raises:
        Forbidden, NotFound: the account may not read it, or it does not exist.
        HubError: the request failed, or its answer is invalid.
    """
    body = await client.request("GET", PATH, timeout=TIMEOUT)
    try:
        uid = _decode(body).metadata.uid
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadAnswer(200, "", "a Namespace that does not decode", what=PATH) from None
    if not uid or len(uid) > MAX_LENGTH or not uid.isascii() or not uid.isprintable():
        raise BadAnswer(200, "", "a Namespace without a valid uid", what=PATH)
    return uid


def digest(name: str, uid: str) -> str:
    """The hash that approves a new UID for a cluster name."""
    return approval_hash("cluster", name, uid)


class Identities:
    """Remembers the UIDs of clusters by name.

    Args:
        registry: returns the registry in force.
        slices: returns all slices of this hub; None while they are not known.
        approvals: returns the hashes that are approved now.
        flags: the options that ``hub approve`` needs for this hub, with a leading space.
    """

    def __init__(
        self,
        registry: Callable[[], Registry],
        slices: Callable[[], Iterable[Slice] | None],
        approvals: Callable[[], Collection[str]],
        flags: str = "",
    ) -> None:
        self._registry = registry
        self._slices = slices
        self._approvals = approvals
        self._flags = flags
        self._accepted: dict[str, str] = {}
        """Cluster name -> the UID that this process has accepted."""
        self._removed: set[str] = set()
        """Names that left the registry at some time: once their slices are gone, any UID fits them."""
        self._published: Mapping[str, frozenset[str]] | None = None
        """Cluster name -> the UIDs on its slices; read once, since later changes are this process's own writes."""

    def reread(self) -> None:
        """Read the slices again, and prefer their UIDs: another replica may have written them meanwhile."""
        self._published = None
        for name in self._on_slices() or ():
            self._accepted.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Forget the UIDs of clusters that left the registry; the slices of such a cluster keep its UID."""
        removed = self._accepted.keys() - names
        self._removed |= removed
        for name in removed:
            del self._accepted[name]
        if removed:
            self._published = None

    def uid(self, name: str) -> str:
        """The UID to write on a cluster's slices; "" = leave the annotation unchanged."""
        if name in self._accepted:
            return self._accepted[name]
        found = (self._on_slices() or {}).get(name, frozenset())
        return next(iter(found)) if len(found) == 1 else ""

    def check(self, name: str, uid: str) -> str | None:
        """Why a UID does not fit a cluster name; "" if it fits, None while the slices are not known.

        A UID that fits, or is approved, is remembered.
        """
        known = self._known(name)
        if known is None:
            return None
        if not known or uid in known:
            self._accepted[name] = uid
            return ""
        approval = digest(name, uid)
        if approval in self._approvals():
            log.warning("cluster %s: approved: it is the cluster with kube-system UID %s from now on", name, uid)
            self._accepted[name] = uid
            return ""
        return (
            f"its kube-system Namespace has UID {uid} instead of {', '.join(sorted(known))}: "
            f"the kubeconfig leads to another cluster; correct it, or: hub approve cluster/{name} {approval}"
            f"{self._flags}"
        )

    def _known(self, name: str) -> frozenset[str] | None:
        """The UIDs that fit a cluster name; empty = any UID, None = not known."""
        if name in self._accepted:
            return frozenset((self._accepted[name],))
        published = self._on_slices()
        if published is None:
            return None
        spec = self._registry().clusters.get(name)
        names = (name, *spec.formerly) if spec is not None else (name,)
        known = frozenset(uid for cluster in names for uid in published.get(cluster, ()))
        if name in self._removed and known and (slices := self._slices()) is not None:
            known &= {
                slice_.annotations.get(ANNOTATION_CLUSTER_UID, "") for slice_ in slices if slice_.cluster in names
            }
        return known

    def _on_slices(self) -> Mapping[str, frozenset[str]] | None:
        """Cluster name -> the UIDs on its slices; None while the slices are not known."""
        if self._published is None:
            slices = self._slices()
            if slices is None:
                return None
            found: dict[str, set[str]] = {}
            for slice_ in slices:
                if uid := slice_.annotations.get(ANNOTATION_CLUSTER_UID):
                    found.setdefault(slice_.cluster, set()).add(uid)
            self._published = {name: frozenset(uids) for name, uids in found.items()}
        return self._published
