"""The parsers for single values of clusters.yaml."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.registry import values
from hub.registry.spec import SelectorTerm
from hub.registry.values import BadValue

UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def go_duration(nanoseconds: int) -> str:
    """A duration as Go's time.Duration.String prints it, but without fractions."""
    parts = []
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        count, nanoseconds = divmod(nanoseconds, UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("300ms", 0.3), ("1h30m", 5400.0), ("0s", 0.0), ("0", 0.0), ("1.5s", 1.5), (".5m", 30.0), ("1.h", 3600.0)],
)
def test_duration_is_go_style(written: str, seconds: float) -> None:
    """All notations of Go's ParseDuration are accepted, except signs."""
    assert values.duration(written) == seconds


@given(st.integers(0, 2**63 - 1))
def test_printed_duration_is_read_back(nanoseconds: int) -> None:
    """A printed duration is read back to the nanosecond, within the precision of a float."""
    written = go_duration(nanoseconds)

    assert values.duration(written) == nanoseconds / 1e9


@given(st.text(max_size=20))
def test_duration_of_any_text_is_seconds_or_a_bad_value(written: str) -> None:
    """Every text gives a finite duration of at least zero, or BadValue."""
    try:
        seconds = values.duration(written)
    except BadValue:
        return
    assert 0 <= seconds < 1e10


@pytest.mark.parametrize(
    "written", ["", "s", "5", "1 s", "1s ", "1d", "-1s", "+1s", "1e3s", "٣s", "999999999h", "1s" * 40]
)
def test_duration_refuses(written: str) -> None:
    """Texts that are not durations are refused."""
    with pytest.raises(BadValue):
        values.duration(written)


@pytest.mark.parametrize("value", [5, 1.5, True, None, [], {}])
def test_duration_is_never_coerced(value: object) -> None:
    """Values that are not text are refused."""
    with pytest.raises(BadValue):
        values.duration(value)


@pytest.mark.parametrize(
    ("written", "fraction"), [("0%", 0.0), ("50%", 0.5), ("12.5%", 0.125), ("100%", 1.0), ("100.0%", 1.0)]
)
def test_percent_is_a_fraction(written: str, fraction: float) -> None:
    """A percentage is returned as a fraction of 1."""
    assert values.percent(written) == fraction


@pytest.mark.parametrize("written", ["50", "101%", "-1%", "100.1%", "%", "5 %", 50, 0.5, True, "off"])
def test_percent_refuses(written: object) -> None:
    """Numbers, texts without a percent sign, and values above 100 % are refused."""
    with pytest.raises(BadValue):
        values.percent(written)


def test_off_and_never_give_none() -> None:
    """``off`` and ``never`` give None where they are allowed."""
    assert (values.percent_or_off("off"), values.duration_or_never("never")) == (None, None)


@pytest.mark.parametrize(
    ("written", "terms"),
    [
        ("", ()),
        ("a=b", (SelectorTerm("a", "in", frozenset({"b"})),)),
        ("a == b", (SelectorTerm("a", "in", frozenset({"b"})),)),
        ("a!=b", (SelectorTerm("a", "notin", frozenset({"b"})),)),
        ("a=", (SelectorTerm("a", "in", frozenset({""})),)),
        ("x.io/a in (b, c)", (SelectorTerm("x.io/a", "in", frozenset({"b", "c"})),)),
        ("a notin (b)", (SelectorTerm("a", "notin", frozenset({"b"})),)),
        ("a", (SelectorTerm("a", "exists"),)),
        ("! a", (SelectorTerm("a", "absent"),)),
        ("b,a in (x,y)", (SelectorTerm("a", "in", frozenset({"x", "y"})), SelectorTerm("b", "exists"))),
    ],
)
def test_selector_is_kubectls(written: str, terms: tuple[SelectorTerm, ...]) -> None:
    """The whole syntax of kubectl for label selectors is accepted, and the terms are sorted."""
    assert values.selector(written) == terms


def test_selector_of_equal_meaning_compares_equal() -> None:
    """Selectors that differ only in order or repetition are equal."""
    assert values.selector("b=1,a=2,b=1") == values.selector("a==2, b=1")


@pytest.mark.parametrize("written", ["a=b,", ",", "a in b", "a in (b", "a>1", "-a", "a=b c", "a=-", "a b", "(a)", 5])
def test_selector_refuses(written: object) -> None:
    """Invalid label selectors are refused, and so are the operators ``<`` and ``>``."""
    with pytest.raises(BadValue):
        values.selector(written)


@given(st.text(alphabet="ab!=,() inotx./-", max_size=30))
def test_selector_of_any_text_is_terms_or_a_bad_value(written: str) -> None:
    """Every text gives terms or BadValue."""
    try:
        terms = values.selector(written)
    except BadValue:
        return
    assert all(term.key for term in terms)


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("healthz", 'must begin with /, not "healthz"', "write /healthz"),
        ("heal thz", 'must begin with /, not "heal thz"', ""),
        ("/heal thz", 'has a character that a path cannot have: "/heal thz"', "write it as %XX, a space as %20"),
        ("/é", 'has a character that a path cannot have: "/é"', "write it as %XX, a space as %20"),
    ],
)
def test_http_path_refuses(written: str, message: str, hint: str) -> None:
    """A path without a slash, with a space or outside of ASCII is refused in words, without a pattern."""
    with pytest.raises(BadValue) as caught:
        values.http_path(written)

    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_cidr_suggests_the_network() -> None:
    """A network with host bits is refused with a suggestion."""
    with pytest.raises(BadValue, match="bits set") as caught:
        values.cidr("10.7.3.9/16")

    assert caught.value.hint == "did you mean 10.7.0.0/16?"


@pytest.mark.parametrize("written", ["10.0.0.0/8", "0.0.0.0/0", "fd00::/8", "::/0", "10.0.0.1/32"])
def test_cidr_accepts(written: str) -> None:
    """Networks of both IP versions are accepted, up to the widest."""
    assert values.cidr(written) == ip_network(written)


@pytest.mark.parametrize(
    "written",
    ["10.0.0.0", "010.0.0.0/8", "10.0.0.0/255.0.0.0", "10.0.0.0/33", "fe80::%1/64", "::ffff:0:0/96", "x/8", "/8", 8],
)
def test_cidr_refuses(written: object) -> None:
    """Missing masks, leading zeros, netmasks, zones and IPv4 written as IPv6 are refused."""
    with pytest.raises(BadValue):
        values.cidr(written)


@pytest.mark.parametrize(
    ("written", "ports"),
    [(443, (443, 443)), (1, (1, 1)), (65535, (65535, 65535)), ("1-65535", (1, 65535)), ("80-80", (80, 80))],
)
def test_port_range_accepts(written: object, ports: tuple[int, int]) -> None:
    """A single number, and first and last port, are accepted."""
    assert values.port_range(written) == ports


@pytest.mark.parametrize("written", [0, 65536, "0-5", "5-70000", "9-3", "443", "a-b", "1-2-3", True, 1.0])
def test_port_range_refuses(written: object) -> None:
    """Ports outside of 1 to 65535, reversed ranges and other texts are refused."""
    with pytest.raises(BadValue):
        values.port_range(written)


@pytest.mark.parametrize("written", ["a", "a-1", "1", "a" * 63])
def test_label_accepts(written: str) -> None:
    """DNS labels of up to 63 characters are accepted."""
    assert values.label(written) == written


@pytest.mark.parametrize("written", ["", "A", "-a", "a-", "a.b", "a_b", "a" * 64, "ä", "a\n", 1, None, True])
def test_label_refuses(written: object) -> None:
    """Texts that Kubernetes does not accept as DNS labels are refused."""
    with pytest.raises(BadValue):
        values.label(written)


def test_label_suggests_a_name_that_fits() -> None:
    """A name with capitals or underscores is refused with a valid suggestion."""
    with pytest.raises(BadValue) as caught:
        values.label("Payments_EU")

    assert caught.value.hint == "such as payments-eu"


@pytest.mark.parametrize("written", ["a", "x.io/a", "A_b.C", "a" * 63])
def test_label_key_accepts(written: str) -> None:
    """Label keys with and without a DNS prefix are accepted."""
    assert values.label_key(written) == written


@pytest.mark.parametrize("written", ["", "/a", "x/", "X.io/a", "a/b/c", "a" * 64, "-a"])
def test_label_key_refuses(written: str) -> None:
    """Empty or too long names, and prefixes that are not DNS names, are refused."""
    with pytest.raises(BadValue):
        values.label_key(written)


@pytest.mark.parametrize("written", ["a", "a/b/c", "A/b", "/b", "a/"])
def test_object_name_refuses(written: str) -> None:
    """Texts that are not namespace/name are refused."""
    with pytest.raises(BadValue):
        values.object_name(written)


def test_object_glob_takes_stars_on_both_sides() -> None:
    """``*`` is accepted anywhere in namespace and name."""
    assert values.object_glob("team-*/web*") == "team-*/web*"


@pytest.mark.parametrize("written", ["a", "a/", "/b", "A/b", "a/B", "a*/B", "a/b/c"])
def test_object_glob_refuses(written: str) -> None:
    """A pattern without namespace or name, or with invalid characters, is refused."""
    with pytest.raises(BadValue, match="is not a pattern of Services"):
        values.object_glob(written)


@pytest.mark.parametrize("written", ["A/b", "a/B"])
def test_object_name_refuses_either_side(written: str) -> None:
    """An invalid namespace is refused like an invalid name."""
    with pytest.raises(BadValue, match="is not a Service"):
        values.object_name(written)


def test_a_port_is_a_number_or_a_name() -> None:
    """A port is a number or a name, but not a boolean."""
    assert values.port_or_name(443) == 443
    assert values.port_or_name("https") == "https"
    for written in (0, 65536, True, "", "A"):
        with pytest.raises(BadValue):
            values.port_or_name(written)


def test_address_is_canonical() -> None:
    """Addresses are returned in their canonical spelling."""
    assert values.address("FD00:0::1") == "fd00::1"


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("::ffff:10.7.0.13", "is an IPv4 address written as IPv6", "10.7.0.13"),
        ("::ffff:a07:d", "is an IPv4 address written as IPv6", "10.7.0.13"),
        ("::ffff:10.7.0.13%eth0", "is an IPv4 address written as IPv6", "10.7.0.13"),
        ("fe80::1%eth0", "has a zone", "fe80::1"),
    ],
)
def test_an_address_that_is_never_published_so_is_refused(written: str, message: str, hint: str) -> None:
    """An address with a zone, or IPv4 written as IPv6, would exclude nothing: it is refused with a valid suggestion."""
    with pytest.raises(BadValue) as caught:
        values.address(written)

    assert (caught.value.message, caught.value.hint) == (f"{message}: {values.shown(written)}", f"write {hint}")
    assert values.address(hint) == hint


NUMBERS = [-5, -0.5, 0, 0.5, 1, 2.5, 50, 150, 7200, 0.01234567, 1e-9, 1e300, 10**12, float("inf"), float("nan")]


@pytest.mark.parametrize("written", [*NUMBERS, "10.7.0.9", "fd00::1", "::ffff:10.7.0.13", "fe80::1%eth0"])
@pytest.mark.parametrize(
    "parse",
    [
        values.duration,
        values.duration_or_never,
        values.probe_interval,
        values.probe_timeout,
        values.percent,
        values.percent_or_off,
        values.cidr,
        values.address,
    ],
)
def test_suggested_value_is_accepted(parse: Callable[[object], object], written: object) -> None:
    """A value that a hint suggests is always valid."""
    try:
        parse(written)
    except BadValue as bad:
        if bad.hint.startswith("write "):
            parse(bad.hint.removeprefix("write ").removesuffix(" for seconds").split(", or")[0].split(" for ")[0])


@pytest.mark.parametrize(
    ("parse", "written", "hint"),
    [
        (values.percent, -5, "such as 50%"),
        (values.percent, 150, "such as 50%"),
        (values.percent, 50, "write 50%"),
        (values.percent_or_off, -5, "such as 50%, or off"),
        (values.duration, -5, "such as 300ms, 30s or 1h30m"),
        (values.duration, 30, "write 30s for seconds"),
        (values.duration_or_never, -5, "such as 300ms, 30s or 1h30m, or never"),
        (values.probe_interval, 7200, "from 100ms to 1h"),
        (values.probe_interval, 5, "write 5s for seconds"),
        (values.cidr, "::ffff:10.7.0.13", "such as 10.7.0.0/16 or fd00:7::/64"),
        (values.cidr, "::ffff:10.7.0.13/127", "write it as IPv4"),
    ],
)
def test_a_number_that_would_be_refused_with_a_unit_is_not_suggested(
    parse: Callable[[object], object], written: object, hint: str
) -> None:
    """A number that is not valid with a unit either gets an example as its hint."""
    with pytest.raises(BadValue) as caught:
        parse(written)

    assert caught.value.hint == hint


@pytest.mark.parametrize("written", ["default", "a", "ops.edge-1", "9", "a" * 63])
def test_owner_ends_the_name_of_a_lease(written: str) -> None:
    """DNS subdomains that are label values are accepted as owners."""
    assert values.owner(written) == written


@pytest.mark.parametrize("written", ["Edge", "a_b", "a..b", "a-.b", "a.-b", "-a", "a.", "", "a" * 64, 5, None])
def test_owner_that_cannot_name_a_lease_is_refused(written: object) -> None:
    """Owners that cannot end a Lease's name are refused."""
    with pytest.raises(BadValue):
        values.owner(written)


@pytest.mark.parametrize("written", ["Edge", "a_b", "a..b", "default", "A" * 63])
def test_previous_owner_is_any_label_value(written: str) -> None:
    """Every non-empty label value is accepted as a previous owner, even if it is not valid as an owner."""
    assert values.previous_owner(written) == written


@pytest.mark.parametrize("written", ["", "a/b", "-a", "a" * 64, 5])
def test_previous_owner_is_a_label_value_that_is_not_empty(written: object) -> None:
    """Values that a slice cannot have as a label are refused as previous owners."""
    with pytest.raises(BadValue):
        values.previous_owner(written)


NAME = "a" * 253
"""A name as long as names may be."""
CEL = "such as: \"'expose' in service.metadata.labels\"; variables: service, cluster"
ONE_LINE = "must be non-empty text on one line"


@pytest.mark.parametrize(
    ("parse", "written", "value"),
    [
        (values.text, "x" * 1024, "x" * 1024),
        (values.probe_interval, "100ms", 0.1),
        (values.probe_interval, "1h", 3600.0),
        (values.probe_timeout, "10ms", 0.01),
        (values.probe_timeout, "1m", 60.0),
        (values.percent_or_off, "100%", 1.0),
        (values.subdomain, NAME, NAME),
        (values.provider_name, "a" * 63, "a" * 63),
        (values.secret_key, NAME[:-4] + "A-_.", NAME[:-4] + "A-_."),
        (values.label_key, f"{NAME}/a", f"{NAME}/a"),
        (values.label_value, "", ""),
        (values.label_value, "A" * 63, "A" * 63),
        (values.managed_by, "old-controller", "old-controller"),
        (values.address, "10.7.0.9", "10.7.0.9"),
        (values.port_or_name, 1, 1),
        (values.object_name, "ingress/envoy", "ingress/envoy"),
        (values.object_glob, "*/*", "*/*"),
        (values.file_path, "a/~", "a/~"),
        (values.header_name, "X" * 63, "X" * 63),
        (values.header_value, "", ""),
        (values.header_value, "a b", "a b"),
        (values.host, NAME, NAME),
        (values.host, "Shop.example.com:8443", "Shop.example.com:8443"),
        (values.http_path, "/healthz?ready=1", "/healthz?ready=1"),
        (values.grpc_service, "", ""),
        (values.grpc_service, "s" * 253, "s" * 253),
        (values.status_range, 100, (100, 100)),
        (values.status_range, 599, (599, 599)),
        (values.status_range, "100-599", (100, 599)),
        (values.cel, "cluster == 'local'", "cluster == 'local'"),
    ],
)
def test_value_at_the_limit_is_accepted(parse: Callable[[object], object], written: object, value: object) -> None:
    """Values at the limits of what is allowed are accepted."""
    assert parse(written) == value


@pytest.mark.parametrize(
    ("parse", "written", "message", "hint"),
    [
        (values.text, 5, "must be text, not the number 5", "put it in quotes"),
        (values.text, True, "must be text, not true (true/false)", "put it in quotes"),
        (values.text, None, "must be text, not nothing", ""),
        (values.text, ["a"], "must be text, not a list", ""),
        (values.text, {}, "must be text, not a mapping", ""),
        (values.text, "", ONE_LINE, ""),
        (values.text, "a\nb", ONE_LINE, ""),
        (values.text, "x" * 1025, "is longer than 1024 characters", ""),
        (values.duration, "1d", 'is not a duration: "1d"', "days are no unit here: 1d is 24h"),
        (values.duration, "é", 'is not a duration: "é"', "such as 300ms, 30s or 1h30m"),
        (values.duration, "2562048h", 'is too long a duration: "2562048h"', ""),
        (values.duration_or_never, True, "must not be true", 'write "never" in quotes'),
        (values.duration_or_never, "-1s", 'must not be negative: "-1s"', "or never"),
        (values.probe_interval, 0.1, "must be a duration with a unit, not the number 0.1", "write 0.1s for seconds"),
        (values.probe_interval, 3600, "must be a duration with a unit, not the number 3600", "write 3600s for seconds"),
        (values.probe_interval, 3601, "must be a duration with a unit, not the number 3601", "from 100ms to 1h"),
        (values.probe_interval, "99ms", 'is not between 100ms and 1h: "99ms"', ""),
        (values.probe_interval, "3601s", 'is not between 100ms and 1h: "3601s"', ""),
        (values.probe_timeout, 0.001, "must be a duration with a unit, not the number 0.001", "from 10ms to 1m"),
        (values.probe_timeout, "9ms", 'is not between 10ms and 1m: "9ms"', ""),
        (values.probe_timeout, "61s", 'is not between 10ms and 1m: "61s"', ""),
        (values.percent, 0.0, "must be a percentage, not the number 0.0", "write 0.0%"),
        (values.percent, 0.25, "must be a percentage, not the number 0.25", "write 25%"),
        (values.percent, 1, "must be a percentage, not the number 1", "write 1%"),
        (values.percent, 1.5, "must be a percentage, not the number 1.5", "write 1.5%"),
        (values.percent, "101%", 'is not a percentage from 0% to 100%: "101%"', "such as 50%"),
        (values.label, "---", 'is not a DNS label (a-z, 0-9 and - inside): "---"', ""),
        (values.label, "A b.C", 'is not a DNS label (a-z, 0-9 and - inside): "A b.C"', "such as a-b-c"),
        (values.label, "b" * 64, f'is longer than 63 characters: "{"b" * 56}...', ""),
        (values.subdomain, "a" * 254, f'is longer than 253 characters: "{"a" * 56}...', ""),
        (values.provider_name, "a b", 'is not a provider\'s name (a-z, 0-9 and - inside): "a b"', "such as a-b"),
        (values.secret_key, "a/b", 'is not a key of a Secret: "a/b"', "letters, digits, -, _ and . are allowed"),
        (
            values.secret_key,
            "a" * 254,
            f'is not a key of a Secret: "{"a" * 56}...',
            "letters, digits, -, _ and . are allowed",
        ),
        (values.label_key, "/a", 'is not a label key: the prefix of "/a" is not a DNS name', ""),
        (values.label_key, "A/a", 'is not a label key: the prefix of "A/a" is not a DNS name', ""),
        (
            values.label_key,
            f"a{NAME}/a",
            f'is not a label key: the prefix of "{"a" * 56}... is not a DNS name',
            "",
        ),
        (
            values.label_value,
            "a/b",
            'is not a label value: "a/b"',
            "letters, digits, -, _ and . inside, at most 63",
        ),
        (
            values.managed_by,
            "endpointslice-hub",
            "is the hub's own value",
            "slices of another hub are adopted with previousOwners",
        ),
        (
            values.selector,
            "a=b, c d",
            'is not a label selector: "a=b, c d" at "c d"',
            "such as pool=ingress,zone in (a,b),!spot",
        ),
        (values.selector, "c d", 'is not a label selector: "c d"', "such as pool=ingress,zone in (a,b),!spot"),
        (values.selector, "a,", 'is not a label selector: "a,"', "such as pool=ingress,zone in (a,b),!spot"),
        (values.cidr, "x/8", 'is not a network: "x/8"', "such as 10.7.0.0/16 or fd00:7::/64"),
        (values.cidr, "fd00::1", 'is an address without a mask: "fd00::1"', "write fd00::1/128"),
        (values.address, "10.0.0.0/8", 'is not an IP address: "10.0.0.0/8"', "a network does not fit here"),
        (values.port_range, 0, "is outside the ports from 1 to 65535: 0", ""),
        (values.port_range, 65536, "is outside the ports from 1 to 65535: 65536", ""),
        (values.port_range, "1-65536", 'is outside the ports from 1 to 65535: "1-65536"', ""),
        (values.port_range, "0-1", 'is outside the ports from 1 to 65535: "0-1"', ""),
        (values.port_range, "9-0", 'is outside the ports from 1 to 65535: "9-0"', ""),
        (values.port_range, "9-3", 'is a range that ends before it starts: "9-3"', "did you mean 3-9?"),
        (values.status_range, 99, "is outside the statuses from 100 to 599: 99", ""),
        (values.status_range, 600, "is outside the statuses from 100 to 599: 600", ""),
        (values.status_range, True, "must be text, not true (true/false)", "put it in quotes"),
        (
            values.status_range,
            "2xx",
            'is not an HTTP status or a range of them: "2xx"',
            "such as 204 or 200-299",
        ),
        (values.file_path, "~/x", 'starts with ~, which is not expanded: "~/x"', "write the whole path"),
        (values.header_name, "a b", 'is not the name of a header: "a b"', "letters, digits and - are allowed"),
        (
            values.header_name,
            "X" * 64,
            f'is not the name of a header: "{"X" * 56}...',
            "letters, digits and - are allowed",
        ),
        (values.header_name, "COOKIE", 'carries a secret: "COOKIE"', "secrets are not written into this file"),
        (values.header_name, "Connection", 'cannot be set: "Connection"', "the hub closes every connection"),
        (values.header_value, "é", 'is not the value of a header: "é"', "printable ASCII, no space around it"),
        (values.header_value, " a", 'is not the value of a header: " a"', "printable ASCII, no space around it"),
        (values.host, "a_b", 'is not a host: "a_b"', "such as shop.example.com"),
        (values.host, "a" * 254, f'is not a host: "{"a" * 56}...', "such as shop.example.com"),
        (values.cel, 5, "must be a CEL expression as text, not the number 5", CEL),
        (values.cel, " ", 'must be a CEL expression as text, not the text " "', CEL),
        (values.cel, "1 + 1", "the expression returns int, not a bool", CEL),
    ],
)
def test_refused_value_has_its_message_and_hint(
    parse: Callable[[object], object], written: object, message: str, hint: str
) -> None:
    """A value beyond the limits is refused with a message that quotes it, and a hint if there is a better value."""
    with pytest.raises(BadValue) as caught:
        parse(written)

    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("value", "text"),
    [("é", '"é"'), ("x" * 58, f'"{"x" * 58}"'), ("x" * 59, f'"{"x" * 56}...'), ([1, None], "[1, null]")],
)
def test_value_is_shown_as_json(value: object, text: str) -> None:
    """Messages quote values as JSON, with all characters as they are, and cut to 60 characters."""
    assert values.shown(value) == text
