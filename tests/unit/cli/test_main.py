"""What all commands share: exit codes, one-line errors, and imports only when needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import hub.cli
from hub import __version__
from hub.cli import COMMANDS, cli, reference
from hub.cli.exits import Exit
from hub.errors import HubError, KubeconfigError, Problem, RegistryError, UsageError

ROOT = Path(hub.cli.__file__).parents[2]
HEAVY = ("pydantic", "aiohttp", "kubernetes", "yaml", "rich", "jinja2", "uvloop", "msgspec", "asyncio")

USAGE_MISTAKES = [
    (["nosuch"], "Error: No such command 'nosuch' (see '"),
    (["plna"], "Error: No such command 'plna'; did you mean plan? (see '"),
    (["run"], "Error: Missing option '--registry'"),
    (["run", "--regsitry", "x"], "Error: No such option '--regsitry'; did you mean --registry? (see '"),
    (["cluster", "ad"], "Error: No such command 'ad'; did you mean add? (see '"),
    (["run", "x"], "extra argument (x); the registry is given as an option: --registry FILE (see '"),
    (["check", "--registry", "x"], "No such option '--registry'; give the file as an argument: hub check FILE (see '"),
    (["check"], "Error: Missing argument 'FILE'"),
    (["run", "--registry", "x", "--removal-grace", "60"], "is not a duration"),
    (["run", "--registry", "x", "--health-probe-bind-address", "8081"], "is not HOST:PORT"),
    (["run", "--registry", "x", "--health-probe-bind-address", "::1:80"], "is not HOST:PORT"),
    (["run", "--registry", "x", "--health-probe-bind-address", "h:65536"], "is not HOST:PORT"),
    (["run", "--registry", "x", "--leader-elect=maybe"], "must be true or false, not 'maybe'"),
    (["run", "--registry", "x", "--events=maybe"], "must be true or false, not 'maybe'"),
    (["run", "--registry", "x", "--lease-namespace", "../default"], "is not a DNS label"),
    (["run", "--registry", "x", "--secrets-namespace", "A"], "is not a DNS label"),
    (["run", "--registry", "x", "--allow-exec", "./aws"], "neither an absolute path nor a bare program name"),
    (["run", "--registry", "x", "--credentials-dir", "/nosuch"], "does not exist"),
    (["plan", "--registry", "x", "payments"], "is not a Service"),
    (["plan", "--registry", "x", "-o", "xml"], "is not one of"),
    (["demo", "--for", "3"], "is not a duration"),
    (["approve", "payments", "abcdef012345"], "is not a Service"),
    (
        ["approve", "edge/payments"],
        "Error: Missing argument 'HASH': hub approve without arguments lists what is withheld",
    ),
    (["approve", "edge/payments", "ABCDEF012345"], "is not a hash"),
    (["approve", "registry", "abc"], "is not a hash"),
    (["approve", "registry", "abcdef012345", "--owner", "a/b"], "is not a label value"),
    (["approve", "registry", "abcdef012345", "--owner", "Edge_1"], "must consist of a-z, 0-9, and - or . inside, not"),
    (["run", "--owner", "Edge_1"], "must consist of a-z, 0-9, and - or . inside, not"),
    (["pause", "payments"], "is not a Service"),
    (["resume"], "Error: Missing argument 'NAMESPACE/SERVICE|allocation/NAME'"),
    (["purge"], "Error: Missing option '--owner'"),
    (["purge", "--owner", ""], "--owner"),
    (["status"], "Error: Missing option '--registry'"),
    (["why", "--registry", "x"], "Error: Missing argument"),
    (["why", "a", "--registry", "x", "-o", "yaml"], "is not one of"),
    (["schema", "x"], "unexpected extra argument"),
]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """``hub version`` raises the exception that a test puts in here."""
    what: dict[str, BaseException] = {}

    @click.command()
    def version() -> None:
        raise what["error"]

    monkeypatch.setattr("hub.cli.about.version", version)
    return what


@pytest.mark.parametrize(("arguments", "message"), USAGE_MISTAKES)
def test_main_answers_wrong_usage_with_one_line(arguments: list[str], message: str) -> None:
    """A wrong flag or argument is one line on stderr that refers to --help, exit code 2."""
    result = CliRunner().invoke(cli, arguments)

    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.rstrip().endswith("--help')")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such\ncluster"), 2, "Error: no such cluster"),
        (KubeconfigError("no such\ncontext"), 3, "Error: no such context"),
        (HubError("hub cluster: \x1b[31mno answer"), 3, "Error: hub cluster: \\x1b[31mno answer"),
        (ExceptionGroup("tasks", [HubError("inside")]), 3, "Error: inside"),
        (PermissionError(13, "Permission denied", "x"), 3, "Error: [Errno 13] Permission denied: 'x'"),
        (click.ClickException("wrong"), 3, "Error: wrong"),
        (KeyboardInterrupt(), 130, ""),
        (RegistryError((Problem("f", 1, 2, "a", "is wrong"),)), 3, "Error: f:1:2: a: is wrong"),
    ],
)
def test_main_turns_an_error_into_a_line_and_a_code(
    failing: dict[str, BaseException], error: BaseException, code: int, line: str
) -> None:
    """An expected error is one printable line without a traceback."""
    failing["error"] = error

    result = CliRunner().invoke(cli, ["version"])

    assert (result.stderr.strip(), result.exit_code) == (line, code)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "--registry", "nosuch", "--tls-cert-file", "x"], Exit.USAGE),
        (["run", "--registry", "nosuch", "--listen", "192.0.2.1:8080"], Exit.USAGE),
        (["plugin", "new", "Bad"], Exit.USAGE),
        (["check", "nosuch"], Exit.ERROR),
        (["endpoints", "--kubeconfig", "nosuch"], Exit.ERROR),
        (["status", "--server", "http://127.0.0.1:1"], Exit.ERROR),
    ],
)
def test_main_tells_wrong_usage_from_files_and_servers(arguments: list[str], code: int) -> None:
    """Options that contradict each other and invalid arguments are exit code 2, unusable files and servers 3."""
    assert CliRunner().invoke(cli, arguments).exit_code == code


def test_main_lists_every_problem_of_a_registry(failing: dict[str, BaseException]) -> None:
    """All problems of a file are listed, then one line sums them up."""
    failing["error"] = RegistryError((Problem("f", 1, 2, "a", "is wrong"), Problem("f", 3, 4, "b", "too", "hint")))

    result = CliRunner().invoke(cli, ["version"])

    assert result.stderr.splitlines() == [
        "f:1:2: a: is wrong",
        "f:3:4: b: too (hint)",
        "Error: f cannot be used: 2 problems, listed above",
    ]


def test_main_shows_the_traceback_of_a_defect_only_on_demand(failing: dict[str, BaseException]) -> None:
    """An unexpected exception is one line, exit code 70."""
    failing["error"] = KeyError("x")

    result = CliRunner().invoke(cli, ["version"])

    assert "Traceback" not in result.stderr
    assert "run with -v for the traceback" in result.stderr
    assert result.exit_code == Exit.DEFECT


def test_main_shows_the_traceback_with_v(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``-v`` shows the traceback of a defect."""
    monkeypatch.setattr("hub.cli.checking.examine", lambda *_: 1 / 0)

    result = CliRunner().invoke(cli, ["check", "-v", str(tmp_path / "f")])

    assert "Traceback" in result.stderr
    assert result.exit_code == Exit.DEFECT


def test_closed_pipe_ends_main_silently() -> None:
    """A closed pipe ends a command silently, as SIGPIPE would."""
    command = f"{sys.executable} -m hub schema | (exec <&-); echo ${{PIPESTATUS[0]}}"

    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=True)

    assert result.stderr == ""
    assert int(result.stdout) == Exit.BROKEN_PIPE


def test_main_imports_nothing_heavy() -> None:
    """Help and completion do not import libraries that only some commands need."""
    program = f"import hub.cli, sys; print([each for each in {HEAVY!r} if each in sys.modules])"

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)

    assert result.stdout.strip() == "[]"


STOPPED_EARLY = """
import signal, sys
import hub.cli
from hub.registry import isolated
real = isolated.begin
def begin(*arguments):
    signal.raise_signal(signal.SIGTERM)
    return real(*arguments)
isolated.begin = begin
sys.argv = ["hub", "run", "--registry", "clusters.yaml", "--kubeconfig", "hub", "--listen", "0"]
sys.argv += ["--health-probe-bind-address", "0", "--leader-elect=false"]
hub.cli.main()
"""


def test_run_that_is_stopped_while_it_starts_ends_well(tmp_path: Path) -> None:
    """A signal during the start ends the hub as a later one does."""
    (tmp_path / "clusters.yaml").write_text("version: 1\n")
    (tmp_path / "hub").write_text(
        "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "
        '"https://127.0.0.1:1"}}], users: [{name: c, user: {token: t}}], contexts: [{name: c, context: '
        "{cluster: c, user: c}}]}\n"
    )
    command = [sys.executable, "-c", STOPPED_EARLY]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr


CHECKS_FIRST = """
import sys
import hub.cli
from hub.registry import isolated
def begin(*arguments):
    print([each for each in ("hub.app.hub", "hub.kube.client", "hub.reconcile.reconciler") if each in sys.modules])
    sys.stdout.flush()
    raise SystemExit(0)
isolated.begin = begin
sys.argv = ["hub", "run", "--registry", "clusters.yaml", "--kubeconfig", "hub", "--listen", "0"]
hub.cli.main()
"""


def test_run_has_the_registry_checked_while_it_imports(tmp_path: Path) -> None:
    """The registry is checked during the imports, which would otherwise delay the start by half a second."""
    command = [sys.executable, "-c", CHECKS_FIRST]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr


def test_help_lists_commands_without_importing_libraries() -> None:
    """``hub --help`` lists all commands without importing their libraries."""
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom hub.cli import cli\n"
        "print(CliRunner().invoke(cli, ['--help']).output)\n"
        "print('heavy', [each for each in ('pydantic', 'aiohttp', 'kubernetes', 'yaml') if each in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)

    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)
    assert "heavy []" in result.stdout


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version_is_the_packages(arguments: list[str]) -> None:
    """Both ways to ask for the version print the package's version."""
    result = CliRunner().invoke(cli, arguments)

    assert (result.output, result.exit_code) == (f"endpointslice-hub {__version__}\n", 0)


def test_schema_is_the_published_one() -> None:
    """``hub schema`` prints the schema that the repository publishes for editors."""
    result = CliRunner().invoke(cli, ["schema"])

    assert result.output == (ROOT / "docs/schema/clusters.schema.json").read_text()


def test_reference_page_is_current() -> None:
    """docs/reference/cli.md is what the commands generate."""
    hint = "regenerate: python -m hub.cli.reference"
    assert (ROOT / "docs/reference/cli.md").read_text() == reference.text(), hint


def test_providers_lists_installed_providers() -> None:
    """An installed provider is listed with its distribution and its state."""
    result = CliRunner().invoke(cli, ["providers"])

    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["NAME", "DISTRIBUTION", "VERSION", "STATE", "PURPOSE"]
    assert ["node-addresses", "endpointslice-hub-node-addresses", "ok"] in [[*row[:2], row[3]] for row in rows]


def test_providers_shows_the_schema_of_a_configuration() -> None:
    """``-v`` shows the schema of a provider's configuration."""
    result = CliRunner().invoke(cli, ["providers", "-v"])

    assert '"types"' in result.stdout
    assert "  file: /" in result.stdout
