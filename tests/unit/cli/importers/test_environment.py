"""The import of the single-target controller's variables, one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hub.cli.importers.environment import Imported, build
from hub.cli.importers.target import VARIABLES
from hub.cli.importers.variables import Reference, Variables
from hub.errors import HubError, RegistryError
from hub.model import TargetKey
from hub.registry.load import loads
from hub.registry.spec import ClusterSpec, GuardPolicy, PortSpec, Registry, TargetSpec
from tests.support.registry import strict

BASE = {
    "TARGET_NAMESPACE": "edge",
    "TARGET_SERVICE_NAME": "payments",
    "TARGET_PORT": "30443",
    "INVENTORY_FILE_PATH": "/etc/inventory/nodes.json",
}


def imported(**changed: str) -> Imported:
    """The result for the required variables and these; "" unsets one."""
    return build(Variables({key: value for key, value in {**BASE, **changed}.items() if value}))


def registry(**changed: str) -> Registry:
    """The resulting registry, loaded without any problem."""
    return strict(loads(imported(**changed).document.text.encode(), "f"))


def target(**changed: str) -> TargetSpec:
    """The one target of the registry."""
    return registry(**changed).targets[TargetKey("edge", "payments")]


def cluster(**changed: str) -> ClusterSpec:
    """The one cluster of the registry."""
    return registry(**changed).clusters["secured"]


def config(**changed: str) -> Any:
    """The configuration of the inventory provider."""
    provider = cluster(**changed).provider
    assert provider is not None
    assert provider.name == "inventory"
    return json.loads(provider.config)


def mistakes(**changed: str) -> list[str]:
    """The messages about wrong variables, from the importer or the loader."""
    try:
        found = imported(**changed)
    except HubError as error:
        return str(error).split("; ")
    try:
        problems = loads(found.document.text.encode(), "f").problems
    except RegistryError as error:
        problems = error.problems
    return str(found.document.error(problems)).split("; ")


def test_the_least_that_is_needed() -> None:
    """A file, a Service and a port are enough; everything else has the controller's defaults."""
    found = registry()
    spec = target()

    assert config() == {"file": "/etc/inventory/nodes.json", "interval": "5s"}
    assert [str(each) for each in cluster().allowed_cidrs] == ["0.0.0.0/0", "::/0"]
    assert spec.ports == (PortSpec(30443),)
    assert spec.sources[0].guard == GuardPolicy(empty_results=3, max_removal=None)
    assert spec.sources[0].health.mode == "off"
    assert (spec.adopt, found.owner) == ("", "edge.payments")
    assert not imported().dry_run


def test_every_variable_of_the_controller_is_read() -> None:
    """Every variable of the controller changes the result."""
    everything = {
        "SOURCE_POLL_INTERVAL": "7s",
        "TARGET_NAMESPACE": "other",
        "TARGET_SERVICE_NAME": "other",
        "TARGET_ENDPOINTSLICE_NAME": "payments-x",
        "TARGET_MANAGED_BY": "old",
        "TARGET_PORT": "1",
        "SECURED_SUBNET_CIDR": "10.0.0.0/8",
        "EMPTY_RESULT_THRESHOLD": "1",
        "SOURCE_KIND": "static",
        "STORE_KIND": "memory",
        "INVENTORY_FILE_PATH": "/other.json",
        "INVENTORY_COMMAND": "/bin/list",
        "INVENTORY_COMMAND_ARGS": "-x",
        "HEALTH_CHECK_MODE": "tcp",
        "HEALTH_CHECK_PATH": "/ready",
        "HEALTH_CHECK_TIMEOUT": "1s",
    }
    command = {"INVENTORY_FILE_PATH": "", "INVENTORY_COMMAND": "/bin/true"}
    needs = {
        "INVENTORY_COMMAND": command,
        "INVENTORY_COMMAND_ARGS": command,
        "HEALTH_CHECK_PATH": {"HEALTH_CHECK_MODE": "http"},
        "HEALTH_CHECK_TIMEOUT": {"HEALTH_CHECK_MODE": "http"},
    }

    assert set(everything) == set(VARIABLES)
    for name, value in everything.items():
        before = needs.get(name, {})
        assert imported(**{**before, name: value}) != imported(**before), name


@pytest.mark.parametrize(("written", "meant"), [("2m3.5s", 123.5), ("300ms", 0.3), ("+2s", 2.0)])
def test_go_durations(written: str, meant: float) -> None:
    """Durations are read as in Go, and the poll interval is also the interval of the health checks."""
    health = target(SOURCE_POLL_INTERVAL=written, HEALTH_CHECK_MODE="tcp").sources[0].health

    assert health.interval == meant
    assert config(SOURCE_POLL_INTERVAL=written)["interval"] == ("1s" if meant < 1 else written.removeprefix("+"))


def test_health_checks_decide_at_once() -> None:
    """One probe per poll decides, and an address whose probe fails is removed."""
    http = target(HEALTH_CHECK_MODE="http", HEALTH_CHECK_PATH="/ready", HEALTH_CHECK_TIMEOUT="900ms").sources[0].health
    tcp = target(HEALTH_CHECK_MODE="tcp").sources[0].health

    assert (http.mode, http.path, http.timeout, http.interval) == ("http", "/ready", 0.9, 5.0)
    assert (http.rise, http.fall, http.on_fail, http.status) == (1, 1, "remove", ((200, 399),))
    assert (tcp.mode, tcp.timeout) == ("tcp", 3.0)


@pytest.mark.parametrize("threshold", [0, 1, 7])
def test_the_empty_result_threshold_is_empty_results(threshold: int) -> None:
    """EMPTY_RESULT_THRESHOLD becomes emptyResults with the same meaning; other removals are not limited."""
    guard = target(EMPTY_RESULT_THRESHOLD=str(threshold)).sources[0].guard

    assert (guard.empty_results, guard.max_removal) == (threshold, None)


def test_network_bits_outside_the_mask_are_cleared() -> None:
    """A network with bits outside its mask is accepted, and the bits are cleared as in Go."""
    assert [str(each) for each in cluster(SECURED_SUBNET_CIDR="10.7.3.1/16").allowed_cidrs] == ["10.7.0.0/16"]


def test_a_command_keeps_its_words_and_its_environment() -> None:
    """A command is split as by a shell, and gets the variables it needs by name, not by value."""
    found = imported(
        INVENTORY_FILE_PATH="",
        INVENTORY_COMMAND="python3",
        INVENTORY_COMMAND_ARGS="/app/render.py --name 'a b'",
        IONOS_TOKEN="very-secret",
        PS1="$",
    )
    provider = strict(loads(found.document.text.encode(), "f")).clusters["secured"].provider

    assert provider is not None
    assert json.loads(provider.config) == {
        "command": ["python3", "/app/render.py", "--name", "a b"],
        "environment": ["IONOS_TOKEN"],
        "interval": "5s",
    }
    assert found.program == "python3"
    assert "very-secret" not in found.document.text


def test_a_command_of_a_manifest_is_given_all_its_variables() -> None:
    """A command from a manifest gets all variables of the container, also those from Secrets."""
    variables = Variables(
        {**BASE, "SOURCE_KIND": "command", "INVENTORY_COMMAND": "/app/list", "LEVEL": "2"},
        {"IONOS_TOKEN": Reference("ionos", "token")},
        declared=True,
    )

    assert "environment: [IONOS_TOKEN, LEVEL]" in build(variables).document.text


def test_the_controllers_managed_by_is_adopted() -> None:
    """The controller's managed-by value becomes ``adopt``, unless it is the hub's own."""
    assert target(TARGET_MANAGED_BY="old.example.com").adopt == "old.example.com"
    assert target(TARGET_MANAGED_BY="endpointslice-hub").adopt == ""
    assert "TARGET_MANAGED_BY is not set" in imported().document.text


def test_unread_sources_are_listed_at_the_top() -> None:
    """A comment at the top names sources of variables that were not read."""
    text = build(Variables({**BASE}, declared=True, unread=["Secret hidden"])).document.text

    assert "# NOT READ: Secret hidden (envFrom)" in text.partition("version: 1")[0]


def test_unused_variables_are_listed_at_the_top() -> None:
    """A comment at the top names variables that nothing uses; a program gets all of them."""
    given = {**BASE, "STORE_KINDS": "hidden"}
    program = {**given, "SOURCE_KIND": "command", "INVENTORY_COMMAND": "/bin/true"}

    text = build(Variables(given, declared=True)).document.text

    assert "# not used: STORE_KINDS\n" in text.partition("version: 1")[0]
    assert "hidden" not in text
    assert "not used" not in build(Variables(program, declared=True)).document.text


def test_a_memory_store_writes_nothing() -> None:
    """STORE_KIND=memory becomes a dry run."""
    assert imported(STORE_KIND="memory").dry_run
    assert not imported(STORE_KIND="kubectl").dry_run


def test_each_target_has_its_own_owner() -> None:
    """Targets with different names have different owners of at most 63 characters."""
    long = registry(TARGET_NAMESPACE="n" * 63, TARGET_SERVICE_NAME="s" * 63).owner
    other = registry(TARGET_NAMESPACE="n" * 63, TARGET_SERVICE_NAME="s" * 62).owner

    assert long != other
    assert max(len(long), len(other)) <= 63


def test_source_kind_ionos_gives_the_inventory_script_cluster() -> None:
    """SOURCE_KIND=ionos becomes the cluster that ``hub import inventory-script`` prints."""
    found = cluster(
        SOURCE_KIND="ionos",
        IONOS_TOKEN="very-secret",
        IONOS_DATACENTER_ID="0b6a1d3e-0000-4000-8000-000000000001",
        IONOS_PRIVATE_LAN_ID="2",
        SECURED_KUBECONFIG="/etc/kubeconfig",
    )

    assert found.provider is not None
    assert (found.provider.name, [str(each) for each in found.allowed_cidrs]) == ("ionos", ["10.0.0.0/24"])


def test_static_cannot_be_run_as_it_is() -> None:
    """SOURCE_KIND=static is printed with an empty list to fill in, and cannot be run directly."""
    assert config(SOURCE_KIND="static") == {"static": [], "interval": "5s"}
    with pytest.raises(HubError, match="SOURCE_KIND: static cannot be run from the environment"):
        build(Variables({**BASE, "SOURCE_KIND": "static"}), complete=True)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"TARGET_PORT": "https"}, 'TARGET_PORT: must be a whole number, not "https"'),
        ({"TARGET_PORT": ""}, "TARGET_PORT: is required: the port of every endpoint"),
        ({"TARGET_PORT": "70000"}, "TARGET_PORT: must be at most 65535, not 70000"),
        ({"TARGET_NAMESPACE": "Edge"}, 'TARGET_NAMESPACE: is not a DNS label (a-z, 0-9 and - inside): "Edge"'),
        ({"TARGET_NAMESPACE": "edge_1"}, 'TARGET_NAMESPACE: is not a DNS label (a-z, 0-9 and - inside): "edge_1"'),
        ({"EMPTY_RESULT_THRESHOLD": "-1"}, "EMPTY_RESULT_THRESHOLD: must be at least 0, not -1"),
        ({"SECURED_SUBNET_CIDR": "10.0.0."}, 'SECURED_SUBNET_CIDR: is not a network: "10.0.0."'),
        ({"SECURED_SUBNET_CIDR": "10.0.0.0/40"}, 'SECURED_SUBNET_CIDR: is not a network: "10.0.0.0/40"'),
        ({"SOURCE_KIND": "files"}, 'SOURCE_KIND: must be static, file, command or ionos, not "files"'),
        ({"INVENTORY_FILE_PATH": ""}, "SOURCE_KIND: is required: one of static, file, command, ionos"),
        ({"INVENTORY_COMMAND": "/x"}, "SOURCE_KIND: is required: one of static, file, command, ionos"),
        ({"SOURCE_KIND": "command"}, "INVENTORY_COMMAND: is required: SOURCE_KIND is command"),
        ({"STORE_KIND": "etcd"}, 'STORE_KIND: must be memory or kubectl, not "etcd"'),
        ({"SOURCE_POLL_INTERVAL": "5"}, 'SOURCE_POLL_INTERVAL: is not a duration: "5" (such as 300ms, 30s or 1h30m)'),
        ({"SOURCE_POLL_INTERVAL": "48h"}, 'SOURCE_POLL_INTERVAL: must be at most 24h, not "48h"'),
        ({"HEALTH_CHECK_MODE": "grpc"}, 'HEALTH_CHECK_MODE: must be off, tcp or http, not "grpc"'),
        ({"HEALTH_CHECK_MODE": "http", "HEALTH_CHECK_PATH": "ready"}, "HEALTH_CHECK_PATH: "),
        ({"HEALTH_CHECK_MODE": "tcp", "HEALTH_CHECK_TIMEOUT": "2h"}, 'HEALTH_CHECK_TIMEOUT: is not between'),
        ({"TARGET_MANAGED_BY": "a b"}, "TARGET_MANAGED_BY: is not a label value"),
        (
            {"TARGET_MANAGED_BY": "endpointslice-controller.k8s.io"},
            "TARGET_MANAGED_BY: endpointslice-controller.k8s.io is Kubernetes' own and writes again what is deleted",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_variable(changed: dict[str, str], expected: str) -> None:
    """A mistake is reported with the name of its variable."""
    (found,) = mistakes(**changed)

    assert found.startswith(expected)


def test_all_mistakes_are_reported_together() -> None:
    """All mistakes are reported at once."""
    found = mistakes(TARGET_PORT="x", STORE_KIND="y", HEALTH_CHECK_MODE="z")

    assert [each.partition(":")[0] for each in found] == ["STORE_KIND", "TARGET_PORT", "HEALTH_CHECK_MODE"]
