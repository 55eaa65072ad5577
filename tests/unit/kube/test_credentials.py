"""Credentials over time: rotation, expiry, and plugins that misbehave in every way."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hub.errors import CredentialError
from hub.kube import credentials as module
from hub.kube.cluster_access import Auth, ClientCertificate, ClusterAccess, Exec, Token, TokenFile
from hub.kube.credentials import Credentials, ends_soon
from hub.kube.secret import Secret
from tests.support.apiserver.pki import Authority
from tests.support.clocks import ManualClock
from tests.support.waiting import until

AUTHORITY = Authority("test-ca")
FIRST = AUTHORITY.client("first", lifetime=timedelta(days=2))
SECOND = AUTHORITY.client("second", lifetime=timedelta(days=4))
DAY = 86_400.0
V1 = "client.authentication.k8s.io/v1"


@pytest.fixture
def clock() -> ManualClock:
    """A clock of the test's own."""
    return ManualClock(wall_time=datetime.now(UTC).timestamp())


def of(auth: Auth, clock: ManualClock, ca_file: Path | None = None) -> Credentials:
    """Credentials of one cluster."""
    ca_data = None if ca_file else AUTHORITY.pem.encode()
    access = ClusterAccess("https://api:6443", auth, 'kubeconfig x, context "y"', ca_data=ca_data, ca_file=ca_file)
    return Credentials(access, clock)


async def token(credentials: Credentials) -> str:
    """The bearer token of the next request."""
    return (await credentials.headers())["Authorization"].removeprefix("Bearer ")


def jwt(expires: float | None) -> str:
    """An unsigned token with an exp claim."""
    claims = {"sub": "hub"} if expires is None else {"sub": "hub", "exp": expires}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.sig"


# -- static and files -----------------------------------------------------------------------------------------


async def test_static_token_is_sent_and_cannot_be_reloaded(clock: ManualClock) -> None:
    """A token written in the kubeconfig is all there is: a 401 is final."""
    credentials = of(Token(Secret("abc")), clock)
    assert (await token(credentials), await credentials.reload(), credentials.generation) == ("abc", False, 1)


async def test_repr_shows_no_secret(clock: ManualClock) -> None:
    """Credentials can be logged."""
    credentials = of(Token(Secret("hunter2")), clock)
    await credentials.headers()
    assert "hunter2" not in f"{credentials!r} {credentials.access!r} {credentials._material!r}"


async def test_token_file_is_stripped_and_followed(clock: ManualClock, tmp_path: Path) -> None:
    """A rotated token is used within five seconds, and no file is read in between."""
    path = tmp_path / "token"
    path.write_text("one\n")
    credentials = of(TokenFile(path), clock)
    seen = [await token(credentials)]
    path.write_text("two!\n")
    seen.append(await token(credentials))
    clock.advance(5)
    seen.append(await token(credentials))
    assert (seen, credentials.generation) == (["one", "one", "two!"], 1)


async def test_token_file_behind_a_flipped_symlink_is_followed(clock: ManualClock, tmp_path: Path) -> None:
    """Kubernetes rotates a mounted Secret by moving a symlink; same size and mtime do not hide that."""
    for name in ("..1", "..2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(f"t{name}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")
    credentials = of(TokenFile(tmp_path / "token"), clock)
    before = await token(credentials)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    clock.advance(5)
    assert (before, await token(credentials)) == ("t..1", "t..2")


async def test_reload_after_401_reads_the_token_file_at_once(clock: ManualClock, tmp_path: Path) -> None:
    """A 401 does not wait for the next look; unchanged content says that another try is useless."""
    path = tmp_path / "token"
    path.write_text("one")
    credentials = of(TokenFile(path), clock)
    used = await credentials.headers()
    assert await credentials.reload() is False
    path.write_text("two")
    assert await credentials.reload() is True
    assert await credentials.reload(used) is True, "refused headers that are no longer ours"
    assert await token(credentials) == "two"


@pytest.mark.parametrize("content", [None, "", " \n", "two words", "bad\x00", "é"])
async def test_broken_token_file_keeps_the_token_in_use(
    clock: ManualClock, tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that vanished or holds no token is warned about once; the old token goes on."""
    path = tmp_path / "token"
    path.write_text("one")
    credentials = of(TokenFile(path), clock)
    await credentials.headers()
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    seen = []
    for _ in range(20):
        clock.advance(30)
        seen.append(await token(credentials))
    assert set(seen) == {"one"}
    assert len(caplog.records) == 1
    path.write_text("three")
    clock.advance(120)
    assert await token(credentials) == "three"


@pytest.mark.parametrize("content", [None, "", "two words"])
async def test_token_file_never_good_is_an_error(
    clock: ManualClock, tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a token there is no request, on any call; once the file is there it is used."""
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    credentials = of(TokenFile(path), clock)
    for _ in range(3):
        with pytest.raises(CredentialError, match=r'^kubeconfig x, context "y": token file'):
            await credentials.headers()
    assert "in use" not in caplog.text
    with pytest.raises(CredentialError):
        credentials.ssl_context()
    path.write_text("good")
    clock.advance(120)
    assert await token(credentials) == "good"


async def test_broken_token_file_matters_when_its_token_has_expired(
    clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The old token is kept until its own end and not beyond, on the clock that does not jump."""
    path = tmp_path / "token"
    path.write_text(jwt(clock.wall() + 600))
    credentials = of(TokenFile(path), clock)
    await credentials.headers()
    path.unlink()
    clock.advance(300)
    clock.wall_time += 3600
    await credentials.headers()
    assert caplog.messages[-1].endswith("No such file or directory; the credential in use stays until it expires")
    clock.advance(301)
    with pytest.raises(CredentialError, match="cannot be read: No such file"):
        await credentials.headers()


async def test_wall_clock_jump_changes_nothing(clock: ManualClock, tmp_path: Path) -> None:
    """With readable files the server judges, whatever this machine's calendar says."""
    path = tmp_path / "token"
    written = jwt(clock.wall() + 600)
    path.write_text(written)
    credentials = of(TokenFile(path), clock)
    for jump in (3600, -7200, 36000):
        clock.wall_time += jump
        clock.advance(10)
        assert await token(credentials) == written


async def test_reload_explains_an_expired_token(clock: ManualClock) -> None:
    """A 401 for a token past its own end is an error that says so."""
    credentials = of(Token(Secret(jwt(clock.wall() - 60))), clock)
    await credentials.headers()
    with pytest.raises(CredentialError, match=r"the credential expired at 2\d\d\d-.*Z; renew it"):
        await credentials.reload()


@pytest.mark.parametrize("value", ["abc", "a.b.c", "e30.e30.x", jwt(None), jwt(-5), jwt(1e300), "e30.W10.x"])
async def test_expires_at_is_unknown_for_other_tokens(clock: ManualClock, value: str) -> None:
    """Only a JWT with a sensible exp claim tells its end."""
    credentials = of(Token(Secret(value)), clock)
    await credentials.headers()
    assert credentials.expires_at() is None


async def test_expires_at_is_the_earlier_of_token_and_certificate(clock: ManualClock) -> None:
    """Whatever ends first ends the access."""
    soon = clock.wall() + 3600
    pair = FIRST.pem.encode(), Secret(FIRST.key_pem)
    only = of(ClientCertificate(*pair), clock)
    both = of(ClientCertificate(*pair, Token(Secret(jwt(soon)))), clock)
    assert (await only.headers(), await token(both)) == ({}, jwt(soon))
    assert both.expires_at() == soon
    assert only.expires_at() == pytest.approx(clock.wall() + 2 * 86400, abs=3600)


@pytest.mark.parametrize(
    ("life", "left", "soon"),
    [
        (365 * DAY, 15 * DAY, False),
        (365 * DAY, 14 * DAY, True),
        (30 * DAY, 7 * DAY, False),
        (30 * DAY, 6 * DAY, True),
        (3600, 721, False),
        (3600, 720, True),
        (None, 15 * DAY, False),
        (None, 14 * DAY, True),
        (365 * DAY, -1, True),
    ],
)
def test_a_credential_ends_soon(life: float | None, left: float, soon: bool) -> None:
    """At 14 days, where that is no more than a fifth of its life; without a beginning the days count alone."""
    ends = 1_900_000_000.0
    assert ends_soon(None if life is None else ends - life, ends, ends - left) is soon


@pytest.mark.parametrize("claims", [{"iat": 1_000.0}, {"nbf": 1_000}, {"iat": "x"}, {"iat": 9e9}, {}])
async def test_a_token_tells_when_to_renew_it(clock: ManualClock, claims: dict[str, Any]) -> None:
    """Whatever it says of its beginning; one of many years is not told of before two weeks are left."""
    ends = clock.wall() + 13 * DAY
    text = base64.urlsafe_b64encode(json.dumps({"exp": ends, **claims}).encode()).rstrip(b"=").decode()
    credentials = of(Token(Secret(f"e30.{text}.sig")), clock)
    await credentials.headers()
    assert credentials.expiring() == ends


async def test_a_credential_that_has_most_of_its_life_before_it_is_not_told_of(clock: ManualClock) -> None:
    """A certificate of two days, and a token without an end."""
    certificate = of(ClientCertificate(FIRST.pem.encode(), Secret(FIRST.key_pem)), clock)
    endless = of(Token(Secret("opaque")), clock)
    for each in (certificate, endless):
        assert each.expiring() is None
        await each.headers()
        assert each.expiring() is None


class Hung:
    """A mount: a path on it whose ``stat`` waits until the test lets it go on."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0
        stat = os.stat

        def slow(asked: Any, **more: Any) -> os.stat_result:
            if str(asked) == str(path):
                self.asked += 1
                self.answers.wait(10)
            return stat(asked, **more)

        monkeypatch.setattr(os, "stat", slow)


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hung]:
    """Where the file ``token`` lies."""
    monkeypatch.setattr(module, "READ_TIMEOUT", 2.0)
    made = Hung(tmp_path / "token", monkeypatch)
    yield made
    made.answers.set()


async def test_token_file_on_a_hung_mount_stops_nobody(clock: ManualClock, tmp_path: Path, mount: Hung) -> None:
    """The event loop goes on; the token in use stays, and is asked for by one thread until the mount answers."""
    path = tmp_path / "token"
    path.write_text("one")
    credentials = of(TokenFile(path), clock)
    await credentials.headers()
    path.write_text("two!")
    mount.answers.clear()
    clock.advance(5)
    asking = asyncio.create_task(token(credentials))
    for _ in range(5):
        async with asyncio.timeout(1.5):
            await asyncio.sleep(0.01)
            assert not asking.done()
    async with asyncio.timeout(5):
        assert await asking == "one"
    for _ in range(10):
        clock.advance(100)
        async with asyncio.timeout(1.5):
            assert await token(credentials) == "one"
    assert mount.asked == 2
    mount.answers.set()
    await until(lambda: credentials._source._token._reader._running is None)  # type: ignore[attr-defined]
    clock.advance(100)
    assert await token(credentials) == "two!"


async def test_token_file_that_never_answered_is_an_error(clock: ManualClock, tmp_path: Path, mount: Hung) -> None:
    """In time, which names the file."""
    (tmp_path / "token").write_text("one")
    mount.answers.clear()
    with pytest.raises(CredentialError, match=rf"token file {tmp_path}/token: does not answer within 2 s"):
        async with asyncio.timeout(5):
            await of(TokenFile(tmp_path / "token"), clock).headers()


# -- certificates ---------------------------------------------------------------------------------------------


async def test_rotated_certificate_files_give_a_new_context(clock: ManualClock, tmp_path: Path) -> None:
    """Certificate and key are written one after the other; only the complete pair is taken over."""
    certificate, key = tmp_path / "crt", tmp_path / "key"
    certificate.write_text(FIRST.pem)
    key.write_text(FIRST.key_pem)
    credentials = of(ClientCertificate(certificate, key), clock)
    await credentials.headers()
    first = credentials.ssl_context()
    certificate.write_text(SECOND.pem)
    clock.advance(5)
    await credentials.headers()
    assert (credentials.generation, credentials.ssl_context() is first) == (1, True)
    key.write_text(SECOND.key_pem)
    clock.advance(10)
    await credentials.headers()
    assert (credentials.generation, credentials.ssl_context() is first) == (2, False)
    assert credentials.expires_at() == pytest.approx(clock.wall() + 4 * 86400, abs=3600)


async def test_rotated_ca_file_gives_a_new_context(clock: ManualClock, tmp_path: Path) -> None:
    """A cluster whose CA was replaced is reached again without a restart; an unchanged file rebuilds nothing."""
    ca = tmp_path / "ca.crt"
    ca.write_text(AUTHORITY.pem)
    credentials = of(Token(Secret("x")), clock, ca_file=ca)
    generations = []
    for text in (AUTHORITY.pem, AUTHORITY.pem + Authority("next").pem, "garbage", ""):
        ca.write_text(text)
        clock.advance(60)
        await credentials.headers()
        generations.append(credentials.generation)
    assert generations == [1, 2, 2, 2]


async def test_mismatched_pair_is_an_error_from_the_start(clock: ManualClock) -> None:
    """A key of another certificate gives no context and no request."""
    credentials = of(ClientCertificate(FIRST.pem.encode(), Secret(SECOND.key_pem)), clock)
    with pytest.raises(CredentialError, match="does not belong"):
        await credentials.headers()


async def test_reload_explains_an_expired_certificate(clock: ManualClock) -> None:
    """kube-apiserver answers an expired certificate with a bare 401; the error says why."""
    old = AUTHORITY.client("hub", lifetime=timedelta(days=-1))
    credentials = of(ClientCertificate(old.pem.encode(), Secret(old.key_pem)), clock)
    await credentials.headers()
    with pytest.raises(CredentialError, match="expired at"):
        await credentials.reload()


# -- exec plugins ---------------------------------------------------------------------------------------------


class Plugin:
    """A shell script as exec plugin that counts its runs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "plugin"
        self.runs_file = folder / "runs"
        self.answers(token="t1")

    def script(self, body: str) -> None:
        """Replace what it does."""
        new = self.path.with_suffix(".new")
        new.write_text(f"#!/bin/sh\necho run >> {self.runs_file}\n{body}\n")
        new.chmod(0o755)
        new.replace(self.path)

    def answers(self, api_version: str = V1, kind: str = "ExecCredential", **status: object) -> None:
        """Make it print an ExecCredential."""
        answer = json.dumps({"apiVersion": api_version, "kind": kind, "status": status})
        self.script(f"cat <<'END'\n{answer}\nEND")

    @property
    def runs(self) -> int:
        """How often it ran."""
        return len(self.runs_file.read_text().split()) if self.runs_file.exists() else 0

    def auth(self, **changes: object) -> Exec:
        """The kubeconfig's exec section."""
        return Exec(str(self.path), **changes)  # type: ignore[arg-type]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """A plugin that gives the token t1."""
    return Plugin(tmp_path)


def stamp(moment: float) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


async def test_exec_token_is_cached_for_ever_without_an_expiry(clock: ManualClock, plugin: Plugin) -> None:
    """Without expirationTimestamp only a 401 runs the plugin again."""
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    clock.advance(1e6)
    assert (await token(credentials), plugin.runs) == ("t1", 1)
    plugin.answers(token="t2")
    assert (await credentials.reload(), await token(credentials), plugin.runs) == (True, "t2", 2)


async def test_exec_token_is_renewed_five_minutes_before_its_end(clock: ManualClock, plugin: Plugin) -> None:
    """A quarter of an hour is used for ten minutes, then the plugin runs again."""
    plugin.answers(token="t1", expirationTimestamp=stamp(clock.wall() + 900))
    credentials = of(plugin.auth(), clock)
    assert await token(credentials) == "t1"
    assert credentials.expires_at() == pytest.approx(clock.wall() + 900)
    plugin.answers(token="t2", expirationTimestamp=stamp(clock.wall() + 1800))
    clock.advance(599)
    assert await token(credentials) == "t1"
    clock.advance(2)
    assert (await token(credentials), plugin.runs) == ("t2", 2)


async def test_exec_token_is_told_of_only_while_it_cannot_be_renewed(clock: ManualClock, plugin: Plugin) -> None:
    """A plugin renews it by itself; one that fails leaves what was there in use until its end."""
    end = clock.wall() + 900
    plugin.answers(token="t1", expirationTimestamp=stamp(end))
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    assert credentials.expiring() is None
    plugin.script("exit 1")
    clock.advance(700)
    await credentials.headers()
    assert credentials.expiring() == pytest.approx(end)


async def test_exec_short_lived_token_does_not_run_the_plugin_for_every_request(
    clock: ManualClock, plugin: Plugin
) -> None:
    """A token for one minute is renewed at half its life, not at once."""
    plugin.answers(token="t1", expirationTimestamp=stamp(clock.wall() + 60))
    credentials = of(plugin.auth(), clock)
    for _ in range(29):
        await credentials.headers()
        clock.advance(1)
    assert plugin.runs == 1


async def test_exec_concurrent_requests_share_one_run(clock: ManualClock, plugin: Plugin) -> None:
    """A hundred requests at start run the plugin once."""
    credentials = of(plugin.auth(), clock)
    await asyncio.gather(*(credentials.headers() for _ in range(100)))
    assert plugin.runs == 1


async def test_exec_renewal_does_not_hold_up_requests(clock: ManualClock, plugin: Plugin) -> None:
    """While one caller renews, others use what still holds."""
    plugin.answers(token="t1", expirationTimestamp=stamp(clock.wall() + 900))
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    plugin.script("sleep 1000")
    clock.advance(700)
    renewing = asyncio.create_task(credentials.headers())
    await until(lambda: plugin.runs == 2)
    assert await token(credentials) == "t1"
    renewing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await renewing


async def test_exec_renewal_outlives_the_request_that_began_it(clock: ManualClock, plugin: Plugin) -> None:
    """Requests in a hurry, such as a Lease's, would else start a slow plugin again and again and never see its end."""
    plugin.answers(token="t1", expirationTimestamp=stamp(clock.wall() + 900))
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    plugin.script(
        f"sleep 0.5\necho '{json.dumps({'apiVersion': V1, 'kind': 'ExecCredential', 'status': {'token': 't2'}})}'"
    )
    clock.advance(700)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await credentials.headers()
    async with asyncio.timeout(0.1):
        assert await token(credentials) == "t1"
    await until(lambda: credentials._headers == {"Authorization": "Bearer t2"})
    assert plugin.runs == 2


async def test_exec_gets_its_info_and_nothing_else(
    clock: ManualClock, plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is PATH, HOME, what the kubeconfig declares and KUBERNETES_EXEC_INFO."""
    monkeypatch.setenv("HUB_PASSWORD", "hunter2")
    monkeypatch.setenv("HOME", "/root")
    plugin.script(f"env > {tmp_path}/env; cat /dev/stdin > {tmp_path}/in; exit 1")
    auth = plugin.auth(env=(("PROFILE", "hub"),), provide_cluster_info=True, cluster_config='{"audience": "x"}')
    with pytest.raises(CredentialError):
        await of(auth, clock).headers()
    seen = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    info = json.loads(seen.pop("KUBERNETES_EXEC_INFO"))
    assert set(seen) - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "HOME", "PROFILE"}
    assert info == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://api:6443",
                "certificate-authority-data": base64.b64encode(AUTHORITY.pem.encode()).decode(),
                "config": {"audience": "x"},
            },
        },
    }
    assert (tmp_path / "in").read_text() == ""


async def test_exec_of_the_older_version_works(clock: ManualClock, plugin: Plugin) -> None:
    """v1beta1 is still what many plugins speak."""
    plugin.answers("client.authentication.k8s.io/v1beta1", token="old")
    assert await token(of(plugin.auth(api_version="client.authentication.k8s.io/v1beta1"), clock)) == "old"


async def test_exec_bare_program_is_found_on_path(
    clock: ManualClock, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's own kubeconfig may name a program without its folder."""
    monkeypatch.setenv("PATH", f"{plugin.path.parent}:/usr/bin:/bin")
    assert await token(of(Exec("plugin"), clock)) == "t1"
    with pytest.raises(CredentialError, match="not found on PATH"):
        await of(Exec("plugout"), clock).headers()


async def test_exec_client_certificate_is_used_and_rotated(clock: ManualClock, plugin: Plugin) -> None:
    """A plugin may give a certificate instead of a token; its end counts."""
    plugin.answers(clientCertificateData=FIRST.pem, clientKeyData=FIRST.key_pem)
    credentials = of(plugin.auth(), clock)
    assert await credentials.headers() == {}
    context = credentials.ssl_context()
    assert credentials.expires_at() == pytest.approx(clock.wall() + 2 * 86400, abs=3600)
    plugin.answers(clientCertificateData=SECOND.pem, clientKeyData=SECOND.key_pem)
    clock.advance(2 * 86400 - 200)
    await credentials.headers()
    assert (credentials.generation, credentials.ssl_context() is context) == (2, False)


BAD_PLUGINS = {
    "exit-1": ("echo broken >&2; exit 1", "exit code 1: broken"),
    "silent-exit": ("exit 7", "exit code 7: nothing on stderr"),
    "killed": ("kill -9 $$", "exit code -9"),
    "nothing": ("exit 0", "no ExecCredential in JSON"),
    "garbage": ("echo hunter2; head -c 1000 /dev/urandom", "no ExecCredential in JSON"),
    "array": ("echo '[\"hunter2\"]'", "no ExecCredential in JSON"),
    "wrong-type": ('echo \'{"apiVersion": "x", "kind": "ExecCredential", "status": {"token": ["hunter2"]}}\'', "JSON"),
    "floods-stdout": ("yes hunter2", "more than 65536 bytes to stdout"),
    "floods-stderr": ("yes hunter2 >&2", "more than 65536 bytes to stderr"),
    "secret-on-stderr": ("echo 'cannot use hunter2' 'token: abcdef' >&2; exit 1", r"exit code 1: cannot use \*\*\*"),
    "argument-on-stderr": ("echo \"cannot use $1\" >&2; exit 1", r"cannot use \*\*\*"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PLUGINS)
async def test_exec_failure_is_an_error_without_secrets(
    clock: ManualClock, plugin: Plugin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However a plugin fails, the error names it, nothing is sent, and no secret is shown anywhere."""
    caplog.set_level(logging.DEBUG)
    script, says = BAD_PLUGINS[name]
    plugin.script(script)
    credentials = of(plugin.auth(env=(("LOGIN", "hunter2"),), args=("hunter2",)), clock)
    with pytest.raises(CredentialError, match=says) as caught:
        await credentials.headers()
    shown = [str(caught.value), repr(caught.value), repr(credentials), caplog.text, repr(caught.value.__cause__)]
    assert "hunter2" not in "".join(shown)
    assert str(caught.value).startswith('kubeconfig x, context "y": exec plugin plugin: ')


async def test_exec_program_that_cannot_start_is_named(clock: ManualClock, plugin: Plugin) -> None:
    """A missing or not executable program is told from one that failed."""
    plugin.path.chmod(0o644)
    with pytest.raises(CredentialError, match="cannot be started: Permission denied"):
        await of(plugin.auth(), clock).headers()
    plugin.path.unlink()
    with pytest.raises(CredentialError, match="cannot be started: No such file"):
        await of(plugin.auth(), clock).headers()


BAD_ANSWERS: dict[str, tuple[dict[str, object], str]] = {
    "other-version": ({"api_version": "client.authentication.k8s.io/v1beta1", "token": "hunter2"}, f"of {V1}"),
    "other-kind": ({"kind": "Secret", "token": "hunter2"}, "no ExecCredential"),
    "empty": ({}, "neither a token nor"),
    "empty-token": ({"token": ""}, "neither a token nor"),
    "header-injection": ({"token": "hunter2\r\nX-Evil: 1"}, "cannot have"),
    "half-pair": ({"clientCertificateData": FIRST.pem}, "half of a client certificate"),
    "other-half": ({"token": "hunter2", "clientKeyData": FIRST.key_pem}, "half of a client certificate"),
    "mismatch": ({"clientCertificateData": FIRST.pem, "clientKeyData": SECOND.key_pem}, "does not belong"),
    "expired": ({"token": "hunter2", "expirationTimestamp": "2001-01-01T00:00:00Z"}, "expired at 2001-01-01"),
    "expired-jwt": ({"token": jwt(1_000_000_000)}, "expired at 2001-09-09"),
    "no-time": ({"token": "hunter2", "expirationTimestamp": "tomorrow"}, "RFC 3339"),
    "no-zone": ({"token": "hunter2", "expirationTimestamp": "2101-01-01T00:00:00"}, "RFC 3339"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_exec_answer_that_is_none_is_an_error(clock: ManualClock, plugin: Plugin, name: str) -> None:
    """An answer without a usable credential is a failure, not an anonymous request."""
    answer, says = BAD_ANSWERS[name]
    plugin.answers(**answer)  # type: ignore[arg-type]
    with pytest.raises(CredentialError, match=says) as caught:
        await of(plugin.auth(), clock).headers()
    assert "hunter2" not in str(caught.value)


async def test_exec_that_hangs_is_killed(clock: ManualClock, plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time the plugin is gone, and so is the request."""
    monkeypatch.setattr(module, "EXEC_TIMEOUT", 0.3)
    plugin.script("sleep 1000")
    with pytest.raises(CredentialError, match=r"did not end within 0.3 s and was killed"):
        await of(plugin.auth(), clock).headers()


async def test_exec_is_killed_with_its_group_on_cancellation(
    clock: ManualClock, plugin: Plugin, tmp_path: Path
) -> None:
    """A request that is given up leaves no plugin behind, and the next one starts afresh."""
    plugin.script(f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    credentials = of(plugin.auth(), clock)
    task = asyncio.create_task(credentials.headers())
    await until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text().strip()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    child = Path("/proc") / (tmp_path / "pid").read_text().strip() / "stat"
    await until(lambda: not child.exists() or ") Z " in child.read_text())
    plugin.answers(token="t2")
    assert await token(credentials) == "t2"


async def test_exec_failure_keeps_the_old_credential_until_its_end(
    clock: ManualClock, plugin: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    """A plugin that fails at renewal costs nothing before the credential's own expiry, and is not run in a loop."""
    plugin.answers(token="t1", expirationTimestamp=stamp(clock.wall() + 900))
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    plugin.script("exit 1")
    clock.advance(601)
    for _ in range(29):
        assert await token(credentials) == "t1"
        clock.advance(10)
    assert plugin.runs < 15
    assert len(caplog.records) == 1
    clock.advance(20)
    with pytest.raises(CredentialError, match="exit code 1"):
        await credentials.headers()
    plugin.answers(token="t2")
    clock.advance(80)
    assert await token(credentials) == "t2"


async def test_exec_failing_from_the_start_backs_off(clock: ManualClock, plugin: Plugin) -> None:
    """Requests in between fail at once, with the same reason and without a run."""
    plugin.script("exit 1")
    credentials = of(plugin.auth(), clock)
    for _ in range(100):
        with pytest.raises(CredentialError, match="exit code 1"):
            await credentials.headers()
        clock.advance(0.1)
    assert plugin.runs <= 4


async def test_exec_does_not_run_for_every_401(clock: ManualClock, plugin: Plugin) -> None:
    """A server that refuses everything makes the plugin run every ten seconds at most."""
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    for _ in range(100):
        await credentials.reload()
        clock.advance(0.5)
    assert plugin.runs <= 6


async def test_exec_reload_outlives_the_request_that_began_it(clock: ManualClock, plugin: Plugin) -> None:
    """As a renewal: after a 401 a Lease's requests must not kill the program that would end it."""
    credentials = of(plugin.auth(), clock)
    used = await credentials.headers()
    answer = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "t2"}}
    plugin.script(f"sleep 0.5\necho '{json.dumps(answer)}'")
    clock.advance(60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await credentials.reload(used)
    assert await credentials.reload(used)
    assert (await token(credentials), plugin.runs) == ("t2", 2)


async def test_exec_requests_at_once_are_not_held_up_by_a_renewal(clock: ManualClock, plugin: Plugin) -> None:
    """All but the one that began it go on with what still holds."""
    plugin.answers(token="t1", expirationTimestamp=stamp(clock.wall() + 900))
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    plugin.script("sleep 1000")
    clock.advance(700)
    requests = [asyncio.create_task(token(credentials)) for _ in range(3)]
    _, waiting = await asyncio.wait(requests, timeout=0.2)
    assert waiting == {requests[0]}
    requests[0].cancel()
    await asyncio.wait(requests)


async def test_server_identity_comes_from_the_kubeconfig(clock: ManualClock) -> None:
    """The client reads server and verified name here."""
    access = ClusterAccess("https://api:6443", Token(Secret("x")), "x", tls_server_name="api.internal")
    credentials = Credentials(access, clock)
    assert (credentials.server, credentials.server_hostname) == ("https://api:6443", "api.internal")


async def test_context_verifies_always(clock: ManualClock) -> None:
    """There is no way to an unverified connection."""
    credentials = of(Token(Secret("x")), clock)
    await credentials.headers()
    context = credentials.ssl_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
