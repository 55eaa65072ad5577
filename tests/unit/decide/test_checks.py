"""From a health policy to a check."""

from __future__ import annotations

from msgspec.structs import replace

from hub.decide.checks import Check, check_of, starting_verdict
from hub.model import DRAINING, FAILED
from hub.registry.spec import HealthPolicy
from tests.support import build


def test_off_asks_for_nothing() -> None:
    """The default policy has no check."""
    assert check_of(HealthPolicy(), 443) is None


def test_the_policys_own_port_wins() -> None:
    """The policy's port takes precedence over the published one."""
    assert check_of(HealthPolicy("tcp"), 443) == Check("tcp", 443)
    assert check_of(HealthPolicy("tcp", port=80), 443) == Check("tcp", 80)


def test_unused_keys_do_not_separate_checks() -> None:
    """Policies that differ only in keys that the mode ignores share one check."""
    tcp, http = HealthPolicy("tcp"), HealthPolicy("http")
    assert check_of(replace(tcp, path="/x", on_fail="remove"), 1) == check_of(tcp, 1)
    assert check_of(replace(http, ca="/ca.pem", insecure=True), 1) == check_of(http, 1)
    assert check_of(replace(http, path="/x"), 1) != check_of(http, 1)
    assert check_of(replace(HealthPolicy("https"), ca="/ca.pem"), 1) != check_of(HealthPolicy("https"), 1)


def test_a_verdict_starts_from_the_slice() -> None:
    """The starting verdict follows the published conditions, and is None for a new address."""
    assert starting_verdict(build.endpoint()) is True
    assert starting_verdict(build.endpoint(conditions=DRAINING)) is True
    assert starting_verdict(build.endpoint(conditions=FAILED)) is False
    assert starting_verdict(None) is None
