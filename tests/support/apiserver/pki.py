"""Keys and certificates for test servers: P-256 and X.509 in plain Python.

A new machine may have neither openssl nor the package cryptography, and tests need certificates that are expired, for
another host or from another authority. The code is slow and not constant-time: never use it outside tests.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import secrets
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

# The curve P-256 (FIPS 186-4, D.1.2.3).
P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

EC_PUBLIC_KEY, PRIME256V1, ECDSA_SHA256 = "1.2.840.10045.2.1", "1.2.840.10045.3.1.7", "1.2.840.10045.4.3.2"
COMMON_NAME, ORGANIZATION = "2.5.4.3", "2.5.4.10"
SUBJECT_KEY_ID, KEY_USAGE, ALT_NAMES = "2.5.29.14", "2.5.29.15", "2.5.29.17"
BASIC_CONSTRAINTS, AUTHORITY_KEY_ID, EXTENDED_USAGE = "2.5.29.19", "2.5.29.35", "2.5.29.37"
SERVER_AUTH, CLIENT_AUTH = "1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"

Point = tuple[int, int]


@dataclass(frozen=True)
class Key:
    """A P-256 private key."""

    secret: int = field(default_factory=lambda: secrets.randbelow(N - 1) + 1, repr=False)

    @property
    def point(self) -> bytes:
        """The public point, uncompressed."""
        x, y = _multiply(self.secret, G)
        return b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")

    @property
    def public(self) -> bytes:
        """SubjectPublicKeyInfo in DER."""
        return _sequence(_sequence(_oid(EC_PUBLIC_KEY), _oid(PRIME256V1)), _bits(self.point))

    @property
    def pem(self) -> str:
        """The private key as PEM (SEC 1)."""
        parameters = _tlv(0xA0, _oid(PRIME256V1)), _tlv(0xA1, _bits(self.point))
        return _pem("EC PRIVATE KEY", _sequence(_integer(1), _tlv(4, self.secret.to_bytes(32, "big")), *parameters))

    @property
    def public_pem(self) -> str:
        """The public key as PEM."""
        return _pem("PUBLIC KEY", self.public)

    def sign(self, message: bytes) -> bytes:
        """An ECDSA signature over SHA-256, in DER."""
        digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
        nonce = secrets.randbelow(N - 1) + 1
        r = _multiply(nonce, G)[0] % N
        return _sequence(_integer(r), _integer(pow(nonce, -1, N) * (digest + r * self.secret) % N))


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both as PEM."""

    pem: str
    key_pem: str = field(repr=False)


class Authority:
    """A new certificate authority."""

    def __init__(self, name: str) -> None:
        self._key = Key()
        self._name = _name(name)
        extensions = [
            _extension(BASIC_CONSTRAINTS, _sequence(_tlv(1, b"\xff")), critical=True),
            _extension(KEY_USAGE, _tlv(3, b"\x01\x06"), critical=True),  # keyCertSign, cRLSign
        ]
        lifetime = (datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(days=30))
        self.pem = self._issue(self._name, self._key, lifetime, extensions)

    def server(self, *hosts: str, lifetime: timedelta = timedelta(days=7)) -> Certificate:
        """A serving certificate for IP addresses and DNS names; expired if the lifetime is negative."""
        return self._leaf(_name(hosts[0]), SERVER_AUTH, lifetime, [_extension(ALT_NAMES, _alt_names(hosts))])

    def client(self, user: str, groups: Sequence[str] = (), lifetime: timedelta = timedelta(days=7)) -> Certificate:
        """A client certificate; Kubernetes reads the user from its common name, the groups from its organizations."""
        return self._leaf(_name(user, groups), CLIENT_AUTH, lifetime, [])

    def _leaf(self, subject: bytes, usage: str, lifetime: timedelta, extra: list[bytes]) -> Certificate:
        key = Key()
        extensions = [
            _extension(BASIC_CONSTRAINTS, _sequence(), critical=True),
            _extension(KEY_USAGE, _tlv(3, b"\x07\x80"), critical=True),  # digitalSignature
            _extension(EXTENDED_USAGE, _sequence(_oid(usage))),
            _extension(AUTHORITY_KEY_ID, _sequence(_tlv(0x80, _key_id(self._key)))),
            *extra,
        ]
        until = datetime.now(UTC) + lifetime
        valid = (min(datetime.now(UTC), until) - timedelta(hours=1), until)
        return Certificate(self._issue(subject, key, valid, extensions), key.pem)

    def _issue(self, subject: bytes, key: Key, valid: tuple[datetime, datetime], extensions: list[bytes]) -> str:
        algorithm = _sequence(_oid(ECDSA_SHA256))
        extensions = [_extension(SUBJECT_KEY_ID, _tlv(4, _key_id(key))), *extensions]
        body = _sequence(
            _tlv(0xA0, _integer(2)),  # version 3
            _integer(secrets.randbits(120)),
            algorithm,
            self._name,
            _sequence(*(_tlv(0x17, moment.strftime("%y%m%d%H%M%SZ").encode()) for moment in valid)),
            subject,
            key.public,
            _tlv(0xA3, _sequence(*extensions)),
        )
        return _pem("CERTIFICATE", _sequence(body, algorithm, _bits(self._key.sign(body))))


def _name(common: str, organizations: Sequence[str] = ()) -> bytes:
    parts = [*((ORGANIZATION, name) for name in organizations), (COMMON_NAME, common)]
    return _sequence(*(_tlv(0x31, _sequence(_oid(kind), _tlv(0x0C, text.encode()))) for kind, text in parts))


def _alt_names(hosts: Sequence[str]) -> bytes:
    names = []
    for host in hosts:
        try:
            names.append(_tlv(0x87, ipaddress.ip_address(host).packed))
        except ValueError:
            names.append(_tlv(0x82, host.encode()))
    return _sequence(*names)


def _extension(kind: str, value: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(kind), _tlv(1, b"\xff") if critical else b"", _tlv(4, value))


def _key_id(key: Key) -> bytes:
    return hashlib.sha1(key.point, usedforsecurity=False).digest()


def _multiply(scalar: int, point: Point) -> Point:
    result: Point | None = None
    while scalar:
        if scalar & 1:
            result = _add(result, point) if result else point
        point = _add(point, point)
        scalar >>= 1
    if result is None:
        raise ValueError("zero times a point is not a key")
    return result


def _add(a: Point, b: Point) -> Point:
    """The sum of two points; neither may be the negative of the other, which a random scalar never leads to."""
    rise, run = (3 * a[0] * a[0] - 3, 2 * a[1]) if a == b else (b[1] - a[1], b[0] - a[0])
    slope = rise * pow(run, -1, P)
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def _tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tlv(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _tlv(3, b"\0" + content)


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = bytes([first * 40 + second])
    for number in rest:
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(0x80 | number & 0x7F)
        content += bytes(reversed(groups))
    return _tlv(6, content)


def _pem(label: str, der: bytes) -> str:
    body = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"
