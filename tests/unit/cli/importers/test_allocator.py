"""The registry from the environment of ip-address-controller."""

from __future__ import annotations

import pytest

from hub.cli.importers.allocator import build
from hub.cli.importers.variables import Variables
from hub.errors import HubError
from hub.registry.load import loads


def test_an_empty_environment_has_the_controllers_defaults() -> None:
    """Without variables, Lease, duration and port are those of the controller, and any address may be claimed."""
    found = build(Variables({}), enforce=True)
    assert (found.lease, found.lease_seconds, found.metrics_port) == ("ip-address-controller-leader", 60, 9999)
    spec = loads(found.document.text.encode(), "f").registry.allocations
    assert spec is not None
    assert spec.enforce
    assert spec.interlock is None
    assert [str(network) for network in spec.accounts["gcp"].addresses] == ["0.0.0.0/0"]


def test_the_printed_registry_observes_behind_the_old_lease() -> None:
    """The text that a person reviews observes, and waits for the Lease that the controller renews."""
    found = build(Variables({"LEASE_NAME": "mine"}, namespace="tools"))
    spec = loads(found.document.text.encode(), "f").registry.allocations
    assert spec is not None
    assert not spec.enforce
    assert str(spec.interlock) == "tools/mine"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LEASE_DURATION", "2", "LEASE_DURATION: must be 3 to 3600 seconds, not 2"),
        ("LEASE_DURATION", "abc", 'LEASE_DURATION: must be a whole number, not "abc"'),
        ("METRICS_PORT", "0", "METRICS_PORT: must be a port, not 0"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, message: str) -> None:
    """A value that the hub cannot use is an error with the name of its variable."""
    with pytest.raises(HubError) as error:
        build(Variables({name: value}))
    assert str(error.value) == message


def test_variables_that_the_hub_does_not_know_are_named() -> None:
    """A variable of a manifest that the hub does not use is named in a comment."""
    text = build(Variables({"CLUSTER_NAME": "a", "OTHER": "b"}, declared=True)).document.text
    assert "# not used: OTHER" in text
