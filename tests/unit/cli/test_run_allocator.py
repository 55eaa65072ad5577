"""The addresses, the Lease and the mode of ``hub run --from-allocator-env``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from click.testing import CliRunner

from hub.app.hub import Options
from hub.cli import cli
from hub.cli.environment import Environment
from hub.cli.importers.allocator import KNOWN
from hub.cli.options import BindAddress

DEFAULTS: Final[Mapping[str, Any]] = {
    "probes": BindAddress(None, 8080),
    "metrics": BindAddress(None, 9999),
    "lease": "ip-address-controller-leader",
    "seconds": 60.0,
    "renew": 10.0,
}
"""What ip-address-controller has without any variable: its ports are open on all interfaces."""
SECONDS: Final = "--leader-elect-lease-duration"


def served(patch: pytest.MonkeyPatch, *options: str, **variables: str) -> Mapping[str, Any]:
    """With what the hub is started by these options in this environment."""
    found: dict[str, Any] = {}

    async def serve(
        environment: Environment,
        make_options: Callable[[], Options],
        probes: BindAddress | None,
        metrics: BindAddress | None,
        *_: object,
    ) -> int:
        made = make_options()
        found.update(probes=probes, metrics=metrics, lease=made.lease, seconds=made.timing.duration)
        found.update(renew=made.timing.renew_deadline, content=environment.content)
        return 0

    patch.setattr("hub.cli.run.serve", serve)
    for name in KNOWN:
        patch.delenv(name, raising=False)
    for name, text in variables.items():
        patch.setenv(name, text)
    result = CliRunner().invoke(cli, ["run", "--from-allocator-env", *options])
    assert result.exit_code == 0, result.output
    return found


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {}),
        ({"LEASE_NAME": "ips", "LEASE_DURATION": "7"}, {"lease": "ips", "seconds": 7.0, "renew": 7 * 2 / 3}),
        ({"METRICS_PORT": "9100"}, {"metrics": BindAddress(None, 9100)}),
    ],
    ids=str,
)
def test_defaults_are_those_of_ip_address_controller(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], expected: Mapping[str, Any]
) -> None:
    """Probes on 8080 and metrics on 9999 of all interfaces, its Lease for 60 s; its variables change the latter two."""
    found = served(monkeypatch, **variables)
    assert {name: found[name] for name in DEFAULTS} == {**DEFAULTS, **expected}
    assert b"mode: enforce" in found["content"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--health-probe-bind-address", "127.0.0.1:1"), {"probes": BindAddress("127.0.0.1", 1)}),
        (("--health-probe-bind-address", "0", "--metrics-bind-address", "0"), {"probes": None, "metrics": None}),
        (("--leader-elect-resource-name", "mine"), {"lease": "mine"}),
        ((SECONDS, "30s"), {"seconds": 30.0}),
    ],
    ids=str,
)
def test_options_count_more_than_the_environment(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], expected: Mapping[str, Any]
) -> None:
    """An address, a Lease or a duration that is given as an option is used."""
    found = served(monkeypatch, *options)
    assert {name: found[name] for name in DEFAULTS} == {**DEFAULTS, **expected}
