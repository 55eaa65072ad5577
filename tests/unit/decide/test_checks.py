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


def test_defaults_of_a_check_are_those_of_the_policy() -> None:
    """A check without further keys equals the one of a policy without further keys, in every mode."""
    for mode in ("tcp", "http", "https", "grpc", "grpcs"):
        assert check_of(HealthPolicy(mode), 443) == Check(mode, 443)


def test_unused_keys_do_not_separate_checks() -> None:
    """Policies that differ only in keys that the mode ignores share one check."""
    tcp, http = HealthPolicy("tcp"), HealthPolicy("http")
    assert check_of(replace(tcp, path="/x", on_fail="remove"), 1) == check_of(tcp, 1)
    assert check_of(replace(http, ca="/ca.pem", insecure=True), 1) == check_of(http, 1)
    assert check_of(replace(http, path="/x"), 1) != check_of(http, 1)
    assert check_of(replace(HealthPolicy("https"), ca="/ca.pem"), 1) != check_of(HealthPolicy("https"), 1)
    grpc, grpcs = HealthPolicy("grpc"), HealthPolicy("grpcs")
    assert check_of(replace(grpc, path="/x", method="HEAD", status=((200, 200),), ca="/ca.pem"), 1) == check_of(grpc, 1)
    assert check_of(replace(grpcs, host="h", grpc_service="s", server_name="n", insecure=True), 1) == Check(
        "grpcs", 1, host="h", grpc_service="s", server_name="n", insecure=True
    )
    assert check_of(replace(HealthPolicy("http"), grpc_service="s"), 1) == check_of(http, 1)


def test_short_form_of_a_check() -> None:
    """The short form has the path or the service, unless the mode has none."""
    checks = [Check("tcp", 80), Check("http", 80), Check("https", 443, path="/healthz"), Check("grpc", 50)]
    assert list(map(str, checks)) == ["tcp :80", "http :80/", "https :443/healthz", "grpc :50"]
    assert str(Check("grpcs", 50, grpc_service="shop.v1.Cart")) == "grpcs :50 shop.v1.Cart"


def test_a_verdict_starts_from_the_slice() -> None:
    """The starting verdict follows the published conditions, and is None for a new address."""
    assert starting_verdict(build.endpoint()) is True
    assert starting_verdict(build.endpoint(conditions=DRAINING)) is True
    assert starting_verdict(build.endpoint(conditions=FAILED)) is False
    assert starting_verdict(None) is None
