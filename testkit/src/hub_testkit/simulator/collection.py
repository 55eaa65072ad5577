"""The objects of one kind, for Python code: changes bypass HTTP."""

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
    """The objects of one kind. Changes from Python skip HTTP, tokens and faults, but watches see them.

    The namespace is that of the object; methods that take a name take it as a keyword.
    """

    def __init__(self, api: Api, kind: Kind, now: Callable[[], str]) -> None:
        self._api = api
        self._kind = kind
        self._now = now

    def __len__(self) -> int:
        return len(self._api.store[self._kind].objects)

    def add(self, obj: Mapping[str, Any]) -> Json:
        """Creates an object, and its namespace if it does not exist. Returns the object as stored.

        Raises:
            Refusal: The object exists, or the API server would refuse it.
        """
        obj = _copy(obj)
        place = self._place(obj)
        self._ensure_namespace(place)
        return self._shown(self._api.create(place, obj, admission=False))

    def put(self, obj: Mapping[str, Any]) -> Json:
        """Creates or replaces an object, status included, at any resourceVersion.

        Raises:
            Refusal: The API server would refuse it.
        """
        obj = _copy(obj)
        place = self._place(obj)
        for name in ("resourceVersion", "uid"):
            obj["metadata"].pop(name, None)
        if self._kind.key(place.namespace, place.name) not in self._api.store[self._kind].objects:
            return self.add(obj)
        return self._shown(self._api.overwrite(place, obj))

    def update(self, name: str, change: Callable[[Json], object], *, namespace: str = "") -> Json:
        """Reads an object, lets ``change`` edit it in place, and stores it, status included, if it has changed."""
        obj = self.get(name, namespace=namespace)
        change(obj)
        return self.put(obj)

    def get(self, name: str, *, namespace: str = "") -> Json:
        """Returns one object.

        Raises:
            Refusal: 404.
        """
        return self._shown(self._api.get(Place(self._kind, namespace, name)))

    def list(self, *, namespace: str = "") -> list[Json]:
        """Returns all objects, or those of a namespace, in the order of their keys."""
        table = self._api.store[self._kind].objects
        return [self._shown(table[key]) for key in sorted(table) if not namespace or table[key].namespace == namespace]

    def delete(self, name: str, *, namespace: str = "") -> None:
        """Deletes an object at once, even with finalizers. Deleting a Namespace deletes its objects too.

        Raises:
            Refusal: 404.
        """
        stored = self._api.get(Place(self._kind, namespace, name))
        if self._kind is NAMESPACES:
            self._api.empty_namespace(name)
        self._api.remove(self._kind, stored)

    def set_ready(self, name: str, ready: bool | str, *, since: str | None = None) -> Json:
        """Changes a Node's Ready condition: True, False, or a status such as "Unknown"."""
        return self.update(name, lambda node: set_ready(node, ready, since or self._now()))

    def heartbeat(self, name: str) -> Json:
        """Updates a Node's heartbeat times and nothing else, as a kubelet does every few minutes."""

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
