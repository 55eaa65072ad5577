"""The plugin API: what a provider author implements. Public, typed, and all there is.

A distribution exposes a module through the entry point group ``hub.providers``; the entry point's name
is the provider's name in clusters.yaml. The module implements one synchronous pluggy hook,
:func:`hub_register_providers`, and returns :class:`ProviderType` values. Consumers of endpoint views are in
a group of their own, ``hub.views``, and implement the hooks at the end. This module must not import
anything of the hub but its values.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec
import pluggy

from hub.aio.clock import Clock
from hub.errors import ProviderError
from hub.model import EndpointView, Hints, Node, ObjectReference, Port, Resolution, Service, Slice

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from pydantic import BaseModel

API_VERSION = 1
"""Raised when a change could break a provider; the deprecation policy is in docs/plugins."""

ENTRY_POINT_GROUP = "hub.providers"
VIEWS_ENTRY_POINT_GROUP = "hub.views"
"""Consumers of endpoint views; the entry point's name is the one in ``views.hooks`` of clusters.yaml."""
NAMESPACE = "hub"

hookspec = pluggy.HookspecMarker(NAMESPACE)
hookimpl = pluggy.HookimplMarker(NAMESPACE)

T = TypeVar("T")


class TransientProviderError(ProviderError):
    """The provider could not answer now; the hub asks again with backoff.

    Args:
        message: what failed, in words for an operator; never a credential.
        retry_after: seconds to wait at least, where the other side said so.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TerminalProviderError(ProviderError):
    """The provider cannot answer until its configuration or credentials change."""


class NodeProvider(Protocol):
    """Resolves remote Nodes to addresses."""

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        """Answer for a batch of nodes of one cluster, by node name; a node left out is Unknown.

        Called with the nodes whose record changed (in the fields the type reads), or with all of them
        on a poll. The hub cancels it after 30 s. Raising makes the whole answer unknown.

        Raises:
            TransientProviderError: try again.
            TerminalProviderError: do not, until the configuration changes.
        """
        ...


@dataclass(frozen=True, slots=True)
class SnapshotEndpoint:
    """One endpoint as an EndpointProvider knows it.

    Attributes:
        name: what stands behind it (a node, a record), unique in the snapshot.
        addresses: IP addresses, unchecked, at most one per family is published.
        ready, serving, terminating: as in an EndpointSlice.
        ports: what this one serves, where that differs from the snapshot's ``ports``; None = it does not.
    """

    name: str
    addresses: tuple[str, ...]
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zone: str = ""
    hostname: str = ""
    node_name: str = ""
    target_ref: ObjectReference | None = None
    hints: Hints | None = None
    ports: tuple[Port, ...] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything an EndpointProvider offers at one moment.

    Attributes:
        endpoints: order does not matter.
        complete: False when parts are missing (rejected rows): may add and change, removes nothing.
        ports: where the source brings its own ports; None otherwise. A Service's named targetPort is looked
            up in here, by the port's name.
        problems: one line for each thing that was left out.
        copied: the endpoints are another Service's and published as they stand, hostnames included.
    """

    endpoints: tuple[SnapshotEndpoint, ...]
    complete: bool = True
    ports: tuple[Port, ...] | None = None
    problems: tuple[str, ...] = ()
    copied: bool = False


class EndpointProvider(Protocol):
    """Brings endpoints of its own instead of resolving Nodes."""

    def watch(self, /) -> AsyncIterator[Snapshot]:
        """Yield a whole snapshot at first and after each change, for ever.

        Raises:
            TransientProviderError: the last snapshot becomes stale; the hub calls ``watch`` again.
            TerminalProviderError: likewise, once the configuration changes.
        """
        ...


class SecretValue(Protocol):
    """A credential by reference; its text is re-read when the source changes."""

    async def get(self, *, reload: bool = False) -> str:
        """The current text; ``reload`` after a 401.

        Raises:
            CredentialError: the source is missing or unreadable.
        """
        ...


class ReadOnlyCluster(Protocol):
    """What a provider may read of a cluster's API."""

    def services(self, namespace: str, name: str) -> AsyncIterator[Service | None]:
        """Follow one Service: its state now, then each change; None while it does not exist."""
        ...

    def slices(self, namespace: str, service: str) -> AsyncIterator[tuple[Slice, ...]]:
        """Follow all EndpointSlices of one Service: complete state now, then after each change."""
        ...


class Completed(Protocol):
    """A program that ended by itself."""

    @property
    def exit_code(self) -> int:
        """Minus the signal's number where a signal ended it."""
        ...

    @property
    def stdout(self) -> bytes:
        """Everything it wrote."""
        ...

    @property
    def stderr(self) -> bytes:
        """May hold secrets: quote it only through :meth:`HubContext.redact`."""
        ...


class HubContext(Protocol):
    """What a provider gets once per hub."""

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        ...

    @property
    def logger(self) -> logging.Logger:
        """A logger of the provider's own name."""
        ...

    @property
    def http(self) -> ClientSession:
        """A session all providers share: no proxy from the environment, no cookies, total timeout 25 s.

        Following a redirect raises ``aiohttp.ClientError``; ``allow_redirects=False`` shows it.
        """
        ...

    async def run_sync(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run a blocking call in the provider's own bounded thread pool."""
        ...

    def secret(self, ref: Mapping[str, str]) -> SecretValue:
        """A credential from ``{"env": NAME}``, ``{"file": PATH}`` or ``{"secret": NAME, "key": KEY}``.

        Raises:
            TerminalProviderError: the reference points outside what the hub's flags allow.
        """
        ...

    def redact(self, text: str) -> str:
        """``text`` as one short line that may appear in an error: no secret this provider read, nothing like one."""
        ...

    def measure(self, name: str, read: Callable[[], Mapping[str, float]], /) -> None:
        """Show numbers in the hub's metrics, as ``endpointslice_hub_provider_NAME{provider, scope}``.

        Args:
            name: lower case, digits and ``_``, at most 40 characters, with the unit at its end (``_seconds``,
                ``_bytes``). One that ends in ``_total`` only grows, and is a counter; any other is a gauge.
                A second call with a name replaces the first; at most 20 names are shown.
            read: the numbers of this moment by scope (a data center, an account; "" for the whole provider),
                at most 1,000. Called in the event loop at every scrape: no I/O, no awaiting.

        Raises:
            TerminalProviderError: the name is not one, or one too many.
        """
        ...

    def check_api_host(self, host: str, default: str) -> None:
        """Allow ``default``, or a host named by ``--allow-api-host``.

        Raises:
            TerminalProviderError: the host is not allowed.
        """
        ...

    def check_program(self, program: str) -> str:
        """The absolute path to run for ``program``, where ``--allow-exec`` names it.

        An absolute path must be named as it is; a bare name stands for a named path that ends in it.

        Raises:
            TerminalProviderError: it is not allowed.
        """
        ...

    async def run_program(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109 - the deadline of a process group, not of an await
        stdout_limit: int = 1 << 20,
        stderr_limit: int = 4096,
    ) -> Completed:
        """Run a program that :meth:`check_program` allows: no shell, own process group, killed when it is late.

        Args:
            argv: the program and its arguments.
            stdin: bytes for its standard input; None = nothing to read.
            env: its whole environment; None = empty.
            timeout: seconds until it is killed with everything it started.
            stdout_limit: bytes; one more and it is killed.
            stderr_limit: likewise.

        Raises:
            TerminalProviderError: it is not allowed.
            TransientProviderError: it could not be started, was late or wrote too much.
        """
        ...


class ClusterContext(Protocol):
    """What a provider gets per (cluster, configuration)."""

    @property
    def hub(self) -> HubContext:
        """The context of the whole hub."""
        ...

    @property
    def name(self) -> str:
        """The cluster's name in the registry."""
        ...

    @property
    def folder(self) -> str:
        """The registry's folder, absolute: relative paths in a configuration start there."""
        ...

    @property
    def api(self) -> ReadOnlyCluster:
        """Read access to the cluster's Services and EndpointSlices."""
        ...

    async def read_file(self, path: str, /, *, limit: int) -> bytes:
        """The content of a file in the registry's folder or ``--credentials-dir``, symlinks followed.

        Args:
            path: absolute, or relative to the registry's folder.
            limit: bytes; a larger file is refused unread.

        Raises:
            TerminalProviderError: it lies elsewhere.
            TransientProviderError: it is missing, unreadable, no regular file, or too large.
        """
        ...

    def changed(self) -> None:
        """Ask for a new pass: all nodes are resolved again soon."""
        ...


NodeField = Literal["addresses", "labels", "provider_id", "system_uuid", "ready", "taints", "unschedulable"]
ALL_FIELDS: frozenset[NodeField] = frozenset(
    ("addresses", "labels", "provider_id", "system_uuid", "ready", "taints", "unschedulable")
)


@dataclass(frozen=True, slots=True)
class GuardDefaults:
    """A provider type's own guard defaults; None keeps the hub's."""

    empty_results: int | None = None
    max_removal: float | Literal["off"] | None = None


@dataclass(frozen=True, slots=True)
class ProviderType:
    """A kind of provider, as returned by :func:`hub_register_providers`.

    Attributes:
        name: equals the entry point's name.
        open: called once per (cluster, configuration) with the context, the validated configuration
            and what ``shared`` yielded; an async context manager around the provider.
        config: pydantic model, or msgspec struct (0.15 s and 15 MB cheaper to import), of ``provider.config``;
            None where there is nothing to configure.
        shared: opened once per hub before the first ``open``; None where nothing is shared.
        brings_endpoints: True for an EndpointProvider.
        poll_interval: seconds between polls of all nodes; None = only when nodes change.
        reads: Node fields an answer depends on; the name always counts.
        guard: defaults for sources of this type.
        scope: what of the world outside a configuration depends on, such as a data center: alerts come once for
            each (provider, scope), not for each cluster; None = there is one for the whole provider.
        api_version: the plugin API it was written for.
    """

    name: str
    open: Callable[[ClusterContext, Any, Any], AbstractAsyncContextManager[NodeProvider | EndpointProvider]]
    config: type[BaseModel | msgspec.Struct] | None = None
    shared: Callable[[HubContext], AbstractAsyncContextManager[Any]] | None = None
    brings_endpoints: bool = False
    poll_interval: float | Callable[[Any], float] | None = None
    reads: frozenset[NodeField] = ALL_FIELDS
    guard: GuardDefaults = field(default_factory=GuardDefaults)
    scope: Callable[[Any], str] | None = None
    api_version: int = API_VERSION


@hookspec
def hub_register_providers() -> Iterable[ProviderType]:
    """Declare the provider types of this distribution. Called once, right after import; do no I/O."""
    return ()


@hookspec
def hub_endpoint_upserted(view: EndpointView) -> None:
    """A view is new or other than before. In order for each view, in the consumer's own thread; may block.

    Called again with backoff until it returns; called anew for every view when a hub starts to write.
    """


@hookspec
def hub_endpoint_deleted(view: EndpointView) -> None:
    """A view that this consumer was told of is gone; ``view`` is what it was told last. Otherwise as above."""


@hookspec
def hub_endpoints_listed(cluster: str, views: Sequence[EndpointView]) -> None:
    """Once after each start, for each cluster: these are all of its views, and all were upserted.

    Whatever else the consumer has of this cluster from an earlier life is gone.
    """
