"""What flags let a provider contact and run, and what it may measure: one set of rules for the hub and the test kit.

Not public: a provider meets these rules through its :class:`HubContext`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from hub.plugin.spec import Completed, TerminalProviderError, TransientProviderError
from hub.runtime import process

MEASURE: Final = re.compile(r"[a-z](?:_?[a-z0-9]){0,39}")
TAKEN: Final = frozenset(
    ("calls_total", "call_duration_seconds", "stalls_total", "stall_seconds_total", "suspended", "blocked_threads")
)
"""What the hub itself measures of every provider."""
ENDINGS: Final = ("_bucket", "_count", "_sum", "_created", "_info")
"""Of names that mean something else to Prometheus."""
MEASURES: Final = 20
"""Numbers one provider may show."""


def check_api_host(host: str, default: str, allowed: frozenset[str]) -> None:
    """Allow ``default`` and what ``--allow-api-host`` names: ``host``, or ``host:port``.

    Raises:
        TerminalProviderError: the host is not allowed.
    """
    asked, named = _host(host), {_host(each) for each in allowed}
    if asked != _host(default) and asked not in named and asked.rpartition(":")[0] not in named:
        raise TerminalProviderError(
            f"the hub may not contact {host!r}; start it with --allow-api-host {host} (default: {default})"
        )


def _host(text: str) -> str:
    return text.strip().rstrip(".").lower()


def check_program(program: str, allowed: frozenset[str]) -> str:
    """The absolute path to run for ``program``: named as it is by ``--allow-exec``, or by its last part.

    Raises:
        TerminalProviderError: it is not allowed.
    """
    if program.startswith("/") and program in allowed:
        return program
    if program and "/" not in program:
        named = sorted(path for path in allowed if Path(path).name == program and path != program)
        if named:
            return named[0]
    raise TerminalProviderError(f"the hub may not run {program!r}; start it with --allow-exec and its absolute path")


def check_measure(name: str, known: Collection[str]) -> None:
    """Allow a name for a number in the metrics, beside the ``known`` ones.

    Raises:
        TerminalProviderError: it is no name, or one too many.
    """
    if MEASURE.fullmatch(name) is None or len(name) > 40 or name in TAKEN or name.endswith(ENDINGS):
        raise TerminalProviderError(
            f"{name!r} is no name of a measure: lower case, digits and _, up to 40, not one of the hub's own"
        )
    if name not in known and len(known) >= MEASURES:
        raise TerminalProviderError(f"measure {name!r} is one too many: a provider shows {MEASURES}")


async def run_program(
    argv: Sequence[str],
    allowed: frozenset[str],
    *,
    stdin: bytes | None,
    env: Mapping[str, str] | None,
    timeout: float,  # noqa: ASYNC109 - about a process group, see hub.runtime.process
    stdout_limit: int,
    stderr_limit: int,
) -> Completed:
    """See :meth:`HubContext.run_program`."""
    if not argv:
        raise TerminalProviderError("no program to run")
    command = [check_program(argv[0], allowed), *argv[1:]]
    try:
        return await process.run_program(
            command, stdin=stdin, env=env or {}, timeout=timeout, stdout_limit=stdout_limit, stderr_limit=stderr_limit
        )
    except process.ProcessError as error:
        raise TransientProviderError(str(error)) from error
