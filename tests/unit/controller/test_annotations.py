"""Annotations that a cloud declares."""

from __future__ import annotations

import pytest

from hub.controller.annotations import Read, read
from tests.support.balancing import ANNOTATIONS, PREFIX


def look(**written: str) -> Read:
    """What annotations with the prefix say; ``_`` stands for ``-``."""
    return read({PREFIX + name.replace("_", "-"): text for name, text in written.items()}, ANNOTATIONS, PREFIX)


def test_annotations_become_settings() -> None:
    """Each kind has its own type of value; lists lose the blanks around their items and empty items."""
    found = look(policy="first", interval="5", names=" a.example.com, ,b.example.com ", internal="true")
    assert found.settings == {
        "policy": "first",
        "interval": 5,
        "names": ("a.example.com", "b.example.com"),
        "internal": 1,
    }
    assert (found.findings, found.refused) == ((), "")


def test_an_annotation_with_a_key_of_its_own_is_read() -> None:
    """A declared key need not begin with the prefix."""
    assert read({"other.example.com/path": "/check"}, ANNOTATIONS, PREFIX).settings == {"path": "/check"}


def test_annotations_of_others_mean_nothing() -> None:
    """Keys without the prefix are neither settings nor findings."""
    assert read({"example.com/policy": "first"}, ANNOTATIONS, PREFIX) == Read({})


@pytest.mark.parametrize("text", ["-1", "1e3", "4294967296", "", " ", "five", "1_0", "٣"])
def test_a_number_out_of_range_is_refused(text: str) -> None:
    """Numbers are whole and from 0 to 2**32 - 1 (row 2)."""
    assert look(interval=text).refused
    assert look(interval=text).settings == {}


@pytest.mark.parametrize("text", ["0", "4294967295", "0005"])
def test_a_number_in_range_is_taken(text: str) -> None:
    """Both ends of the range are allowed, and leading zeros."""
    assert look(interval=text).settings == {"interval": int(text)}


def test_an_unknown_choice_is_refused_with_the_values() -> None:
    """The message has the key, the possible values and what was written (row 1)."""
    refused = look(policy="random-walk").refused
    assert refused == "annotation toy.example.com/policy must be one of first, random, not 'random-walk'"


@pytest.mark.parametrize(
    ("name", "text"), [("internal", "yes"), ("internal", "True"), ("policy", ""), ("policy", "first ")]
)
def test_other_invalid_values_are_refused(name: str, text: str) -> None:
    """Flags are true or false, exactly; a choice is one of its values, exactly."""
    assert look(**{name: text}).refused


def test_a_text_must_match_its_pattern_wholly() -> None:
    """A match at the beginning is not enough."""
    assert read({"other.example.com/path": "/check?x"}, ANNOTATIONS, PREFIX).refused


@pytest.mark.parametrize("text", ["a" * 1025, "a\x00b", "a\nb"])
def test_a_value_that_cannot_be_shown_is_refused_without_it(text: str) -> None:
    """More than 1,024 characters, or control characters, are refused and never quoted (row 15)."""
    refused = look(names=text).refused
    assert refused == "annotation toy.example.com/names must be at most 1024 printable characters"


def test_an_alias_means_the_same() -> None:
    """A declared alias sets the setting."""
    assert look(old_interval="7").settings == {"interval": 7}
    assert look(old_interval="7").findings == ()


def test_the_right_key_counts_beside_its_alias() -> None:
    """With both, the alias has no effect, and a finding says so (row 4)."""
    found = look(interval="5", old_interval="7")
    assert found.settings == {"interval": 5}
    assert [(each.reason, each.objects) for each in found.findings] == [
        ("AnnotationIgnored", ("toy.example.com/old-interval",))
    ]


def test_an_unknown_key_is_reported_with_the_nearest_one() -> None:
    """A key with the prefix that nobody declares has no effect; the finding names the nearest."""
    [finding] = look(polices="first").findings
    assert finding.reason == "AnnotationIgnored"
    assert "did you mean toy.example.com/policy?" in finding.message


def test_the_first_mistake_is_the_message_and_the_valid_ones_count() -> None:
    """Valid settings are read beside a mistake, in the order of the declaration."""
    found = look(policy="wrong", interval="-1", names="a")
    assert "policy" in found.refused
    assert found.settings == {"names": ("a",)}
