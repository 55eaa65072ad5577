"""Generates the command line reference in Markdown from the commands themselves.

Run ``python -m hub.cli.reference`` in the repository's root to regenerate docs/reference/cli.md; a test fails while
it is out of date.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from hub.cli import COMMANDS, cli

_INTRO: Final = """\
# The command line

`hub`, `endpointslice-hub` and `python -m hub` are the same program. This page is generated from
the commands; `hub COMMAND --help` prints the same.

## Rules

- **Exit codes**

  | code | meaning |
  |---|---|
  | 0 | done; `plan`: nothing would change; `check`: no problem |
  | 1 | `plan`: something would change; `check`: the file has problems; others: the subject was not found |
  | 2 | wrong usage: unknown or contradicting options, an invalid argument, the name of an unknown cluster |
  | 3 | error: a file, a context, a permission, an API server |
  | 4 | a source is unknown, so the answer is incomplete |
  | 70 | a defect of the hub; `-v` shows the traceback |
  | 130 | interrupted, or not confirmed |

  If a source is unknown and there are changes too, the code is 4; the output covers the known sources. A cluster in
  `state: frozen` is unknown on purpose and does not affect the exit code.
- **Errors** are one line on stderr that starts with `Error: `. The output proper is
  on stdout.
- **Machine-readable output** (`-o json`, `-o yaml`) has `apiVersion: endpointslice-hub/v1` and a `kind`. Keys
  are added, never renamed or removed, within v1.
- **Colours** are used on a terminal only, and never where `NO_COLOR` is set.
- **Environment**: an option whose default is a variable `$ENDPOINTSLICE_HUB_…` takes it from there if it is not given.
  Several values have spaces between them. The chart sets these variables in the hub's Pods, so that
  `kubectl exec POD -- hub status` needs no options.
- **Durations** are Go-style: `300ms`, `30s`, `1h30m`.
- **Shell completion**: `eval "$(_HUB_COMPLETE=bash_source hub)"` in `~/.bashrc`; `zsh_source` and
  `fish_source` likewise. See
  [click's documentation](https://click.palletsprojects.com/en/stable/shell-completion/).

## Probes of `hub run`

`/healthz` (also `/livez`) returns 200 while the event loop runs. `/readyz` returns 200 while, in addition, the hub
cluster has been read and the hub is not shutting down. Otherwise they return 500. Neither depends on a remote cluster
or on the Lease: a standby is ready. `?verbose` lists the checks, as Kubernetes does.
"""


def text() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="hub")
    parts = [_INTRO]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None  # noqa: S101 - COMMANDS lists it
        parts += _sections(click.Context(command, info_name=name, parent=context))
    return "\n".join(parts).rstrip() + "\n"


def _sections(context: click.Context) -> Iterator[str]:
    """A command and its subcommands."""
    yield from _section(context)
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None  # noqa: S101 - the group lists it
            yield from _sections(click.Context(command, info_name=name, parent=context))


def _section(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {context.command_path}\n"
    yield f"    {context.command_path} {usage}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    options = [option for option in command.params if isinstance(option, click.Option)]
    if options:
        yield "| option | meaning | default |"
        yield "|---|---|---|"
        yield from (_row(option) for option in options)
        yield ""


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    value = _value(option)
    meaning, _, default = (option.help or "").partition(" [default: ")
    default = default.rstrip("]") or (f"`{option.default}`" if option.show_default else "")
    if option.envvar is not None:
        default = f"`${option.envvar}`" + (f", then {default}" if default else "")
    needed = " Required." if option.required else ""
    return f"| {names}{f' `{value}`' if value else ''} | {meaning}{needed} | {default} |"


def _value(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return "\\|".join(map(str, option.type.choices))
    return (option.metavar or "").replace("|", "\\|")


if __name__ == "__main__":
    Path("docs/reference/cli.md").write_text(text(), encoding="utf-8")
