"""The objects of a kind as Python sees them, past HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hub_testkit.simulator.api import Api
from hub_testkit.simulator.checks import Place
from hub_testkit.simulator.kinds import NAMESPACES, Kind
from hub_testkit.simulator.objects import set_ready
from hub_testkit.simulator.store import Stored, full_body

Json = dict[str, Any]


class Collection:
    """The objects of one kind, changed from Python without HTTP, tokens or faults; watches see it all the same.

    Namespaced kinds take the namespace from the object, or as a keyword where only a name is given.
    """

    def __init__(self, api: Api, kind: Kind, now: Callable[[], str]) -> None:
        self._api = api
        self._kind = kind
        self._now = now

    def __len__(self) -> int:
        return len(self._api.store[self._kind].objects)

    def add(self, obj: Mapping[str, Any]) -> Json:
        """Create an object; its namespace comes into being if need be. Returns it as stored.

        Raises:
            Refusal: it exists, or the API server would not take it.
        """
        obj = _copy(obj)
        place = self._place(obj)
        self._ensure_namespace(place)
        return self._shown(self._api.create(place, obj, admission=False))

    def put(self, obj: Mapping[str, Any]) -> Json:
        """Create or replace an object, status included, whatever its resourceVersion.

        Raises:
            Refusal: the API server would not take it.
        """
        obj = _copy(obj)
        place = self._place(obj)
        for name in ("resourceVersion", "uid"):
            obj["metadata"].pop(name, None)
        if self._kind.key(place.namespace, place.name) not in self._api.store[self._kind].objects:
            return self.add(obj)
        return self._shown(self._api.overwrite(place, obj))

    def update(self, name: str, change: Callable[[Json], object], *, namespace: str = "") -> Json:
        """Read an object, let ``change`` edit it in place, store it, status included. Equal objects are not written."""
        obj = self.get(name, namespace=namespace)
        change(obj)
        return self.put(obj)

    def get(self, name: str, *, namespace: str = "") -> Json:
        """One object.

        Raises:
            Refusal: 404.
        """
        return self._shown(self._api.get(Place(self._kind, namespace, name)))

    def list(self, *, namespace: str = "") -> list[Json]:
        """All objects, or those of a namespace, in the order of their keys."""
        table = self._api.store[self._kind].objects
        return [self._shown(table[key]) for key in sorted(table) if not namespace or table[key].namespace == namespace]

    def delete(self, name: str, *, namespace: str = "") -> None:
        """Delete an object at once, finalizers or not; of a Namespace, with everything in it.

        Raises:
            Refusal: 404.
        """
        stored = self._api.get(Place(self._kind, namespace, name))
        if self._kind is NAMESPACES:
            self._api.empty_namespace(name)
        self._api.remove(self._kind, stored)

    def set_ready(self, name: str, ready: bool | str, *, since: str | None = None) -> Json:
        """Change a Node's Ready condition: True, False, or a status such as "Unknown"."""
        return self.update(name, lambda node: set_ready(node, ready, since or self._now()))

    def heartbeat(self, name: str) -> Json:
        """What an unchanged Node's kubelet writes every few minutes: new heartbeat times and nothing else."""

        def beat(node: Json) -> None:
            for condition in node["status"].get("conditions", ()):
                condition["lastHeartbeatTime"] = self._now()

        return self.update(name, beat)

    def _place(self, obj: Json) -> Place:
        meta = obj.setdefault("metadata", {})
        namespace = meta.get("namespace", "default") if self._kind.namespaced else ""
        return Place(self._kind, namespace, meta.get("name", ""))

    def _ensure_namespace(self, place: Place) -> None:
        if place.namespace and place.namespace not in self._api.store[NAMESPACES].objects:
            self._api.create(Place(NAMESPACES, "", place.namespace), {"metadata": {"name": place.namespace}})

    def _shown(self, stored: Stored) -> Json:
        obj: Json = msgspec.json.decode(full_body(self._kind, stored.body))
        return obj


def _copy(obj: Mapping[str, Any]) -> Json:
    copied: Json = msgspec.json.decode(msgspec.json.encode(obj))
    return copied
