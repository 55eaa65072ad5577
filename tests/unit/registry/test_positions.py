"""The YAML parser: refused features, limits, types of plain values, and places."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from hub.registry import positions
from hub.registry.positions import parse
from hub.registry.report import Report


def read(text: str) -> tuple[object, Report]:
    """Parse a text with a new report."""
    report = Report("f")
    return parse(text, report), report


def found(text: str) -> list[str]:
    """The problems of a text."""
    return [str(problem) for problem in read(text)[1].problems]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("off", "off"), ("no", "no"), ("yes", "yes"), ("true", True), ("False", False), ("~", None), ("", None),
        ("5", 5), ("-5", -5), ("+5", 5), ("0", 0), ("007", "007"), ("0x10", "0x10"), ("1_000", "1_000"),
        ("12:30", "12:30"), ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), (".nan", ".nan"), (".inf", ".inf"),
        ("1e999", "1e999"), ("9" * 30, "9" * 30), ("2024-01-01", "2024-01-01"), ("'5'", "5"), ('"true"', "true"),
        ("<<", "<<"), ("-", None), ("True", True), ("TRUE", True), ("false", False), ("FALSE", False),
        ("null", None), ("Null", None), ("NULL", None), ("1e299", 1e299), ("1e300", "1e300"), ("-1.", -1.0),
        ("9" * 18, int("9" * 18)), ("9" * 19, "9" * 19), ("1e3x", "1e3x"), ("-x", "-x"), ("007.5", "007.5"),
    ],
)  # fmt: skip
def test_plain_value_follows_the_core_schema(written: str, value: object) -> None:
    """Plain scalars follow YAML 1.2, and only numbers that JSON can represent are numbers."""
    data: Any
    data, _ = read(f"a: {written}\n") if written != "-" else ({"a": None}, None)

    assert data == {"a": value}
    assert type(data["a"]) is type(value)


def test_places_are_of_values_and_keys() -> None:
    """The report has line and column of each value and of its key."""
    _, report = read("a:\n  - b: 1\n    c: [x, y]\n")

    assert report.places["a", 0, "c", 1] == (3, 12, 3, 12)
    assert report.places["a", 0, "b"] == (2, 8, 2, 5)


def test_columns_count_characters() -> None:
    """A non-ASCII character counts as one column."""
    assert read("{ä: 1, b: 2}")[1].places["b",][:2] == (1, 11)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x 1\nb: *x\n", ["f:1:4: a: has an anchor (&x) (write the value out where it is needed)",
                              "f:2:4: b: refers to another place of the file (*alias) (write the value out)"]),
        ("&x a: 1\n", ["f:1:1: a: has an anchor (&x) (write the value out where it is needed)"]),
        ("a: !!python/name:os.system x\n",
         ["f:1:4: a: has a tag (tag:yaml.org,2002:python/name:os.system) (remove it; quotes make text)"]),
        ("a: ! x\n", ["f:1:4: a: has a tag (!) (remove it; quotes make text)"]),
        ("a: 1\nb: 2\na: 3\n", ["f:3:1: a: is written twice (first in line 1, column 1)"]),
        ("a: {b: 1, 'b': 2}\n", ["f:1:11: a.b: is written twice (first in line 1, column 5)"]),
        ("? [a]\n: 1\n", ["f:1:3: is a list or mapping used as a key (keys are text)"]),
        ("a: 1\n---\nb: 1\n", ["f:2:1: starts a second document (a registry is one document: remove the ---)"]),
        ("a: [1, 2\n", ["f:2:1: is not YAML: did not find expected ',' or ']', while parsing a flow sequence"]),
        ("a: x\x00y\n", ["f:1:5: is not YAML: it contains a control character"]),
        ("ä: ü\nä: ü\x00y\n", ["f:2:5: is not YAML: it contains a control character"]),
        ("a: @b", [("f:1:4: is not YAML: found character that cannot start any token, while scanning for the next "
                   "token (put text that starts with @ in quotes)")]),
        ("- a\n- %b", [("f:2:3: is not YAML: found character that cannot start any token, while scanning for the next "
                      "token (put text that starts with % in quotes)")]),
        ("a: `b\n", [("f:1:4: is not YAML: found character that cannot start any token, while scanning for the next "
                    "token (put text that starts with ` in quotes)")]),
        ("a: !t &x [1]\n", ["f:1:4: a: has a tag (!t) (remove it; quotes make text)",
                           "f:1:4: a: has an anchor (&x) (write the value out where it is needed)"]),
        ("!t a: &y {b: 1}\n", ["f:1:1: a: has a tag (!t) (remove it; quotes make text)",
                              "f:1:7: a: has an anchor (&y) (write the value out where it is needed)"]),
        (f"a: &{'x' * 70} !{'t' * 70} b\n",
         [f"f:1:4: a: has a tag (!{'t' * 62}) (remove it; quotes make text)",
          f"f:1:4: a: has an anchor (&{'x' * 63}) (write the value out where it is needed)"]),
    ],
)  # fmt: skip
def test_aliases_tags_and_repeated_keys_are_refused(text: str, expected: list[str]) -> None:
    """Aliases, anchors, tags, repeated keys, further documents and invalid YAML are refused with their places."""
    assert found(text) == expected


@pytest.mark.parametrize("text", ["a: 1\n---\nb: 1\n", "{[a]: 1, b: 2}\n", "a: [\n", "a: \x00\n"])
def test_text_that_is_no_single_document_gives_no_data(text: str) -> None:
    """Text that is not YAML, has a second document or a mapping as a key gives no data."""
    data, report = read(text)
    assert data is None
    assert report.fatal


def test_all_refusals_of_a_file_are_reported() -> None:
    """A refused feature does not hide later ones."""
    assert len(found("a: &x 1\nb: !t 2\nc: 3\nc: 4\nd: *x\n")) == 4


def test_alias_bomb_costs_nothing() -> None:
    """Nine levels of nine aliases each are refused without expansion."""
    lines = ['a0: &a0 ["lol"]']
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 10)]
    tracemalloc.start()

    problems = found("\n".join(lines))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(problems) == 10 + 81
    assert peak < 1_000_000


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_depth_is_bounded(opening: str) -> None:
    """A million nested levels stop the parser at level 33, without a stack overflow."""
    data, report = read(opening * 1_000_000)
    assert data is None
    assert "is nested deeper than 32 levels" in str(report.problems[-1])


def test_deepest_nesting_is_accepted() -> None:
    """A file may have exactly 32 levels."""
    assert found("[" * 32 + "]" * 32) == []
    assert found("[" * 33 + "]" * 33) == [f"f:1:33: {'[0]' * 32}: is nested deeper than 32 levels"]


def test_number_of_values_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with too many values is refused before it fills the memory."""
    monkeypatch.setattr(positions, "MAX_VALUES", 1000)

    data, report = read(f"[{'1,' * 5000}]")
    assert data is None
    assert [str(problem) for problem in report.problems] == ["f:1:2000: has more than 1,000 values"]
    assert found(f"[{'1,' * 999}]") == []


def test_number_of_problems_is_bounded() -> None:
    """After a thousand problems the report only says that there are more."""
    _, report = read("\n".join(f"a{n}: !t 1" for n in range(3000)))
    problems = [str(problem) for problem in report.problems]

    assert len(problems) == 1001
    assert problems[0] == "f: has more problems than are listed here"
    assert (report.problems[0].line, report.problems[0].column) == (0, 0)
    assert report.fatal
