"""The fault table: each row has a fault, a promise, and a play. ``docs/reliability.md`` is generated from it.

Promises are in seconds. They follow from the hub's own timeouts: ten seconds to connect, eighty of silence on a watch,
ten for a write, three for the Lease (a leader stops writing after ten), and retries that start at about one second and
double. Faults last only seconds, so that the first retry after the fault comes within one of these times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tests.faults import plays
from tests.faults.plays import (
    GONE,
    NODE_WATCH,
    SLICE_WATCH,
    STATUS,
    Play,
    answer_all_with,
    door,
    hub_fault,
    inventory,
    relist_fault,
    remote_fault,
    write_fault,
)
from tests.support.faults.proxy import EVERYTHING, Door, Fault, Kind, answer, where


class Place(StrEnum):
    """The kind of site on which a row is played."""

    FLEET = "a cluster behind a proxy, beside many others of one hub"
    STORM = "sixteen clusters behind proxies, of a hub of their own"
    REMOTE = "a hub of its own, and a remote API server that nobody else needs"
    CLOUD = "a cluster whose addresses a cloud knows"
    INVENTORY = "a cluster that is a program's output"
    LANE = "a hub of its own, with a proxy before the hub cluster"
    PROXIED = "a hub of its own, with a proxy before the remote cluster"
    REPLICAS = "two replicas of a hub of their own"
    ALONE = "a hub of its own, while nothing else happens"


@dataclass(frozen=True)
class Promise:
    """Seconds within which something must happen.

    Attributes:
        detect: the status shows a problem; None = it need not.
        recover: changes made during the fault are published; counts from the end of the fault, or from the change if
            the fault does not delay it.
        others: a change of another cluster is published during the fault; None = it may wait too.
    """

    detect: float | None
    recover: float
    others: float | None = 5.0


@dataclass(frozen=True)
class Row:
    """A fault, with its promise and its play.

    Attributes:
        name: name of the test.
        fault: description of the fault.
        holds: seconds that the fault lasts at least.
        through: the change must be published while the fault lasts.
        after: the change is made after the fault, because it is impossible before.
        always: part of ``make test``; other rows run with ``--nightly``.
        group: heading in the table: the connection or process that is affected.
    """

    name: str
    fault: str
    promise: Promise
    play: Play
    holds: float = 5.0
    through: bool = False
    after: bool = False
    always: bool = False
    group: str = ""
    place: Place = Place.FLEET


NODE_LIST: Final = where("list", resource="nodes")
LEASE: Final = where(resource="leases")
SLICE_LIST: Final = where("list", resource="endpointslices")
AGAIN: Final = Fault(Kind.INSERT, SLICE_WATCH, body=GONE, times=1)
UNAVAILABLE: Final = answer(503, "Service Unavailable", json.dumps({**STATUS, "code": 503, "message": "away"}).encode())
BUSY: Final = answer(429, "Too Many Requests", b"Too many requests.", "text/plain", "Retry-After: 2")
FORBIDDEN: Final = answer(403, "Forbidden", json.dumps({**STATUS, "code": 403, "reason": "Forbidden"}).encode())
LOGIN: Final = answer(200, "OK", b"<html><body>Please log in</body></html>", "text/html")


def _group(name: str, place: Place, *rows: Row) -> tuple[Row, ...]:
    return tuple(replace(row, group=name, place=place if row.place is Place.FLEET else row.place) for row in rows)


# One line per row.
# ruff: noqa: E501
# fmt: off
_WATCH = _group(
    "The watch of a remote cluster's Nodes", Place.FLEET,
    Row("watch-latency", "0.5 s later, each way", Promise(None, 5), remote_fault(Kind.LATENCY, NODE_WATCH, 0.5), through=True),
    Row("watch-bandwidth", "5 kB a second", Promise(None, 30), remote_fault(Kind.BANDWIDTH, NODE_WATCH, 5e3), through=True),
    Row("watch-blackhole", "nothing arrives, 5 s", Promise(None, 5), remote_fault(Kind.BLACKHOLE, NODE_WATCH)),
    Row("watch-unheard", "a node not Ready, then nothing arrives, not even that it is Ready again within its grace, 40 s",
        Promise(None, 15), plays.missed_recovery, holds=40),
    Row("watch-silence", "this connection is forgotten; new ones work", Promise(None, 95), plays.silenced_connections, holds=0),
    Row("watch-reset", "RST, 5 s", Promise(5, 10), remote_fault(Kind.RESET, NODE_WATCH), always=True),
    Row("watch-half-close", "FIN by the server, 5 s", Promise(5, 10), remote_fault(Kind.HALF_CLOSE, NODE_WATCH)),
    Row("watch-tls-cut", "ends without TLS's own end, 5 s", Promise(5, 10), remote_fault(Kind.TLS_CUT, NODE_WATCH)),
    Row("watch-truncated", "cut inside an event, 5 s", Promise(5, 10), remote_fault(Kind.TRUNCATE, NODE_WATCH, 100), always=True),
    Row("watch-expired", "410 in the stream", Promise(None, 5), relist_fault(Kind.LATENCY, NODE_LIST), holds=0),
)
_LIST = _group(
    "The list of a remote cluster's Nodes, made necessary by a 410", Place.FLEET,
    Row("list-latency", "1 s later, each way", Promise(None, 15), relist_fault(Kind.LATENCY, NODE_LIST, 1.0), through=True),
    Row("list-bandwidth", "20 kB a second", Promise(None, 30), relist_fault(Kind.BANDWIDTH, NODE_LIST, 20e3), through=True),
    Row("list-blackhole", "nothing arrives, 5 s", Promise(5, 5), relist_fault(Kind.BLACKHOLE, NODE_LIST)),
    Row("list-silence", "never an answer, 62 s", Promise(5, 70), relist_fault(Kind.SILENCE, NODE_LIST), holds=62),
    Row("list-reset", "RST, 5 s", Promise(5, 10), relist_fault(Kind.RESET, NODE_LIST), always=True),
    Row("list-half-close", "FIN by the server, 5 s", Promise(5, 10), relist_fault(Kind.HALF_CLOSE, NODE_LIST)),
    Row("list-tls-cut", "ends without TLS's own end, 5 s", Promise(5, 10), relist_fault(Kind.TLS_CUT, NODE_LIST)),
    Row("list-truncated", "ends after 2,000 bytes, 5 s", Promise(5, 10), relist_fault(Kind.TRUNCATE, NODE_LIST, 2000)),
)
_CONNECTION = _group(
    "Every connection to a remote cluster", Place.FLEET,
    Row("refused", "refused, 5 s", Promise(5, 10), door(Door.REFUSED), always=True),
    Row("dropped", "no answer to a SYN, 12 s", Promise(5, 20), door(Door.DROPPED), holds=12),
    Row("silent", "accepted, no TLS handshake, 12 s", Promise(5, 20), door(Door.SILENT), holds=12),
    Row("slammed", "ends inside the TLS handshake, 5 s", Promise(5, 10), door(Door.SLAMMED)),
    Row("dead", "the network is gone, until that is noticed", Promise(95, 45), plays.dead_network),
    Row("flapping", "RST every 300 ms, 6 s", Promise(None, 10), plays.flapping, holds=0),
    Row("wrong-certificate", "another authority's, 5 s", Promise(5, 10), plays.wrong_certificate, always=True),
    Row("renewed-certificate", "of the same authority, connections reset", Promise(None, 5), plays.renewed_certificate, 0),
    Row("expired-token", "401, until the file has another one", Promise(15, 20), plays.wrong_token),
    Row("busy", "429 with Retry-After: 2, 5 s", Promise(5, 10), answer_all_with(BUSY)),
    Row("unavailable", "503, 5 s", Promise(5, 10), answer_all_with(UNAVAILABLE)),
    Row("forbidden", "403, 5 s", Promise(5, 10), answer_all_with(FORBIDDEN)),
    Row("login-page", "200 with a login page, 5 s", Promise(5, 10), answer_all_with(LOGIN)),
    Row("storm", "RST for 16 clusters at once, 3 times", Promise(None, 10), plays.storm, holds=0, place=Place.STORM),
)
_WRITE = _group(
    "Writes of one Service's slices", Place.LANE,
    Row("write-latency", "1 s later, each way", Promise(None, 6), write_fault(Kind.LATENCY, 1.0), through=True),
    Row("write-bandwidth", "500 bytes a second", Promise(None, 15), write_fault(Kind.BANDWIDTH, 500), through=True),
    Row("write-blackhole", "nothing arrives, 5 s", Promise(None, 5), write_fault(Kind.BLACKHOLE)),
    Row("write-silence", "never an answer, 12 s", Promise(12, 10), write_fault(Kind.SILENCE), holds=12),
    Row("write-reset", "RST before the server has it, 5 s", Promise(5, 10), write_fault(Kind.RESET), always=True),
    Row("write-half-close", "FIN by the server, 5 s", Promise(5, 10), write_fault(Kind.HALF_CLOSE)),
    Row("write-tls-cut", "ends without TLS's own end, 5 s", Promise(5, 10), write_fault(Kind.TLS_CUT)),
    Row("write-truncated", "committed; the answer is cut, 5 s", Promise(None, 5), write_fault(Kind.TRUNCATE, 20), through=True),
    Row("write-answer-lost", "committed; RST instead of the answer, 5 s", Promise(None, 5), write_fault(Kind.LOSE_ANSWER),
        through=True, always=True),
    Row("write-busy", "429 with Retry-After: 2, 5 s", Promise(5, 10), write_fault(Kind.ANSWER, body=BUSY)),
    Row("write-unavailable", "503, 5 s", Promise(5, 10), write_fault(Kind.ANSWER, body=UNAVAILABLE)),
)
_LEASE = _group(
    "The Lease: ten seconds without a renewal end the right to write", Place.LANE,
    Row("lease-latency", "1 s later, each way, 12 s", Promise(None, 5), hub_fault(Kind.LATENCY, LEASE, 1.0), 12, through=True),
    Row("lease-bandwidth", "100 bytes a second, 6 s", Promise(6, 5), hub_fault(Kind.BANDWIDTH, LEASE, 100), 6, through=True),
    Row("lease-blackhole", "nothing arrives, 6 s", Promise(6, 5), hub_fault(Kind.BLACKHOLE, LEASE), 6, through=True),
    Row("lease-lost", "RST, 20 s: the hub ceases to write", Promise(5, 10, None), hub_fault(Kind.RESET, LEASE), 20, after=True),
    Row("lease-reset", "RST, 5 s", Promise(5, 5), hub_fault(Kind.RESET, LEASE), through=True, always=True),
    Row("lease-half-close", "FIN by the server, 5 s", Promise(5, 5), hub_fault(Kind.HALF_CLOSE, LEASE), through=True),
    Row("lease-tls-cut", "ends without TLS's own end, 5 s", Promise(5, 5), hub_fault(Kind.TLS_CUT, LEASE), through=True),
    Row("lease-answer-lost", "committed; RST, 5 s", Promise(5, 5), hub_fault(Kind.LOSE_ANSWER, LEASE), through=True),
    Row("lease-truncated", "committed; the answer is cut, 5 s", Promise(5, 5), hub_fault(Kind.TRUNCATE, LEASE, 20), through=True),
)
_SLICES = _group(
    "The watch and the list of slices in the hub cluster", Place.LANE,
    Row("slices-latency", "0.5 s later, each way", Promise(None, 5), hub_fault(Kind.LATENCY, SLICE_WATCH, 0.5), through=True),
    Row("slices-bandwidth", "200 bytes a second", Promise(None, 5), hub_fault(Kind.BANDWIDTH, SLICE_WATCH, 200), through=True),
    Row("slices-blackhole", "nothing arrives, 6 s", Promise(None, 5), hub_fault(Kind.BLACKHOLE, SLICE_WATCH), 6, through=True),
    Row("slices-reset", "RST, 5 s", Promise(5, 5), hub_fault(Kind.RESET, SLICE_WATCH), through=True),
    Row("slices-half-close", "FIN by the server, 5 s", Promise(5, 5), hub_fault(Kind.HALF_CLOSE, SLICE_WATCH), through=True),
    Row("slices-tls-cut", "ends without TLS's own end, 5 s", Promise(5, 5), hub_fault(Kind.TLS_CUT, SLICE_WATCH), through=True),
    Row("slices-truncated", "cut inside an event, 5 s", Promise(5, 5), hub_fault(Kind.TRUNCATE, SLICE_WATCH, 100), through=True),
    Row("slices-relist", "410, then lists are cut, 5 s", Promise(5, 5),
        hub_fault(Kind.TRUNCATE, SLICE_LIST, 1000, first=(AGAIN,)), through=True, always=True),
    Row("hub-api-reset", "RST for every request to the hub cluster, 5 s", Promise(5, 10, None),
        hub_fault(Kind.RESET, EVERYTHING)),
)
_CLOUD = _group(
    "A provider's list of a cloud (IONOS, once a second)", Place.CLOUD,
    Row("cloud-latency", "1 s later, each way", Promise(None, 20), remote_fault(Kind.LATENCY, EVERYTHING, 1.0), through=True),
    Row("cloud-bandwidth", "2 kB a second", Promise(None, 30), remote_fault(Kind.BANDWIDTH, EVERYTHING, 2e3), through=True),
    Row("cloud-blackhole", "nothing arrives, 5 s", Promise(None, 15), remote_fault(Kind.BLACKHOLE, EVERYTHING)),
    Row("cloud-reset", "RST, 5 s", Promise(10, 20), remote_fault(Kind.RESET, EVERYTHING), always=True),
    Row("cloud-half-close", "FIN by the server, 5 s", Promise(10, 20), remote_fault(Kind.HALF_CLOSE, EVERYTHING)),
    Row("cloud-tls-cut", "ends without TLS's own end, 5 s", Promise(10, 20), remote_fault(Kind.TLS_CUT, EVERYTHING)),
    Row("cloud-truncated", "each answer is cut, 5 s", Promise(10, 20), remote_fault(Kind.TRUNCATE, EVERYTHING, 200)),
)
_COMMAND = _group(
    "A provider's command (inventory, once a second)", Place.INVENTORY,
    Row("command-half", "half a document, 5 s", Promise(5, 5), inventory("half"), always=True),
    Row("command-hangs", "hangs, killed after 2 s, 5 s", Promise(6, 6), inventory("hang")),
    Row("command-killed", "kill -9 while it prints, 5 s", Promise(5, 5), inventory("kill")),
    Row("command-fails", "exit code 1 after a whole document, 5 s", Promise(5, 5), inventory("fail")),
    Row("command-silent", "prints nothing, 5 s", Promise(5, 5), inventory("silent")),
    Row("command-floods", "prints without an end, 5 s", Promise(6, 6), inventory("flood")),
    Row("command-record", "one record without an address, the oldest missing, 5 s", Promise(None, 5), inventory("record")),
)
_REMOTE = _group(
    "A remote cluster's processes", Place.REMOTE,
    Row("remote-killed", "kube-apiserver: kill -9, started 5 s later", Promise(5, 15), plays.killed_server,
        after=True, always=True),
    Row("remote-restarted", "kube-apiserver: SIGTERM, started at once", Promise(None, 10), plays.restarted_server, 0,
        after=True),
    Row("remote-paused", "kube-apiserver: SIGSTOP, 5 s", Promise(None, 5), plays.paused_server, after=True),
    Row("remote-frozen", "kube-apiserver: SIGSTOP, until that is noticed", Promise(95, 45), plays.paused_server,
        after=True),
    Row("remote-etcd-killed", "etcd: kill -9, started 5 s later", Promise(None, 15), plays.killed_etcd, after=True),
    Row("remote-etcd-paused", "etcd: SIGSTOP, 8 s", Promise(None, 5), plays.paused_etcd, 8, after=True),
    Row("remote-compacted", "history compacted, kube-apiserver restarted", Promise(None, 10), plays.compacted, 0,
        after=True),
)
_OWN = _group(
    "The hub cluster's processes", Place.ALONE,
    Row("hub-api-killed", "kube-apiserver: kill -9, started 5 s later", Promise(5, 20, None), plays.killed_server,
        always=True),
    Row("hub-api-restarted", "kube-apiserver: SIGTERM, started at once", Promise(None, 20, None), plays.restarted_server, 0),
    Row("hub-api-paused", "kube-apiserver: SIGSTOP, 5 s", Promise(6, 10, None), plays.paused_server),
    Row("hub-api-frozen", "kube-apiserver: SIGSTOP, 20 s: the hub ceases to write", Promise(6, 20, None),
        plays.paused_server, 20),
    Row("hub-etcd-killed", "etcd: kill -9, started 5 s later", Promise(6, 20, None), plays.killed_etcd),
    Row("hub-etcd-paused", "etcd: SIGSTOP, 20 s: the hub ceases to write", Promise(6, 20, None), plays.paused_etcd, 20),
    Row("hub-compacted", "history compacted, kube-apiserver restarted", Promise(None, 20, None), plays.compacted, 0),
)
_PROCESS = _group(
    "The hub's own process", Place.LANE,
    Row("process-killed", "kill -9, started at once: the old Lease has to run out", Promise(None, 45, None),
        plays.killed_hub, 0),
    Row("process-ended", "SIGTERM, started at once", Promise(None, 30, None), plays.ended_hub, 0, always=True),
    Row("process-paused", "SIGSTOP, 5 s", Promise(None, 3, None), plays.paused_hub),
    Row("process-suspended", "SIGSTOP, 20 s, longer than its Lease", Promise(None, 10, None), plays.paused_hub, 20),
    Row("process-alone", "kill -9, started while a remote cluster refuses, 25 s", Promise(None, 45, None),
        plays.restarted_alone, 25, place=Place.PROXIED),
    Row("replica-killed", "two replicas, the leader: kill -9", Promise(None, 20, None), plays.killed_leader, 0,
        place=Place.REPLICAS),
    Row("replica-paused", "two replicas, the leader: SIGSTOP until the other has written", Promise(None, 20, None),
        plays.paused_hub, through=True, place=Place.REPLICAS),
)
# fmt: on

ROWS: Final = (
    *(*_WATCH, *_LIST, *_CONNECTION, *_WRITE, *_LEASE, *_SLICES),
    *(*_CLOUD, *_COMMAND, *_REMOTE, *_OWN, *_PROCESS),
)
