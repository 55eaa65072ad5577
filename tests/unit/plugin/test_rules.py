"""The rules for what a provider may do."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from hub.plugin.rules import MEASURES, RESERVED_NAMES, check_api_host, check_measure, check_program, run_program
from hub.plugin.spec import TerminalProviderError, TransientProviderError


def refusal(check: Callable[..., object], *arguments: object) -> str:
    """The error of a check; "" if it has none."""
    try:
        check(*arguments)
    except TerminalProviderError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "host", ["api.test", "API.test.", "other.test", "other.test:8443", " Other.Test. ", "port.test:443", "[fd00::1]:9"]
)
def test_default_and_named_hosts_are_allowed(host: str) -> None:
    """The default host and the hosts of ``--allow-api-host`` are allowed; a name without a port allows every port."""
    named = frozenset(("other.test", "Port.test:443", "[fd00::1]"))

    assert refusal(check_api_host, host, "api.test", named) == ""


@pytest.mark.parametrize("host", ["evil.test", "port.test", "port.test:444", "api.test:443", "a.other.test", ""])
def test_other_hosts_are_refused(host: str) -> None:
    """Any other host is refused with the option that allows it."""
    assert refusal(check_api_host, host, "api.test", frozenset(("other.test", "port.test:443"))) == (
        f"the hub may not contact {host!r}; start it with --allow-api-host {host} (default: api.test)"
    )


@pytest.mark.parametrize(
    ("program", "path"),
    [("/usr/bin/tool", "/usr/bin/tool"), ("tool", "/opt/tool"), ("relative", "/bin/relative")],
)
def test_allowed_program_has_an_absolute_path(program: str, path: str) -> None:
    """A path of ``--allow-exec``, or its file name, gives that path; of several, the first in order."""
    allowed = frozenset(("/usr/bin/tool", "/opt/tool", "relative", "/bin/relative"))

    assert check_program(program, allowed) == path


@pytest.mark.parametrize("program", ["", "sh", "/bin/sh", "relative", "bin/tool", "./tool"])
def test_other_programs_are_refused(program: str) -> None:
    """A program that is not named, and a relative path, are refused."""
    allowed = frozenset(("/bin/tool", "relative", "bin/tool", "/"))

    assert refusal(check_program, program, allowed) == (
        f"the hub may not run {program!r}; start it with --allow-exec and its absolute path"
    )


async def test_run_program_runs_only_allowed_programs() -> None:
    """An allowed program gets the arguments; no program, another one, and one that cannot start are errors."""
    limits = {"timeout": 20.0, "stdout_limit": 100, "stderr_limit": 100}
    argv = ["/bin/sh", "-c", 'echo "$1 $NAME"; exit 3', "sh", "one"]

    async def run(argv: list[str], env: dict[str, str] | None = None) -> tuple[int, bytes]:
        allowed = frozenset(("/bin/sh", "/no/program"))
        done = await run_program(argv, allowed, stdin=None, env=env, **limits)  # type: ignore[arg-type]
        return done.exit_code, done.stdout

    assert await run(argv, {"NAME": "two"}) == (3, b"one two\n")
    assert await run(["sh", *argv[1:]]) == (3, b"one \n")
    with pytest.raises(TerminalProviderError, match=r"^no program to run$"):
        await run([])
    with pytest.raises(TerminalProviderError, match="the hub may not run"):
        await run([sys.executable])
    with pytest.raises(TransientProviderError, match="program"):
        await run(["/no/program"])


@pytest.mark.parametrize("name", ["c", "nodes_total", "x" * 40, "a_" * 19 + "ab"])
def test_valid_name_of_a_measure_is_accepted(name: str) -> None:
    """Lower case letters, digits and single underscores are accepted, up to 40 characters."""
    assert refusal(check_measure, name, ()) == ""


@pytest.mark.parametrize(
    "name", ["", "Calls", "a__b", "x" * 41, "a_" * 20 + "a", "calls_total_count", *sorted(RESERVED_NAMES)]
)
def test_invalid_name_of_a_measure_is_refused(name: str) -> None:
    """A name that is no valid name of a metric, or that the hub or the format uses, is refused."""
    with pytest.raises(TerminalProviderError, match="is not a valid name of a measure"):
        check_measure(name, ())


def test_number_of_measures_is_bounded() -> None:
    """A provider may have 20 measures, and may add a known one again."""
    known = [f"m{number}" for number in range(20)]
    check_measure("m3", known)
    check_measure("m19", known[:-1])
    with pytest.raises(TerminalProviderError, match=f"one too many: a provider may have {MEASURES}"):
        check_measure("m20", known)
