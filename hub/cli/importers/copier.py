"""Turns the copies that endpoint-copier makes into a registry.

Annotated Services keep their annotations, and the ``annotations:`` block allows these copies. The one Service that
endpoint-copier manages without annotations becomes an entry of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hub.cli.importers.document import Document, Noted, render
from hub.errors import HubError
from hub.model import Service, TargetKey
from hub.registry.copies.annotations import ENABLED, NAME, NAMESPACE, PROVIDER, YES
from hub.registry.spec import ENDPOINT_COPIER

_HEADING = (
    "The copies of endpoint-copier as a registry. Stop endpoint-copier, then start the hub: it publishes its slices "
    "next to the existing ones, and deletes those once its own cover them. Needs the provider service-copy."
)
_ALLOW = (
    "endpoint-copier allowed every copy; here each copy is allowed by name. As before, a copy has the ports of the "
    "Service that asks for it. New: a copy follows its source at once, ends when the annotation is removed, and may "
    "have both address families."
)
_ADOPT = "Replaces the slices that endpoint-copier wrote for this Service. Annotated Services do not need this key."
_LEGACY = "endpoint-copier manages this Service although it has no annotation (--managed-endpoint-name)."


def services(documents: Iterable[Mapping[str, Any]]) -> list[Service]:
    """The Services among the objects of manifests, with the fields that matter for copies.

    Raises:
        HubError: a Service has no name, or its annotations are not a mapping.
    """
    found = []
    for manifest in documents:
        if manifest.get("kind") != "Service":
            continue
        meta, spec = manifest.get("metadata"), manifest.get("spec")
        meta = meta if isinstance(meta, dict) else {}
        name, annotations = meta.get("name"), meta.get("annotations") or {}
        if not isinstance(name, str) or not isinstance(annotations, dict):
            raise HubError("a Service without a name, or with annotations that are not a mapping")
        texts = {str(key): value if isinstance(value, str) else "" for key, value in annotations.items()}
        selects = isinstance(spec, dict) and bool(spec.get("selector"))
        found.append(Service(str(meta.get("namespace") or "default"), name, selector=selects, annotations=texts))
    return found


def build(found: Iterable[Service], managed: TargetKey, source: TargetKey) -> Document:
    """The registry with the copies that these Services ask for.

    Args:
        found: Services, with their annotations.
        managed: the Service that is a copy without annotations.
        source: the Service that it is a copy of.

    Raises:
        HubError: no Service asks for a copy.
    """
    ordered = sorted(found, key=lambda service: service.key)
    asking = [service for service in ordered if service.annotations.get(ENABLED) == YES]
    alone = [service for service in ordered if service.key == managed and service not in asking]
    if not (asking or alone):
        raise HubError(f'no Service has the annotation {ENABLED}: "{YES}", and none is {managed}')
    tree: dict[str, Any] = {"version": 1, "clusters": []}
    if alone:
        copy = {"name": PROVIDER, "config": {"namespace": source.namespace, "name": source.name}}
        entry = {
            "name": Noted(managed.name, _LEGACY + _selector(alone[0])),
            "namespace": managed.namespace,
            "sources": [{"cluster": "local", "provider": copy}],
            "adopt": Noted({"managedBy": ENDPOINT_COPIER}, _ADOPT),
        }
        tree["services"] = [entry]
    if asking:
        rules = [rule for service in asking if (rule := _rule(service)) is not None]
        notes = [_ALLOW, *(f"{service.key}: {problem}" for service in asking for problem in _remarks(service))]
        tree["annotations"] = Noted({"enabled": True, "allow": rules}, "\n".join(notes))
    return render(tree, _HEADING)


def _rule(service: Service) -> dict[str, Any] | None:
    """The rule for the copy that a Service asks for; None if it names no valid source."""
    name = service.annotations.get(NAME)
    if not name or _has_wildcard(service):
        return None
    namespace = service.annotations.get(NAMESPACE) or service.namespace
    return {"from": Noted(f"{namespace}/{name}", "", NAME), "to": [str(service.key)]}


def _has_wildcard(service: Service) -> bool:
    """Whether its annotations contain ``*``, so that a rule made of them would allow many sources."""
    return any("*" in service.annotations.get(key, "") for key in (NAME, NAMESPACE))


def _remarks(service: Service) -> Sequence[str]:
    """Remarks on annotations that have another effect here than in endpoint-copier, or none."""
    found = []
    if not service.annotations.get(NAME):
        found.append(f"{NAME} is missing, so nothing is copied; endpoint-copier copied nothing either.")
    elif _has_wildcard(service):
        found.append(
            "its annotations contain a *. No Service has such a name, so nothing was copied, and nothing is allowed."
        )
    elif not service.annotations.get(NAMESPACE):
        found.append(
            f"{NAMESPACE} is missing: the hub copies from the Service's own namespace, endpoint-copier from all."
        )
    if service.selector:
        found.append(_selector(service).strip())
    return found


def _selector(service: Service) -> str:
    if not service.selector:
        return ""
    return (
        "\nIt has a selector, so Kubernetes writes its endpoints too: the hub refuses it until the selector is removed."
    )
