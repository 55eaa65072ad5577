"""The traffic benchmark on short rows, and what it says if a part of it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.traffic import net
from benchmarks.traffic.consumers import KUBE_PROXY
from tests.support.apiserver import binaries

ROOT = Path(__file__).parents[2]
MODULE = ["-m", "benchmarks.traffic"]
CONSUMER_DIES = """
import sys
from benchmarks.traffic import __main__ as traffic
from benchmarks.traffic.rows import Row

def die(stage):
    stage.at(1.0)
    stage.consumers["static"].process.kill()

traffic.ROWS = (Row("calm", "", 2.0, lambda stage: None), Row("dies", "", 3.0, die))
sys.exit(traffic.main(["--arms", "static", "--json", *sys.argv[1:]]))
"""

PLAY = """
import json, sys
from benchmarks.traffic import __main__ as traffic
from benchmarks.traffic.figures import figures
from benchmarks.traffic.rows import Row
from benchmarks.traffic.stage import SLICES
from tests.support.hub import add_node

def play(script, arm, begins, counts):
    def shared(story):
        shares = []
        for begin in begins:
            found = [counts(request) for request in story.requests if begin <= request.at < begin + 3.0]
            shares.append(sum(found) / len(found))
        print(json.dumps(shares), file=sys.stderr)
        return figures(story)

    traffic.figures = shared
    traffic.ROWS = (Row(script.__name__, "", 18.0, script, zero=True),)
    sys.exit(traffic.main(["--arms", arm, *sys.argv[1:]]))
"""
"""Plays a row of a script for one arm, and prints the share of the requests that count in three times of 3 s."""
ZONES = f"""{PLAY}
near = set()

def hints(stage):
    add_node(stage.hub, "other", "10.7.250.1", zone="hub-1")
    near.update(machine.name for machine in stage.machines if machine.zone == "eu-0")
    stage.at(4.0)
    zones = dict([("eu-0", "hub-0"), ("eu-1", "hub-1")])
    stage.write_registry("hub", stage.registry("hub", cluster=dict(zoneMap=zones)))
    stage.at(11.0)
    stage.write_registry("hub", stage.registry("hub"))

play(hints, "hub", (0.0, 8.0, 15.0), lambda request: request.node in near)
"""
ALL_DRAIN = f"""{PLAY}
def all_drain(stage):
    for at, ready in ((4.0, False), (11.0, True)):
        stage.at(at)
        conditions = dict(ready=ready, serving=True, terminating=not ready)
        endpoints = [dict(addresses=[machine.address], conditions=conditions) for machine in stage.machines]
        stage.hub.api.patch(SLICES + "/static", dict(endpoints=endpoints))

play(all_drain, "static", (0.0, 7.0, 15.0), lambda request: bool(request.error))
"""


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, env=env)


def shares(done: subprocess.CompletedProcess[str]) -> list[float]:
    """What a script with :data:`PLAY` has printed."""
    found: list[float] = json.loads(next(line for line in done.stderr.splitlines() if line.startswith("[")))
    return found


@pytest.fixture(scope="module", autouse=True)
def needed(server_fleet: object) -> None:
    """Skip the tests without a network, nft, or kube-proxy."""
    try:
        net.check()
        binaries.ensure_go_program(KUBE_PROXY)
    except (net.NetworkUnavailable, binaries.KitUnavailable) as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI can send no traffic: {error}", pytrace=False)
        pytest.skip(f"NO TRAFFIC, NOT TESTED: {error}")


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    """The option that names the file for the figures."""
    return ["--save", str(tmp_path / "traffic.json")]


def test_hub_loses_no_request_when_a_node_is_drained(saved: list[str]) -> None:
    """A hub with health checks loses none; static slices lose some, so that the bench is known to count them."""
    done = run([sys.executable, *MODULE, "--rows", "drain", "--arms", "static,health", "--json", *saved])
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["health"] == {"drain": {"requests": 5000, "lost": 0}}
    # Of eight nodes, one is off for the last ten of 25 seconds.
    assert 150 <= found["static"]["drain"]["lost"] <= 400


def test_consumer_that_dies_is_named_and_earlier_rows_are_kept(saved: list[str]) -> None:
    """A row in which kube-proxy dies has no figures; the message names it, and the row before is reported."""
    done = run([*net.ENTER, sys.executable, "-c", CONSUMER_DIES, *saved], **{net.INSIDE: "1"})
    assert done.returncode == 1
    assert "kube-proxy of static has ended" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"static": {"calm": {"requests": 400, "lost": 0}}}


def test_kube_proxy_follows_the_zone_hints(saved: list[str]) -> None:
    """While the Service has a zoneMap, kube-proxy sends all requests to nodes of its zone; no request is lost."""
    done = run([*net.ENTER, sys.executable, "-c", ZONES, *saved], **{net.INSIDE: "1"})
    assert done.returncode == 0, done.stderr + done.stdout
    before, hinted, after = shares(done)
    assert hinted == 1.0
    assert 0.3 < before < 0.7
    assert 0.3 < after < 0.7


@pytest.mark.parametrize(
    ("consumer", "lost"), [("kube-proxy", 0.0), pytest.param("envoy", 1.0, marks=pytest.mark.nightly)]
)
def test_what_a_consumer_does_while_all_endpoints_drain(saved: list[str], consumer: str, lost: float) -> None:
    """kube-proxy goes on sending requests to endpoints that serve and terminate; Contour takes them away from Envoy."""
    done = run([*net.ENTER, sys.executable, "-c", ALL_DRAIN, "--consumer", consumer, *saved], **{net.INSIDE: "1"})
    assert done.returncode == 0, done.stderr + done.stdout
    assert shares(done) == [0.0, lost, 0.0]


@pytest.mark.nightly
def test_another_version_takes_over_and_this_one_again(saved: list[str]) -> None:
    """With ``--old``, hubs of two source trees replace each other without loss, and the report names the version."""
    done = run(
        [sys.executable, *MODULE, "--rows", "hub upgrade", "--arms", "health", "--old", "HEAD", "--json", *saved]
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "version HEAD and this one replaced each other" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == {"health": {"hub upgrade": {"requests": 6600, "lost": 0}}}


def test_a_version_that_git_does_not_have_is_named(saved: list[str]) -> None:
    """The bench ends before it starts anything."""
    done = run([sys.executable, *MODULE, "--rows", "hub upgrade", "--arms", "health", "--old", "nosuch", *saved])
    assert (done.returncode, done.stdout) == (1, "")
    assert "--old nosuch: " in done.stderr
