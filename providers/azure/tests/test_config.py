"""The configuration, the ids of nodes, and what registering the provider costs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hub_provider_azure import AzureConfig, hub_register_providers
from hub_provider_azure.ids import INTERFACE, VIRTUAL_MACHINE, checked, interface_of
from pydantic import ValidationError

SUBSCRIPTION = "10000000-0000-4000-8000-000000000001"
PRINCIPAL: dict[str, Any] = {"tenantId": "contoso.example", "clientId": SUBSCRIPTION, "clientSecret": {"env": "S"}}
GOOD: dict[str, Any] = {"subscription": SUBSCRIPTION, "credentials": {"workloadIdentity": True}}
MACHINE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/MC_a(b)/providers/Microsoft.Compute/virtualMachines/aks-1"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"credentials": PRINCIPAL},
        {"credentials": {"managedIdentity": {}}},
        {"credentials": {"managedIdentity": {"clientId": SUBSCRIPTION}}},
        {"resourceGroups": ["a", "b.c_d-(e)"]},
        {"endpoint": "https://management.usgovcloudapi.net/", "authority": "https://login.microsoftonline.us"},
        {"endpoint": "http://127.0.0.1:8080"},
    ],
)
def test_config_accepts_documented_forms(changes: dict[str, Any]) -> None:
    """Every form of the README is accepted, and a URL loses its last slash."""
    config = AzureConfig.model_validate(GOOD | changes)
    assert not config.endpoint.endswith("/")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"subscription": "prod"}, "subscription"),
        ({"resourceGroups": ["../x"]}, "resourceGroups"),
        ({"resourceGroups": ["a", "A"]}, "names a resource group twice"),
        ({"resourcegroups": ["a"]}, "Extra inputs"),
        ({"credentials": {}}, "exactly one"),
        ({"credentials": {"workloadIdentity": False}}, "workloadIdentity"),
        ({"credentials": {"workloadIdentity": True, "managedIdentity": {}}}, "exactly one"),
        ({"credentials": {"workloadIdentity": True, "clientId": SUBSCRIPTION}}, "exactly one"),
        ({"credentials": {"tenantId": "t", "clientId": SUBSCRIPTION}}, "needs tenantId, clientId and clientSecret"),
        ({"credentials": PRINCIPAL | {"clientSecret": "s3cr3t"}}, "where the secret is"),
        ({"endpoint": "http://management.azure.com"}, "must be https"),
        ({"endpoint": "https://management.azure.com/path"}, "without a path"),
        ({"authority": "https://user@login.example"}, "without a path"),
    ],
)
def test_config_refuses_mistakes(changes: dict[str, Any], text: str) -> None:
    """A mistake is refused with its place, and a secret is not accepted in the place of a reference."""
    with pytest.raises(ValidationError, match=text):
        AzureConfig.model_validate(GOOD | changes)


def test_id_is_compared_in_lower_case() -> None:
    """Azure writes ids in varying case; the checked id is in lower case."""
    assert checked(MACHINE, VIRTUAL_MACHINE, SUBSCRIPTION) == MACHINE.lower()


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        MACHINE + "/",
        MACHINE.replace("MC_a(b)", ".."),
        MACHINE.replace("MC_a(b)", "a/../b"),
        MACHINE.replace("aks-1", "a%2f"),
        MACHINE.replace(SUBSCRIPTION, "1" + SUBSCRIPTION[1:-1] + "2"),
        MACHINE.replace("aks", "a\u212as"),
        MACHINE + "x" * 10_000,
    ],
)
def test_id_of_another_form_is_refused(text: object) -> None:
    """An id that is not exactly of this kind and subscription is "", so that it cannot become part of a URL."""
    assert checked(text, VIRTUAL_MACHINE, SUBSCRIPTION) == ""
    assert checked(MACHINE, INTERFACE, SUBSCRIPTION) == ""


def test_interface_is_found_by_its_ip_configuration() -> None:
    """Only the IP configuration of a network interface leads to one."""
    interface = f"/subscriptions/{SUBSCRIPTION}/resourcegroups/g/providers/microsoft.network/networkinterfaces/n"
    assert interface_of(f"{interface}/ipconfigurations/c", SUBSCRIPTION) == interface
    assert interface_of(f"{interface}/ipconfigurations/../c", SUBSCRIPTION) == ""
    balancer = interface.replace("networkinterfaces", "loadbalancers")
    assert interface_of(f"{balancer}/frontendipconfigurations/c", SUBSCRIPTION) == ""


def test_registering_imports_no_library() -> None:
    """The hook declares the type without the login library, aiohttp or the fake."""
    (type_,) = hub_register_providers()
    assert type_.name == "azure"
    assert type_.addresses is not None
    code = (
        "import sys, hub_provider_azure as p; list(p.hub_register_providers()); "
        "print([m for m in ('azure', 'aiohttp', 'hub_provider_azure.testing') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
