"""What comes next for one Service: a write to it, a step in the cloud, or waiting.

A creation needs the finalizer, with the intent in the record, and an observation that began after both were written; so
the next process finds whatever a killed one leaves behind. A :class:`Memory` only saves time: a new one is always safe.
What an earlier process intended, made, or lost the answer to may become visible later: for 30 s nothing of its kind is
created, and the finalizer stays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from hub.approval import approval_hash
from hub.cloud.balancers import Balancer, Done, Ingress, Intent, Notice, Planned, Record, Refused, Step, Wait
from hub.controller.record import Kept
from hub.controller.services import BalancedService
from hub.model import Finding

LAG: Final = 30.0
"""Seconds until a write is visible in the cloud's lists at the latest."""
REPEATS: Final = 3
WINDOW: Final = 600.0
"""Most times that the same write is made within so many seconds while the Service and its nodes are the same."""
TOGETHER: Final = 10.0
"""Services that were made within so many seconds are looked at once more at the same time, and share an observation."""
SOON: Final = 5.0
"""Seconds until a write that is not visible yet is looked for again."""
LOOK_AGAIN: Final = 60.0
"""Seconds until lists that lack several recorded objects are looked at again."""
NEVER: Final = float("-inf")
PUBLISHES: Final = "write the Service's ingress and record"


class Hold(NamedTuple):
    """Write the finalizer and the record.

    Attributes:
        adds: the kinds that are new in its intent.
    """

    record: Record
    adds: frozenset[str] = frozenset()


class Perform(NamedTuple):
    """Make a step in the cloud."""

    step: Step


class Publish(NamedTuple):
    """Write the finalizer, the record and the ingress."""

    record: Record
    ingress: tuple[Ingress, ...]


class Release(NamedTuple):
    """Remove the finalizer, the record and the ingress."""


class Observe(NamedTuple):
    """Go on with an observation that began at this time or later."""

    after: float


class Rest(NamedTuple):
    """Do nothing now.

    Attributes:
        state: ready, waiting, failing, withheld or foreign.
        message: why it waits; "" if it is ready.
        after: seconds until it is looked at again; None = until something changes.
        finding: what an operator should know.
    """

    state: str
    message: str = ""
    after: float | None = None
    finding: Finding | None = None


Act = Hold | Perform | Publish | Release | Observe | Rest


class Made(NamedTuple):
    """A step that was made, when its answer arrived, and the answer."""

    at: float
    step: Step
    done: Done


class Memory(msgspec.Struct):
    """What this process knows about its own writes for one Service, since it began to write for the cluster.

    Attributes:
        uid: the Service's UID.
        born: since when it is remembered; what others wrote is visible 30 s later.
        made: the steps that an observation may not show yet.
        stale: observations that began earlier do not count.
        written_at: when the last write to the cloud ended.
        held_at: when this process wrote the finalizer or the intent.
        intends: kinds in the record's intent that this process added to it.
        uncertain: kind of object -> when a creation without an answer is visible at the latest.
        want: what the Service wanted when it was looked at last.
        writes: (what was written, when), while ``want`` is the same.
    """

    uid: str
    born: float
    made: list[Made] = []
    stale: float = NEVER
    written_at: float = NEVER
    held_at: float = NEVER
    intends: frozenset[str] = frozenset()
    uncertain: dict[str, float] = {}
    want: Balancer | None = None
    writes: list[tuple[bytes, float]] = []

    def of(self, uid: str, now: float) -> Memory:
        """This memory, or a new one with the same steps if the Service was deleted and created again."""
        return self if self.uid == uid else Memory(uid, now, self.made, self.stale, self.written_at)

    def recent(self, begun: float) -> list[tuple[Step, Done]]:
        """The steps that an observation which began at ``begun`` may not show."""
        self.made = [made for made in self.made if begun < made.at + LAG]
        return [(made.step, made.done) for made in self.made]

    def created(self) -> set[str]:
        """The kinds of objects that the steps in ``made`` created."""
        return {made.step.creates for made in self.made if made.step.creates}

    def deleted(self, kind: str, id_: str) -> bool:
        """Whether a step in ``made`` deleted this object: its request names the id."""
        named = re.compile(rf"(?<![\w-]){re.escape(id_)}(?![\w-])")
        deletions = (made.step.request for made in self.made if made.step.destroys == kind)
        return any(named.search(msgspec.json.encode(request).decode()) for request in deletions)

    def wants(self, want: Balancer | None) -> None:
        """Note what the Service wants now."""
        if want != self.want:
            self.want, self.writes = want, []

    def held(self, act: Hold, now: float) -> None:
        """The finalizer and the intent are written."""
        self.held_at, self.intends = now, self.intends | act.adds

    def published(self, act: Publish, now: float) -> None:
        """The ingress and the record are written."""
        self.intends = frozenset()
        self.writes.append((_written(act), now))

    def performed(self, step: Step, done: Done, now: float) -> None:
        """A step is made."""
        self.written_at = now
        self.made = [*self.made, Made(now, step, done)]
        self.uncertain.pop(step.creates, None)
        self.writes.append((_written(Perform(step)), now))

    def failed(self, step: Step, now: float, *, uncertain: bool) -> None:
        """A step was not made, or has no answer: the next observation tells."""
        self.stale = now
        if uncertain:
            self.written_at = now
            if step.creates:
                self.uncertain[step.creates] = now + LAG

    def pending(self, step: Step, now: float) -> bool:
        """Whether this step was the last of its kind, and may not be visible yet."""
        for made in reversed(self.made):
            if step.creates and made.step.destroys == step.creates:
                return False
            if made.step.kind == step.kind:
                return made.step == step and now < made.at + LAG
        return False

    def contended(self, act: Perform | Publish, now: float) -> float:
        """Seconds for which a write is not made again; 0 if it may be made."""
        self.writes = [(what, at) for what, at in self.writes if now - at < WINDOW]
        times = [at for what, at in self.writes if what == _written(act)]
        return times[-REPEATS] + WINDOW - now if len(times) >= REPEATS else 0.0


class Scene(NamedTuple):
    """Everything that the next act for a Service depends on.

    Attributes:
        cluster: the cluster's name in the registry.
        cluster_name: the last part of the objects' names now.
        former_names: its earlier values.
        service: the Service.
        kept: the Service's record.
        planned: the plan for the last observation.
        ingress: where the balancer can be reached, by the last observation.
        found: kind -> id of the balancer's objects, by the last observation.
        begun: when the last observation began.
        creates_after: when creations are allowed again after a takeover.
        settings: names of the settings that the Service has.
        refused: the Service's mistake; None = none.
        class_: the class of the Services that the hub serves.
        now: the time.
        wall: Unix time.
        approved: whether a hash is approved.
    """

    cluster: str
    cluster_name: str
    former_names: Collection[str]
    service: BalancedService
    kept: Kept
    planned: Sequence[Planned]
    ingress: tuple[Ingress, ...]
    found: Mapping[str, str]
    begun: float
    creates_after: float
    settings: tuple[str, ...]
    refused: tuple[str, str] | None
    class_: str
    now: float
    wall: float
    approved: Callable[[str], bool]

    @property
    def record(self) -> Record:
        """What is remembered."""
        return self.kept.record

    @property
    def first(self) -> Step | Wait | Refused | None:
        """The first item of the plan that is no notice."""
        return next((item for item in self.planned if not isinstance(item, Notice)), None)


def ensure(scene: Scene, memory: Memory) -> Act:
    """The next act for a Service that wants a balancer."""
    if (renamed := _renamed(scene)) is not None:
        return renamed
    first = scene.first
    if isinstance(first, Step) and (scene.refused is None or (scene.found and not first.creates)):
        act = (first.creates and _before_creation(scene, memory, first)) or _unheld(scene)
        return act or _contended(scene, memory, _perform(scene, memory, first))
    if scene.refused is not None:
        return _refused(scene, *scene.refused)
    if (publish := _publish(scene, memory)) is not None:
        return _contended(scene, memory, publish)
    if isinstance(first, Refused):
        return _refused(scene, first.reason, first.message)
    if isinstance(first, Wait):
        return Rest("waiting", first.message, first.after, Finding(first.reason, first.message))
    if not scene.ingress:
        return Rest("waiting", "the cloud states no address of the load balancer yet", Wait("", "").after)
    return _confirmed(scene, memory) or Rest("ready")


def remove(scene: Scene, memory: Memory) -> Act:
    """The next act for a Service whose balancer must go."""
    if (renamed := _renamed(scene)) is not None:
        return renamed
    first = scene.first
    if isinstance(first, Step):
        return _perform(scene, memory, first)
    if isinstance(first, Wait):
        return Rest("waiting", first.message, first.after, Finding(first.reason, first.message))
    if isinstance(first, Refused):
        return _refused(scene, first.reason, first.message)
    kinds = {*scene.record.ids, *scene.record.made, *memory.uncertain}
    after = max(memory.written_at, scene.creates_after, _visible_at(scene, memory, kinds))
    if (old := _old(scene, after)) is not None:
        return old
    if scene.class_ and not scene.kept.valid and not memory.made:
        return Rest("foreign")  # another controller has set the finalizer
    return Release()


def _perform(scene: Scene, memory: Memory, step: Step) -> Perform | Rest:
    if memory.pending(step, scene.now):
        return Rest("waiting", f"made, and not visible yet: {step.summary}", SOON)
    return Perform(step)


def _refused(scene: Scene, reason: str, message: str) -> Rest:
    text = f"{message}; change the Service {scene.service.namespace}/{scene.service.name}"
    return Rest("failing", text, None, Finding(reason, text))


def _renamed(scene: Scene) -> Rest | None:
    """A record that was written under a clusterName which the registry does not know."""
    old = scene.kept.cluster
    if old in ("", scene.cluster_name, *scene.former_names):
        return None
    text = (
        f"the load balancer of Service {scene.service.namespace}/{scene.service.name} was made under clusterName "
        f"{old[:63]!r}, and cluster {scene.cluster} has {scene.cluster_name!r}: put the old one back, or into "
        "cloud.formerClusterNames"
    )
    return Rest("withheld", text, None, Finding("ClusterNameChanged", text))


WAIT: Final = "wait: "
"""What the summary of a wait begins with."""


def summaries(act: Act | None, planned: Sequence[Planned], *, removing: bool) -> tuple[str, ...]:
    """What comes next, for an operator: steps in the cloud, and the writes to the Service around them.

    Args:
        act: the next act; None = none is made now.
        planned: the plan for the last observation.
        removing: whether the balancer goes.
    """
    steps = [item for item in planned if isinstance(item, Step | Wait)]
    found = [item.summary if isinstance(item, Step) else f"{WAIT}{item.message}" for item in steps]
    creates = any(isinstance(item, Step) and item.creates for item in steps)
    if isinstance(act, Hold):
        found.insert(0, "write the Service's finalizer and record")
    if isinstance(act, Publish):
        found.insert(0, PUBLISHES)
    elif removing and isinstance(act, Perform | Release):
        found.append("remove the Service's finalizer, record and ingress")
    elif isinstance(act, Hold) or (isinstance(act, Perform) and creates):
        found.append(PUBLISHES)
    return tuple(found)


# --- creations -------------------------------------------------------------------------------------------


def _before_creation(scene: Scene, memory: Memory, step: Step) -> Hold | Observe | Rest | None:
    """What must come before a creation."""
    if (withheld := _foreign(scene) or _vanished(scene, memory)) is not None:
        return withheld
    if (old := _old(scene, _visible_at(scene, memory, {step.creates}), step.summary)) is not None:
        return old
    intended = scene.record.intent.make if scene.record.intent is not None else ()
    if not scene.service.held or step.creates not in intended:
        planned = [item.creates for item in scene.planned if isinstance(item, Step) and item.creates]
        # What was intended or made already stays so: it may not be visible yet.
        make = dict.fromkeys((*intended, *sorted({*memory.uncertain, *memory.created()}), *planned))
        intent, adds = Intent(scene.wall, tuple(make)), frozenset(make.keys() - set(intended))
        made = tuple(dict.fromkeys((*_made(scene), *intent.make)))
        return Hold(replace(scene.record, made=made, intent=intent), adds)
    return _old(scene, max(memory.held_at, scene.creates_after), step.summary)


def _unheld(scene: Scene) -> Hold | None:
    """The finalizer is there before anything is written to the cloud."""
    if scene.service.held:
        return None
    return Hold(replace(scene.record, ids=dict(scene.found), made=_made(scene)))


def _foreign(scene: Scene) -> Rest | None:
    """A Service that another controller serves, as far as its status says: nothing is made a second time."""
    service = scene.service
    if scene.found or scene.kept.valid or not service.ingress:
        return None
    digest = approval_hash("cloud", scene.cluster, service.namespace, service.name, service.uid)
    if scene.approved(digest):
        return None
    text = (
        f"Service {service.namespace}/{service.name} has an ingress, but the cloud has nothing of that name: its "
        f"balancer may be another controller's, or clusterName is wrong; hub approve cloud/{scene.cluster} {digest} "
        "lets the hub make one"
    )
    return Rest("withheld", text, None, Finding("ForeignLoadBalancer", text))


def _vanished(scene: Scene, memory: Memory) -> Rest | None:
    """Several recorded objects are missing at once: it is likelier that lists are wrong than that all were deleted."""
    service, ids = scene.service, scene.record.ids
    lost = sorted(_lost(scene, memory))
    if len(lost) < 2 or not service.ingress:
        return None
    digest = approval_hash("cloud-lost", scene.cluster, service.namespace, service.name, service.uid, sorted(ids))
    if scene.approved(digest):
        return None
    text = (
        f"the cloud's lists lack {len(lost)} recorded objects of Service {service.namespace}/{service.name}: "
        f"{', '.join(f'{kind} {ids[kind]}' for kind in lost)}; nothing is made in their place while the lists may be "
        f"wrong; hub approve cloud/{scene.cluster} {digest} lets the hub make new ones"
    )
    return Rest("withheld", text, LOOK_AGAIN, Finding("LoadBalancerVanished", text))


def _lost(scene: Scene, memory: Memory) -> set[str]:
    """Kinds whose recorded object is not listed, and was not deleted or made by this process."""
    record = scene.record
    lost = (set(record.made) & record.ids.keys()) - scene.found.keys() - memory.created()
    return {kind for kind in lost if not memory.deleted(kind, record.ids[kind])}


def _visible_at(scene: Scene, memory: Memory, kinds: Collection[str]) -> float:
    """When all objects of these kinds that may exist are visible."""
    intent, service = scene.record.intent, scene.service
    at = max((memory.uncertain.get(kind, NEVER) for kind in kinds), default=NEVER)
    intended = intent is not None and set(kinds) & (set(intent.make) - memory.intends)
    # An earlier process may have made them seconds ago: the record names them, or nothing is recorded at all. Lists may
    # still show an older object of the kind, so a deletion counts only for the object that was deleted.
    if intended or set(kinds) & _lost(scene, memory) or (service.held and not scene.kept.valid):
        at = max(at, memory.born + LAG)
    return at


def _old(scene: Scene, after: float, summary: str = "") -> Observe | Rest | None:
    """Whether the observation began too early; None if it did not."""
    if after > scene.now:
        text = f"an earlier creation may still become visible{summary and f' (then: {summary})'}"
        return Rest("waiting", text, after - scene.now)
    return Observe(after) if scene.begun < after else None


# --- the end of a course ---------------------------------------------------------------------------------


def _made(scene: Scene) -> tuple[str, ...]:
    """What may be deleted with the Service: without a record, another controller made what a served Service has."""
    adopted = not scene.kept.valid and (scene.service.held or scene.service.ingress)
    return tuple(sorted(scene.found)) if adopted else scene.record.made


def _publish(scene: Scene, memory: Memory) -> Publish | None:
    """Write the ingress and the record if they differ."""
    if not scene.ingress:
        return None
    service = scene.service
    intent = _unseen(scene, memory)
    record = replace(scene.record, ids=dict(scene.found), made=_made(scene), set=scene.settings, intent=intent)
    same = scene.kept.cluster == scene.cluster_name and record == scene.record and service.held
    if same and [*map(_stored, scene.ingress)] == [*map(_stored, service.ingress)]:
        return None
    return Publish(record, scene.ingress)


def _unseen(scene: Scene, memory: Memory) -> Intent | None:
    """The intent that stays: an earlier process may have made these, and lists still show older objects instead."""
    record, intent = scene.record, scene.record.intent or Intent(scene.wall)
    lost = {kind for kind in record.made if scene.found.get(kind) != record.ids.get(kind, scene.found.get(kind))}
    lost = {kind for kind in lost - memory.created() if not memory.deleted(kind, record.ids[kind])}
    until = dict.fromkeys((set(intent.make) - memory.intends) | lost, memory.born + LAG) | memory.uncertain
    make = tuple(sorted(kind for kind in {*intent.make, *lost} if scene.begun < until.get(kind, NEVER)))
    return replace(intent, make=make) if make else None


def _confirmed(scene: Scene, memory: Memory) -> Observe | Rest | None:
    """Objects that an earlier process deleted may still be listed: what was built on them is looked at once more."""
    after = memory.born + LAG
    written = memory.writes or scene.record.intent is not None
    if not written or scene.begun >= after or scene.found.keys() <= memory.created():
        return None
    if after <= scene.now:
        return Observe(after)
    together = math.ceil(after / TOGETHER) * TOGETHER
    return Rest("ready", "", together - scene.now)


def _stored(entry: Ingress) -> Ingress:
    """An ingress as the API server stores it, which fills in the mode of an address."""
    return replace(entry, ip_mode=entry.ip_mode or ("VIP" if entry.ip else ""))


def _contended(scene: Scene, memory: Memory, act: Act) -> Act:
    """Not the same write again and again: somebody undoes it."""
    if not isinstance(act, Perform | Publish) or not (wait := memory.contended(act, scene.now)):
        return act
    what = act.step.summary if isinstance(act, Perform) else "write the status"
    text = (
        f"Service {scene.service.namespace}/{scene.service.name}: {what}: done {REPEATS} times within "
        f"{WINDOW / 60:.0f} minutes, and undone by another writer; stop that one"
    )
    return Rest("withheld", text, wait, Finding("Contended", text))


def _written(act: Perform | Publish) -> bytes:
    what = act.step if isinstance(act, Perform) else act
    return msgspec.json.encode(what, order="sorted")
