"""Credentials over time: rotation, expiry, and plugins that misbehave in many ways."""

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
from hub.kube.proxy import parse_proxy
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
    """A clock that the test controls."""
    return ManualClock(wall_time=datetime.now(UTC).timestamp())


def of(auth: Auth, clock: ManualClock, ca_file: Path | None = None) -> Credentials:
    """The credentials of one cluster."""
    ca_data = None if ca_file else AUTHORITY.pem.encode()
    access = ClusterAccess("https://api:6443", auth, 'kubeconfig x, context "y"', ca_data=ca_data, ca_file=ca_file)
    return Credentials(access, clock)


async def token(credentials: Credentials) -> str:
    """The bearer token that the next request would use."""
    return (await credentials.headers())["Authorization"].removeprefix("Bearer ")


def jwt(expires: float | None) -> str:
    """An unsigned token with an exp claim."""
    claims = {"sub": "hub"} if expires is None else {"sub": "hub", "exp": expires}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.sig"


# -- static and files -----------------------------------------------------------------------------------------


async def test_static_token_is_sent_and_cannot_be_reloaded(clock: ManualClock) -> None:
    """A token in the kubeconfig cannot change, so a 401 is final."""
    credentials = of(Token(Secret("abc")), clock)
    assert (await token(credentials), await credentials.reload(), credentials.generation) == ("abc", False, 1)


async def test_repr_shows_no_secret(clock: ManualClock) -> None:
    """The ``repr`` of credentials shows no secret, so they can be logged."""
    credentials = of(Token(Secret("hunter2")), clock)
    await credentials.headers()
    assert "hunter2" not in f"{credentials!r} {credentials.access!r} {credentials._material!r}"


async def test_token_file_is_stripped_and_followed(clock: ManualClock, tmp_path: Path) -> None:
    """A rotated token is used within five seconds; in between the file is not read."""
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
    """A rotation that moves a symlink, as for a mounted Secret, is noticed even with the same size and mtime."""
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
    """After a 401 the file is read at once; if it is unchanged, a retry is pointless."""
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
    """If the file vanishes or has no token, one warning is logged and the old token stays in use."""
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
    """Without a token every call fails; once the file exists, its token is used."""
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
    """The old token is kept until it expires, measured with the monotonic clock."""
    path = tmp_path / "token"
    path.write_text(jwt(clock.wall() + 600))
    credentials = of(TokenFile(path), clock)
    await credentials.headers()
    path.unlink()
    clock.advance(300)
    clock.wall_time += 3600
    await credentials.headers()
    assert caplog.messages[-1].endswith("No such file or directory; the credential in use stays until it expires")
    clock.advance(300)
    with pytest.raises(CredentialError, match="cannot be read: No such file"):
        await credentials.headers()


async def test_wall_clock_jump_changes_nothing(clock: ManualClock, tmp_path: Path) -> None:
    """While the files are readable, the server decides about expiry, not the wall clock."""
    path = tmp_path / "token"
    written = jwt(clock.wall() + 600)
    path.write_text(written)
    credentials = of(TokenFile(path), clock)
    for jump in (3600, -7200, 36000):
        clock.wall_time += jump
        clock.advance(10)
        assert await token(credentials) == written


async def test_reload_explains_an_expired_token(clock: ManualClock) -> None:
    """A 401 for an expired token raises an error that says so."""
    credentials = of(Token(Secret(jwt(clock.wall() - 60))), clock)
    await credentials.headers()
    with pytest.raises(CredentialError, match=r"the credential expired at 2\d\d\d-.*Z; renew it"):
        await credentials.reload()


@pytest.mark.parametrize(("left", "explained"), [(1, False), (0, True)])
async def test_reload_tells_a_refused_token_from_an_expired_one(left: float, explained: bool) -> None:
    """A token has expired from the second of its expiry on; a 401 before that has another reason."""
    credentials = of(Token(Secret(jwt(2e9 + left))), ManualClock(wall_time=2e9))
    await credentials.headers()
    if explained:
        with pytest.raises(CredentialError, match=r"the credential expired at 2033-05-18T03:33:20Z; renew it$"):
            await credentials.reload()
    else:
        assert await credentials.reload() is False


@pytest.mark.parametrize("value", ["abc", "a.b.c", "e30.e30.x", jwt(None), jwt(-5), jwt(1e300), "e30.W10.x"])
async def test_expires_at_is_unknown_for_other_tokens(clock: ManualClock, value: str) -> None:
    """``expires_at`` is None unless the token is a JWT with a sensible exp claim."""
    credentials = of(Token(Secret(value)), clock)
    await credentials.headers()
    assert credentials.expires_at() is None


async def test_expires_at_is_the_earlier_of_token_and_certificate(clock: ManualClock) -> None:
    """The credential expires with the first of its parts."""
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
    """At most 14 days and a fifth of its life are left; if the begin is unknown, only the days count."""
    ends = 1_900_000_000.0
    assert ends_soon(None if life is None else ends - life, ends, ends - left) is soon


@pytest.mark.parametrize("claims", [{"iat": 1_000.0}, {"nbf": 1_000}, {"iat": "x"}, {"iat": 9e9}, {}])
async def test_a_token_tells_when_to_renew_it(clock: ManualClock, claims: dict[str, Any]) -> None:
    """A token with 13 days left is reported, whatever its begin claims say."""
    ends = clock.wall() + 13 * DAY
    text = base64.urlsafe_b64encode(json.dumps({"exp": ends, **claims}).encode()).rstrip(b"=").decode()
    credentials = of(Token(Secret(f"e30.{text}.sig")), clock)
    await credentials.headers()
    assert credentials.expiring() == ends


async def test_long_lived_credential_is_not_reported(clock: ManualClock) -> None:
    """A new certificate for two days and a token without an expiry are not reported."""
    certificate = of(ClientCertificate(FIRST.pem.encode(), Secret(FIRST.key_pem)), clock)
    endless = of(Token(Secret("opaque")), clock)
    for credentials in (certificate, endless):
        assert credentials.expiring() is None
        await credentials.headers()
        assert credentials.expiring() is None


class Hung:
    """A hung mount: ``stat`` of a path on it blocks until the test releases it."""

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
    """A hung mount with the file ``token``."""
    monkeypatch.setattr(module, "READ_TIMEOUT", 2.0)
    made = Hung(tmp_path / "token", monkeypatch)
    yield made
    made.answers.set()


async def test_token_file_on_a_hung_mount_does_not_block(clock: ManualClock, tmp_path: Path, mount: Hung) -> None:
    """The event loop is not blocked, the current token stays, and one thread waits for the mount."""
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
    """The call fails after the timeout with an error that names the file."""
    (tmp_path / "token").write_text("one")
    mount.answers.clear()
    with pytest.raises(CredentialError, match=rf"token file {tmp_path}/token: does not answer within 2 s"):
        async with asyncio.timeout(5):
            await of(TokenFile(tmp_path / "token"), clock).headers()


# -- certificates ---------------------------------------------------------------------------------------------


async def test_rotated_certificate_files_give_a_new_context(clock: ManualClock, tmp_path: Path) -> None:
    """While only one of certificate and key is replaced, the old pair stays; then the new pair is used."""
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
    """A new CA gives a new TLS context without a restart; an unchanged file does not."""
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
    """With the key of another certificate there is no TLS context and no request."""
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
    """An exec plugin as a shell script that counts its runs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "plugin"
        self.runs_file = folder / "runs"
        self.answers(token="t1")

    def script(self, body: str) -> None:
        """Replace the plugin's script."""
        new = self.path.with_suffix(".new")
        new.write_text(f"#!/bin/sh\necho run >> {self.runs_file}\n{body}\n")
        new.chmod(0o755)
        new.replace(self.path)

    def answers(self, api_version: str = V1, kind: str = "ExecCredential", **status: object) -> None:
        """Make the plugin print this ExecCredential."""
        answer = json.dumps({"apiVersion": api_version, "kind": kind, "status": status})
        self.script(f"cat <<'END'\n{answer}\nEND")

    @property
    def runs(self) -> int:
        """How often the plugin ran."""
        return len(self.runs_file.read_text().split()) if self.runs_file.exists() else 0

    def auth(self, **changes: object) -> Exec:
        """The kubeconfig's exec section."""
        return Exec(str(self.path), **changes)  # type: ignore[arg-type]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """A plugin that returns the token t1."""
    return Plugin(tmp_path)


def stamp(moment: float) -> str:
    """A time in RFC 3339."""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


async def test_exec_token_is_cached_for_ever_without_an_expiry(clock: ManualClock, plugin: Plugin) -> None:
    """Without expirationTimestamp, the plugin runs again only after a 401."""
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    clock.advance(1e6)
    assert (await token(credentials), plugin.runs) == ("t1", 1)
    plugin.answers(token="t2")
    assert (await credentials.reload(), await token(credentials), plugin.runs) == (True, "t2", 2)


async def test_exec_token_is_renewed_five_minutes_before_its_end(clock: ManualClock, plugin: Plugin) -> None:
    """A token for 15 minutes is used for ten, then the plugin runs again."""
    plugin.answers(token="t1", expirationTimestamp=stamp(clock.wall() + 900))
    credentials = of(plugin.auth(), clock)
    assert await token(credentials) == "t1"
    assert credentials.expires_at() == pytest.approx(clock.wall() + 900)
    plugin.answers(token="t2", expirationTimestamp=stamp(clock.wall() + 1800))
    clock.advance(599)
    assert await token(credentials) == "t1"
    clock.advance(2)
    assert (await token(credentials), plugin.runs) == ("t2", 2)


async def test_exec_token_expiry_is_reported_only_while_renewal_fails(clock: ManualClock, plugin: Plugin) -> None:
    """An expiry is reported only while the plugin fails to renew the token."""
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


@pytest.mark.parametrize(("life", "used"), [(900, 600), (602, 302), (600, 300), (598, 299), (60, 30)])
async def test_exec_token_is_renewed_before_its_end_or_at_half_its_life(
    plugin: Plugin, life: float, used: float
) -> None:
    """A token is used until five minutes before its end, or for half its life if that is longer."""
    clock = ManualClock(wall_time=2e9)
    plugin.answers(token="t1", expirationTimestamp=stamp(2e9 + life))
    credentials = of(plugin.auth(), clock)
    runs = []
    for seconds in (0.0, used - 0.5, 0.5):
        clock.advance(seconds)
        await credentials.headers()
        runs.append(plugin.runs)
    assert runs == [1, 1, 2]


async def test_exec_token_that_ends_now_has_expired(plugin: Plugin) -> None:
    """A token is refused from the second of its expiry on."""
    clock = ManualClock(wall_time=2e9)
    plugin.answers(token="t1", expirationTimestamp=stamp(2e9 + 1))
    assert await token(of(plugin.auth(), clock)) == "t1"
    clock.advance(1)
    with pytest.raises(CredentialError, match=r"expired at 2033-05-18T03:33:21Z, or this machine's clock is wrong$"):
        await of(plugin.auth(), clock).headers()


async def test_exec_runs_again_after_a_401_once_in_ten_seconds(clock: ManualClock, plugin: Plugin) -> None:
    """A 401 within ten seconds of the last run does not start the plugin."""
    credentials = of(plugin.auth(), clock)
    runs = []
    for seconds in (0.0, 9.5, 0.5, 9.5, 0.5):
        clock.advance(seconds)
        assert await (credentials.reload() if seconds else credentials.headers()) in (
            False,
            {"Authorization": "Bearer t1"},
        )
        runs.append(plugin.runs)
    assert runs == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("asks", "more", "told"),
    [
        (False, {"tls_server_name": "api.internal"}, {}),
        (True, {}, {"cluster": {"server": "https://api:6443"}}),
        (
            True,
            {"tls_server_name": "api.internal", "proxy": parse_proxy("http://j:pw@p:3128")},
            {
                "cluster": {
                    "server": "https://api:6443",
                    "tls-server-name": "api.internal",
                    "proxy-url": "http://j:pw@p:3128",
                }
            },
        ),
    ],
)
async def test_exec_is_told_of_the_cluster_if_it_asks(
    clock: ManualClock, plugin: Plugin, tmp_path: Path, asks: bool, more: dict[str, Any], told: dict[str, Any]
) -> None:
    """KUBERNETES_EXEC_INFO has only what the kubeconfig has, and the cluster only with provideClusterInfo."""
    plugin.script(f"echo $KUBERNETES_EXEC_INFO > {tmp_path}/info; exit 1")
    access = ClusterAccess("https://api:6443", plugin.auth(provide_cluster_info=asks), "x", **more)
    with pytest.raises(CredentialError):
        await Credentials(access, clock).headers()
    info = json.loads((tmp_path / "info").read_text())
    assert info == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False, **told}}


async def test_exec_concurrent_requests_share_one_run(clock: ManualClock, plugin: Plugin) -> None:
    """A hundred requests at start run the plugin once."""
    credentials = of(plugin.auth(), clock)
    await asyncio.gather(*(credentials.headers() for _ in range(100)))
    assert plugin.runs == 1


async def test_exec_renewal_does_not_hold_up_requests(clock: ManualClock, plugin: Plugin) -> None:
    """While one caller renews the credential, others use the current one."""
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
    """A renewal continues after its request is cancelled; otherwise a slow plugin would never finish for a Lease."""
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


async def test_exec_gets_the_proxy_and_may_not_show_it(clock: ManualClock, plugin: Plugin) -> None:
    """As from kubectl, a plugin that asks for the cluster gets its proxy-url; its output is redacted."""
    plugin.script("echo $KUBERNETES_EXEC_INFO | grep -o 'http://[^\"]*3128' >&2; echo with s3cret >&2; exit 1")
    access = ClusterAccess(
        "https://api:6443", plugin.auth(provide_cluster_info=True), "x", proxy=parse_proxy("http://j:s3cret@p:3128")
    )
    with pytest.raises(CredentialError, match=r"exit code 1: \*\*\* +with \*\*\*$"):
        await Credentials(access, clock).headers()


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
    """Plugins with v1beta1 are supported."""
    plugin.answers("client.authentication.k8s.io/v1beta1", token="old")
    assert await token(of(plugin.auth(api_version="client.authentication.k8s.io/v1beta1"), clock)) == "old"


async def test_exec_bare_program_is_found_on_path(
    clock: ManualClock, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command without a folder is searched for on PATH."""
    monkeypatch.setenv("PATH", f"{plugin.path.parent}:/usr/bin:/bin")
    assert await token(of(Exec("plugin"), clock)) == "t1"
    with pytest.raises(CredentialError, match="not found on PATH"):
        await of(Exec("plugout"), clock).headers()


async def test_exec_client_certificate_is_used_and_rotated(clock: ManualClock, plugin: Plugin) -> None:
    """A plugin may return a certificate instead of a token; it is renewed before it expires."""
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
    """If a plugin fails, the error names it without showing secrets, and no request is sent."""
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
    """A program that is missing or not executable gives a different error than one that failed."""
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
async def test_exec_answer_without_credential_is_an_error(clock: ManualClock, plugin: Plugin, name: str) -> None:
    """An answer without a usable credential is an error; no request is sent anonymously."""
    answer, says = BAD_ANSWERS[name]
    plugin.answers(**answer)  # type: ignore[arg-type]
    with pytest.raises(CredentialError, match=says) as caught:
        await of(plugin.auth(), clock).headers()
    assert "hunter2" not in str(caught.value)


async def test_exec_that_hangs_is_killed(clock: ManualClock, plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that hangs is killed after the timeout, and the request fails."""
    monkeypatch.setattr(module, "EXEC_TIMEOUT", 0.3)
    plugin.script("sleep 1000")
    with pytest.raises(CredentialError, match=r"did not end within 0.3 s and was killed"):
        await of(plugin.auth(), clock).headers()


async def test_exec_is_killed_with_its_group_on_cancellation(
    clock: ManualClock, plugin: Plugin, tmp_path: Path
) -> None:
    """Cancelling the request leaves no plugin behind, and the next request starts a new one."""
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
    """If the renewal fails, the old credential is used until it expires, and the plugin runs with backoff."""
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
    """Between two runs of a failing plugin, requests fail at once with the same error."""
    plugin.script("exit 1")
    credentials = of(plugin.auth(), clock)
    for _ in range(100):
        with pytest.raises(CredentialError, match="exit code 1"):
            await credentials.headers()
        clock.advance(0.1)
    assert plugin.runs <= 4


async def test_exec_does_not_run_for_every_401(clock: ManualClock, plugin: Plugin) -> None:
    """If the server answers 401 to everything, the plugin runs every ten seconds at most."""
    credentials = of(plugin.auth(), clock)
    await credentials.headers()
    for _ in range(100):
        await credentials.reload()
        clock.advance(0.5)
    assert plugin.runs <= 6


async def test_exec_reload_outlives_the_request_that_began_it(clock: ManualClock, plugin: Plugin) -> None:
    """A reload after a 401 also continues after its request is cancelled."""
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
    """Only the request that began a renewal waits for it."""
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
    """``server`` and ``server_hostname`` have the values of the kubeconfig."""
    access = ClusterAccess("https://api:6443", Token(Secret("x")), "x", tls_server_name="api.internal")
    credentials = Credentials(access, clock)
    assert (credentials.server, credentials.server_hostname) == ("https://api:6443", "api.internal")


async def test_context_verifies_always(clock: ManualClock) -> None:
    """The TLS context always verifies the server."""
    credentials = of(Token(Secret("x")), clock)
    await credentials.headers()
    context = credentials.ssl_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
