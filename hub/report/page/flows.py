"""The map of clusters and Services: which lines it has, what is folded into groups, and where everything is drawn.

Pure functions of a status. Lengths are in pixels at the default font size; the page stretches the drawing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from os.path import commonprefix
from typing import Final, NamedTuple

from hub.model import LOCAL
from hub.report.page.search import EVERYTHING, PROBLEMS, Search
from hub.report.page.signs import Sign, cluster_sign, service_sign
from hub.report.values import Cluster, Service, Source, Status

MOST: Final = 14
"""Most boxes in a column of the map; if there are more objects, some are folded into groups."""
ROW: Final = 52.0
"""Height of a box, as in page.css."""
WIDEST: Final = 30.0
"""Width of all lines of the box with the most endpoints."""
NARROWEST: Final = 2.0
"""Width of a line without endpoints, or with few."""

KINDS: Final = ("bad", "warn", "idle", "good")
"""Kinds of signs, the worst first."""
FOLDED: Final = {"bad": "not working", "warn": "with problems", "idle": "waiting or paused", "good": "fine"}
"""Kind -> words for a group whose members have different signs."""


class Item(NamedTuple):
    """A cluster or a Service. ``note`` is a number in words, or ""; ``href`` is "" if it has no page."""

    name: str
    sign: Sign
    note: str
    href: str


class Box(NamedTuple):
    """A box in a column of the map: one object, or a group of ``members``."""

    label: str
    sign: Sign
    note: str
    href: str
    members: tuple[str, ...]


class Link(NamedTuple):
    """The endpoints of one cluster in one Service."""

    cluster: str
    service: str
    sign: Sign
    ready: int
    total: int


class Line(NamedTuple):
    """A line of the map: its path, its width, and the middle of the line in per cent of the height."""

    path: str
    width: float
    middle: float
    sign: Sign
    text: str


class Map(NamedTuple):
    """The whole drawing."""

    clusters: tuple[Box, ...] = ()
    services: tuple[Box, ...] = ()
    lines: tuple[Line, ...] = ()
    height: float = 0.0
    endpoints: int = 0


def drawn(status: Status, search: Search = EVERYTHING) -> Map:
    """The map of what a search finds, and of everything that is linked to it."""
    clusters = {cluster.name: _cluster(cluster) for cluster in status.clusters}
    services = {service.name: _service(service) for service in status.services}
    links = [link for service in status.services for link in _links(service)]
    for link in links:
        clusters.setdefault(link.cluster, _unlisted(link.cluster))
    found = {
        item.name for item in (*clusters.values(), *services.values()) if search.matches(item.name, item.sign.kind)
    }
    links = [link for link in links if link.cluster in found or link.service in found]
    shown = found.union(*((link.cluster, link.service) for link in links))
    return placed(
        folded([item for item in clusters.values() if item.name in shown], "cluster", search),
        folded([item for item in services.values() if item.name in shown], "Service", search),
        links,
    )


def _cluster(cluster: Cluster) -> Item:
    nodes = "" if cluster.nodes is None else _number(cluster.nodes, "node")
    return Item(cluster.name, cluster_sign(cluster), nodes, f"/clusters/{cluster.name}")


def _unlisted(name: str) -> Item:
    """A source that the table of clusters does not list: the hub cluster, or a cluster that is no longer a source."""
    words = "hub cluster" if name == LOCAL else "not in the registry"
    return Item(name, Sign("idle", "○", words), "", f"/clusters/{name}" if name == LOCAL else "")


def _service(service: Service) -> Item:
    return Item(
        service.name, service_sign(service), f"{service.ready}/{service.total} ready", f"/services/{service.name}"
    )


def _links(service: Service) -> Iterable[Link]:
    held = {removal.cluster for removal in service.withheld}
    for source in service.sources:
        yield Link(source.cluster, service.name, _link_sign(source, source.cluster in held), source.ready, source.total)


def _link_sign(source: Source, held: bool) -> Sign:
    if source.unknown:
        return Sign("warn", "?", "source unknown")
    if held:
        return Sign("warn", "!", "removal withheld")
    if not source.total:
        return Sign("idle", "○", "no endpoints")
    if not source.ready:
        return Sign("bad", "✗", "nothing ready")
    return Sign("good", "✓", "ready") if source.ready == source.total else Sign("warn", "!", "not all ready")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


# --- groups --------------------------------------------------------------------------------------------


def folded(items: Sequence[Item], what: str, search: Search = EVERYTHING, most: int = MOST) -> tuple[Box, ...]:
    """At most ``most`` boxes for these items: groups by state, then by the beginning of the name.

    Problems come first, and stay single boxes as long as there is room.

    Args:
        items: clusters or Services.
        what: "cluster" or "Service".
        search: the search of the page, which links of groups narrow.
        most: number of boxes, at least four.
    """
    if len(items) <= most:
        return tuple(map(_single, items))
    kinds = [(kind, [item for item in items if item.sign.kind == kind]) for kind in KINDS]
    kinds = [(kind, members) for kind, members in kinds if members]
    boxes: list[Box] = []
    for later, (kind, members) in zip(range(len(kinds) - 1, -1, -1), kinds, strict=True):
        room = most - len(boxes) - later  # each later kind needs one box
        for beginning, group in by_beginning(members, room).items():
            boxes.append(_single(group[0]) if len(group) == 1 else _group(kind, beginning, group, what, search))
    return tuple(boxes)


def by_beginning(items: Sequence[Item], most: int) -> Mapping[str, list[Item]]:
    """At most ``most`` groups of items: single items if possible, else by the next part or character of their names."""
    common = commonprefix([item.name for item in items])  # noqa: RUF071 - by characters, names are no paths
    for part in (r".*", r"[^-./]*[-./]?", r".?"):
        groups: dict[str, list[Item]] = {}
        for item in sorted(items):
            end = re.compile(part, re.DOTALL).match(item.name, len(common))
            assert end is not None  # noqa: S101 - every part matches ""
            groups.setdefault(item.name[: end.end()], []).append(item)
        if len(groups) <= most:
            return groups
    return {common: list(items)}


def _single(item: Item) -> Box:
    return Box(item.name, item.sign, item.note, item.href, (item.name,))


def _group(kind: str, beginning: str, group: Sequence[Item], what: str, search: Search) -> Box:
    signs = {item.sign for item in group}
    words = signs.pop().words if len(signs) == 1 else FOLDED[kind]
    count = _number(len(group), what)
    found = Search(beginning or search.text, search.problems or kind in PROBLEMS)
    href = found.address if found != search else f"#h-{what.lower()}s"
    sign = Sign(kind, group[0].sign.symbol, words)
    return Box(f"{beginning}…" if beginning else count, sign, count, href, tuple(item.name for item in group))


# --- lines ---------------------------------------------------------------------------------------------


def placed(clusters: tuple[Box, ...], services: tuple[Box, ...], links: Iterable[Link]) -> Map:
    """The drawing of these boxes, with one line for each pair of boxes that is linked."""
    left = {name: number for number, box in enumerate(clusters) for name in box.members}
    right = {name: number for number, box in enumerate(services) for name in box.members}
    joined: dict[tuple[int, int], list[Link]] = {}
    for link in links:
        joined.setdefault((left[link.cluster], right[link.service]), []).append(link)
    totals = {pair: sum(link.total for link in found) for pair, found in joined.items()}
    sums: Counter[tuple[int, int]] = Counter()
    for pair, total in totals.items():
        sums.update({(0, pair[0]): total, (1, pair[1]): total})
    most = max(sums.values(), default=0)
    widths = {pair: max(NARROWEST, WIDEST * total / most if most else 0.0) for pair, total in totals.items()}
    height = ROW * max(len(clusters), len(services))
    starts = _stacked(widths, 0, height / max(1, len(clusters)))
    ends = _stacked(widths, 1, height / max(1, len(services)))
    lines: list[Line] = []
    for pair, found in joined.items():
        start, end = starts[pair], ends[pair]
        sign = min((link.sign for link in found), key=lambda sign: KINDS.index(sign.kind))
        words = f"{sum(link.ready for link in found)}/{totals[pair]} ready"
        words += "" if sign.kind == "good" else f", {sign.words}"
        lines.append(
            Line(
                f"M0 {start:.1f}C50 {start:.1f} 50 {end:.1f} 100 {end:.1f}",
                round(widths[pair], 1),
                round((start + end) / 2 / height * 100, 1),
                sign,
                f"{clusters[pair[0]].label} → {services[pair[1]].label}: {words}",
            )
        )
    lines.sort(key=lambda line: -KINDS.index(line.sign.kind))  # problems are drawn last, on top
    return Map(clusters, services, tuple(lines), height, sum(totals.values()))


def _stacked(widths: Mapping[tuple[int, int], float], side: int, row: float) -> Mapping[tuple[int, int], float]:
    """Where each line meets its box, from the top: next to each other, in the order of their other ends."""
    found: dict[tuple[int, int], float] = {}
    for box, pairs in groupby(
        sorted(widths, key=lambda pair: (pair[side], pair[1 - side])), key=lambda pair: pair[side]
    ):
        every = list(pairs)
        at = (box + 0.5) * row - sum(widths[pair] for pair in every) / 2
        for pair in every:
            found[pair] = at + widths[pair] / 2
            at += widths[pair]
    return found
