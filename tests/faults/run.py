"""Plays rows and measures them.

Clusters of the fleet are broken many at once, since none may hurt another; hubs of their own some at a time; what
breaks the hub cluster itself comes last and alone.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

from tests.faults.places import fleet, own_lane
from tests.faults.rows import Place, Row
from tests.faults.stage import CHURN, Site, Stage, watch_for
from tests.support.faults.judge import Offence, Set, accepted, judge
from tests.support.hub import ROOT

FLEET = (Place.FLEET, Place.CLOUD, Place.INVENTORY)
AT_ONCE = 16
"""Clusters of the fleet that are broken at the same time."""
TOGETHER = 2
"""Hubs of their own at a time, on two cores."""
STRAINED = 5.0
"""The most that a busy machine excuses."""
SLACK = 30.0
"""Seconds that are waited beyond a promise, so that what is late is measured and not only missed."""


@dataclass
class Measured:
    """What came of a row.

    Attributes:
        detect: seconds until the status said something; None = it did not.
        recover: seconds until what had changed was published; None = it was not.
        others: the latest publication of a change of the control cluster, seconds after it.
        strain: how many times as long as on an idle machine things took meanwhile, at most ``STRAINED``.
        writes: of the row's slices from the fault on.
        changes: made meanwhile.
        asked: requests that came through the cluster's proxy, per second.
        failure: what went wrong in playing it; "" = nothing.
        offences: of the judge.
    """

    detect: float | None = None
    recover: float | None = None
    others: float = 0.0
    strain: float = 1.0
    writes: int = 0
    changes: int = 0
    asked: float = 0.0
    failure: str = ""
    said: str = ""
    offences: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of all of them.

    Attributes:
        lost: why the recording cannot be relied upon; "" while it can.
        elsewhere: offences in what no row is about: the control cluster's Services.
        unexplained: slices with more accepted writes than changes.
    """

    rows: dict[str, Measured]
    lost: str
    commits: int
    elsewhere: list[str]
    unexplained: list[str]


def perform(stage: Stage, row: Row, site: Site) -> Measured:
    """Break, change, heal, wait; how long each took."""
    found = Measured()
    promise = row.promise
    site.trouble()  # so that the hub has loaded what answers
    found.strain = strain()
    before = len(stage.recording.commits)
    asked = len(site.proxy.requests) if site.proxy is not None else 0
    began = time.monotonic()
    changed: float | None = None
    with row.play(site):
        if not row.after:
            changed = _change(site, found)
        if promise.detect is not None:
            found.detect = watch_for(lambda: bool(site.trouble()), promise.detect + SLACK - (time.monotonic() - began))
            if found.detect is not None:
                found.detect, found.said = time.monotonic() - began, site.trouble()
        if row.through:
            stage.recording.wait(site.published, promise.recover + SLACK)
        time.sleep(max(0.0, began + row.holds - time.monotonic()))
    healed = time.monotonic()
    found.strain = max(found.strain, strain())
    if changed is None:
        changed = _change(site, found)
    due = changed if row.through or row.holds == 0 else max(healed, changed)
    site.await_published(promise.recover + SLACK - (time.monotonic() - due))
    mine = [each for each in stage.recording.commits[before:] if each.slice is not None and each.slice.set == site.set]
    found.recover = max(0.0, mine[-1].at - due)
    found.strain = max(found.strain, strain())
    end = max(time.monotonic(), began + 2 * CHURN + 1)
    time.sleep(max(0.0, end - time.monotonic()) + 1)
    found.others = site.lane.others(began, end - 1)
    found.writes = sum(
        each.slice is not None and each.slice.set == site.set for each in stage.recording.commits[before:]
    )
    if site.proxy is not None:
        found.asked = (len(site.proxy.requests) - asked) / (time.monotonic() - began)
    return found


def strain() -> float:
    """How many times as long as on an idle machine a twentieth of a second of work takes now, 1 to ``STRAINED``."""
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < 0.05:
        pass
    return min(STRAINED, max(1.0, (time.monotonic() - began) / 0.05))


def _change(site: Site, found: Measured) -> float:
    """A node comes, another one goes; when the latter was so."""
    site.come()
    site.go()
    found.changes += 2
    return time.monotonic()


class Players:
    """They play rows on a stage, several at a time, and note what came of each."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lock = threading.Lock()
        self.measured: dict[str, Measured] = {}
        self.sets: dict[str, set[Set]] = {}

    def play(self, rows: Sequence[Row]) -> None:
        """Play all rows."""
        lanes = [row for row in rows if row.place not in {*FLEET, Place.REMOTE, Place.ALONE}]
        with ThreadPoolExecutor(2 + TOGETHER) as pool:
            work = [pool.submit(self._fleet, [row for row in rows if row.place in FLEET])]
            work.append(pool.submit(self._alone, [row for row in rows if row.place is Place.REMOTE]))
            work += [pool.submit(self._alone, lanes[number::TOGETHER]) for number in range(TOGETHER)]
            for each in work:
                each.result()
        self._alone([row for row in rows if row.place is Place.ALONE])

    def _fleet(self, rows: list[Row]) -> None:
        """Rows that share a hub."""
        if not rows:
            return
        rows.sort(key=_length, reverse=True)
        try:
            with fleet(self._stage, rows) as sites, ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda row: self._perform(row, sites[row.name], {sites[row.name].set}), rows))
        except Exception:  # noqa: BLE001 - what fails is the result of the rows it concerns
            self._failed(rows)

    def _alone(self, rows: list[Row]) -> None:
        """Rows with a hub of their own, one after the other."""
        for row in rows:
            try:
                with own_lane(self._stage, row) as site:
                    self._perform(row, site, {each.set for each in site.lane.sites})
            except Exception:  # noqa: BLE001 - likewise
                self._failed([row])

    def _perform(self, row: Row, site: Site, sets: set[Set]) -> None:
        try:
            found = perform(self._stage, row, site)
        except Exception:  # noqa: BLE001 - likewise
            found = Measured(failure=traceback.format_exc()[-3000:])
        with self._lock:
            self.measured[row.name], self.sets[row.name] = found, sets
            with (self._stage.folder / "rows.jsonl").open("a") as file:  # for whoever cannot wait
                file.write(json.dumps({"row": row.name, **asdict(found)}) + "\n")

    def _failed(self, rows: Iterable[Row]) -> None:
        failure = Measured(failure=traceback.format_exc()[-3000:])
        with self._lock:
            for row in rows:
                self.measured.setdefault(row.name, failure)


def play(stage: Stage, rows: Iterable[Row]) -> Outcome:
    """Play all rows, and judge the whole history."""
    players = Players(stage)
    players.play(list(rows))
    return _judged(stage, players.measured, players.sets)


def _judged(stage: Stage, measured: dict[str, Measured], sets: Mapping[str, set[Set]]) -> Outcome:
    stage.finish()
    offences = judge(stage.recording.commits, stage.truth)
    elsewhere: list[Offence] = []
    for each in offences:
        owners = [name for name, mine in sets.items() if each.set in mine]
        for name in owners:
            measured[name].offences.append(f"{each.kind}: {each.text}")
        if not owners:
            elsewhere.append(each)
    writes = [
        f"{each.namespace}/{_name(each.name, each.uri)}"
        for each in stage.hub_server.requests(stage.mark, "hub")
        if each.verb == "update" and each.resource == "endpointslices" and each.status < 300
    ]
    return Outcome(
        measured,
        stage.recording.lost,
        len(stage.recording.commits),
        [f"{each.kind}: {each.set.service}: {each.text}" for each in elsewhere],
        accepted(stage.recording.commits, writes),
    )


def _length(row: Row) -> float:
    """About how long it takes."""
    return max(row.holds, row.promise.detect or 0.0) + row.promise.recover


def _name(name: str, uri: str) -> str:
    return name or uri.partition("?")[0].rpartition("/")[2]


RESULTS = ROOT / "build" / "faults.json"
