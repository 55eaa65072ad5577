"""The environment variables of another tool: from this process, a manifest, or a file of assignments.

A ``valueFrom`` in a manifest refers to a key of a Secret or ConfigMap, whose value is not known here. Values of
credentials are not needed.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from hub.errors import HubError
from hub.registry import values

T = TypeVar("T")

MANIFESTS: Final = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod", "Job", "CronJob")
_EXPANSION = re.compile(r"\$(?:\$|\(([^)]*)\))")
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that is not in the manifest; ``secret`` is "" unless the value is in a Secret."""

    secret: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume of a manifest's Pods, where a container has it.

    Attributes:
        entry: the item of the container's ``volumeMounts``.
        volume: the item of the Pod's ``volumes``.
    """

    entry: Mapping[str, Any]
    volume: Mapping[str, Any]

    @property
    def path(self) -> PurePosixPath:
        """Where the container has it: a folder, or with ``subPath`` possibly a file."""
        return PurePosixPath(str(self.entry.get("mountPath")))


@dataclass(slots=True)
class Variables:
    """Variables by name.

    Attributes:
        values: variables with a known value.
        references: the other variables.
        declared: whether they come from a manifest or file, so that all of them are the tool's own.
        unread: other sources of the container's variables that are not in the files, such as ``Secret more``.
        mounts: the volumes of the container.
        namespace: the manifest's namespace; "" = it names none.
        problems: problems that the methods found.
    """

    values: Mapping[str, str]
    references: Mapping[str, Reference] = field(default_factory=dict)
    declared: bool = False
    unread: Sequence[str] = ()
    mounts: Sequence[Mount] = ()
    namespace: str = ""
    problems: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether a variable has a value, known or not."""
        return bool(self.values.get(name)) or name in self.references

    def text(self, name: str, *, required: str = "") -> str:
        """The value of a variable; "" if it is unset or empty.

        Args:
            name: the variable.
            required: why the variable is required; "" = it is optional.
        """
        found = self.values.get(name, "")
        if not found and name in self.references:
            self.problem(name, "its value is not in the manifest (valueFrom): give the value itself")
        elif not found and required:
            self.problem(name, f"is required: {required}")
        return found

    def one_of(self, name: str, *allowed: str, default: str = "") -> str:
        """The value of a variable that must be one of ``allowed``."""
        found = self.text(name) or default
        if found and found not in allowed:
            self.problem(name, f"must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {values.shown(found)}")
        return found if found in allowed else default

    def number(self, name: str, *, required: str = "") -> int | None:
        """The value as a whole number; None if it is unset."""
        found = self.text(name, required=required)
        if found and not _NUMBER.fullmatch(found):
            self.problem(name, f"must be a whole number, not {values.shown(found)}")
            return None
        return int(found) if found else None

    def duration(self, name: str, default: str) -> str:
        """The value as a Go duration, as written."""
        found = self.text(name).removeprefix("+") or default
        return found if self._valid(name, values.duration, found) is not None else default

    def mount(self, path: str) -> Mount | None:
        """The volume that has a file of the container; None if no volume has it."""
        parents = {PurePosixPath(path), *PurePosixPath(path).parents}
        inside = [mount for mount in self.mounts if mount.path in parents]
        return max(inside, key=lambda mount: len(mount.path.parts), default=None)

    def secret_of(self, path: str) -> Reference | None:
        """The Secret and the key in it that a file of the container comes from; None if it is in no Secret's volume."""
        mount = self.mount(path)
        secret = _at(mount.volume, "secret", "secretName") if mount is not None else None
        if mount is None or secret is None:
            return None
        inside = str(PurePosixPath(str(mount.entry.get("subPath") or ""), PurePosixPath(path).relative_to(mount.path)))
        items = _dicts(_at(mount.volume, "secret", "items"))
        keys = {str(item.get("path")): str(item.get("key")) for item in items} if items else {inside: inside}
        return Reference(str(secret), keys[inside]) if inside in keys else None

    def words(self, name: str) -> list[str]:
        """The value, split into words as by a shell."""
        try:
            return shlex.split(self.text(name))
        except ValueError as error:
            self.problem(name, f"cannot be split into words: {error}")
            return []

    @property
    def unread_note(self) -> str:
        """A comment about ``unread``; "" if there is nothing unread."""
        if not self.unread:
            return ""
        return (
            f"NOT READ: {', '.join(self.unread)} (envFrom), since the files do not have their content: a variable that "
            "is set only there counts as unset here. Give a ConfigMap's manifest too, or NAME=value lines (-f)."
        )

    def unused_note(self, used: Iterable[str]) -> str:
        """A comment that names the declared variables that are not in ``used``; "" if there are none."""
        unused = sorted({*self.values, *self.references} - {*used}) if self.declared else []
        return f"not used: {', '.join(unused)}" if unused else ""

    def problem(self, name: str, message: str) -> None:
        """Report a problem with a variable."""
        self.problems.append(f"{name}: {message}")

    def check(self) -> None:
        """Raise all reported problems in one error.

        Raises:
            HubError: there are problems.
        """
        if self.problems:
            raise HubError("; ".join(dict.fromkeys(self.problems)))

    def _valid(self, name: str, parse: Callable[[object], T], value: str) -> T | None:
        try:
            return parse(value)
        except values.BadValue as bad:
            self.problem(name, f"{bad.message} ({bad.hint})" if bad.hint else bad.message)
            return None


# --- reading ------------------------------------------------------------------------------------------


def from_texts(texts: Sequence[tuple[str, str]], marks: Sequence[str]) -> Variables:
    """The variables of manifests or files of assignments.

    Args:
        texts: name and content of each file.
        marks: variables of which the tool's container has at least one.

    Raises:
        HubError: no container or assignment has one of ``marks``, or several containers have.
    """
    known: dict[str, str] = {}
    objects: list[Mapping[str, Any]] = []
    for name, text in texts:
        documents = _documents(name, text)
        objects += documents
        if not documents:
            known |= _assignments(name, text)
    maps = {_name(manifest): _at(manifest, "data") for manifest in objects if manifest.get("kind") == "ConfigMap"}
    names = ", ".join(name for name, _ in texts)
    matching = [
        (manifest, pod, container, found)
        for manifest, pod, container in itertools.chain.from_iterable(map(_containers, objects))
        if not {*marks}.isdisjoint({*(found := _environment(container, maps)).values, *found.references})
    ]
    # A Deployment's ReplicaSets and Pods, as "kubectl get all" lists them, repeat its container.
    matching = [each for each in matching if not _at(each[0], "metadata", "ownerReferences")] or matching
    if len(matching) > 1:
        titles = ", ".join(f"{_title(manifest)} ({container.get('name')})" for manifest, _, container, _ in matching)
        raise HubError(
            f"{names}: several containers have such variables: {titles}; "
            "import them one at a time, then merge clusters and services into one file"
        )
    for manifest, pod, container, found in matching:
        return replace(
            found,
            values=known | dict(found.values),
            declared=True,
            mounts=_mounts(pod, container),
            namespace=str(_at(manifest, "metadata", "namespace") or ""),
        )
    if not any(mark in known for mark in marks):
        raise HubError(f"{names}: {_nothing(objects, known, marks[0])}")
    return Variables(known, declared=True)


def _nothing(objects: Sequence[Mapping[str, Any]], known: Mapping[str, str], mark: str) -> str:
    """Why no variables of the tool were found."""
    workloads = [manifest for manifest in objects if manifest.get("kind") in MANIFESTS]
    if known or any(True for manifest in workloads for _ in _containers(manifest)):
        return f"no container has a variable such as {mark}"
    if workloads:
        return f"{', '.join(map(_title, workloads))}: has no containers; give the complete manifest"
    return "has no Deployment or other workload; give its manifest, or NAME=value lines"


def documents(name: str, text: str) -> list[Mapping[str, Any]]:
    """The objects in a file of YAML documents, with Lists split into their items.

    Raises:
        HubError: the file is not YAML.
    """
    import yaml

    try:
        loaded = list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise HubError(f"{name}{place}: is not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    except (ValueError, RecursionError) as error:
        raise HubError(f"{name}: is not YAML: {type(error).__name__}") from None
    return [item for document in loaded if isinstance(document, dict) for item in _items(document)]


def _items(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    listed = document.get("items")
    if str(document.get("kind", "")).endswith("List") and isinstance(listed, list):
        yield from (item for item in listed if isinstance(item, dict))
    else:
        yield document


def _documents(name: str, text: str) -> list[Mapping[str, Any]]:
    """The objects of a manifest; empty if the text is not a manifest."""
    if not re.search(r"^\s*\"?kind\"?\s*:", text, re.MULTILINE):
        return []
    return [document for document in documents(name, text) if "kind" in document]


def _assignments(name: str, text: str) -> dict[str, str]:
    """``NAME=value`` lines, as a shell would read them."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise HubError(f"{name}:{number}: {error}") from None
        for word in words[1:] if words[:1] == ["export"] else words:
            variable, sign, value = word.partition("=")
            if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
                raise HubError(f"{name}:{number}: is neither a manifest nor an assignment NAME=value")
            found[variable] = value
    return found


def _containers(manifest: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], ...]]:
    """(manifest, spec of its Pods, container)."""
    spec = manifest.get("spec") if manifest.get("kind") in MANIFESTS else None
    while isinstance(spec, dict):
        yield from ((manifest, spec, container) for container in _dicts(spec.get("containers")))
        outer = spec.get("jobTemplate") or spec.get("template")
        spec = outer.get("spec") if isinstance(outer, dict) else None


def _mounts(pod: Mapping[str, Any], container: Mapping[str, Any]) -> list[Mount]:
    volumes = {str(volume.get("name")): volume for volume in _dicts(pod.get("volumes"))}
    entries = _dicts(container.get("volumeMounts"))
    return [Mount(entry, volumes[name]) for entry in entries if (name := str(entry.get("name"))) in volumes]


def _environment(container: Mapping[str, Any], maps: Mapping[str, Any]) -> Variables:
    """A container's variables. As in Kubernetes, ``env`` overrides ``envFrom``, and in both the last entry counts."""
    known: dict[str, str] = {}
    references: dict[str, Reference] = {}
    unread: list[str] = []
    for source in _dicts(container.get("envFrom")):
        name, secret = str(_at(source, "configMapRef", "name")), _at(source, "secretRef", "name")
        if name not in maps:
            unread.append(f"ConfigMap {name}" if secret is None else f"Secret {secret}")
        content = maps.get(name)
        for key, value in content.items() if isinstance(content, dict) else ():
            known[f"{source.get('prefix') or ''}{key}"] = _text(value)
    for entry in _dicts(container.get("env")):
        name, secret = str(entry.get("name")), _at(entry, "valueFrom", "secretKeyRef")
        from_map = _at(entry, "valueFrom", "configMapKeyRef")
        content, key = maps.get(str(_at(from_map, "name"))), str(_at(from_map, "key"))
        known.pop(name, None)
        references.pop(name, None)
        if isinstance(content, dict) and key in content:
            known[name] = _text(content[key])
        elif "valueFrom" in entry:
            references[name] = Reference(str(_at(secret, "name") or ""), str(_at(secret, "key") or ""))
        elif any(used in references for used in _EXPANSION.findall(_text(entry.get("value")))):
            references[name] = Reference()
        else:
            known[name] = _expanded(_text(entry.get("value")), known)
    return Variables(known, references, unread=unread)


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Expand ``$(NAME)`` as Kubernetes does: only variables defined earlier are replaced, and ``$$`` is one ``$``."""
    return _EXPANSION.sub(lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]), text)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _dicts(listed: Any) -> list[dict[str, Any]]:
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _name(manifest: Mapping[str, Any]) -> str:
    return str(_at(manifest, "metadata", "name"))


def _title(manifest: Mapping[str, Any]) -> str:
    """Kind, namespace and name of a manifest, as far as it has them."""
    parts = (_at(manifest, "metadata", "namespace"), _at(manifest, "metadata", "name"))
    return f"{manifest.get('kind')} {'/'.join(str(part) for part in parts if part)}".rstrip()
