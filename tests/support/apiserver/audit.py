"""Requests to an API server, read from its audit log: an independent count of the hub's reads and writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tests.support.api import Object

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "Request", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {
            "level": "Request",
            "verbs": ["update"],
            "resources": [{"group": "netinfra.darkbrains.com", "resources": ["netipallocations/status"]}],
        },
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the API server answered, from its audit log.

    Attributes:
        uri: path and query.
        received, ended: Unix time by the server's clock; for a watch, of its start.
        holder: the holder in a Lease that was written, "" = none; None if the request wrote no whole Lease.
        record: the status of an allocation that was written; None if the request wrote none.
    """

    user: str
    agent: str
    verb: str
    resource: str
    namespace: str
    name: str
    status: int
    uri: str
    received: float
    ended: float
    holder: str | None = None
    record: Object | None = None

    @property
    def writes(self) -> bool:
        """Whether the verb is one that changes objects."""
        return self.verb in {"create", "update", "patch", "delete", "deletecollection"}


class Mark(NamedTuple):
    """A moment in a log: its length in bytes, and the time. A request answered before it may be logged after it."""

    place: int = 0
    time: float = 0.0


BEGINNING = Mark()


def read(log: Path, since: Mark = BEGINNING) -> list[Request]:
    """The requests received after a mark, each once: the log has a watch twice, at its start and its end."""
    with log.open("rb") as file:
        file.seek(since.place)
        text = file.read()
    # An incomplete last line is read next time.
    events = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    first: dict[str, Request] = {}
    for event in events:
        first.setdefault(event["auditID"], _request(event))
    return [request for request in first.values() if request.received >= since.time]


def _request(event: Object) -> Request:
    target, written = event.get("objectRef", {}), event.get("requestObject") or {}
    resource = "/".join(filter(None, (target.get("resource", ""), target.get("subresource"))))
    return Request(
        user=event["user"]["username"],
        agent=event.get("userAgent", ""),
        verb=event["verb"],
        resource=resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        status=event.get("responseStatus", {}).get("code", 0),
        uri=event["requestURI"],
        received=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        ended=datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
        holder=written["spec"].get("holderIdentity") or "" if resource == "leases" and "spec" in written else None,
        record=written.get("status") if resource == "netipallocations/status" else None,
    )
