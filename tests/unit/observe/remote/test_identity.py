"""Detecting that a cluster name leads to another cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from hub.errors import BadAnswer, ClusterUnreachable, Forbidden, HubError, NotFound, ServerFault
from hub.kube.client import Client
from hub.model import ANNOTATION_CLUSTER_UID, Slice
from hub.observe.remote import cluster as module
from hub.observe.remote.cluster import RemoteCluster
from hub.observe.remote.identity import Identities, digest, read_uid
from hub.observe.remote.status import State
from hub.registry.spec import ClusterSpec, Registry
from tests.support import build


def marked(cluster: str, uid: str = "", name: str = "s-0") -> Slice:
    """A slice with the annotation of a UID, or without one."""
    return build.slice(
        name, build.endpoints(1), cluster=cluster, annotations={ANNOTATION_CLUSTER_UID: uid} if uid else {}
    )


class World:
    """Slices, a registry and approvals that the test sets."""

    def __init__(self, *slices: Slice, **formerly: str) -> None:
        self.slices: tuple[Slice, ...] | None = slices
        self.approved: set[str] = set()
        clusters = {name: ClusterSpec(name, None, formerly=(old,)) for name, old in formerly.items()}
        self.registry = Registry("default", {"eu": ClusterSpec("eu", None), **clusters}, {})
        self.identities = Identities(lambda: self.registry, lambda: self.slices, lambda: self.approved, " --owner x")

    def check(self, uid: str, name: str = "eu") -> str | None:
        return self.identities.check(name, uid)


def test_the_first_one_is_believed_and_remembered() -> None:
    """The first UID of a name is accepted and remembered, even if no slice has it yet."""
    world = World(marked("eu"), marked("us", "b"))
    assert (world.check("a"), world.check("a")) == ("", "")
    assert "has UID b" in (world.check("b") or "")
    assert world.identities.uid("eu") == "a"


def test_slices_tell_a_hub_that_starts() -> None:
    """After a start, one slice with a UID is enough; the message contains the complete command to approve."""
    world = World(marked("eu"), marked("eu", "a", "s-1"))
    assert world.identities.uid("eu") == "a"
    problem = world.check("b") or ""
    assert "instead of a:" in problem
    assert problem.endswith(f"hub approve cluster/eu {digest('eu', 'b')} --owner x")
    assert world.check("a") == ""


def test_identity_is_none_before_slices_are_known() -> None:
    """Before the slices are known, the result is None."""
    world = World()
    world.slices = None
    assert (world.check("a"), world.identities.uid("eu")) == (None, "")
    world.slices = (marked("eu", "b"),)
    assert world.check("a")


def test_an_approval_is_of_a_name_and_a_uid() -> None:
    """An approval is for one name and UID, and its effect stays when it expires."""
    world = World(marked("eu", "a"))
    world.approved = {digest("us", "b"), digest("eu", "c")}
    assert world.check("b")
    world.approved = {digest("eu", "b")}
    assert world.check("b") == ""
    world.approved = set()
    assert world.check("b") == ""
    assert (world.check("a") or "").startswith("its kube-system Namespace has UID a")
    assert world.identities.uid("eu") == "b"


def test_a_restart_half_way_through_a_change_believes_both() -> None:
    """If the slices have two UIDs both fit, and none is written until one was accepted."""
    world = World(marked("eu", "a"), marked("eu", "b", "s-1"))
    assert world.identities.uid("eu") == ""
    assert world.check("b") == ""
    assert world.identities.uid("eu") == "b"
    assert world.check("a")


def test_a_former_name_is_remembered_too() -> None:
    """After a rename, the UID of the former name must fit."""
    world = World(marked("old", "a"), new="old")
    assert world.check("b", "new")
    assert world.check("a", "new") == ""


def test_a_cluster_that_left_the_registry_is_forgotten_with_its_slices() -> None:
    """A name that left the registry and has no slices accepts any UID."""
    world = World()
    world.check("a")
    world.identities.keep({"eu"})
    assert world.check("b")
    world.identities.keep(set())
    assert world.check("b") == ""


def test_a_name_is_free_once_its_slices_are_gone_although_they_were_read_meanwhile() -> None:
    """A name that left the registry keeps its UID exactly as long as it has slices."""
    world = World(marked("eu", "a"))
    world.check("a")
    world.identities.keep(set())
    assert world.identities.uid("eu") == "a"
    assert world.check("b")
    world.slices = None
    assert world.check("b")
    world.slices = (marked("us", "a"),)
    assert world.check("b") == ""


def test_a_name_that_stayed_is_not_free_without_slices() -> None:
    """A name that is still in the registry keeps its UID even if its slices are deleted."""
    world = World(marked("eu", "a"))
    assert world.check("b")
    world.slices = ()
    assert world.check("b")


def test_reread_prefers_uids_on_slices() -> None:
    """``reread`` prefers the UIDs on slices; for names without slices, the accepted UID stays."""
    world = World(marked("eu", "a"))
    world.check("a")
    world.check("x", "us")
    world.slices = (marked("eu", "b"),)
    world.identities.reread()
    assert world.check("b") == ""
    assert world.check("y", "us")


# --- reading the UID --------------------------------------------------------------------------------


class Answers:
    """An API server that gives these answers in order, and repeats the last one."""

    def __init__(self, *answers: bytes | HubError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def request(self, *_: Any, **__: Any) -> bytes:
        self.asked += 1
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, HubError):
            raise answer
        return answer


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b"\xff" * 9,
        b'{"metadata":{"uid":""}}',
        b'{"metadata":{"uid":7}}',
        b'{"metadata":{"uid":"a\\nb"}}',
        b'{"metadata":{"uid":"\xc3\xa9"}}',
        b'{"metadata":{"uid":"' + b"x" * 65 + b'"}}',
    ],
)
async def test_invalid_uid_is_an_error(body: bytes) -> None:
    """A UID that is empty, too long or not printable ASCII is an error."""
    with pytest.raises(BadAnswer, match="a Namespace"):
        await read_uid(cast("Client", Answers(body)))


class Clock:
    """A clock whose ``sleep`` returns at once."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return 1.8e9

    async def sleep(self, _: float) -> None:
        await asyncio.sleep(0)


def uid(text: str) -> bytes:
    """A Namespace with this UID."""
    return b'{"metadata":{"uid":"' + text.encode() + b'"}}'


class Unit:
    """A connected remote cluster whose identity is being read; the test plays its reflector."""

    def __init__(self, *answers: bytes | HubError, check: Callable[[str, str], str | None] = lambda *_: "") -> None:
        self.states: list[str] = []
        clock = cast("Any", Clock())
        self.it = RemoteCluster(
            ClusterSpec("eu", None), cast("Any", None), clock, cast("Any", None), lambda *_: None, self._note, check
        )
        self.server = Answers(*answers)
        self.it.client = cast("Client", self.server)
        self.it._forget_identity()
        self.it._identify.set()
        self.task = asyncio.create_task(self.it._identifying(self.it.client))

    def _note(self) -> None:
        self.states.append(str(self.it.status.state))

    def lists(self) -> None:
        """Report a complete list of Nodes."""
        self.it._store.replace({}, "1")
        self.it.answered()

    async def turns(self) -> None:
        """Let the tasks run."""
        for _ in range(30):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def tidy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the retry delay to 0, since the clock here does not wait."""
    monkeypatch.setattr(module, "ACCESS_RETRY", 0.0)


async def test_cluster_is_ready_only_with_nodes_and_uid() -> None:
    """The cluster becomes Ready only when both the Nodes and the UID are known."""
    unit = Unit(uid("a"))
    await asyncio.sleep(0)  # the UID is being read
    unit.lists()
    assert unit.it.status.state is State.PENDING
    await unit.turns()
    assert (unit.it.status.state, unit.it.uid, unit.server.asked) == (State.READY, "a", 1)


async def test_wrong_cluster_stays_until_approved() -> None:
    """A wrong cluster stays WrongCluster through lists and failures until it is approved."""
    reasons = {"b": "not the one"}
    unit = Unit(uid("b"), check=lambda _, uid: reasons.get(uid, ""))
    unit.lists()
    await unit.turns()
    unit.lists()
    unit.it.failed(Forbidden(403))
    assert (unit.it.status.state, unit.it.status.error) == (State.WRONG_CLUSTER, "not the one")
    unit.lists()
    reasons.clear()
    unit.it.check_identity()
    assert unit.it.status.state is State.READY
    assert unit.states == ["WrongCluster", "Ready"]


async def test_new_mismatch_is_reported_again() -> None:
    """A new mismatch is reported although the state stays WrongCluster."""
    reasons = ["not the one"]
    unit = Unit(uid("b"), check=lambda *_: reasons[-1])
    unit.lists()
    await unit.turns()
    reasons.append("not this one either")
    unit.it.check_identity()
    unit.it.check_identity()
    assert unit.states == ["WrongCluster", "WrongCluster"]
    assert unit.it.status.error == "not this one either"


async def test_uid_is_reread_after_reconnect_and_relist() -> None:
    """The UID is read again after a lost connection and after a new list."""
    unit = Unit(uid("a"), uid("a"), uid("b"), check=lambda _, uid: "wrong" if uid == "b" else "")
    unit.lists()
    await unit.turns()
    unit.it.failed(ClusterUnreachable("gone"))
    await unit.turns()
    assert (unit.server.asked, unit.it.status.state) == (1, State.UNREACHABLE)
    unit.lists()
    await unit.turns()
    assert (unit.server.asked, unit.it.status.state) == (2, State.READY)
    unit.it.listing()
    unit.lists()
    await unit.turns()
    assert (unit.server.asked, unit.it.status.state) == (3, State.WRONG_CLUSTER)


@pytest.mark.parametrize("error", [Forbidden(403), NotFound(404)])
async def test_a_uid_that_may_not_be_read_is_not_missed(error: HubError, caplog: pytest.LogCaptureFixture) -> None:
    """Without the right to read the UID the cluster is Ready; this is logged only once."""
    caplog.set_level("INFO")
    unit = Unit(error)
    for _ in range(3):
        unit.lists()
        await unit.turns()
        assert unit.it.status.state is State.READY
        unit.it.failed(ClusterUnreachable("gone"))
    assert sum("its identity cannot be checked" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("error", [Forbidden(403), NotFound(404)])
async def test_refused_uid_is_reread_with_the_nodes(error: HubError) -> None:
    """A UID that was refused together with the Nodes is read again when the Nodes can be listed."""
    unit = Unit(error, check=lambda _, uid: "wrong" if uid == "b" else "")
    unit.it.failed(error)
    await unit.turns()
    asked, unit.server.answers = unit.server.asked, [uid("b")]
    unit.lists()
    assert unit.it.status.state is State.DEGRADED
    await unit.turns()
    assert (unit.server.asked, unit.it.status.state) == (asked + 1, State.WRONG_CLUSTER)


async def test_a_uid_that_stays_refused_is_asked_for_once_more() -> None:
    """If the UID is refused again after the Nodes were listed, it is not read any more."""
    unit = Unit(Forbidden(403))
    unit.it.failed(Forbidden(403))
    await unit.turns()
    asked = unit.server.asked
    for _ in range(3):
        unit.it.answered()
        unit.lists()
        await unit.turns()
    assert (unit.server.asked, unit.it.status.state) == (asked + 1, State.READY)


async def test_a_server_that_only_starts_is_asked_again() -> None:
    """A 403 before the Nodes are listed is retried, since a starting API server refuses everything."""
    unit = Unit(Forbidden(403), uid("b"), check=lambda *_: "wrong")
    await unit.turns()
    assert unit.it.status.state is State.WRONG_CLUSTER


async def test_an_account_without_nodes_is_identified_too() -> None:
    """If neither Nodes nor UID may be read, the cluster is accepted after REFUSALS attempts."""
    unit = Unit(Forbidden(403))
    await unit.turns()
    unit.it.failed(Forbidden(403))
    await unit.turns()
    assert (unit.it.mismatch, unit.it.status.state, unit.server.asked) == ("", State.DEGRADED, module.REFUSALS)


async def test_providers_read_nothing_from_another_cluster() -> None:
    """``connection`` waits until the identity is confirmed, also after each failure."""
    reasons = {"b": "not the one"}
    unit = Unit(uid("b"), check=lambda _, uid: reasons.get(uid, ""))
    waiting = asyncio.create_task(unit.it.connection())
    await unit.turns()
    assert (unit.it.mismatch, waiting.done()) == ("not the one", False)
    reasons.clear()
    unit.it.check_identity()
    assert await waiting is unit.it.client
    unit.it.failed(ClusterUnreachable("gone"))
    waiting = asyncio.create_task(unit.it.connection())
    await unit.turns()
    assert not waiting.done()
    unit.it.failed(ServerFault(500, "", "etcd"))
    assert await waiting is unit.it.client


async def test_unreadable_uid_makes_the_cluster_degraded() -> None:
    """If only the UID cannot be read, the state is Degraded, never Unreachable."""
    unit = Unit(uid("a"))
    unit.server.answers = [ClusterUnreachable("timeout"), ServerFault(500, "", "etcd"), uid("a")]
    unit.lists()
    await unit.turns()
    assert unit.it.status.state is State.READY
    assert unit.states == ["Degraded", "Ready"]
