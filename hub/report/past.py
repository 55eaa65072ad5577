"""The history of decisions as API values, and what it says about addresses, nodes and Services that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from hub.decide.history import Entries, Entry, Named
from hub.model import TargetKey
from hub.report.values import History, HistoryEndpoint, HistoryEntry, Step
from hub.runtime.clock import rfc3339

REMEMBERED: Final = 10
"""Most entries in the explanation of one subject."""

Dated = tuple[TargetKey, Entry]


def dated_entries(entries: Entries, key: TargetKey | None = None) -> list[Dated]:
    """The entries of one Service, or of all Services if ``key`` is None; oldest first."""
    if key is not None:
        return [(key, entry) for entry in entries.get(key, ())]
    all_entries = chain.from_iterable(((key, entry) for entry in ring) for key, ring in entries.items())
    return sorted(all_entries, key=lambda dated: (dated[1].at, dated[0]))


def history(entries: Entries, key: TargetKey | None, limit: int, problem: str = "") -> History:
    """The newest ``limit`` entries of one Service, or of all Services if ``key`` is None, as an API value."""
    found = dated_entries(entries, key)
    newest = found[max(0, len(found) - limit) :]
    return History(_values(newest), len(found), problem)


def _values(found: Iterable[Dated]) -> tuple[HistoryEntry, ...]:
    return tuple(
        HistoryEntry(
            rfc3339(entry.at),
            str(key),
            entry.kind,
            entry.why,
            entry.cluster,
            entry.family,
            tuple(HistoryEndpoint(named.address, named.node) for named in entry.endpoints),
            entry.count,
            entry.hash,
        )
        for key, entry in found
    )


# --- what is gone ----------------------------------------------------------------------------------


def remembered_service(entries: Entries, key: TargetKey) -> tuple[Step, ...]:
    """What the history says about a Service, oldest first."""
    return tuple(_step(key, entry, entry.endpoints[:1]) for _, entry in dated_entries(entries, key)[-REMEMBERED:])


def remembered_address(entries: Entries, address: str) -> tuple[Step, ...]:
    """What the history says about an address, oldest first."""
    return _remembered(entries, lambda named: named.address == address)


def remembered_node(entries: Entries, name: str) -> tuple[Step, ...]:
    """What the history says about a node, oldest first."""
    return _remembered(entries, lambda named: named.node == name)


def _remembered(entries: Entries, concerns: Callable[[Named], bool]) -> tuple[Step, ...]:
    found = [
        _step(key, entry, named)
        for key, entry in dated_entries(entries)
        if (named := [endpoint for endpoint in entry.endpoints if concerns(endpoint)])
    ]
    return tuple(found[-REMEMBERED:])


def _step(key: TargetKey, entry: Entry, named: Sequence[Named]) -> Step:
    return Step("history", str(key), entry.kind, f"{rfc3339(entry.at)}: {described(entry, named)}")


def described(entry: Entry, named: Sequence[Named]) -> str:
    """The endpoints, their source and the reason of an entry in one line."""
    texts = [f"{endpoint.address}, node {endpoint.node}" if endpoint.node else endpoint.address for endpoint in named]
    more = entry.count - len(named)
    what = "; ".join(texts) + (f" and {more} more" if texts and more > 0 else "")
    source = f" of {entry.cluster}" if entry.cluster and what else ""
    return f"{what}{source}: {entry.why}" if what else entry.why
