"""Builds the frozen specs of :mod:`hub.registry.spec` from validated models: precedence, selectors, paths.

Equal specs are built once and shared. So 2,000 services that each select the same 500 clusters hold one million
references to 500 source specs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

from hub.model import LOCAL, ObjectKey, TargetKey
from hub.registry import models
from hub.registry.selection import Selection
from hub.registry.spec import (
    AccountSpec,
    AllocationLimits,
    AllocationsSpec,
    AnnotationPolicy,
    CloudBalancersSpec,
    CloudNodesSpec,
    CloudSpec,
    ClusterSpec,
    CopyRule,
    FailoverPolicy,
    GuardPolicy,
    HealthPolicy,
    KubeconfigInCluster,
    KubeconfigPath,
    KubeconfigSecret,
    NodePolicy,
    NodePortRef,
    PortSpec,
    ProviderRef,
    SourceSpec,
    TargetSpec,
    UnreachablePolicy,
    ViewsSpec,
)

T = TypeVar("T")

DEFAULT_PORTS = ((30000, 32767),)
"""Kubernetes' own range of node ports (kube-apiserver --service-node-port-range)."""

MIN_REFRESH: Final = 30.0
MIN_MONITOR: Final = 5.0
MIN_RESYNC: Final = 60.0
"""Shortest intervals, in seconds, at which a cloud is asked for all Nodes, for some, and for load balancers."""

UNKNOWN_PROVIDER = ProviderRef("")
"""Placeholder for the provider of a cluster whose entry is broken."""

_PORT_KEYS: Final = ("port", "health_check_node_port")
"""Keys of ``health`` that say which port to probe."""
_ALTERNATIVES: Final = (_PORT_KEYS, ("ca", "insecure"))
"""Pairs of alternatives in ``health``: a section may have only one of each pair."""


def cluster(entry: models.Cluster, folder: Path, place: str) -> ClusterSpec:
    """The spec of one entry of ``clusters:``.

    Args:
        entry: the validated entry.
        folder: of the registry file; relative paths start there.
        place: file, line, column and key of the entry's ``kubeconfig.path``, for messages.
    """
    return ClusterSpec(
        name=entry.name,
        provider=provider(entry.provider),
        kubeconfig=_kubeconfig(entry.kubeconfig, folder, place),
        **_written(
            formerly=_tuple(entry.formerly),
            state=entry.state,
            labels=entry.labels,
            max_endpoints=entry.max_endpoints,
        ),
        allowed_cidrs=tuple(entry.allowed_cidrs or ()),
        allowed_ports=DEFAULT_PORTS if entry.allowed_ports is None else tuple(entry.allowed_ports),
        cloud=_cloud(entry),
    )


def _cloud(entry: models.Cluster) -> CloudSpec | None:
    """The spec of a cluster's ``cloud``; intervals that are too short for a cloud's API are raised."""
    cloud = entry.cloud
    if cloud is None:
        return None
    nodes = balancers = None
    if cloud.nodes != "off":
        keys = _keys(cloud.nodes)
        for name, floor in (("refresh", MIN_REFRESH), ("monitor", MIN_MONITOR)):
            if name in keys:
                keys[name] = max(keys[name], floor)
        nodes = CloudNodesSpec(**keys)
    if cloud.load_balancers != "off":
        keys = _keys(cloud.load_balancers)
        if "namespaces" in keys:
            keys["namespaces"] = tuple(keys["namespaces"])
        if "resync" in keys:
            keys["resync"] = max(keys["resync"], MIN_RESYNC)
        balancers = CloudBalancersSpec(**keys)
    return CloudSpec(
        ProviderRef(cloud.provider.name, _canonical(cloud.provider.config)),
        cloud.cluster_name or entry.name,
        cloud.mode != "observe",
        tuple(cloud.former_cluster_names or ()),
        nodes,
        balancers,
    )


def provider(entry: models.Provider | None) -> ProviderRef | None:
    """The reference to a provider, with its configuration as canonical JSON; None if none is written."""
    if entry is None:
        return None
    return ProviderRef(entry.name, _canonical(entry.config))


def _canonical(config: Mapping[str, Any] | None) -> str:
    return json.dumps(config or {}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _kubeconfig(
    entry: models.Kubeconfig | None, folder: Path, place: str
) -> KubeconfigPath | KubeconfigSecret | KubeconfigInCluster | None:
    if entry is None:
        return None
    if entry.in_cluster:
        return KubeconfigInCluster()
    if entry.path is not None:
        return KubeconfigPath(str(folder / entry.path), entry.context, f"{place}: {entry.path}")
    return KubeconfigSecret(str(entry.secret), entry.key or "kubeconfig", entry.context)


def _tuple(values: list[T] | None) -> tuple[T, ...] | None:
    return None if values is None else tuple(values)


def _written(**keys: Any) -> dict[str, Any]:
    """Only the keys that are written (not None): for the others the spec's defaults apply."""
    return {name: value for name, value in keys.items() if value is not None}


class Targets:
    """Builds the specs of ``services:``.

    Args:
        defaults: the section ``defaults:``; None if not written.
        clusters: the valid clusters of the file by name, as model and as spec.
        selection: evaluates selectors.
        folder: of the registry file; relative paths start there.
    """

    def __init__(
        self,
        defaults: models.Layer | None,
        clusters: Mapping[str, tuple[models.Cluster, ClusterSpec]],
        selection: Selection,
        folder: Path,
    ) -> None:
        self._folder = folder
        self._defaults = defaults
        self._clusters = clusters
        self._selection = selection
        self._sources: dict[tuple[object, ...], SourceSpec] = {}
        self._tuples: dict[tuple[int, ...], tuple[SourceSpec, ...]] = {}
        self._shared: dict[object, Any] = {}

    def build(self, entry: models.Service) -> TargetSpec:
        """The spec of one entry. It depends only on the file's content."""
        return TargetSpec(
            key=TargetKey(entry.namespace, entry.name),
            sources=self._expand(entry),
            failover=self._share(FailoverPolicy(**_keys(entry.failover))),
            ports=None if entry.ports is None else tuple(self._share(_port(port)) for port in entry.ports),
            **_written(
                strategy=entry.strategy,
                policy=entry.policy,
                endpoints_per_slice=entry.endpoints_per_slice,
                drain=entry.drain,
                adopt=None if entry.adopt is None else entry.adopt.managed_by,
            ),
        )

    def _expand(self, entry: models.Service) -> tuple[SourceSpec, ...]:
        """The sources in order, one per cluster; selectors skip clusters that another source names or selected."""
        taken = {source.cluster for source in entry.sources if source.cluster is not None}
        service_fingerprint = _fingerprint(entry)
        found: list[SourceSpec] = []
        for source in entry.sources:
            fingerprint = (_fingerprint(source), service_fingerprint, provider(source.provider))
            if source.cluster is not None:
                found.append(self._source(source.cluster, source, entry, fingerprint))
                continue
            selected = [name for name in self._selection.select(source.cluster_selector or {}) if name not in taken]
            taken.update(selected)
            found.extend(self._source(name, source, entry, fingerprint) for name in selected)
        return self._tuples.setdefault(tuple(map(id, found)), tuple(found))

    def _source(
        self, name: str, source: models.Source, service: models.Service, fingerprint: tuple[object, ...]
    ) -> SourceSpec:
        """The spec of a source in one cluster, built once for each ``fingerprint`` (all keys that it depends on)."""
        known = self._sources.get((name, *fingerprint))
        if known is None:
            known = self._sources[name, *fingerprint] = self._make(name, source, service)
        return known

    def _make(self, name: str, source: models.Source, service: models.Service) -> SourceSpec:
        entry, spec = self._clusters.get(name, (None, None))
        layers = (self._defaults, entry, service, source)
        nodes = [layer.nodes for layer in layers if layer is not None]
        guard = _merged(layer.guard for layer in layers if layer is not None)
        unreachable = _merged(layer.unreachable for layer in layers if layer is not None)
        health = _health_keys(layer.health for layer in layers if layer is not None)
        maps = [layer.zone_map for layer in layers if layer is not None and layer.zone_map is not None]
        zones = tuple(sorted(maps[-1].items())) if maps and name != LOCAL else ()  # local zones are the hub's own
        named = provider(source.provider) or (spec.provider if spec else None) or UNKNOWN_PROVIDER
        return SourceSpec(
            cluster=name,
            provider=self._share(named),
            nodes=self._share(_node_policy(nodes, zones)),
            guard=self._share(GuardPolicy(**guard)),
            unreachable=self._share(UnreachablePolicy(**unreachable)),
            guard_set=self._share(frozenset(guard)),
            health=self._share(_health_policy(health, self._folder, probed=unreachable.get("probe", "off") != "off")),
        )

    def _share(self, value: T) -> T:
        shared: T = self._shared.setdefault((type(value), value), value)
        return shared


def _keys(section: models.Section | None) -> dict[str, Any]:
    """The keys that are written in a section, by field name, with their values."""
    return {} if section is None else {name: getattr(section, name) for name in section.model_fields_set}


def _merged(sections: Any) -> dict[str, Any]:
    """The sections merged key by key; the last section wins."""
    merged: dict[str, Any] = {}
    for section in sections:
        merged |= _keys(section)
    return merged


def _health_keys(sections: Iterable[models.Health | None]) -> dict[str, Any]:
    """Like :func:`_merged`, but of two alternatives the one in the later section removes the other."""
    merged: dict[str, Any] = {}
    for section in sections:
        keys = _keys(section)
        for one, other in _ALTERNATIVES:
            if keys.get(one):
                merged.pop(other, None)
            if keys.get(other):
                merged.pop(one, None)
        merged |= keys
    return merged


def _node_policy(sections: list[models.Nodes | None], zones: tuple[tuple[str, str], ...]) -> NodePolicy:
    """The merged ``nodes:``.

    ``exclude`` is merged key by key too: a source's ``exclude.nodes`` replaces only the cluster's ``exclude.nodes``.
    """
    keys = _merged(sections)
    keys.pop("exclude", None)
    for name, listed in _merged(section.exclude for section in sections if section is not None).items():
        keys[f"exclude_{name}"] = frozenset(listed)
    return NodePolicy(**keys, zones=zones)


def _health_policy(keys: dict[str, Any], folder: Path, *, probed: bool) -> HealthPolicy:
    """The policy of merged ``health:`` keys.

    In mode "off" all keys are dropped, so that sources that differ only in unused keys stay equal. With ``probed``
    (``unreachable.probe`` is on) the keys that say which port to probe are kept even then.
    """
    if keys.get("mode", "off") == "off":
        keys = {name: keys[name] for name in keys.keys() & _PORT_KEYS} if probed else {}
    if "headers" in keys:
        keys["headers"] = tuple(sorted(keys["headers"].items()))
    if "status" in keys:
        keys["status"] = tuple(sorted(set(keys["status"])))
    if "ca" in keys:
        keys["ca"] = str(folder / keys["ca"])
    if (service := keys.pop("health_check_node_port", None)) is not None:
        keys["service"] = _key(service)
    return HealthPolicy(**keys)


def _fingerprint(layer: models.Layer) -> str:
    """A text that is equal for layers with the same written keys and values.

    Keys that are not written are left out: their value None would look like a written ``off`` or ``never``.
    """
    names = [name for name in models.Layer.model_fields if name in layer.model_fields_set]
    written = {name: _written_values(getattr(layer, name)) for name in names}
    return repr(written) if written else ""


def _written_values(value: object) -> object:
    if not isinstance(value, models.Section):
        return value
    return {name: _written_values(getattr(value, name)) for name in sorted(value.model_fields_set)}


def _port(entry: models.Port) -> PortSpec:
    named = entry.node_port
    return PortSpec(
        port=entry.port or 0,
        node_port=None if named is None else NodePortRef(_key(named.service), named.port),
        **_written(name=entry.name, protocol=entry.protocol, app_protocol=entry.app_protocol),
    )


def _key(text: str) -> TargetKey:
    namespace, _, name = text.partition("/")
    return TargetKey(namespace, name)


def annotation_policy(entry: models.Annotations | None, targets: Targets) -> AnnotationPolicy:
    """The spec of ``annotations:``; not enabled if the section is missing.

    Copies have the hub cluster as their source, with the file's ``defaults``. That source is built from an example
    service, so that copies follow the same rules as written services.
    """
    if entry is None or not entry.enabled:
        return AnnotationPolicy()
    rules = tuple(CopyRule(rule.from_, tuple(rule.to)) for rule in entry.allow or ())
    example = {"name": "a", "namespace": "a", "sources": [{"cluster": LOCAL, "provider": {"name": "service-copy"}}]}
    (source,) = targets.build(models.Service.model_validate(example)).sources
    return AnnotationPolicy(enabled=True, allow=rules, source=source)


def views(entry: models.Views | None) -> ViewsSpec | None:
    """The spec of ``views:``; None if the key is not written."""
    if entry is None:
        return None
    return ViewsSpec(
        **_written(
            clusters=None if entry.clusters is None else tuple(dict.fromkeys(entry.clusters)),
            annotation=entry.annotation,
            select=entry.select,
            hooks=None if entry.hooks is None else tuple(dict.fromkeys(entry.hooks)),
        )
    )


def allocations(
    entry: models.Allocations | None, clouds: Iterable[models.CloudAccount], broken: Mapping[str, str]
) -> AllocationsSpec | None:
    """The spec of ``allocations:``; None if the key is not written.

    Args:
        entry: the section; its own list of accounts is not used.
        clouds: the valid accounts.
        broken: account name -> text of its problems.
    """
    if entry is None:
        return None
    accounts = {
        cloud.name: AccountSpec(
            cloud.name,
            ProviderRef(cloud.provider, _canonical(cloud.config)),
            tuple(cloud.addresses),
            **_written(clusters=_tuple(cloud.clusters), interval=cloud.interval),
        )
        for cloud in clouds
        if cloud.name not in broken
    }
    hold = inf if entry.cordoned_hold is None else entry.cordoned_hold
    return AllocationsSpec(
        accounts,
        broken,
        enforce=entry.mode == "enforce",
        interlock=None if entry.interlock is None else ObjectKey(*_key(entry.interlock)),
        limits=AllocationLimits(**_keys(entry.limits), **_written(own_node=entry.own_node)),
        cordoned_hold=hold if "cordoned_hold" in entry.model_fields_set else None,
        **_written(not_ready_grace=entry.not_ready_grace, eviction=entry.eviction),
    )


def local() -> ClusterSpec:
    """The built-in cluster: the hub cluster itself."""
    return ClusterSpec(LOCAL, None)
