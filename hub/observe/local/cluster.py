"""Follows the Services and our EndpointSlices of the hub cluster, and writes those slices.

Two watches run for as long as the hub does (two for each namespace if only some are followed). A write enters the store
with the server's answer, so that the next pass sees it; the watch event of that write is recognised by its
resourceVersion and dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from hub.errors import ApiError, Forbidden, HubError, NotFound, NotLeader
from hub.kube import protobuf
from hub.kube.client import Client
from hub.kube.reflector import Reflector
from hub.kube.wire import SERVICES, SLICES, decode_identity, decode_slice, encode_slice, slices_reusing
from hub.model import LABEL_MANAGED_BY, LABEL_OWNER, MANAGED_BY, ObjectKey, Slice, TargetKey
from hub.observe.local.scoped import ServiceStores, SliceStores
from hub.observe.local.stores import ServiceStore, SliceStore
from hub.observe.remote.status import StartingServer, in_words
from hub.runtime.clock import Clock
from hub.runtime.supervise import until_one_ends

log = logging.getLogger(__name__)

READ_SECONDS: Final = 10.0
PAGE_SIZE: Final = 100
"""Slices per page of a list: 2 MB in JSON with 100 endpoints each."""
ALL: Final = ""
"""Key of the stores if one watch follows all namespaces."""


class Follower:
    """Observer of a reflector of the hub cluster.

    Attributes:
        error: why the objects are not current; "" if they are.
        attempted: whether a list has been answered or has failed once.
    """

    def __init__(self, what: str, rule: str, namespace: str = "") -> None:
        self.what = f"{what} of namespace {namespace}" if namespace else what
        self._rule = rule
        self._where = f" in namespace {namespace}" if namespace else ""
        self.error = ""
        self.attempted = False
        self._warned = ""
        self._starting = StartingServer()

    def listing(self) -> None:
        """A new list is needed; the known objects stay in use."""

    def answered(self) -> None:
        """The list is complete and current."""
        self.attempted = True
        self._starting.should_warn(None)
        if self._warned:
            log.info("hub cluster: %s are followed again", self.what)
        self.error = self._warned = ""

    def failed(self, error: HubError) -> None:
        """Log a failure, unless it is the same as the last one."""
        self.attempted = True
        text = in_words(error, "local", self._rule)
        if isinstance(error, Forbidden):
            text = f"403: the hub's account lacks the rule «{self._rule}»{self._where} in the hub cluster"
        if self._starting.should_warn(error) and text != self._warned:
            log.warning("hub cluster: cannot follow %s: %s", self.what, text)
            self._warned = text
        self.error = text


def _named(what: str, namespace: str) -> str:
    return f"{what} of namespace {namespace} of the hub cluster" if namespace else f"{what} of the hub cluster"


class LocalCluster:
    """The hub cluster.

    Args:
        owners: values of the owner label that make a slice ours: the owner and the previous owners.
        on_change: called with a target whose Service or slices changed.
        namespaces: the only namespaces that are followed; empty = all, with one watch.
        admit: called with a target right before a write of its slices is sent, which may be long after the write began;
            raises if the write is no longer allowed.
        whole: whether the slices of a target are kept whole, see :class:`hub.observe.local.stores.SliceStore`.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        owners: tuple[str, ...],
        on_change: Callable[[TargetKey], None],
        admit: Callable[[TargetKey], object] = lambda _: None,
        namespaces: tuple[str, ...] = (),
        whole: Callable[[TargetKey], bool] | None = None,
    ) -> None:
        self._admit = admit
        self.client = client
        self._service_stores = {namespace: ServiceStore(on_change) for namespace in namespaces or (ALL,)}
        self._slice_stores = {namespace: SliceStore(on_change, whole) for namespace in namespaces or (ALL,)}
        self.services = ServiceStores(self._service_stores) if namespaces else self._service_stores[ALL]
        self.slices = SliceStores(self._slice_stores, SliceStore(on_change)) if namespaces else self._slice_stores[ALL]
        self._clock = clock
        self._owners = owners
        self._service_followers = {
            namespace: Follower("Services", SERVICES.rule, namespace) for namespace in self._service_stores
        }
        self._slice_followers = {
            namespace: Follower("EndpointSlices", SLICES.rule, namespace) for namespace in self._slice_stores
        }
        self._restart = asyncio.Event()
        self._encoder = protobuf.SliceEncoder()
        self._protobuf = True

    @property
    def synced(self) -> bool:
        """Whether Services and slices have been listed completely; stays True while the API is unreachable."""
        return self.services.lists > 0 and self.slices.lists > 0

    def all_slices(self) -> Iterable[Slice] | None:
        """All of our slices; None if they have not been listed completely yet."""
        return self.slices.values() if self.slices.lists else None

    @property
    def attempted(self) -> bool:
        """Whether every list has been answered or has failed once; from then on ``error`` is meaningful."""
        return all(follower.attempted for follower in self._followers())

    @property
    def error(self) -> str:
        """Why Services or slices are not current; "" if they are."""
        return next((follower.error for follower in self._followers() if follower.error), "")

    def _followers(self) -> tuple[Follower, ...]:
        return (*self._service_followers.values(), *self._slice_followers.values())

    def follows(self, namespace: str) -> bool:
        """Whether a namespace is followed."""
        return ALL in self._service_stores or namespace in self._service_stores

    def follow_owners(self, owners: tuple[str, ...]) -> None:
        """Follow the slices of these owners from now on; they replace the present ones."""
        if owners != self._owners:
            self._owners = owners
            self._restart.set()

    async def follow_services(self) -> None:
        """Follow the Services until cancelled."""
        async with asyncio.TaskGroup() as group:
            for namespace, store in self._service_stores.items():
                follower = self._service_followers[namespace]
                name = _named("services", namespace)
                reflector = Reflector(
                    name, self.client, SERVICES, store, follower, self._clock, namespace=namespace or None
                )
                group.create_task(reflector.run(), name=name)

    async def follow_slices(self) -> None:
        """Follow our slices until cancelled; start over when the owners change."""
        while True:
            self._restart.clear()
            owners = ",".join(self._owners)
            selector = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_OWNER} in ({owners})"
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._restart.wait(), name="owners changed")]
            tasks += [asyncio.create_task(self._reflect(namespace, selector)) for namespace in self._slice_stores]
            await until_one_ends(tasks)

    async def _reflect(self, namespace: str, selector: str) -> None:
        store, follower = self._slice_stores[namespace], self._slice_followers[namespace]
        name = _named("slices", namespace)
        params = {"labelSelector": selector}
        await Reflector(
            name,
            self.client,
            slices_reusing(store.stored_at_version),
            store,
            follower,
            self._clock,
            params=params,
            namespace=namespace or None,
            page_size=PAGE_SIZE,
        ).run()

    async def wait_synced(self, poll: float = 0.01) -> None:
        """Wait until Services and slices have been listed; checks every ``poll`` seconds."""
        while not self.synced:
            await self._clock.sleep(poll)

    # --- writes; every write enters its result into the store ---------------------------------------

    def _path(self, namespace: str, name: str = "") -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices" + (f"/{name}" if name else "")

    async def create(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109 - bounds the request
        """POST a slice.

        Raises:
            AlreadyExists, Invalid, NotFound (no such namespace), Forbidden, ...: see the client.
        """
        await self._write("POST", self._path(value.namespace), value, timeout)

    async def update(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109 - bounds the request
        """PUT a slice with its resourceVersion.

        Raises:
            Conflict, NotFound, Invalid, ...: see the client.
        """
        assert value.resource_version  # noqa: S101 - a PUT without one would overwrite blindly
        await self._write("PUT", self._path(value.namespace, value.name), value, timeout)

    async def _write(self, method: str, path: str, value: Slice, timeout: float) -> None:  # noqa: ASYNC109
        """Send a slice, and enter it into the store as it was sent, with the uid and resourceVersion of the answer.

        The answer's content is ignored. Otherwise the hub would write again and again against an admission webhook that
        changes our slices, or a server that drops a field it does not know.
        """
        key = ObjectKey(value.namespace, value.name)
        with self.slices.writing(key):
            binary = self._protobuf  # another write may switch to JSON meanwhile
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
        admit = partial(self._admit, value.target)
        if self._protobuf:
            body = self._encoder.encode(value)
            return await self.client.request(
                method, path, body=body, timeout=timeout, content_type=protobuf.CONTENT_TYPE, admit=admit
            )
        return await self.client.request(method, path, body=encode_slice(value), timeout=timeout, admit=admit)

    async def delete(self, value: Slice, timeout: float) -> None:  # noqa: ASYNC109 - bounds the request
        """DELETE exactly this state of a slice.

        Raises:
            Conflict, ...: see the client. A slice that does not exist counts as deleted.
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
            admit = partial(self._admit, value.target)
            await self.client.request("DELETE", path, body=options, timeout=timeout, admit=admit)
        self.slices.deleted(value)

    async def read_thin_slices(self, target: TargetKey) -> None:
        """Read the slices of a target that are known only in part, since another replica wrote them until now.

        Raises:
            NotLeader: another replica has taken them over again.
            HubError: the slices cannot be read.
        """
        for key in self.slices.thin(target):
            await self.reread(key, READ_SECONDS)
        if self.slices.thin(target):
            raise NotLeader(f"another replica has taken over the slices of {target}")

    async def reread(self, key: ObjectKey, timeout: float) -> Slice | None:  # noqa: ASYNC109 - bounds the request
        """GET a slice and enter it into the store; None if it does not exist."""
        before = self.slices.reading(key)
        try:
            found = decode_slice(await self.client.request("GET", self._path(key.namespace, key.name), timeout=timeout))
        except NotFound:
            self.slices.read(key, None, before)
            return None
        ours = found.labels.get(LABEL_MANAGED_BY) == MANAGED_BY and found.labels.get(LABEL_OWNER) in self._owners
        self.slices.read(key, found if ours else None, before)
        return found
