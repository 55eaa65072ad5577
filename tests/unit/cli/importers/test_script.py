"""The import of the inventory script's variables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hub.cli.importers.script import build
from hub.cli.importers.variables import Reference, Variables
from hub.errors import HubError
from hub.model import TargetKey
from hub.registry.load import loads
from hub.registry.spec import ClusterSpec, KubeconfigPath
from tests.support.registry import strict

DATACENTER = "0b6a1d3e-0000-4000-8000-000000000001"
BASE = {
    "IONOS_TOKEN": "very-secret",
    "IONOS_DATACENTER_ID": DATACENTER,
    "IONOS_PRIVATE_LAN_ID": "2",
    "SECURED_KUBECONFIG": "/etc/secured/kubeconfig",
}


def text(**changed: str) -> str:
    """The printed registry; "" unsets a variable, except for the prefix."""
    return build(Variables({k: v for k, v in {**BASE, **changed}.items() if v or k == "SECURED_SUBNET_PREFIX"})).text


def cluster(**changed: str) -> ClusterSpec:
    """The one cluster of the registry, loaded without any problem."""
    return strict(loads(text(**changed).encode(), "f")).clusters["secured"]


def config(**changed: str) -> Any:
    """The configuration of the provider."""
    provider = cluster(**changed).provider
    assert provider is not None
    assert provider.name == "ionos"
    return json.loads(provider.config)


def test_the_scripts_defaults() -> None:
    """The default prefix becomes a network, and the token is printed as a reference."""
    found = cluster()

    assert config() == {"datacenters": [DATACENTER], "lan": 2, "token": {"env": "IONOS_TOKEN"}, "families": ["IPv4"]}
    assert found.kubeconfig == KubeconfigPath("/etc/secured/kubeconfig")
    assert [str(each) for each in found.allowed_cidrs] == ["10.0.0.0/24"]
    assert "very-secret" not in text()


def test_provider_accepts_the_printed_configuration() -> None:
    """The provider's own model accepts the printed configuration."""
    model = pytest.importorskip("hub_provider_ionos.config").IonosConfig

    both = {"IONOS_API_URL": "https://api.example.com", "IONOS_CONTRACT_NUMBER": "7", "SOURCE_POLL_INTERVAL": "2h"}
    basic = {"IONOS_TOKEN": "", "IONOS_USERNAME": "me", "IONOS_PASSWORD": "very-secret"}

    assert model.model_validate(config(**both)).contract_number == 7
    assert model.model_validate(config(**basic)).username == "me"
    assert "very-secret" not in text(**basic)


def test_options_of_the_script() -> None:
    """A context, a prefix that ends inside a number, and another API URL are converted."""
    found = cluster(SECURED_KUBECTL_CONTEXT="admin", SECURED_SUBNET_PREFIX="10.1")

    assert found.kubeconfig == KubeconfigPath("/etc/secured/kubeconfig", "admin")
    assert "10.1.0.0/16" in [str(each) for each in found.allowed_cidrs]
    assert "10.100.0.0/14" in [str(each) for each in found.allowed_cidrs]
    assert "--allow-api-host api.example.com" in text(IONOS_API_URL="https://api.example.com/cloudapi/v6")


def test_an_empty_prefix_is_every_address() -> None:
    """An empty prefix allows every address; it is not the default."""
    assert [str(each) for each in cluster(SECURED_SUBNET_PREFIX="").allowed_cidrs] == ["0.0.0.0/0"]


def test_unresolved_prefix_is_an_error() -> None:
    """A prefix whose value is not in the manifest is an error, not the default."""
    found = Variables(BASE, {"SECURED_SUBNET_PREFIX": Reference()}, declared=True)

    with pytest.raises(HubError, match="SECURED_SUBNET_PREFIX: its value is not in the manifest"):
        build(found)


def test_the_controllers_network_counts_too() -> None:
    """Only networks that both the prefix and SECURED_SUBNET_CIDR contain are allowed."""
    found = cluster(SECURED_SUBNET_PREFIX="10.0.", SECURED_SUBNET_CIDR="10.0.7.0/24")

    assert [str(each) for each in found.allowed_cidrs] == ["10.0.7.0/24"]


def test_unread_sources_are_listed_at_the_top() -> None:
    """A comment at the top names sources of variables that were not read."""
    found = build(Variables(BASE, declared=True, unread=["ConfigMap settings"])).text

    assert "# NOT READ: ConfigMap settings (envFrom)" in found.partition("version: 1")[0]


def test_the_controllers_service_is_printed_where_it_is_known() -> None:
    """With the controller's variables, its Service is printed too."""
    more = {"TARGET_NAMESPACE": "edge", "TARGET_SERVICE_NAME": "payments", "TARGET_PORT": "30443"}
    found = strict(loads(text(**more).encode(), "f"))

    assert found.targets[TargetKey("edge", "payments")].sources[0].cluster == "secured"
    assert found.owner == "edge.payments"


def test_a_missing_managed_by_is_commented_on() -> None:
    """Without TARGET_MANAGED_BY, a comment at the top says that the controller's slices are not replaced."""
    more = {"TARGET_NAMESPACE": "edge", "TARGET_SERVICE_NAME": "payments", "TARGET_PORT": "30443"}

    assert "# TARGET_MANAGED_BY is not set" in text(**more).partition("version: 1")[0]
    assert "TARGET_MANAGED_BY" not in text(**more, TARGET_MANAGED_BY="old")
    assert "TARGET_MANAGED_BY" not in text()


def test_unused_variables_are_listed_at_the_top() -> None:
    """A comment at the top names declared variables that are neither the script's nor the controller's."""
    found = build(Variables({**BASE, "FOO_BAR": "hidden", "STORE_KINDS": "hidden"}, declared=True)).text

    assert "# not used: FOO_BAR, STORE_KINDS\n" in found.partition("version: 1")[0]
    assert "hidden" not in found


def test_a_network_outside_the_default_prefix_names_the_missing_variable() -> None:
    """If only the network is set, the error names the prefix and its default; a prefix that is set is no default."""
    network = "SECURED_SUBNET_CIDR"

    with pytest.raises(HubError, match="the default of SECURED_SUBNET_PREFIX, which is not set"):
        text(**{network: "10.7.0.0/24"})
    with pytest.raises(HubError) as caught:
        text(**{network: "10.7.0.0/24", "SECURED_SUBNET_PREFIX": "10.8."})
    assert "default" not in str(caught.value)


def test_a_token_in_a_secret_stays_there() -> None:
    """A token from a Secret becomes a reference to the same Secret."""
    variables = Variables({**BASE, "IONOS_TOKEN": ""}, {"IONOS_TOKEN": Reference("ionos", "token")}, declared=True)
    provider = strict(loads(build(variables).text.encode(), "f")).clusters["secured"].provider

    assert provider is not None
    assert json.loads(provider.config)["token"] == {"secret": "ionos", "key": "token"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"IONOS_TOKEN": ""}, "IONOS_TOKEN: is required, or IONOS_USERNAME and IONOS_PASSWORD"),
        ({"IONOS_TOKEN": "", "IONOS_USERNAME": "me"}, "IONOS_PASSWORD: is required: IONOS_USERNAME is set"),
        ({"IONOS_DATACENTER_ID": "../x"}, 'IONOS_DATACENTER_ID: must be a UUID, not "../x"'),
        ({"IONOS_PRIVATE_LAN_ID": "private"}, 'IONOS_PRIVATE_LAN_ID: must be a whole number, not "private"'),
        ({"IONOS_PRIVATE_LAN_ID": "0"}, "IONOS_PRIVATE_LAN_ID: must be at least 1, not 0"),
        ({"SECURED_KUBECONFIG": ""}, "SECURED_KUBECONFIG: is required: the kubeconfig of the remote cluster"),
        ({"SECURED_SUBNET_PREFIX": "10.0.0.0/24"}, "SECURED_SUBNET_PREFIX: no IPv4 address starts with '10.0.0.0/24'"),
        ({"SECURED_SUBNET_CIDR": "10.9.0.0/16"}, 'SECURED_SUBNET_CIDR: has no address that starts with "10.0.0."'),
    ],
)
def test_a_mistake_is_named_by_its_variable(changed: dict[str, str], expected: str) -> None:
    """A mistake is reported with the name of its variable."""
    with pytest.raises(HubError) as caught:
        text(**changed)

    assert str(caught.value).startswith(expected)
    assert "; " not in str(caught.value)
