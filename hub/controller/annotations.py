"""Reads the annotations that a cloud declares from a Service."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hub.cloud.balancers import Annotation, Setting
from hub.errors import did_you_mean
from hub.model import Finding

LONGEST: Final = 1024
"""Most characters of a value."""
MOST: Final = 2**32 - 1
_LABEL: Final = r"[A-Za-z0-9][A-Za-z0-9._/-]*=[A-Za-z0-9._-]*"


class Read(NamedTuple):
    """What a Service asks for.

    Attributes:
        settings: name of an annotation -> value.
        findings: annotations without effect.
        refused: what is wrong with the first invalid one; "" if all are valid.
    """

    settings: Mapping[str, Setting]
    findings: tuple[Finding, ...] = ()
    refused: str = ""


def read(written: Mapping[str, str], declared: Sequence[Annotation], prefix: str) -> Read:
    """Read the annotations of a Service.

    Args:
        written: all annotations of the Service.
        declared: those that the cloud understands.
        prefix: what their keys begin with.
    """
    settings: dict[str, Setting] = {}
    findings: list[Finding] = []
    refused = ""
    known = {each.key or prefix + each.name for each in declared}
    for each in declared:
        key = each.key or prefix + each.name
        present = [found for found in (key, *each.aliases) if found in written]
        if not present:
            continue
        if len(present) > 1:
            findings.append(_ignored(present[1], f"{present[0]} counts"))
        text = written[present[0]]
        if problem := _problem(each, text):
            refused = refused or f"annotation {present[0]} {problem}"
        else:
            settings[each.name] = _parsed(each, text)
    aliases = {alias for each in declared for alias in each.aliases}
    findings += [
        _ignored(key, did_you_mean(key, sorted(known), "the cloud does not know it"))
        for key in sorted(written)
        if prefix and key.startswith(prefix) and key not in known and key not in aliases
    ]
    return Read(settings, tuple(findings), refused)


def written_key(each: Annotation, written: Mapping[str, str], prefix: str) -> str:
    """The key under which a Service has an annotation; if it has none, the usual one."""
    usual = each.key or prefix + each.name
    return next((key for key in (usual, *each.aliases) if key in written), usual)


def _problem(each: Annotation, text: str) -> str:
    """Why a value is not valid; "" if it is."""
    if len(text) > LONGEST or not text.isprintable():
        return f"must be at most {LONGEST} printable characters"
    if not text.strip() and each.kind not in ("list", "labels") and not each.empty:
        return "must have a value"
    shown = repr(text[:40])
    if each.kind == "number" and (not re.fullmatch(r"[0-9]+", text) or int(text) > MOST):
        return f"must be a whole number from 0 to {MOST}, not {shown}"
    if each.kind == "choice" and text not in each.values:
        return f"must be one of {', '.join(each.values)}, not {shown}"
    if each.kind == "flag" and text not in ("true", "false"):
        return f"must be true or false, not {shown}"
    if each.kind == "labels" and (wrong := [part for part in _parts(text) if not re.fullmatch(_LABEL, part)]):
        return f"must be labels of Nodes as KEY=VALUE, separated by commas, not {wrong[0][:40]!r}"
    if each.kind == "text" and each.values and not re.fullmatch(each.values[0], text.strip()):
        return f"is not valid: {shown}"
    return ""


def _parsed(each: Annotation, text: str) -> Setting:
    if each.kind == "number":
        return int(text)
    if each.kind == "flag":
        return int(text == "true")
    return _parts(text) if each.kind in ("list", "labels") else text.strip()


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for item in text.split(",") if (part := item.strip()))


def _ignored(key: str, why: str) -> Finding:
    return Finding("AnnotationIgnored", f"annotation {key[:120]} has no effect: {why}", (key,))
