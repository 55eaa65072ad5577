"""The reference of the command line in Markdown, from the commands themselves.

``python -m hub.cli.reference`` in the repository's root writes docs/reference/cli.md anew; a test holds it
current.
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

`hub` and `endpointslice-hub` are the same program; `python -m hub` is it too. This page is generated from
the commands; `hub COMMAND --help` says the same.

## Rules

- **Exit codes**

  | code | meaning |
  |---|---|
  | 0 | done; nothing found |
  | 1 | `plan`: something would change; `check`: the file has problems; `why`: nobody knows it |
  | 2 | a source is unknown, so that the answer is incomplete; also a wrong flag or argument |
  | 3 | error: a file, a context, a permission, an API server |
  | 70 | a defect of the hub; `-v` shows the traceback |
  | 130 | interrupted, or not confirmed |

  An unknown source wins over changes: what is printed is what can be said without it. A cluster in
  `state: frozen` is unknown on purpose and changes no exit code.
- **Errors** are one line on stderr that starts with `Error: `. What a command prints for others to read is
  on stdout.
- **Machine-readable output** (`-o json`, `-o yaml`) has `apiVersion: endpointslice-hub/v1` and a `kind`. Keys
  are added, never renamed or removed, within v1.
- **Colours** are used on a terminal only, and never where `NO_COLOR` is set.
- **Durations** are Go-style: `300ms`, `30s`, `1h30m`.
- **Shell completion**: `eval "$(_HUB_COMPLETE=bash_source hub)"` in `~/.bashrc`; `zsh_source` and
  `fish_source` likewise. It is click's own:
  [its documentation](https://click.palletsprojects.com/en/stable/shell-completion/) says more.

## Probes of `hub run`

`/healthz` (also `/livez`) is 200 while the event loop beats, `/readyz` while also the hub cluster is known and
nobody asked the hub to stop; 500 otherwise. Neither looks at a remote cluster or at the Lease: a standby is
ready. `?verbose` lists the checks, as Kubernetes does.
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
    """A command, and those below it."""
    yield from _section(context)
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None  # noqa: S101 - it lists it
            yield from _sections(click.Context(command, info_name=name, parent=context))


def _section(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {context.command_path}\n"
    yield f"    {context.command_path} {usage}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        yield "| option | meaning | default |"
        yield "|---|---|---|"
        yield from (_row(each) for each in options)
        yield ""


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    value = _value(option)
    meaning, _, default = (option.help or "").partition(" [default: ")
    default = default.rstrip("]") or (f"`{option.default}`" if option.show_default else "")
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
