"""The fault table in docs/reliability.md: ``python -m tests.faults.table`` writes the results of the last runs into it.

Rows that were not measured in these runs keep their figures.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tests.faults.rows import ROWS, Row
from tests.faults.run import RESULTS
from tests.support.hub import ROOT

PAGE: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- fault table: begin -->\n"
END: Final = "<!-- fault table: end -->\n"
HEAD: Final = (
    "| test | fault | promised: noticed · published · others | measured: noticed · published · others | lost |\n"
    "|---|---|---|---|---|\n"
)
_LINE: Final = re.compile(r"^\| `(?P<name>[a-z-]+)` \|.*\| (?P<measured>[^|]*) \| (?P<lost>[^|]*) \|$", re.MULTILINE)


def seconds(value: float | None) -> str:
    """A time with two significant digits; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def promised(row: Row) -> str:
    """The promise of a row, in one cell."""
    limits = (row.promise.detect, row.promise.recover, row.promise.others)
    return " · ".join("–" if limit is None else f"≤ {limit:g} s" for limit in limits)


def measured(row: Row, found: Mapping[str, Any]) -> tuple[str, str]:
    """The measured times and the number of lost endpoints, as two cells; dashes if the play failed."""
    others = found["others"] if row.promise.others is not None else None
    if found["failure"] or found["recover"] is None or others == float("inf"):
        return "–", "–"
    noticed = found["detect"] if row.promise.detect is not None else None
    lost = sum(offence.startswith("lost:") for offence in found["offences"])
    return " · ".join(map(seconds, (noticed, found["recover"], others))), str(lost)


def table(cells: Mapping[str, tuple[str, str]]) -> str:
    """The whole table; ``cells`` has the measured cells by row."""
    text = HEAD
    for group, rows in itertools.groupby(ROWS, key=lambda row: row.group):
        text += f"| | **{group}** | | | |\n"
        for row in rows:
            figures, lost = cells.get(row.name, ("–", "–"))
            text += f"| `{row.name}` | {row.fault} | {promised(row)} | {figures} | {lost} |\n"
    return text


def in_page(page: str) -> str:
    """The table in a page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def known(page: str) -> dict[str, tuple[str, str]]:
    """The measured cells in a page, by row."""
    return {match["name"]: (match["measured"], match["lost"]) for match in _LINE.finditer(in_page(page))}


def main() -> None:
    """Update the page."""
    page = PAGE.read_text()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    fresh = {row.name: measured(row, results[row.name]) for row in ROWS if row.name in results}
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table({**known(page), **fresh}) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
