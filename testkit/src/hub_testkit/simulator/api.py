"""Create, update, patch and delete as the API server does them, without HTTP."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from hub.runtime.clock import Clock, rfc3339
from hub_testkit.simulator import answers, validation
from hub_testkit.simulator.answers import Refusal
from hub_testkit.simulator.checks import (
    Place,
    check_namespace,
    check_preconditions,
    check_version,
    checked,
    error_group,
    not_found,
)
from hub_testkit.simulator.defaults import NOT_READY_TAINT, Networks
from hub_testkit.simulator.kinds import NAMESPACES, NODES, Kind
from hub_testkit.simulator.shapes import canonical_metadata
from hub_testkit.simulator.store import Store, Stored, encoded

Json = dict[str, Any]
Mutation = Callable[[Json], Json]

FOREGROUND = "foregroundDeletion"
PROPAGATION = ("Foreground", "Background", "Orphan", "nil")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""The letters of generated names: Kubernetes uses no vowels and no characters that look alike
(apimachinery/pkg/util/rand/rand.go)."""


class Api:
    """Changes objects as the API server does.

    Args:
        store: The store of all objects.
        clock: The clock for timestamps.
        networks: Allocates ClusterIPs and node ports.
        controllers: Do at once what kube-controller-manager does later: delete objects whose owners are gone, and
            empty and remove namespaces that are being deleted.
    """

    def __init__(self, store: Store, clock: Clock, networks: Networks, *, controllers: bool = False) -> None:
        self.store = store
        self._clock = clock
        self._networks = networks
        self._controllers = controllers
        self._random = random.Random()

    def get(self, place: Place) -> Stored:
        """Returns one object.

        Raises:
            Refusal: 404.
        """
        kind = place.kind
        found = self.store[kind].objects.get(kind.key(place.namespace, place.name))
        if found is None:
            raise not_found(kind, place.name)
        return found

    def create(self, place: Place, obj: Json, *, dry_run: bool = False, admission: bool = True) -> Stored:
        """Handles a POST. ``admission=False`` skips a Node's not-ready taint, which a controller would soon remove.

        Raises:
            Refusal: Any of 400, 403, 404, 409, 422 and 500.
        """
        kind = place.kind
        obj = checked(place, obj)
        meta = obj["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + "".join(self._random.choices(_SUFFIX, k=5))
        if kind.namespaced:
            check_namespace(self.store[NAMESPACES].objects.get(place.namespace), place, meta.get("name", ""))
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            meta.pop(name, None)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": self._now()}
        if kind.counts_generations:
            meta["generation"] = 1
        if kind is NODES and admission:
            taints = obj.setdefault("spec", {}).setdefault("taints", [])
            taints.append(dict(NOT_READY_TAINT))
        self._shape(kind, obj, None)
        if kind.key(place.namespace, meta["name"]) in self.store[kind].objects:
            raise Refusal(
                409,
                f'{kind.qualified} "{meta["name"]}" already exists',
                "AlreadyExists",
                answers.details_of(meta["name"], kind.group, kind.resource),
            )
        if dry_run:
            return encoded(kind, {**obj, "metadata": canonical_metadata(meta, kind.kind)}, self.store.version)
        if meta.get("resourceVersion"):
            raise Refusal(500, "resourceVersion should not be set on objects to be created", "")
        return self.store.save(kind, self._ordered(obj, kind), None)

    def update(self, place: Place, obj: Json, *, dry_run: bool = False) -> Stored:
        """Handles a PUT of an object or of its status. An object that does not change is not written.

        Raises:
            Refusal: Any of 400, 404, 409, 422 and 500.
        """
        obj = checked(place, obj)
        name = obj["metadata"].get("name", "")
        if not name:
            raise Refusal(
                400, f"the name of the object ({place.name} based on URL) was undeterminable: name must be provided"
            )
        if name != place.name:
            raise Refusal(400, f"the name of the object ({name}) does not match the name on the URL ({place.name})")
        before = self.get(place)
        check_version(place.kind, before, obj["metadata"])
        return self._replace(place, before, obj, dry_run=dry_run)

    def overwrite(self, place: Place, obj: Json) -> Stored:
        """Replaces spec and status together, at any resourceVersion. Only Python code can do this, not an API client.

        Raises:
            Refusal: Any of 400, 404 and 422.
        """
        return self._replace(place, self.get(place), checked(place, obj), whole=True)

    def patch(self, place: Place, mutation: Mutation, *, dry_run: bool = False) -> Stored:
        """Handles a PATCH; ``mutation`` returns the patched object.

        Raises:
            Refusal: Any of 400, 404, 409 and 422.
        """
        before = self.get(place)
        old: Json = {"kind": place.kind.kind, "apiVersion": place.kind.api_version, **before.decode()}
        current = old["metadata"].pop("resourceVersion")
        obj = checked(place, mutation(old))
        check_version(place.kind, before, obj["metadata"])
        obj["metadata"]["resourceVersion"] = current
        return self._replace(place, before, obj, dry_run=dry_run)

    def delete(self, place: Place, options: Mapping[str, Any], *, dry_run: bool = False) -> tuple[Stored, bool]:
        """Handles a DELETE. Returns the last state, and whether the object is gone (False while it has finalizers).

        Raises:
            Refusal: 404; 409 if a precondition does not hold; 422 for invalid options.
        """
        kind = place.kind
        before = self.get(place)
        propagation = options.get("propagationPolicy")
        if propagation is not None and propagation not in PROPAGATION:
            cause = answers.unsupported("propagationPolicy", propagation, PROPAGATION)
            raise answers.invalid_options("DeleteOptions", cause)
        check_preconditions(kind, before, options.get("preconditions") or {})
        if dry_run:
            return before, True
        obj = before.decode()
        finalizers = obj["metadata"].get("finalizers", [])
        if propagation == "Foreground" and not self._controllers:
            finalizers = [*(f for f in finalizers if f != FOREGROUND), FOREGROUND]
        if kind is NAMESPACES and not self._controllers:
            return self._terminate_namespace(before, obj), False
        if finalizers:
            return self._mark_deleted(kind, before, obj, finalizers), False
        self.remove(kind, before)
        return before, True

    def remove(self, kind: Kind, before: Stored) -> None:
        """Deletes an object without any checks and, if controllers are simulated, its dependents."""
        self.store.remove(kind, before)
        if self._controllers:
            self._collect(before.uid)
            if kind is NAMESPACES:
                self.empty_namespace(before.name)

    def empty_namespace(self, name: str) -> None:
        """Deletes everything in a namespace."""
        for table in self.store.tables.values():
            for stored in [s for s in table.objects.values() if s.namespace == name and table.kind.namespaced]:
                self.store.remove(table.kind, stored)

    # --- parts ---------------------------------------------------------------------------------

    def _now(self) -> str:
        return rfc3339(self._clock.wall())

    def _shape(self, kind: Kind, obj: Json, old: Json | None) -> None:
        """Sets defaults in the object, and refuses it if anything is invalid."""
        kind.shape(obj, old, self._networks)
        meta = obj["metadata"]
        causes = [
            *validation.metadata_causes(meta, label_1035=kind.name_1035, label_name=kind.name_label),
            *kind.causes(obj, old),
        ]
        if causes:
            raise answers.invalid(error_group(kind), kind.kind, meta.get("name", ""), causes)

    def _replace(
        self, place: Place, before: Stored, obj: Json, *, dry_run: bool = False, whole: bool = False
    ) -> Stored:
        kind, old, meta = place.kind, before.decode(), obj["metadata"]
        if place.subresource == "status":
            obj = {**old, "metadata": _status_metadata(old["metadata"], meta), "status": obj.get("status", {})}
            meta = obj["metadata"]
        elif kind.status and not (whole and "status" in obj):
            obj["status"] = old.get("status", {})
        _restore_server_fields(meta, old["metadata"])
        self._shape(kind, obj, old)
        obj = self._ordered(obj, kind)
        meta = obj["metadata"]
        if obj == old:
            return before
        if kind.counts_generations and _counts(kind, obj) != _counts(kind, old):
            meta["generation"] = old["metadata"].get("generation", 0) + 1
        if dry_run:
            return encoded(kind, obj, before.version)
        if kind is not NAMESPACES and "deletionTimestamp" in meta and not meta.get("finalizers"):
            # The last finalizer was removed, so the object is deleted instead of saved.
            self.remove(kind, before)
            return encoded(kind, obj, before.version)
        return self.store.save(kind, obj, before)

    def _ordered(self, obj: Json, kind: Kind) -> Json:
        meta = obj.pop("metadata")
        return {"metadata": canonical_metadata({"resourceVersion": "0", **meta}, kind.kind), **obj}

    def _mark_deleted(self, kind: Kind, before: Stored, obj: Json, finalizers: list[str]) -> Stored:
        meta = obj["metadata"]
        if "deletionTimestamp" in meta and meta.get("finalizers") == finalizers:
            return before
        meta |= {"deletionTimestamp": self._now(), "deletionGracePeriodSeconds": 0, "finalizers": finalizers}
        if kind.counts_generations:
            meta["generation"] = meta.get("generation", 0) + 1
        return self.store.save(kind, self._ordered(obj, kind), before)

    def _terminate_namespace(self, before: Stored, obj: Json) -> Stored:
        if "deletionTimestamp" in obj["metadata"]:
            return before
        obj["metadata"]["deletionTimestamp"] = self._now()
        obj["status"] = {"phase": "Terminating"}
        return self.store.save(NAMESPACES, self._ordered(obj, NAMESPACES), before)

    def _collect(self, uid: str) -> None:
        """Deletes objects that only the object with this uid owned, as the garbage collector does."""
        for table in self.store.tables.values():
            for stored in list(table.objects.values()):
                if uid.encode() not in stored.body or stored.uid == uid:
                    continue
                owners = stored.decode()["metadata"].get("ownerReferences", [])
                if owners and all(owner["uid"] == uid for owner in owners):
                    self.remove(table.kind, stored)


def _counts(kind: Kind, obj: Json) -> Json:
    """Returns the parts that ``metadata.generation`` counts.

    Never annotations and finalizers. Labels do count, except where a status subresource counts nothing but the spec.
    """
    if kind.status:
        return {name: value for name, value in obj.items() if name not in ("metadata", "status")}
    return {**obj, "metadata": obj["metadata"].get("labels", {})}


def _restore_server_fields(meta: Json, old: Json) -> None:
    """Restores fields that only the server sets. A request may only clear managedFields, by sending ``[{}]``."""
    for name in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        meta.pop(name, None)
        if name in old:
            meta[name] = old[name]
    if meta.get("managedFields") == [{}]:
        del meta["managedFields"]
    elif "managedFields" in old:
        meta.setdefault("managedFields", old["managedFields"])
    meta["resourceVersion"] = old["resourceVersion"]


def _status_metadata(old: Json, new: Json) -> Json:
    """Returns the metadata after a status update, which sets only labels and annotations in it (measured)."""
    kept = {name: value for name, value in old.items() if name not in ("labels", "annotations")}
    return {**kept, **{name: new[name] for name in ("labels", "annotations") if name in new}}
