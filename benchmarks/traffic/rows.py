"""The rows: what happens while the consumers send requests. Times are seconds since the row began."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.traffic.figures import HUB_ARMS
from benchmarks.traffic.stage import NODES, Stage
from tests.support.hub import NODE_RULES

FAULT = 5.0
"""When most faults happen, so that the seconds before show a bench without loss."""
ROTATION = 60.0
"""Seconds in which all nodes are replaced."""
FAILOVER_AFTER = 5.0
"""How long a source must lack ready endpoints: less than the default of 30 s, to keep the row short."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    Attributes:
        seconds: how long the consumers send requests.
        zero: whether the hub must lose nothing.
        dead: the share of the requests that dead nodes get, if health checks must limit its loss.
        clusters: the clusters that it needs.
    """

    name: str
    text: str
    seconds: float
    script: Callable[[Stage], None]
    zero: bool = False
    dead: float = 0.0
    clusters: tuple[str, ...] = ("eu",)


def rotation(stage: Stage) -> None:
    """Replace every node, one after the other."""
    old = list(stage.machines)
    each = ROTATION / len(old)
    stage.at(1.0)
    stage.fault()
    for number, machine in enumerate(old):
        begin = 1.0 + number * each
        stage.at(begin)
        stage.boot()
        stage.at(begin + 0.2 * each)
        machine.cordon()
        stage.at(begin + 0.5 * each)
        stage.machines.remove(machine)
        machine.delete()
        stage.at(begin + 0.9 * each)
        machine.power_off()


def drain(stage: Stage) -> None:
    """Cordon a node, delete its Node as if its Pods were evicted, and switch it off."""
    machine = stage.machines[0]
    stage.at(FAULT)
    stage.fault()
    machine.cordon()
    stage.at(FAULT + 5)
    stage.machines.remove(machine)
    machine.delete()
    stage.at(FAULT + 10)
    machine.power_off()
    stage.afterwards(stage.boot)


def remote_api_dead(stage: Stage) -> None:
    """Kill the API server of the cluster whose nodes are published."""
    server = stage.servers["eu"]
    stage.at(FAULT)
    stage.fault()
    server.kill()
    stage.at(FAULT + 15)
    server.restart()


def hub_killed(stage: Stage) -> None:
    """Kill the controllers with SIGKILL, and start them again."""
    stage.at(FAULT)
    stage.fault()
    stage.kill_controllers()
    stage.at(FAULT + 7)
    stage.restart_controllers()


def link_down(stage: Stage) -> None:
    """Cut the link of a node, whose Node stays Ready: nothing answers its address."""
    machine = stage.machines[0]
    stage.at(FAULT)
    stage.fault()
    machine.host.link("down")
    stage.afterwards(lambda: machine.host.link("up"))


def answers_reset(stage: Stage) -> None:
    """Stop the backend of a node, whose Node stays Ready: the node refuses connections."""
    machine = stage.machines[0]
    stage.at(FAULT)
    stage.fault()
    machine.refuse()
    stage.afterwards(machine.serve)


def flap(stage: Stage) -> None:
    """Let a Node be not Ready for 3 s and Ready for 3 s, three times. Its backend answers all the time."""
    machine = stage.machines[0]
    stage.at(FAULT)
    stage.fault()
    for number in range(3):
        stage.at(FAULT + 6 * number)
        machine.set_ready("False")
        stage.at(FAULT + 6 * number + 3)
        machine.set_ready("True")


def half_not_ready(stage: Stage) -> None:
    """Let half of the Nodes be not Ready for 15 s, as when their kubelets lose the API. Their backends answer."""
    half = stage.machines[::2]
    stage.at(FAULT)
    stage.fault()
    for machine in half:
        machine.set_ready("Unknown")
    stage.at(FAULT + 15)
    for machine in half:
        machine.set_ready("True")


def remote_api_blackholed(stage: Stage) -> None:
    """Pause the remote API server: it accepts connections and answers nothing."""
    stage.at(FAULT)
    stage.fault()
    stage.servers["eu"].pause()
    stage.afterwards(stage.servers["eu"].resume)
    stage.at(FAULT + 20)
    stage.servers["eu"].resume()


def remote_api_rebuilt(stage: Stage) -> None:
    """Lose the remote cluster's etcd: a new, empty cluster answers on its address, and its Nodes register again."""
    server = stage.servers["eu"]
    stage.at(FAULT)
    stage.fault()
    server.kill()
    server.etcd.kill()
    shutil.rmtree(server.folder / "data")
    server.ensure_running()
    server.grant("hub", *NODE_RULES)
    stage.afterwards(stage.restart_controllers)  # the reference waits for resourceVersions of the lost etcd
    stage.at(FAULT + 20)
    for machine in stage.machines:
        machine.register()
        time.sleep(1.0)


def empty_answer(stage: Stage) -> None:
    """Let the remote API list no Nodes for 15 s, although all machines answer."""
    stage.at(FAULT)
    stage.fault()
    for machine in stage.machines:
        machine.server.api.delete(machine.path)
    stage.at(FAULT + 15)
    for machine in stage.machines:
        machine.register()


def hub_paused(stage: Stage) -> None:
    """Pause the controllers for 20 s with SIGSTOP, longer than a Lease lasts."""
    stage.at(FAULT)
    stage.fault()
    for controller in stage.controllers.values():
        controller.pause()
    stage.at(FAULT + 20)
    for controller in stage.controllers.values():
        controller.resume()


def upgrade(stage: Stage) -> None:
    """Let a second hub take over; with ``--old``, the hub of that version has taken over from this one before."""
    if stage.old is not None:
        hand_over(stage, 1.0, old=True)
    stage.at(FAULT + 10)
    stage.fault()
    hand_over(stage, FAULT + 10)


def hand_over(stage: Stage, begin: float, *, old: bool = False) -> None:
    """Start a second hub, which stands by, then stop the first with SIGTERM. The reference is stopped and started."""
    stage.at(begin)
    before = dict(stage.controllers)
    for arm in before:
        if arm != "reference":
            stage.control(arm, old=old)
    stage.at(begin + 8)
    stage.check_parts()
    for arm, controller in before.items():
        controller.stop()
        if arm == "reference":
            controller.start()


def hub_api_restarted(stage: Stage) -> None:
    """Kill the hub cluster's API server, and start it again."""
    stage.at(FAULT)
    stage.fault()
    stage.hub.restart()


def registry_edit(stage: Stage) -> None:
    """Save a broken clusters.yaml, then one that excludes a node, then the first one again."""
    arms = [arm for arm in stage.arms if arm in HUB_ARMS]
    excluded = {"exclude": {"nodes": [stage.machines[0].name]}}
    stage.at(FAULT)
    stage.fault()
    for arm in arms:
        stage.write_registry(arm, {"version": 1, "clusters": "none"})
    stage.at(FAULT + 5)
    for arm in arms:
        stage.write_registry(arm, stage.registry(arm, cluster={"nodes": excluded}))
    stage.at(FAULT + 10)
    for arm in arms:
        stage.write_registry(arm, stage.registry(arm))


def failover(stage: Stage) -> None:
    """Stop all backends of a cluster, whose Nodes stay Ready, while a second cluster stands by."""
    arms = [arm for arm in stage.arms if arm in HUB_ARMS]
    strategy: dict[str, Any] = {
        "sources": [{"cluster": "eu"}, {"cluster": "us"}],
        "strategy": "failover",
        "failover": {"after": f"{FAILOVER_AFTER:g}s"},
    }
    for arm in arms:
        stage.write_registry(arm, stage.registry(arm, **strategy))
        stage.afterwards(functools.partial(stage.write_registry, arm, stage.registry(arm)))
    stage.at(FAULT + 5)
    stage.fault()
    for machine in stage.machines:
        machine.refuse()
        stage.afterwards(machine.serve)


ROWS = (
    Row("rotation", "All nodes are replaced within 60 s, as in an upgrade of a node pool.", 66.0, rotation, zero=True),
    Row("drain", "A node is cordoned, its Node is deleted, and it is switched off 5 s later.", 25.0, drain, zero=True),
    Row("node link down", "A node's link is cut. Its Node stays Ready.", 33.0, link_down, dead=1 / NODES),
    Row("node answers RST", "A node refuses connections. Its Node stays Ready.", 33.0, answers_reset, dead=1 / NODES),
    Row("node flaps", "A Node is not Ready for 3 s, three times. The node answers.", 26.0, flap, zero=True),
    Row("half not Ready", "Half of the Nodes are not Ready for 15 s. They answer.", 26.0, half_not_ready, zero=True),
    Row("remote API dead", "The remote API server is dead for 15 s.", 26.0, remote_api_dead, zero=True),
    Row("remote API blackholed", "It answers nothing for 20 s.", 31.0, remote_api_blackholed, zero=True),
    Row("remote API rebuilt", "It loses its etcd; its Nodes register again.", 36.0, remote_api_rebuilt, zero=True),
    Row("empty answer", "The remote API lists no Nodes for 15 s. The nodes answer.", 26.0, empty_answer, zero=True),
    Row("hub kill -9", "The controller is killed, and started again after 7 s.", 20.0, hub_killed, zero=True),
    Row("hub SIGSTOP", "The controller is paused for 20 s.", 31.0, hub_paused, zero=True),
    Row("hub upgrade", "A second hub stands by, then the first is stopped.", 33.0, upgrade, zero=True),
    Row("hub API restarted", "The hub cluster's API server is killed and started.", 20.0, hub_api_restarted, zero=True),
    Row(
        "registry edit",
        "clusters.yaml becomes invalid, excludes a node, is as before.",
        22.0,
        registry_edit,
        zero=True,
    ),
    Row(
        "failover",
        f"All nodes of a cluster refuse connections. A second cluster stands by (`after: {FAILOVER_AFTER:g}s`).",
        60.0,
        failover,
        clusters=("eu", "us"),
    ),
)
ENVOY_ROWS = (
    "rotation",
    "drain",
    "node link down",
    "node answers RST",
    "remote API dead",
    "empty answer",
    "hub kill -9",
    "failover",
)
"""The rows of a complete run with Envoy: the others differ only in what the controllers do."""
QUICK = ("rotation", "drain", "remote API dead", "hub kill -9", "node link down")
