"""Creates TLS contexts for API servers: from memory, without writing to disk, and always with verification.

Trust follows the rules of kubectl: only the certificates of the kubeconfig's CA are trusted, and each of them is a
trust anchor, even an intermediate. VERIFY_X509_STRICT stays off, since the CAs of some managed clusters lack key
identifiers. The host name to verify is not part of the context; the client passes it as ``server_hostname``.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from datetime import UTC, datetime

from hub.errors import CredentialError
from hub.kube.secret import Secret

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_ENCRYPTED = re.compile(r"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: 4,ENCRYPTED")


def client_context(
    ca: bytes | None, certificate: bytes | None = None, key: Secret | None = None, *, what: str = "TLS"
) -> ssl.SSLContext:
    """Create a client context that verifies one API server.

    Args:
        ca: the PEM certificates to trust exclusively; None = the system's store.
        certificate: the PEM chain to present to the server, leaf first; needs ``key``.
        key: the private key of ``certificate``, in PEM, not encrypted.
        what: the owner of the credentials, for messages.

    Raises:
        CredentialError: a part does not parse, or key and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies host name and chain
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError):
            raise CredentialError(f"{what}: the certificate authority contains no certificate in PEM format") from None
    if certificate is not None and key is not None:
        _load_pair(context, certificate, key, what)
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: Secret, what: str) -> None:
    pem = key.reveal()
    if _ENCRYPTED.search(pem):
        raise CredentialError(f"{what}: the client key is encrypted; store it decrypted (openssl pkey)")
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(certificate + b"\n" + pem.encode() + b"\n")
        # Without a password, OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"{what}: the client key does not belong to the client certificate"
        else:
            message = (
                f"{what}: the client certificate or its key is not usable PEM ({error.reason or 'unknown format'})"
            )
        raise CredentialError(message) from None
    finally:
        os.close(descriptor)


def validity(pem: bytes) -> tuple[float, float] | None:
    """The begin and end of the validity of the first certificate in ``pem``, Unix times; None if it does not parse."""
    match = _CERTIFICATE.search(pem)
    if match is None:
        return None
    try:
        return _der_validity(base64.b64decode(match.group(1)))
    except (binascii.Error, ValueError, IndexError):
        return None


def _der_validity(der: bytes) -> tuple[float, float]:
    """Read Certificate → tbsCertificate → validity (RFC 5280 4.1), which the ssl module offers for CAs only."""
    _, position, _ = _element(der, 0)  # Certificate: step inside
    _, position, _ = _element(der, position)  # tbsCertificate: step inside
    tag, _, end = _element(der, position)
    if tag == 0xA0:  # [0] version, absent in version 1
        _, _, end = _element(der, end)
    for _ in ("signature", "issuer"):
        _, _, end = _element(der, end)
    _, position, _ = _element(der, end)  # validity: step inside
    first, after_first = _time(der, position)
    last, _ = _time(der, after_first)
    return first, last


def _time(der: bytes, at: int) -> tuple[float, int]:
    """The UTCTime or GeneralizedTime at ``at`` as Unix time, and the position after it."""
    tag, start, end = _element(der, at)
    text = der[start:end].decode("ascii")
    if tag == 0x17:  # UTCTime: a year of two digits, of which 50 to 99 mean 19xx
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp(), end


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the DER element at ``at``, and the start and end of its content."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, start = int.from_bytes(der[start : start + octets], "big"), start + octets
    if start + length > len(der):
        raise ValueError("cut short")
    return tag, start, start + length
