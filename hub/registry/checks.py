"""Checks of clusters.yaml that need several keys or entries: names, references, combinations.

They work on the plain data and accept any types in it, so that one run reports these problems together with problems of
single values (:mod:`hub.registry.explain`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from hub.errors import did_you_mean
from hub.model import LOCAL
from hub.registry.report import KeyPath, Report, written
from hub.registry.selection import Selection
from hub.registry.values import kind, shown

Raw = Mapping[str, Any]

_ENTRY_KEYS: Final = {"clusters": ("name",), "services": ("namespace", "name")}
_MODES: Final = {
    **dict.fromkeys(("path", "method", "headers", "status"), ("http", "https")),
    "host": ("http", "https", "grpc", "grpcs"),
    "grpcService": ("grpc", "grpcs"),
    **dict.fromkeys(("serverName", "ca", "insecure"), ("https", "grpcs")),
}
"""Key of ``health`` -> the modes that use it; other keys are used by all."""
_COPY_HINT = "such as provider: {name: service-copy, config: {namespace: …, name: …}}"


def entries(data: Raw, section: str, report: Report) -> Iterator[tuple[KeyPath, Raw]]:
    """Yields path and data of each entry of ``clusters`` or ``services``; reports entries that are not mappings."""
    listed = data.get(section, [])
    if not isinstance(listed, list):
        if listed is not None:
            report.add((section,), f"must be a list, not {kind(listed)}", "start each entry with - name:")
        return
    for index, entry in enumerate(listed):
        if isinstance(entry, dict):
            yield (section, index), entry
        elif entry is not None:
            report.add((section, index), f"must be a mapping, not {kind(entry)}", "start it with name:", fatal=True)


def check(data: Raw, report: Report) -> Selection:
    """Report every violation in the whole file; returns the :class:`Selection` of its clusters.

    Call it after the validation of single values: ``report`` must then contain the broken clusters, since selectors
    treat clusters with unreadable labels as selected.
    """
    clusters = list(entries(data, "clusters", report))
    services = list(entries(data, "services", report))
    selection = Selection(entry for _, entry in clusters)
    selection.assume_provider(_broken(clusters, report))
    _unique(clusters, report)
    _unique(services, report)
    _owners(data, report)
    defaults = data.get("defaults")
    if isinstance(defaults, dict):
        _health(("defaults",), defaults, report)
    _formerly(clusters, selection, report)
    for path, cluster in clusters:
        _cluster(path, cluster, report)
    _clouds(clusters, report)
    selection.set_broken(_broken(clusters, report))
    closed = {cluster.get("name") for _, cluster in clusters if "cloud" in cluster and "allowedCIDRs" not in cluster}
    for path, service in services:
        _service(path, service, report)
        _sources(path, service, selection, closed, report)
    _views(data, selection, report)
    _allocations(data, selection, report)
    return selection


def _broken(clusters: list[tuple[KeyPath, Raw]], report: Report) -> Iterator[str]:
    """Names of the clusters with a reported problem."""
    broken = report.broken_entries()
    return (name for path, entry in clusters if path in broken and isinstance(name := entry.get("name"), str))


def _unique(listed: list[tuple[KeyPath, Raw]], report: Report) -> None:
    """Report entries that have the same name; this rejects the whole file."""
    first: dict[tuple[Any, ...], KeyPath] = {}
    for path, entry in listed:
        name = tuple(entry.get(part) for part in _ENTRY_KEYS[str(path[0])])
        if not all(isinstance(part, str) for part in name):
            continue
        if name in first:
            line = report.places[(*first[name], "name")][0]
            message = f"{shown('/'.join(name))} is declared twice"
            report.add((*path, "name"), message, f"first in line {line}")
        first.setdefault(name, path)


def _owners(data: Raw, report: Report) -> None:
    for path, owner in _items(data, "previousOwners", ()):
        if owner == data.get("owner", "default"):
            report.add(path, f"{shown(owner)} is the current owner")


def _formerly(clusters: list[tuple[KeyPath, Raw]], selection: Selection, report: Report) -> None:
    """Report former names that are in use or that two clusters claim."""
    claimed: dict[str, KeyPath] = {}
    for entry_path, cluster in clusters:
        for path, old in _items(cluster, "formerly", entry_path):
            if not isinstance(old, str):
                continue
            if old == LOCAL or old in selection.names:
                report.add(path, f"{shown(old)} is the name of a cluster that exists")
            elif old in claimed:
                report.add(path, f"{shown(old)} is claimed by {written(claimed[old])} too")
            claimed.setdefault(old, path)


def _cluster(path: KeyPath, cluster: Raw, report: Report) -> None:
    _health(path, cluster, report)
    if cluster.get("name") == LOCAL:
        message = "local is built in and cannot be declared: it is the hub cluster"
        report.add((*path, "name"), message, "remove the entry")
    if "allowedCIDRs" not in cluster and ("cloud" not in cluster or "provider" in cluster):
        report.add((*path, "allowedCIDRs"), "is required")
    if "kubeconfig" not in cluster and "provider" not in cluster and "cloud" not in cluster:
        report.add(path, "needs a kubeconfig, or a provider that brings endpoints of its own")
    kubeconfig = cluster.get("kubeconfig")
    if isinstance(kubeconfig, dict):
        _one_of((*path, "kubeconfig"), kubeconfig, ("path", "secret", "inCluster"), report)
        if "inCluster" in kubeconfig and "cloud" not in cluster:
            message = "belongs to a cluster with cloud: as a source, the hub cluster is the built-in cluster local"
            report.add((*path, "kubeconfig", "inCluster"), message, on_key=True)
        if "key" in kubeconfig and "secret" not in kubeconfig:
            report.add((*path, "kubeconfig", "key"), "belongs to a kubeconfig from a Secret", on_key=True)


def _clouds(clusters: list[tuple[KeyPath, Raw]], report: Report) -> None:
    """Report clusters whose objects in one cloud would have the same names."""
    seen: dict[tuple[str, str], list[KeyPath]] = {}
    for path, cluster in clusters:
        cloud = cluster.get("cloud")
        if not isinstance(cloud, dict):
            continue
        if "kubeconfig" not in cluster:
            report.add((*path, "cloud"), "needs a kubeconfig", on_key=True)
        name = cloud.get("clusterName", cluster.get("name"))
        if isinstance(name, str):
            account = json.dumps(cloud.get("provider"), sort_keys=True, default=str)
            seen.setdefault((account, name), []).append(path)
    for (_, name), paths in seen.items():
        for path in paths if len(paths) > 1 else ():
            other = next(written(at) for at in paths if at != path)
            message = f"{shown(name)} is the clusterName of {other} in the same cloud too"
            report.add((*path, "cloud"), message, "give one of them another clusterName", on_key=True)


def _service(path: KeyPath, service: Raw, report: Report) -> None:
    _health(path, service, report)
    failover = service.get("strategy") == "failover"
    if "failover" in service and not failover:
        report.add((*path, "failover"), "needs strategy failover", "add strategy: failover", on_key=True)
    if failover and service.get("policy") == "upsert-only":
        message = "upsert-only cannot be combined with strategy failover: a switch removes the old source"
        report.add((*path, "policy"), message)
    ports = [(at, port) for at, port in _items(service, "ports", path) if isinstance(port, dict)]
    names = Counter(port.get("name") for _, port in ports if isinstance(port.get("name"), str))
    for at, port in ports:
        _one_of(at, port, ("port", "nodePort"), report)
        if "name" not in port and len(ports) > 1:
            report.add(at, "needs a name, since the entry has several ports")
        elif isinstance(name := port.get("name"), str) and names[name] > 1:
            report.add((*at, "name"), f"{shown(name)} is used by several ports")


def _sources(path: KeyPath, service: Raw, selection: Selection, closed: AbstractSet[Any], report: Report) -> None:
    """Check the sources of a service; ``closed`` are the clusters without allowedCIDRs, which cannot be sources."""
    seen: set[str] = set()
    for at, source in _items(service, "sources", path):
        if not isinstance(source, dict):
            continue
        _health(at, source, report)
        _one_of(at, source, ("cluster", "clusterSelector"), report)
        cluster, selector = source.get("cluster"), source.get("clusterSelector")
        if isinstance(cluster, str):
            if cluster in seen:
                report.add((*at, "cluster"), f"{shown(cluster)} is a source already")
            seen.add(cluster)
            if cluster in closed:
                report.add((*at, "cluster"), f"cluster {cluster} has no allowedCIDRs", "write them into its entry")
            _reference(at, cluster, source, selection, report)
            if cluster == LOCAL and "zoneMap" in source:
                message = "has no effect on cluster local, whose zones are those of the hub cluster"
                report.add((*at, "zoneMap"), message, "remove it", on_key=True)
        elif isinstance(selector, dict):
            if shut := sorted(closed & set(selection.select(selector))):
                report.add(
                    (*at, "clusterSelector"), f"cluster {shut[0]} has no allowedCIDRs", "write them into its entry"
                )
            _selector(at, selector, source, selection, report)


def _views(data: Raw, selection: Selection, report: Report) -> None:
    views = data.get("views")
    if not isinstance(views, dict):
        return
    if "annotation" in views and "select" in views:
        hint = "keep one of the two; an expression can look at service.metadata.annotations"
        report.add(("views", "annotation"), "cannot be combined with select", hint, on_key=True)
    for path, name in _items(views, "clusters", ("views",)):
        if isinstance(name, str) and name != LOCAL and name not in selection.names:
            report.add(path, f"no cluster is named {shown(name)}", did_you_mean(name, (*selection.names, LOCAL)))


def _allocations(data: Raw, selection: Selection, report: Report) -> None:
    section = data.get("allocations")
    if not isinstance(section, dict):
        return
    first: dict[str, KeyPath] = {}
    for path, cloud in _items(section, "clouds", ("allocations",)):
        if not isinstance(cloud, dict):
            continue
        name = cloud.get("name")
        if isinstance(name, str) and name in first:
            line = report.places[(*first[name], "name")][0]
            report.add((*path, "name"), f"{shown(name)} is declared twice", f"first in line {line}")
        elif isinstance(name, str):
            first[name] = path
        for at, network in _items(cloud, "addresses", path):
            if isinstance(network, str) and ":" in network:
                report.add(at, f"{shown(network)} is not IPv4; allocations have IPv4 addresses only")
        for at, cluster in _items(cloud, "clusters", path):
            if isinstance(cluster, str) and cluster != LOCAL and cluster not in selection.names:
                report.add(
                    at, f"no cluster is named {shown(cluster)}", did_you_mean(cluster, (*selection.names, LOCAL))
                )


def _health(path: KeyPath, layer: Raw, report: Report) -> None:
    """Report keys of ``health`` that do not fit together.

    Keys that the mode does not use are reported only if the mode is written in the same section.
    """
    health = layer.get("health")
    if not isinstance(health, dict):
        return
    at = (*path, "health")
    mode = health.get("mode")
    for key, modes in _MODES.items():
        if key in health and mode in ("tcp", "http", "https", "grpc", "grpcs") and mode not in modes:
            hint = f"it needs mode {', '.join(modes[:-1])} or {modes[-1]}"
            report.add((*at, key), f"has no effect with mode {mode}", hint, on_key=True)
    if health.get("insecure") is True and "ca" in health:
        report.add((*at, "ca"), "cannot be combined with insecure: true", "keep one of the two", on_key=True)
    if "port" in health and "healthCheckNodePort" in health:
        report.add((*at, "healthCheckNodePort"), "cannot be combined with port", "keep one of the two", on_key=True)
    headers = health.get("headers")
    if isinstance(headers, dict):
        names = Counter(name.lower() for name in headers if isinstance(name, str))
        for name in headers:
            if isinstance(name, str) and names[name.lower()] > 1:
                report.add((*at, "headers", name), f"{shown(name)} is written twice", on_key=True)


def _reference(at: KeyPath, cluster: str, source: Raw, selection: Selection, report: Report) -> None:
    if cluster != LOCAL and cluster not in selection.names:
        hint = did_you_mean(cluster, (*selection.names, LOCAL))
        report.add((*at, "cluster"), f"no cluster is named {shown(cluster)}", hint)
    elif "provider" not in source and cluster == LOCAL:
        report.add(at, "a local source needs a provider of its own", _COPY_HINT)
    elif "provider" not in source and cluster in selection.without_provider:
        report.add(at, f"neither the source nor cluster {cluster} has a provider", "add provider: to one of them")


def _selector(at: KeyPath, selector: Raw, source: Raw, selection: Selection, report: Report) -> None:
    selected = selection.select(selector)
    lacking = [name for name in selected if name in selection.without_provider] if "provider" not in source else []
    if not selected:
        used = selection.labels_in_use()
        hint = (
            f"labels in use: {', '.join(used[:10])}"
            if used
            else "no cluster has labels: add some, or use cluster: NAME"
        )
        report.add((*at, "clusterSelector"), "selects no cluster: none has these labels", hint)
    elif lacking:
        report.add(at, f"neither the source nor cluster {lacking[0]} has a provider", "add provider: to one of them")


def _one_of(path: KeyPath, mapping: Raw, keys: tuple[str, ...], report: Report) -> None:
    """Report a mapping that has several of the keys or none."""
    present = [name for name in keys if name in mapping]
    if len(present) > 1:
        hint = f"keep one of {', '.join(keys[:-1])} and {keys[-1]}"
        report.add((*path, present[1]), f"cannot be combined with {present[0]}", hint, on_key=True)
    elif not present:
        report.add(path, f"needs {', '.join(keys[:-1])} or {keys[-1]}")


def _items(mapping: Raw, name: str, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yields path and data of each item of the list ``mapping[name]``; nothing if it is not a list."""
    listed = mapping.get(name)
    if isinstance(listed, list):
        for index, item in enumerate(listed):
            yield (*path, name, index), item
