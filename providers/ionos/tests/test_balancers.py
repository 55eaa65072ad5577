"""Reading and writing of load balancers: errors, broken lists, and what is asked for. The course is in test_course."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hub_provider_ionos.testing import DATACENTER, TOKEN

from hub.errors import CredentialError, ProviderError
from hub.plugin import TerminalProviderError, TransientProviderError
from hub.plugin.clouds import (
    CloudConflict,
    CloudNode,
    CloudRefusal,
    Instance,
    QuotaExceeded,
    Step,
    Uncertain,
)
from tests.support.cloud_driver import NAME
from tests.support.ionos_driver import Scene, scene

BLOCK = {"properties": {"name": NAME, "location": "de/fra", "size": 1}}


@pytest.fixture
async def it() -> AsyncGenerator[Scene, None]:
    """The provider on its fake, with the servers n1 and n2."""
    async with scene() as found:
        yield found


async def first_step(it: Scene) -> Step:
    """The first step of a creation."""
    found = await it.first(it.want())
    assert isinstance(found, Step)
    return found


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("lost-answer", Uncertain),
        ("cut", Uncertain),
        ("error", Uncertain),
        ("html", Uncertain),
        ("garbage", Uncertain),
        ("busy", CloudConflict),
        ("conflict", CloudConflict),
        ("used", CloudConflict),
        ("missing", CloudConflict),
        ("refused", CloudRefusal),
        ("quota", QuotaExceeded),
        ("forbidden", TerminalProviderError),
        ("unauthorized", TerminalProviderError),
        ("redirect", TerminalProviderError),
        ("throttled", TransientProviderError),
        ("throttled-without-time", TransientProviderError),
    ],
)
async def test_errors_of_a_write(it: Scene, fault: str, kind: type[ProviderError]) -> None:
    """Each says whether something may have been made; none repeats the credential, and no request is repeated."""
    step = await first_step(it)
    it.fake.fail(fault, times=None, on="write")
    with pytest.raises(kind) as caught:
        await it.balancers.perform(step)
    assert type(caught.value) is kind
    assert TOKEN not in str(caught.value)
    assert "create IP block" in str(caught.value)
    assert len(it.writes) == 1
    if fault == "throttled":
        assert getattr(caught.value, "retry_after", None) == 1.0


async def test_without_a_connection_nothing_was_made(it: Scene) -> None:
    """A refused connection is no uncertain write."""
    step = await first_step(it)
    await it.fake.__aexit__()
    with pytest.raises(TransientProviderError) as caught:
        await it.balancers.perform(step)
    assert type(caught.value) is TransientProviderError


async def test_deleting_what_is_gone_is_done(it: Scene) -> None:
    """A 404 to a deletion is its success; to a change it is a conflict."""
    await it.settle(it.want())
    step = await it.first(None)
    assert isinstance(step, Step)
    await it.balancers.perform(step)
    done = await it.balancers.perform(step)
    assert done.answer is None
    seen = await it.balancers.observe(())
    assert it.balancers.after(seen, step, done) == seen


async def test_a_cancelled_write_is_never_sent(it: Scene) -> None:
    """Once the hub has let go of a step, its thread sends nothing any more."""
    step = await first_step(it)
    it.fake.fail("silent", times=None, on="write")
    sent = [asyncio.create_task(it.balancers.perform(step)) for _ in range(2)]  # as many as there are at a time
    while len(it.writes) < len(sent):  # noqa: ASYNC110 - the fake raises no event
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(it.balancers.perform(step))
    await asyncio.sleep(0.05)
    waiting.cancel()
    it.fake.heal()
    results = await asyncio.gather(*sent, waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Uncertain, Uncertain, asyncio.CancelledError]
    assert len(it.writes) == len(sent)


@pytest.mark.parametrize("fault", ["no-key", "list", "garbage", "cut", "error", "missing", "lost-answer"])
@pytest.mark.parametrize("path", ["/networkloadbalancers", "/ipblocks", "/servers"])
async def test_an_observation_is_complete_or_none(it: Scene, fault: str, path: str) -> None:
    """A list that is broken or missing is an error, never an empty account."""
    it.fake.fail(fault, times=None, path=path)
    with pytest.raises(ProviderError):
        await it.balancers.observe((it.want(),))


async def test_a_lost_page_is_an_error(it: Scene) -> None:
    """Lists are read to their end."""
    for number in range(5):
        it.fake.network.create_block({"properties": {**BLOCK["properties"], "name": f"b{number}"}})
    it.fake.page = 2
    assert len((await it.balancers.observe(())).blocks) == 5
    it.fake.fail("lost-page", times=None)
    with pytest.raises(TransientProviderError):
        await it.balancers.observe(())


WRONG: list[dict[str, Any]] = [
    {"entities": {"forwardingrules": {"id": "x"}}},
    {"entities": {}},
    {"properties": {"name": NAME}},
    {"entities": {"forwardingrules": {"items": [{"id": "../x", "properties": {}}]}}},
]


def _as_it_is(row: Any, _depth: int) -> Any:
    return row


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_load_balancer_that_cannot_be_read_is_an_error(it: Scene, wrong: dict[str, Any]) -> None:
    """One that was not expanded, or has a rule with a hostile id, is not taken for one without rules."""
    await it.settle(it.want())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(it.fake.network, "listed", lambda _="": [{**it.balancer, **wrong}])
        patch.setattr("hub_provider_ionos.testing.fake.expanded", _as_it_is)
        with pytest.raises(TransientProviderError):
            await it.balancers.observe(())


async def test_servers_are_listed_again_only_if_the_nodes_change(it: Scene) -> None:
    """Further observations read the blocks and the load balancers: two requests."""
    want = it.want()
    await it.balancers.observe((want,))
    before = len(it.fake.log)
    await it.balancers.observe((want,))
    assert len(it.fake.log) == before + 2
    it.fake.cloud.add_server("n3")
    seen = await it.balancers.observe((it.want("n3"),))
    assert it.node("n3").provider_id.removeprefix("ionos://") in seen.fleets[DATACENTER].servers


async def test_a_token_may_be_in_the_form_that_ionos_mounts() -> None:
    """The first token of the file counts; an error that repeats it is shown without it."""
    async with scene(secret=json.dumps({"tokens": [TOKEN, "old"]})) as it:
        await it.settle(it.want())
        it.fake.cloud.error = f"denied for {TOKEN}"
        await it.step(it.want("n1"))
        [asked] = [each for each in (await it.observe(it.want())).requests.values() if each.status == "FAILED"]
        assert asked.message == "denied for ***"


@pytest.mark.parametrize("text", ["{", '{"tokens": []}', '{"tokens": [5]}'])
async def test_a_wrong_file_of_tokens_is_an_error(text: str) -> None:
    """It is sent as it is at most, and refused; nothing else happens."""
    async with scene(secret=text) as it:
        with pytest.raises((ProviderError, CredentialError)):
            await it.balancers.observe(())


async def test_private_leaves_out_public_addresses() -> None:
    """With ``private`` Nodes have no ExternalIP."""
    async with scene(private=True) as it:
        found = (await it.instances.instances([CloudNode("n1")]))["n1"]
        assert isinstance(found, Instance)
        assert {entry.type for entry in found.addresses} == {"InternalIP"}


async def test_names_lists_every_object(it: Scene) -> None:
    """Also those that belong to no Service."""
    await it.settle(it.want())
    foreign = it.fake.network.create_block({"properties": {**BLOCK["properties"], "name": "other"}})[0]["id"]
    names = it.balancers.names(await it.balancers.observe(()))
    assert names["other"] == (f"IP block {foreign}",)
    assert [text.split()[0] for text in names[NAME]] == ["network", "IP"]
