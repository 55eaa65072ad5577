"""``hub import``, and what ``hub run --from-env`` refuses before it starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hub.cli import cli
from hub.cli.environment import environment
from hub.cli.importers.environment import PASSED
from hub.cli.importers.script import VARIABLES as SCRIPT
from hub.cli.importers.target import VARIABLES as CONTROLLER
from hub.errors import HubError

ENVIRONMENT = {
    "TARGET_NAMESPACE": "edge",
    "TARGET_SERVICE_NAME": "payments",
    "TARGET_PORT": "30443",
    "TARGET_MANAGED_BY": "old.example.com",
    "SOURCE_KIND": "file",
    "INVENTORY_FILE_PATH": "/etc/inventory/nodes.json",
}

ASSIGNMENTS = "\n".join(f"{key}={value}" for key, value in ENVIRONMENT.items())


@pytest.fixture(autouse=True)
def _only_what_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*CONTROLLER, *SCRIPT, *(each for each in os.environ if each.upper().startswith(PASSED))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, text: str = "", **variables: str) -> Result:
    """Run a command with these variables and this text on stdin."""
    return CliRunner().invoke(cli, arguments, input=text, env=variables)


def checked(printed: Result) -> str:
    """The output of ``hub check`` for a printed registry."""
    assert printed.exit_code == 0, printed.output
    Path("f.yaml").write_text(printed.stdout)
    return run("check", "f.yaml").output


def test_an_imported_environment_passes_the_check() -> None:
    """An imported environment passes ``hub check``, including its provider's configuration."""
    assert checked(run("import", "env", **ENVIRONMENT)) == "f.yaml: ok; 1 cluster, 1 service\n"


def test_an_imported_command_passes_the_check() -> None:
    """An imported command passes ``hub check``, and is the same if read from a file of assignments."""
    variables = {**ENVIRONMENT, "SOURCE_KIND": "command", "INVENTORY_COMMAND": "/app/list", "HEALTH_CHECK_MODE": "http"}
    lines = "\n".join(f"{key}={value}" for key, value in variables.items())

    direct = run("import", "env", **variables)

    assert run("import", "env", "-f", "-", text=lines).stdout == direct.stdout
    assert checked(direct) == "f.yaml: ok; 1 cluster, 1 service\n"


def test_an_imported_script_passes_the_check() -> None:
    """An imported script passes ``hub check``, including its provider's configuration."""
    pytest.importorskip("hub_provider_ionos")
    variables = {
        "IONOS_TOKEN": "very-secret",
        "IONOS_DATACENTER_ID": "0b6a1d3e-0000-4000-8000-000000000001",
        "IONOS_PRIVATE_LAN_ID": "2",
        "SECURED_KUBECONFIG": "/etc/secured/kubeconfig",
    }
    printed = run("import", "inventory-script", **variables)

    assert checked(printed) == "f.yaml: ok; 1 cluster, 0 services\n"
    assert "very-secret" not in printed.output


def test_services_are_read_from_files_and_stdin() -> None:
    """Services are read from several files and stdin, also with several objects in a file."""
    Path("a.yaml").write_text("kind: Service\nmetadata: {name: kubernetes-vip}\n---\nkind: Pod\n")
    annotated = (
        '{"kind": "Service", "metadata": {"name": "b", "namespace": "edge", "annotations": '
        '{"endpoint-copier/enabled": "true", "endpoint-copier/default-service-name": "api"}}}'
    )
    printed = run("import", "endpoint-copier", "-f", "a.yaml", "-f", "-", text=annotated)

    assert printed.exit_code == 0, printed.output
    assert "- name: kubernetes-vip" in printed.stdout
    assert "from: edge/api" in printed.stdout


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["env"], "", "Error: SOURCE_KIND: is required"),
        (["env", "-f", "-"], "no manifest", "Error: <stdin>:1: is neither a manifest nor an assignment NAME=value"),
        (["env", "-f", "-"], "kind: Pod\nspec: [", "Error: <stdin>:3:1: is not YAML"),
        (["env", "-f", "-"], f"{ASSIGNMENTS}\nTARGET_PORT=99999", "Error: TARGET_PORT: must be at most 65535"),
        (["env", "-f", "-"], f"{ASSIGNMENTS}\nEMPTY_RESULT_THRESHOLD=-1", "Error: EMPTY_RESULT_THRESHOLD: must be at"),
        (["inventory-script"], "", "Error: SECURED_KUBECONFIG: is required"),
        (["endpoint-copier", "-f", "-"], "kind: Service\nmetadata: {name: a}", "Error: no Service has the annotation"),
        (["endpoint-copier", "-f", "-"], "kind: Service\nmetadata: 1", "Error: a Service without a name"),
        (["endpoint-copier", "-f", "-", "--managed-endpoint", "a"], "", "is not"),
        (["env", "-f", "nosuch"], "", "No such file or directory"),
        (["nosuch"], "", "No such command"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], text: str, message: str) -> None:
    """A mistake is one line on stderr, and nothing is printed on stdout."""
    result = run("import", *arguments, text=text)

    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert (result.stdout, result.exit_code in (2, 3)) == ("", True)


def test_binary_or_too_large_file_is_refused() -> None:
    """A file that is not UTF-8 or is too large is refused."""
    Path("bytes").write_bytes(b"\xff\xfe")
    Path("large").write_text("A=1\n" * (1 << 20 | 1))

    assert "bytes: is not UTF-8 text" in run("import", "env", "-f", "bytes").stderr
    assert "large: is too large" in run("import", "env", "-f", "large").stderr


def test_run_needs_a_file_or_the_environment() -> None:
    """``hub run`` needs either --registry or --from-env, not both."""
    neither, both = run("run"), run("run", "--from-env", "--registry", "f")

    assert "Missing option '--registry'" in neither.stderr
    assert "--from-env and --registry cannot be combined" in both.stderr
    assert (neither.exit_code, both.exit_code) == (2, 2)


def test_run_from_env_names_the_variable_that_is_wrong() -> None:
    """With --from-env, an invalid entry is an error that names the variable; the entry is not frozen."""
    result = run("run", "--from-env", **{**ENVIRONMENT, "TARGET_PORT": "70000"})

    assert result.stderr == "Error: TARGET_PORT: must be at most 65535, not 70000\n"
    assert result.exit_code == 3


def test_the_environment_as_it_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """--from-env runs the text that ``hub import env`` prints, and finds a bare program on PATH."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    printed = run("import", "env").stdout

    found = environment()
    monkeypatch.setenv("SOURCE_KIND", "command")
    monkeypatch.setenv("INVENTORY_COMMAND", "sh")
    command = environment()

    assert (found.registry, found.content) == ("/etc/inventory/environment", printed.encode())
    assert (found.programs, found.dry_run) == ((), False)
    assert [Path(each).name for each in command.programs] == ["sh"]
    assert all(Path(each).is_absolute() for each in command.programs)


def test_a_static_source_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """--from-env refuses SOURCE_KIND=static, whose addresses are in no variable."""
    for name, value in {**ENVIRONMENT, "SOURCE_KIND": "static"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(HubError, match="SOURCE_KIND: static cannot be run from the environment"):
        environment()
