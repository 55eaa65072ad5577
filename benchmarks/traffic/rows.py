"""The rows: what happens while the consumers send requests. Times are seconds since the row began."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.traffic.stage import Machine, Stage

FAULT = 5.0
"""When most faults happen, so that the seconds before show a bench without loss."""
ROTATION = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    Attributes:
        seconds: how long the consumers send requests.
        zero: whether the hub must lose nothing.
    """

    name: str
    text: str
    seconds: float
    script: Callable[[Stage], None]
    zero: bool = False


def rotation(stage: Stage) -> None:
    """Replace every node, one after the other."""
    old = list(stage.machines)
    each = ROTATION / len(old)
    stage.at(1.0)
    stage.fault()
    gone: list[Machine] = []
    for number, machine in enumerate(old):
        begin = 1.0 + number * each
        stage.at(begin)
        stage.boot()
        stage.at(begin + 0.2 * each)
        machine.cordon()
        stage.at(begin + 0.5 * each)
        stage.machines.remove(machine)
        machine.delete()
        gone.append(machine)
        stage.at(begin + 0.9 * each)
        gone.pop().power_off()


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
    for controller in stage.controllers.values():
        controller.kill()
    stage.at(FAULT + 7)
    for controller in stage.controllers.values():
        controller.start()


def link_down(stage: Stage) -> None:
    """Cut the link of a node, whose Node stays Ready: nothing answers its address."""
    machine = stage.machines[0]
    stage.at(FAULT)
    stage.fault()
    machine.host.link("down")
    stage.afterwards(lambda: machine.host.link("up"))


ROWS = (
    Row("rotation", "all nodes are replaced within 60 s", 66.0, rotation, zero=True),
    Row("drain", "a node is cordoned, its Node deleted, and it is switched off", 25.0, drain, zero=True),
    Row("remote API dead", "the remote API server is dead for 15 s", 26.0, remote_api_dead, zero=True),
    Row("hub kill -9", "the controller is killed, and started again after 7 s", 20.0, hub_killed, zero=True),
    Row("node link down", "a node's link is cut; its Node stays Ready", 33.0, link_down),
)
QUICK = ("rotation", "drain", "remote API dead", "hub kill -9", "node link down")
