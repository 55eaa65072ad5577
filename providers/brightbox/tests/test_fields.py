"""What annotations make of a balancer, and that each is compared, changed, and put back to the default when it goes."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hub_provider_brightbox.cloud import ANNOTATIONS, PREFIX

from hub.cloud.balancers import BalancerPort, Refused, Wait
from hub.controller.annotations import read
from hub.plugin import TransientProviderError
from tests.support.brightbox_driver import HTTP, HTTPS, Scene, balancer

UDP = BalancerPort(53, 30053, protocol="UDP")
OWN = "cip-00005.gb1.brightbox.test"
"""The name of the first Cloud IP that the hub makes."""


def part(it: Scene, *path: str) -> Any:
    """A part of the balancer."""
    found: Any = it.only("load_balancers")
    for key in path:
        found = (cast("list[Any]", found)[0] if isinstance(found, list) else found).get(key)
    return found


@pytest.mark.parametrize(
    ("setting", "value", "path", "default"),
    [
        ("policy", "round-robin", ("policy",), "least-connections"),
        ("listener_idle_timeout", 7000, ("listeners", "timeout"), 50000),
        ("listener_proxy_protocol", "v2-ssl", ("listeners", "proxy_protocol"), None),
        ("listener_protocol", "tcp", ("listeners", "protocol"), "http"),
        ("healthcheck_interval", 7000, ("healthcheck", "interval"), 5000),
        ("healthcheck_timeout", 7000, ("healthcheck", "timeout"), 5000),
        ("healthcheck_healthy_threshold", 7, ("healthcheck", "threshold_up"), 3),
        ("healthcheck_unhealthy_threshold", 7, ("healthcheck", "threshold_down"), 3),
        ("healthcheck_protocol", "tcp", ("healthcheck", "type"), "http"),
        ("healthcheck_request", "/ready", ("healthcheck", "request"), "/healthz"),
    ],
)
async def test_a_setting_is_set_kept_and_put_back(
    it: Scene, setting: str, value: object, path: Any, default: Any
) -> None:
    """One PUT sets it, one puts the default back when it goes; what somebody else changes is changed back."""
    await it.settle(balancer())
    with_it = balancer(settings={setting: value})
    assert len(await it.settle(with_it)) == 1
    assert part(it, *path) == value
    assert await it.settle(with_it) == []
    it.killed()
    holder = part(it, *path[:-1]) if len(path) > 1 else it.only("load_balancers")
    (holder[0] if isinstance(holder, list) else holder)[path[-1]] = "other"
    assert len(await it.settle(with_it)) == 1
    it.killed()
    assert len(await it.settle(balancer())) == 1
    assert part(it, *path) == default
    it.killed()
    assert await it.settle(balancer()) == []


@pytest.mark.parametrize("setting", ["listener_idle_timeout", "healthcheck_interval", "healthcheck_healthy_threshold"])
async def test_zero_is_not_sent(it: Scene, setting: str) -> None:
    """0 is as good as no annotation, as in the original."""
    await it.settle(balancer(settings={setting: 0}))
    [made] = [row.body for row in it.fake.log if row.text == "POST /1.0/load_balancers"]
    assert made.count(":0") == 0


@pytest.mark.parametrize(
    ("more", "kind", "port", "request_", "opened"),
    [
        ({}, "http", 30080, "/healthz", "30080"),
        ({"settings": {"listener_protocol": "tcp"}}, "tcp", 30080, "/", "30080"),
        ({"local": True, "health_port": 32000}, "http", 32000, "/healthz", "30080,32000"),
        (
            {"settings": {"listener_protocol": "tcp"}, "local": True, "health_port": 32000},
            "http",
            32000,
            "/healthz",
            "30080,32000",
        ),
        ({"local": True, "health_port": 0}, "http", 30080, "/healthz", "30080"),
        ({"health_port": 32000}, "http", 30080, "/healthz", "30080"),
        ({"settings": {"healthcheck_protocol": "tcp", "healthcheck_request": "/x"}}, "tcp", 30080, "/", "30080"),
        ({"ports": (HTTP, BalancerPort(81, 30081), BalancerPort(82, 30080))}, "http", 30080, "/healthz", "30080,30081"),
    ],
)
async def test_the_check_follows_the_policy_and_the_protocol(
    it: Scene, more: Any, kind: str, port: int, request_: str, opened: str
) -> None:
    """Type, port and path of the check, and the ports of the rule."""
    await it.settle(balancer(**more))
    check = it.only("load_balancers")["healthcheck"]
    assert (check["type"], check["port"], check["request"]) == (kind, port, request_)
    assert it.only("firewall_rules")["destination_port"] == opened


@pytest.mark.parametrize(
    ("settings", "protocols", "redirect"),
    [
        ({}, {80: "http", 443: "https", 8443: "http"}, True),
        ({"listener_protocol": "tcp"}, {80: "tcp", 443: "tcp", 8443: "tcp"}, False),
        ({"listener_protocol": "https"}, {80: "https", 443: "https", 8443: "https"}, True),
        ({"ssl_domains": (), "ssl_ports": ("8443",)}, {80: "http", 443: "https", 8443: "https"}, True),
        ({"ssl_domains": (), "ssl_ports": ("alt",)}, {80: "http", 443: "https", 8443: "https"}, True),
        ({"ssl_domains": (), "ssl_ports": ("*",)}, {80: "http", 443: "https", 8443: "http"}, True),
    ],
)
async def test_listeners_with_tls(it: Scene, settings: Any, protocols: dict[int, str], redirect: bool) -> None:
    """443 has TLS unless the listeners are tcp, and so do named ports; any of them sets the redirect."""
    await it.settle(balancer(ports=(HTTP, HTTPS, BalancerPort(8443, 30844, "alt")), settings=settings))
    found = it.only("load_balancers")
    assert {each["in"]: each["protocol"] for each in found["listeners"]} == protocols
    assert found["https_redirect"] is redirect
    assert [row["identifier"] for row in found["acme"]["domains"]] == ([OWN] if redirect else [])


async def test_without_tls_there_is_no_certificate_and_no_detail(it: Scene) -> None:
    """For http only the four lists are read, and no name is looked up."""
    await it.settle(balancer())
    assert it.only("load_balancers")["https_redirect"] is False
    assert not [row for row in it.fake.log if row.method == "GET" and row.path.count("/") > 2]
    assert it.context.asked == []


async def test_a_domain_waits_for_dns_and_keeps_its_certificate(it: Scene) -> None:
    """DomainNotReady until it leads to the Cloud IP; then one PUT. Later failures of DNS take nothing away."""
    it.fake.account.reverse_dns = True
    want = balancer(ports=(HTTPS,), settings={"ssl_domains": ("www.example.test",)})
    it.context.dns["www.example.test"] = TransientProviderError("DNS gives no answer")
    await it.settle(want, until=lambda first: isinstance(first, Wait))
    wait = await it.first(want)
    assert isinstance(wait, Wait)
    assert (wait.reason, wait.message.split()[0]) == ("DomainNotReady", "www.example.test")
    own = [OWN, "cip-00005.reverse.test"]
    assert [row["identifier"] for row in it.only("load_balancers")["acme"]["domains"]] == own
    it.context.dns["www.example.test"] = (it.only("cloud_ips")["public_ipv6"],)
    it.killed()
    assert len(await it.settle(want)) == 1
    assert [row["identifier"] for row in it.only("load_balancers")["acme"]["domains"]] == [*own, "www.example.test"]
    it.context.dns["www.example.test"] = ("192.0.2.9",)
    it.context.asked.clear()
    it.killed()
    assert await it.settle(want) == []
    assert it.context.asked == []
    assert len(await it.settle(balancer(ports=(HTTPS,)))) == 1
    assert [row["identifier"] for row in it.only("load_balancers")["acme"]["domains"]] == own


async def test_a_pending_certificate_is_told_and_the_ingress_stays(it: Scene) -> None:
    """CertificatePending with the cloud's message; the names of the Cloud IP are published."""
    it.fake.account.certificates = "pending"
    want = balancer(ports=(HTTPS,))
    await it.settle(want, until=lambda first: isinstance(first, Wait))
    it.only("load_balancers")["acme"]["domains"][0]["last_message"] = "no luck"
    it.killed()
    wait = await it.first(want)
    assert isinstance(wait, Wait)
    assert (wait.reason, wait.message) == ("CertificatePending", f"the certificate of {OWN} is pending: no luck")
    assert await it.hostnames(want) == [OWN]


async def test_only_wanted_balancers_are_read_in_detail(it: Scene) -> None:
    """A balancer with TLS that belongs to nobody costs no request."""
    listener = {"protocol": "https", "in": 443, "out": 443}
    it.fake.account.create("load_balancers", {"name": "theirs", "listeners": [listener], "domains": ["x.test"]})
    await it.observe(balancer())
    assert not [row for row in it.fake.log if row.path.startswith("/1.0/load_balancers/")]


async def test_many_details_are_read_eight_at_a_time(it: Scene) -> None:
    """Twenty balancers with TLS: all are read in detail, and never more than eight requests are under way."""
    listener = {"protocol": "https", "in": 443, "out": 443}
    wanted = [msgspec.structs.replace(balancer(ports=(HTTPS,)), name=f"web{number}.edge.eu") for number in range(20)]
    for want in wanted:
        it.fake.account.create("load_balancers", {"name": want.name, "listeners": [listener], "domains": ["x.test"]})
    await it.cloud.balancers.observe(())
    it.fake.log.clear()
    it.fake.latency = 0.05
    under_way: list[int] = []
    it.fake.shown = lambda _: under_way.append(sum(not row.status for row in it.fake.log) + 1)
    await it.cloud.balancers.observe(wanted)
    assert sum(row.path.startswith("/1.0/load_balancers/") for row in it.fake.log) == 20
    assert max(under_way) <= 8


async def test_the_ingress_is_reverse_dns_and_then_the_own_name(it: Scene) -> None:
    """Per mapped Cloud IP its reverse DNS name and its own; never an address."""
    it.fake.account.reverse_dns = True
    await it.settle(balancer())
    assert await it.hostnames(balancer()) == ["cip-00005.reverse.test", OWN]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"client_affinity": True}, "AffinityUnsupported"),
        ({"ports": (HTTP, UDP)}, "ProtocolUnsupported"),
        ({"ports": (BalancerPort(80),)}, "NodePortMissing"),
        ({"source_ranges": ("192.0.2.0/24",)}, "SourceRangesUnsupported"),
        ({"ports": (HTTPS,), "settings": {"ssl_ports": ("443",)}}, "AnnotationInvalid"),
        ({"settings": {"ssl_domains": ("a.test",), "listener_protocol": "tcp"}}, "AnnotationInvalid"),
        ({"settings": {"ssl_domains": ("a.test",)}}, "AnnotationInvalid"),
        ({"settings": {"cloudip_allocations": ("cip-00001", "cip-00002")}}, "AnnotationInvalid"),
        ({"settings": {"cloudip_allocations": ("cip-00001",)}, "address": "192.0.2.1"}, "AnnotationInvalid"),
    ],
)
async def test_what_cannot_be_is_refused_and_nodes_go_on(it: Scene, more: Any, reason: str) -> None:
    """Nothing is made for it; an existing balancer stays as it is, but follows its nodes."""
    [refused] = await it.plan(balancer(**more))
    assert isinstance(refused, Refused)
    assert refused.reason == reason
    await it.settle(balancer())
    before = it.state()
    planned = await it.plan(balancer(["srv-00004"], **more))
    if reason == "SourceRangesUnsupported":  # only a new balancer is refused
        assert await it.notices(balancer(**more)) == ["SourceRangesIgnored"]
        return
    assert planned[-1] == refused
    await it.settle(balancer(["srv-00004"], **more), until=lambda first: isinstance(first, Refused))
    assert it.state() == {**before, "nodes": ["srv-00004"], "servers": ["srv-00004"]}


async def test_with_a_mistake_in_an_annotation_only_nodes_change(it: Scene) -> None:
    """``nodes_only``: nothing is made, and of what exists only the nodes change."""
    assert await it.plan(balancer(nodes_only=True)) == []
    await it.settle(balancer())
    want = balancer(["srv-00004"], nodes_only=True, ports=(HTTPS,), settings={"policy": "round-robin"})
    assert [text.rpartition("/")[2] for text in await it.settle(want)] == [
        it.only("load_balancers")["id"],
        "remove_servers",
    ]
    assert it.only("load_balancers")["policy"] == "least-connections"


@pytest.mark.parametrize("setting", ["listener_idle_timeout", "healthcheck_interval", "healthcheck_timeout"])
async def test_a_short_time_is_suspicious(it: Scene, setting: str) -> None:
    """5 ms was meant as 5 s: it is passed on, with AnnotationSuspicious; 100 is not suspicious."""
    assert await it.notices(balancer(settings={setting: 5})) == ["AnnotationSuspicious"]
    assert await it.notices(balancer(settings={setting: 100})) == []


@pytest.mark.parametrize(
    ("suffix", "value", "ok"),
    [
        ("policy", "round-robin", True),
        ("policy", "random", False),
        ("listener-protocol", "http+ws", False),
        ("listener-proxy-protocol", "v3", False),
        ("listener-idle-timeout", "4294967295", True),
        ("listener-idle-timeout", "4294967296", False),
        ("healthcheck-interval", "-1", False),
        ("healthcheck-timeout", "1e3", False),
        ("healthcheck-request", "/ready/a-b", True),
        ("healthcheck-request", "/a?b", False),
        ("healthcheck-request", "ready", False),
        ("ssl-ports", "", True),
        ("ssl-ports", "443, https", True),
    ],
)
def test_annotations_are_checked_as_in_the_original(suffix: str, value: str, ok: bool) -> None:
    """Values that the original takes are taken, others are refused."""
    assert (read({PREFIX + suffix: value}, ANNOTATIONS, PREFIX).refused == "") is ok


def test_the_interval_has_the_key_of_the_original_too() -> None:
    """The key that the original reads is an alias; with both, the right one counts."""
    alias = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval"
    assert read({alias: "7000"}, ANNOTATIONS, PREFIX).settings == {"healthcheck-interval": 7000}
    both = read({alias: "7000", f"{PREFIX}healthcheck-interval": "8000"}, ANNOTATIONS, PREFIX)
    assert both.settings == {"healthcheck-interval": 8000}
    assert [finding.reason for finding in both.findings] == ["AnnotationIgnored"]


async def test_a_plan_is_deterministic(it: Scene) -> None:
    """The same values in another order give the same steps."""
    joining = [it.fake.account.add_server()["id"] for _ in range(5)]
    one = await it.plan(balancer(joining))
    two = await it.plan(balancer(joining[::-1]))
    assert msgspec.json.encode(one) == msgspec.json.encode(two)
