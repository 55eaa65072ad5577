"""Lists the installed provider types, and imports those that the registry names.

Entry points of group ``hub.providers`` are listed without importing them. A type is imported when it is first needed,
in its own daemon thread and with a deadline: plugin code may hang, raise anything or call ``sys.exit``, which must
affect only the clusters that use it. A failed import is not repeated in this process, since a partly imported module
may be inconsistent. The result of an import that ends after its deadline is used from then on.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from pluggy import PluginValidationError

from hub.errors import ProviderError, did_you_mean
from hub.model import GuardDefaults
from hub.plugin.config import is_model, schema
from hub.plugin.hooks import plugin_manager
from hub.plugin.spec import (
    ALL_FIELDS,
    API_VERSION,
    ENTRY_POINT_GROUP,
    EndpointProviderType,
    NodeProviderType,
    ProviderType,
    TerminalProviderError,
)

if TYPE_CHECKING:
    from hub.plugin.clouds import CloudType

log = logging.getLogger(__name__)

IMPORT_DEADLINE: Final = 10.0
"""Seconds for an import and its hook; large cloud SDKs take 2 to 3 s on a slow machine."""

SUPPORTED_API: Final = frozenset({API_VERSION})
"""Values of ``ProviderType.api_version`` that this hub supports."""

Fault = Literal["import-failed", "import-stalled", "wrong-hook", "wrong-type", "unsupported-api"]
EntryState = Literal["ok", "unused", "name-taken"] | Fault


class ProviderUnavailable(ProviderError):
    """The provider type ``name`` cannot be used: it is not installed, broken, stalling or ambiguous."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"provider {name!r}: {message}")
        self.name = name


class CatalogEntry(msgspec.Struct, frozen=True):
    """One installed entry point.

    Attributes:
        name: the provider's name.
        distribution: name of the distribution that declares it; "" if its metadata is broken.
        version: version of that distribution.
        module: value of the entry point, the module to import.
        state: ``unused`` until it is first loaded, then ``ok`` or a fault: ``name-taken`` (several distributions
            provide it), ``import-failed``, ``import-stalled``, ``wrong-hook`` (missing, misspelt, other parameters),
            ``wrong-type`` (the hook's result is not a valid type), ``unsupported-api``.
        error: why it cannot be used; "" if it can.
        file: the module's file; "" if not known.
        type: the loaded type; None while not loaded.
    """

    name: str
    distribution: str
    version: str
    module: str
    state: EntryState
    error: str = ""
    file: str = ""
    type: ProviderType | None = None

    @property
    def brings_endpoints(self) -> bool:
        """Whether the type is an EndpointProviderType; False while not loaded."""
        return isinstance(self.type, EndpointProviderType)

    @property
    def purposes(self) -> tuple[str, ...]:
        """``resolve nodes`` or ``bring endpoints``, ``addresses``, ``cloud controller``; () while not loaded."""
        if self.type is None:
            return ()
        nodes = "bring endpoints" if self.brings_endpoints else "resolve nodes"
        has = {nodes: self.type.open, "addresses": self.type.addresses, "cloud controller": self.type.cloud}
        return tuple(purpose for purpose, capability in has.items() if capability is not None)

    def schema(self) -> Mapping[str, Any] | None:
        """JSON Schema of ``provider.config``; None if there is none, while not loaded, or if it cannot be generated."""
        return _schema(self.type.config) if self.type is not None and self.type.open is not None else None

    def account_schema(self) -> Mapping[str, Any] | None:
        """As :meth:`schema`, for the ``config`` of an account of ``allocations.clouds``."""
        addresses = self.type.addresses if self.type is not None else None
        return _schema(addresses.config) if addresses is not None else None

    def cloud_schema(self) -> Mapping[str, Any] | None:
        """As :meth:`schema`, for ``clusters[].cloud.provider.config``."""
        if self.type is None or self.type.cloud is None:
            return None
        try:
            return _schema(cloud_type(self.type).config)
        except ProviderError:
            return None


def _schema(model: Any) -> Mapping[str, Any] | None:
    try:
        return schema(model)
    except Exception:  # noqa: BLE001 - plugin code must not break a listing, which does not need the schema
        return None


class Catalog:
    """The installed provider types.

    Args:
        find: returns the entry points; None = those of all installed distributions.
        deadline: seconds that an import may take.
    """

    def __init__(
        self,
        find: Callable[[], Iterable[importlib.metadata.EntryPoint]] | None = None,
        deadline: float = IMPORT_DEADLINE,
    ) -> None:
        self._find = find or installed
        self._deadline = deadline
        self._lock = threading.Lock()
        self._points: dict[str, list[importlib.metadata.EntryPoint]] | None = None
        self._loads: dict[str, _Load] = {}
        self._logged: dict[str, str] = {}

    def names(self) -> tuple[str, ...]:
        """All installed names, sorted."""
        return tuple(sorted(self._index()))

    def entries(self) -> tuple[CatalogEntry, ...]:
        """Every installed entry point with its present state, sorted by name and distribution."""
        return tuple(
            entry
            for _, points in sorted(self._index().items())
            for entry in sorted(map(self._entry, points), key=_order)
        )

    def owners(self) -> Mapping[str, tuple[str, ...]]:
        """Module or package that was imported for providers -> the names of these providers."""
        with self._lock:
            loads = tuple(self._loads.values())
        owners: dict[str, tuple[str, ...]] = {}
        for load in loads:
            place = _package(load.point.module)
            owners[place] = (*owners.get(place, ()), load.point.name)
        return owners

    def load(self, name: str) -> ProviderType:
        """Return the type called ``name``; import it if necessary. Blocks up to the deadline.

        Raises:
            ProviderUnavailable: the type cannot be used; the message says why and what to do.
        """
        load = self._start(name)
        load.wait(load.remaining(self._deadline))
        return load.result(self._deadline)

    async def load_async(self, name: str) -> ProviderType:
        """As :meth:`load`, without blocking the event loop; a problem is logged once, not once for each cluster."""
        try:
            return await self._load_async(name)
        except ProviderUnavailable as error:
            if self._logged.get(name) != str(error):
                self._logged[name] = str(error)
                log.warning("%s", error)
            raise

    async def _load_async(self, name: str) -> ProviderType:
        load = self._start(name)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def finished(_: Future[ProviderType]) -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the loop has ended
                log.debug("provider %r finished importing after the hub ended", name)

        load.future.add_done_callback(finished)
        if not load.future.done():
            try:
                async with asyncio.timeout(load.remaining(self._deadline)):
                    await done.wait()
            except TimeoutError:
                log.debug("provider %r is still importing", name)
        return load.result(self._deadline)

    def _index(self) -> dict[str, list[importlib.metadata.EntryPoint]]:
        with self._lock:
            if self._points is None:
                self._points = {}
                for point in self._find():
                    self._points.setdefault(point.name, []).append(point)
            return self._points

    def _start(self, name: str) -> _Load:
        points = self._index().get(name)
        if not points:
            hint = did_you_mean(name, self._index(), "install it; hub providers lists what is there")
            raise ProviderUnavailable(name, f"no installed distribution provides it ({hint})")
        if len(points) > 1:
            raise ProviderUnavailable(name, _duplicates(points))
        with self._lock:
            load = self._loads.get(name)
            if load is None:
                load = self._loads[name] = _Load(points[0])
                load.start()
            return load

    def _entry(self, point: importlib.metadata.EntryPoint) -> CatalogEntry:
        distribution, version = _distribution(point)
        state: EntryState = "unused"
        error, type_ = "", None
        points = self._index()[point.name]
        load = self._loads.get(point.name)
        if len(points) > 1:
            state, error = "name-taken", _duplicates(points)
        elif load is not None:
            try:
                type_ = load.result(self._deadline)
                state = "ok"
            except ProviderUnavailable as problem:
                cause = problem.__cause__
                state = cause.fault if isinstance(cause, _Refused) else "import-stalled"
                error = str(problem)
        return CatalogEntry(point.name, distribution, version, point.value, state, error, _file(point), type_)


def installed() -> Iterable[importlib.metadata.EntryPoint]:
    """Entry points of group ``hub.providers`` of all installed distributions."""
    return importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)


class _Load:
    """An import that is running or finished."""

    def __init__(self, point: importlib.metadata.EntryPoint) -> None:
        self.point = point
        self.future: Future[ProviderType] = Future()
        self._since = 0.0

    def start(self) -> None:
        # Not the Clock: the simulated time of a test does not apply to a real thread.
        self._since = time.monotonic()
        threading.Thread(target=self._run, name=f"import provider {self.point.name}", daemon=True).start()

    def remaining(self, deadline: float) -> float:
        return max(0.0, self._since + deadline - time.monotonic())

    def wait(self, seconds: float) -> None:
        done = threading.Event()
        self.future.add_done_callback(lambda _: done.set())
        done.wait(seconds)

    def result(self, deadline: float) -> ProviderType:
        error = self.future.exception() if self.future.done() else None
        if self.future.done() and error is None:
            return self.future.result()
        name = self.point.name
        distribution, version = _distribution(self.point)
        origin = f"{distribution} {version}".strip() or self.point.value
        if error is None:
            raise ProviderUnavailable(name, f"{origin}: importing {self.point.value} did not end within {deadline:g} s")
        raise ProviderUnavailable(name, f"{origin}: {error}") from error

    def _run(self) -> None:
        try:
            self.future.set_result(_import(self.point))
        except BaseException as error:
            log.debug("provider %r cannot be loaded", self.point.name, exc_info=error)
            refused = error if isinstance(error, _Refused) else _Refused("wrong-type", _describe(error))
            self.future.set_exception(refused)


class _Refused(Exception):
    """A plugin is not accepted; the message tells its author why."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


def _import(point: importlib.metadata.EntryPoint) -> ProviderType:
    try:
        module = point.load()
    except BaseException as error:
        raise _Refused("import-failed", f"importing {point.value} failed: {_describe(error)}") from error
    manager = plugin_manager()
    try:
        manager.register(module, name=point.name)
        manager.check_pending()
    except PluginValidationError as error:
        raise _Refused("wrong-hook", f"wrong hook: {error}") from error
    if not manager.hook.hub_register_providers.get_hookimpls():
        raise _Refused("wrong-hook", f"{point.value} implements no hub_register_providers hook (is @hookimpl missing?)")
    try:
        types = [type_ for answer in manager.hook.hub_register_providers() for type_ in answer]
    except BaseException as error:
        raise _Refused("wrong-hook", f"hub_register_providers failed: {_describe(error)}") from error
    return _choose(point, types)


def _choose(point: importlib.metadata.EntryPoint, types: list[Any]) -> ProviderType:
    for type_ in types:
        if not isinstance(type_, NodeProviderType | EndpointProviderType) and not _without_nodes(type_):
            kind = type(type_).__name__
            raise _Refused(
                "wrong-type",
                f"hub_register_providers returned {kind}, neither NodeProviderType nor EndpointProviderType"
                " nor a ProviderType with addresses or cloud only",
            )
    mine: list[ProviderType] = [type_ for type_ in types if type_.name == point.name]
    if len(mine) != 1:
        names = ", ".join(repr(type_.name) for type_ in types) or "nothing"
        raise _Refused(
            "wrong-type", f"the entry point is called {point.name!r}, but hub_register_providers returned {names}"
        )
    check_type(mine[0])
    return mine[0]


def _without_nodes(type_: Any) -> bool:
    """Whether it is a type with other capabilities only."""
    capable = isinstance(type_, ProviderType) and (type_.addresses is not None or type_.cloud is not None)
    return capable and type_.open is None


def cloud_type(type_: ProviderType) -> CloudType:
    """The type's capability of a cloud controller. Calls plugin code: use it in the provider's loop.

    Raises:
        TerminalProviderError: it has none, or its declaration does not follow the plugin API.
    """
    from hub.plugin.clouds import CloudType

    if type_.cloud is None:
        raise TerminalProviderError(
            f"provider {type_.name!r} is no cloud controller; hub providers lists those with the capability"
        )
    found: Any = type_.cloud()
    config: Any = getattr(found, "config", None)
    if not isinstance(found, CloudType) or not is_model(config):
        raise TerminalProviderError(f"provider {type_.name!r}: ProviderType.cloud does not return a CloudType")
    if "id" not in found.provider_id.groupindex:
        raise TerminalProviderError(f"provider {type_.name!r}: CloudType.provider_id has no group named id")
    return found


def check_type(type_: ProviderType) -> None:
    """Check that a type's declaration follows the plugin API.

    Raises:
        Exception: it does not; the message is for the plugin's author.
    """
    if type_.api_version not in SUPPORTED_API:
        raise _Refused(
            "unsupported-api", f"written for plugin API {type_.api_version}, this hub supports {API_VERSION}"
        )
    if not callable(type_.open) and not _without_nodes(type_):
        raise _Refused("wrong-type", "ProviderType.open is not callable")
    if type_.shared is not None and not callable(type_.shared):
        raise _Refused("wrong-type", "ProviderType.shared is not callable")
    config: Any = type_.config
    if not is_model(config):
        raise _Refused("wrong-type", "ProviderType.config is neither a pydantic model nor a msgspec struct")
    if type_.cloud is not None and not callable(type_.cloud):
        raise _Refused("wrong-type", "ProviderType.cloud is not a function that returns a CloudType")
    if type_.addresses is not None:
        _check_addresses(type_.addresses)
    if not isinstance(type_.guard, GuardDefaults):
        raise _Refused("wrong-type", "ProviderType.guard is not GuardDefaults")
    if unknown := set(type_.reads) - ALL_FIELDS:
        raise _Refused("wrong-type", f"ProviderType.reads names unknown fields: {', '.join(sorted(map(str, unknown)))}")
    poll: Any = type_.poll_interval
    if poll is not None and not callable(poll) and not (isinstance(poll, int | float) and poll > 0):
        raise _Refused(
            "wrong-type", "ProviderType.poll_interval is neither positive seconds nor a function of the configuration"
        )


def _check_addresses(type_: Any) -> None:
    """As :func:`check_type`, for ``ProviderType.addresses``.

    Reads attributes only, since a hub without allocations must not import the type.
    """
    if not callable(getattr(type_, "open", None)) or not is_model(getattr(type_, "config", None)):
        raise _Refused("wrong-type", "ProviderType.addresses is not an AddressType")
    if unknown := set(type_.cuts) - {"source", "target"}:
        raise _Refused("wrong-type", f"AddressType.cuts has unknown names: {', '.join(sorted(map(str, unknown)))}")
    if not (isinstance(type_.poll_floor, int | float) and type_.poll_floor > 0):
        raise _Refused("wrong-type", "AddressType.poll_floor is not positive seconds")


def _package(module: str) -> str:
    """The outermost package of a plugin's module that is not a namespace package; without one, the module."""
    parts = module.split(".")
    if parts[0] == "hub":  # the built-in demonstration plugin: the rest of package hub is not its code
        return module
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        if getattr(sys.modules.get(package), "__file__", None):
            return package
    return module


def _describe(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _distribution(point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    try:
        return (point.dist.name or "", point.dist.version or "") if point.dist is not None else ("", "")
    except Exception:  # noqa: BLE001 - metadata may be unreadable
        return "", ""


def _duplicates(points: list[importlib.metadata.EntryPoint]) -> str:
    owners = ", ".join(sorted(" ".join(_distribution(point)).strip() or point.value for point in points))
    return f"several distributions provide it: {owners}; uninstall all but one"


def _order(entry: CatalogEntry) -> tuple[str, str, str]:
    return entry.name, entry.distribution, entry.module


def _file(point: importlib.metadata.EntryPoint) -> str:
    loaded = sys.modules.get(point.module)
    if loaded is not None:
        return getattr(loaded, "__file__", None) or ""
    if "." in point.module:  # finding a submodule would import its parent
        return ""
    try:
        found = importlib.util.find_spec(point.module)
    except Exception:  # noqa: BLE001 - an import finder may be code of any package
        return ""
    return (found.origin or "") if found is not None else ""
