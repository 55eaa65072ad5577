"""Loads clusters.yaml, and reports all of its problems at once.

A problem inside one entry of ``clusters:`` or ``services:`` breaks only that entry: the registry lists it as broken,
and its slices are frozen. Any other problem rejects the whole file: YAML that does not parse, another format version,
duplicate names, an entry without a valid name, a problem outside of entries. If a file does not identify all of its
entries, the hub cannot tell which endpoints it removes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hub.errors import Problem, RegistryError
from hub.model import LOCAL, TargetKey
from hub.registry import build, checks, models
from hub.registry.explain import validate
from hub.registry.file import Loaded, read
from hub.registry.positions import parse
from hub.registry.report import KeyPath, Report
from hub.registry.spec import ClusterSpec, Registry, TargetSpec
from hub.registry.values import kind, shown

VERSION: Final = 1
_SECTIONS: Final = ("clusters", "services")
_ANY_CLOUD: Final = {"name": "any", "provider": "any", "addresses": ["0.0.0.0/0"]}
"""Stands for the accounts where only the rest of the section is checked."""
_START: Final = "start with version: 1"


def load(path: str | os.PathLike[str]) -> Loaded:
    """Read and check a registry file.

    Blocking; takes about 1 s for 500 clusters and 2,000 services, so keep it off the event loop.

    Raises:
        RegistryError: the file cannot be used at all; the error also lists the problems inside entries.
    """
    return loads(read(path), path)


def loads(content: bytes, path: str | os.PathLike[str]) -> Loaded:
    """Check the bytes of a registry file.

    Args:
        content: the file's bytes.
        path: the file's name in messages; relative paths in the file start at its folder.

    Raises:
        RegistryError: as for :func:`load`.
    """
    file = os.fspath(path)
    report = Report(file)
    data = _data(content, report)
    registry = _registry(data, report, Path(file).absolute().parent, content) if data is not None else None
    if registry is None:
        raise RegistryError(report.problems)
    return Loaded(registry, report.problems)


def _data(content: bytes, report: Report) -> Mapping[str, Any] | None:
    """The file's top-level mapping; None, with a problem reported, if it is not a registry of version 1."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _byte_place(content, error.start)
        report.add_at((), line, column, "is not text in UTF-8", "save the file as UTF-8")
        return None
    data = parse(text, report)
    if report.fatal and data is None:
        return None
    if data is None:
        report.add((), "is empty", _START)
    elif not isinstance(data, dict):
        report.add((), f"must be a mapping, not {kind(data)}", _START)
    elif "version" not in data:
        hint = "write version: 1 at its top, also if it is in a ConfigMap or a Secret"
        report.add((), "the registry has no version", hint)
    elif data["version"] != VERSION or isinstance(data["version"], (bool, float)):
        version = data["version"]
        hint = "remove the quotes" if version == str(VERSION) else "this hub reads version 1"
        report.add(("version",), f"must be {VERSION}, not {shown(version)}", hint)
    else:
        return data
    return None


def _byte_place(content: bytes, offset: int) -> tuple[int, int]:
    """Line and column, 1-based, of a byte in content that is not valid UTF-8."""
    before = content[:offset].decode("utf-8-sig", errors="replace")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _registry(data: Mapping[str, Any], report: Report, folder: Path, content: bytes) -> Registry | None:
    """The registry of the file's data, with all problems in ``report``; None if a problem rejects the whole file."""
    _nothing(data, (), report)
    head = validate(
        models.Head,
        {key: _without_clouds(key, value) for key, value in data.items() if key not in _SECTIONS},
        (),
        report,
        _SECTIONS,
    )
    good = {section: _entries(data, section, report) for section in _SECTIONS}
    clouds = _clouds(data, report)
    selection = checks.check(data, report)
    if head is None or report.fatal:
        return None
    broken = report.broken_entries()
    clusters: dict[str, tuple[models.Cluster, ClusterSpec]] = {
        entry.name: (entry, build.cluster(entry, folder, report.place((*path, "kubeconfig", "path"))))
        for path, entry in good["clusters"].items()
        if path not in broken and isinstance(entry, models.Cluster)
    }
    broken_clusters, broken_targets, frozen = _frozen(data, broken)
    targets = build.Targets(head.defaults, clusters, selection, folder)
    specs: dict[TargetKey, TargetSpec] = {}
    for path, entry in good["services"].items():
        if path not in broken and isinstance(entry, models.Service):
            spec = targets.build(entry)
            specs[spec.key] = spec
    return Registry(
        owner=head.owner or "default",
        clusters={LOCAL: build.local(), **{name: spec for name, (_, spec) in clusters.items()}},
        targets=specs,
        previous_owners=tuple(head.previous_owners or ()),
        denied_cidrs=tuple(head.denied_cidrs or ()),
        broken_clusters=broken_clusters,
        broken_targets=broken_targets,
        digest=hashlib.sha256(content).hexdigest(),
        frozen_names=frozen,
        folder=str(folder),
        annotations=build.annotation_policy(head.annotations, targets),
        views=build.views(head.views),
        allocations=build.allocations(head.allocations, clouds, _broken_clouds(data, broken)),
    )


def _frozen(
    data: Mapping[str, Any], broken: Mapping[KeyPath, tuple[Problem, ...]]
) -> tuple[dict[str, str], dict[TargetKey, str], frozenset[str]]:
    """Broken clusters and broken targets with their problems as text, and the cluster names whose slices are frozen.

    The frozen names are the names and former names of the broken clusters.
    """
    clusters: dict[str, str] = {}
    targets: dict[TargetKey, str] = {}
    names: set[str] = set()
    for (section, index), problems in ((path, found) for path, found in broken.items() if len(path) == 2):
        raw = data[str(section)][index]
        text = "; ".join(map(str, problems))
        if section == "clusters":
            clusters[raw["name"]] = text
            names |= {raw["name"], *_former_names(raw)}
        else:
            targets[TargetKey(raw["namespace"], raw["name"])] = text
    return clusters, targets, frozenset(names)


def _entries(data: Mapping[str, Any], section: str, report: Report) -> dict[KeyPath, models.Layer]:
    """The valid entries of one section as models, by path; problems go into ``report``."""
    model: type[models.Cluster | models.Service] = models.Cluster if section == "clusters" else models.Service
    found: dict[KeyPath, models.Layer] = {}
    listed = data.get(section)
    for index, raw in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(raw, dict):
            entry = validate(model, raw, (section, index), report)
            if entry is not None:
                found[section, index] = entry
    return found


def _without_clouds(key: str, value: Any) -> Any:
    """The section ``allocations`` without the accounts, which are checked one by one; other values as they are."""
    if key == "allocations" and isinstance(value, dict) and isinstance(value.get("clouds"), list) and value["clouds"]:
        return {**value, "clouds": [_ANY_CLOUD]}
    return value


def _clouds(data: Mapping[str, Any], report: Report) -> list[models.CloudAccount]:
    """The valid accounts; problems go into ``report``."""
    section = data.get("allocations")
    listed = section.get("clouds") if isinstance(section, dict) else None
    found: list[models.CloudAccount] = []
    for index, raw in enumerate(listed if isinstance(listed, list) else ()):
        path = ("allocations", "clouds", index)
        if not isinstance(raw, dict):
            report.add(path, f"must be a mapping, not {kind(raw)}", "start it with name:", fatal=True)
        elif (entry := validate(models.CloudAccount, raw, path, report)) is not None:
            found.append(entry)
    return found


def _broken_clouds(data: Mapping[str, Any], broken: Mapping[KeyPath, tuple[Problem, ...]]) -> dict[str, str]:
    """Names of the broken accounts -> their problems."""
    return {
        data["allocations"]["clouds"][path[2]]["name"]: "; ".join(map(str, problems))
        for path, problems in broken.items()
        if len(path) == 3
    }


def _nothing(value: object, path: KeyPath, report: Report) -> None:
    """Report keys and list items without a value (null), except inside a provider's ``config``."""
    if report.covers(path):
        return
    if value is None:
        report.add(path, "has no value", "give it one or remove the key", on_key=True, fatal=len(path) == 2)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if (
                inner is None
                or key != "config"
                or not (path[-1:] == ("provider",) or path[:2] == ("allocations", "clouds"))
            ):
                _nothing(inner, (*path, key), report)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _nothing(inner, (*path, index), report)


def _former_names(raw: Mapping[str, Any]) -> frozenset[str]:
    """The names in ``formerly`` of a broken entry; a single text where a list is needed counts as a name."""
    listed = raw.get("formerly")
    names = listed if isinstance(listed, list) else [listed]
    return frozenset(name for name in names if isinstance(name, str))
