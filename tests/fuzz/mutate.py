"""Damages valid documents: their structure or their bytes.

A random document would be refused at its first byte, before most code is reached. So every input starts as a valid
document, and every edit leaves most of it unchanged. An example is a document with up to eight edits; each intermediate
state is an input.
"""

# ruff: noqa: E501 - tables of inputs

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from hypothesis import strategies as st

LARGEST: Final = 1 << 20
"""The most bytes of an input: several edits may multiply its parts."""
EDITS: Final = 8

NASTY: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 65536, 1 << 31, 1 << 63, 1 << 64, -(1 << 63) - 1, 10**400, 0.5, 1e308, math.nan,
    math.inf, "", " ", "\x00", "a\nb: c", "\r\nX: y", "\x1b[2J", "\ud800", "\udfff\ud800", "\u202e", "ÿ", "\ufeff",
    "x" * 300, "x" * 70_000, "-", "~", "../..", "/dev/zero", "/proc/self/environ", "${HOME}", "{{7*7}}", "<script>",
    "127.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "fe80::1%eth0", "010.0.0.1", "10.0.0.1/8", "0.0.0.0/0",
    "2026-01-01T00:00:00Z", "9999-12-31T23:59:59+99:99", "0001-01-01T00:00:00-23:59", "1h", "-1s", "9" * 400 + "s", "9" * 5_000,
    "None", "True", "1e999", "0x10", "null", "https://[::1", "https://x:99999999", "-----BEGIN CERTIFICATE-----",
    [], {}, [[]], [None], {"": ""}, {"name": None}, [{}] * 200, {str(n): n for n in range(200)},
)  # fmt: skip
"""Values that have broken programs."""

TOKENS: Final = (
    b"", b"\x00", b"\n", b"\r\n", b"\t", b" ", b"'", b'"', b"\\", b"\\u", b"\\ud800", b"{", b"}", b"[", b"]", b":", b",",
    b"- ", b"#", b"&a ", b"*a", b"!!python/object:os.system ", b"<<: ", b"%YAML 1.1\n---\n", b"---\n", b"...\n", b"|\n",
    b"? ", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"-", b"0x", b"\xff", b"\xc3\x28", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\xf4\x90\x80\x80", "\u2028".encode(), b"\x7f", b"\x1b[2J", b"[" * 5_000, b"{\"a\":" * 3_000,
    b"HTTP/1.1 200 OK\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"k8s\x00",
    b"\xff" * 10, b"\x80" * 10, b"%00", b"%2e%2e/", b"../", b"//", b"?" * 100, b"x" * 10_000,
)  # fmt: skip

Path = tuple[str | int, ...]
Dump = Callable[[Any], bytes]


def as_json(tree: Any) -> bytes:
    """Encode a tree as JSON, with surrogates escaped."""
    return json.dumps(tree).encode()


@st.composite
def edited(draw: st.DrawFn, trees: Sequence[Any], dumps: Sequence[Dump] = (as_json,)) -> list[bytes]:
    """States of a document whose structure is edited: values replaced, keys renamed, parts removed, moved or multiplied."""
    tree = copy.deepcopy(draw(st.sampled_from(trees)))
    dump = draw(st.sampled_from(dumps))
    states = []
    for _ in range(draw(st.integers(1, EDITS))):
        tree = _edit(draw, tree)
        state = dump(tree)
        if len(state) > LARGEST:
            break
        states.append(state)
    return states


@st.composite
def damaged(
    draw: st.DrawFn, documents: Sequence[bytes], tokens: Sequence[bytes] = TOKENS, largest: int = LARGEST
) -> list[bytes]:
    """States of a document with edits to its bytes."""
    data = draw(st.sampled_from(documents))
    states = []
    for _ in range(draw(st.integers(1, EDITS))):
        data = _damage(draw, data, tokens, documents)[:largest]
        states.append(data)
    return states


def _edit(draw: st.DrawFn, tree: Any) -> Any:
    """Apply one edit, in place if possible."""
    paths = list(_paths(tree))
    path = draw(st.sampled_from(paths))
    kind = draw(st.sampled_from(("value", "value", "value", "drop", "rename", "wrap", "graft", "many")))
    if not path:
        return copy.deepcopy(draw(st.sampled_from(NASTY))) if kind == "value" else [tree] if kind == "wrap" else tree
    parent: Any = _at(tree, path[:-1])
    last: Any = path[-1]
    match kind:
        case "value":
            parent[last] = copy.deepcopy(draw(st.sampled_from(NASTY)))
        case "drop":
            del parent[last]
        case "rename" if isinstance(parent, dict):
            key = draw(
                st.sampled_from(("", "name", "kind", "\ud800", "x" * 300, "a\nb", str(last)[:-1], str(last) + "s"))
            )
            parent[key] = parent.pop(last)
        case "wrap":
            parent[last] = draw(st.sampled_from(([parent[last]], {"items": parent[last]}, str(parent[last])[:1000])))
        case "graft":
            parent[last] = copy.deepcopy(_at(tree, draw(st.sampled_from(paths))))
        case "many" if isinstance(parent, list):
            parent.extend([copy.deepcopy(parent[last])] * draw(st.sampled_from((1, 10, 300))))
        case _:
            parent[last] = [parent[last]] * 3
    return tree


def _damage(draw: st.DrawFn, data: bytes, tokens: Sequence[bytes], documents: Sequence[bytes]) -> bytes:
    at = draw(st.integers(0, len(data)))
    size = draw(st.sampled_from((1, 1, 2, 8, 64, 1024)))
    kind = draw(st.sampled_from(("flip", "insert", "replace", "delete", "double", "cut", "splice", "many")))
    match kind:
        case "flip" if at < len(data):
            return data[:at] + bytes((data[at] ^ 1 << draw(st.integers(0, 7)),)) + data[at + 1 :]
        case "insert" | "replace":
            token = draw(st.sampled_from(tokens))
            return data[:at] + token + data[at + (0 if kind == "insert" else len(token)) :]
        case "delete":
            return data[:at] + data[at + size :]
        case "double":
            return data[: at + size] + data[at:]
        case "cut":
            return data[:at]
        case "splice":
            return data[:at] + draw(st.sampled_from(documents))[at:]
        case _:
            return data[:at] + data[at : at + size] * draw(st.sampled_from((3, 50, 1000))) + data[at:]


def _paths(tree: Any, path: Path = ()) -> list[Path]:
    """The paths of all parts of a tree; the whole tree comes first."""
    found = [path]
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        found += _paths(value, (*path, key))
        if len(found) > 5_000:
            break
    return found


def _at(tree: Any, path: Path) -> Any:
    for step in path:
        tree = tree[step]
    return tree
