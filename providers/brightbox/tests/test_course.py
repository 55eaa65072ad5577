"""The course of a balancer on the fake: each line is made once, and again after an interruption."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from hub.plugin import TransientProviderError
from hub.plugin.clouds import BalancerPort, CloudConflict, Marker, Notice, Record, Refused, Step, Uncertain, Wait
from tests.support.brightbox_driver import HTTP, HTTPS, KINDS, MARKER, NAME, SERVERS, Scene, balancer, cut_at, scene

CREATE = 7
"""Writes of a creation."""
FULL = balancer(ports=(HTTP, HTTPS), settings={"policy": "round-robin", "ssl_domains": ("www.example.test",)})


async def test_a_creation_makes_seven_writes_in_order(it: Scene) -> None:
    """Address, group, join, policy, rule, balancer, map; with the documented bodies, and nothing else is read."""
    await it.settle(balancer())
    cip, grp, fwp = it.only("cloud_ips")["id"], it.only("server_groups")["id"], it.only("firewall_policies")["id"]
    lba = it.only("load_balancers")["id"]
    bodies = [(row.text.replace("/1.0/", ""), msgspec.json.decode(row.body)) for row in it.fake.log if row.writes]
    assert bodies == [
        ("POST cloud_ips", {"name": NAME}),
        ("POST server_groups", {"name": NAME, "description": str(MARKER)}),
        (f"POST server_groups/{grp}/add_servers", {"servers": [{"server": server} for server in SERVERS]}),
        ("POST firewall_policies", {"name": NAME, "server_group": grp}),
        (
            "POST firewall_rules",
            {
                "firewall_policy": fwp,
                "protocol": "tcp",
                "source": "10.0.0.0/8",
                "destination_port": "30080",
                "description": NAME,
            },
        ),
        (
            "POST load_balancers",
            {
                "name": NAME,
                "nodes": [{"node": server} for server in SERVERS],
                "listeners": [{"protocol": "http", "in": 80, "out": 30080}],
                "healthcheck": {"type": "http", "port": 30080, "request": "/healthz"},
                "https_redirect": False,
            },
        ),
        (f"POST cloud_ips/{cip}/map", {"destination": lba}),
    ]
    assert {row.text for row in it.fake.log if not row.writes} == {
        "POST /token/",
        "GET /1.0/load_balancers",
        "GET /1.0/server_groups",
        "GET /1.0/firewall_policies",
        "GET /1.0/cloud_ips",
    }


async def test_a_new_process_writes_nothing_to_what_is_as_wanted(it: Scene) -> None:
    """A plan of an unchanged balancer is empty, also without the record, and in any order of the cloud's lists."""
    it.context.dns["www.example.test"] = ("109.107.0.6",)
    await it.settle(FULL)
    it.fake.shuffled = True
    for collection, key in (("load_balancers", "nodes"), ("load_balancers", "listeners"), ("server_groups", "servers")):
        it.only(collection)[key].reverse()
    it.only("firewall_rules")["destination_port"] = "30443, 30080"
    it.only("load_balancers")["acme"]["domains"].reverse()
    for record in (it.record, Record(NAME, MARKER)):
        it.killed()
        it.record = record
        assert await it.plan(FULL) == []


async def test_what_another_controller_made_is_adopted_without_a_write(it: Scene) -> None:
    """Names with blanks and the mark of containers, no marker, another rule beside ours: nothing is written."""
    await it.settle(balancer())
    it.killed()
    it.record = Record(NAME, MARKER)
    it.only("server_groups")["description"] = None
    it.only("load_balancers")["name"] = f" {NAME} #type:container "
    policy = it.only("firewall_policies")["id"]
    it.fake.account.create("firewall_rules", {"firewall_policy": policy, "description": "by hand", "protocol": "udp"})
    assert await it.plan(balancer()) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, CREATE + 1))
async def test_a_creation_goes_on_after_a_kill(it: Scene, number: int, when: str) -> None:
    """Killed before or after the answer of any write, the next process makes what is missing, and doubles nothing."""
    async with scene() as calm:
        calm.context.dns["www.example.test"] = ("109.107.0.6",)
        await calm.settle(FULL)
        wanted = calm.state()
    it.context.dns["www.example.test"] = ("109.107.0.6",)
    it.fake.cut = cut_at(number, when)
    await it.settle(FULL, until=it.dies)  # each step is a process of its own
    it.killed()
    assert await it.plan(FULL) == []
    assert it.state() == wanted
    assert len(it.left()) == 5


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 7))
async def test_a_deletion_goes_on_after_a_kill(it: Scene, number: int, when: str) -> None:
    """Killed at any write of a deletion, the next process leaves nothing of ours, and everything else."""
    foreign = it.fake.account.add_cloud_ip("other.edge.eu")["id"]
    longer = it.fake.account.create("server_groups", {"name": f"{NAME}-2"})["id"]
    await it.settle(balancer())
    it.fake.cut = cut_at(number, when)
    await it.settle(None, until=it.dies)
    it.killed()
    assert await it.plan(None) == []
    assert it.left() == [longer, foreign]


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_change_of_everything_goes_on_after_a_kill(it: Scene, number: int, when: str) -> None:
    """Nodes, ports and the Cloud IP change at once; killed at any of the writes, the end is the same."""
    other = it.fake.account.add_cloud_ip("reserved")["id"]
    joining = it.fake.account.add_server()["id"]
    await it.settle(balancer())
    want = balancer([SERVERS[1], joining], ports=(HTTP, HTTPS), settings={"cloudip_allocations": (other,)})
    it.fake.cut = cut_at(number, when)
    await it.settle(want, until=it.dies)
    assert await it.plan(want) == []
    balancer_, group, cloud_ip = it.only("load_balancers"), it.only("server_groups"), it.only("cloud_ips")
    assert (cloud_ip["id"], cloud_ip["load_balancer"]["id"]) == (other, balancer_["id"])
    assert (
        {node["id"] for node in balancer_["nodes"]} == {row["id"] for row in group["servers"]} == {SERVERS[1], joining}
    )
    assert await it.settle(None) != []
    assert it.left() == [other]


async def test_lists_that_lag_make_no_double(it: Scene) -> None:
    """New objects are missing in many lists: the answers to the steps stand in for them."""
    it.fake.account.lag = 100
    assert len(await it.settle(balancer())) == CREATE
    assert len(it.left()) == 5


async def test_a_late_mapping_is_waited_for(it: Scene) -> None:
    """While the cloud maps and unmaps, nothing is repeated; the ingress comes with the mapping."""
    it.fake.account.reads = 40
    waits: list[str] = []

    def late(first: Any) -> bool:
        waits.append(first.reason) if isinstance(first, Wait) else None
        return False

    await it.settle(balancer(), until=lambda first: isinstance(first, Wait) and first.reason == "CloudIPMapping")
    assert await it.hostnames(balancer()) == []
    assert await it.settle(balancer(), until=late) == []
    assert await it.hostnames(balancer()) == [it.only("cloud_ips")["fqdn"]]
    writes = await it.settle(None, until=late)
    assert len(writes) == 6
    assert it.left() == []
    assert {"CloudIPMapping", "CloudIPLeaving"} <= set(waits)
    assert [row.text for row in it.fake.log if row.status >= 400] == []


async def test_a_spare_cloud_ip_goes_once_it_is_unmapped(it: Scene) -> None:
    """While the cloud unmaps the old one it is waited for; no request is refused."""
    await it.settle(balancer())
    reserved = it.fake.account.add_cloud_ip("reserved")["id"]
    it.fake.account.reads = 40
    await it.settle(balancer(settings={"cloudip_allocations": (reserved,)}))
    assert [each["id"] for each in it.objects("cloud_ips")] == [reserved]
    assert [row.text for row in it.fake.log if row.status >= 400] == []


async def test_a_node_joins_before_the_balancer_uses_it_and_leaves_after(it: Scene) -> None:
    """add_servers, PUT of the nodes alone, remove_servers; an empty set changes nothing."""
    joining = it.fake.account.add_server()["id"]
    await it.settle(balancer())
    lba, grp = it.only("load_balancers")["id"], it.only("server_groups")["id"]
    assert await it.settle(balancer([SERVERS[0], joining])) == [
        f"POST server_groups/{grp}/add_servers",
        f"PUT load_balancers/{lba}",
        f"POST server_groups/{grp}/remove_servers",
    ]
    [put] = [row for row in it.fake.log if row.method == "PUT"]
    assert msgspec.json.decode(put.body) == {"nodes": [{"node": SERVERS[0]}, {"node": joining}]}
    assert await it.plan(balancer([])) == []


async def test_a_balancer_without_nodes_is_made_without_them(it: Scene) -> None:
    """At creation an empty set is left out, and the nodes follow later."""
    await it.settle(balancer([]))
    assert it.only("load_balancers")["nodes"] == []
    await it.settle(balancer())
    assert [node["id"] for node in it.only("load_balancers")["nodes"]] == list(SERVERS)


async def test_a_former_cluster_name_is_replaced_on_every_object(it: Scene) -> None:
    """The objects under a former name are adopted and renamed: one PUT each, the rule's description too."""
    await it.settle(balancer())
    it.killed()
    it.record = Record("web.edge.new", MARKER, (NAME,))
    want = msgspec.structs.replace(balancer(), name="web.edge.new", former_names=(NAME,))
    assert [text.split("/")[0] for text in await it.settle(want)] == [
        "PUT cloud_ips",
        "PUT server_groups",
        "PUT firewall_policies",
        "PUT firewall_rules",
        "PUT load_balancers",
    ]
    assert set(it.state()["names"]) == {"web.edge.new"}


@pytest.mark.parametrize("collection", ["cloud_ips", "server_groups", "firewall_policies", "load_balancers"])
async def test_an_object_renamed_by_hand_gets_its_name_back(it: Scene, collection: str) -> None:
    """It is found by the record's id and what it is joined to; it goes with the Service, even without that."""
    await it.settle(balancer())
    it.killed()
    it.only(collection)["name"] = "mine"
    assert await it.settle(balancer()) == [f"PUT {collection}/{it.only(collection)['id']}"]
    it.only(collection)["name"] = "mine"
    it.killed()
    await it.settle(None)
    assert it.left() == []


@pytest.mark.parametrize("collection", ["server_groups", "firewall_policies", "load_balancers"])
async def test_an_object_deleted_by_hand_is_made_again(it: Scene, collection: str) -> None:
    """It is made anew, and everything else stays, the Cloud IP too."""
    await it.settle(balancer())
    before, cip = it.state(), it.only("cloud_ips")["id"]
    it.killed()
    if collection == "server_groups":
        it.only(collection)["servers"] = []
    it.fake.account.delete(collection, it.only(collection)["id"])
    await it.settle(balancer())
    assert (it.state(), it.only("cloud_ips")["id"]) == (before, cip)


@pytest.mark.parametrize("group", [None, {"id": "grp-00001"}])
async def test_a_policy_without_our_group_is_applied(it: Scene, group: Any) -> None:
    """A policy of our name that no group has, or another one, is applied to ours."""
    await it.settle(balancer())
    it.only("firewall_policies")["server_group"] = group
    it.killed()
    fwp = it.only("firewall_policies")["id"]
    assert await it.settle(balancer()) == [f"POST firewall_policies/{fwp}/apply_to"]


async def test_a_failed_balancer_is_replaced_after_two_looks(it: Scene) -> None:
    """The first look waits, the second deletes it; its successor gets the same Cloud IP. A failing one stays."""
    await it.settle(balancer())
    it.killed()
    it.only("load_balancers")["status"] = "failing"
    assert await it.notices(balancer()) == ["LoadBalancerFailing"]
    assert await it.first(balancer()) is None
    old, cip = it.only("load_balancers")["id"], it.only("cloud_ips")["id"]
    it.only("load_balancers")["status"] = "failed"
    assert isinstance(await it.first(balancer()), Wait)
    writes = await it.settle(balancer())
    assert writes == [f"DELETE load_balancers/{old}", "POST load_balancers", f"POST cloud_ips/{cip}/map"]


async def test_a_locked_balancer_waits_for_a_person(it: Scene) -> None:
    """Neither a change nor a deletion is tried: LoadBalancerLocked, looked at again after 300 s."""
    await it.settle(balancer())
    it.only("load_balancers")["locked"] = True
    for want in (balancer([SERVERS[0]]), None):
        first = await it.first(want)
        assert isinstance(first, Wait)
        assert (first.reason, first.after) == ("LoadBalancerLocked", 300.0)


async def test_a_service_made_again_waits_for_the_old_balancer(it: Scene) -> None:
    """While a balancer of the name is being deleted, none is made."""
    it.fake.account.reads = 1000
    await it.settle(balancer(), until=lambda first: isinstance(first, Wait))
    it.fake.account.delete("load_balancers", it.only("load_balancers")["id"])
    it.killed()
    it.record = Record(NAME, Marker("cluster-1", "service-2"))
    first = await it.first(balancer())
    assert isinstance(first, Wait)
    assert first.reason == "LoadBalancerLeaving"


# --- Cloud IPs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["id", "ipv4", "ipv6"])
async def test_a_reserved_cloud_ip_is_used_and_never_deleted(it: Scene, how: str) -> None:
    """Named by id or address, it is mapped; the one that the hub made goes; it outlives the Service."""
    await it.settle(balancer())
    reserved = it.fake.account.add_cloud_ip("reserved")
    address = {"ipv4": reserved["public_ipv4"], "ipv6": "2001:DB8:FFFF::0" + reserved["public_ipv6"].rpartition(":")[2]}
    named: dict[str, Any] = (
        {"settings": {"cloudip_allocations": (reserved["id"],)}} if how == "id" else {"address": address[how]}
    )
    want = balancer(**named)
    old = next(each["id"] for each in it.objects("cloud_ips") if each["name"] == NAME)
    assert await it.settle(want) == [
        f"POST cloud_ips/{reserved['id']}/map",
        f"POST cloud_ips/{old}/unmap",
        f"DELETE cloud_ips/{old}",
    ]
    assert await it.hostnames(want) == [reserved["fqdn"]]
    assert await it.settle(balancer()) == []  # the annotation is gone: what is mapped stays
    await it.settle(None)
    assert it.left() == [reserved["id"]]


async def test_a_cloud_ip_that_is_mapped_elsewhere_is_never_taken(it: Scene) -> None:
    """CloudIPInUse names the holder; nothing is made, and an existing balancer still follows its nodes."""
    reserved = it.fake.account.add_cloud_ip("reserved")
    reserved["server"] = {"id": SERVERS[0]}
    want = balancer(settings={"cloudip_allocations": (reserved["id"],)})
    first = await it.first(want)
    assert isinstance(first, Wait)
    assert (first.reason, SERVERS[0] in first.message) == ("CloudIPInUse", True)
    await it.settle(balancer())
    writes = await it.settle(balancer([SERVERS[1]], settings=dict(want.settings)), until=lambda x: isinstance(x, Wait))
    assert [text.rpartition("/")[2] for text in writes] == [it.only("load_balancers")["id"], "remove_servers"]


@pytest.mark.parametrize("collection", ["load_balancers", "cloud_ips", "server_groups", "firewall_policies"])
async def test_an_object_that_only_its_list_lacks_is_not_made_again(it: Scene, collection: str) -> None:
    """Another object refers to it, so its list is not complete."""
    await it.settle(balancer())
    it.killed()
    id_, seen = it.only(collection)["id"], await it.observe(balancer())
    objects = {kind: {key: each for key, each in found.items() if key != id_} for kind, found in seen.objects.items()}
    lacking = msgspec.structs.replace(seen, objects=objects)
    planned = it.cloud.balancers.plan(balancer(), lacking, it.record)
    assert [item.reason for item in planned if isinstance(item, Wait)] == ["ListIncomplete"]
    assert [item for item in planned if isinstance(item, Step)] == []


async def test_lists_without_any_object_are_not_believed(it: Scene) -> None:
    """Every account has a default server group: without it nothing is made, and nothing counts as deleted."""
    await it.settle(balancer())
    it.killed()
    it.fake.fail("empty", times=None, method="GET")
    for want in (balancer(), None):
        [planned] = await it.plan(want)
        assert isinstance(planned, Wait)
        assert planned.reason == "ListIncomplete"


async def test_an_unknown_cloud_ip_is_refused(it: Scene) -> None:
    """CloudIPNotFound; nothing is made, and a hostile id is only quoted."""
    cases: list[dict[str, Any]] = [{"address": "192.0.2.1"}, {"settings": {"cloudip_allocations": ("cip-../servers",)}}]
    for more in cases:
        [refused] = await it.plan(balancer(**more))
        assert isinstance(refused, Refused)
        assert refused.reason == "CloudIPNotFound"


# --- whose it is -----------------------------------------------------------------------------------------


async def test_a_group_of_another_cluster_means_that_the_name_is_taken(it: Scene) -> None:
    """CloudNameTaken; nothing is changed, and nothing of the other's is deleted with the Service."""
    await it.settle(balancer())
    ours_, theirs = it.record, it.left()
    it.killed()
    other = Marker("cluster-2", "service-9")
    it.record = Record(NAME, other)
    want = msgspec.structs.replace(balancer(), marker=other)
    [refused] = await it.plan(want)
    assert isinstance(refused, Refused)
    assert refused.reason == "CloudNameTaken"
    assert await it.plan(None) == []
    assert it.left() == theirs
    it.record = ours_
    assert await it.plan(balancer()) == []


@pytest.mark.parametrize("made", [True, False])
async def test_a_second_balancer_goes_only_if_the_hub_made_it(it: Scene, made: bool) -> None:
    """Of two, the recorded one counts; without a record, the one with the Cloud IP. The other is named, or deleted."""
    await it.settle(balancer())
    first = it.only("load_balancers")["id"]
    second = it.fake.account.create("load_balancers", {"name": NAME})["id"]
    it.fake.account.objects["load_balancers"][second]["created_at"] = "2025-01-01T00:00:00Z"
    it.killed()
    kept = it.record
    it.record = kept if made else Record(NAME, MARKER)
    assert await it.settle(balancer()) == ([f"DELETE load_balancers/{second}"] if made else [])
    assert await it.notices(balancer()) == ([] if made else ["DuplicateCloudObject"])
    assert it.record.ids["load_balancer"] == first


async def test_what_the_hub_did_not_make_outlives_the_service(it: Scene) -> None:
    """With a record, a Cloud IP and second objects go only if the hub made that kind."""
    await it.settle(balancer())
    cip = it.only("cloud_ips")["id"]
    it.killed()
    it.record = msgspec.structs.replace(it.record, made=())
    reserved = it.fake.account.add_cloud_ip("reserved")["id"]
    await it.settle(balancer(settings={"cloudip_allocations": (reserved,)}))
    second = it.fake.account.create("server_groups", {"name": NAME})["id"]
    await it.settle(None)
    assert it.left() == [second, cip, reserved]


async def test_the_recorded_one_of_two_counts(it: Scene) -> None:
    """Even if the other one is older."""
    await it.settle(balancer())
    older = it.fake.account.create("server_groups", {"name": NAME})
    it.fake.account.objects["server_groups"][older["id"]]["created_at"] = "2025-01-01T00:00:00Z"
    it.killed()
    it.record = msgspec.structs.replace(it.record, made=("cloud_ip",))
    assert await it.settle(balancer()) == []
    assert it.record.ids["server_group"] != older["id"]


async def test_a_live_balancer_counts_before_a_failed_one(it: Scene) -> None:
    """Even if the failed one is recorded and has the Cloud IP: it moves, and nothing is made."""
    await it.settle(balancer())
    failed, cip = it.only("load_balancers"), it.only("cloud_ips")["id"]
    failed["status"] = "failed"
    live = it.fake.account.create("load_balancers", {"name": NAME})["id"]
    it.killed()
    writes = await it.settle(balancer())
    assert writes == [
        f"PUT load_balancers/{live}",
        f"POST cloud_ips/{cip}/unmap",
        f"POST cloud_ips/{cip}/map",
        f"DELETE load_balancers/{failed['id']}",
    ]


@pytest.mark.parametrize("seed", range(12))
async def test_any_history_converges_without_a_leak(it: Scene, seed: int) -> None:
    """Random wishes, kills, lost answers and changes by hand: the end is as wanted, and nothing is left at last."""
    rng = random.Random(seed)
    account, fresh = it.fake.account, Record(NAME, MARKER)
    foreign = [account.add_cloud_ip("other")["id"], account.create("server_groups", {"name": f"x.{NAME}"})["id"]]
    it.fake.shuffled = True
    account.certificates = "valid"
    servers = [*SERVERS, *(account.add_server()["id"] for _ in range(3))]
    want = balancer()
    for _ in range(25):
        act = rng.choice(("want", "kill", "cut", "lose", "status", "steps", "steps", "steps"))
        if act == "want":
            settings = rng.choice(({}, {"policy": "round-robin"}, {"listener_protocol": "tcp"}))
            ports = rng.choice(((HTTP,), (HTTP, HTTPS), (HTTPS,)))
            want = balancer(rng.sample(servers, rng.randint(1, 5)), settings=settings, ports=ports)
        elif act == "kill":
            it.killed()
        elif act == "cut":
            it.fake.cut = cut_at(rng.randint(1, 4), rng.choice(("before", "after")))
        elif act == "lose" and (lost := it.objects(rng.choice(("firewall_policies", "load_balancers")))):
            account.delete("load_balancers" if lost[0]["id"].startswith("lba") else "firewall_policies", lost[0]["id"])
            it.killed()
        elif act == "status" and (found := it.objects("load_balancers")):
            found[0]["status"] = rng.choice(("active", "failing", "failed"))
        for _ in range(rng.randint(1, 4)):
            with suppress(Uncertain, CloudConflict):
                await it.step(want if rng.random() < 0.9 else None)
    it.killed()
    await it.settle(want)
    account.objects["cloud_ips"].pop(foreign[0])
    account.objects["server_groups"].pop(foreign[1])
    state = it.state()
    assert (state["applied"], state["ruled"], state["mapped"]) == (True, True, True)
    assert state["nodes"] == state["servers"] == sorted(node.name for node in want.nodes)
    it.killed()
    if rng.random() < 0.5:
        it.record = fresh
    await it.settle(None)
    assert it.left() == []


async def test_a_recorded_id_of_a_foreign_object_does_not_count(it: Scene) -> None:
    """Neither name nor marker nor a tie proves it: RecordIgnored, and nothing of it is changed or deleted."""
    foreign = [
        it.fake.account.create("server_groups", {"name": "theirs"})["id"],
        it.fake.account.create("firewall_policies", {"name": "theirs"})["id"],
        it.fake.account.create("load_balancers", {"name": "theirs"})["id"],
        it.fake.account.add_cloud_ip("theirs")["id"],
    ]
    kinds = ("server_group", "firewall_policy", "load_balancer", "cloud_ip")
    it.record = Record(NAME, MARKER, ids=dict(zip(kinds, foreign, strict=True)), made=kinds)
    assert await it.notices(balancer()) == ["RecordIgnored"] * 4
    assert len(await it.settle(balancer())) == CREATE
    await it.settle(None)
    assert sorted(it.left()) == sorted(foreign)


async def test_default_objects_are_never_ours(it: Scene) -> None:
    """Not even if the Service is called like them."""
    for collection in ("server_groups", "firewall_policies"):
        [default] = it.fake.account.objects[collection].values()
        default["name"] = NAME
    await it.settle(balancer())
    assert len(it.fake.account.objects["server_groups"]) == 2
    await it.settle(None)
    assert len(it.fake.account.objects["server_groups"]) == len(it.fake.account.objects["firewall_policies"]) == 1


async def test_another_account_is_refused(it: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record knows the account: with lists of another one nothing is made, and nothing counts as deleted."""
    from hub_provider_brightbox.testing import shapes

    await it.settle(balancer())
    monkeypatch.setitem(shapes.ACCOUNT, "id", "acc-00002")
    async with scene() as other:
        other.record = it.record
        for want in (balancer(), None):
            [refused] = await other.plan(want)
            assert isinstance(refused, Refused)
            assert refused.reason == "WrongAccount"


async def test_an_account_that_changes_is_refused(it: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of another account are an error each time: no plan is made from them, and nothing counts as deleted."""
    from hub_provider_brightbox.testing import shapes

    await it.settle(balancer())
    before = shapes.ACCOUNT["id"]
    monkeypatch.setitem(shapes.ACCOUNT, "id", "acc-00002")
    for _ in range(3):
        with pytest.raises(TransientProviderError, match=f"WrongAccount: .* of account acc-00002, not of {before}"):
            await it.cloud.balancers.observe(())
    monkeypatch.setitem(shapes.ACCOUNT, "id", before)
    assert (await it.cloud.balancers.observe(())).account == before


async def test_a_renamed_balancer_with_tls_only_gets_its_name_back(it: Scene) -> None:
    """Its certificates are not known from the lists, so nothing is said about them."""
    want = balancer(ports=(HTTP, HTTPS))
    await it.settle(want)
    it.killed()
    it.only("load_balancers")["name"] = "mine"
    await it.settle(want)
    [put] = [row.body for row in it.fake.log if row.method == "PUT"]
    assert msgspec.json.decode(put) == {"name": NAME}


async def test_a_renamed_balancer_with_a_named_address_gets_its_name_back(it: Scene) -> None:
    """The Cloud IP of the annotation has another name: the balancer is proven by where all its traffic goes."""
    address = it.fake.account.add_cloud_ip("ours")["id"]
    want = balancer(settings={"cloudip-allocations": (address,)})
    await it.settle(want)
    it.killed()
    it.only("load_balancers")["name"] = "mine"
    assert await it.settle(want) == [f"PUT load_balancers/{it.only('load_balancers')['id']}"]
    assert it.only("load_balancers")["name"] == NAME
    it.only("load_balancers")["name"] = "mine"
    it.killed()
    await it.settle(None)
    assert it.objects("load_balancers") == []
    assert it.only("cloud_ips")["id"] == address


@pytest.mark.parametrize("other", ["port", "server", "none"])
async def test_a_record_gives_nobody_a_balancer_that_leads_elsewhere(it: Scene, other: str) -> None:
    """A balancer with a listener to another port, a node outside the group, or without nodes is somebody else's."""
    address = it.fake.account.add_cloud_ip("ours")["id"]
    want = balancer(settings={"cloudip-allocations": (address,)})
    await it.settle(want)
    it.killed()
    theirs = it.only("load_balancers")
    theirs["name"] = "theirs"
    if other == "port":
        theirs["listeners"] = [*theirs["listeners"], {"protocol": "tcp", "in": 25, "out": 30999}]
    else:
        theirs["nodes"] = [*theirs["nodes"], {"id": "srv-zzzzz"}] if other == "server" else []
    planned = await it.plan(want)
    assert "RecordIgnored" in [item.reason for item in planned if isinstance(item, Notice)]
    assert [item.reason for item in planned if isinstance(item, Wait)] == ["CloudIPInUse"]
    assert not [item for item in planned if isinstance(item, Step)]


async def test_a_failed_observation_leaves_no_request_behind(it: Scene) -> None:
    """The first error ends the other requests: none goes on when the plugin is about to be closed."""
    await it.cloud.balancers.observe(())
    it.fake.fail("silent", times=None, path="cloud_ips")
    it.fake.fail("error", path="load_balancers")
    with pytest.raises(TransientProviderError):
        await it.cloud.balancers.observe(())
    assert [task for task in asyncio.all_tasks() if "Client" in repr(task.get_coro())] == []
    it.fake.heal()


async def test_only_what_is_there_counts(it: Scene) -> None:
    """A deleted balancer that lists still show is none; a second one that is being deleted is let be."""
    await it.settle(balancer())
    it.killed()
    second = it.fake.account.create("load_balancers", {"name": NAME})["id"]
    it.fake.account.objects["load_balancers"][second]["status"] = "deleting"
    assert await it.plan(balancer()) == []
    it.fake.account.objects["load_balancers"][second]["status"] = "deleted"
    it.fake.account.objects["load_balancers"][it.record.ids["load_balancer"]]["status"] = "deleted"
    it.only("cloud_ips")["load_balancer"] = None
    assert [text.split("/")[0] for text in await it.settle(balancer())] == ["POST load_balancers", "POST cloud_ips"]


async def test_the_only_rule_is_taken_over(it: Scene) -> None:
    """A rule without a description, alone in our policy, is changed: there is no second one."""
    await it.settle(balancer())
    it.killed()
    it.only("firewall_rules")["description"] = None
    assert await it.settle(balancer()) == [f"PUT firewall_rules/{it.only('firewall_rules')['id']}"]
    assert it.only("firewall_rules")["description"] == NAME


async def test_a_rule_by_hand_stays(it: Scene) -> None:
    """Ours is the one with the description; a changed one is put back, another one is left alone."""
    await it.settle(balancer())
    it.killed()
    rule, policy = it.only("firewall_rules"), it.only("firewall_policies")["id"]
    body = {"firewall_policy": policy, "description": "by hand", "protocol": "tcp", "destination_port": "22"}
    it.fake.account.create("firewall_rules", body)
    rule["destination_port"] = "1"
    assert await it.settle(balancer()) == [f"PUT firewall_rules/{rule['id']}"]
    assert [each["destination_port"] for each in it.objects("firewall_rules")] == ["30080", "22"]


async def test_the_steps_that_come_later_are_shown(it: Scene) -> None:
    """A plan of nothing shows all seven steps; ids that do not exist yet are (new), and never get into a request."""
    planned = await it.plan(balancer(ports=(BalancerPort(80, 30080),)))
    assert [item.kind for item in planned if isinstance(item, Step)] == [
        "create-cloud-ip",
        "create-server-group",
        "add-servers",
        "create-firewall-policy",
        "create-firewall-rule",
        "create-load-balancer",
        "map",
    ]
    assert [item.creates for item in planned if isinstance(item, Step) and item.creates] == list(KINDS)
    last = planned[-1]
    assert isinstance(last, Step)
    assert last.summary == "map Cloud IP (new) to (new)"
    with pytest.raises(Exception, match="without a valid id"):
        await it.cloud.balancers.perform(last)
