"""Machines behind Nodes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hub_provider_brightbox.cloud import TYPE
from hub_provider_brightbox.instances import APART, PROVIDER_ID

from hub.plugin import TransientProviderError
from hub.plugin.clouds import Absent, CloudNode, Instance, NodeAddress, Unknown
from tests.support.brightbox_driver import SERVERS, Scene, scene
from tests.support.clocks import ManualClock
from tests.support.waiting import until

ONE = SERVERS[0]


async def ask(it: Scene, *nodes: CloudNode) -> Any:
    """The answers, in the order of the Nodes."""
    found = await it.cloud.instances.instances(nodes)
    return [found[node.name] for node in nodes]


def by_id(id_: str, name: str = "n") -> CloudNode:
    """A Node with a providerID."""
    return CloudNode(name, f"brightbox://{id_}")


async def test_an_instance_has_addresses_zone_region_and_type(it: Scene) -> None:
    """In the original's order: Hostname, ExternalDNS, per interface IPv4 and IPv6, per Cloud IP address and name."""
    server = it.fake.account.objects["servers"][ONE]
    server["cloud_ips"] = [{"public_ip": "109.107.50.1", "fqdn": "cip-1.gb1.brightbox.test"}]
    [found] = await ask(it, by_id(ONE))
    assert found == Instance(
        f"brightbox://{ONE}",
        "running",
        (
            NodeAddress("Hostname", ONE),
            NodeAddress("ExternalDNS", f"{ONE}.gb1.brightbox.test"),
            NodeAddress("ExternalIP", "10.240.0.2"),
            NodeAddress("ExternalIP", "2001:db8::1"),
            NodeAddress("ExternalIP", "109.107.50.1"),
            NodeAddress("ExternalDNS", "cip-1.gb1.brightbox.test"),
        ),
        "gb1-a",
        "gb1",
        "1gb.ssd",
    )


async def test_missing_parts_are_left_out(it: Scene) -> None:
    """No IPv6, a zone without a dash, nothing but the id: the node still gets what there is."""
    bare = it.fake.account.add_server(ipv6=False, zone="gb1")
    [found] = await ask(it, by_id(bare["id"]))
    assert [each.type for each in found.addresses] == ["Hostname", "ExternalDNS", "ExternalIP"]
    assert (found.zone, found.region) == ("gb1", "")
    for key in set(bare) - {"id", "status"}:
        bare[key] = None
    [found] = await ask(it, by_id(bare["id"]))
    assert found == Instance(f"brightbox://{bare['id']}")


@pytest.mark.parametrize(("internal", "type_"), [(False, "ExternalIP"), (True, "InternalIP")])
async def test_private_addresses_are_internal_if_asked_for(internal: bool, type_: str) -> None:
    """With internalIPs, 10.0.0.0/8 is InternalIP; other addresses stay as they are."""
    async with scene(internalIPs=internal) as it:
        [found] = await ask(it, by_id(ONE))
        assert [each.type for each in found.addresses][2:] == [type_, "ExternalIP"]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("active", "running"),
        ("creating", "starting"),
        ("inactive", "stopped"),
        ("unavailable", "stopped"),
        ("deleting", "leaving"),
        ("deleted", Absent),
        ("failed", Absent),
        ("dreaming", Unknown),
        (None, Unknown),
    ],
)
async def test_the_status_decides(it: Scene, status: Any, expected: Any, many: bool) -> None:
    """Deleted and failed are gone; a status that nobody knows is Unknown; asked singly or by the list."""
    it.fake.account.objects["servers"][ONE]["status"] = status
    others = [by_id(f"srv-9999{number}", f"o{number}") for number in range(5 if many else 0)]
    found, *absent = await ask(it, by_id(ONE), *others)
    assert getattr(found, "status", cast("Any", type(found))) == expected
    assert all(isinstance(answer, Absent) for answer in absent)
    assert [row.path for row in it.fake.log[1:]] == ["/1.0/servers" if many else f"/1.0/servers/{ONE}"]


async def test_up_to_five_are_asked_for_singly(it: Scene) -> None:
    """Five machines are five requests, six are one list; one that two Nodes claim is asked for once."""
    nodes = [by_id(it.fake.account.add_server()["id"], f"n{number}") for number in range(6)]
    await ask(it, *nodes[:5], by_id(nodes[0].provider_id.removeprefix("brightbox://"), "twin"))
    assert len(it.fake.log) == 1 + 5
    it.fake.log.clear()
    await ask(it, *nodes)
    assert [row.path for row in it.fake.log] == ["/1.0/servers"]


def lists(it: Scene) -> int:
    """How often all servers were listed."""
    return sum(row.path == "/1.0/servers" for row in it.fake.log)


async def test_clusters_that_ask_at_once_share_a_list(it: Scene) -> None:
    """Twenty clusters of one account make one list; each gets the answers about its own Nodes."""
    clusters = [[by_id(it.fake.account.add_server()["id"], f"n{number}") for number in range(6)] for _ in range(20)]
    answers = await asyncio.gather(*(ask(it, *nodes) for nodes in clusters))
    assert [[found.provider_id for found in answer] for answer in answers] == [
        [node.provider_id for node in nodes] for nodes in clusters
    ]
    assert lists(it) == 1


async def test_a_list_that_has_begun_is_not_shared() -> None:
    """A server that is made meanwhile may be missing in it: later questions share the next one, a second after it."""
    clock = ManualClock()
    async with scene(clock) as it, asyncio.timeout(20):
        nodes = [by_id(it.fake.account.add_server()["id"], f"n{number}") for number in range(6)]
        it.fake.fail("silent", path="/1.0/servers")
        first, begun = asyncio.create_task(ask(it, *nodes)), clock.now()
        await until(lambda: lists(it))
        made = by_id(it.fake.account.add_server()["id"], "new")
        answers = await asyncio.gather(*(ask(it, *nodes, made) for _ in range(3)))
        assert [answer[-1].provider_id for answer in answers] == [made.provider_id] * 3
        assert (lists(it), clock.now() - begun) == (2, APART)
        it.fake.heal()
        assert len(await first) == 6


async def test_a_list_ends_with_the_last_question_that_waits_for_it(it: Scene) -> None:
    """A question that is cancelled does not take the answer away from another cluster's."""
    nodes = [by_id(f"srv-9999{number}", f"n{number}") for number in range(6)]
    it.fake.fail("silent", path="/1.0/servers", times=None)

    async def asked() -> list[asyncio.Task[Any]]:
        before = lists(it)
        tasks = [asyncio.create_task(ask(it, *nodes)) for _ in range(2)]
        await until(lambda: lists(it) > before)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        return tasks

    _, other = await asked()
    it.fake.heal()
    assert all(isinstance(answer, Absent) for answer in await other)
    it.fake.fail("silent", path="/1.0/servers", times=None)
    _, other = await asked()
    other.cancel()
    ended, _ = await asyncio.wait({other}, timeout=2)
    assert ended
    assert "list of servers" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_without_a_provider_id_the_name_is_the_server(it: Scene) -> None:
    """Nothing else is tried; a name that is no id of a server says nothing about the machine."""
    named, other, gone = await ask(it, CloudNode(ONE), CloudNode("worker-1"), CloudNode("srv-99999"))
    assert named.provider_id == f"brightbox://{ONE}"
    assert isinstance(other, Unknown)
    assert isinstance(gone, Absent)


@pytest.mark.parametrize("fault", ["empty-object", "null", "html-200", "error", "cut", "page"])
@pytest.mark.parametrize("many", [False, True])
async def test_a_broken_answer_is_not_absent(it: Scene, fault: str, many: bool) -> None:
    """It raises, and no Node is answered."""
    nodes = [by_id(ONE), *(by_id(f"srv-9999{number}", f"o{number}") for number in range(5 if many else 0))]
    it.fake.fail(fault, path="/1.0/")
    with pytest.raises(TransientProviderError):
        await ask(it, *nodes)


@pytest.mark.parametrize(
    "text", ["aws:///x", "brightbox://", "brightbox://srv-../x", "brightbox://srv-12345/", "srv-12345"]
)
def test_other_provider_ids_are_foreign(text: str) -> None:
    """Only brightbox://srv-… is ours."""
    assert PROVIDER_ID.fullmatch(text) is None
    assert TYPE.provider_id.fullmatch("brightbox://srv-12345")["id"] == "srv-12345"  # type: ignore[index]
