"""A certificate whose files are replaced, unreadable or invalid."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from hub.errors import HubError
from hub.report.certificate import Certificate
from hub.report.server import Listen
from tests.support.apiserver.pki import Authority
from tests.unit.report.conftest import Where, watching

AUTHORITY = Authority("test-ca")


def written(folder: Path, name: str) -> tuple[str, str]:
    """Write a certificate and its key, and return the paths."""
    made = AUTHORITY.server(name, "127.0.0.1")
    (folder / "tls.crt").write_text(made.pem)
    (folder / "tls.key").write_text(made.key_pem)
    return str(folder / "tls.crt"), str(folder / "tls.key")


async def test_tls_with_a_certificate_that_is_replaced(tmp_path: Path) -> None:
    """New connections get the new certificate; an unusable file leaves the old one in use."""
    files = written(tmp_path, "first.example.com")
    certificate = Certificate(*files)
    first = names(certificate)
    assert first == ["first.example.com"]
    (tmp_path / "tls.key").write_text("no key")
    certificate.refresh()
    assert names(certificate) == first
    written(tmp_path, "second.example.com")
    certificate.refresh()
    assert names(certificate) == ["second.example.com"]
    trust = ssl.create_default_context(cadata=AUTHORITY.pem)
    async with watching(tmp_path, Listen(Where(), *files)) as watched:
        assert watched.url.startswith("https://")
        assert (await watched.get("/api/v1/status", ssl=trust))[0] == 200


def names(certificate: Certificate) -> list[str]:
    """The DNS names of the certificate in a TLS handshake."""
    trust = ssl.create_default_context(cadata=AUTHORITY.pem)
    trust.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = trust.wrap_bio(to_client, to_server)
    theirs = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found: Any = ours.getpeercert()
    return [value for kind, value in found["subjectAltName"] if kind == "DNS"]


def test_a_certificate_that_could_not_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every check reads unreadable files again, since permissions do not change their stamp; the log has one line."""

    def unreadable(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    certificate = Certificate(*written(tmp_path, "first.example.com"))
    written(tmp_path, "second.example.com")
    with monkeypatch.context() as patched:
        patched.setattr("hub.report.certificate.read_regular", unreadable)
        certificate.refresh()
        certificate.refresh()
        assert names(certificate) == ["first.example.com"]
        assert caplog.text.count("tls.crt: cannot be read: Permission denied") == 1
    certificate.refresh()
    assert names(certificate) == ["second.example.com"]


def test_a_certificate_that_cannot_be_used_is_named_at_the_start(tmp_path: Path) -> None:
    """The error names the flag and the reason; a named pipe does not block."""
    written(tmp_path, "first.example.com")
    good, key = str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")
    os.mkfifo(tmp_path / "pipe")
    for cert_file, key_file, said in (
        (str(tmp_path / "nosuch"), key, "--tls-cert-file .*nosuch: cannot be read: No such file"),
        (good, str(tmp_path / "pipe"), "--tls-private-key-file .*pipe: cannot be read: not a regular file"),
        (key, key, "--tls-cert-file .*tls.key: contains no certificate in PEM format"),
        (good, good, "--tls-private-key-file .*tls.crt: contains no private key in PEM format"),
    ):
        with pytest.raises(HubError, match=said):
            Certificate(cert_file, key_file)
