"""A simulated Kubernetes API server: real HTTPS on loopback, objects in memory, faults on demand.

It is for tests of providers and of the hub, and for ``hub demo``. It implements only a part of Kubernetes: eight kinds,
no controllers by default, no server-side apply, protobuf, tables or discovery. It answers supported requests as
kube-apiserver does; the same contract tests run against both.
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
from hub_testkit.simulator.http import HttpFrontend, abort
from hub_testkit.simulator.identity import AUTHORITY, client_tls, kubeconfig, server_tls
from hub_testkit.simulator.kinds import (
    ALLOCATIONS,
    CONFIG_MAPS,
    EVENTS,
    KINDS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    SLICES,
    STATEFUL_SETS,
    Kind,
)
from hub_testkit.simulator.rights import Rights
from hub_testkit.simulator.store import Store, event_line

Json = dict[str, Any]

NAMESPACES_AT_START = ("default", "kube-node-lease", "kube-public", "kube-system")
HISTORY = 4096
"""Changes remembered per kind by default; older versions answer 410. A real server forgets after five minutes."""
ADMIN = "admin"


class SimulatedCluster:
    """A simulated cluster. It serves inside ``async with`` and keeps its objects afterwards.

    Example:
        ::

            async with SimulatedCluster("eu") as sim:
                sim.nodes.add(make_node("n1", "10.7.0.1"))
                sim.write_kubeconfig(tmp_path / "eu")
                ...
                sim.refuse(503, verb="watch")   # and so on
                sim.heal()

    Args:
        name: The cluster's name in kubeconfigs.
        families: The IP families of the Service network, the default one first.
        controllers: Delete objects whose owners are gone and finish the deletion of namespaces, at once. Otherwise both
            stay, as on an API server without kube-controller-manager.
        history: The number of changes remembered per kind.
        clock: The source of timestamps; None = the system's clock.

    Attributes:
        nodes, namespaces, services, slices, leases, events, configmaps, secrets, pods, statefulsets, allocations: The
            objects of each kind.
        tokens: Bearer token -> user name. A token that is removed answers 401.
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
        self._http = HttpFrontend(self._store, self._api, self._faults, self._rights)
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
        self.pods = self._collection(PODS)
        self.statefulsets = self._collection(STATEFUL_SETS)
        self.allocations = self._collection(ALLOCATIONS)
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
        """Starts to serve on a free port of 127.0.0.1; after a :meth:`stop`, on the same port with the same objects."""
        if self._runner is not None:
            return
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        # Connections that are still open this many seconds after stop() are closed; stop() resets watches before that.
        runner = web.ServerRunner(server, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=server_tls()).start()
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._runner is None:  # the connection was being made during stop(), which could not close it
            abort(request)
        return await self._http.handle(request)

    async def stop(self) -> None:
        """Stops serving: resets open streams, refuses connections from now on and ends all faults."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        self.heal()
        self.cut_stream()
        await runner.cleanup()

    @property
    def url(self) -> str:
        """The server's address.

        Raises:
            RuntimeError: The cluster was never started.
        """
        if not self._port:
            raise RuntimeError(f"simulated cluster {self.name} was not started")
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca_pem(self) -> str:
        """The certificate authority to trust, in PEM."""
        return AUTHORITY

    def client_tls(self) -> ssl.SSLContext:
        """Returns a TLS context that trusts only simulated clusters."""
        return client_tls()

    def kubeconfig(self, token: str | None = None) -> str:
        """Returns a kubeconfig with CA and token inline and the cluster's name as context; None = the admin's token."""
        return kubeconfig(self.name, self.url, ADMIN, token or self.token)

    def write_kubeconfig(self, path: Path, token: str | None = None) -> Path:
        """Writes :meth:`kubeconfig` to a file that only its owner may read; returns the path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(self.kubeconfig(token))
        return path

    # --- objects -------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The cluster's current resourceVersion; it increases with every change, and only then."""
        return self._store.version

    def put(self, obj: Mapping[str, Any]) -> Json:
        """Creates or replaces an object of any kind, by its ``kind``, status included."""
        return self._of(obj["kind"]).put(obj)

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Deletes an object; ``kind`` is the kind or the resource name (``Node``, ``nodes``)."""
        self._of(kind).delete(name, namespace=namespace)

    def _of(self, name: str) -> Collection:
        for kind in KINDS:
            if name in (kind.kind, kind.resource):
                return self._collection(kind)
        raise ValueError(f"the simulated cluster has no kind {name!r}")

    # --- counters of requests ------------------------------------------------------------------

    @property
    def requests(self) -> Counter[tuple[str, str]]:
        """The number of requests by (verb, resource), with refused ones; ``clear()`` it between phases of a test."""
        return self._http.requests

    @property
    def writes(self) -> int:
        """The number of requests so far with a verb that changes objects."""
        return sum(n for (verb, _), n in self.requests.items() if verb not in ("get", "list", "watch"))

    def streams(self, resource: str | None = None) -> int:
        """Returns the number of open watches, of one resource or of all."""
        return len(self._store.watchers(resource))

    # --- rights --------------------------------------------------------------------------------

    def add_token(self, user: str, token: str | None = None) -> str:
        """Adds a token, which may do everything until :meth:`forbid`, and returns it."""
        token = token or secrets.token_urlsafe(16)
        self.tokens[token] = user
        return token

    def rotate_token(self) -> str:
        """Replaces the administrator's token and returns the new one: the old one answers 401 from now on."""
        del self.tokens[self.token]
        self.token = self.add_token(ADMIN)
        return self.token

    def forbid(self, verb: str = "*", resource: str = "*", user: str = "*") -> None:
        """Answers 403 to these requests until :meth:`permit`; ``resource`` may be ``nodes/status``."""
        self._rights.forbidden.add((user, verb, resource))

    def permit(self) -> None:
        """Undoes every :meth:`forbid`."""
        self._rights.forbidden.clear()

    # --- faults --------------------------------------------------------------------------------

    @property
    def latency(self) -> float:
        """Seconds that every answer is delayed; settable. Streams are not slowed down."""
        return self._http.latency

    @latency.setter
    def latency(self, seconds: float) -> None:
        self._http.latency = seconds

    @property
    def bookmark_interval(self) -> float:
        """Seconds between bookmarks; settable for watches that start later. A real server has 60."""
        return self._http.bookmark_interval

    @bookmark_interval.setter
    def bookmark_interval(self, seconds: float) -> None:
        self._http.bookmark_interval = seconds

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
        """Answers the next ``count`` matching requests with an error: 429 as text/plain, others as a ``Status``."""
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
        """Answers all matching requests with an error until :meth:`heal`."""
        self._faults.add(Fault("answer", verb, resource, None, status, message, reason, retry_after))

    def hang(self, count: int | None = None, *, verb: str | None = None, resource: str | None = None) -> None:
        """Leaves matching requests unanswered until :meth:`heal`; without ``count``, open streams are silent too."""
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
        """Answers matching requests with status 200 and this body; for a watch, the body is the whole stream."""
        self._faults.add(Fault("garbage", verb, resource, count, body=body, content_type=content_type))

    def drop_next(self, count: int = 1, *, verb: str | None = None, resource: str | None = None) -> None:
        """Resets the connection of the next ``count`` matching requests without processing them."""
        self._faults.add(Fault("cut", verb, resource, count))

    def lose_answer(self, count: int = 1, *, verb: str | None = None, resource: str | None = None) -> None:
        """Processes the next ``count`` matching requests, but resets the connection instead of answering."""
        self._faults.add(Fault("lose", verb, resource, count))

    def cut_stream(
        self, resource: str | None = None, *, how: Literal["reset", "end", "expire", "half-line"] = "reset"
    ) -> int:
        """Interrupts open watches and returns their number.

        Args:
            resource: Only watches of this resource; None = all.
            how: ``reset`` the connection; ``end`` the stream as at a timeout; ``expire`` it with a 410 event and an
                end;
                ``half-line``: send the beginning of an event, then reset the connection.
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
        """Writes a raw line (garbage, an invented event) into open watches and returns their number."""
        watchers = self._store.watchers(resource)
        for watcher in watchers:
            watcher.push_line(line.rstrip(b"\n") + b"\n")
        return len(watchers)

    def compact(self) -> None:
        """Forgets the history: lists, pages and watches at older resourceVersions answer 410. Open watches continue."""
        self._store.compact()

    def restore(self, version: int) -> None:
        """Goes back to an earlier resourceVersion, as if etcd were restored from a backup, and resets streams.

        Raises:
            Refusal: 410: the version is no longer in the history.
        """
        self._store.restore(version)
        self.cut_stream()

    def heal(self) -> None:
        """Ends every fault; hanging requests are answered now. Latency, tokens and rights are not changed."""
        self._faults.heal()


__all__ = ["Collection", "SimulatedCluster"]
