"""The checks of ``hub check`` that the registry's loader does not make.

The loader knows nothing about plugins. This module looks up every named provider and checks its configuration with
the plugin's own model, reporting the line of each key; it also loads every named consumer of endpoint views.
Warnings are about entries that work but are probably mistakes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final

from hub.cli.limits import available, needed
from hub.errors import Problem, RegistryError
from hub.model import LOCAL
from hub.observe.providers.catalog import IMPORT_DEADLINE, Catalog, ProviderUnavailable, cloud_type
from hub.observe.providers.config import ConfigProblem, check_config
from hub.plugin.spec import EndpointProviderType, ProviderType, TerminalProviderError
from hub.registry.file import checked_size, read
from hub.registry.load import loads
from hub.registry.positions import parse
from hub.registry.report import KeyPath, Place, Report, written
from hub.registry.spec import CloudSpec, Network, Registry

MAX_OVERLAPS: Final = 20
"""Maximum number of warnings about overlapping networks: if every cluster allows everything, all pairs overlap."""

Named = tuple[KeyPath, dict[str, Any], tuple[str, ...]]
"""Path of a ``provider:`` key, its content, and the clusters it applies to."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of a check.

    Attributes:
        registry: None if the file cannot be used at all.
        problems: in file order.
        warnings: in file order; without a hint.
    """

    registry: Registry | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()


def examine(file: str, content: bytes | None = None) -> Examined:
    """Check a registry file, and the providers and consumers it names.

    Args:
        file: the file's path.
        content: the registry if it is not in a file; then ``file`` is its name in messages.

    Raises:
        RegistryError: the file cannot be read.
    """
    content = checked_size(content, file) if content is not None else read(file)
    try:
        loaded = loads(content, file)
    except RegistryError as error:
        return Examined(None, error.problems)
    report = Report(file)
    data = parse(content.decode("utf-8-sig"), report)
    problems = _providers(data, loaded.registry, report.places, file)
    warnings = Report(file, report.places)
    _overlaps(data, loaded.registry, warnings)
    _files(loaded.registry, warnings)
    every = sorted({*loaded.problems, *problems, *_hooks(data, loaded.registry, report.places, file)})
    return Examined(loaded.registry, tuple(every), warnings.problems)


# --- providers ---------------------------------------------------------------------------------------


def _providers(data: Any, registry: Registry, places: Mapping[KeyPath, Place], file: str) -> Iterator[Problem]:
    named, accounts, clouds = list(_named(data, registry)), list(_accounts(data)), list(_clouds(data))
    names = {body["name"] for _, body, _ in (*named, *clouds)}
    types = _load(names | {account["provider"] for _, account in accounts})
    known = {
        written(path): place
        for path, place in places.items()
        if "provider" in path or path[:2] == ("allocations", "clouds")
    }
    for path, account in accounts:
        yield from _account(types[account["provider"]], account, path, known, file)
    for path, body, clusters in clouds:
        controlled = registry.clusters.get(clusters[0]) if clusters else None
        spec = controlled.cloud if controlled is not None else None
        yield from _cloud(types[body["name"]], body, spec, path, known, file)
    for path, body, clusters in named:
        kind = types[body["name"]]
        name = written((*path, "name"))
        if isinstance(kind, ProviderUnavailable):
            yield Problem(file, *_place(name, known), name, str(kind))
            continue
        if kind.open is None:
            message = f"provider {kind.name} resolves no nodes: it attaches addresses"
            yield Problem(file, *_place(name, known), name, message, "name it in allocations.clouds")
            continue
        yield from _config(check_config(kind, body.get("config") or {}, written((*path, "config"))), known, file)
        specs = (registry.clusters[cluster] for cluster in clusters if cluster in registry.clusters)
        if isinstance(kind, EndpointProviderType):
            continue
        followed = next((cluster for cluster in specs if cluster.kubeconfig is None), None)
        if followed is not None:
            if followed.name == LOCAL:
                reason, hint = "is the hub cluster, whose Nodes are not read", "use a provider such as service-copy"
            else:
                reason, hint = "has no kubeconfig", "give the cluster a kubeconfig"
            message = f"provider {kind.name} finds addresses of Nodes, and cluster {followed.name} {reason}"
            yield Problem(file, *_place(name, known), name, message, hint)


def _config(problems: Iterable[ConfigProblem], known: Mapping[str, Place], file: str) -> Iterator[Problem]:
    for problem in problems:
        place = _place(problem.path, known, on_key=problem.message == "unknown key")
        yield Problem(file, *place, problem.path, problem.message, problem.hint)


def _account(
    kind: ProviderType | ProviderUnavailable,
    account: Mapping[str, Any],
    path: KeyPath,
    known: Mapping[str, Place],
    file: str,
) -> Iterator[Problem]:
    """The problems with the provider of an account of ``allocations.clouds``."""
    name = written((*path, "provider"))
    if isinstance(kind, ProviderUnavailable):
        yield Problem(file, *_place(name, known), name, str(kind))
    elif kind.addresses is None:
        message = f"provider {kind.name} attaches no addresses"
        yield Problem(file, *_place(name, known), name, message, "hub providers shows which ones do")
    else:
        config, at = account.get("config") or {}, written((*path, "config"))
        yield from _config(check_config(kind, config, at, kind.addresses.config), known, file)


def _cloud(
    kind: ProviderType | ProviderUnavailable,
    body: Mapping[str, Any],
    spec: CloudSpec | None,
    path: KeyPath,
    known: Mapping[str, Place],
    file: str,
) -> Iterator[Problem]:
    """The problems with the provider of ``clusters[].cloud``."""
    name = written((*path, "name"))
    if isinstance(kind, ProviderUnavailable):
        yield Problem(file, *_place(name, known), name, str(kind))
        return
    try:
        cloud = cloud_type(kind)
    except TerminalProviderError as error:
        yield Problem(file, *_place(name, known), name, str(error))
        return
    yield from _config(
        check_config(kind, body.get("config") or {}, written((*path, "config")), cloud.config), known, file
    )
    for part, key, asked in (
        ("nodes", "nodes", spec is not None and spec.nodes is not None),
        ("load-balancers", "loadBalancers", spec is not None and spec.balancers is not None),
    ):
        if asked and part not in cloud.parts:
            message = f"cloud {kind.name} has no {part.replace('-', ' ')}"
            yield Problem(file, *_place(name, known), name, message, f"write cloud.{key}: off")


def _clouds(data: Any) -> Iterator[Named]:
    """Every cloud that a cluster names; broken entries are left to the loader."""
    for index, cluster in _entries(data, "clusters"):
        if isinstance(section := cluster.get("cloud"), dict):
            yield from _provider(section, ("clusters", index, "cloud"), _texts(cluster.get("name")))


def _accounts(data: Any) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Every account that names a provider; broken entries are left to the loader."""
    section = data.get("allocations") if isinstance(data, dict) else None
    for index, account in _entries(section, "clouds"):
        if isinstance(account.get("provider"), str) and isinstance(account.get("config") or {}, dict):
            yield ("allocations", "clouds", index), account


def _named(data: Any, registry: Registry) -> Iterator[Named]:
    """Every provider the file names; broken entries are left to the loader."""
    for index, cluster in _entries(data, "clusters"):
        yield from _provider(cluster, ("clusters", index), _texts(cluster.get("name")))
    for index, service in _entries(data, "services"):
        sources = list(_entries(service, "sources"))
        named = {name for _, source in sources for name in _texts(source.get("cluster"))}
        for number, source in sources:
            clusters = _texts(source.get("cluster")) or _selected(source.get("clusterSelector"), named, registry)
            yield from _provider(source, ("services", index, "sources", number), clusters)


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else ()


def _selected(selector: Any, named: set[str], registry: Registry) -> tuple[str, ...]:
    """Clusters that a selector matches, except those that another source names."""
    if not isinstance(selector, dict):
        return ()
    return tuple(
        name
        for name, spec in registry.clusters.items()
        if name != LOCAL and name not in named and selector.items() <= spec.labels.items()
    )


def _entries(data: Any, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    listed = data.get(key) if isinstance(data, dict) else None
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(entry, dict):
            yield index, entry


def _provider(entry: Mapping[str, Any], path: KeyPath, clusters: tuple[str, ...]) -> Iterator[Named]:
    body = entry.get("provider")
    if isinstance(body, dict) and isinstance(body.get("name"), str) and isinstance(body.get("config") or {}, dict):
        yield (*path, "provider"), body, clusters


def _load(names: set[str]) -> dict[str, ProviderType | ProviderUnavailable]:
    """The types, imported concurrently."""
    catalog = Catalog()

    async def load(name: str) -> ProviderType | ProviderUnavailable:
        try:
            return await catalog.load_async(name)
        except ProviderUnavailable as error:
            return error

    async def load_all() -> dict[str, ProviderType | ProviderUnavailable]:
        order = sorted(names)
        return dict(zip(order, await asyncio.gather(*map(load, order)), strict=True))

    return asyncio.run(load_all())


# --- consumers of endpoint views ---------------------------------------------------------------------


def _hooks(data: Any, registry: Registry, places: Mapping[KeyPath, Place], file: str) -> Iterator[Problem]:
    if registry.views is None or not registry.views.hooks:
        return
    wrong = _unusable(registry.views.hooks)
    for index, name in enumerate(data["views"]["hooks"]):
        if message := wrong.get(name):
            path: KeyPath = ("views", "hooks", index)
            yield Problem(file, *places.get(path, (0, 0))[:2], written(path), f"consumer {name!r}: {message}")


def _unusable(names: Iterable[str]) -> dict[str, str]:
    """Why consumers cannot be used; each is imported in a daemon thread, which cannot block the command's exit."""
    from hub.views import consumers

    def load(name: str, result: Future[str]) -> None:
        try:
            consumers.load(name)
        except consumers.ConsumerUnavailable as error:
            result.set_result(str(error))
        except BaseException as error:  # noqa: BLE001 - foreign code
            result.set_result(f"cannot be loaded: {consumers.describe(error)}")
        else:
            result.set_result("")

    loads: dict[str, Future[str]] = {name: Future() for name in names}
    for name, result in loads.items():
        threading.Thread(target=load, args=(name, result), name=f"import consumer {name}", daemon=True).start()
    wait(loads.values(), IMPORT_DEADLINE)
    late = f"its import did not end within {IMPORT_DEADLINE:g} s"
    return {name: result.result() if result.done() else late for name, result in loads.items()}


# --- places ------------------------------------------------------------------------------------------


def _place(text: str, known: Mapping[str, Place], *, on_key: bool = False) -> tuple[int, int]:
    """Line and column of the longest known path that ``text`` starts with."""
    exact = text in known
    while text and text not in known:
        text = text[: max(text.rfind("."), text.rfind("["), 0)]
    place = known.get(text, (0, 0, 0, 0))
    return place[2:] if on_key and exact else place[:2]


# --- warnings ----------------------------------------------------------------------------------------


def _overlaps(data: Any, registry: Registry, report: Report) -> None:
    """Warn of overlapping networks. Networks are nested or disjoint, so one sorted pass with a stack finds them all."""
    order: list[tuple[int, int, int, str, KeyPath, Network]] = []
    for index, raw in _entries(data, "clusters"):
        spec = registry.clusters.get(str(raw.get("name")))
        for number, network in enumerate(spec.allowed_cidrs if spec is not None else ()):
            path: KeyPath = ("clusters", index, "allowedCIDRs", number)
            start = int(network.network_address)
            order.append((network.version, start, network.prefixlen, raw["name"], path, network))
    enclosing: list[tuple[str, Network]] = []
    overlaps = 0
    for _, _, _, name, path, network in sorted(order, key=lambda entry: entry[:4]):
        while enclosing and not _within(network, enclosing[-1][1]):
            enclosing.pop()
        other = next((outer for outer in reversed(enclosing) if outer[0] != name), None)
        enclosing.append((name, network))
        if other is not None:
            overlaps += 1
            if overlaps <= MAX_OVERLAPS:
                report.add(path, f"{network} of {name} overlaps {other[1]} of {other[0]}")
    if overlaps > MAX_OVERLAPS:
        report.add(("clusters",), f"{overlaps - MAX_OVERLAPS} more networks of two clusters overlap")


def _within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.network_address in outer and inner.prefixlen >= outer.prefixlen


def _files(registry: Registry, report: Report) -> None:
    clusters = sum(spec.kubeconfig is not None for spec in registry.clusters.values())
    if available() < needed(clusters):
        report.add(
            ("clusters",),
            f"{clusters} clusters need about {needed(clusters)} open files, a process may have {available()} here: "
            "raise the limit (ulimit -Hn)",
        )
