"""The hub cluster as observed: its Services, our EndpointSlices, and the client to write them.

Two watches that outlive every reconcile. What this process wrote is entered at once with the server's
answer, so that a pass never plans against its own past; the echo of a write on the watch is recognised by
its resourceVersion and dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from hub.aio.clock import Clock
from hub.errors import ApiError, Forbidden, HubError, NotFound
from hub.kube import protobuf
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import SERVICES, SLICES, decode_identity, decode_slice, encode_slice
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, MANAGED_BY, Endpoint, ObjectKey, Service, Slice, TargetKey
from hub.remote.status import StartingServer, in_words

log = logging.getLogger(__name__)

NO_SLICES: Mapping[str, Slice] = {}


def newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is newer; versions of one API server compare as numbers (KEP-5504)."""
    try:
        return int(version) > int(than)
    except ValueError:
        return version != than


class SliceStore:
    """Our slices by target. Equal endpoints exist once, however many slices hold them."""

    def __init__(self, on_change: Callable[[TargetKey], None]) -> None:
        self._on_change = on_change
        self._by_target: dict[TargetKey, dict[str, Slice]] = {}
        self._by_key: dict[ObjectKey, Slice] = {}
        self._buried: set[str] = set()
        """uids of slices this process deleted, until the watch or a list says so too."""
        self._deferred: dict[ObjectKey, list[Callable[[], None]]] = {}
        """Slices with a write under way -> events on them that wait for its end."""
        self._pool: dict[Endpoint, Endpoint] = {}
        self._listed = ""
        """resourceVersion of the last list: whatever is not newer is in it, or was gone by then."""
        self._seen = ""
        """The newest resourceVersion that a list or the watch brought."""
        self.lists = 0

    def of(self, target: TargetKey) -> Mapping[str, Slice]:
        """The slices of a target, by name."""
        return self._by_target.get(target, NO_SLICES)

    def targets(self) -> Iterable[TargetKey]:
        """Every target that has slices of ours."""
        return self._by_target.keys()

    def get(self, key: ObjectKey) -> Slice | None:
        """One slice."""
        return self._by_key.get(key)

    def values(self) -> Iterable[Slice]:
        """All slices."""
        return self._by_key.values()

    # --- the reflector's side --------------------------------------------------------------------

    def replace(self, objects: dict[Any, Slice], resource_version: str) -> None:
        """A complete list; slices this process wrote after it was taken stay.

        A list that is older than what the watch has brought before comes from an etcd restored from a
        backup: then only the list counts, whatever the versions say.
        """
        self.lists += 1
        old = self._by_key
        if self._seen and newer(self._seen, resource_version):
            log.warning("hub cluster: its history has gone back; everything is compared anew")
            old = {}
            self._buried.clear()
            gone = {value.target for key, value in self._by_key.items() if key not in objects}
        else:
            for key, value in old.items():
                if key not in objects and newer(value.resource_version, resource_version):
                    objects[key] = value
            self._buried &= {value.uid for value in objects.values()}
            gone = {value.target for key, value in old.items() if key not in objects}
        self._listed = self._seen = resource_version
        self._by_key, self._by_target = {}, {}
        changed: set[TargetKey] = gone
        for key, value in objects.items():
            known = old.get(key)
            if known is not None and not newer(value.resource_version, known.resource_version):
                self._put(key, known)
            elif value.uid not in self._buried:
                self._put(key, self._pooled(value))
                changed.add(value.target)
        self._notify(changed)

    def knows(self, key: Any, resource_version: str) -> bool:
        """An echo of what this process wrote last."""
        self._note(resource_version)
        known = self._by_key.get(key)
        return known is not None and known.resource_version == resource_version

    def defers(self, key: Any, again: Callable[[], None]) -> bool:
        """While a write is under way, its echo may come before its answer: it is looked at afterwards."""
        waiting = self._deferred.get(key)
        if waiting is None:
            return False
        waiting.append(again)
        return True

    def upsert(self, key: Any, value: Slice, resource_version: str) -> None:
        """A slice is new or changed, by us or by somebody else."""
        self._note(resource_version)
        known = self._by_key.get(key)
        if self._listed and not newer(resource_version, self._listed):
            return  # held back for a write's sake, and a list came in between
        if value.uid in self._buried or (known is not None and not newer(resource_version, known.resource_version)):
            return
        value = self._pooled(value)
        self._put(key, value)
        self._notify({value.target} if known is None else {value.target, known.target})

    def delete(self, key: Any, value: Slice, resource_version: str) -> None:
        """A slice is gone."""
        self._note(resource_version)
        self._buried.discard(value.uid)
        known = self._by_key.get(key)
        if known is not None and known.uid == value.uid:
            self._drop(key)
            self._notify({known.target})

    # --- the writer's side -----------------------------------------------------------------------

    @contextmanager
    def writing(self, key: ObjectKey) -> Iterator[None]:
        """Hold back events on this slice until its write has ended, one way or the other."""
        self._deferred[key] = []
        try:
            yield
        finally:
            for again in self._deferred.pop(key):
                again()

    def wrote(self, value: Slice) -> None:
        """The server accepted a write; ``value`` has its uid and resourceVersion."""
        if self._listed and not newer(value.resource_version, self._listed):
            return  # a list has come since, and knows what became of it
        self._put(ObjectKey(value.namespace, value.name), value)

    def deleted(self, value: Slice) -> None:
        """This process deleted a slice; where it is not known any more, the watch has said so before."""
        key = ObjectKey(value.namespace, value.name)
        known = self._by_key.get(key)
        if known is not None and known.uid == value.uid:
            self._buried.add(value.uid)
            self._drop(key)

    def read(self, key: ObjectKey, value: Slice | None, before: Slice | None) -> None:
        """A slice was read again after a conflict.

        Args:
            key: which.
            value: as it was read; None = it does not exist.
            before: as it was known when the reading began.
        """
        known = self._by_key.get(key)
        if known is not None and known is not before:
            overtaken = value is None or not newer(value.resource_version, known.resource_version)
            if overtaken:  # the watch was faster
                return
        if value is None:
            if known is not None:
                self._drop(key)
        else:
            self._put(key, self._pooled(value))

    # --- inside ----------------------------------------------------------------------------------

    def _note(self, version: str) -> None:
        if not self._seen or newer(version, self._seen):
            self._seen = version

    def _put(self, key: ObjectKey, value: Slice) -> None:
        old = self._by_key.get(key)
        if old is not None and old.target != value.target:
            self._drop(key)
        self._by_key[key] = value
        self._by_target.setdefault(value.target, {})[value.name] = value

    def _drop(self, key: ObjectKey) -> None:
        value = self._by_key.pop(key)
        slices = self._by_target[value.target]
        del slices[value.name]
        if not slices:
            del self._by_target[value.target]

    def _pooled(self, value: Slice) -> Slice:
        if len(self._pool) > 200_000:  # about twice what a big fleet publishes: start over rather than grow
            self._pool.clear()
        pool = self._pool
        return msgspec.structs.replace(
            value, endpoints=tuple([pool.setdefault(each, each) for each in value.endpoints])
        )

    def _notify(self, targets: Iterable[TargetKey]) -> None:
        for target in targets:
            self._on_change(target)


class ServiceStore:
    """Services of the hub cluster by key. Only those somebody asks for are kept whole."""

    def __init__(self, on_change: Callable[[TargetKey], None]) -> None:
        self._on_change = on_change
        self._services: dict[TargetKey, Service] = {}
        self.lists = 0

    def get(self, target: TargetKey) -> Service | None:
        """One Service."""
        return self._services.get(target)

    def replace(self, objects: dict[Any, Service], resource_version: str) -> None:  # noqa: ARG002 - a Store
        """A complete list."""
        self.lists += 1
        old = self._services
        self._services = {
            TargetKey(*key): kept if (kept := old.get(TargetKey(*key))) == value else value
            for key, value in objects.items()
        }
        for key in old.keys() | self._services.keys():
            if old.get(key) is not self._services.get(key):
                self._on_change(key)

    def upsert(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """New or changed."""
        target = TargetKey(*key)
        old = self._services.get(target)
        self._services[target] = value
        if old is None or msgspec.structs.replace(old, resource_version="") != msgspec.structs.replace(
            value, resource_version=""
        ):
            self._on_change(target)

    def delete(self, key: Any, value: Service, resource_version: str) -> None:  # noqa: ARG002 - a Store
        """Gone."""
        if self._services.pop(TargetKey(*key), None) is not None:
            self._on_change(TargetKey(*key))


class Follower:
    """Observer of a reflector of the hub cluster."""

    def __init__(self, what: str, rule: str) -> None:
        self.what = what
        self._rule = rule
        self.current = asyncio.Event()
        self.error = ""
        self._warned = ""
        self._starting = StartingServer()

    def listing(self) -> None:
        """A list is needed; what was known goes on being used."""

    def answered(self) -> None:
        """Complete and current."""
        self._starting.over(None)
        if self._warned:
            log.info("hub cluster: %s are followed again", self.what)
        self.error = self._warned = ""

    def failed(self, error: HubError) -> None:
        """Say it once per kind of failure."""
        text = in_words(error, "local", self._rule)
        if isinstance(error, Forbidden):
            text = f"403: the hub's account lacks the rule «{self._rule}» in the hub cluster"
        if self._starting.over(error) and text != self._warned:
            log.warning("hub cluster: cannot follow %s: %s", self.what, text)
            self._warned = text
        self.error = text


class LocalCluster:
    """The hub cluster.

    Args:
        owners: values of the owner label that are ours: the owner and the previous ones.
        on_change: called with a target whose Service or slices changed.
        admit: called when a write is about to be sent, which may be long after it was begun; raises where it must
            not be any more.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        owners: tuple[str, ...],
        on_change: Callable[[TargetKey], None],
        admit: Callable[[], object] | None = None,
    ) -> None:
        self._admit = admit
        self.client = client
        self.services = ServiceStore(on_change)
        self.slices = SliceStore(on_change)
        self._clock = clock
        self._owners = owners
        self._services_observer = Follower("Services", SERVICES.rule)
        self._slices_observer = Follower("EndpointSlices", SLICES.rule)
        self._restart = asyncio.Event()
        self._encoder = protobuf.SliceEncoder()
        self._protobuf = True

    @property
    def synced(self) -> bool:
        """Both pictures are complete (or were: they go on being used while the API is away)."""
        return self.services.lists > 0 and self.slices.lists > 0

    @property
    def error(self) -> str:
        """Why the picture is not current; "" when it is."""
        return self._services_observer.error or self._slices_observer.error

    def own(self, owners: tuple[str, ...]) -> None:
        """Follow the slices of other owners from now on."""
        if owners != self._owners:
            self._owners = owners
            self._restart.set()

    async def follow_services(self) -> None:
        """Follow the Services until cancelled."""
        await Reflector(
            "services of the hub cluster", self.client, SERVICES, self.services, self._services_observer, self._clock
        ).run()

    async def follow_slices(self) -> None:
        """Follow our slices until cancelled; starts anew when the owners change."""
        while True:
            self._restart.clear()
            owners = ",".join(self._owners)
            selector = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_OWNER} in ({owners})"
            reflector = Reflector(
                "slices of the hub cluster",
                self.client,
                SLICES,
                self.slices,
                self._slices_observer,
                self._clock,
                params={"labelSelector": selector},
            )
            task = asyncio.create_task(reflector.run(), name="slices of the hub cluster")
            restart = asyncio.create_task(self._restart.wait(), name="owners changed")
            try:
                await asyncio.wait({task, restart}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    task.result()
            finally:
                for each in (task, restart):
                    each.cancel()
                await asyncio.gather(task, restart, return_exceptions=True)

    async def wait_synced(self, poll: float = 0.01) -> None:
        """Wait until both pictures are complete."""
        while not self.synced:
            await self._clock.sleep(poll)

    # --- writes; each enters its outcome into the store --------------------------------------------

    def _path(self, namespace: str, name: str = "") -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices" + (f"/{name}" if name else "")

    async def create(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109 - bounds the request
        """POST a slice.

        Raises:
            AlreadyExists, Invalid, NotFound (no such namespace), Forbidden, ...: as the client's.
        """
        await self._write("POST", self._path(value.namespace), value, timeout)

    async def update(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109 - bounds the request
        """PUT a slice with its resourceVersion.

        Raises:
            Conflict, NotFound, Invalid, ...: as the client's.
        """
        assert value.resource_version  # noqa: S101 - a PUT without one would overwrite blindly
        await self._write("PUT", self._path(value.namespace, value.name), value, timeout)

    async def _write(self, method: str, path: str, value: Slice, timeout: float) -> None:  # noqa: ASYNC109
        """Send a slice and enter what became of it: what was sent, under the identity of the answer.

        The answer's content is not read: an admission webhook that changes our slices would otherwise be
        written against for ever, and so would a server that drops a field it does not know.
        """
        key = ObjectKey(value.namespace, value.name)
        with self.slices.writing(key):
            binary = self._protobuf  # another write may switch meanwhile
            started = asyncio.get_running_loop().time()
            try:
                found = decode_identity(await self._send(method, path, value, timeout))
            except ApiError as error:
                if error.status not in (406, 415) or not binary:
                    raise
                log.info("the hub cluster's API does not take protobuf: writing JSON")
                self._protobuf = False
                left = timeout - (asyncio.get_running_loop().time() - started)
                found = decode_identity(await self._send(method, path, value, left))
            self.slices.wrote(msgspec.structs.replace(value, uid=found.uid, resource_version=found.resource_version))

    async def _send(self, method: str, path: str, value: Slice, timeout: float) -> bytes:  # noqa: ASYNC109
        if self._protobuf:
            body = self._encoder.encode(value)
            return await self.client.request(
                method, path, body=body, timeout=timeout, content_type=protobuf.CONTENT_TYPE, admit=self._admit
            )
        return await self.client.request(method, path, body=encode_slice(value), timeout=timeout, admit=self._admit)

    async def delete(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109 - bounds the request
        """DELETE exactly this state of a slice.

        Raises:
            Conflict, ...: as the client's; one that is gone already counts as deleted.
        """
        options = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"uid": value.uid, "resourceVersion": value.resource_version},
            }
        )
        with suppress(NotFound):
            path = self._path(value.namespace, value.name)
            await self.client.request("DELETE", path, body=options, timeout=timeout, admit=self._admit)
        self.slices.deleted(value)

    async def reread(self, key: ObjectKey, timeout: float) -> Slice | None:  # noqa: ASYNC109 - bounds the request
        """GET a slice and enter it; None where it does not exist."""
        before = self.slices.get(key)
        try:
            found = decode_slice(await self.client.request("GET", self._path(key.namespace, key.name), timeout=timeout))
        except NotFound:
            self.slices.read(key, None, before)
            return None
        ours = found.labels.get(LABEL_MANAGED_BY) == MANAGED_BY and found.labels.get(LABEL_OWNER) in self._owners
        self.slices.read(key, found if ours else None, before)
        return found
