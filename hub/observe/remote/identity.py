"""Which cluster a name of the registry stands for: the UID of its kube-system Namespace.

A kubeconfig that leads elsewhere than it did (a file swapped, a name pointed at a rebuilt cluster) looks
like a cluster in which every node was replaced. So the UID is remembered under the cluster's name, and
another one is believed only when somebody approves it. Remembered are the UIDs that this process believed,
and before these the ones on the slices: whatever slice is written carries it, and none is written for it,
so that any slice that is left tells a hub that starts. An API server that does not let us read the
Namespace is not checked.
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
LONGEST: Final = 64
"""Characters of a UID that are believed; Kubernetes' have 36."""


class _Meta(msgspec.Struct):
    uid: str = ""


class _Namespace(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_decode = msgspec.json.Decoder(_Namespace).decode


async def read_uid(client: Client) -> str:
    """The UID of a cluster's kube-system Namespace.

    Raises:
        Forbidden, NotFound: it cannot be read, and will not be by trying again.
        HubError: there was no answer.
    """
    body = await client.request("GET", PATH, timeout=TIMEOUT)
    try:
        uid = _decode(body).metadata.uid
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadAnswer(200, "", "a Namespace that does not decode", what=PATH) from None
    if not uid or len(uid) > LONGEST or not uid.isascii() or not uid.isprintable():
        raise BadAnswer(200, "", "a Namespace without a believable uid", what=PATH)
    return uid


def digest(name: str, uid: str) -> str:
    """What an approval names: the cluster's name and its new UID."""
    return approval_hash("cluster", name, uid)


class Identities:
    """Remembers the UIDs by cluster name.

    Args:
        registry: the one in force.
        slices: all slices of ours; None while they are not known.
        approvals: the hashes that are approved now.
        flags: what ``hub approve`` needs to find the approvals of this hub.
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
        self._believed: dict[str, str] = {}
        self._left: set[str] = set()
        """Names that the registry gave up at some time: they are free once their slices are gone."""
        self._published: Mapping[str, frozenset[str]] | None = None
        """Cluster label -> the UIDs on slices; read once, since slices with another UID are our own doing."""

    def reread(self) -> None:
        """Another hub may have written since: what is on the slices counts before what was believed here."""
        self._published = None
        for name in self._on_slices() or ():
            self._believed.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Forget clusters that the registry does not name any more; their slices tell until they go."""
        gone = self._believed.keys() - names
        self._left |= gone
        for name in gone:
            del self._believed[name]
        if gone:
            self._published = None

    def uid(self, name: str) -> str:
        """What a cluster's slices carry when they are written; "" = as they are."""
        if name in self._believed:
            return self._believed[name]
        found = (self._on_slices() or {}).get(name, frozenset())
        return next(iter(found)) if len(found) == 1 else ""

    def doubt(self, name: str, uid: str) -> str | None:
        """Why the cluster behind a name is not the one it was; "" where it is, None while that is not known."""
        known = self._known(name)
        if known is None:
            return None
        if not known or uid in known:
            self._believed[name] = uid
            return ""
        approval = digest(name, uid)
        if approval in self._approvals():
            log.warning("cluster %s: approved: it is the cluster with kube-system UID %s from now on", name, uid)
            self._believed[name] = uid
            return ""
        return (
            f"its kube-system Namespace has UID {uid}, that of this name's cluster was {', '.join(sorted(known))}: "
            f"the kubeconfig leads to another cluster; correct it, or: hub approve cluster/{name} {approval}"
            f"{self._flags}"
        )

    def _known(self, name: str) -> frozenset[str] | None:
        if name in self._believed:
            return frozenset((self._believed[name],))
        published = self._on_slices()
        if published is None:
            return None
        spec = self._registry().clusters.get(name)
        names = (name, *spec.formerly) if spec is not None else (name,)
        known = frozenset(uid for each in names for uid in published.get(each, ()))
        if name in self._left and known and (today := self._slices()) is not None:
            known &= {each.annotations.get(ANNOTATION_CLUSTER_UID, "") for each in today if each.cluster in names}
        return known

    def _on_slices(self) -> Mapping[str, frozenset[str]] | None:
        if self._published is None:
            slices = self._slices()
            if slices is None:
                return None
            found: dict[str, set[str]] = {}
            for each in slices:
                if uid := each.annotations.get(ANNOTATION_CLUSTER_UID):
                    found.setdefault(each.cluster, set()).add(uid)
            self._published = {name: frozenset(uids) for name, uids in found.items()}
        return self._published
