"""TLS contexts, tested by in-memory handshakes with servers that have all kinds of certificates."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hub.errors import CredentialError
from hub.kube.secret import Secret
from hub.kube.tls import client_context, validity
from tests.support.apiserver.pki import Authority, Certificate

AUTHORITY = Authority("test-ca")
OTHER = Authority("other-ca")
SERVER = AUTHORITY.server("api.example.com", "127.0.0.1")
CLIENT = AUTHORITY.client("hub")
OTHER_CLIENT = AUTHORITY.client("somebody")


def server_context(tmp_path: Path, certificate: Certificate = SERVER, *, ask: bool = False) -> ssl.SSLContext:
    """A server's context with ``certificate``; with ``ask``, it requires a client certificate of our authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "pem").write_text(certificate.pem + certificate.key_pem)
    context.load_cert_chain(tmp_path / "pem")
    if ask:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=AUTHORITY.pem)
    return context


def shake(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "api.example.com") -> ssl.SSLObject:
    """Do a handshake in memory; returns the server's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    steps: list[Callable[[], None]] = [ours.do_handshake, theirs.do_handshake]
    for _ in range(10):
        for step in list(steps):
            try:
                step()
                steps.remove(step)
            except ssl.SSLWantReadError:
                pass
        if not steps:
            return theirs
    raise AssertionError("the handshake does not end")


def test_context_accepts_a_server_of_the_given_authority(tmp_path: Path) -> None:
    """A server with a certificate of the given CA is accepted."""
    theirs = shake(client_context(AUTHORITY.pem.encode()), server_context(tmp_path))
    assert theirs.version() == "TLSv1.3"


@pytest.mark.parametrize(
    ("ca", "certificate", "name"),
    [
        (OTHER.pem, SERVER, "api.example.com"),
        (None, SERVER, "api.example.com"),
        (AUTHORITY.pem, SERVER, "evil.example.com"),
        (AUTHORITY.pem, SERVER, "127.0.0.2"),
        (AUTHORITY.pem, AUTHORITY.server("api.example.com", lifetime=timedelta(days=-1)), "api.example.com"),
        (AUTHORITY.pem, AUTHORITY.client("api.example.com"), "api.example.com"),
    ],
    ids=["other authority", "only the system's authorities", "other name", "other address", "expired", "a client's"],
)
def test_context_refuses_any_other_server(tmp_path: Path, ca: str | None, certificate: Certificate, name: str) -> None:
    """A certificate of another authority, for another name or outside its validity is refused."""
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(client_context(ca.encode() if ca else None), server_context(tmp_path, certificate), name)


def test_context_trusts_every_certificate_in_the_bundle(tmp_path: Path) -> None:
    """A bundle may hold the old and the new CA, and comments between them."""
    bundle = f"# old: Zürich\n{OTHER.pem}\n# new\n{AUTHORITY.pem}"
    assert shake(client_context(bundle.encode()), server_context(tmp_path)).version() == "TLSv1.3"


def test_context_trusts_a_pinned_server_certificate(tmp_path: Path) -> None:
    """As in kubectl, any certificate given as CA is a trust anchor, even one that is not a CA."""
    assert shake(client_context(SERVER.pem.encode()), server_context(tmp_path)).version() == "TLSv1.3"


def test_context_refuses_tls_below_1_2(tmp_path: Path) -> None:
    """TLS versions below 1.2 are not offered."""
    context = client_context(AUTHORITY.pem.encode())
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_context_is_not_stricter_than_kubectl() -> None:
    """CAs of some managed clusters lack key identifiers, which strict X.509 would refuse."""
    context = client_context(AUTHORITY.pem.encode())
    assert not context.verify_flags & ssl.VerifyFlags.VERIFY_X509_STRICT


def test_context_presents_the_client_certificate(tmp_path: Path) -> None:
    """The server gets the client certificate."""
    context = client_context(AUTHORITY.pem.encode(), CLIENT.pem.encode(), Secret(CLIENT.key_pem))
    peer = shake(context, server_context(tmp_path, ask=True)).getpeercert()
    assert peer is not None
    assert peer["subject"] == ((("commonName", "hub"),),)


def test_context_leaves_nothing_open_or_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are not written to a file system, and no descriptor stays open."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(Path("/proc/self/fd").iterdir())
    client_context(AUTHORITY.pem.encode(), CLIENT.pem.encode(), Secret(CLIENT.key_pem))
    assert (len(set(Path("/proc/self/fd").iterdir())), list(tmp_path.iterdir())) == (len(before), [])


ENCRYPTED = CLIENT.key_pem.replace("-----\n", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n", 1)


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        (CLIENT.pem, OTHER_CLIENT.key_pem, "does not belong to the client certificate"),
        (CLIENT.pem, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "not usable PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", CLIENT.key_pem, "not usable PEM"),
        (CLIENT.pem, "", "not usable PEM"),
        ("", CLIENT.key_pem, "not usable PEM"),
        (CLIENT.pem, ENCRYPTED, "encrypted"),
        (CLIENT.pem, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----", "encrypted"),
    ],
)
def test_bad_certificate_pair_is_a_credential_error(certificate: str, key: str, message: str) -> None:
    """A bad certificate or key is a CredentialError that quotes none of it, and causes no password prompt."""
    with pytest.raises(CredentialError, match=message) as caught:
        client_context(AUTHORITY.pem.encode(), certificate.encode(), Secret(key), what="cluster x")
    assert "BEGIN" not in str(caught.value)
    assert str(caught.value).startswith("cluster x: ")


@pytest.mark.parametrize("ca", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
def test_unparsable_ca_is_an_error(ca: bytes) -> None:
    """A CA that does not parse is an error; the system's store is not used instead."""
    with pytest.raises(CredentialError, match="authority contains no certificate in PEM format"):
        client_context(ca)


def test_validity_reads_the_leaf() -> None:
    """The validity is that of the first certificate, to the second."""
    certificate = AUTHORITY.client("hub", lifetime=timedelta(days=3))
    expected = (datetime.now(UTC) + timedelta(days=3)).timestamp()
    found = validity((certificate.pem + AUTHORITY.pem).encode())
    assert found is not None
    assert found[1] == pytest.approx(expected, abs=5)


def test_validity_agrees_with_the_ssl_module() -> None:
    """For CAs, the result is the same as that of the ssl module, which does not show leaves."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.pem)
    shown = context.get_ca_certs()[0]
    expected = tuple(ssl.cert_time_to_seconds(str(shown[name])) for name in ("notBefore", "notAfter"))
    assert validity(AUTHORITY.pem.encode()) == expected


def element(tag: int, content: bytes) -> bytes:
    """A DER element."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    octets = (size.bit_length() + 7) // 8
    return bytes((tag, 0x80 | octets)) + size.to_bytes(octets, "big") + content


@pytest.mark.parametrize("version", [b"", element(0xA0, b"\x02\x01\x02")], ids=["version 1", "version 3"])
@pytest.mark.parametrize("size", [1, 0x7F, 0x80, 0x100, 0x10000])
def test_validity_follows_everything_before_it(version: bytes, size: int) -> None:
    """Fields before the validity may have any length; certificates of version 1 lack the version."""
    times = element(0x17, b"260101000000Z") + element(0x18, b"20500101000000Z")
    before = element(0x02, b"\x01"), element(0x30, b""), element(0x30, b"x" * size)
    whole = element(0x30, element(0x30, version + b"".join(before) + element(0x30, times)) + element(0x30, b""))
    expected = datetime(2026, 1, 1, tzinfo=UTC).timestamp(), datetime(2050, 1, 1, tzinfo=UTC).timestamp()
    assert validity(ssl.DER_cert_to_PEM_cert(whole).encode()) == expected
    assert validity(ssl.DER_cert_to_PEM_cert(whole[:-3]).encode()) is None


def test_validity_reads_two_digit_years_as_1950_to_2049() -> None:
    """Two-digit years are read as RFC 5280 4.1.2.5.1 says."""
    der = ssl.PEM_cert_to_DER_cert(AUTHORITY.pem)
    begin, end = (found.group() for found in re.finditer(rb"\x17\x0d\d{12}Z", der))
    der = der.replace(begin, b"\x17\x0d500101000000Z").replace(end, b"\x17\x0d491231235959Z")
    expected = datetime(1950, 1, 1, tzinfo=UTC), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert validity(ssl.DER_cert_to_PEM_cert(der).encode()) == tuple(moment.timestamp() for moment in expected)


def test_endless_certificate_is_rejected_quickly() -> None:
    """A certificate of a megabyte without an end marker is rejected quickly."""
    began = time.perf_counter()
    assert validity(b"-----BEGIN CERTIFICATE-----" + b"\n" * 1_000_000) is None
    assert time.perf_counter() - began < 1.0


def test_validity_is_unknown_for_anything_else() -> None:
    """The validity of garbage and truncated certificates is None."""
    pem = CLIENT.pem.encode()
    cut = [ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(CLIENT.pem)[:length]).encode() for length in range(1, 140)]
    samples = [b"", b"x", pem[:60], b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----", *cut]
    assert {validity(sample) for sample in samples} == {None}


def test_secret_is_masked_except_by_reveal() -> None:
    """``repr``, ``str``, format and containers show stars; only ``reveal`` returns the value."""
    secret = Secret("hunter2")
    shown = f"{secret} {secret!r} {secret:>10} {[secret]} {os.linesep} %s" % secret
    assert ("hunter2" in shown, secret.reveal()) == (False, "hunter2")


def test_secret_compares_by_value() -> None:
    """Secrets with the same value are equal; a Secret never equals a string."""
    assert (Secret("a") == Secret("a"), Secret("a") == Secret("b"), Secret("a") == "a") == (True, False, False)
