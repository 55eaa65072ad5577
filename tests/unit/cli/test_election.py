"""The options of the election."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from hub.cli import cli
from hub.cli.election import Election, leader_election
from hub.election.elector import Timing


def given(*arguments: str) -> Election:
    """The values of the election's options for these flags."""
    found: list[Election] = []

    @click.command()
    @leader_election
    def command(**values: object) -> None:
        found.append(Election.of(values))
        found[0].timing()

    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_election_defaults_are_those_of_kubernetes() -> None:
    """The defaults are 15 s, 10 s and 2 s, with election."""
    election = given()
    assert (election.wanted, election.timing()) == (True, Timing())
    assert (Timing().duration, Timing().renew_deadline, Timing().retry) == (15, 10.0, 2.0)


def test_election_can_be_switched_off() -> None:
    """--leader-elect=false switches the election off."""
    assert not given("--leader-elect=false").wanted


def test_flags_are_kube_controller_managers() -> None:
    """The flags are those of kube-controller-manager; a short deadline also limits each call."""
    election = given(
        *("--leader-elect-lease-duration", "4s", "--leader-elect-renew-deadline", "2s"),
        *("--leader-elect-retry-period", "300ms", "--leader-elect-resource-name", "other"),
    )
    assert election.timing() == Timing(4, 2.0, 0.3, call=1.0)
    assert election.leader_elect_resource_name == "other"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--leader-elect-lease-duration", "2s"), "lease-duration must be whole seconds, more than 2s"),
        (("--leader-elect-lease-duration", "15500ms"), "lease-duration must be whole seconds"),
        (("--leader-elect-lease-duration", "2h"), "at most 1h"),
        (
            ("--leader-elect-renew-deadline", "14s"),
            (
                "renew-deadline (14s) must be at least 2s less than --leader-elect-lease-duration (15s, the default): "
                "give a renew deadline of at most 13s, or a lease duration of at least 16s"
            ),
        ),
        (
            ("--leader-elect-lease-duration", "9s"),
            (
                "renew-deadline (10s, the default) must be at least 2s less than --leader-elect-lease-duration (9s): "
                "give a renew deadline of at most 7s, or a lease duration of at least 12s"
            ),
        ),
        (("--shards", "0"), "0 is not in the range 1<=x<=64"),
        (("--leader-elect-retry-period", "9s"), "retry-period (9s) must be more than 0 and, times 1.2, less than"),
        (("--leader-elect-retry-period", "0s"), "retry-period (0s) must be more than 0"),
        (("--leader-elect-resource-name", "a/b"), "--leader-elect-resource-name"),
    ],
)
def test_times_that_do_not_fit_together_are_refused(arguments: tuple[str, ...], names: str) -> None:
    """Times that do not fit together are refused, with the name of the wrong flag."""
    with pytest.raises(click.UsageError) as caught:
        given(*arguments)
    assert names in caught.value.format_message()


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--once", "cannot be combined with --shards"),
        ("--leader-elect=false", "needs leader"),
    ],
)
def test_shards_are_refused_without_election_and_with_once(flag: str, said: str) -> None:
    """--shards is refused without an election and with --once."""
    result = CliRunner().invoke(cli, ["run", "--registry", "nosuch", "--shards", "3", flag])
    assert (result.exit_code, said in result.output) == (2, True), result.output


def test_namespace_of_the_lease_has_kubernetes_name_too() -> None:
    """--leader-elect-resource-namespace is the same as --lease-namespace."""
    result = CliRunner().invoke(cli, ["run", "--registry", "nosuch", "--leader-elect-resource-namespace", "No"])
    assert "--leader-elect-resource-namespace" in result.output
    assert result.exit_code == 2
