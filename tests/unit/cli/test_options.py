"""The values of options."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from hub.cli import cli
from hub.cli.options import BindAddress, Given, bind_address, duration, own_namespace, previous_owner


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0", None),
        ("127.0.0.1:8081", BindAddress("127.0.0.1", 8081)),
        ("[::1]:0", BindAddress("::1", 0)),
        (":8081", BindAddress(None, 8081)),
        ("localhost:80", BindAddress("localhost", 80)),
    ],
)
def test_bind_address_is_read_as_go_programs_do(text: str, address: BindAddress | None) -> None:
    """An address is HOST:PORT, [IPv6]:PORT, :PORT for all addresses, or 0 for off."""
    assert bind_address(text) == address
    assert address is None or str(address) == text


@pytest.mark.parametrize("text", ["", "8081", "::1:80", "host:", "host:x", "host:70000", "host:-1", "host:٣"])
def test_bind_address_refuses_other_addresses(text: str) -> None:
    """Any other address is refused with an example."""
    with pytest.raises(click.BadParameter, match=r"such as 127\.0\.0\.1:8081"):
        bind_address(text)


def test_duration_is_the_registrys() -> None:
    """Options take the same durations as clusters.yaml."""
    assert duration("1m30s") == 90.0


def test_namespace_defaults_to_the_pods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's namespace is the Pod's, or ``default`` outside a Pod."""
    monkeypatch.setattr("hub.kube.hub_access.SERVICE_ACCOUNT", tmp_path)
    assert own_namespace() == "default"

    (tmp_path / "namespace").write_text("edge-hub\n")
    assert own_namespace() == "edge-hub"
    assert Given().options("f").secrets_namespace == "edge-hub"
    assert Given(lease_namespace="a").options("f").secrets_namespace == "a"
    assert Given(lease_namespace="a", secrets_namespace="b").options("f").namespace == "a"


def test_options_take_absolute_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative --credentials-dir is relative to the working directory at the start."""
    monkeypatch.chdir(tmp_path)

    assert Given(credentials_dir="tokens").options("f").credentials_dir == str(tmp_path / "tokens")


def test_the_environments_proxy_needs_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --proxy-from-environment the variables have no effect; with it, one must be set."""
    monkeypatch.setenv("HTTPS_PROXY", "http://joe:hunter2@proxy:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")
    assert Given().options("f").proxies is None
    options = Given(proxy_from_environment=True).options("f")
    assert options.proxies is not None
    assert str(options.proxies.proxy_for("api.test", 443)) == "http://proxy:3128"
    assert options.proxies.proxy_for("10.0.0.1", 443) is None
    assert "hunter2" not in repr(options)


def test_flag_without_a_proxy_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing or bad variable is a usage error that names flag and variable, and quotes no password."""
    arguments = ["plan", "--registry", "clusters.example.yaml", "--proxy-from-environment"]
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main(args=arguments)
    assert (ended.value.code, capsys.readouterr().err.count("neither HTTPS_PROXY nor https_proxy is set")) == (2, 1)
    monkeypatch.setenv("HTTPS_PROXY", "http://joe:hunter2@proxy:0")
    with pytest.raises(SystemExit) as ended:
        cli.main(args=arguments)
    said = capsys.readouterr().err
    assert "--proxy-from-environment: HTTPS_PROXY needs a port" in said
    assert "hunter2" not in said


def test_slices_of_any_owner_can_be_purged() -> None:
    """`hub purge` accepts owners that a registry cannot have today."""
    command = cli.get_command(click.Context(cli), "purge")
    assert command is not None
    [option] = [each for each in command.params if each.name == "owner"]
    assert option.type.convert("Edge_1", option, None) == previous_owner("Edge_1") == "Edge_1"
