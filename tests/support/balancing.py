"""A cloud in memory, with a plugin: load balancers, groups of nodes, and addresses. Lists lag behind, answers get lost.

The cloud itself judges what must never happen: a second object of a name and kind, a change of an object that is not
the hub's, and a balancer whose nodes are taken away.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from hub.plugin.clouds import (
    Annotation,
    Balancer,
    CloudConflict,
    CloudType,
    Done,
    Ingress,
    Marker,
    Planned,
    Record,
    Refused,
    Step,
    Uncertain,
)
from hub.runtime.clock import Clock

KINDS: Final = ("address", "group", "balancer")
PREFIX: Final = "toy.example.com/"
PROVIDER_ID: Final = re.compile(r"toy://(?P<id>[a-z0-9-]+)")
ANNOTATIONS: Final = (
    Annotation("policy", "choice", "How connections are spread.", ("first", "random")),
    Annotation("interval", "number", "Milliseconds between checks.", aliases=("toy.example.com/old-interval",)),
    Annotation("names", "list", "Names of the certificate."),
    Annotation("path", "text", "Path of the check.", (r"/[a-z]*",), key="other.example.com/path"),
    Annotation("internal", "flag", "Whether it has no public address."),
    Annotation("on", "labels", "Labels of the Nodes that take the traffic."),
)


def _cannot_open(*_: object) -> Any:
    raise NotImplementedError


TOY: Final = CloudType(_cannot_open, PROVIDER_ID, prefix=PREFIX, annotations=ANNOTATIONS, settle=(0.05, 0.2))


class Thing(msgspec.Struct, frozen=True):
    """An object of the cloud.

    Attributes:
        marker: what its description says; "" for an object that a person made.
        holds: for an address, the id of its balancer.
    """

    id: str
    kind: str
    name: str
    marker: str = ""
    nodes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    holds: str = ""


Seen = Mapping[str, Thing]


class ToyCloud:
    """The truth, and what its lists show.

    Args:
        clock: where time comes from.
        rng: decides about lag; None = no lag.
        lag: seconds for which a list may show an object as it was.

    Attributes:
        things: what there is, by id.
        foreign: ids that must stay as they are.
        breaches: what must never happen, and did.
        calls: each write that arrived, as a summary.
        fault: called with each step before it is made; returns "before" or "after" for a lost answer, or "".
    """

    def __init__(self, clock: Clock, rng: random.Random | None = None, lag: float = 0.0) -> None:
        self.things: dict[str, Thing] = {}
        self.foreign: set[str] = set()
        self.breaches: list[str] = []
        self.calls: list[str] = []
        self.fault: Callable[[Step], str] = lambda _: ""
        self.observations = 0
        self._clock = clock
        self._rng = rng
        self._lag = lag
        self._number = 0
        self._past: list[tuple[float, dict[str, Thing]]] = []
        """(until when it was so, what there was)"""
        self._late: list[tuple[float, Step]] = []
        self._at: float | None = None
        """When the request arrived that is being made; None = now."""

    # --- what people do ----------------------------------------------------------------------------------

    def add(self, kind: str, name: str, marker: str = "", *, foreign: bool = True) -> str:
        """A person makes an object; the hub must not change it if it is ``foreign``."""
        thing = Thing(self._id(kind), kind, name, marker)
        self._set(thing)
        if foreign:
            self.foreign.add(thing.id)
        return thing.id

    def lose(self, id_: str) -> None:
        """A person deletes an object."""
        self.arrive()
        self._remember()
        self.things.pop(id_, None)

    def of(self, name: str) -> dict[str, Thing]:
        """Kind -> the object of a name that the hub made."""
        return {thing.kind: thing for thing in self.things.values() if thing.name == name and not self._kept(thing)}

    def _kept(self, thing: Thing) -> bool:
        return thing.id in self.foreign

    # --- the API -----------------------------------------------------------------------------------------

    def list(self) -> Seen:
        """All objects; each kind's list may be old."""
        self.observations += 1
        self.arrive()
        now = self._clock.now()
        found: dict[str, Thing] = {}
        for kind in KINDS:
            state = self.things
            if self._rng is not None:
                at = now - self._rng.choice((0.0, 0.0, self._rng.random() * self._lag))
                state = next((past for until, past in self._past if until > at), self.things)
            found |= {id_: thing for id_, thing in state.items() if thing.kind == kind}
        return found

    def write(self, step: Step) -> Done:
        """Make one step.

        Raises:
            Uncertain: the answer is lost; with ``before`` the step may still be made some seconds later.
            CloudConflict: an object is in use, or gone.
        """
        self.arrive()
        lost = self.fault(step)
        if lost == "before":
            if self._rng is not None and self._rng.random() < 0.5:
                self._late.append((self._clock.now() + self._rng.random() * 4, step))
            raise Uncertain(f"{step.summary}: no answer")
        done = self._make(step)
        if lost == "after":
            raise Uncertain(f"{step.summary}: the answer is lost")
        return done

    def arrive(self, *, all_: bool = False) -> None:
        """Requests whose senders have gone arrive."""
        now = self._clock.now()
        due = sorted(((at, step) for at, step in self._late if all_ or at <= now), key=lambda late: late[0])
        self._late = [late for late in self._late if late not in due]
        for at, step in due:
            self._at = min(at, now)
            try:
                self._make(step)
            except CloudConflict:
                continue
            finally:
                self._at = None

    # --- inside ------------------------------------------------------------------------------------------

    def _make(self, step: Step) -> Done:
        self.calls.append(step.summary)
        request = step.request
        if step.creates:
            thing = Thing(self._id(step.creates), step.creates, request["name"], request["marker"])
            thing = replace(thing, nodes=tuple(request.get("nodes", ())), ports=tuple(request.get("ports", ())))
            mine = [other for other in self.of(thing.name).values() if other.kind == thing.kind]
            if mine:
                self.breaches.append(f"a second {thing.kind} {thing.name}")
            self._set(thing)
            return Done({thing.kind: thing.id}, thing)
        found = self.things.get(request["id"])
        if found is None:
            if step.destroys:
                return Done()
            raise CloudConflict(f"{request['id']} is gone")
        if self._kept(found) and (step.destroys or not set(request) <= {"id", "holds"}):
            self.breaches.append(f"{step.summary}: {found.id} is not the hub's")
        if step.destroys:
            if found.kind == "address" and found.holds in self.things:
                raise CloudConflict(f"{found.id} is in use")
            self._remember()
            del self.things[found.id]
            return Done()
        if "nodes" in request and not request["nodes"]:
            self.breaches.append(f"{step.summary}: no nodes")
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in request.items()}
        thing = replace(found, **values)
        self._set(thing)
        return Done({}, thing)

    def _id(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number:04}"

    def _set(self, thing: Thing) -> None:
        self._remember()
        self.things[thing.id] = thing

    def _remember(self) -> None:
        if self._rng is not None:
            now = self._clock.now()
            self._past = [(until, past) for until, past in self._past if until > now - self._lag]
            self._past.append((now if self._at is None else self._at, dict(self.things)))


# --- the plugin: pure functions --------------------------------------------------------------------------


def mine(seen: Seen, record: Record) -> dict[str, Thing]:
    """The objects of a balancer: recorded ones that bear its name, else the oldest of its name."""
    names = {record.name, *record.former_names}
    found: dict[str, Thing] = {}
    for thing in (seen[id_] for id_ in sorted(seen)):
        recorded = record.ids.get(thing.kind) == thing.id
        if thing.name in names and not _others(thing, record.marker) and (recorded or thing.kind not in found):
            found[thing.kind] = thing
    return found


def _others(thing: Thing, marker: Marker) -> bool:
    read = Marker.read(thing.marker)
    return read is not None and read.cluster != marker.cluster


def plan(want: Balancer | None, seen: Seen, record: Record) -> Sequence[Planned]:
    """See :class:`hub.plugin.clouds.Balancers`."""
    return tuple(_removed(seen, record) if want is None else _ensured(want, seen, record))


def _ensured(want: Balancer, seen: Seen, record: Record) -> Iterator[Planned]:
    found = mine(seen, record)
    if any(thing.name == want.name and _others(thing, want.marker) for thing in seen.values()):
        yield Refused("CloudNameTaken", f"{want.name} belongs to another cluster")
        return
    nodes = tuple(match["id"] for node in want.nodes if (match := PROVIDER_ID.fullmatch(node.provider_id)))
    ports = tuple(port.port for port in want.ports)
    marker = str(want.marker)
    fields: dict[str, dict[str, tuple[Any, ...]]] = {"balancer": {"nodes": nodes, "ports": ports}}
    for kind in KINDS:
        wanted = fields.get(kind, {})
        if (thing := found.get(kind)) is None:
            if not want.nodes_only:
                request = {"name": want.name, "marker": marker, **{key: [*value] for key, value in wanted.items()}}
                yield Step(f"create-{kind}", f"create {kind} {want.name}", request, creates=kind)
            continue
        has: dict[str, tuple[Any, ...]] = {"nodes": thing.nodes, "ports": thing.ports}
        new: dict[str, Any] = {"name": want.name} if thing.name != want.name else {}
        new |= {key: [*value] for key, value in wanted.items() if value != has[key] and value}
        if want.nodes_only:
            new = {key: value for key, value in new.items() if key == "nodes"}
        if new:
            yield Step(f"change-{kind}", f"change {kind} {thing.id}: {sorted(new)}", {"id": thing.id, **new})
    address, balancer = found.get("address"), found.get("balancer")
    if not want.nodes_only and (address is None or balancer is None or address.holds != balancer.id):
        ids = {"id": address.id if address else "", "holds": balancer.id if balancer else ""}
        yield Step("map", f"map {ids['id'] or 'the new address'}", ids)


def _removed(seen: Seen, record: Record) -> Iterator[Planned]:
    found = mine(seen, record)
    known = bool(record.ids or record.made or record.intent)
    if (address := found.get("address")) is not None and address.holds in seen:
        yield Step("unmap", f"unmap {address.id}", {"id": address.id, "holds": ""})
    for kind in ("balancer", "address", "group"):
        if (thing := found.get(kind)) is not None and (kind != "address" or not known or kind in record.made):
            yield Step(f"delete-{kind}", f"delete {kind} {thing.id}", {"id": thing.id}, destroys=kind)


def after(seen: Seen, step: Step, done: Done) -> Seen:
    """See :class:`hub.plugin.clouds.Balancers`."""
    things = dict(seen)
    if step.destroys:
        things.pop(step.request["id"], None)
    elif step.creates:
        things.setdefault(done.answer.id, done.answer)
    elif done.answer is not None and done.answer.id in things:
        things[done.answer.id] = done.answer
    return things


def ingress(seen: Seen, record: Record) -> tuple[Ingress, ...]:
    """See :class:`hub.plugin.clouds.Balancers`."""
    found = mine(seen, record)
    address, balancer = found.get("address"), found.get("balancer")
    if address is None or balancer is None or address.holds != balancer.id:
        return ()
    return (Ingress(ip=f"203.0.113.{int(address.id.rpartition('-')[2]) % 250}"),)


class ToyBalancers:
    """The plugin's :class:`hub.plugin.clouds.Balancers`."""

    def __init__(self, cloud: ToyCloud) -> None:
        self._cloud = cloud

    async def observe(self, wanted: Collection[Balancer], /) -> Seen:
        del wanted
        return self._cloud.list()

    def names(self, seen: Seen, /) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for thing in seen.values():
            found[thing.name] = (*found.get(thing.name, ()), f"{thing.kind} {thing.id}")
        return found

    def plan(self, want: Balancer | None, seen: Seen, record: Record, /) -> Sequence[Planned]:
        return plan(want, seen, record)

    async def perform(self, step: Step, /) -> Done:
        return self._cloud.write(step)

    def after(self, seen: Seen, step: Step, done: Done, /) -> Seen:
        return after(seen, step, done)

    def found(self, seen: Seen, record: Record, /) -> Mapping[str, str]:
        return {kind: thing.id for kind, thing in mine(seen, record).items()}

    def ingress(self, want: Balancer, seen: Seen, record: Record, /) -> tuple[Ingress, ...]:
        del want
        return ingress(seen, record)
