"""Zone hints on real API servers: zones of the remote and the hub cluster, Events, rights, and ``hub check``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_events import awaits
from tests.support.apiserver.server import ApiServer
from tests.support.hub import HUB_RULES, RunningHub, World, add_node
from tests.support.waiting import eventually

NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
MAP = {"eu-1": "a", "eu-2": "b"}


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Nodes of eu in eu-1 and eu-2, Nodes of the hub cluster in a and b, and a Service whose entry maps the zones."""
    made = World(tmp_path, hub_cluster, {"eu": remote_clusters[0]}).prepare()
    hub_cluster.grant("hub", NODES)
    for number, zone in enumerate("ab", 1):
        add_node(hub_cluster, f"w{number}", zone=zone)
        add_node(made.remotes["eu"], f"n{number}", f"10.1.0.{number}", zone=f"eu-{number}")
    made.add_service()
    write(made, MAP)
    return made


def write(world: World, zones: dict[str, str]) -> None:
    """Write a registry with this ``zoneMap``."""
    world.write(services=[world.service(zoneMap=zones)])


def hints(world: World) -> dict[str, tuple[str | None, list[str]]]:
    """Address -> zone and hints, as published."""
    return {
        endpoint["addresses"][0]: (
            endpoint.get("zone"),
            [hint["name"] for hint in endpoint.get("hints", {}).get("forZones", ())],
        )
        for slice_ in world.slices()
        for endpoint in slice_["endpoints"] or ()
    }


HINTED = {"10.1.0.1": ("a", ["a"]), "10.1.0.2": ("b", ["b"])}
BARE = {"10.1.0.1": ("a", []), "10.1.0.2": ("b", [])}


def check(world: World) -> str:
    """The output of ``hub check --online``, which finds no problem."""
    command = [sys.executable, "-m", "hub", "check", str(world.path), "--online", "--kubeconfig", str(world.kubeconfig)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found
    return found.stdout


def test_hints_are_written_and_follow_the_nodes(world: World) -> None:
    """Endpoints have hints for their hub zone. A node in an unmapped zone takes all hints away; the map gives them."""
    with RunningHub(world) as hub:
        eventually(lambda: hints(world) == HINTED)
        mark = world.hub_cluster.audit_mark()
        add_node(world.remotes["eu"], "n3", "10.1.0.3", zone="eu-3")
        eventually(lambda: hints(world) == {**BARE, "10.1.0.3": ("eu-3", [])})
        assert hub.findings()["ZoneNotMapped"].message == (
            "eu: no zone hints: 1 of 3 endpoints are in no known zone, such as 10.1.0.3, whose zone 'eu-3' is not in "
            "zoneMap"
        )
        write(world, {**MAP, "eu-3": "b"})
        eventually(lambda: hints(world) == {**HINTED, "10.1.0.3": ("b", ["b"])})
        assert [request.verb for request in world.writes(mark)] == ["update", "update"]
        write(world, {})
        zones = {"10.1.0.1": ("eu-1", []), "10.1.0.2": ("eu-2", []), "10.1.0.3": ("eu-3", [])}
        eventually(lambda: hints(world) == zones)


def test_a_zone_that_the_hub_cluster_lacks_has_an_event(world: World) -> None:
    """A hub zone without a Node takes the hints away, from the first write on; ``hub check --online`` names it too."""
    write(world, {**MAP, "eu-2": "z"})
    with RunningHub(world):
        eventually(lambda: hints(world) == {"10.1.0.1": ("a", []), "10.1.0.2": ("z", [])})
        note = "eu: no zone hints: zoneMap names z, where the hub cluster has no Node"
        assert awaits(world, "ZoneNotInHub")["note"].startswith(note)
    assert f"edge/payments   ok, except ZoneNotInHub: {note}" in check(world)
    assert all(slice_["metadata"]["generation"] == 1 for slice_ in world.slices())


def test_without_the_right_to_list_nodes_hints_are_not_checked(world: World) -> None:
    """A hub that may not list Nodes writes the hints; ``hub check --online`` names the missing rule."""
    world.hub_cluster.grant("nobody", *HUB_RULES)
    world.hub_cluster.kubeconfig(world.kubeconfig, "nobody")
    with RunningHub(world):
        eventually(lambda: hints(world) == HINTED)
    assert "whether the hub cluster has the zones of zoneMap is not known: 403" in check(world)
