"""The tool behind `make mutants`: the changes that it makes, and its verdicts."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``tools/mutants.py``."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import mutants

    yield mutants
    sys.modules.pop("mutants", None)


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a is not b", ["a is b"]),
        ("a not  in b", ["a in b"]),
        ("(a) <= (b) > c", ["(a) < (b) > c", "(a) > (b) > c", "(a) <= (b) >= c", "(a) <= (b) <= c"]),
        ("(a  # < and or\n < b)", ["(a  # < and or\n <= b)", "(a  # < and or\n >= b)"]),
        ("'ä' in b", ["'ä' not in b"]),
        ("a and b and c", ["a or b and c", "a and b or c"]),
        ("a or (b)", ["a and (b)"]),
        ("x = not a", ["x = a"]),
        ("x = a if f(b) else c", ["x = a if (not f(b)) else c"]),
        ("[a for a in b if a]", ["[a for a in b if (not a)]"]),
        ("while a:\n    b", ["while (not a):\n    b"]),
        ("while True:\n    b", []),
        ("f(deleting=False)", ["f(deleting=True)"]),
        ("f(7, 0.5, 0.0)", ["f(8, 0.5, 0.0)", "f(7, 1.0, 0.0)", "f(7, 0.5, 1.0)"]),
        ("def f(a=True): ...", ["def f(a=False): ..."]),
        ("if a:\n    b\n    raise c", ["if (not a):\n    b\n    raise c", "if a:\n    b\n    pass"]),
        ("if TYPE_CHECKING:\n    from a import b", []),
        ("a: Literal[1] = b", []),
        ("@dataclass(frozen=True)\nclass A:\n    a: int = 1", ["@dataclass(frozen=True)\nclass A:\n    a: int = 2"]),
        ("zip(a, b, strict=True)", []),
        ("assert a == 1", []),
        ("f'{a == 1}'", []),
    ],
)
def test_mutants_are_single_changes(tool: ModuleType, source: str, changed: list[str]) -> None:
    """A mutant changes one comparison, junction, `not`, constant or early exit, and nothing else."""
    made = [each.apply(source.encode()).decode() for each in tool.mutants_of("hub/room/a.py", source.encode())]
    assert sorted(changed) == sorted(made)


def test_every_mutant_of_a_real_file_compiles(tool: ModuleType) -> None:
    """All mutants compile, because one that does not would count as killed."""
    source = (ROOT / "hub/registry/values.py").read_bytes()
    found = tool.mutants_of("hub/registry/values.py", source)
    assert len(found) > 50
    for mutant in found:
        assert ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))


def test_every_room_has_tests(tool: ModuleType) -> None:
    """Every room has tests to sample."""
    assert [room for room in {each.room for each in tool.candidates((), "")} if not tool.folders(room, ROOT)] == []


def test_a_mutant_meets_the_tests_that_call_its_function(tool: ModuleType) -> None:
    """A mutant meets the tests that call its function, else those of its file, else all of its room."""
    source = b"@cache\ndef a():\n    return not b\n\n\nLIMIT = 7\n"
    inside, outside = tool.mutants_of("hub/room/a.py", source)
    slow = tool.Test("slow", 2.0, frozenset({"room/a.py:1"}))
    fast = tool.Test("fast", 1.0, frozenset({"room/a.py:1", "room/b.py:1"}))
    same_file = tool.Test("same file", 1.5, frozenset({"room/a.py:9"}))
    elsewhere = tool.Test("elsewhere", 3.0, frozenset({"room/b.py:1"}))
    assert tool.relevant(inside, [slow, elsewhere, same_file, fast]) == [fast, slow]
    assert tool.relevant(outside, [slow, elsewhere, same_file, fast]) == [fast, same_file, slow, elsewhere]
    assert tool.relevant(inside, [same_file, elsewhere]) == [same_file]
    assert tool.relevant(outside, [elsewhere]) == [elsewhere]


def test_a_seed_draws_the_same_sample(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed draws the same sample, and another seed another one."""
    drawn = []
    for seed in ("1", "1", "2"):
        tool.main(["--rooms", "registry,kube", "--sample", "5", "--seed", seed, "--list"])
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]
    assert "5 of " in drawn[0]


@pytest.fixture
def tree(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project with a tested line and an untested one."""
    for name, text in {
        "hub/__init__.py": "",
        "hub/room/__init__.py": "",
        "hub/room/a.py": "def no(a: bool) -> bool:\n    return not a\n\n\ndef idle() -> bool:\n    return True\n",
        "tests/unit/room/test_a.py": (
            "from hub.room.a import no\n\n\ndef test_no() -> None:\n    assert no(False) is True\n"
        ),
        "tests/__init__.py": "",
        "tests/support/__init__.py": "",
        "tests/support/mutation.py": (ROOT / "tests/support/mutation.py").read_text(),
        "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if path.is_file()]
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "files", lambda: names)
    return tmp_path


def test_survivors_are_listed(tool: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Survivors are printed with place and diff, and the tree itself does not change."""
    before = (tree / "hub/room/a.py").read_text()
    code = tool.main(["--jobs", "1", "--at", "hub/room/a.py"])
    assert code == 1
    assert capsys.readouterr().out == (
        "2 mutants\n"
        "hub/room/a.py:6: boolean\n"
        "    -    return True\n"
        "    +    return False\n"
        "| room | sampled | killed | of them by timeout | survived | killed, % |\n"
        "|---|---|---|---|---|---|\n"
        "| room | 2 | 1 | 0 | 1 | 50.0 |\n"
        "| all | 2 | 1 | 0 | 1 | 50.0 |\n"
    )
    assert (tree / "hub/room/a.py").read_text() == before


def test_a_sample_that_is_killed_passes(tool: ModuleType, tree: Path) -> None:
    """The exit code is 0 if all mutants of a sample are killed."""
    assert tool.main(["--jobs", "1", "--at", "hub/room/a.py:2"]) == 0


def test_tests_that_fail_anyway_prove_nothing(tool: ModuleType, tree: Path) -> None:
    """Tests must pass without a mutant first."""
    (tree / "tests/unit/room/test_a.py").write_text("def test_it() -> None:\n    raise AssertionError\n")
    with pytest.raises(SystemExit, match="without any mutant: exit code 1"):
        tool.main(["--jobs", "1", "--at", "hub/room/a.py:2"])


def test_a_mutant_that_hangs_is_ended(
    tool: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mutant that exceeds its time counts as killed and is reported."""
    (tree / "hub/room/a.py").write_text("def no(a: bool) -> bool:\n    while a:\n        pass\n    return not a\n")
    monkeypatch.setattr(tool, "GRACE_SECONDS", 1.0)
    assert tool.main(["--jobs", "1", "--at", "hub/room/a.py:2"]) == 0
    assert "| all | 1 | 1 | 1 | 0 | 100.0 |" in capsys.readouterr().out
