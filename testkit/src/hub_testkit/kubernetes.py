"""A simulated Kubernetes API server: real HTTPS on loopback, objects in memory, faults on demand.

It exists for tests of providers and of the hub, and for ``hub demo``. It is no Kubernetes: eight kinds, no controllers
unless asked, no server-side apply, protobuf, tables or discovery. What it does answer, it answers as kube-apiserver
does; the same contract tests run against both.
"""

from __future__ import annotations

import secrets
import ssl
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from aiohttp import web

from hub.runtime.clock import Clock, SystemClock, rfc3339
from hub_testkit.simulator.answers import expired
from hub_testkit.simulator.api import Api
from hub_testkit.simulator.collection import Collection
from hub_testkit.simulator.defaults import Networks
from hub_testkit.simulator.faults import Fault, Faults
from hub_testkit.simulator.http import Face, abort
from hub_testkit.simulator.identity import AUTHORITY, client_tls, kubeconfig, server_tls
from hub_testkit.simulator.kinds import (
    CONFIG_MAPS,
    EVENTS,
    KINDS,
    LEASES,
    NAMESPACES,
    NODES,
    SECRETS,
    SERVICES,
    SLICES,
    Kind,
)
from hub_testkit.simulator.rights import Rights
from hub_testkit.simulator.store import Store, event_line

Json = dict[str, Any]

NAMESPACES_AT_START = ("default", "kube-node-lease", "kube-public", "kube-system")
HISTORY = 4096
"""Changes remembered per kind by default; older resourceVersions answer 410. A real one forgets after five minutes."""
ADMIN = "admin"


class SimulatedCluster:
    """One simulated cluster. An async context manager: it serves inside ``async with``, and keeps its objects after.

    Example:
        ::

            async with SimulatedCluster("eu") as sim:
                sim.nodes.add(make_node("n1", "10.7.0.1"))
                sim.write_kubeconfig(tmp_path / "eu")
                ...
                sim.refuse(503, verb="watch")   # and so on
                sim.heal()

    Args:
        name: name in kubeconfigs.
        families: families of the Service network, the default one first.
        controllers: also collect objects whose owners are gone, and finish the deletion of namespaces, at once. Without
            it both stay, as they do on an API server that has no kube-controller-manager.
        history: changes remembered per kind.
        clock: where timestamps come from.

    Attributes:
        nodes, namespaces, services, slices, leases, events, configmaps, secrets: the objects.
        tokens: bearer token -> user name; take one out and it answers 401.
    """

    def __init__(
        self,
        name: str = "sim",
        *,
        families: tuple[str, ...] = ("IPv4", "IPv6"),
        controllers: bool = False,
        history: int = HISTORY,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._store = Store(KINDS, history)
        self._api = Api(self._store, self._clock, Networks(families), controllers=controllers)
        self._faults = Faults()
        self._rights = Rights()
        self._face = Face(self._store, self._api, self._faults, self._rights)
        self._runner: web.ServerRunner | None = None
        self._port = 0
        self.token = secrets.token_urlsafe(16)
        self.tokens = self._rights.tokens
        self.tokens[self.token] = ADMIN
        self.nodes = self._collection(NODES)
        self.namespaces = self._collection(NAMESPACES)
        self.services = self._collection(SERVICES)
        self.slices = self._collection(SLICES)
        self.leases = self._collection(LEASES)
        self.events = self._collection(EVENTS)
        self.configmaps = self._collection(CONFIG_MAPS)
        self.secrets = self._collection(SECRETS)
        for namespace in NAMESPACES_AT_START:
            self.namespaces.add({"metadata": {"name": namespace}})

    def _collection(self, kind: Kind) -> Collection:
        return Collection(self._api, kind, self._now)

    def _now(self) -> str:
        return rfc3339(self._clock.wall())

    # --- serving -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve on a free port of 127.0.0.1; after a :meth:`stop`, on the same one, with the same objects."""
        if self._runner is not None:
            return
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        # A stream that will not end is cut after this; ours are ended before, see stop.
        runner = web.ServerRunner(server, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=server_tls()).start()
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._runner is None:  # its connection was being made when we stopped: nobody else ends it
            abort(request)
        return await self._face.handle(request)

    async def stop(self) -> None:
        """Stop serving: open streams are reset, connections refused from now on. Faults are healed."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        self.heal()
        self.cut_stream()
        await runner.cleanup()

    @property
    def url(self) -> str:
        """Where it serves.

        Raises:
            RuntimeError: it never did.
        """
        if not self._port:
            raise RuntimeError(f"simulated cluster {self.name} was not started")
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca_pem(self) -> str:
        """The authority to trust."""
        return AUTHORITY

    def client_tls(self) -> ssl.SSLContext:
        """A TLS context that trusts this server and nothing else."""
        return client_tls()

    def kubeconfig(self, token: str | None = None) -> str:
        """A kubeconfig for the administrator, or for another token; CA and token inline, context named after us."""
        return kubeconfig(self.name, self.url, ADMIN, token or self.token)

    def write_kubeconfig(self, path: Path, token: str | None = None) -> Path:
        """Write :meth:`kubeconfig` to a file only its owner may read; returns the path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(self.kubeconfig(token))
        return path

    # --- objects -------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The cluster's current resourceVersion; moves with every change and with nothing else."""
        return self._store.version

    def put(self, obj: Mapping[str, Any]) -> Json:
        """Create or replace an object of any kind, by its ``kind``, status included."""
        return self._of(obj["kind"]).put(obj)

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Delete an object by kind or resource name (``Node``, ``nodes``)."""
        self._of(kind).delete(name, namespace=namespace)

    def _of(self, name: str) -> Collection:
        for kind in KINDS:
            if name in (kind.kind, kind.resource):
                return self._collection(kind)
        raise ValueError(f"the simulated cluster has no kind {name!r}")

    # --- what was asked ------------------------------------------------------------------------

    @property
    def requests(self) -> Counter[tuple[str, str]]:
        """How often each (verb, resource) was asked for, refused ones included; ``clear()`` it between phases."""
        return self._face.requests

    @property
    def writes(self) -> int:
        """Requests so far that were meant to change something."""
        return sum(n for (verb, _), n in self.requests.items() if verb not in ("get", "list", "watch"))

    def streams(self, resource: str | None = None) -> int:
        """Watches open now."""
        return len(self._store.watchers(resource))

    # --- rights --------------------------------------------------------------------------------

    def add_token(self, user: str, token: str | None = None) -> str:
        """A further token, allowed everything until :meth:`forbid`; returns it."""
        token = token or secrets.token_urlsafe(16)
        self.tokens[token] = user
        return token

    def rotate_token(self) -> str:
        """Replace the administrator's token: the old one answers 401 from now on."""
        del self.tokens[self.token]
        self.token = self.add_token(ADMIN)
        return self.token

    def forbid(self, verb: str = "*", resource: str = "*", user: str = "*") -> None:
        """Answer 403 to these requests; ``resource`` may be ``nodes/status``. :meth:`permit` undoes it."""
        self._rights.forbidden.add((user, verb, resource))

    def permit(self) -> None:
        """Undo every :meth:`forbid`."""
        self._rights.forbidden.clear()

    # --- faults --------------------------------------------------------------------------------

    @property
    def latency(self) -> float:
        """Seconds every answer waits; settable. Streams are not slowed down."""
        return self._face.latency

    @latency.setter
    def latency(self, seconds: float) -> None:
        self._face.latency = seconds

    @property
    def bookmark_interval(self) -> float:
        """Seconds between bookmarks; settable for watches that start later. A real one has 60."""
        return self._face.bookmark_interval

    @bookmark_interval.setter
    def bookmark_interval(self, seconds: float) -> None:
        self._face.bookmark_interval = seconds

    def fail_next(
        self,
        count: int = 1,
        *,
        status: int = 500,
        verb: str | None = None,
        resource: str | None = None,
        message: str = "",
        reason: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Answer the next ``count`` matching requests with an error; 429 is text/plain, others are a ``Status``."""
        self._faults.add(Fault("answer", verb, resource, count, status, message, reason, retry_after))

    def refuse(
        self,
        status: int = 429,
        *,
        verb: str | None = None,
        resource: str | None = None,
        message: str = "",
        reason: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Answer all matching requests with an error until :meth:`heal`."""
        self._faults.add(Fault("answer", verb, resource, None, status, message, reason, retry_after))

    def hang(self, count: int | None = None, *, verb: str | None = None, resource: str | None = None) -> None:
        """Accept matching requests and do not answer them until :meth:`heal`; without ``count``, streams freeze too."""
        self._faults.add(Fault("hang", verb, resource, count))

    def garbage(
        self,
        count: int | None = 1,
        *,
        verb: str | None = None,
        resource: str | None = None,
        body: bytes = b"<html><body>Please log in</body></html>",
        content_type: str = "text/html",
    ) -> None:
        """Answer matching requests with status 200 and this body; of a watch, it is the whole stream."""
        self._faults.add(Fault("garbage", verb, resource, count, body=body, content_type=content_type))

    def drop_next(self, count: int = 1, *, verb: str | None = None, resource: str | None = None) -> None:
        """Reset the connection instead of doing what the next ``count`` matching requests ask."""
        self._faults.add(Fault("cut", verb, resource, count))

    def lose_answer(self, count: int = 1, *, verb: str | None = None, resource: str | None = None) -> None:
        """Do what the next ``count`` matching requests ask, then reset the connection: the client never hears of it."""
        self._faults.add(Fault("lose", verb, resource, count))

    def cut_stream(
        self, resource: str | None = None, *, how: Literal["reset", "end", "expire", "half-line"] = "reset"
    ) -> int:
        """Interrupt open watches and return how many.

        Args:
            resource: of this resource only.
            how: ``reset`` the connection, ``end`` as at a timeout, ``expire`` with a 410 event and an end, or
                ``half-line``: the beginning of an event and a reset.
        """
        watchers = self._store.watchers(resource)
        for watcher in watchers:
            if how == "reset":
                watcher.abort()
                continue
            if how == "expire":
                watcher.push_line(event_line("ERROR", msgspec.json.encode(expired("watch").body)))
            elif how == "half-line":
                watcher.push_line(b'{"type":"MODIFIED","object":{"kind":')
            watcher.end(reset=how == "half-line")
        return len(watchers)

    def inject(self, line: bytes, resource: str | None = None) -> int:
        """Write a raw line into open watches (garbage, an event that never was) and return how many."""
        watchers = self._store.watchers(resource)
        for watcher in watchers:
            watcher.push_line(line.rstrip(b"\n") + b"\n")
        return len(watchers)

    def compact(self) -> None:
        """Forget the past: lists, pages and watches at any older resourceVersion answer 410. Open watches go on."""
        self._store.compact()

    def restore(self, version: int) -> None:
        """Go back to an earlier resourceVersion, as when etcd is restored from a backup; streams are reset.

        Raises:
            Refusal: 410, that version is forgotten.
        """
        self._store.restore(version)
        self.cut_stream()

    def heal(self) -> None:
        """End every fault: what hung is answered now. Latency, tokens and rights stay as they are."""
        self._faults.heal()


__all__ = ["Collection", "SimulatedCluster"]
