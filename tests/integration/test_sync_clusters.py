"""Remote clusters in every state: how the hub reports them, and that none affects another."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.observe.remote import cluster as remote_cluster
from tests.support.api import Object
from tests.support.apiserver.pki import Authority
from tests.support.apiserver.server import ApiServer
from tests.support.hub import NODE_RULES, SECRET_RULES, HubProcess, RunningHub, World, add_node, eu_and_us, frozen
from tests.support.ports import free_port
from tests.support.waiting import eventually

DEAD_NAME = "dead.test"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/endpointslice-hub-default"


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Clusters eu and us with one node each, both published for ``payments``."""
    return eu_and_us(tmp_path, hub_cluster, remote_clusters)


@pytest.fixture
def running(world: World) -> Iterator[RunningHub]:
    """A running hub that has published both."""
    with RunningHub(world) as hub:
        world.awaits("10.1.0.1", "10.2.0.1")
        yield hub


@pytest.fixture
def fast_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check kubeconfigs twice a second."""
    monkeypatch.setattr(remote_cluster, "ACCESS_CHECK", 0.5)


@pytest.fixture
def dead_dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A resolver that reports ``dead.test`` as unknown, but only once the event is set. It sends no packet."""
    ended = threading.Event()
    real = socket.getaddrinfo

    def lookup(host: Any, *arguments: Any, **more: Any) -> Any:
        if host == DEAD_NAME:
            ended.wait(30)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    yield ended
    ended.set()


def edit(path: Path, **values: Any) -> None:
    """Change the only cluster or user of a kubeconfig, and replace the file in one step."""
    content: Object = yaml.safe_load(path.read_text())
    for section in (content["clusters"][0]["cluster"], content["users"][0]["user"]):
        section.update(
            {key.replace("_", "-"): value for key, value in values.items() if key.replace("_", "-") in section}
        )
    new = path.with_name(path.name + ".new")
    new.write_text(yaml.safe_dump(content))
    new.rename(path)


# states


def test_a_healthy_cluster_is_ready_with_a_time(running: RunningHub) -> None:
    """A healthy cluster is Ready without an error, and has the time since when."""
    eventually(lambda: running.state("eu") == "Ready: ")
    assert 0 <= time.time() - running.cluster("eu").status.since < 60


def test_a_refused_connection_is_unreachable(world: World) -> None:
    """A refused connection is Unreachable, with the server's name."""
    port = free_port()
    edit(world.folder / "us", server=f"https://127.0.0.1:{port}")

    with RunningHub(world) as hub:
        eventually(lambda: hub.state("us") == f"Unreachable: https://127.0.0.1:{port}: connection refused")
        world.awaits("10.1.0.1")


def test_a_name_that_does_not_resolve_is_unreachable(world: World, dead_dns: threading.Event) -> None:
    """A name that does not resolve is Unreachable, with the reason in words."""
    dead_dns.set()
    edit(world.folder / "us", server=f"https://{DEAD_NAME}:6443")

    with RunningHub(world) as hub:
        eventually(lambda: hub.state("us").startswith("Unreachable"))
        assert "dead.test:6443: the name does not resolve" in hub.state("us")


def test_certificate_of_another_ca_is_degraded(world: World) -> None:
    """A certificate of another CA is Degraded, not Unreachable: an operator must act, and no policy applies."""
    wrong = base64.b64encode(Authority("wrong").pem.encode()).decode()
    edit(world.folder / "us", certificate_authority_data=wrong)

    with RunningHub(world) as hub:
        eventually(lambda: hub.state("us").startswith("Degraded"))
        assert "its certificate is not accepted" in hub.state("us")


def test_a_wrong_token_degrades(world: World) -> None:
    """A 401 is Degraded and names the credential to renew."""
    edit(world.folder / "us", token="wrong")

    with RunningHub(world) as hub:
        eventually(
            lambda: hub.state("us") == "Degraded: 401: the credential is not accepted; renew the kubeconfig's user"
        )


def test_an_expired_client_certificate_degrades(world: World) -> None:
    """An expired client certificate is Degraded, not Unreachable."""
    world.remotes["us"].certificate_kubeconfig(world.folder / "us", "hub", lifetime=timedelta(seconds=-60))

    with RunningHub(world) as hub:
        eventually(lambda: hub.state("us").startswith("Degraded"))


def test_a_missing_rule_is_named_and_recovery_needs_no_restart(world: World) -> None:
    """A 403 names the missing RBAC rule; with that rule the cluster is Ready, and its nodes are published."""
    us = world.remotes["us"]
    us.kubeconfig(world.folder / "us", "nobody")

    with RunningHub(world) as hub:
        rule = "nodes: get, list, watch"
        eventually(
            lambda: hub.state("us") == f"Degraded: 403: the account lacks the rule «{rule}»; grant it in cluster us"
        )
        us.grant("nobody", *NODE_RULES)
        world.awaits("10.1.0.1", "10.2.0.1", timeout=15)
        assert hub.state("us") == "Ready: "


# a dead cluster and the others


def test_a_killed_remote_loses_no_endpoint(running: RunningHub, world: World) -> None:
    """A remote's API server is killed and restarted without any write, and is then followed again."""
    us, mark = world.remotes["us"], world.hub_cluster.audit_mark()

    us.kill()
    eventually(lambda: running.state("us").startswith("Unreachable"))
    us.restart()
    eventually(lambda: running.state("us") == "Ready: ", 15)

    assert world.writes(mark) == []
    add_node(us, "m2", "10.2.0.2")
    world.awaits("10.1.0.1", "10.2.0.1", "10.2.0.2")


def test_nodes_that_left_during_an_outage_leave_after_it(running: RunningHub, world: World) -> None:
    """After an expired watch, the new list removes nodes that left during the outage."""
    us = world.remotes["us"]
    add_node(us, "m2", "10.2.0.2")
    world.awaits("10.1.0.1", "10.2.0.1", "10.2.0.2")
    us.api.delete("/api/v1/nodes/m2")

    us.forget_history()

    world.awaits("10.1.0.1", "10.2.0.1")


def test_dead_remote_does_not_delay_others(running: RunningHub, world: World) -> None:
    """While one remote is dead, a change in another one is published as fast as usual."""
    world.remotes["us"].kill()
    eventually(lambda: running.state("us").startswith("Unreachable"))

    add_node(world.remotes["eu"], "n2", "10.1.0.2")

    world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1", timeout=1.0)


def test_a_frozen_remote_delays_no_start(world: World) -> None:
    """A paused server delays neither the start nor other clusters."""
    with frozen(world.remotes["us"]), RunningHub(world) as hub:
        world.awaits("10.1.0.1", timeout=3.0)
        assert hub.hub.health.local_synced or hub.hub.local.synced
        add_node(world.remotes["eu"], "n2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2", timeout=1.0)


def test_dead_dns_delays_no_start(world: World, dead_dns: threading.Event) -> None:
    """Thirty clusters whose names are not resolved delay no other cluster."""
    names = [f"dead-{number}" for number in range(30)]
    edit(world.folder / "us", server=f"https://{DEAD_NAME}:6443")
    dead = [{**world.cluster(name), "kubeconfig": {"path": "us"}} for name in names]
    world.write(clusters=[*dead, world.cluster("eu")], services=[world.service("payments", "eu", *names)])

    with RunningHub(world):
        world.awaits("10.1.0.1", timeout=4.0)
        add_node(world.remotes["eu"], "n2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2", timeout=1.0)
        dead_dns.set()


def test_a_restart_while_a_remote_is_down_adopts_its_slices(world: World) -> None:
    """Slices of a dead remote are adopted without a write, and created again if someone deletes them."""
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.2.0.1")
    world.remotes["us"].kill()
    mark = world.hub_cluster.audit_mark()

    with RunningHub(world) as hub:
        eventually(lambda: hub.state("us").startswith("Unreachable") and hub.hub.elector.leading)
        assert world.writes(mark, settle=1.0) == []
        (lost,) = [slice_ for slice_ in world.slices() if slice_["endpoints"][0]["addresses"] == ["10.2.0.1"]]
        world.hub_cluster.api.delete(world.slice_path(lost["metadata"]["name"]))
        world.awaits("10.1.0.1", "10.2.0.1", timeout=2.0)


def test_a_recreated_service_gets_the_endpoints_of_a_dead_remote(running: RunningHub, world: World) -> None:
    """A recreated Service gets the last known endpoints of a dead remote, though its slices are gone."""
    world.remotes["us"].kill()
    eventually(lambda: running.state("us").startswith("Unreachable"))
    services = "/api/v1/namespaces/edge/services"
    world.hub_cluster.api.delete(f"{services}/payments")
    eventually(lambda: running.status() == "the Service does not exist")
    world.hub_cluster.api.delete(world.slice_path("").rstrip("/"))
    eventually(lambda: world.slices() == [])

    world.add_service()

    world.awaits("10.1.0.1", "10.2.0.1", timeout=2.0)


def test_an_unpublished_dead_source_is_no_failover_target(world: World) -> None:
    """An unreachable source is not a failover target, even if it was ready before."""
    world.write(
        clusters=[world.cluster("eu"), world.cluster("us")],
        services=[world.service("payments", "eu", "us", strategy="failover", failover={"after": "0.5s"})],
    )
    with RunningHub(world) as hub:
        world.awaits("10.1.0.1")
        eventually(lambda: hub.state("us") == "Ready: ")
        world.remotes["us"].kill()
        eventually(lambda: hub.state("us").startswith("Unreachable"))
        world.remotes["eu"].api.delete("/api/v1/nodes/n1")
        eventually(lambda: not hub.cluster("eu").nodes)
        time.sleep(1.5)
        assert world.published() == ["10.1.0.1"]


# the policy for unreachable clusters


def with_policy(world: World, policy: str) -> None:
    """Write a registry in which us has this policy after one second."""
    clusters = [world.cluster("eu"), world.cluster("us", unreachable={"after": "1s", "policy": policy})]
    world.write(clusters=clusters, services=[world.service("payments", "eu", "us")])


def test_unreachable_not_ready_drains(world: World) -> None:
    """With policy not-ready the endpoints become not ready, and ready again when the cluster answers."""

    def conditions() -> list[tuple[bool, bool]]:
        found = [slice_["endpoints"][0] for slice_ in world.slices()]
        (mine,) = [slice_["conditions"] for slice_ in found if slice_["addresses"] == ["10.2.0.1"]]
        return [(mine["ready"], mine["terminating"])]

    with_policy(world, "not-ready")
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.2.0.1")
        world.remotes["us"].kill()
        eventually(lambda: conditions() == [(False, True)], 5)
        world.remotes["us"].restart()
        eventually(lambda: conditions() == [(True, False)], 15)


def test_unreachable_remove_removes_and_brings_back(world: World) -> None:
    """With policy remove the endpoints are removed after the time, and return with the cluster."""
    with_policy(world, "remove")
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.2.0.1")
        killed = time.monotonic()
        world.remotes["us"].kill()
        world.awaits("10.1.0.1", timeout=5)
        assert time.monotonic() - killed >= 1.0
        world.remotes["us"].restart()
        world.awaits("10.1.0.1", "10.2.0.1", timeout=15)


def test_unreachable_policy_does_not_apply_to_401(world: World) -> None:
    """Only failed connections count: with a revoked token the endpoints stay."""
    with_policy(world, "remove")
    with RunningHub(world):
        world.awaits("10.1.0.1", "10.2.0.1")
    edit(world.folder / "us", token="wrong")
    with RunningHub(world) as hub:
        eventually(lambda: hub.state("us").startswith("Degraded: 401"))
        time.sleep(1.5)
        assert world.published() == ["10.1.0.1", "10.2.0.1"]


def test_policy_is_suspended_while_most_clusters_are_unreachable(world: World) -> None:
    """While most clusters are unreachable, policy remove is suspended; it applies again when one is back."""
    with_policy(world, "remove")
    with RunningHub(world) as hub:
        world.awaits("10.1.0.1", "10.2.0.1")
        for server in world.remotes.values():
            server.kill()
        eventually(lambda: hub.hub.fleet.suspended)
        time.sleep(2.0)
        assert world.published() == ["10.1.0.1", "10.2.0.1"]
        world.remotes["eu"].restart()
        world.awaits("10.1.0.1", timeout=15)


# changed kubeconfigs


@pytest.mark.usefixtures("fast_checks")
def test_a_replaced_kubeconfig_is_picked_up(running: RunningHub, world: World) -> None:
    """If the file points to another server, that one is followed within seconds, without a restart."""
    (world.folder / "us.new").write_bytes((world.folder / "eu").read_bytes())
    (world.folder / "us.new").rename(world.folder / "us")

    eventually(lambda: running.cluster("us").nodes.keys() == {"n1"})


@pytest.mark.usefixtures("fast_checks")
def test_a_repaired_kubeconfig_is_picked_up(world: World) -> None:
    """A file that is missing at the start is used soon after it is created."""
    content = (world.folder / "us").read_bytes()
    (world.folder / "us").unlink()

    with RunningHub(world) as hub:
        eventually(lambda: "cannot be read: No such file" in hub.state("us"))
        (world.folder / "us").write_bytes(content)
        world.awaits("10.1.0.1", "10.2.0.1")


def test_a_rotated_token_file_is_read_again(world: World) -> None:
    """A token that is replaced in its file is used without a restart and without a lasting 401."""
    us = world.remotes["us"]
    token = world.folder / "us.token"
    token.write_text("wrong")
    content = yaml.safe_load((world.folder / "us").read_text())
    content["users"][0]["user"] = {"tokenFile": str(token)}
    (world.folder / "us").write_text(yaml.safe_dump(content))

    with RunningHub(world) as hub:
        eventually(lambda: hub.state("us").startswith("Degraded: 401"))
        token.write_text(us.token("hub"))
        world.awaits("10.1.0.1", "10.2.0.1", timeout=15)


@pytest.mark.usefixtures("fast_checks")
def test_a_kubeconfig_from_a_secret_is_used_and_followed(world: World) -> None:
    """A kubeconfig from a Secret works, and a changed one is used."""
    secrets = "/api/v1/namespaces/default/secrets"
    world.hub_cluster.grant("hub", *SECRET_RULES, namespace="default")
    world.write(
        clusters=[world.cluster("eu"), world.cluster("us", kubeconfig={"secret": "us"})],
        services=[world.service("payments", "eu", "us")],
    )

    with RunningHub(world) as hub:
        eventually(lambda: "Secret default/us of the hub cluster does not exist" in hub.state("us"))
        edit(world.folder / "us", token="wrong")
        world.hub_cluster.api.post(secrets, {"metadata": {"name": "us"}, "data": {"kubeconfig": encoded(world)}})
        eventually(lambda: hub.state("us").startswith("Degraded: 401"))
        edit(world.folder / "us", token=world.remotes["us"].token("hub"))
        world.hub_cluster.api.patch(f"{secrets}/us", {"data": {"kubeconfig": encoded(world)}})
        world.awaits("10.1.0.1", "10.2.0.1")


def test_a_secret_that_may_not_be_read_names_the_hubs_rule(world: World) -> None:
    """The error names the hub's missing rule in the hub cluster, and does not point to the remote cluster."""
    world.write(clusters=[world.cluster("us", kubeconfig={"secret": "us"})], services=[world.service("payments", "us")])

    with RunningHub(world) as hub:
        eventually(lambda: "the hub's account lacks the rule «secrets us: get»" in hub.state("us"))


def encoded(world: World) -> str:
    """The kubeconfig of us, encoded as in a Secret."""
    return base64.b64encode((world.folder / "us").read_bytes()).decode()


# stopping the hub


def test_a_stopped_hub_hands_over_within_two_seconds(world: World) -> None:
    """After SIGTERM the hub exits with 0 within 5 s and releases the Lease; the next one writes changes at once."""
    with HubProcess(world) as first:
        world.awaits("10.1.0.1", "10.2.0.1", timeout=15)
        before = world.versions()
        code, seconds = first.terminate()
        stopped = time.monotonic()
    assert (code, seconds < 5.0) == (0, True)
    assert not world.hub_cluster.api.get(LEASE)["spec"].get("holderIdentity")
    with RunningHub(world) as second:
        eventually(lambda: second.hub.elector.leading, 2.0)
        assert time.monotonic() - stopped < 2.0
        add_node(world.remotes["eu"], "n2", "10.1.0.2")
        world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")
    assert len(world.versions().items() - before.items()) == 1


def test_a_standby_takes_over_within_seconds_of_a_release(world: World) -> None:
    """A standby takes over a released Lease within seconds, and continues."""
    with RunningHub(world) as first:
        world.awaits("10.1.0.1", "10.2.0.1")
        with RunningHub(world) as second:
            eventually(lambda: second.hub.elector.holder == first.hub.elector.identity)
            first.stop()
            eventually(lambda: second.hub.elector.leading, 5.0)


def test_a_killed_hub_leaves_everything_and_the_next_one_adopts(world: World) -> None:
    """After SIGKILL the slices stay; the next hub leads once the Lease has expired, and writes nothing."""
    with HubProcess(world) as first:
        world.awaits("10.1.0.1", "10.2.0.1", timeout=15)
        first.kill()
    before = world.versions()
    assert world.hub_cluster.api.get(LEASE)["spec"]["holderIdentity"]
    world.hub_cluster.api.delete(LEASE)  # like an expired Lease: its holder is dead

    with RunningHub(world) as second:
        eventually(lambda: second.hub.elector.leading)
        eventually(lambda: second.state("us") == "Ready: ")
        time.sleep(0.5)

    assert world.versions() == before


def test_sigterm_finishes_the_write_in_flight(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopping hub waits for a write in progress, and starts no other."""
    world.add_service("other")
    world.write(services=[world.service("payments", "eu", "us")])
    with RunningHub(world) as hub:
        world.awaits("10.1.0.1", "10.2.0.1")
        with frozen(world.hub_cluster):
            for name, address in (("n2", "10.1.0.2"), ("n3", "10.1.0.3")):
                add_node(world.remotes["eu"], name, address)
            eventually(lambda: hub.hub.queue.working)
            stopper = threading.Thread(target=hub.stop)
            stopper.start()
            eventually(lambda: hub.hub.health.stopping)
        stopper.join(6)
        assert not stopper.is_alive()
        assert hub.hub.writer.writes["update"] == 1  # the hub got its answer and sent no second write

    assert "10.1.0.2" in world.published()
