"""``--server URL``: what a running hub is asked, and how failures are reported."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hub_testkit.simulator.identity import AUTHORITY

from hub.app.hub import Options
from hub.cli import cli
from hub.cli.exits import Exit
from hub.cli.options import VARIABLE
from hub.cli.print_history import history_from_cluster, history_from_server
from hub.cli.print_nodes import nodes_from_server, show
from hub.cli.print_status import status_from_server, text
from hub.cli.print_why import why_from_clusters, why_from_server
from hub.cli.server import Server, fetch, registry_or_server, server_or_registry, server_url
from hub.errors import HubError, UsageError
from hub.model import TargetKey
from hub.report.server import Listen
from hub.report.values import Cluster, ClusterDetail, Noted, Service, ServiceDetail, SourceDetail, Status
from tests.support.waiting import until
from tests.unit.report.conftest import Where, watching

KEY = TargetKey("edge", "payments")


async def test_status_of_a_running_hub_equals_its_api(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status of a running hub is printed as a table or as the API's own document."""
    async with watching(tmp_path) as watched:
        assert await status_from_server(Server(watched.url), "table") == 0
        lines = click.unstyle(capsys.readouterr().out).splitlines()
        assert lines[0] == f"{watched.hub.elector.identity}: leader"
        assert "edge/payments   followed   3/3     eu 3/3" in lines
        assert await status_from_server(Server(watched.url), "json") == 0
        assert json.loads(capsys.readouterr().out) == await watched.json("/api/v1/status")


async def test_nodes_of_a_running_hub_have_their_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``hub nodes`` shows all clusters or one with verdicts, and refuses an unknown name."""
    async with watching(tmp_path) as watched:
        server = Server(watched.url)
        assert await nodes_from_server(server, None, "table") == 0
        lines = click.unstyle(capsys.readouterr().out).splitlines()
        assert lines[0] == "eu through node-addresses for edge/payments: 3 nodes, 3 published"
        assert lines[2].split() == ["n1", "yes", "10.0.0.1", "10.0.0.1", "not", "probed"]
        assert await nodes_from_server(server, "eu", "json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["kind"] == "Nodes"
        assert found["sources"][0]["nodes"][0]["resolution"] == {
            "state": "found",
            "addresses": ["10.0.0.1"],
            "reason": "",
        }
        for name in ("nosuch", "../status", "local/../eu"):
            with pytest.raises(UsageError, match=f"cluster {name} is not in the registry"):
                await nodes_from_server(server, name, "table")


def test_cluster_followed_by_other_replicas_is_not_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """With shards, a cluster that only other replicas follow does not make the result incomplete."""
    sources = (SourceDetail("us", "node-addresses", ("edge/orders",), "nothing is known of it yet"),)
    assert show([ClusterDetail(Cluster("us"), sources)], "table", shared=True) == 0
    said = click.unstyle(capsys.readouterr().out)
    assert said == "us through node-addresses for edge/orders: followed by other replicas\n"
    assert show([ClusterDetail(Cluster("us", state="Unreachable"), sources)], "table", shared=True) == Exit.UNKNOWN
    assert show([ClusterDetail(Cluster("us"), sources)], "table") == Exit.UNKNOWN
    assert click.unstyle(capsys.readouterr().out).count(": unknown: nothing is known of it yet\n") == 2


def test_no_name_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A name from the server is one line without escape sequences, in headings and in rows."""
    name, shown = "a\x1b[2J\nb", "a\\x1b[2J b"
    show([ClusterDetail(Cluster(name), (SourceDetail(name, name, (name,)),))], "table")
    assert click.unstyle(capsys.readouterr().out) == f"{shown} through {shown} for {shown}: no nodes\n"
    assert f"\n\n{shown}\n" in click.unstyle(text(Status(services=(Service(name, findings=(Noted("R", "m"),)),))))


@pytest.mark.parametrize(
    ("subject", "code", "kind", "said"),
    [
        ("10.0.0.2", 0, "address", "eu/n2"),
        ("n2", 0, "node", "eu/n2"),
        ("edge/payments", 0, "Service", "3 published, 3 ready"),
        ("n2x", 1, "node", "and the history does not name it (did you mean n2?)"),
        ("edge/paiments", 1, "Service", "(did you mean edge/payments?)"),
        ("10.9.9.9", 1, "address", "inside its allowedCIDRs"),
        ("fd00::1", 1, "address", "inside no cluster's allowedCIDRs"),
    ],
)
async def test_why_explains_a_running_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subject: str, code: int, kind: str, said: str
) -> None:
    """An address, a node and a Service are explained; the closest name is suggested for an unknown one."""
    async with watching(tmp_path) as watched:
        assert await why_from_server(Server(watched.url), subject, "table") == code
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
        assert await why_from_server(Server(watched.url), subject, "json") == code
        found = json.loads(capsys.readouterr().out)
        assert (found["kind"], found["subject"], found["is"], found["known"]) == ("Why", subject, kind, code == 0)
        with pytest.raises(UsageError, match="is neither an address"):
            await why_from_server(Server(watched.url), "../../etc/passwd", "table")


async def test_history_and_why_explain_what_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Address and node of a deleted Node are explained by the history, with a running hub and without one."""
    async with watching(tmp_path) as watched:
        watched.remote.nodes.delete("n2")
        await until(lambda: len(watched.hub.history.of(KEY)) == 2)
        server, kubeconfig = Server(watched.url), str(tmp_path / "hub")
        assert await history_from_cluster(kubeconfig, "default", "default", None, 100, "table") == 1
        assert "there is no ConfigMap endpointslice-hub-history-default in namespace default" in capsys.readouterr().err
        await watched.hub.history.flush()
        options = Options(str(tmp_path / "clusters.yaml"), kubeconfig, dry_run=True, leader_elect=False)
        for subject in ("10.0.0.2", "n2"):
            for look in (partial(why_from_server, server), partial(why_from_clusters, options)):
                assert await look(subject, "table") == 0
                gone = capsys.readouterr()
                assert gone.err == ""
                assert [line.split()[:3] for line in gone.out.splitlines()][1:4] == [
                    ["history", "edge/payments", "added"],
                    ["history", "edge/payments", "removed"],
                    ["history", "now", "gone"],
                ]
                assert ": 10.0.0.2, node n2 of eu: its node is gone (provider node-addresses)\n" in gone.out
        for show_past in (
            partial(history_from_server, server),
            partial(history_from_cluster, kubeconfig, "default", "default"),
        ):
            assert await show_past("edge/payments", 100, "table") == 0
            said = capsys.readouterr()
            assert said.err == ""
            header, added, removed = said.out.splitlines()
            assert header.split() == ["TIME", "SERVICE", "WHAT", "CLUSTER", "ENDPOINTS", "WHY"]
            assert "added     eu        10.0.0.1 (n1), 10.0.0.2 (n2), 10.0.0.3 (n3)   offered by its source" in added
            assert "removed   eu        10.0.0.2 (n2)" in removed
        assert await history_from_server(server, None, 1, "json") == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["kind"], [entry["what"] for entry in found["entries"]], found["number"]) == (
            "History",
            ["removed"],
            2,
        )
        assert await history_from_cluster(kubeconfig, "default", "default", "edge/other", 100, "table") == 1
        assert "the history has nothing about edge/other" in capsys.readouterr().err


async def test_service_that_is_gone_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Service that the registry no longer has, and whose slices are gone, has a history."""
    async with watching(tmp_path, removal_grace=0.1) as watched:
        registry = tmp_path / "clusters.yaml"
        registry.write_text(json.dumps({**json.loads(registry.read_text()), "services": []}))
        await until(lambda: not watched.here.slices.list(), 10)
        await until(lambda: watched.hub.reconciler.last(KEY) is None)
        assert await why_from_server(Server(watched.url), "edge/payments", "table") == 0
        assert "removed" in (said := capsys.readouterr().out)
        assert "10.0.0.1, node n1 and 2 more of eu: the Service is no longer in the registry" in said


async def test_missing_server_or_service_is_reported(tmp_path: Path) -> None:
    """Nothing listening, no such Service, and an answer that is not a hub's are reported."""
    with pytest.raises(HubError, match="is a hub listening there"):
        await fetch(Server("http://127.0.0.1:1"), "/api/v1/status", Status)
    async with watching(tmp_path) as watched:
        with pytest.raises(HubError, match=r": 404 Not Found$"):
            await fetch(Server(watched.url), "/api/v1/services/edge/nosuch", ServiceDetail)
        with pytest.raises(HubError, match="the answer is not from a hub of this version"):
            await fetch(Server(watched.url), "/openapi.json", Status)


async def test_token_is_sent_to_an_authenticating_hub(tmp_path: Path) -> None:
    """The token is sent; without one, or if the hub cannot check it, the error says so."""
    token = tmp_path / "token"
    token.write_text("good\n")
    async with watching(tmp_path, Listen(Where(), authenticate=True)) as watched:
        with pytest.raises(HubError, match="401 a token of the hub cluster is needed"):
            await fetch(Server(watched.url), "/api/v1/status", Status)
        with pytest.raises(HubError, match="503 the hub cluster cannot check the caller now"):
            await fetch(Server(watched.url, str(token)), "/api/v1/status", Status)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:8080", "ftp://h", "http://", "http://h?x=1", "http://u:p@h", "file:///etc/passwd"]
)
def test_a_server_is_a_plain_url(text: str) -> None:
    """The URL has a scheme, a host and no password, which would stay in the shell's history."""
    with pytest.raises(click.BadParameter):
        server_url(text)


def test_a_server_and_a_registry_exclude_each_other() -> None:
    """Exactly one of --server and --registry is needed."""
    given = {"server": "http://h", "server_token_file": None, "server_ca_file": None}
    assert server_or_registry(dict(given), None) == Server("http://h")
    assert server_or_registry({**given, "server": None}, "clusters.yaml") == "clusters.yaml"
    with pytest.raises(click.UsageError, match="cannot be combined"):
        server_or_registry(dict(given), "clusters.yaml")
    with pytest.raises(click.UsageError, match="Missing option"):
        server_or_registry({**given, "server": None}, None)


@pytest.mark.parametrize(
    ("arguments", "variables", "asked"),
    [
        ([], {"REGISTRY": "a.yaml"}, "a.yaml"),
        ([], {"SERVER": "http://h"}, Server("http://h")),
        ([], {"REGISTRY": "a.yaml", "SERVER": "http://h"}, Server("http://h")),
        (["--registry", "b.yaml"], {"REGISTRY": "a.yaml", "SERVER": "http://h"}, "b.yaml"),
        (["--server", "http://i"], {"REGISTRY": "a.yaml", "SERVER": "http://h"}, Server("http://i")),
    ],
)
def test_options_win_over_the_environment(
    arguments: list[str], variables: dict[str, str], asked: Server | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option wins over both variables; of the variables, the running hub wins over the registry."""
    for name, value in variables.items():
        monkeypatch.setenv(f"{VARIABLE}{name}", value)
    found: list[Server | str] = []

    @click.command()
    @registry_or_server
    def command(registry: str | None, **given: Any) -> None:
        found.append(server_or_registry(given, registry))

    result = CliRunner().invoke(command, arguments)
    assert (result.output, found) == ("", [asked])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "http://127.0.0.1:1"),
        (["--kubeconfig", "no-such-file"], "no-such-file"),
        (["--owner", "other", "--server", "http://127.0.0.1:2"], "http://127.0.0.1:2"),
    ],
)
def test_history_asks_the_server_of_the_environment_unless_options_select_a_config_map(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """In the hub's Pod, the command needs no options; an option wins over the server of the environment."""
    monkeypatch.setenv(f"{VARIABLE}SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv(f"{VARIABLE}OWNER", "default")
    monkeypatch.setenv(f"{VARIABLE}LEASE_NAMESPACE", "default")
    with pytest.raises(SystemExit) as ended:
        cli.main(args=["history", *arguments])
    assert ended.value.code == Exit.ERROR
    assert said in capsys.readouterr().err


async def test_invalid_files_are_refused_with_their_flag(tmp_path: Path) -> None:
    """A pipe or an invalid file is refused with the name of its flag."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no certificate")
    for server, said in (
        (Server("http://127.0.0.1:9", str(tmp_path / "pipe")), "--server-token-file .*pipe: .*not a regular file"),
        (Server("https://127.0.0.1:9", None, str(tmp_path / "pipe")), "--server-ca-file .*pipe: .*not a regular file"),
        (
            Server("https://127.0.0.1:9", None, str(tmp_path / "text")),
            "--server-ca-file .*text: contains no certificate in PEM format",
        ),
    ):
        with pytest.raises(HubError, match=said):
            await fetch(server, "/api/v1/status", Status)


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"two words", "tök".encode(), b"\xff"])
async def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes) -> None:
    """A file that is not one ASCII word is an error; the command does not go on without a token."""
    (tmp_path / "token").write_bytes(content)

    with pytest.raises(HubError, match=r"--server-token-file .*token: must contain one token"):
        await fetch(Server("http://127.0.0.1:9", str(tmp_path / "token")), "/api/v1/status", Status)


async def test_an_empty_authority_is_not_the_systems(tmp_path: Path) -> None:
    """With --server-ca-file only the CAs in that file are trusted, even if it is empty."""
    (tmp_path / "ca").touch()

    with pytest.raises(HubError, match=r"--server-ca-file .*ca: contains no certificate in PEM format"):
        await fetch(Server("https://127.0.0.1:9", None, str(tmp_path / "ca")), "/api/v1/status", Status)


async def test_an_authority_may_have_comments_in_any_language(tmp_path: Path) -> None:
    """A CA file may have comments that are not ASCII."""
    (tmp_path / "ca").write_text(f"# Főtanúsítvány\n{AUTHORITY}", encoding="utf-8")

    with pytest.raises(HubError, match="is a hub listening there"):
        await fetch(Server("https://127.0.0.1:9", None, str(tmp_path / "ca")), "/api/v1/status", Status)


async def test_invalid_host_name_is_an_ordinary_error() -> None:
    """An invalid host name is an ordinary error."""
    with pytest.raises(HubError, match=r"http://\.\.:9: .*is a hub listening there"):
        await fetch(Server("http://..:9"), "/api/v1/status", Status)
