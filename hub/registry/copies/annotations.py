"""Turns Services' annotations that ask for copies into targets like those of the registry. Pure.

The annotations are those of endpoint-copier, with the same meaning. The registry decides which Services may copy which:
a user who may edit one Service must not be able to expose another team's Service or the API server. A copy may itself
be copied. A copy that leads back to itself would only publish its own endpoints again, so it is refused, whether an
annotation or the registry asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from hub.model import LOCAL, Finding, Service, TargetKey
from hub.registry.spec import ENDPOINT_COPIER, AnnotationPolicy, ProviderRef, Registry, TargetSpec

ENABLED: Final = "endpoint-copier/enabled"
NAME: Final = "endpoint-copier/default-service-name"
NAMESPACE: Final = "endpoint-copier/default-service-namespace"
YES: Final = "true"
"""The only value of ``ENABLED`` that asks for a copy, as in endpoint-copier."""
NO: Final = "false"
"""A value of ``ENABLED`` that asks for no copy; any value but these two is reported."""

PROVIDER: Final = "service-copy"

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LISTED: Final = 10
"""Most Services named in one message."""


class CopyRequest(NamedTuple):
    """The values of one Service's copy annotations; None = the Service does not have the annotation."""

    enabled: str
    name: str | None
    namespace: str | None


def copy_request(service: Service | None) -> CopyRequest | None:
    """The copy annotations of a Service; None if it lacks ``ENABLED``, is being deleted or does not exist."""
    if service is None or service.deleting or (enabled := service.annotations.get(ENABLED)) is None:
        return None
    return CopyRequest(enabled, service.annotations.get(NAME), service.annotations.get(NAMESPACE))


class Copies(msgspec.Struct, frozen=True):
    """The copies that result from the annotations of all Services.

    Attributes:
        targets: the copies that are allowed.
        looping: copies that lead back to themselves, the registry's own included -> the loop as text.
        notes: findings on Services: why a Service is not a copy, or why its annotations are ignored.
    """

    targets: Mapping[TargetKey, TargetSpec] = msgspec.field(default_factory=dict)
    looping: Mapping[TargetKey, str] = msgspec.field(default_factory=dict)
    notes: Mapping[TargetKey, Finding] = msgspec.field(default_factory=dict)


def copies(requests: Mapping[TargetKey, CopyRequest], registry: Registry) -> Copies:
    """The copies that Services ask for and the registry allows.

    Args:
        requests: the copy annotations, by Service.
        registry: the file's registry, without copies by annotation.
    """
    policy = registry.annotations
    made: dict[TargetKey, TargetSpec] = {}
    notes: dict[TargetKey, Finding] = {}
    for key in sorted(requests) if policy.enabled else ():
        if requests[key].enabled == NO:
            continue
        if key in registry.targets or key in registry.broken_targets:
            notes[key] = Finding("AnnotationIgnored", f"{ENABLED}: the registry has an entry for {key}, which counts")
            continue
        found = _requested_copy(key, requests[key], policy)
        if isinstance(found, Finding):
            notes[key] = found
        else:
            made[key] = found
    looping = _loops({**registry.targets, **made})
    notes.update({key: Finding("CopyLoop", text) for key, text in looping.items()})
    return Copies({key: spec for key, spec in made.items() if key not in looping}, looping, notes)


def merge(registry: Registry, found: Copies, withdrawn: frozenset[TargetKey] = frozenset()) -> Registry:
    """The registry with the copies added as ordinary targets; looping copies become broken targets.

    Args:
        registry: the file's registry.
        found: the copies.
        withdrawn: Services that no longer ask for a copy: the guard against mass removals ignores their slices.
    """
    if not (found.targets or found.looping or found.notes or withdrawn):
        return registry
    targets = {key: spec for key, spec in registry.targets.items() if key not in found.looping}
    return replace(
        registry,
        targets={**targets, **found.targets},
        broken_targets={**registry.broken_targets, **found.looping},
        notes={**registry.notes, **found.notes},
        withdrawn=withdrawn,
    )


# --- one Service ------------------------------------------------------------------------------------


def _requested_copy(key: TargetKey, request: CopyRequest, policy: AnnotationPolicy) -> TargetSpec | Finding:
    """The copy that one Service asks for, or why it is refused."""
    if request.enabled != YES:
        return Finding(
            "AnnotationIgnored",
            f'{ENABLED} is {_shown(request.enabled)}: only "true", in this spelling, asks for a copy',
        )
    if not request.name:
        problem = "empty" if request.name == "" else "missing"
        return Finding("CopyInvalid", f"{NAME} is {problem}: what is to be copied?")
    source = TargetKey(request.namespace or key.namespace, request.name)
    for annotation, text in ((NAME, source.name), (NAMESPACE, source.namespace)):
        if not _LABEL.fullmatch(text):
            return Finding("CopyInvalid", f"{annotation} is {_shown(text)}, which is no name")
    if not allowed(source, key, policy):
        hint = f"a rule of annotations.allow in the registry, {{from: {source}, to: [{key}]}}, would allow it"
        return Finding("CopyNotAllowed", f"{key} may not copy {source}: {hint}", (str(source),))
    config = json.dumps({"name": source.name, "namespace": source.namespace}, separators=(",", ":"))
    copied = replace(policy.source, cluster=LOCAL, provider=ProviderRef(PROVIDER, config))
    return TargetSpec(key, (copied,), adopt=ENDPOINT_COPIER)


def allowed(source: TargetKey, target: TargetKey, policy: AnnotationPolicy) -> bool:
    """Whether a rule allows the copy; without rules, copies within one namespace are allowed."""
    if not policy.allow:
        return source.namespace == target.namespace
    return any(
        _matches(rule.from_, source) and any(_matches(pattern, target) for pattern in rule.to) for rule in policy.allow
    )


def _matches(pattern: str, key: TargetKey) -> bool:
    namespace, _, name = pattern.partition("/")
    return _glob(namespace, key.namespace) and _glob(name, key.name)


def _glob(pattern: str, text: str) -> bool:
    """Whether a pattern with ``*`` matches a text; without backtracking, so that no pattern is slow."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    *middle, last = rest
    at, end = len(first), len(text) - len(last)
    if end < at or not text.startswith(first) or not text.endswith(last):
        return False
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:63] + "…")


# --- loops ------------------------------------------------------------------------------------------


def _loops(targets: Mapping[TargetKey, TargetSpec]) -> dict[TargetKey, str]:
    """Targets that copy themselves, directly or through others -> the loop as text."""
    edges = {key: found for key, spec in targets.items() if (found := list(_sources(spec)))}
    edges = {key: [source for source in found if source in edges] for key, found in edges.items()}
    while ends := [key for key, found in edges.items() if not found]:  # their sources are not copies: no loop
        for key in ends:
            del edges[key]
        edges = {key: [source for source in found if source in edges] for key, found in edges.items()}
    return {key: _path(way) for key in edges if (way := _way_back(key, edges)) is not None}


def _sources(spec: TargetSpec) -> Iterable[TargetKey]:
    """Yields the Services of the hub cluster that a target copies."""
    for source in spec.sources:
        if source.cluster == LOCAL and source.provider.name == PROVIDER:
            config = json.loads(source.provider.config)
            yield TargetKey(str(config.get("namespace")), str(config.get("name")))


def _way_back(start: TargetKey, edges: Mapping[TargetKey, list[TargetKey]]) -> list[TargetKey] | None:
    """The shortest path from a target back to itself; None if there is none."""
    came: dict[TargetKey, TargetKey] = {}
    front = [start]
    while front:
        nexts = []
        for key in front:
            for source in edges[key]:
                if source == start:
                    way = [start, key]
                    while way[-1] != start:
                        way.append(came[way[-1]])
                    return way[::-1]
                if source not in came:
                    came[source] = key
                    nexts.append(source)
        front = nexts
    return None


def _path(way: list[TargetKey]) -> str:
    """The text for a path that begins and ends with the same target."""
    if len(way) == 2:
        return f"{way[0]} copies itself"
    shown = way if len(way) <= LISTED else [*way[:LISTED], "…", way[-1]]
    return "copies go round in a loop: " + " copies ".join(map(str, shown))
