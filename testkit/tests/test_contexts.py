"""Contract tests of HubContext and ClusterContext, run against the hub's implementation and the test kit's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hub_testkit.contexts import LocalCluster, LocalHub

from hub.errors import CredentialError
from hub.observe.providers.context import Limits, ProviderCluster, ProviderHub
from hub.plugin import ClusterContext, HubContext, TerminalProviderError, TransientProviderError
from hub.plugin.http import SharedHttp
from hub.runtime.clock import SystemClock

Changed = Callable[[], int]


@pytest.fixture(params=["real", "kit"])
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ClusterContext]:
    """A ClusterContext over ``tmp_path`` with the credential TOKEN and the program /bin/echo."""
    monkeypatch.setenv("TOKEN", "hunter2")
    programs, hosts = frozenset({"/bin/echo"}), frozenset({"api.test"})
    if request.param == "kit":
        async with LocalHub(secrets={"TOKEN": "hunter2"}, allow_exec=programs, allow_api_hosts=hosts) as hub:
            yield LocalCluster(hub, name="c1", folder=str(tmp_path))
        return
    http = SharedHttp()
    real = ProviderHub("p", clock=SystemClock(), limits=Limits(programs, hosts, str(tmp_path)), http=http)
    yield ProviderCluster(real, "c1", str(tmp_path), lambda: None)
    await http.close()


@pytest.fixture
def hub(cluster: ClusterContext) -> HubContext:
    """The cluster's HubContext."""
    return cluster.hub


async def test_run_sync_runs(hub: HubContext) -> None:
    """run_sync returns the function's result and raises its errors."""
    assert await hub.run_sync(max, 1, 2) == 2
    with pytest.raises(KeyError):
        await hub.run_sync({}.__getitem__, "x")


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """A server on loopback that redirects and sets cookies."""

    async def redirect(_: web.Request) -> web.Response:
        raise web.HTTPFound("/secret")

    async def cookie(request: web.Request) -> web.Response:
        response = web.Response(text=request.headers.get("Cookie", "none"))
        response.set_cookie("session", "1")
        return response

    app = web.Application()
    app.router.add_get("/redirect", redirect)
    app.router.add_get("/cookie", cookie)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_http_follows_no_redirect_and_keeps_no_cookie(hub: HubContext, server: str) -> None:
    """A redirect is an error, or an answer with ``allow_redirects=False``; cookies are not stored."""
    with pytest.raises(aiohttp.ClientError, match="302 redirect refused"):
        await hub.http.get(f"{server}/redirect")
    async with hub.http.get(f"{server}/redirect", allow_redirects=False) as answer:
        assert answer.status == 302
    for _ in range(2):
        async with hub.http.get(f"{server}/cookie") as answer:
            assert await answer.text() == "none"
    assert not hub.http.trust_env


async def test_secrets(hub: HubContext) -> None:
    """A credential is read, a missing one is a CredentialError, a wrong reference is terminal."""
    assert await hub.secret({"env": "TOKEN"}).get() == "hunter2"
    assert await hub.secret({"env": "TOKEN"}).get(reload=True) == "hunter2"
    with pytest.raises(CredentialError):
        await hub.secret({"env": "NO_SUCH_VARIABLE"}).get()
    with pytest.raises(TerminalProviderError):
        hub.secret({"value": "inline"})


async def test_no_proxy_by_default(hub: HubContext) -> None:
    """Without --proxy-from-environment there is no proxy."""
    assert hub.proxy("https://api.test/") is None


async def test_redact(hub: HubContext) -> None:
    """A credential that was read is removed from texts."""
    await hub.secret({"env": "TOKEN"}).get()
    assert "hunter2" not in hub.redact("it was hunter2")


def test_hosts(hub: HubContext) -> None:
    """Only the provider's default host and hosts named by --allow-api-host are allowed."""
    hub.check_api_host("api.ionos.com", "api.ionos.com")
    hub.check_api_host("api.test", "api.ionos.com")
    with pytest.raises(TerminalProviderError, match="--allow-api-host"):
        hub.check_api_host("evil.test", "api.ionos.com")


async def test_programs(hub: HubContext) -> None:
    """Only programs named by --allow-exec run, and one that prints too much is a transient error."""
    assert hub.check_program("/bin/echo") == hub.check_program("echo") == "/bin/echo"
    with pytest.raises(TerminalProviderError, match="--allow-exec"):
        hub.check_program("/bin/sh")
    with pytest.raises(TerminalProviderError):
        await hub.run_program(["/bin/sh"])
    with pytest.raises(TransientProviderError, match="wrote more than 2 bytes"):
        await hub.run_program(["echo", "hello"], stdout_limit=2)
    assert (await hub.run_program(["echo", "hello"])).stdout == b"hello\n"


async def test_files(cluster: ClusterContext, tmp_path: Path) -> None:
    """Only regular files inside the folder, up to the limit in bytes, can be read."""
    (tmp_path / "inside").write_text("abc")
    (tmp_path / "out").symlink_to("/etc/passwd")
    assert await cluster.read_file("inside", limit=3) == b"abc"
    assert await cluster.read_file(str(tmp_path / "inside"), limit=3) == b"abc"
    for path in ("out", "/etc/passwd", "../x"):
        with pytest.raises(TerminalProviderError, match="outside"):
            await cluster.read_file(path, limit=100)
    with pytest.raises(TransientProviderError, match="larger than 2 bytes"):
        await cluster.read_file("inside", limit=2)
    with pytest.raises(TransientProviderError, match="No such file"):
        await cluster.read_file("missing", limit=2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TransientProviderError, match="not a regular file"):
        await cluster.read_file("pipe", limit=2)


def test_names_and_api(cluster: ClusterContext, tmp_path: Path) -> None:
    """A cluster without an API refuses to read it."""
    cluster.changed()
    assert (cluster.name, cluster.folder) == ("c1", str(tmp_path))
    with pytest.raises(TerminalProviderError):
        cluster.api.services("default", "kubernetes")
    with pytest.raises(TerminalProviderError):
        cluster.api.slices("default", "kubernetes")


async def test_http_is_one_session(hub: HubContext) -> None:
    """The HTTP session is created once."""
    assert hub.http is hub.http
