"""Which proxy leads to an API: reads proxy URLs and the environment's HTTPS_PROXY and NO_PROXY.

A proxy URL may contain a password, so no error here quotes one, or keeps a library's error that may quote it. Pure,
except that :func:`proxies_of` takes the environment.
"""

from __future__ import annotations

import ipaddress
import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from hub.errors import UsageError
from hub.kube.hosts import host_problem
from hub.kube.secret import Secret

PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
"""The schemes of proxy URLs, with the port that is used if the URL has none (as in Go's net/http)."""
FORM: Final = "http://, https://, socks5:// or socks5h:// and HOST:PORT, with USER:PASSWORD@ before HOST if needed"

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Login:
    """User and password at a proxy."""

    user: Secret
    password: Secret

    def basic(self) -> str:
        """The credentials of a Proxy-Authorization header, without the word Basic."""
        return b64encode(f"{self.user.reveal()}:{self.password.reveal()}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. ``str`` gives its URL without the login.

    Attributes:
        scheme: a key of :data:`PORTS`. With ``socks5``, the hub resolves the name of the API server; with any other
            scheme the proxy resolves it.
        host: a host name, or an address without brackets.
        login: None = the proxy is used without authentication.
    """

    scheme: str
    host: str
    port: int
    login: Login | None = None

    @property
    def url(self) -> Secret:
        """The URL with the login, for libraries."""
        if self.login is None:
            return Secret(str(self))
        user, password = (quote(part.reveal(), safe="") for part in (self.login.user, self.login.password))
        return Secret(f"{self.scheme}://{user}:{password}@{authority(self.host, self.port)}")

    def secrets(self) -> tuple[str, ...]:
        """What a text may not show: the password, and the forms in which it is sent."""
        if self.login is None:
            return ()
        password = self.login.password.reveal()
        return self.url.reveal(), password, quote(password, safe=""), self.login.basic()

    def __str__(self) -> str:
        return f"{self.scheme}://{authority(self.host, self.port)}"


class BadProxy(ValueError):
    """A proxy URL cannot be used; the message says why, without quoting the URL."""


def authority(host: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_proxy(text: str) -> Proxy:
    """Parse a proxy URL.

    Raises:
        BadProxy: the URL is not of the form :data:`FORM`, or names a host that the hub never contacts.
    """
    scheme, _, rest = text.partition("://")
    place, _, path = rest.partition("/")
    userinfo, at, hostport = place.rpartition("@")
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]*)(?::(\d{1,5}))?", hostport)
    if scheme.lower() not in PORTS or match is None or path or set("?#\\") & set(rest):
        raise BadProxy(f"must be {FORM}; write special characters of USER and PASSWORD as %XX")
    host = match[1].strip("[]").lower().removesuffix(".")
    if (problem := host_problem(host)) is not None:
        raise BadProxy(f"its host is {problem}; must be {FORM}")
    port = int(match[2] or PORTS[scheme.lower()])
    if not 0 < port < 65536:
        raise BadProxy("needs a port between 1 and 65535")
    return Proxy(scheme.lower(), host, port, _login(userinfo, scheme.lower()) if at else None)


def _login(userinfo: str, scheme: str) -> Login:
    name, _, word = userinfo.partition(":")
    user, password = _decoded(name), _decoded(word)
    if user is None or password is None:
        raise BadProxy("its user or password is not UTF-8, or holds control characters; write others as %XX")
    if scheme.startswith("http") and ":" in user:
        raise BadProxy("its user contains a colon, which Basic authentication cannot send")
    if scheme.startswith("socks") and not all(1 <= len(part.encode()) <= 255 for part in (user, password)):
        raise BadProxy("its user and password must have 1 to 255 bytes each, which is all that SOCKS5 can send")
    return Login(Secret(user), Secret(password))


def _decoded(part: str) -> str | None:
    """The part of a URL with %XX replaced; None if it has control characters or is not UTF-8."""
    text = unquote_to_bytes(part).decode("utf-8", "surrogateescape")
    return text if text.isprintable() else None  # a lone surrogate is not printable


# --- the environment -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxy of the environment, and the hosts that are contacted without it.

    NO_PROXY is read as Go's golang.org/x/net/http/httpproxy reads it, and so as kubectl does.
    """

    proxy: Proxy
    networks: tuple[_Network, ...] = ()
    hosts: tuple[tuple[str, str], ...] = ()
    """(name or address, port); "" = any port. A name that begins with a dot stands for the names below it only."""
    nothing: bool = False
    """Whether NO_PROXY contains ``*``: the proxy is never used."""

    def proxy_for(self, host: str, port: int) -> Proxy | None:
        """The proxy for a host; None = the host is contacted directly, as loopback always is."""
        host = host.lower().removesuffix(".")
        if self.nothing or host == "localhost":
            return None
        address = _address(host)
        if address is not None:
            if address.is_loopback or any(address in network for network in self.networks):
                return None
            names = {str(address)}
        else:
            names = {host, *(host[at:] for at, char in enumerate(host) if char == ".")}
        return (
            None if any(name in names and for_port in ("", str(port)) for name, for_port in self.hosts) else self.proxy
        )


def proxies_of(environ: Mapping[str, str]) -> Proxies:
    """The proxies that an environment names, in upper case or, if that is not set, in lower case.

    Raises:
        UsageError: HTTPS_PROXY is not set, or is not a proxy URL.
    """
    name = "HTTPS_PROXY" if environ.get("HTTPS_PROXY") else "https_proxy"
    text = environ.get(name, "")
    if not text:
        raise UsageError(
            "--proxy-from-environment: neither HTTPS_PROXY nor https_proxy is set; set one, or leave the flag out"
        )
    try:
        proxy = parse_proxy(text if "://" in text else f"http://{text}")  # as in Go
    except BadProxy as bad:
        problem = str(bad)
    else:
        return no_proxy(proxy, environ.get("NO_PROXY") or environ.get("no_proxy", ""))
    raise UsageError(f"--proxy-from-environment: {name} {problem}")


def no_proxy(proxy: Proxy, text: str) -> Proxies:
    """The proxy, with the exceptions of a NO_PROXY: names, ``.suffixes``, addresses, CIDRs, each ``:port``, or ``*``.

    Entries that are none of these are ignored, as in Go.
    """
    networks: list[_Network] = []
    hosts: list[tuple[str, str]] = []
    for item in (part.strip().lower() for part in text.split(",")):
        if item == "*":
            return Proxies(proxy, nothing=True)
        if "/" in item:
            with suppress(ValueError):
                networks.append(ipaddress.ip_network(item, strict=False))
            continue
        match = re.fullmatch(r"\[([^\]]*)\]:(\d+)|([^:]*):(\d+)|(.*)", item)
        assert match is not None  # noqa: S101 - the last alternative matches everything
        host, port = match[1] or match[3] or match[5] or "", match[2] or match[4] or ""
        address = _address(host)
        if address is not None:
            hosts.append((str(address), port))
        elif host:
            host = host[1:] if host.startswith("*.") else host
            hosts.append((f".{host.removeprefix('.')}", port))
            if not host.startswith("."):
                hosts.append((host, port))
    return Proxies(proxy, tuple(networks), tuple(hosts))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, an IPv4-mapped one as IPv4; None if the text is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def host_and_port(url: str) -> tuple[str, int]:
    """Host and port of an https URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 443
