"""Clusters that are reached only through a proxy, as real processes: proxy, API servers and hub."""

from __future__ import annotations

import base64
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from tests.support.apiserver.server import ApiServer
from tests.support.forward_proxy import ForwardProxy
from tests.support.hub import ROOT, HubProcess, RunningHub, World, add_node, eu_and_us
from tests.support.ports import free_port
from tests.support.waiting import eventually

PASSWORD = "hunter2@canary"
LOGIN = f"joe:{PASSWORD}"
URL_LOGIN = f"joe:{quote(PASSWORD, safe='')}"
SECRETS = (PASSWORD, quote(PASSWORD, safe=""), base64.b64encode(LOGIN.encode()).decode())
PAGES = (
    "/",
    "/metrics",
    "/api/v1/status",
    "/api/v1/services/edge/payments",
    "/api/v1/why?subject=edge/payments",
    *(f"{path}/{name}" for path in ("/api/v1/clusters", "/clusters") for name in ("eu", "wrong", "dead")),
)


@pytest.fixture
def world(tmp_path: Path, hub_cluster: ApiServer, remote_clusters: tuple[ApiServer, ...]) -> World:
    """Clusters eu and us with one node each, both published for ``payments``; eu has a name that only proxies know."""
    made = eu_and_us(tmp_path, hub_cluster, remote_clusters)
    change(
        made.folder / "eu", server=f"https://eu.test:{port_of(made.remotes['eu'])}", **{"tls-server-name": "127.0.0.1"}
    )
    return made


def port_of(server: ApiServer) -> int:
    """The port on loopback."""
    return int(server.url.rpartition(":")[2])


def change(kubeconfig: Path, **fields: str) -> None:
    """Set fields of the only cluster of a kubeconfig."""
    content = yaml.safe_load(kubeconfig.read_text())
    content["clusters"][0]["cluster"].update(fields)
    kubeconfig.write_text(yaml.safe_dump(content))


def proxy_of(world: World, kind: str, server: ApiServer, login: str = LOGIN) -> ForwardProxy:
    """A proxy that knows the name eu.test; its certificate is of the server's authority."""
    certificate = world.folder / f"proxy-{port_of(server)}.pem"
    made = server.authority.server("127.0.0.1")
    certificate.write_text(made.pem + made.key_pem)
    port = port_of(world.remotes["eu"])
    names = {f"eu.test:{port}": port}
    return ForwardProxy(kind, login=login, certificate=certificate, names=names, port=free_port())


@pytest.mark.parametrize(
    ("kind", "scheme"), [("http", "http"), ("https", "https"), ("socks5", "socks5"), ("socks5", "socks5h")]
)
def test_a_cluster_is_followed_through_its_proxy(world: World, kind: str, scheme: str) -> None:
    """A proxy that dies hides its own cluster only: others go on, nothing is removed, and the hub catches up later."""
    eu, us = world.remotes["eu"], world.remotes["us"]
    if scheme == "socks5":  # the hub resolves the name itself
        change(world.folder / "eu", server=eu.url)
    with proxy_of(world, kind, eu) as proxy:
        change(world.folder / "eu", **{"proxy-url": proxy.url(scheme, URL_LOGIN)})
        with RunningHub(world) as hub:
            world.awaits("10.1.0.1", "10.2.0.1")
            add_node(eu, "n2", "10.1.0.2")
            world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1")
            host = "127.0.0.1" if scheme == "socks5" else "eu.test"
            assert {(seen["asked"], seen["login"]) for seen in proxy.seen} == {(f"{host}:{port_of(eu)}", LOGIN)}

            proxy.kill()
            refused = f" through {scheme}://{proxy.place}: the proxy refuses the connection; check that it runs"
            eventually(lambda: hub.state("eu").startswith("Degraded: ") and hub.state("eu").endswith(refused))
            add_node(eu, "n3", "10.1.0.3")
            add_node(us, "m2", "10.2.0.2")
            world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2", timeout=3)

            proxy.start()
            world.awaits("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.2.0.1", "10.2.0.2", timeout=40)
            eventually(lambda: hub.state("eu") == "Ready: ")


def test_a_proxy_that_refuses_is_named(world: World) -> None:
    """A wrong password is that cluster's problem; the error says what the proxy answered and what to do."""
    with proxy_of(world, "http", world.remotes["eu"], login="joe:other") as proxy:
        change(world.folder / "eu", **{"proxy-url": proxy.url(login=URL_LOGIN)})
        with RunningHub(world) as hub:
            world.awaits("10.2.0.1")
            server = f"https://eu.test:{port_of(world.remotes['eu'])}"
            problem = "the proxy answers 407 Proxy Authentication Required: it does not accept the user and password"
            expected = f"Degraded: {server} through http://{proxy.place}: {problem} of its URL"
            eventually(lambda: hub.state("eu") == expected)


def test_the_hub_cluster_is_reached_through_its_proxy(world: World) -> None:
    """The proxy-url of the hub's own kubeconfig leads to the hub cluster: to read, to write and for the Lease."""
    with proxy_of(world, "https", world.hub_cluster) as here, proxy_of(world, "http", world.remotes["eu"]) as there:
        change(world.kubeconfig, **{"proxy-url": here.url(login=URL_LOGIN)})
        change(world.folder / "eu", **{"proxy-url": there.url(login=URL_LOGIN)})
        mark = world.hub_cluster.audit_mark()
        with RunningHub(world):
            world.awaits("10.1.0.1", "10.2.0.1")
            here.kill()
            here.start()
            add_node(world.remotes["eu"], "n2", "10.1.0.2")
            world.awaits("10.1.0.1", "10.1.0.2", "10.2.0.1", timeout=30)
            assert world.writes(mark)
        assert {seen["asked"] for seen in here.seen} == {f"127.0.0.1:{port_of(world.hub_cluster)}"}


def test_no_output_has_the_password(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither log, pages, metrics, check, plan nor status shows the login, with good and with failing proxies."""
    eu, listen = world.remotes["eu"], f"127.0.0.1:{free_port()}"
    world.write(
        clusters=[world.cluster("eu"), world.cluster("us"), world.cluster("wrong"), world.cluster("dead")],
        services=[world.service("payments", "eu", "us", "wrong", "dead")],
    )
    for name in ("wrong", "dead"):
        (world.folder / name).write_text((world.folder / "eu").read_text())
    said: list[str] = []
    with proxy_of(world, "http", eu) as proxy, proxy_of(world, "socks5", eu, login="joe:other") as refusing:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url(login=URL_LOGIN))
        monkeypatch.setenv("NO_PROXY", "direct.test")
        change(world.folder / "wrong", **{"proxy-url": refusing.url("socks5h", URL_LOGIN)})
        change(world.folder / "dead", **{"proxy-url": f"https://{URL_LOGIN}@127.0.0.1:1"})
        arguments = ("--proxy-from-environment", "-v", "-v", "--listen", listen)
        with HubProcess(world, *arguments) as hub:
            world.awaits("10.1.0.1", "10.2.0.1", timeout=20)
            eventually(lambda: all(name in hub.log.read_text() for name in ("wrong", "dead")))
            said += [page(f"http://{listen}{path}") for path in PAGES]
            said.append(command(world, "check", str(world.path), "--online", "-v", "--proxy-from-environment"))
            said.append(command(world, "plan", "--registry", str(world.path), "--proxy-from-environment"))
            said.append(command(world, "status", "--server", f"http://{listen}"))
            proxy.kill()
            eventually(lambda: f"through {proxy.url(login='')}: the proxy refuses" in hub.log.read_text(), 30)
            said.append(hub.log.read_text())
    assert {seen["login"] for seen in proxy.seen} == {LOGIN}
    assert proxy.place in said[-1]
    for text in said:
        assert not [secret for secret in SECRETS if secret in text]
    assert all(f"127.0.0.1:{port}" in "".join(said) for port in (proxy.port, refusing.port, 1))


def page(url: str) -> str:
    """The body of a page, also of an error."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def command(world: World, *arguments: str) -> str:
    """All output of a command, on the hub cluster."""
    argv = [sys.executable, "-m", "hub", *arguments]
    if arguments[0] != "status":
        argv += ["--kubeconfig", str(world.kubeconfig)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.stdout + done.stderr
