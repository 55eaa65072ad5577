"""A damaged registry never causes a traceback."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hub.errors import RegistryError
from hub.registry.load import loads

EXAMPLE = (Path(__file__).parents[3] / "clusters.example.yaml").read_text()
LINES = [line for line in EXAMPLE.splitlines() if line.strip() and not line.lstrip().startswith("#")]
JUNK = ["", " ", "\t", "-", ":", "{", "}", "[", "]", "&a", "*a", "!x", "~", "null", "5", "-1", "1.5", "off", "'", '"',
        "name", "|", ">", "%", "\x00", "ÿ", "0s", "[]", "{}", "a: b", "? ", "<<: {a: 1}"]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """The example with one to four edits: values replaced by junk, lines removed, doubled, moved or cut."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["value", "insert", "drop", "double", "move", "cut", "indent"])):
            case "value":
                key, colon, _ = lines[at].partition(":")
                lines[at] = f"{key}{colon} {draw(st.sampled_from(JUNK))}"
            case "insert":
                place = draw(st.integers(0, len(lines[at])))
                junk = draw(st.one_of(st.sampled_from(JUNK), st.text(max_size=5)))
                lines[at] = lines[at][:place] + junk + lines[at][place:]
            case "drop":
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "cut":
                lines = lines[: at + 1]
            case _:
                lines[at] = "  " + lines[at]
        lines = lines or ["x"]
    return "\n".join(lines) + "\n"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_damaged_example_loads_or_names_positions(text: str) -> None:
    """A damaged file either loads or every problem has a place in it."""
    content = text.encode(errors="surrogatepass")
    try:
        problems = loads(content, "f").problems
    except RegistryError as error:
        problems = error.problems
        assert problems
    last = text.count("\n") + 2
    assert all(problem.message and 1 <= problem.line <= last and problem.column >= 1 for problem in problems)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_load_or_are_rejected(content: bytes) -> None:
    """Arbitrary bytes either load or are rejected with a message."""
    said = "nothing"
    try:
        loads(content, "f")
    except RegistryError as error:
        said = str(error)
    assert said
