"""The rules for providers: which hosts and programs the hub's flags allow, and how measures may be named.

The hub and the test kit share these rules. They are not public: a provider meets them through its :class:`HubContext`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from hub.plugin.spec import Completed, TerminalProviderError, TransientProviderError
from hub.runtime import process

MEASURE: Final = re.compile(r"[a-z](?:_?[a-z0-9]){0,39}")
RESERVED_NAMES: Final = frozenset(
    ("calls_total", "call_duration_seconds", "stalls_total", "stall_seconds_total", "suspended", "blocked_threads")
)
"""Names of the hub's own measures of every provider."""
ENDINGS: Final = ("_bucket", "_count", "_sum", "_created", "_info")
"""Suffixes to which Prometheus gives a meaning of its own."""
MEASURES: Final = 20
"""Most measures of one provider, which limits the number of metrics."""


def check_api_host(host: str, default: str, allowed: frozenset[str]) -> None:
    """Raise unless ``host`` is the default or named by ``--allow-api-host``, with or without its port.

    Raises:
        TerminalProviderError: the host is not allowed.
    """
    asked, named = _host(host), {_host(name) for name in allowed}
    if asked != _host(default) and asked not in named and asked.rpartition(":")[0] not in named:
        raise TerminalProviderError(
            f"the hub may not contact {host!r}; start it with --allow-api-host {host} (default: {default})"
        )


def _host(text: str) -> str:
    return text.strip().rstrip(".").lower()


def check_program(program: str, allowed: frozenset[str]) -> str:
    """Return the absolute path of a program that ``--allow-exec`` names.

    Args:
        program: an allowed path, or only the file name of an allowed path.
        allowed: the paths of ``--allow-exec``.

    Raises:
        TerminalProviderError: the program is not allowed.
    """
    if program.startswith("/") and program in allowed:
        return program
    if program and "/" not in program:
        named = sorted(path for path in allowed if Path(path).name == program and path != program)
        if named:
            return named[0]
    raise TerminalProviderError(f"the hub may not run {program!r}; start it with --allow-exec and its absolute path")


def check_measure(name: str, known: Collection[str]) -> None:
    """Raise unless a provider may add a measure of this name to its ``known`` ones.

    Raises:
        TerminalProviderError: the name is not valid, or the provider has too many measures.
    """
    if MEASURE.fullmatch(name) is None or len(name) > 40 or name in RESERVED_NAMES or name.endswith(ENDINGS):
        raise TerminalProviderError(
            f"{name!r} is not a valid name of a measure: lower case, digits and _, up to 40, not one of the hub's own"
        )
    if name not in known and len(known) >= MEASURES:
        raise TerminalProviderError(f"measure {name!r} is one too many: a provider may have {MEASURES}")


async def run_program(
    argv: Sequence[str],
    allowed: frozenset[str],
    *,
    stdin: bytes | None,
    env: Mapping[str, str] | None,
    timeout: float,  # noqa: ASYNC109 - for a process group, see hub.runtime.process
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
