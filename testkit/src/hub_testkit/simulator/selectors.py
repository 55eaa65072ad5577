"""Label and field selectors, parsed and matched as by the API server."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from hub_testkit.simulator.answers import Refusal

Labels = Mapping[str, str]
Match = Callable[[Labels], bool]

_TOKEN = re.compile(r"\s*(?:(?P<op>==|!=|[=,()!<>])|(?P<word>[^\s=,()!<>]+))")
_SET_OPERATORS = ("in", "notin")


def label_matcher(selector: str) -> Match:
    """Returns a predicate for ``labelSelector``; the empty selector matches everything.

    Raises:
        Refusal: 400: the selector does not parse.
    """
    requirements = _Parser(selector).requirements() if selector.strip() else []
    return lambda labels: all(requirement(labels) for requirement in requirements)


def field_matcher(selector: str, known: Collection[str]) -> Callable[[Callable[[str], str]], bool]:
    """Returns a predicate for ``fieldSelector``; its argument returns the value of a field.

    Args:
        selector: the selector.
        known: the fields that it may name.

    Raises:
        Refusal: 400: the selector does not parse, or names another field.
    """
    wanted: list[tuple[str, bool, str]] = []
    for term in filter(None, selector.split(",")):
        key, operator, value = _split_field(term)
        if key not in known:
            names = ", ".join(f'"{name}"' for name in known)
            raise Refusal(400, f'"{key}" is not a known field selector: only {names}')
        wanted.append((key, operator != "!=", value))
    return lambda value_of: all((value_of(key) == value) is equal for key, equal, value in wanted)


def _split_field(term: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        key, found, value = term.partition(operator)
        if found:
            return key.strip(), operator, value
    raise Refusal(400, f"invalid selector: '{term}'; can't understand '{term}'")


class _Parser:
    """A recursive descent parser of selectors."""

    def __init__(self, text: str) -> None:
        self._pieces = [match["op"] or match["word"] for match in _TOKEN.finditer(text)]
        self._at = 0

    def requirements(self) -> list[Match]:
        found = [self._requirement()]
        while self._peek() == ",":
            self._next()
            found.append(self._requirement())
        if self._peek():
            raise _unparsable(self._peek(), "',' or 'end of string'")
        return found

    def _peek(self) -> str:
        """Returns the next token; "" at the end."""
        return self._pieces[self._at] if self._at < len(self._pieces) else ""

    def _next(self) -> str:
        piece = self._peek()
        self._at += 1
        return piece

    def _word(self, expected: str = "identifier") -> str:
        piece = self._next()
        if not piece or piece in "(),=!<>" or piece in ("==", "!="):
            raise _unparsable(piece, expected)
        return piece

    def _requirement(self) -> Match:
        if self._peek() == "!":
            self._next()
            key = self._word()
            return lambda labels: key not in labels
        if self._peek() in ("=", "==", "!=", "<", ">", ",", "(", ")"):
            raise Refusal(400, f"found '{self._peek()}', expected: !, identifier, or 'end of string'")
        key = self._word()
        operator = self._peek()
        if operator in ("", ","):
            return lambda labels: key in labels
        self._next()
        if operator in _SET_OPERATORS:
            values = self._set()
            return (
                (lambda labels: labels.get(key) in values)
                if operator == "in"
                else (lambda labels: labels.get(key) not in values)
            )
        if operator in ("=", "==", "!="):
            value = "" if self._peek() in ("", ",") else self._word()
            return (
                (lambda labels: labels.get(key) != value)
                if operator == "!="
                else (lambda labels: labels.get(key) == value)
            )
        if operator in ("<", ">"):
            return self._ordered(key, operator)
        raise _unparsable(operator, "in, notin, =, ==, !=, gt, lt")

    def _ordered(self, key: str, operator: str) -> Match:
        limit = int(self._word())
        return lambda labels: (
            labels.get(key, "").isdigit()
            and (int(labels[key]) > limit if operator == ">" else int(labels[key]) < limit)
        )

    def _set(self) -> frozenset[str]:
        if self._next() != "(":
            raise _unparsable(self._pieces[self._at - 1] if self._at <= len(self._pieces) else "", "'('")
        values: set[str] = set()
        while True:
            values.add("" if self._peek() in (",", ")") else self._word())
            separator = self._next()
            if separator == ")":
                return frozenset(values)
            if separator != ",":
                raise _unparsable(separator, "',' or ')'")


def _unparsable(found: str, expected: str) -> Refusal:
    return Refusal(400, f"unable to parse requirement: found '{found}', expected: {expected}")
