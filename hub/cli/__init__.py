"""The command line: ``hub COMMAND``.

A command's module is imported when the command is used, and it imports heavy modules only when it runs, so that
``hub --help`` and shell completion stay fast. Every user error is reported as one line on stderr and an
exit code of :class:`hub.cli.exits.Exit`; a traceback is shown only for a defect, and only with ``-v``.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from keyword import iskeyword
from typing import Any, Final, NoReturn

import click

from hub import __version__
from hub.cli.exits import GRACE, Exit, exit_within
from hub.cli.options import Settings
from hub.cli.render import one_line
from hub.errors import HubError, RegistryError, UsageError, did_you_mean

COMMANDS: Final = {
    "run": "hub.cli.run",
    "cloud-controller": "hub.cli.cloud_controller",
    "check": "hub.cli.check",
    "plan": "hub.cli.plan",
    "status": "hub.cli.status",
    "nodes": "hub.cli.nodes",
    "allocations": "hub.cli.allocations",
    "balancers": "hub.cli.balancers",
    "why": "hub.cli.why",
    "history": "hub.cli.history",
    "cluster": "hub.cli.cluster",
    "endpoints": "hub.cli.endpoints",
    "approve": "hub.cli.operate",
    "pause": "hub.cli.operate",
    "resume": "hub.cli.operate",
    "purge": "hub.cli.operate",
    "import": "hub.cli.imports",
    "providers": "hub.cli.providers",
    "plugin": "hub.cli.plugin",
    "schema": "hub.cli.about",
    "version": "hub.cli.about",
    "demo": "hub.cli.demo",
}
"""Command name -> module that holds a click command of that name; in the order of the help."""


class StdoutClosed(Exception):
    """The process that read our stdout closed it."""


class Cli(click.Group):
    """The group of all commands, each loaded when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        # A command named like a Python keyword ("import") is a function with an underscore after its name.
        command: click.Command = getattr(module, f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or suggest the closest name: click itself suggests imported commands only."""
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        hint = did_you_mean(name, COMMANDS)
        raise click.UsageError(f"No such command {name!r}{f'; {hint}' if hint else ''}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Hide a closed pipe from click, which would exit with code 1: here that means "changes"."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise StdoutClosed from error

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command and exit; the only place that turns errors into exit codes."""
        settings = Settings()
        extra["standalone_mode"] = False
        extra["obj"] = settings
        _never_fail_to_print()
        try:
            code = super().main(*args, **extra)
            click.echo(nl=False)  # flushes; there is no sys.stdout where the shell has closed it
        except Exception as error:  # noqa: BLE001 - the last resort
            code = _failed(error, verbose=settings.verbose > 0)
        except KeyboardInterrupt:
            code = Exit.INTERRUPTED
        sys.exit(int(code) if isinstance(code, int) else Exit.OK)


@click.group(
    cls=Cli,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "auto_envvar_prefix": None},
)
@click.version_option(__version__, message="endpointslice-hub %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """EndpointSlice Hub: Services of one cluster, nodes of many.

    Keeps selector-less Services of the hub cluster pointing at the nodes of the remote clusters listed in
    clusters.yaml.

    Exit codes: 0 ok, 1 changes or problems found, 2 wrong usage, 3 error, 4 the answer is incomplete because a source
    is unknown.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> NoReturn:
    """Entry point of the scripts ``hub`` and ``endpointslice-hub``."""
    # The kernel ignores signals without a handler for process 1 of a container; `hub run` sets its own handler later.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        cli.main()
    except SystemExit as end:
        exit_within(GRACE, end.code if isinstance(end.code, int) else Exit.DEFECT)
        raise


def _failed(error: BaseException, *, verbose: bool) -> int:
    """Print what went wrong on one line; return the exit code."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case click.exceptions.Abort() | KeyboardInterrupt():
            return Exit.INTERRUPTED
        case StdoutClosed() | BrokenPipeError():
            # Buffered output has no reader: keep the interpreter from trying to flush it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.BROKEN_PIPE
        case click.UsageError():
            return _misused(error)
        case click.ClickException():
            _say(error.format_message())
        case HubError() | OSError():
            _explain(error)
        case _:
            return _defect(error, verbose=verbose)
    if verbose:
        _traceback(error)
    return Exit.USAGE if isinstance(error, UsageError) else Exit.ERROR


def _misused(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    else:
        path = error.ctx.command_path if error.ctx is not None else "hub"
        hint = _usage_hint(error)
        text = error.message if hint else error.format_message()
        _say(f"{text.removesuffix('.')}{f'; {hint}' if hint else ''} (see '{path} --help')")
    return Exit.USAGE


def _usage_hint(error: click.UsageError) -> str:
    """What the user probably meant. `hub check` takes the registry as an argument, other commands as an option."""
    if close := getattr(error, "possibilities", None):
        return f"did you mean {close[0]}?"
    names = {name for param in (error.ctx.command.params if error.ctx else ()) for name in (param.name, *param.opts)}
    if isinstance(error, click.NoSuchOption) and error.option_name == "--registry" and "file" in names:
        return "give the file as an argument: hub check FILE"
    if error.message.startswith("Got unexpected extra argument") and "--registry" in names:
        return "the registry is given as an option: --registry FILE"
    return ""


def _explain(error: HubError | OSError) -> None:
    if isinstance(error, RegistryError) and len(error.problems) > 1:
        for problem in error.problems:
            click.echo(one_line(str(problem)), err=True)
        _say(f"{error.problems[0].file} cannot be used: {len(error.problems)} problems, listed above")
    else:
        _say(str(error) or type(error).__name__)


def _defect(error: BaseException, *, verbose: bool) -> int:
    hint = "" if verbose else " (a defect of the hub: run with -v for the traceback, and please report it)"
    _say(f"{type(error).__name__}: {error}{hint}")
    if verbose:
        _traceback(error)
    return Exit.DEFECT


def _traceback(error: BaseException) -> None:
    import traceback

    click.echo("".join(traceback.format_exception(error)), err=True, nl=False)


def _say(message: str) -> None:
    click.echo(f"Error: {one_line(message)}", err=True)


def _never_fail_to_print() -> None:
    """Print a question mark, not a traceback, for a character that the terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
