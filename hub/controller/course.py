"""What comes next for one Service: a write to it, a step in the cloud, or waiting.

A creation needs the finalizer, with the intent in the record, and an observation that began after both were written; so
whatever a process leaves behind when it is killed is found by the next one. A creation without an answer, or one that
an earlier process intended, may still become visible: for 30 s nothing of its kind is created again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from hub.approval import approval_hash
from hub.cloud.balancers import Done, Ingress, Intent, Notice, Planned, Record, Refused, Step, Wait
from hub.controller.services import BalancedService
from hub.model import Finding

LAG: Final = 30.0
"""Seconds until a creation is visible in the cloud's lists at the latest."""


class Made(NamedTuple):
    """A step that was made, and its answer."""

    at: float
    step: Step
    done: Done


class Memory(msgspec.Struct):
    """What this process knows about its own writes for one Service.

    Attributes:
        made: the steps of the last 30 s.
        written_at: when the last write to the cloud ended; observations that began before it are older.
        held_at: when the finalizer and the intent were written, or first seen.
        intends: whether this process wrote the intent.
        uncertain: kind of object -> until when a creation without an answer may become visible.
    """

    made: list[Made] = []
    written_at: float = float("-inf")
    held_at: float = float("-inf")
    intends: bool = False
    uncertain: dict[str, float] = {}

    def recent(self, now: float, begun: float) -> list[tuple[Step, Done]]:
        """The steps that an observation which began at ``begun`` may not show."""
        self.made = [made for made in self.made if now - made.at < LAG]
        return [(made.step, made.done) for made in self.made if made.at > begun - LAG]


class Hold(NamedTuple):
    """Write the finalizer and the record."""

    record: Record


class Perform(NamedTuple):
    """Make a step in the cloud."""

    step: Step


class Publish(NamedTuple):
    """Write the ingress and the record."""

    record: Record
    ingress: tuple[Ingress, ...]


class Release(NamedTuple):
    """Remove the finalizer, the record and the ingress."""


class Observe(NamedTuple):
    """Go on with an observation that began after this time."""

    after: float


class Rest(NamedTuple):
    """Do nothing now.

    Attributes:
        state: ready, waiting, failing or withheld.
        message: why it waits; "" if it is ready.
        after: seconds until it is looked at again; None = until something changes.
        finding: what an operator should know.
        digest: the hash that approves what is withheld.
    """

    state: str
    message: str = ""
    after: float | None = None
    finding: Finding | None = None
    digest: str = ""


Act = Hold | Perform | Publish | Release | Observe | Rest


class Scene(NamedTuple):
    """Everything that the next act for a Service depends on.

    Attributes:
        cluster: the cluster's name.
        service: the Service.
        record: what is remembered; :func:`hub.controller.record.empty` if nothing is.
        remembered: whether the Service has a valid record.
        planned: the plan for the last observation.
        ingress: where the balancer can be reached, by the last observation.
        found: kind -> id of the balancer's objects, by the last observation.
        begun: when the last observation began.
        creates_after: when creations are allowed again after a takeover.
        settings: names of the settings that the Service has.
        refused: the Service's mistake; None = none.
        now: the time.
        wall: Unix time.
        approvals: hashes that are approved.
    """

    cluster: str
    service: BalancedService
    record: Record
    remembered: bool
    planned: Sequence[Planned]
    ingress: tuple[Ingress, ...]
    found: Mapping[str, str]
    begun: float
    creates_after: float
    settings: tuple[str, ...]
    refused: tuple[str, str] | None
    now: float
    wall: float
    approvals: frozenset[str]

    @property
    def first(self) -> Step | Wait | Refused | None:
        """The first item of the plan that is no notice."""
        return next((item for item in self.planned if not isinstance(item, Notice)), None)


def ensure(scene: Scene, memory: Memory) -> Act:
    """The next act for a Service that wants a balancer."""
    first = scene.first
    if scene.refused is not None and not scene.found:
        return _refused(scene, *scene.refused)
    if isinstance(first, Step):
        return _foreign(scene, first) or _held(scene, memory, first) or _visible(scene, memory, first) or Perform(first)
    if scene.refused is None and (publish := _publish(scene)) is not None:
        return publish
    if scene.refused is not None:
        return _refused(scene, *scene.refused)
    if isinstance(first, Refused):
        return _refused(scene, first.reason, first.message)
    if isinstance(first, Wait):
        return Rest("waiting", first.message, first.after, Finding(first.reason, first.message))
    return Rest("ready")


def remove(scene: Scene, memory: Memory) -> Act:
    """The next act for a Service whose balancer must go."""
    first = scene.first
    if isinstance(first, Step):
        return Perform(first)
    if isinstance(first, Wait):
        return Rest("waiting", first.message, first.after)
    if isinstance(first, Refused):
        return _refused(scene, first.reason, first.message)
    if (old := _old(scene, max(memory.written_at, scene.creates_after))) is not None:
        return old
    if (wait := _lag(scene, memory, scene.record.intent.make if scene.record.intent is not None else ())) > 0:
        return Rest("waiting", "a creation without an answer may still become visible", wait)
    return Release()


def final(scene: Scene) -> Record:
    """The record of a balancer that is as wanted; what is adopted by its name counts as made by the hub."""
    made = scene.record.made if scene.remembered else tuple(dict.fromkeys((*scene.record.made, *sorted(scene.found))))
    return msgspec.structs.replace(scene.record, ids=dict(scene.found), made=made, set=scene.settings, intent=None)


def _publish(scene: Scene) -> Publish | None:
    if not scene.ingress:
        return None
    record = final(scene)
    same = scene.remembered and record == scene.record and scene.service.held
    return None if same and scene.ingress == scene.service.ingress else Publish(record, scene.ingress)


def _refused(scene: Scene, reason: str, message: str) -> Rest:
    text = f"{message}; change the Service {scene.service.namespace}/{scene.service.name}"
    return Rest("failing", text, None, Finding(reason, text))


def _foreign(scene: Scene, step: Step) -> Rest | None:
    """A Service that another controller serves, as far as its status says: nothing is made a second time."""
    service = scene.service
    if not step.creates or scene.found or scene.remembered or not service.ingress:
        return None
    digest = approval_hash("cloud", scene.cluster, service.namespace, service.name, service.uid)
    if digest in scene.approvals:
        return None
    text = (
        f"Service {service.namespace}/{service.name} has an ingress, but the cloud has nothing of that name: its "
        f"balancer may be another controller's, or clusterName is wrong; hub approve cloud/{scene.cluster} {digest} "
        "lets the hub make one"
    )
    return Rest("withheld", text, None, Finding("ForeignLoadBalancer", text), digest)


def _held(scene: Scene, memory: Memory, step: Step) -> Hold | None:
    """The finalizer, and the intent of a creation, are written first."""
    intent = scene.record.intent
    intended = not step.creates or (memory.intends and intent is not None and step.creates in intent.make)
    if scene.service.held and intended:
        return None
    if step.creates and _lag(scene, memory, (step.creates,)) > 0:
        return None  # it may exist already: see _visible
    make = tuple(dict.fromkeys(item.creates for item in scene.planned if isinstance(item, Step) and item.creates))
    made = tuple(dict.fromkeys((*scene.record.made, *make)))
    new = Intent(scene.wall, make) if make else intent
    return Hold(msgspec.structs.replace(scene.record, made=made, intent=new))


def _visible(scene: Scene, memory: Memory, step: Step) -> Observe | Rest | None:
    """Whether what a step creates would be visible if it existed."""
    if not step.creates:
        return None
    if (wait := _lag(scene, memory, (step.creates,))) > 0:
        return Rest("waiting", f"a creation without an answer may still become visible ({step.summary})", wait)
    return _old(scene, max(memory.held_at, scene.creates_after))


def _old(scene: Scene, after: float) -> Observe | Rest | None:
    """Whether the observation began too early; None if it did not."""
    if after > scene.now:
        return Rest("waiting", "the last writer's requests may still become visible", after - scene.now)
    return Observe(after) if scene.begun <= after else None


def _lag(scene: Scene, memory: Memory, kinds: Sequence[str]) -> float:
    """Seconds until objects of these kinds would be visible if an earlier request created them."""
    wait = max((memory.uncertain.get(kind, 0.0) - scene.now for kind in kinds), default=0.0)
    intent = scene.record.intent
    if intent is not None and not memory.intends and set(kinds) & set(intent.make):
        wait = max(wait, min(LAG, intent.at + LAG - scene.wall))
    return max(0.0, wait)
