"""The figures of the last ``make mutants``, per module, as the table of docs/mutation.md.

Called by the Makefile after mutmut; standard library only. Fails where too many survive.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Final

RESULTS: Final = Path("mutants")
LEAST: Final = 90.0
"""Per cent that must be killed."""

SURVIVED: Final = frozenset({0})
UNTESTED: Final = frozenset({5, 33})
"""Exit codes of pytest that ran no test, and of mutmut where no test calls the function."""


def main() -> int:
    """Print the table; 1 where less than :data:`LEAST` per cent were killed, or none were tried."""
    total: Counter[str] = Counter()
    rows = ["| module | mutants | killed | survived | no test | killed, % |", "|---|---|---|---|---|---|"]
    for file in sorted(RESULTS.rglob("*.py.meta")):
        found = Counter(map(outcome, json.loads(file.read_text())["exit_code_by_key"].values()))
        found.pop("not run", None)
        if found:
            total += found
            rows.append(row(str(file.relative_to(RESULTS).with_suffix("")), found))
    rows.append(row("all", total))
    print("\n".join(rows))  # noqa: T201
    return 0 if killed(total) >= LEAST else 1


def outcome(exit_code: int | None) -> str:
    """What became of one mutant: failing tests, a crash and a timeout all count as killed."""
    if exit_code is None:
        return "not run"
    return "survived" if exit_code in SURVIVED else "no test" if exit_code in UNTESTED else "killed"


def killed(found: Counter[str]) -> float:
    """Per cent, rounded down."""
    return found["killed"] * 1000 // max(1, found.total()) / 10


def row(name: str, found: Counter[str]) -> str:
    """One line of the table."""
    columns = (found.total(), found["killed"], found["survived"], found["no test"], killed(found))
    return f"| {name} | {' | '.join(map(str, columns))} |"


if __name__ == "__main__":
    sys.exit(main())
