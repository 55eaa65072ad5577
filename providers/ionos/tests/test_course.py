"""The course of a load balancer on the fake: each line is made once, and again after an interruption."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hub_provider_ionos.testing import DATACENTER, PRIVATE, PUBLIC

from hub.plugin.clouds import BalancerPort, CloudConflict, Ingress, Record, Refused, Step, Uncertain, Wait
from tests.support.cloud_driver import MARKER, NAME
from tests.support.ionos_driver import HTTP, HTTPS, Scene, cut_at, scene

CREATE = ["create-ip-block", "create-load-balancer", "create-forwarding-rule", "create-forwarding-rule"]
DELETE = ["delete-load-balancer", "delete-ip-block"]
SECOND = "10000000-0000-4000-8000-000000000002"
BOTH = (HTTP, HTTPS)


@pytest.fixture
async def it() -> AsyncGenerator[Scene, None]:
    """The provider on its fake, with the servers n1 and n2."""
    async with scene() as found:
        yield found


async def test_a_creation_makes_one_write_for_each_object(it: Scene) -> None:
    """IP block, load balancer, a rule for each port, with the documented bodies; then the address is published."""
    want = it.want(ports=BOTH)
    assert await it.ingress(want) == ()
    assert await it.settle(want) == CREATE
    assert it.writes == [
        "POST ipblocks",
        "POST datacenters/networkloadbalancers",
        "POST datacenters/networkloadbalancers/forwardingrules",
        "POST datacenters/networkloadbalancers/forwardingrules",
    ]
    bodies = [msgspec.json.decode(served.body)["properties"] for served in it.fake.log if served.kind == "write"]
    [address] = it.block["properties"]["ips"]
    assert bodies[:2] == [
        {"name": NAME, "location": "de/fra", "size": 1},
        {"name": NAME, "listenerLan": PUBLIC, "targetLan": PRIVATE, "ips": [address]},
    ]
    target = {"weight": 1, "proxyProtocol": "none", "healthCheck": {"check": True, "checkInterval": 2000}}
    assert bodies[2] == {
        "name": "tcp-80",
        "algorithm": "ROUND_ROBIN",
        "protocol": "TCP",
        "listenerIp": address,
        "listenerPort": 80,
        "healthCheck": {"clientTimeout": 50000, "connectTimeout": 5000, "targetTimeout": 50000, "retries": 3},
        "targets": [{"ip": ip, "port": 30080, **target} for ip in ("10.7.0.1", "10.7.0.2")],
    }
    assert await it.ingress(want) == (Ingress(ip=address),)


async def test_a_new_process_writes_nothing_to_what_is_as_wanted(it: Scene) -> None:
    """A plan of an unchanged balancer is empty, also without the record, and in any order of targets and rules."""
    want = it.want(ports=BOTH)
    await it.settle(want)
    rules = it.fake.network.rules(it.balancer)
    rules.reverse()
    rules[0]["properties"]["targets"].reverse()
    del rules[0]["properties"]["targets"][0]["proxyProtocol"]  # none is the API's default
    for record in (it.record, Record(NAME, MARKER)):
        it.killed()
        it.record = record
        assert await it.plan(want) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, len(CREATE) + 1))
async def test_a_creation_goes_on_after_a_kill(it: Scene, number: int, when: str) -> None:
    """Killed before or after the answer of any write, the next process makes what is missing, and doubles nothing."""
    it.fake.cut = cut_at(number, when)
    want = it.want(ports=BOTH)
    await it.settle(want, until=it.dies)  # each step is a process of its own
    it.killed()
    assert await it.plan(want) == []
    async with scene() as calm:
        await calm.settle(calm.want(ports=BOTH))
        assert it.state() == calm.state()
    assert len(it.left()) == 2


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, len(DELETE) + 1))
async def test_a_deletion_goes_on_after_a_kill(it: Scene, number: int, when: str) -> None:
    """Killed at any write of a deletion, the next process leaves nothing of ours, and everything else."""
    foreign = it.fake.network.create_block(_block("other.edge.eu"))[0]["id"]
    longer = it.fake.network.create_block(_block(f"{NAME}-2"))[0]["id"]
    await it.settle(it.want())
    it.fake.cut = cut_at(number, when)
    await it.settle(None, until=it.dies)
    it.killed()
    assert await it.plan(None) == []
    assert it.left() == [foreign, longer]


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_change_of_everything_goes_on_after_a_kill(it: Scene, number: int, when: str) -> None:
    """Nodes, ports and the address change at once; killed at any of the writes, the end is the same."""
    it.fake.cloud.add_server("n3")
    reserved = it.fake.cloud.reserve()
    await it.settle(it.want())
    want = it.want("n2", "n3", ports=BOTH, address=reserved)
    it.fake.cut = cut_at(number, when)
    await it.settle(want, until=it.dies)
    it.killed()
    assert await it.plan(want) == []
    assert it.targets() == [("10.7.0.2", 30080), ("10.7.0.3", 30080)]
    assert await it.ingress(want) == (Ingress(ip=reserved),)
    assert it.balancer["properties"]["ips"] == [reserved]
    await it.settle(None)
    assert [block["properties"]["ips"] for block in it.fake.network.blocks()] == [[reserved]]


@pytest.mark.parametrize("early", [True, False])
async def test_a_request_that_takes_time_is_waited_for(it: Scene, early: bool) -> None:
    """Until a request has ended nothing else is written, also after a kill; no request is refused."""
    it.fake.cloud.seconds, it.fake.cloud.early = 12.0, early
    reasons: set[str] = set()

    def waits(first: Any) -> bool:
        reasons.add(first.reason) if isinstance(first, Wait) else None
        it.killed() if rng.random() < 0.2 else None
        return False

    rng = random.Random(1)
    assert await it.settle(it.want(ports=BOTH), until=waits) == CREATE
    await it.settle(it.want("n1", ports=BOTH), until=waits)
    assert await it.settle(None, until=waits) == DELETE
    assert it.left() == []
    assert "CloudBusy" in reasons
    assert [served.text for served in it.fake.log if served.status >= 400] == []


async def test_lists_that_lag_make_no_double(it: Scene) -> None:
    """New and changed objects are shown late: what was made is known from the requests."""
    it.fake.network.lag = 4
    assert await it.settle(it.want(ports=BOTH)) == CREATE
    assert await it.settle(it.want("n1", ports=BOTH)) == ["change-forwarding-rule"] * 2
    assert await it.settle(None) == DELETE
    assert it.left() == []


async def test_the_ingress_stays_while_something_changes(it: Scene) -> None:
    """While a rule is being changed no address is stated, so that the published one stays."""
    want = it.want()
    await it.settle(want)
    it.killed()
    it.fake.network.rules(it.balancer)[0]["metadata"]["state"] = "BUSY"
    assert await it.ingress(want) == ()
    first = await it.first(it.want("n1"))
    assert isinstance(first, Wait)
    assert (first.reason, "forwarding rule" in first.message) == ("CloudBusy", True)


async def test_a_failed_request_is_shown_and_made_again_later(it: Scene) -> None:
    """Its message is the finding; after 300 s, or if the Service changes, it is made again."""
    it.fake.cloud.error = "no capacity left"
    first = await it.step(it.want())
    assert isinstance(first, Step)
    waits = await it.first(it.want())
    assert isinstance(waits, Wait)
    assert (waits.reason, waits.after, "has failed: no capacity left" in waits.message) == (
        "CloudRequestFailed",
        300.0,
        True,
    )
    it.fake.cloud.error = ""
    assert len(it.writes) == 1
    it.clock.ahead = 301
    assert await it.settle(it.want()) == CREATE[:3]


async def test_nodes_change_by_one_write_for_each_rule(it: Scene) -> None:
    """The whole list of targets is sent; an empty set of nodes changes nothing."""
    it.fake.cloud.add_server("n3")
    await it.settle(it.want(ports=BOTH))
    assert await it.settle(it.want("n1", "n3", ports=BOTH)) == ["change-forwarding-rule"] * 2
    sent = [msgspec.json.decode(served.body) for served in it.fake.log if served.text.startswith("PATCH")]
    assert [[*body] for body in sent] == [["targets"]] * 2
    assert it.targets("tcp-443") == [("10.7.0.1", 30443), ("10.7.0.3", 30443)]
    none = msgspec.structs.replace(it.want(ports=BOTH), nodes=())
    assert await it.plan(none) == []


async def test_without_a_target_no_rule_is_made(it: Scene) -> None:
    """Address and load balancer are there already; the rule comes with the first node."""
    none = msgspec.structs.replace(it.want(), nodes=())
    await it.settle(none, until=lambda first: isinstance(first, Wait))
    waits = await it.first(none)
    assert isinstance(waits, Wait)
    assert waits.reason == "NoTargets"
    assert await it.settle(it.want()) == ["create-forwarding-rule"]


async def test_a_server_that_is_in_no_list_keeps_its_target(it: Scene) -> None:
    """The cloud's list does not decide about nodes: the target of a Node stays until the Node goes."""
    want, alone = it.want(), it.want("n1")
    await it.settle(want)
    it.killed()
    it.fake.cloud.remove_server("n2")
    it.clock.ahead = 60
    assert await it.plan(msgspec.structs.replace(want, marker=MARKER)) == []
    assert await it.settle(alone) == ["change-forwarding-rule"]
    assert it.targets() == [("10.7.0.1", 30080)]


async def test_a_node_without_the_target_lan_is_named(it: Scene) -> None:
    """It gets no traffic, and a finding says so; the others do."""
    it.fake.cloud.add_server("n3", lans=(PUBLIC,))
    want = it.want("n1", "n3")
    await it.settle(want)
    assert it.targets() == [("10.7.0.1", 30080)]
    assert await it.notices(want) == ["NodesNotReachable"]


@pytest.mark.parametrize("setting", ["check_interval", "client_timeout", "connect_timeout", "target_timeout"])
async def test_a_short_time_is_suspicious(it: Scene, setting: str) -> None:
    """5 ms was meant as 5 s: it is passed on, with AnnotationSuspicious; 100 ms and 5 retries are not suspicious."""
    short = it.want(settings={setting: 5})
    assert await it.notices(short) == ["AnnotationSuspicious"]
    assert await it.settle(short)
    assert await it.notices(it.want(settings={setting: 100, "retries": 5})) == []


async def test_settings_of_annotations_are_in_the_rules(it: Scene) -> None:
    """Each one changes its field; without it, the default comes back."""
    settings = {
        "algorithm": "LEAST_CONNECTION",
        "proxy_protocol": "v2",
        "check_interval": 5000,
        "client_timeout": 1000,
        "connect_timeout": 2000,
        "target_timeout": 3000,
        "retries": 1,
    }
    await it.settle(it.want())
    usual = it.state()
    want = it.want(settings=settings)
    assert await it.settle(want) == ["change-forwarding-rule"]
    rule = it.rules()["tcp-80"]
    assert rule["algorithm"] == "LEAST_CONNECTION"
    assert rule["healthCheck"] == {"clientTimeout": 1000, "connectTimeout": 2000, "targetTimeout": 3000, "retries": 1}
    assert {(row["proxyProtocol"], row["healthCheck"]["checkInterval"]) for row in rule["targets"]} == {("v2", 5000)}
    [entry] = await it.ingress(want)
    assert entry.ip_mode == "Proxy"
    await it.settle(it.want())
    assert it.state() == usual


async def test_session_affinity_spreads_by_source_address(it: Scene) -> None:
    """ClientIP is SOURCE_IP; an annotation that says otherwise is refused."""
    await it.settle(it.want(client_affinity=True))
    assert it.rules()["tcp-80"]["algorithm"] == "SOURCE_IP"
    assert await reason(it, client_affinity=True, settings={"algorithm": "RANDOM"}) == "AnnotationInvalid"


async def test_a_port_that_goes_takes_its_rule_along(it: Scene) -> None:
    """A rule of another name, made by hand, stays."""
    await it.settle(it.want(ports=BOTH))
    rules = it.fake.network.rules(it.balancer)
    rules[0]["properties"]["name"] = "by hand"
    ports = (HTTPS, BalancerPort(8080, 30808))
    assert await it.settle(it.want(ports=ports)) == ["create-forwarding-rule"]
    assert await it.settle(it.want(ports=ports[:1])) == ["delete-forwarding-rule"]
    assert sorted(it.rules()) == ["by hand", "tcp-443"]


async def reason(it: Scene, **more: Any) -> str:
    """Why a Service is refused; nothing is planned for it."""
    [refused] = await it.plan(it.want(**more))
    assert isinstance(refused, Refused)
    return refused.reason


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"families": ("IPv6",)}, "FamilyUnsupported"),
        ({"ports": (BalancerPort(53, 30053, protocol="UDP"),)}, "ProtocolUnsupported"),
        ({"ports": (BalancerPort(80),)}, "NodePortMissing"),
        ({"source_ranges": ("10.0.0.0/8",)}, "SourceRangesUnsupported"),
        ({"address": "192.0.2.1"}, "AddressNotFound"),
        ({"address": "203.0.113.999"}, "AddressNotFound"),
        ({"settings": {"datacenter": SECOND}}, "AnnotationInvalid"),
        ({"settings": {"datacenter": "../x"}}, "AnnotationInvalid"),
        ({"settings": {"listener_lan": 0}}, "LanMissing"),
    ],
)
async def test_what_cannot_be_is_refused(it: Scene, more: dict[str, Any], why: str) -> None:
    """Nothing is made; the reason says what is wrong."""
    assert await reason(it, **more) == why


async def test_lans_must_be_known() -> None:
    """Without lans in the configuration the annotations name them."""
    async with scene(lans=None) as it:
        assert await reason(it) == "LanMissing"
        want = it.want(settings={"listener_lan": PUBLIC, "target_lan": PRIVATE})
        assert await it.settle(want) == CREATE[:3]


async def test_a_refused_service_still_follows_its_nodes(it: Scene) -> None:
    """With a mistake only the targets of existing rules change."""
    await it.settle(it.want(ports=BOTH))
    wrong = it.want("n1", ports=(HTTP, BalancerPort(443)), nodes_only=True, settings={"retries": 9})
    assert await it.settle(wrong) == ["change-forwarding-rule"]
    assert (it.targets(), len(it.targets("tcp-443"))) == ([("10.7.0.1", 30080)], 2)
    refused = it.want("n2", ports=BOTH, address="192.0.2.1")
    await it.settle(refused, until=lambda first: isinstance(first, Refused))
    assert it.targets("tcp-443") == [("10.7.0.2", 30443)]


async def test_a_reserved_address_is_used_and_never_given_back(it: Scene) -> None:
    """Named by the Service it replaces the one that the hub made, which goes; it outlives the Service."""
    await it.settle(it.want())
    reserved = it.fake.cloud.reserve()
    want = it.want(address=reserved)
    assert await it.settle(want) == [
        "change-load-balancer",
        "change-forwarding-rule",
        "change-load-balancer",
        "delete-ip-block",
    ]
    assert await it.ingress(want) == (Ingress(ip=reserved),)
    assert await it.settle(None) == DELETE[:1]
    assert it.block["properties"]["ips"] == [reserved]


async def test_an_address_in_use_is_never_taken(it: Scene) -> None:
    """Whether a server or another load balancer has it, the finding names it; nothing is made."""
    reserved = it.fake.cloud.reserve()
    it.fake.cloud.hold(reserved, "n1")
    first = await it.first(it.want(address=reserved))
    assert isinstance(first, Wait)
    assert (first.reason, it.fake.cloud.server("n1")["id"] in first.message) == ("AddressInUse", True)
    it.fake.cloud.release(reserved)
    body = {"properties": {"name": "theirs", "listenerLan": PUBLIC, "targetLan": PRIVATE, "ips": [reserved]}}
    theirs = it.fake.network.create_balancer(DATACENTER, body)[0]["id"]
    first = await it.first(it.want(address=reserved))
    assert isinstance(first, Wait)
    assert theirs in first.message


async def test_an_internal_balancer_has_no_block(it: Scene) -> None:
    """It gets an address of its LAN, or the one that the Service names; it cannot become public later."""
    lans = {"internal": 1, "listener_lan": PRIVATE}
    want = it.want(settings=lans)
    assert await it.settle(want) == ["create-load-balancer", "create-forwarding-rule"]
    [entry] = await it.ingress(want)
    assert entry.ip.startswith("10.9.0.")
    assert await reason_after(it, it.want()) == "InternalChanged"
    assert await it.settle(None) == ["delete-load-balancer"]
    named = it.want(settings=lans, address="10.7.0.250")
    await it.settle(named)
    assert await it.ingress(named) == (Ingress(ip="10.7.0.250"),)


async def reason_after(it: Scene, want: Any) -> str:
    """Why a change is refused, after what is planned for the nodes."""
    refused = (await it.plan(want))[-1]
    assert isinstance(refused, Refused)
    return refused.reason


async def test_the_data_center_of_an_annotation_is_used() -> None:
    """Another data center has another location, and servers of its own; the load balancer cannot move later."""
    async with scene(datacenters=[DATACENTER, SECOND]) as it:
        it.fake.cloud.add_datacenter(SECOND, "de/txl")
        it.fake.cloud.add_server("m1", SECOND)
        want = it.want("n1", "m1", settings={"datacenter": SECOND})
        await it.settle(want)
        assert it.block["properties"]["location"] == "de/txl"
        assert it.targets() == [("10.7.0.3", 30080)]
        assert await reason_after(it, it.want("n1", "m1")) == "DatacenterChanged"


async def test_a_former_cluster_name_is_replaced_on_every_object(it: Scene) -> None:
    """The objects under a former name are adopted and renamed."""
    await it.settle(it.want())
    it.killed()
    it.record = Record("web.edge.new", MARKER, (NAME,))
    want = msgspec.structs.replace(it.want(), name="web.edge.new", former_names=(NAME,))
    assert await it.settle(want) == ["rename-ip-block", "rename-load-balancer"]
    assert it.state()["names"] == ["web.edge.new"] * 2


@pytest.mark.parametrize("kind", ["load_balancer", "ip_block"])
async def test_an_object_renamed_by_hand_gets_its_name_back(it: Scene, kind: str) -> None:
    """It is found by the record's id and by the address in common; it goes with the Service, even without that."""
    await it.settle(it.want())
    it.killed()
    each = it.balancer if kind == "load_balancer" else it.block
    each["properties"]["name"] = "mine"
    assert await it.settle(it.want()) == [f"rename-{kind.replace('_', '-')}"]
    each["properties"]["name"] = "mine"
    it.killed()
    await it.settle(None, until=it.dies)
    assert it.left() == []


async def test_a_recorded_id_of_a_foreign_object_does_not_count(it: Scene) -> None:
    """No name and no address in common prove it: RecordIgnored, and nothing of it is changed or deleted."""
    reserved = it.fake.cloud.reserve()
    body = {"properties": {"name": "theirs", "listenerLan": PUBLIC, "targetLan": PRIVATE, "ips": [reserved]}}
    theirs = it.fake.network.create_balancer(DATACENTER, body)[0]["id"]
    block = it.block["id"]
    kinds = ("load_balancer", "ip_block")
    it.record = Record(NAME, MARKER, ids=dict(zip(kinds, (theirs, block), strict=True)), made=kinds)
    assert await it.notices(it.want()) == ["RecordIgnored"] * 2
    assert await it.settle(it.want()) == CREATE[:3]
    await it.settle(None)
    assert sorted(it.left()) == sorted([theirs, block])


@pytest.mark.parametrize("made", [True, False])
async def test_a_second_object_goes_only_if_the_hub_made_it(it: Scene, made: bool) -> None:
    """Of two the recorded one counts, else the one in use. The other is named, or deleted."""
    await it.settle(it.want())
    kept = it.left()
    it.fake.network.create_block(_block(NAME))[0]["metadata"]["createdDate"] = "2025-01-01T00:00:00Z"
    it.killed()
    it.record = it.record if made else Record(NAME, MARKER)
    assert await it.settle(it.want()) == (["delete-ip-block"] if made else [])
    assert await it.notices(it.want()) == ([] if made else ["DuplicateCloudObject"])
    assert sorted(it.record.ids.values()) == sorted(kept)


async def test_what_the_hub_did_not_make_outlives_the_service(it: Scene) -> None:
    """A block of our name that the record does not claim stays, and so does one with several addresses."""
    await it.settle(it.want())
    block = it.block["id"]
    it.killed()
    it.record = msgspec.structs.replace(it.record, made=("load_balancer",))
    assert await it.settle(None) == DELETE[:1]
    assert it.left() == [block]
    it.fake.cloud.blocks.clear()
    body = _block(NAME)
    body["properties"]["size"] = 2
    large = it.fake.network.create_block(body)[0]["id"]
    it.record = Record(NAME, MARKER)
    assert await it.plan(None) == []
    assert it.left() == [large]


async def test_a_failed_balancer_is_replaced_after_two_looks(it: Scene) -> None:
    """The first look waits, the second deletes it; its successor has the same address."""
    await it.settle(it.want())
    address = it.block["properties"]["ips"]
    it.killed()
    it.balancer["metadata"]["state"] = "FAILED"
    assert isinstance(await it.first(it.want()), Wait)
    assert await it.settle(it.want()) == ["delete-load-balancer", *CREATE[1:3]]
    assert it.balancer["properties"]["ips"] == address


async def test_the_steps_that_come_later_are_shown(it: Scene) -> None:
    """A plan of nothing shows all steps; what needs an object that does not exist yet is never sent."""
    planned = [item for item in await it.plan(it.want(ports=BOTH)) if isinstance(item, Step)]
    assert [item.kind for item in planned] == CREATE
    with pytest.raises(CloudConflict, match="does not exist yet"):
        await it.balancers.perform(planned[2])
    assert it.writes == []


def _block(name: str) -> Any:
    return {"properties": {"name": name, "location": "de/fra", "size": 1}}


@pytest.mark.parametrize("seed", range(8))
async def test_any_history_converges_without_a_leak(it: Scene, seed: int) -> None:
    """Random wishes, kills, lost answers, lag and failures: the end is as wanted, and nothing is left at last."""
    rng = random.Random(seed)
    network = it.fake.network
    foreign = [network.create_block(_block(f"x.{NAME}"))[0]["id"]]
    servers = ["n1", "n2", *(name for name in ("n3", "n4", "n5") if it.fake.cloud.add_server(name))]
    reserved = it.fake.cloud.reserve()
    foreign += [block["id"] for block in network.blocks() if reserved in block["properties"]["ips"]]
    want = it.want()
    for _ in range(25):
        act = rng.choice(("want", "kill", "cut", "lose", "lag", "slow", "fail", "steps", "steps", "steps"))
        it.fake.cloud.error = ""
        if act == "want":
            settings = rng.choice(({}, {"algorithm": "RANDOM"}, {"proxy_protocol": "v1"}))
            address = rng.choice(("", "", reserved))
            ports = rng.choice(((HTTP,), BOTH, (HTTPS,)))
            want = it.want(*rng.sample(servers, rng.randint(1, 5)), settings=settings, ports=ports, address=address)
        elif act == "kill":
            it.killed()
        elif act == "cut":
            it.fake.cut = cut_at(rng.randint(1, 4), rng.choice(("before", "after")))
        elif act == "lose" and (lost := network.balancers()) and lost[0]["metadata"]["state"] != "BUSY":
            network.delete_balancer(DATACENTER, lost[0]["id"])
            it.killed()
        elif act == "lag":
            network.lag = rng.choice((0, 3))
        elif act == "slow":
            it.fake.cloud.seconds = rng.choice((0.0, 12.0))
        elif act == "fail":
            it.fake.cloud.error = "no capacity"
        for _ in range(rng.randint(1, 4)):
            with suppress(Uncertain, CloudConflict):
                await it.step(want if rng.random() < 0.9 else None)
    it.fake.cloud.error, it.fake.cloud.seconds, network.lag, it.fake.cut = "", 0.0, 0, cut_at(0, "")
    it.clock.ahead += 12
    it.fake.cloud.settle()
    it.killed()
    await it.settle(want)
    assert it.balancer["properties"]["ips"] == [(await it.ingress(want))[0].ip]
    assert {name: len(rule["targets"]) for name, rule in it.rules().items()} == {
        f"tcp-{port.port}": len(want.nodes) for port in want.ports
    }
    it.killed()
    await it.settle(None)
    assert sorted(it.left()) == sorted(foreign)
