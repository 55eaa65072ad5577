"""One Service in a cluster, the writers of the hub, and what may happen to them."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from hub.cloud.balancers import BalancerNode, BalancerPort, Ingress
from hub.controller import course, record
from hub.controller.course import Hold, Memory, Observe, Perform, Publish, Release, Rest, Scene
from hub.controller.services import BalancedService, names, role, wanted
from hub.plugin.clouds import CloudConflict, Step, Uncertain
from hub.registry.spec import CloudBalancersSpec
from tests.support.balancing import ANNOTATIONS, PREFIX, Seen, ToyCloud, after, ingress, mine, plan
from tests.support.clocks import ManualClock

CLUSTER: Final = "c1"
NAME: Final = "web.edge.eu"
LAG: Final = 20.0
"""Seconds by which lists lag behind; with a request that arrives late, less than the hub allows for."""
TAKEOVER: Final = 15.0
SPEC: Final = CloudBalancersSpec()


class StaleWrite(Exception):
    """409."""


class Lost(Exception):
    """The API server did not answer."""


class Unseen(Exception):
    """The cloud did not say what it has."""


class Refused(Exception):
    """The fence: another process may write."""


class Api:
    """The Service at the API server.

    Attributes:
        service: None if there is none.
    """

    def __init__(self, world: World) -> None:
        self.service: BalancedService | None = None
        self._world = world
        self._number = 0

    def apply(self, **fields: Any) -> None:
        """A person creates or changes the Service."""
        self._number += 1
        if self.service is None:
            uid = f"uid-{self._number}"
            self.service = BalancedService("edge", "web", uid, "0", ports=(BalancerPort(80, 30080),))
        self.service = replace(self.service, resource_version=str(self._number), **fields)

    def delete(self) -> None:
        """A person deletes the Service; it stays while it has a finalizer."""
        if self.service is not None:
            self.apply(deleting=True)
            self._sweep()

    def patch(self, seen: BalancedService, **fields: Any) -> BalancedService:
        """The hub's merge patch with uid and resourceVersion; the answer may be lost."""
        now = self.service
        if now is None or (now.uid, now.resource_version) != (seen.uid, seen.resource_version):
            raise StaleWrite
        lost = self._world.rng.random() < self._world.trouble / 2
        if lost and self._world.rng.random() < 0.5:
            raise Lost
        if replace(now, **fields) != now:
            self.apply(**fields)
        found = self.service
        assert found is not None
        self._sweep()
        if lost:
            raise Lost
        return found

    def _sweep(self) -> None:
        if self.service is not None and self.service.deleting and not self.service.finalizers:
            self.service = None


class Writer:
    """One process of the hub: what it knows, and one act at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.memory: Memory | None = None
        self.known: BalancedService | None = world.api.service
        self.seen: tuple[float, Seen] | None = None
        self.creates_after = course.NEVER
        self.rest: Rest | None = None

    def halt(self) -> None:
        """Another process writes from now on."""
        self.memory = None

    def act(self) -> None:
        """Make the next act; while the cloud does not say what it has, none."""
        self.rest = None
        try:
            self._act()
        except Unseen:
            self.world.log(f"{id(self) % 1000}: nothing is known")
            self.rest = Rest("failing", "", 5.0)

    def _act(self) -> None:
        service = self.known
        what = role(service, SPEC) if service is not None else "none"
        if service is None or what == "none":
            self.rest = Rest("none")
            return
        memory = self.memory = self.memory.of(service.uid, self.now) if self.memory else Memory(service.uid, self.now)
        named = names(service, "eu", (), CLUSTER)
        kept = record.read(service.record, named, "toy")
        want = None
        if what == "ensure":
            nodes = [BalancerNode(name, f"toy://{name}") for name in self.world.nodes]
            want = wanted(service, named, nodes, ANNOTATIONS, PREFIX)
        memory.stale = min(memory.stale, self.now)
        if want is None and memory.want is not None:
            memory.stale = self.now
        memory.wants(want.balancer if want else None)
        begun_after = max(memory.stale, self.now - SPEC.resync)
        while True:
            begun, seen = self._observe(begun_after)
            recent = memory.recent(begun)
            for step, done in recent:
                seen = after(seen, step, done)
            full = kept.full(recent)
            balancer = want.balancer if want else None
            scene = Scene(
                cluster="eu",
                cluster_name="eu",
                former_names=(),
                service=service,
                kept=kept,
                planned=plan(balancer, seen, full),
                ingress=ingress(seen, full) if want else (),
                found={kind: thing.id for kind, thing in mine(seen, full).items()},
                begun=begun,
                creates_after=self.creates_after,
                settings=tuple(sorted(balancer.settings)) if balancer else (),
                refused=want.refused if want else None,
                class_="",
                now=self.now,
                wall=self.world.clock.wall(),
                approved=lambda _: True,
            )
            act = course.ensure(scene, memory) if want else course.remove(scene, memory)
            if not isinstance(act, Observe):
                break
            begun_after = act.after
        self._carry(service, act, memory)

    @property
    def now(self) -> float:
        return self.world.clock.now()

    def _observe(self, begun_after: float) -> tuple[float, Seen]:
        if self.seen is None or self.seen[0] < begun_after:
            begun = self.now
            self.world.clock.advance(0.01)
            self.seen = begun, self.world.observed()
        return self.seen

    def _carry(self, service: BalancedService, act: course.Act, memory: Memory) -> None:
        self.world.clock.advance(0.02)
        self.world.log(f"{id(self) % 1000}: {_text(act)}")
        if isinstance(act, Rest):
            self.rest = act
            if act.after is not None:
                memory.stale = self.now + act.after / 2
            return
        try:
            self._write(service, act, memory)
        except StaleWrite:
            self.known = self.world.api.service
        except (Lost, Refused, CloudConflict, Uncertain) as error:
            self.world.log(f"   {type(error).__name__}")
            self.rest = Rest("failing", "", 5.0)

    def _write(self, service: BalancedService, act: course.Act, memory: Memory) -> None:
        self.fence()
        api, held = self.world.api, tuple(dict.fromkeys((*service.finalizers, service.finalizer)))
        if isinstance(act, Hold):
            self.known = api.patch(service, finalizers=held, record=record.write(act.record, "eu", "toy"))
            memory.held(act, self.now)
        elif isinstance(act, Publish):
            entries = tuple(replace(entry, ip_mode="VIP") for entry in act.ingress)
            text = record.write(act.record, "eu", "toy")
            self.known = api.patch(service, finalizers=held, record=text, ingress=entries)
            memory.published(act, self.now)
        elif isinstance(act, Release):
            self.world.released()
            self.known = api.patch(service, finalizers=(), record="", ingress=())
            self.known = api.service
        elif isinstance(act, Perform):
            self._perform(act.step, memory)

    def fence(self) -> None:
        """Only one process may write."""
        if self.world.writer is not self:
            raise Refused

    def _perform(self, step: Step, memory: Memory) -> None:
        try:
            done = self.world.cloud.write(step)
        except (CloudConflict, Uncertain) as error:
            memory.failed(step, self.now, uncertain=isinstance(error, Uncertain))
            raise
        memory.performed(step, done, self.now)


class World:
    """Everything, and the rules that must hold.

    Attributes:
        trouble: chance that an answer is lost.
        writer: the process that may write.
        past: the one that might before, with what it knew then.
        history: what happened.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(time=10_000.0)
        self.cloud = ToyCloud(self.clock, self.rng, LAG)
        self.trouble = self.rng.choice((0.0, 0.1, 0.3))
        self.cloud.fault = self._fault
        self.nodes: tuple[str, ...] = ("n1", "n2")
        self.history: list[str] = []
        self.api = Api(self)
        self.other = self.cloud.add("balancer", "web.edge.prod")
        self.marked = self.cloud.add("group", "db.edge.eu", "endpointslice-hub cluster=c2 service=x")
        self.foreign = {id_: self.cloud.things[id_] for id_ in (self.other, self.marked)}
        self.address = ""
        if self.rng.random() < 0.2:  # a person reserved an address of that name
            self.address = self.cloud.add("address", NAME)
        self.clock.advance(60.0)
        self.writer = Writer(self)
        self.past = Writer(self)

    def log(self, text: str) -> None:
        """Note what happens."""
        self.history.append(f"{self.clock.now():.2f} {text}")

    def _fault(self, step: Step) -> str:
        del step
        return self.rng.choice(("before", "after")) if self.rng.random() < self.trouble else ""

    def observed(self) -> Seen:
        """What the cloud's lists show; the answer may take long, or be an error.

        Raises:
            Unseen: there is no answer.
        """
        seen = self.cloud.list()
        if self.rng.random() < self.trouble / 2:
            self.clock.advance(self.rng.choice((0.0, 1.0, 30.0)))
            if self.rng.random() < 0.7:
                raise Unseen
        return seen

    # --- what may happen ---------------------------------------------------------------------------------

    def event(self) -> None:
        """One thing happens."""
        roll = self.rng.random()
        if roll < 0.62:
            self.writer.act()
            if self.rng.random() < 0.3:
                self.writer.known = self.api.service
        elif roll < 0.72:
            self.clock.advance(self.rng.choice((0.1, 1.0, 5.0, 16.0, 40.0)))
        elif roll < 0.80:
            self.writer.known = self.api.service
        elif roll < 0.86:
            self.log("kill -9")
            self.writer = Writer(self)
        elif roll < 0.88:
            self.take_over()
        elif roll < 0.90:
            self.log("the other process goes on, and does not know yet that it may not write")
            self.past.act()
        elif roll < 0.93:
            self.nodes = self.rng.choice((("n1", "n2"), ("n1",), (), ("n1", "n2", "n3")))
            self.log(f"nodes {self.nodes}")
        else:
            self._person()

    def take_over(self) -> None:
        """The Lease expired: another process goes on, new or not, and creates nothing at first."""
        self.log("takeover")
        new = self.past if self.rng.random() < 0.5 else Writer(self)
        self.past, self.writer = self.writer, new
        self.writer.halt()
        self.writer.known = self.api.service  # its watch has gone on
        self.writer.creates_after = self.clock.now() + TAKEOVER

    def _person(self) -> None:
        service = self.api.service
        what = self.rng.choice(("apply", "ports", "delete", "type", "strip", "by hand"))
        self.log(f"person: {what}")
        if service is None or what == "apply":
            self.api.apply(kind="LoadBalancer")
        elif what == "ports":
            self.api.apply(ports=(BalancerPort(self.rng.choice((80, 443)), 30080),))
        elif what == "delete":
            self.api.delete()
        elif what == "type":
            self.api.apply(kind="ClusterIP" if service.kind == "LoadBalancer" else "LoadBalancer")
        elif what == "strip" and not self.address:
            self.api.apply(record=self.rng.choice(("", "{", '{"v":1}')))
        elif what == "by hand":
            for thing in self.cloud.of(NAME).values():
                if thing.kind == "balancer":
                    self.cloud.lose(thing.id)

    # --- what must hold ----------------------------------------------------------------------------------

    def released(self) -> None:
        """The finalizer is about to go: nothing may be left, nor arrive later."""
        self.cloud.arrive(all_=True)
        if left := self.cloud.of(NAME):
            self.cloud.breaches.append(f"the finalizer goes, and {sorted(left)} are left")

    def check(self) -> None:
        """Nothing has happened that must not."""
        assert not self.cloud.breaches, self._story(self.cloud.breaches[0])
        for id_, thing in self.foreign.items():
            assert self.cloud.things.get(id_) == thing, self._story(f"{id_} was touched")
        assert not self.address or self.address in self.cloud.things, self._story("the reserved address is gone")

    def finish(self) -> None:
        """Without further trouble everything ends as wanted, and nothing more is written."""
        self.log("calm")
        self.trouble = 0.0
        self.cloud.arrive(all_=True)
        self.nodes = ("n1", "n2")
        for _ in range(400):
            self.writer.known = self.api.service
            self.writer.act()
            if self.writer.rest is not None:
                self.clock.advance(self.writer.rest.after or 60.0)
                if self.settled():
                    break
        self.check()
        assert self.settled(), self._story("it does not settle")
        before = len(self.cloud.calls)
        for _ in range(10):
            self.clock.advance(60.0)
            self.writer.seen = None
            self.writer.act()
        assert len(self.cloud.calls) == before, self._story("it is not quiet")

    def settled(self) -> bool:
        service, found = self.api.service, self.cloud.of(NAME)
        if service is None or service.kind != "LoadBalancer" or service.deleting:
            return found == {} and (service is None or not service.finalizers)
        balancer = found.get("balancer")
        mapped = [thing for thing in self.cloud.things.values() if balancer and thing.holds == balancer.id]
        return (
            balancer is not None
            and "group" in found
            and balancer.nodes == self.nodes
            and balancer.ports == tuple(port.port for port in service.ports)
            and [Ingress(ip=f"203.0.113.{int(mapped[0].id[-4:]) % 250}", ip_mode="VIP")] == [*service.ingress]
            if mapped
            else False
        )

    def _story(self, what: str) -> str:
        tail = "\n".join(self.history[-60:])
        return f"{what}\n{tail}\n{msgspec.json.encode([*self.cloud.things.values()]).decode()}"


def _text(act: course.Act) -> str:
    match act:
        case Perform(step):
            return step.summary
        case Rest(state, message):
            return f"rest: {state} {message}"
        case _:
            return type(act).__name__


def run(seed: int, events: int = 120) -> World:
    """One random course."""
    world = World(seed)
    for _ in range(events):
        world.event()
        world.check()
    world.finish()
    return world
