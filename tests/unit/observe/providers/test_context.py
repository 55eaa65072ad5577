"""HubContext and ClusterContext: threads, HTTP, and the limits of the flags."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import ssl
import threading
from pathlib import Path

import aiohttp
import pytest

from hub.errors import ProviderError
from hub.kube.proxy import no_proxy, parse_proxy
from hub.observe.providers.context import Limits, ProviderCluster, ProviderHub
from hub.observe.providers.faults import describe
from hub.plugin import ClusterContext, HubContext, TerminalProviderError, TransientProviderError
from hub.plugin.http import SharedHttp
from hub.runtime.clock import SystemClock
from tests.support.crowd import Crowd
from tests.support.forward_proxy import ForwardProxy
from tests.unit.kube.test_client import AUTHORITY, RawServer


def hub(limits: Limits | None = None, **fields: object) -> ProviderHub:
    """The context that a provider gets."""
    return ProviderHub("ionos", clock=SystemClock(), limits=limits, **fields)  # type: ignore[arg-type]


async def test_run_sync_returns_raises_and_keeps_context() -> None:
    """``run_sync`` returns the result, raises the exception, and keeps context variables."""
    variable = contextvars.ContextVar("variable", default="")
    variable.set("here")
    context = hub()
    assert await context.run_sync(lambda a, b: (a + b, variable.get()), 1, 2) == (3, "here")
    with pytest.raises(KeyError):
        await context.run_sync({}.__getitem__, "x")
    with pytest.raises(ProviderError, match="StopIteration"):
        await context.run_sync(lambda: next(iter(())))
    with pytest.raises(ProviderError, match="SystemExit"):
        await context.run_sync(exit)


async def test_run_sync_is_bounded() -> None:
    """At most ``threads`` calls run at once; a cancelled call counts until it ends."""
    crowd = Crowd()
    context = hub(threads=2)
    tasks = [asyncio.create_task(context.run_sync(crowd.visit, 0.05)) for _ in range(6)]
    await asyncio.sleep(0.02)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert crowd.most == 2


async def test_a_thread_that_cannot_be_started_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the slot is free again."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    context = hub(threads=1)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TransientProviderError, match="no thread for a blocking call: can't start new thread"):
            await context.run_sync(int)
    async with asyncio.timeout(1):
        assert await context.run_sync(int) == 0


async def test_a_hanging_call_does_not_hold_its_caller() -> None:
    """A cancelled caller stops waiting at once, and the thread is a daemon, so that the hub can end."""
    release = threading.Event()
    context = hub()
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await context.run_sync(release.wait)
        assert next(t for t in threading.enumerate() if t.name == "provider ionos").daemon
    finally:
        release.set()


async def test_providers_share_a_session() -> None:
    """Contexts with the same SharedHttp have one session."""
    shared = SharedHttp()
    assert hub(http=shared).http is hub(http=shared).http
    await shared.close()


def test_proxy_is_the_environments() -> None:
    """HTTPS_PROXY leads to https URLs, unless NO_PROXY excepts the host; a SOCKS proxy is an error that says so."""
    context = hub(Limits(proxies=no_proxy(parse_proxy("http://j%40e:hunter2@proxy:3128"), "direct.test")))
    assert context.proxy("https://api.test/v6") == "http://j%40e:hunter2@proxy:3128"
    assert context.proxy("http://api.test/v6") is None
    assert context.proxy("https://direct.test:443/v6") is None
    assert hub().proxy("https://api.test/v6") is None
    socks = hub(Limits(proxies=no_proxy(parse_proxy("socks5://j:hunter2@proxy"), "direct.test")))
    assert socks.proxy("https://direct.test/") is None
    with pytest.raises(TerminalProviderError, match=r"SOCKS proxy, and HTTPS_PROXY is socks5://proxy:1080") as caught:
        socks.proxy("https://api.test/")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("kind", ["http", "https"])
async def test_session_passes_the_proxy(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of the session go through the proxy, with its login; a refusal shows no password once it is redacted."""
    certificate = tmp_path / "proxy.pem"
    own = AUTHORITY.server("127.0.0.1")
    certificate.write_text(own.pem + own.key_pem)
    tls = ssl.create_default_context(cadata=AUTHORITY.pem)
    async with RawServer() as server:
        names = {f"api.test:{server.port}": server.port}
        with ForwardProxy(kind, certificate=certificate, login="joe:hunter2", names=names) as proxy:
            context = hub(Limits(proxies=no_proxy(parse_proxy(proxy.url()), "")))
            url = f"https://api.test:{server.port}/v6"
            async with context.http.get(url, ssl=tls) as answer:
                assert await answer.text() == "{}"
            await context.close()
            assert (proxy.awaits(1)[0]["asked"], proxy.seen[0]["login"]) == (f"api.test:{server.port}", "joe:hunter2")
            wrong = hub(Limits(proxies=no_proxy(parse_proxy(proxy.url(login="joe:hunter3")), "")))
            with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
                await wrong.http.get(url, ssl=tls)
            await wrong.close()
    text = describe(caught.value, wrong.secrets())
    assert "407" in text
    assert "hunter3" not in text + repr(wrong) + wrong.redact(f"{caught.value} {caught.value!r}")
    assert base64.b64encode(b"joe:hunter3").decode() not in text + wrong.redact(repr(caught.value))


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("api.ionos.com", True),
        ("API.ionos.com.", True),
        ("api.test", True),
        ("api.test:8443", True),
        ("other.test:8443", True),
        ("other.test", False),
        ("other.test:1", False),
        ("evil.com", False),
        ("api.ionos.com.evil.com", False),
        ("", False),
    ],
)
def test_api_hosts_beside_the_default_need_a_flag(host: str, allowed: bool) -> None:
    """Only the plugin's default host and hosts of --allow-api-host, with or without port, are allowed."""
    context = hub(Limits(allow_api_hosts=frozenset({"api.test", "Other.test:8443"})))
    if allowed:
        context.check_api_host(host, "api.ionos.com")
    else:
        with pytest.raises(TerminalProviderError, match="--allow-api-host"):
            context.check_api_host(host, "api.ionos.com")


@pytest.mark.parametrize(
    ("program", "runs"),
    [
        ("/bin/echo", "/bin/echo"),
        ("echo", "/bin/echo"),
        ("/usr/bin/../../bin/echo", None),
        ("./echo", None),
        ("bin/echo", None),
        ("sh", None),
        ("", None),
        ("-c", None),
    ],
)
def test_programs_need_a_flag(program: str, runs: str | None) -> None:
    """Only programs of --allow-exec are allowed, by full path or by base name, without a search in PATH."""
    context = hub(Limits(allow_exec=frozenset({"/bin/echo"})))
    if runs is not None:
        assert context.check_program(program) == runs
    else:
        with pytest.raises(TerminalProviderError, match="--allow-exec"):
            context.check_program(program)


async def test_run_program_runs_only_allowed_programs() -> None:
    """An allowed program returns its output; other programs, and failures to start, are provider errors."""
    context = hub(Limits(allow_exec=frozenset({"/bin/echo", "/no/such/program"})))
    done = await context.run_program(["echo", "hello"])
    assert (done.exit_code, done.stdout) == (0, b"hello\n")
    with pytest.raises(TerminalProviderError):
        await context.run_program(["/bin/sh", "-c", "true"])
    with pytest.raises(TransientProviderError, match="cannot be started"):
        await context.run_program(["/no/such/program"])
    with pytest.raises(TerminalProviderError, match="no program"):
        await context.run_program([])


async def test_descriptions_hide_credentials_and_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is described in one line of at most 256 characters, without credentials."""
    monkeypatch.setenv("TOKEN_X", "hunter2")
    context = hub()
    await context.secret({"env": "TOKEN_X"}).get()
    assert describe(ValueError("with hunter2\nin it"), context.secrets()) == "ValueError: with *** in it"
    assert describe(ExceptionGroup("many", [ExceptionGroup("inner", [KeyError("k")])])) == "KeyError: 'k'"
    assert describe(TransientProviderError("the API is away")) == "the API is away"
    assert describe(RuntimeError()) == "RuntimeError"
    assert len(describe(ValueError("x" * 10_000))) == 256
    assert context.redact("token: hunter2") == "token: ***"


async def test_a_credential_of_several_lines_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential of several lines is removed before the text is joined into one line."""
    monkeypatch.setenv("KEY_X", "-----BEGIN KEY-----\nc2VjcmV0\n-----END KEY-----\n")
    context = hub()
    key = await context.secret({"env": "KEY_X"}).get()
    assert describe(ValueError(f"no key in {key}\nat all"), context.secrets()) == "ValueError: no key in *** at all"


def test_equal_references_share_one_value(tmp_path: Path) -> None:
    """Equal references return the same credential."""
    context = hub(Limits(credentials_dir=str(tmp_path)))
    assert context.secret({"file": "a"}) is context.secret({"file": "a"})
    assert context.secret({"file": "a"}) is not context.secret({"file": "b"})


def test_contexts_implement_the_plugin_protocols() -> None:
    """The contexts implement the protocols of the plugin API."""
    context: HubContext = hub()
    called: list[str] = []
    cluster: ClusterContext = ProviderCluster(context, "c1", "/etc/hub", lambda: called.append("changed"))
    cluster.changed()
    assert (cluster.name, cluster.folder, cluster.hub, called) == ("c1", "/etc/hub", context, ["changed"])
    assert context.logger.name == "hub.provider.ionos"
    assert context.clock.now() > 0
    with pytest.raises(TerminalProviderError, match="no kubeconfig"):
        cluster.api.services("default", "kubernetes")
    with pytest.raises(TerminalProviderError, match="no kubeconfig"):
        cluster.api.slices("default", "kubernetes")


async def test_killed_program_has_a_negative_exit_code() -> None:
    """A killed program has a negative exit code."""
    hub = ProviderHub("p", clock=SystemClock(), limits=Limits(frozenset({"/bin/sh"})))
    ended = await hub.run_program(["sh", "-c", "echo half; kill -9 $$"])
    assert (ended.exit_code, ended.stdout) == (-9, b"half\n")
