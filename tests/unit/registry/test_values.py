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


def test_a_long_value_is_quoted_in_part() -> None:
    """Messages quote at most 60 characters of a value."""
    assert len(values.shown("x" * 10_000)) == 60


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
