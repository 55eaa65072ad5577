"""Plays rows and measures the results.

Many clusters of the fleet are broken at the same time, since none may affect another. Rows with their own hub run two
at a time. Rows that break the hub cluster run alone, at the end.
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
"""The number of clusters of the fleet that are broken at the same time."""
TOGETHER = 2
"""The number of rows with their own hub that run at the same time, on two cores."""
STRAINED = 5.0
"""The largest factor by which a busy machine extends the promised times."""
SLACK = 30.0
"""Seconds to wait beyond a promise, so that a late result is measured instead of missing."""


@dataclass
class Measured:
    """The results of a row.

    Attributes:
        detect: seconds until the status showed a problem; None = never.
        recover: seconds until the changes were published; None = never.
        others: the longest time until a change of the control cluster was published, in seconds.
        strain: factor by which work took longer than on an idle machine, at most ``STRAINED``.
        writes: writes of the row's slices since the start of the fault.
        changes: changes made since then.
        asked: requests through the cluster's proxy, per second.
        failure: the error that stopped the play; "" = none.
        offences: the judge's offences.
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
    """The results of all rows.

    Attributes:
        lost: why the recording is incomplete; "" if it is not.
        elsewhere: offences in the control cluster's Services, which belong to no row.
        unexplained: slices with more accepted writes than changes.
    """

    rows: dict[str, Measured]
    lost: str
    commits: int
    elsewhere: list[str]
    unexplained: list[str]


def perform(stage: Stage, row: Row, site: Site) -> Measured:
    """Break, change, heal and wait; returns the measured times."""
    found = Measured()
    promise = row.promise
    site.trouble()  # imports the modules that answer status requests
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
    mine = [
        commit
        for commit in stage.recording.commits[before:]
        if commit.slice is not None and commit.slice.set == site.set
    ]
    found.recover = max(0.0, mine[-1].at - due)
    found.strain = max(found.strain, strain())
    end = max(time.monotonic(), began + 2 * CHURN + 1)
    time.sleep(max(0.0, end - time.monotonic()) + 1)
    found.others = site.lane.others(began, end - 1)
    found.writes = sum(
        commit.slice is not None and commit.slice.set == site.set for commit in stage.recording.commits[before:]
    )
    if site.proxy is not None:
        found.asked = (len(site.proxy.requests) - asked) / (time.monotonic() - began)
    return found


def strain() -> float:
    """How many times as long as on an idle machine 50 ms of work takes now: 1 to ``STRAINED``."""
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < 0.05:
        pass
    return min(STRAINED, max(1.0, (time.monotonic() - began) / 0.05))


def _change(site: Site, found: Measured) -> float:
    """Add a node and remove another; returns the time of the removal."""
    site.add_node()
    site.remove_oldest_node()
    found.changes += 2
    return time.monotonic()


class Players:
    """Plays rows on a stage, several at a time, and stores the results."""

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
            for future in work:
                future.result()
        self._alone([row for row in rows if row.place is Place.ALONE])

    def _fleet(self, rows: list[Row]) -> None:
        """Play rows that share a hub."""
        if not rows:
            return
        rows.sort(key=_length, reverse=True)
        try:
            with fleet(self._stage, rows) as sites, ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda row: self._perform(row, sites[row.name], {sites[row.name].set}), rows))
        except Exception:  # noqa: BLE001 - an error is the result of the affected rows
            self._failed(rows)

    def _alone(self, rows: list[Row]) -> None:
        """Play rows with their own hub, one after the other."""
        for row in rows:
            try:
                with own_lane(self._stage, row) as site:
                    self._perform(row, site, {other.set for other in site.lane.sites})
            except Exception:  # noqa: BLE001 - an error is the result of the row
                self._failed([row])

    def _perform(self, row: Row, site: Site, sets: set[Set]) -> None:
        try:
            found = perform(self._stage, row, site)
        except Exception:  # noqa: BLE001 - an error is the result of the row
            found = Measured(failure=traceback.format_exc()[-3000:])
        with self._lock:
            self.measured[row.name], self.sets[row.name] = found, sets
            with (self._stage.folder / "rows.jsonl").open("a") as file:  # to follow a long run
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
    for offence in offences:
        owners = [name for name, mine in sets.items() if offence.set in mine]
        for name in owners:
            measured[name].offences.append(f"{offence.kind}: {offence.text}")
        if not owners:
            elsewhere.append(offence)
    writes = [
        f"{request.namespace}/{_name(request.name, request.uri)}"
        for request in stage.hub_server.requests(stage.mark, "hub")
        if request.verb == "update" and request.resource == "endpointslices" and request.status < 300
    ]
    return Outcome(
        measured,
        stage.recording.lost,
        len(stage.recording.commits),
        [f"{offence.kind}: {offence.set.service}: {offence.text}" for offence in elsewhere],
        accepted(stage.recording.commits, writes),
    )


def _length(row: Row) -> float:
    """The approximate duration of a row in seconds."""
    return max(row.holds, row.promise.detect or 0.0) + row.promise.recover


def _name(name: str, uri: str) -> str:
    return name or uri.partition("?")[0].rpartition("/")[2]


RESULTS = ROOT / "build" / "faults.json"
