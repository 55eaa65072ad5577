"""TLS towards API servers: contexts from memory, nothing on disk, never without verification.

kubectl's rules decide what is trusted: the CA given in a kubeconfig is the only anchor, and any
certificate in it is one (an intermediate too). VERIFY_X509_STRICT stays off, since CAs of some managed
clusters lack key identifiers. A server name other than the host is the client's ``server_hostname``.
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
    """A verifying client context for one API server.

    Args:
        ca: PEM certificates to trust, and no others; None = the system's store.
        certificate: PEM chain presented to the server, leaf first; needs ``key``.
        key: its private key, PEM, not encrypted.
        what: whose it is, for messages.

    Raises:
        CredentialError: something does not parse, or key and certificate do not belong together.
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
            raise CredentialError(f"{what}: the certificate authority is not a PEM certificate") from None
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
        # Without a password OpenSSL would ask on the terminal for one.
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
    """When the first certificate in ``pem`` begins and ends, Unix time; None if it does not parse."""
    match = _CERTIFICATE.search(pem)
    if match is None:
        return None
    try:
        return _der_validity(base64.b64decode(match.group(1)))
    except (binascii.Error, ValueError, IndexError):
        return None


def _der_validity(der: bytes) -> tuple[float, float]:
    """Walk Certificate → tbsCertificate → validity (RFC 5280 4.1); the ssl module shows only CAs."""
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
    """A UTCTime or GeneralizedTime, Unix time, and where it ends."""
    tag, start, end = _element(der, at)
    text = der[start:end].decode("ascii")
    if tag == 0x17:  # UTCTime: two digits, 50–99 are 19xx
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp(), end


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, start and end of the contents of the DER element at ``at``."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, start = int.from_bytes(der[start : start + octets], "big"), start + octets
    if start + length > len(der):
        raise ValueError("cut short")
    return tag, start, start + length
