"""The plugin API: what a provider author implements. Public, typed, and all there is.

A distribution exposes a module through the entry point group ``hub.providers``; the entry point's name
is the provider's name in clusters.yaml. The module implements one synchronous pluggy hook,
:func:`hub_register_providers`, and returns :class:`NodeProviderType` and :class:`EndpointProviderType` values.
:mod:`hub.plugin.views` has the hooks for consumers of endpoint views. This module must not import anything of
the hub but its values.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

import msgspec
import pluggy

from hub.errors import ProviderError
from hub.model import GuardDefaults, Node, Resolution, Service, Slice, Snapshot
from hub.runtime.clock import Clock

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from pydantic import BaseModel

API_VERSION = 1
"""Raised when a change could break a provider; the deprecation policy is in docs/plugins."""

ENTRY_POINT_GROUP = "hub.providers"
NAMESPACE = "hub"

hookspec = pluggy.HookspecMarker(NAMESPACE)
hookimpl = pluggy.HookimplMarker(NAMESPACE)

T = TypeVar("T")
C = TypeVar("C", bound="BaseModel | msgspec.Struct")
S = TypeVar("S")
P = TypeVar("P")


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
    """What a provider type gets for its event loop: all its clusters share it."""

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
        """A session all clusters of the provider type share: no environment proxy, no cookies, total timeout 25 s.

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
                at most 1,000. Called in the provider's event loop at every scrape: no I/O, no awaiting.

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


class NoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``ProviderType.config`` of a type that has nothing to configure."""


@dataclass(frozen=True, slots=True)
class ProviderType:
    """A kind of provider, as the hub sees it: a :class:`NodeProviderType` or an :class:`EndpointProviderType`.

    Make one of those two. Their constructors tie the types of ``open``, ``config`` and ``shared`` together, so that a
    type checker refuses an ``open`` that does not fit; the hub handles types of all configurations alike.

    Attributes:
        name: equals the entry point's name.
        open: called once per (cluster, configuration) with the context, the validated configuration
            and what ``shared`` yielded (None without it); an async context manager around the provider.
        config: pydantic model, or msgspec struct (0.15 s and 15 MB cheaper to import), of ``provider.config``;
            :class:`NoConfig` where there is nothing to configure.
        shared: opened once before the first ``open``, and again after the type's event loop was replaced; None where
            nothing is shared.
        poll_interval: seconds between polls; None = only when nodes change.
        reads: Node fields an answer depends on; the name always counts. Means nothing for endpoint providers.
        guard: defaults for sources of this type.
        scope: what of the world outside a configuration depends on, such as a data center: alerts come once for
            each (provider, scope), not for each cluster; None = there is one for the whole provider.
        api_version: the plugin API it was written for.
    """

    name: str
    open: Callable[[ClusterContext, Any, Any], AbstractAsyncContextManager[Any]]
    config: type[BaseModel | msgspec.Struct]
    shared: Callable[[HubContext], AbstractAsyncContextManager[Any]] | None = None
    poll_interval: float | Callable[[Any], float] | None = None
    reads: frozenset[NodeField] = ALL_FIELDS
    guard: GuardDefaults = field(default_factory=GuardDefaults)
    scope: Callable[[Any], str] | None = None
    api_version: int = API_VERSION


class _Typed(ProviderType, Generic[C, P]):
    """The constructor that both kinds have: ``C`` is the configuration, ``P`` the provider that ``open`` yields."""

    __slots__ = ()

    @overload
    def __init__(
        self,
        name: str,
        open: Callable[[ClusterContext, C, None], AbstractAsyncContextManager[P]],
        config: type[C],
        *,
        poll_interval: float | Callable[[C], float] | None = None,
        reads: frozenset[NodeField] = ALL_FIELDS,
        guard: GuardDefaults = ...,
        scope: Callable[[C], str] | None = None,
        api_version: int = API_VERSION,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        open: Callable[[ClusterContext, C, S], AbstractAsyncContextManager[P]],
        config: type[C],
        *,
        shared: Callable[[HubContext], AbstractAsyncContextManager[S]],
        poll_interval: float | Callable[[C], float] | None = None,
        reads: frozenset[NodeField] = ALL_FIELDS,
        guard: GuardDefaults = ...,
        scope: Callable[[C], str] | None = None,
        api_version: int = API_VERSION,
    ) -> None: ...

    def __init__(self, name: str, open: Any, config: Any, **more: Any) -> None:  # noqa: A002 - the field's name
        super().__init__(name, open, config, **more)


class NodeProviderType(_Typed[C, NodeProvider]):
    """Its providers resolve Nodes to addresses. See :class:`ProviderType` for the parameters."""

    __slots__ = ()


class EndpointProviderType(_Typed[C, EndpointProvider]):
    """Its providers bring endpoints of their own. See :class:`ProviderType` for the parameters."""

    __slots__ = ()


@hookspec
def hub_register_providers() -> Iterable[ProviderType]:
    """Declare the provider types of this distribution. Called once, right after import; do no I/O."""
    return ()
