"""Proxy URLs, and HTTPS_PROXY and NO_PROXY as Go reads them."""

from __future__ import annotations

import pickle
import traceback

import pytest

from hub.errors import UsageError
from hub.kube.proxy import BadProxy, Login, Proxies, Proxy, host_and_port, no_proxy, parse_proxy, proxies_of
from hub.kube.secret import Secret

CANARY = "hunter2canary"


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port"),
    [
        ("http://proxy.example.com:3128", "http", "proxy.example.com", 3128),
        ("http://proxy", "http", "proxy", 80),
        ("HTTPS://Proxy.Example.COM./", "https", "proxy.example.com", 443),
        ("socks5://10.0.0.1", "socks5", "10.0.0.1", 1080),
        ("socks5h://[2001:db8::1]:9050", "socks5h", "2001:db8::1", 9050),
    ],
)
def test_a_url_names_scheme_host_and_port(url: str, scheme: str, host: str, port: int) -> None:
    """A URL without a port has the port that Go uses for its scheme."""
    assert parse_proxy(url) == Proxy(scheme, host, port)


def test_the_text_of_a_proxy_is_its_url_without_the_login() -> None:
    """IPv6 addresses are in brackets again."""
    assert str(parse_proxy(f"http://joe:{CANARY}@[2001:db8::1]:3128")) == "http://[2001:db8::1]:3128"


def test_proxy_without_a_login_has_nothing_to_hide() -> None:
    """Its URL for libraries is its text."""
    proxy = parse_proxy("socks5://[2001:db8::1]")
    assert (proxy.url.reveal(), proxy.secrets()) == ("socks5://[2001:db8::1]:1080", ())


def test_all_forms_of_a_password_are_secret() -> None:
    """The password may appear as it is, quoted in a URL, or encoded in a header."""
    proxy = parse_proxy("http://joe:p%3Aw@proxy")
    assert proxy.secrets() == ("http://joe:p%3Aw@proxy:80", "p:w", "p%3Aw", "am9lOnA6dw==")


@pytest.mark.parametrize("size", [1, 255])
def test_socks5_sends_users_and_passwords_of_up_to_255_bytes(size: int) -> None:
    """SOCKS5 has one byte for the length; HTTP has no limit, and no use for a colon in the user only."""
    text = "x" * size
    assert parse_proxy(f"socks5://{text}:{text}@proxy").login == Login(Secret(text), Secret(text))
    for user, password in ((text, ""), ("", text), (text, "x" * 256), ("x" * 256, text)):
        with pytest.raises(BadProxy, match="1 to 255 bytes"):
            parse_proxy(f"socks5h://{user}:{password}@proxy")
    assert parse_proxy(f"http://:{text * 2}@proxy").login == Login(Secret(""), Secret(text * 2))
    assert parse_proxy("socks5://a%3Ab:c@proxy").login == Login(Secret("a:b"), Secret("c"))


def test_user_and_password_are_decoded() -> None:
    """%XX stands for a byte of UTF-8; the URL for libraries has it again."""
    proxy = parse_proxy("http://j%40e:p%3A%2Fss%C3%BC@proxy:3128")
    assert proxy.login is not None
    assert (proxy.login.user.reveal(), proxy.login.password.reveal()) == ("j@e", "p:/ssü")
    assert proxy.url.reveal() == "http://j%40e:p%3A%2Fss%C3%BC@proxy:3128"
    assert parse_proxy(proxy.url.reveal()) == proxy


def test_the_login_is_not_printed() -> None:
    """Neither user nor password is in repr, str or format, and a login is not pickled."""
    proxy = parse_proxy(f"http://{CANARY}:{CANARY}@proxy:3128")
    assert CANARY not in f"{proxy} {proxy!r} {proxy.url} {proxy.url!r} {no_proxy(proxy, '')!r}"
    assert proxy.login is not None
    assert proxy.login.basic() in proxy.secrets()
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(proxy)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "must be http://"),
        (f"{CANARY}:3128", "must be http://"),
        (f"ftp://x:{CANARY}@proxy:21", "must be http://"),
        (f"http://x:{CANARY}@proxy:3128/path", "must be http://"),
        (f"http://x:{CANARY}@proxy:3128?x", "must be http://"),
        (f"http://x:{CANARY}/2@proxy:3128", "%XX"),
        (f"http://x:1/{CANARY}@proxy:3128", "%XX"),
        (f"http://x:{CANARY}#2@proxy:3128", "%XX"),
        (f"http://x:{CANARY}@", "not a host name"),
        (f"http://x:{CANARY}@proxy:{CANARY}", "must be http://"),
        (f"http://x:{CANARY}@proxy:0", "between 1 and 65535"),
        (f"http://x:{CANARY}@proxy:65536", "between 1 and 65535"),
        (f"http://x:{CANARY}@[::1", "must be http://"),
        (f"http://x:{CANARY}@169.254.169.254", "metadata"),
        (f"http://x:{CANARY}@metadata.google.internal", "metadata"),
        (f"http://x:{CANARY}@0xa9fea9fe", "canonical"),
        (f"http://x:{CANARY}%0d%0aX@proxy", "control characters"),
        (f"http://x:{CANARY}%ff@proxy", "UTF-8"),
        (f"http://x%3A:{CANARY}@proxy", "colon"),
        (f"socks5://{CANARY}@proxy", "1 to 255 bytes"),
        (f"socks5://x:{CANARY * 20}@proxy", "1 to 255 bytes"),
    ],
)
def test_bad_url_is_refused_without_quoting_it(url: str, says: str) -> None:
    """The error says what is wrong; neither it nor an error that it keeps quotes the URL."""
    with pytest.raises(BadProxy) as caught:
        parse_proxy(url)
    assert says in str(caught.value)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


PROXY = parse_proxy("http://proxy:3128")


@pytest.mark.parametrize(
    ("exceptions", "host", "port", "used"),
    [
        # The table of golang.org/x/net/http/httpproxy, and its documentation.
        ("", "api.example.com", 443, True),
        ("", "localhost", 443, False),
        ("", "127.0.0.1", 443, False),
        ("", "127.7.7.7", 443, False),
        ("", "::1", 443, False),
        ("example.com", "example.com", 443, False),
        ("example.com", "api.example.com", 443, False),
        ("example.com", "EXAMPLE.com.", 443, False),
        ("example.com", "badexample.com", 443, True),
        (".example.com", "api.example.com", 443, False),
        (".example.com", "example.com", 443, True),
        ("*.example.com", "api.example.com", 443, False),
        ("*.example.com", "example.com", 443, True),
        ("*example.com", "api.example.com", 443, True),
        ("example.com:6443", "example.com", 6443, False),
        ("example.com:6443", "api.example.com", 6443, False),
        ("example.com:6443", "example.com", 443, True),
        ("10.0.0.0/8", "10.1.2.3", 443, False),
        ("10.0.0.0/8", "::ffff:10.1.2.3", 443, False),
        ("10.0.0.7/8", "10.1.2.3", 443, False),
        ("10.0.0.0/8", "11.0.0.1", 443, True),
        ("10.0.0.0/8", "api.example.com", 443, True),
        ("fd00::/8", "fd00::1", 443, False),
        ("10.0.0.1", "10.0.0.1", 443, False),
        ("10.0.0.1:6443", "10.0.0.1", 6443, False),
        ("10.0.0.1:6443", "10.0.0.1", 443, True),
        ("[fd00::1]:6443", "fd00::1", 6443, False),
        ("[fd00::1]:6443", "fd00::1", 443, True),
        ("fd00::1", "fd00:0::1", 443, False),
        ("0.0.1", "10.0.0.1", 443, True),
        (" other.com , example.com ", "example.com", 443, False),
        ("other.com,*", "example.com", 443, False),
        (":443", "example.com", 443, True),
        ("10.0.0.0/99,,example.com", "example.com", 443, False),
    ],
)
def test_no_proxy_is_read_as_go_reads_it(exceptions: str, host: str, port: int, used: bool) -> None:
    """Suffixes, CIDRs, addresses, ports and ``*``; loopback is always contacted directly."""
    assert (no_proxy(PROXY, exceptions).proxy_for(host, port) is PROXY) is used


def test_upper_case_comes_first() -> None:
    """As in Go; a URL without a scheme is an http proxy."""
    environ = {"HTTPS_PROXY": "upper:1", "https_proxy": "lower:1", "NO_PROXY": "*", "no_proxy": ""}
    assert proxies_of(environ) == Proxies(parse_proxy("http://upper:1"), nothing=True)
    assert proxies_of({"https_proxy": "http://lower:1", "no_proxy": "a"}) == no_proxy(
        parse_proxy("http://lower:1"), "a"
    )


def test_missing_or_bad_variable_is_named() -> None:
    """The error names the flag and the variable, and never quotes the URL."""
    with pytest.raises(UsageError, match="neither HTTPS_PROXY nor https_proxy is set"):
        proxies_of({"HTTP_PROXY": "http://proxy:1", "ALL_PROXY": "http://proxy:1"})
    with pytest.raises(UsageError, match="--proxy-from-environment: https_proxy must be http://") as caught:
        proxies_of({"https_proxy": f"ftp://x:{CANARY}@proxy"})
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_host_and_port_of_an_https_url() -> None:
    """The port is 443 if the URL has none."""
    assert host_and_port("https://[::1]:6443/k8s") == ("::1", 6443)
    assert host_and_port("https://api.example.com") == ("api.example.com", 443)
