"""Reading the hub cluster's own networks, or working without them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from hub_testkit import SimulatedCluster, make_slice

from hub.app.hub import Options, assemble
from hub.errors import ClusterUnreachable, Forbidden, HubError, NotFound
from hub.kube.client import Client
from hub.observe.remote.own_networks import OwnNetworks
from hub.runtime.clock import SystemClock
from tests.support import build

CIDRS = b'{"items": [{"spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]}}, {"spec": {"cidrs": ["10.97.0.0/16"]}}]}'
NONE = b'{"items": []}'
IN_A_SERVICE_CIDR = "in a Service CIDR of the hub cluster"
API_SERVER = "the hub cluster's API server"

Answer = bytes | HubError


def slices(*addresses: str) -> bytes:
    """A list of one slice with an endpoint for each address, as of Service ``default/kubernetes``."""
    return json.dumps({"items": [{"endpoints": [{"addresses": [address]} for address in addresses]}]}).encode()


class Api:
    """An API server that gives these answers in order, for each of the two lists."""

    def __init__(self, cidrs: tuple[Answer, ...], servers: tuple[Answer, ...]) -> None:
        self.answers = {"servicecidrs": list(cidrs), "endpointslices": list(servers)}

    async def request(self, _: str, path: str, **__: Any) -> bytes:
        answer = self.answers[path.rpartition("/")[2]].pop(0)
        if isinstance(answer, HubError):
            raise answer
        return answer


class Learner:
    """Reads from an API with these answers, and counts the reported changes."""

    def __init__(self, cidrs: tuple[Answer, ...], servers: tuple[Answer, ...], *more: Any) -> None:
        self.changes = 0
        client = cast("Client", Api(cidrs, servers))
        self.own = OwnNetworks(client, SystemClock(), self._changed, *more)

    def _changed(self) -> None:
        self.changes += 1

    def known(self) -> Mapping[str, str]:
        """Network -> reason why it is denied."""
        return {str(network): reason for network, reason in self.own.networks}


async def test_all_objects_count_together() -> None:
    """Service CIDRs and API servers of both IP families are reported in one change."""
    learner = Learner((CIDRS, CIDRS), (slices("192.0.2.7", "192.0.2.8", "2001:db8::7"),) * 2)
    assert await learner.own.read_all()
    assert await learner.own.read_all()
    assert learner.known() == {
        "10.96.0.0/16": IN_A_SERVICE_CIDR,
        "10.97.0.0/16": IN_A_SERVICE_CIDR,
        "192.0.2.7/32": API_SERVER,
        "192.0.2.8/32": API_SERVER,
        "2001:db8::7/128": API_SERVER,
        "fd00:10:96::/112": IN_A_SERVICE_CIDR,
    }
    assert (learner.changes, learner.own.answered.is_set()) == (1, True)


async def test_an_api_server_that_was_replaced_is_forgotten() -> None:
    """A new answer replaces the previous one."""
    learner = Learner((NONE, NONE), (slices("192.0.2.7"), slices("192.0.2.8")))
    await learner.own.read_all()
    await learner.own.read_all()
    assert (learner.known(), learner.changes) == ({"192.0.2.8/32": API_SERVER}, 2)


@pytest.mark.parametrize("answer", [Forbidden(403), NotFound(404), NONE])
async def test_missing_api_or_permission_counts_as_an_answer(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    """A 403, 404 or empty list counts as an answer, and is logged once for each list."""
    caplog.set_level(logging.INFO)
    learner = Learner((answer, answer), (answer, answer))
    assert await learner.own.read_all()
    assert await learner.own.read_all()
    assert (learner.known(), learner.changes, learner.own.answered.is_set(), len(caplog.records)) == ({}, 0, True, 2)


async def test_one_readable_list_is_used_without_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """If only one of the lists may be read, its networks are used and the log names the missing right."""
    caplog.set_level(logging.INFO)
    learner = Learner((CIDRS,), (Forbidden(403),))
    assert await learner.own.read_all()
    assert set(learner.known().values()) == {IN_A_SERVICE_CIDR}
    assert (
        "hub cluster: its API servers' addresses cannot be read: "
        "the hub's account may not list endpointslices in the namespace default"
    ) in caplog.messages


@pytest.mark.parametrize(("namespaces", "asked"), [((), True), (("edge", "default"), True), (("edge",), False)])
async def test_a_hub_of_some_namespaces_reads_in_no_other(
    namespaces: tuple[str, ...], asked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``--target-namespace``, API servers are read only if ``default`` is included; that is logged once."""
    caplog.set_level(logging.INFO)
    learner = Learner((CIDRS, CIDRS), (slices("192.0.2.7"),) * 2, "", namespaces)
    assert await learner.own.read_all()
    assert await learner.own.read_all()
    assert ("192.0.2.7/32" in learner.known(), len(learner.known()), learner.own.answered.is_set()) == (
        asked,
        3 + asked,
        True,
    )
    line = "hub cluster: its API servers' addresses cannot be read: namespace default is not a --target-namespace"
    assert caplog.messages.count(line) == (not asked)


@pytest.mark.parametrize(
    ("answer", "answered"),
    [
        (ClusterUnreachable("gone"), False),
        (b"garbage", False),
        (b"\xff", False),
        (Forbidden(403), True),
        (NotFound(404), True),
        (NONE, True),
    ],
)
async def test_failed_read_keeps_known_networks(answer: Answer, answered: bool) -> None:
    """A failure, 403, 404 or empty list keeps the known networks."""
    learner = Learner((CIDRS, answer), (slices("192.0.2.7"), answer))
    await learner.own.read_all()
    known = learner.known()
    assert len(known) == 4
    assert await learner.own.read_all() is answered
    assert (learner.known(), learner.changes) == (known, 1)


async def test_each_change_of_a_list_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the networks in order when they change, and a reason again only after networks or another reason."""
    caplog.set_level(logging.INFO)
    servers = (slices("192.0.2.9", "192.0.2.10", "2001:db8::7"), slices("192.0.2.10"), slices("192.0.2.10"))
    refused: tuple[Answer, ...] = (NotFound(404), Forbidden(403), Forbidden(403))
    learner = Learner((*refused, CIDRS, CIDRS, Forbidden(403)), (*servers, *servers[2:] * 3))
    for _ in range(6):
        assert await learner.own.read_all()
    assert caplog.messages == [
        "hub cluster: its Service CIDRs cannot be read: the API has none",
        "hub cluster: its API servers' addresses are 192.0.2.9, 192.0.2.10, 2001:db8::7",
        "hub cluster: its Service CIDRs cannot be read: the hub's account may not list servicecidrs",
        "hub cluster: its API servers' addresses are 192.0.2.10",
        "hub cluster: its Service CIDRs are 10.96.0.0/16, 10.97.0.0/16, fd00:10:96::/112",
        "hub cluster: its Service CIDRs cannot be read: the hub's account may not list servicecidrs",
    ]
    assert learner.changes == 3
    assert list(learner.known()) == ["10.96.0.0/16", "10.97.0.0/16", "192.0.2.10/32", "fd00:10:96::/112"]


async def test_asked_is_set_when_both_lists_are_answered() -> None:
    """``asked`` is set when both lists were answered; networks of the first answer apply before that."""
    learner = Learner((CIDRS, CIDRS), (ClusterUnreachable("gone"), slices("192.0.2.7")))
    assert await learner.own.read_all() is False
    assert (len(learner.known()), learner.own.answered.is_set()) == (3, False)
    assert await learner.own.read_all()
    assert (len(learner.known()), learner.own.answered.is_set()) == (4, True)


async def test_invalid_service_cidr_is_a_failed_read() -> None:
    """An invalid CIDR is a failed read, which keeps the known networks."""
    learner = Learner((CIDRS, b'{"items": [{"spec": {"cidrs": ["x"]}}]}'), (NONE, NONE))
    await learner.own.read_all()
    assert await learner.own.read_all() is False
    assert len(learner.known()) == 3


async def test_non_ip_endpoints_are_skipped() -> None:
    """Endpoints that are not IP addresses are skipped."""
    learner = Learner((NONE,), (slices("api.example.org", "010.0.0.1", "192.0.2.7", "10.0.0.0/8"),))
    await learner.own.read_all()
    assert learner.known() == {"192.0.2.7/32": API_SERVER}


@pytest.mark.parametrize(
    ("pod_ips", "known"),
    [("", []), ("10.244.1.7", ["10.244.1.7/32"]), ("10.244.1.7,fd00::7", ["10.244.1.7/32", "fd00::7/128"]), ("x", [])],
)
def test_the_pods_own_addresses_are_known_from_the_start(pod_ips: str, known: list[str]) -> None:
    """The Pod's own addresses of both families are denied from the start."""
    assert Learner((), (), pod_ips).known() == dict.fromkeys(known, "the hub's own Pod")


async def test_hubs_own_slices_are_not_api_servers(tmp_path: Path) -> None:
    """The hub's own slices, other Services and other namespaces are not read as API servers."""
    async with SimulatedCluster("hub") as here:
        ours = {"endpointslice.kubernetes.io/managed-by": "endpointslice-hub"}
        here.put(make_slice("default", "kubernetes", "kubernetes", ["192.0.2.7"]))
        here.put(make_slice("default", "kubernetes-x", "kubernetes", ["10.0.0.1"], labels=ours))
        here.put(make_slice("default", "payments-x", "payments", ["10.0.0.2"]))
        here.put(make_slice("edge", "kubernetes-x", "kubernetes", ["10.0.0.3"]))
        (tmp_path / "clusters.yaml").write_text("version: 1\n")
        options = Options(str(tmp_path / "clusters.yaml"), str(here.write_kubeconfig(tmp_path / "hub")))
        async with assemble(options) as hub:
            assert await hub.own_networks.read_all()
            assert hub.own_networks.networks == ((*build.networks("192.0.2.7/32"), API_SERVER),)
