"""Parses a kubeconfig into its contexts, clusters and users by name, with their positions in the file.

This module checks the structure only; :mod:`hub.kube.kubeconfig` checks the content of the entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hub.errors import KubeconfigError
from hub.kube.kubeconfig_yaml import MAX_BYTES, Map, parse_yaml
from hub.runtime.files import read_regular


@dataclass(frozen=True, slots=True)
class Entry:
    """The body of a named entry.

    Attributes:
        body: the fields of the entry.
        origin: the document that contains the entry, for messages.
        base: the folder that relative paths in the entry start from; None = relative paths are refused.
    """

    body: Map
    origin: str
    base: Path | None


@dataclass(frozen=True, slots=True)
class Document:
    """One kubeconfig, or several merged ones, with the entries of each kind by name."""

    origin: str
    current_context: str | None
    contexts: Mapping[str, Entry]
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]


def read_kubeconfig(path: Path, real: str | None = None) -> bytes:
    """Read a kubeconfig.

    Args:
        path: the path of the file.
        real: the checked target of ``path``, if there is one. This file is read; ``path`` appears in messages only.

    Raises:
        KubeconfigError: the file cannot be read, is not a regular file or is too large.
    """
    try:
        return read_regular(real or path, MAX_BYTES).data
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: cannot be read: {error.strerror}; check its path and mode") from None


def parse_document(data: bytes, origin: str, base: Path | None) -> Document:
    """Parse one kubeconfig. ``base`` is the folder that relative paths in it start from.

    Raises:
        KubeconfigError: the document does not parse or is not a kubeconfig.
    """
    root = parse_yaml(data, origin)
    if root is None:
        raise KubeconfigError(f"{origin}: empty; write the file with: kubectl config view --flatten --minify")
    if not isinstance(root, Map):
        raise KubeconfigError(f"{origin}: not a kubeconfig: a mapping with clusters, contexts and users is expected")
    kind = root.get("kind", "Config")
    if kind != "Config" or root.get("apiVersion", "v1") != "v1":
        hint = "; give the decoded value of its key, not the Secret" if kind == "Secret" else ""
        raise KubeconfigError(f"{origin}: not a kubeconfig: kind Config of apiVersion v1 is expected{hint}")
    current = root.get("current-context") or None
    if current is not None and not isinstance(current, str):
        raise KubeconfigError(f"{origin}: current-context: must be text; put it in quotes")
    sections = (_entries(root, f"{kind}s", kind, origin, base) for kind in ("context", "cluster", "user"))
    return Document(origin, current, *sections)


def _entries(root: Map, section: str, kind: str, origin: str, base: Path | None) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    listed = root.get(section)
    if listed is None:
        return found
    if not isinstance(listed, list):
        raise KubeconfigError(
            f"{origin}:{root.lines[section]}: {section}: must be a list of entries with name and {kind}"
        )
    for index, item in enumerate(listed):
        name = item.get("name") if isinstance(item, Map) else None
        if not isinstance(name, str) or not name:
            raise KubeconfigError(f"{origin}: {section}[{index}]: needs a name (text; put it in quotes)")
        if name in found:
            raise KubeconfigError(f"{origin}: {section}[{index}]: the name {quote(name)} is taken; rename one")
        body = item.get(kind)
        found[name] = Entry(body if isinstance(body, Map) else Map(), origin, base)
    return found


def merged(documents: Sequence[Document]) -> Document:
    """Merge kubeconfigs by the rule of KUBECONFIG: the first file that defines a name or the current context wins."""
    first, *others = documents
    for other in others:
        first = Document(
            f"{first.origin}, {other.origin.removeprefix('kubeconfig ')}",
            first.current_context or other.current_context,
            {**other.contexts, **first.contexts},
            {**other.clusters, **first.clusters},
            {**other.users, **first.users},
        )
    return first


def quote(name: str) -> str:
    """Quote an untrusted name for a message: printable, on one line, at most 100 characters of it."""
    return ascii(name if len(name) <= 100 else name[:99] + "…") if not name.isprintable() else f'"{name[:100]}"'
