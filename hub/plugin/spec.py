"""The plugin API: the types that authors of providers use. Import them from :mod:`hub.plugin`.

A distribution exposes a module through the entry point group ``hub.providers``; the entry point's name is the
provider's name in clusters.yaml. The module implements one synchronous pluggy hook, :func:`hub_register_providers`,
which returns :class:`NodeProviderType` and :class:`EndpointProviderType` values. :mod:`hub.plugin.views` has the hooks
for consumers of endpoint views. Of the hub itself, this module may import only values, errors and the clock's type.
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

    from hub.plugin.addresses import AddressType
    from hub.plugin.clouds import CloudType

API_VERSION = 1
"""Increased by a change that could break a provider; docs/plugins has the deprecation policy."""

ENTRY_POINT_GROUP = "hub.providers"
NAMESPACE = "hub"

hookspec = pluggy.HookspecMarker(NAMESPACE)
hookimpl = pluggy.HookimplMarker(NAMESPACE)

T = TypeVar("T")
C = TypeVar("C", bound="BaseModel | msgspec.Struct")
S = TypeVar("S")
P = TypeVar("P")


class TransientProviderError(ProviderError):
    """The provider cannot answer now; the hub calls it again with backoff.

    Args:
        message: what failed, in words for an operator; never a credential.
        retry_after: shortest time before the next call in seconds, if the provider's API gave one.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TerminalProviderError(ProviderError):
    """The provider cannot answer until its configuration or credentials change."""


class AddressConflict(ProviderError):
    """The address or the instance is not as the order expects; nothing was changed. The hub describes it again."""


class QuotaExceeded(TransientProviderError):
    """The account's rate limit or quota is used up: all its acts wait ``retry_after``, or 5 s doubling to 5 minutes."""


class UnsupportedInstance(ProviderError):
    """The instance can never take the address, for example because of its kind, region or zone."""


class Uncertain(TransientProviderError):
    """The write was sent and has no answer: it may have been made. The hub observes before it goes on."""


class CloudConflict(ProviderError):
    """The object is busy, locked or not as the step expects; nothing was changed. The hub observes again."""


class CloudRefusal(ProviderError):
    """The cloud refuses the write because of what the Service asks for; the hub waits until the Service changes."""


class NodeProvider(Protocol):
    """Resolves remote Nodes to addresses."""

    async def resolve(self, nodes: Sequence[Node], /) -> Mapping[str, Resolution]:
        """Resolve a batch of nodes of one cluster: node name -> resolution. A missing node counts as Unknown.

        The hub calls this with the nodes that changed in a field of ``ProviderType.reads``, or with all nodes on a
        poll, and cancels a call after 30 s. If it raises, all nodes of the batch count as Unknown.

        Raises:
            TransientProviderError: the hub calls again with backoff.
            TerminalProviderError: the hub calls again when the configuration or a credential changes, or after
                :meth:`ClusterContext.changed`.
        """
        ...


class EndpointProvider(Protocol):
    """Provides endpoints itself instead of resolving Nodes."""

    def watch(self, /) -> AsyncIterator[Snapshot]:
        """Yield a whole snapshot first and after each change, without end.

        Raises:
            TransientProviderError: the last snapshot becomes stale, and the hub calls ``watch`` again with backoff.
            TerminalProviderError: the last snapshot becomes stale, and the hub calls ``watch`` again when the
                configuration or a credential changes.
        """
        ...


class SecretValue(Protocol):
    """A credential given by reference; it is read again when its source changes."""

    async def get(self, *, reload: bool = False) -> str:
        """The current text of the credential.

        Args:
            reload: read the source now, for example after a 401.

        Raises:
            CredentialError: the source is missing or unreadable.
        """
        ...


class ReadOnlyCluster(Protocol):
    """The part of a cluster's API that a provider may read."""

    def services(self, namespace: str, name: str) -> AsyncIterator[Service | None]:
        """Follow one Service: yields its present state, then each change; None while it does not exist."""
        ...

    def slices(self, namespace: str, service: str) -> AsyncIterator[tuple[Slice, ...]]:
        """Follow all EndpointSlices of one Service: yields all of them at once, and again after each change."""
        ...


class Completed(Protocol):
    """The result of a program that ended by itself."""

    @property
    def exit_code(self) -> int:
        """The exit code; if a signal ended the program, minus the signal's number."""
        ...

    @property
    def stdout(self) -> bytes:
        """The program's standard output."""
        ...

    @property
    def stderr(self) -> bytes:
        """The program's standard error. It may contain secrets: quote it only through :meth:`HubContext.redact`."""
        ...


class HubContext(Protocol):
    """The hub's services for one provider type; all clusters of the type share them and one event loop."""

    @property
    def clock(self) -> Clock:
        """The clock for intervals, deadlines and sleeping; tests replace it."""
        ...

    @property
    def logger(self) -> logging.Logger:
        """The provider's logger, ``hub.provider.NAME``."""
        ...

    @property
    def http(self) -> ClientSession:
        """The session that all clusters of the type share: no cookies, a total timeout of 25 s, and :meth:`proxy`.

        A redirect raises ``aiohttp.ClientError``; with ``allow_redirects=False`` it is returned as a response.
        """
        ...

    def proxy(self, url: str, /) -> str | None:
        """The proxy to use for ``url``: the environment's, with ``--proxy-from-environment``, or None.

        For plugins that make requests without :attr:`http`. The proxy's URL begins with http:// or https:// and may
        contain a user and a password, so do not show it; :meth:`redact` removes them from texts.

        Raises:
            TerminalProviderError: the environment has a SOCKS proxy, which providers cannot use.
        """
        ...

    async def run_sync(self, function: Callable[..., T], /, *args: Any) -> T:
        """Run a blocking call in a thread; the number of threads is limited for each provider type."""
        ...

    def secret(self, ref: Mapping[str, str]) -> SecretValue:
        """The credential of ``{"env": NAME}``, ``{"file": PATH}`` or ``{"secret": NAME, "key": KEY}``.

        Raises:
            TerminalProviderError: the hub's flags do not allow this reference.
        """
        ...

    def redact(self, text: str) -> str:
        """Shorten a text to one line for an error, without the secrets that this provider read and similar text."""
        ...

    def measure(self, name: str, read: Callable[[], Mapping[str, float]], /) -> None:
        """Add numbers to the hub's metrics, as ``endpointslice_hub_provider_NAME{provider, scope}``.

        Args:
            name: lower case letters, digits and ``_``, at most 40 characters, ending in the unit (``_seconds``,
                ``_bytes``). A name that ends in ``_total`` is a counter, whose numbers only grow; any other is a gauge.
                A second call with a name replaces the first. A provider may use at most 20 names.
            read: returns the present numbers by scope (a data center, an account; "" for the whole provider), at most
                1,000. The hub calls it in the provider's event loop at every scrape, so it must not do I/O.

        Raises:
            TerminalProviderError: the name is not valid, or the provider has too many measures.
        """
        ...

    def check_api_host(self, host: str, default: str) -> None:
        """Raise unless ``host`` is the default or named by ``--allow-api-host``.

        Args:
            host: the host that the configuration names, with or without a port.
            default: the provider's own host, which is always allowed.

        Raises:
            TerminalProviderError: the host is not allowed.
        """
        ...

    def check_program(self, program: str) -> str:
        """The absolute path of a program that ``--allow-exec`` names.

        Args:
            program: an allowed path, or only the file name of an allowed path.

        Raises:
            TerminalProviderError: the program is not allowed.
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
        """Run a program that :meth:`check_program` allows, without a shell and in a process group of its own.

        Args:
            argv: the program and its arguments.
            stdin: bytes for its standard input; None = empty.
            env: its whole environment; None = empty.
            timeout: seconds after which the process group is killed.
            stdout_limit: most bytes of standard output; the process group is killed if the program writes more.
            stderr_limit: the same for standard error.

        Raises:
            TerminalProviderError: the program is not allowed.
            TransientProviderError: the program could not be started, took too long or wrote too much.
        """
        ...


class ClusterContext(Protocol):
    """The hub's services for one (cluster, configuration)."""

    @property
    def hub(self) -> HubContext:
        """The context of the provider type."""
        ...

    @property
    def name(self) -> str:
        """The cluster's name in the registry."""
        ...

    @property
    def folder(self) -> str:
        """The absolute path of the registry's folder, to which relative paths in a configuration refer."""
        ...

    @property
    def api(self) -> ReadOnlyCluster:
        """Read access to the cluster's Services and EndpointSlices."""
        ...

    async def read_file(self, path: str, /, *, limit: int) -> bytes:
        """The content of a file in the registry's folder or ``--credentials-dir``.

        Args:
            path: absolute, or relative to the registry's folder.
            limit: most bytes; a larger file is not read.

        Raises:
            TerminalProviderError: the file, after following symlinks, is in neither folder.
            TransientProviderError: the file is missing, unreadable, too large, or not a regular file.
        """
        ...

    def changed(self) -> None:
        """Make the hub resolve all nodes again soon."""
        ...


NodeField = Literal["addresses", "labels", "provider_id", "system_uuid", "ready", "taints", "unschedulable"]
ALL_FIELDS: frozenset[NodeField] = frozenset(
    ("addresses", "labels", "provider_id", "system_uuid", "ready", "taints", "unschedulable")
)


class NoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``ProviderType.config`` of a type without configuration."""


@dataclass(frozen=True, slots=True)
class ProviderType:
    """A provider type: a :class:`NodeProviderType`, an :class:`EndpointProviderType`, or one with other capabilities.

    Plugins construct one of the first two, whose constructors relate the types of ``open``, ``config`` and ``shared``,
    so that a type checker refuses an ``open`` that does not fit; or ``ProviderType(name, addresses=AddressType(...))``
    or ``ProviderType(name, cloud=...)``.

    Attributes:
        name: the same as the entry point's name.
        open: called once for each (cluster, configuration) with the context, the validated configuration and the value
            that ``shared`` yielded (None without it); returns an async context manager that yields the provider. None =
            the type has ``addresses`` or ``cloud`` only.
        config: the model of ``provider.config``: a pydantic model, or a msgspec struct, which imports 0.15 s faster and
            takes 15 MB less memory; :class:`NoConfig` if there is nothing to configure.
        shared: opened once before the first ``open``, and again after the type's event loop was replaced; None = the
            clusters share nothing.
        poll_interval: seconds between polls of all nodes, or a function of the configuration; None = no polls, only
            calls for changed nodes.
        reads: Node fields that an answer depends on, besides the name. Without effect for endpoint providers.
        guard: defaults of the guard for sources of this type.
        scope: returns the external system that a configuration depends on, such as a data center: alerts come once for
            each (provider, scope) instead of once for each cluster; None = one scope for the whole provider.
        api_version: the version of the plugin API that the type was written for.
        addresses: the capability to attach reserved addresses to nodes, see :mod:`hub.plugin.addresses`; None = the
            type does not have it.
        cloud: returns the capability of a cloud controller, see :mod:`hub.plugin.clouds`; None = the type does not have
            it. The hub calls this once, when a cluster first uses it.
    """

    name: str
    open: Callable[[ClusterContext, Any, Any], AbstractAsyncContextManager[Any]] | None = None
    config: type[BaseModel | msgspec.Struct] = NoConfig
    shared: Callable[[HubContext], AbstractAsyncContextManager[Any]] | None = None
    poll_interval: float | Callable[[Any], float] | None = None
    reads: frozenset[NodeField] = ALL_FIELDS
    guard: GuardDefaults = field(default_factory=GuardDefaults)
    scope: Callable[[Any], str] | None = None
    api_version: int = API_VERSION
    addresses: AddressType | None = None
    cloud: Callable[[], CloudType] | None = None


class _Typed(ProviderType, Generic[C, P]):
    """The constructor of both kinds: ``C`` is the type of the configuration, ``P`` of the provider."""

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
        addresses: AddressType | None = None,
        cloud: Callable[[], CloudType] | None = None,
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
        addresses: AddressType | None = None,
        cloud: Callable[[], CloudType] | None = None,
    ) -> None: ...

    def __init__(self, name: str, open: Any, config: Any, **more: Any) -> None:  # noqa: A002 - the field's name
        super().__init__(name, open, config, **more)


class NodeProviderType(_Typed[C, NodeProvider]):
    """A type whose providers resolve Nodes to addresses. See :class:`ProviderType` for the parameters."""

    __slots__ = ()


class EndpointProviderType(_Typed[C, EndpointProvider]):
    """A type whose providers provide endpoints themselves. See :class:`ProviderType` for the parameters."""

    __slots__ = ()


@hookspec
def hub_register_providers() -> Iterable[ProviderType]:
    """Return the provider types of this module. The hub calls this once, right after import; it must not do I/O."""
    return ()
