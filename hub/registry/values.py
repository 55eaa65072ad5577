"""Parses the single values of clusters.yaml: durations, percentages, selectors, networks, names.

Each function takes a plain YAML value and returns the value that the hub uses, or raises :class:`BadValue` with a
message for the user. Nothing is coerced: ``5`` is not a duration and ``"5"`` is not a number. This module must not use
pydantic or do I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeGuard

from hub import durations
from hub.model import MANAGED_BY
from hub.registry.spec import Network, SelectorTerm

LABEL_LIMIT: Final = 63
"""Most characters of a DNS label, a label's value and a label's name (RFC 1123, apimachinery validation)."""
NAME_LIMIT: Final = 253
"""Most characters of a DNS subdomain: names of Nodes and Secrets, prefixes of label keys."""

LABEL_PATTERN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
PERCENT_PATTERN: Final = r"(100(\.0+)?|[0-9]{1,2}(\.[0-9]{1,4})?)%"
HEADER_PATTERN: Final = r"[A-Za-z0-9][-A-Za-z0-9_]*"
HOST_PATTERN: Final = r"[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?(:[0-9]{1,5})?"
CIDR_PATTERN: Final = r"[0-9a-fA-F:.]+/[0-9]{1,3}"

_LABEL = re.compile(LABEL_PATTERN)
_SUBDOMAIN = re.compile(rf"{LABEL_PATTERN}(\.{LABEL_PATTERN})*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_PROVIDER = re.compile(r"[a-z0-9]([-_.a-z0-9]*[a-z0-9])?")
_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_PERCENT = re.compile(PERCENT_PATTERN)
_CIDR = re.compile(CIDR_PATTERN)
_HEADER = re.compile(HEADER_PATTERN)
_HOST = re.compile(HOST_PATTERN)
_STATUSES = re.compile(r"([0-9]{3})-([0-9]{3})")
_SECRET_HEADERS: Final = frozenset(("authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token"))
_OWN_HEADERS: Final = {
    "host": "use host:",
    "connection": "the hub closes every connection",
    "content-length": "a probe has no body",
    "transfer-encoding": "a probe has no body",
    "upgrade": "a probe speaks HTTP/1.1",
    "expect": "a probe has no body",
}
_GLOB = re.compile(r"[a-z0-9*]([-.a-z0-9*]*[a-z0-9*])?")


CEL_HINT: Final = "such as: \"'expose' in service.metadata.labels\"; variables: service, cluster"


class BadValue(ValueError):
    """A value that is not valid. ``hint`` says what to write instead; "" = no hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def shown(value: object) -> str:
    """The value for messages: as JSON on one line, cut to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind(value: object) -> str:
    """A description of a plain YAML value for messages, such as ``the number 5``."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"{str(value).lower()} (true/false)"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text {shown(value)}"
        case list():
            return "a list"
        case _:
            return "a mapping"


def text(value: object) -> str:
    """Non-empty text on one line, without control characters, of at most 1024 characters."""
    if not isinstance(value, str):
        hint = "put it in quotes" if isinstance(value, (bool, int, float)) else ""
        raise BadValue(f"must be text, not {kind(value)}", hint)
    if not value or not value.isprintable():
        raise BadValue("must be non-empty text on one line")
    if len(value) > 1024:
        raise BadValue("is longer than 1024 characters")
    return value


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; booleans do not count, although bool is a subclass of int."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def duration(value: object) -> float:
    """Seconds of a duration such as ``1h30m`` (see :mod:`hub.durations`); a number without a unit is refused."""
    if _is_number(value):
        hint = _suggested(duration, f"{value}s", "such as 300ms, 30s or 1h30m", " for seconds")
        raise BadValue(f"must be a duration with a unit, not the number {value}", hint)
    written = text(value)
    try:
        return durations.parse(written)
    except durations.Malformed as bad:
        days = re.fullmatch(r"[0-9.]+d", written)
        hint = "days are no unit here: 1d is 24h" if days else "such as 300ms, 30s or 1h30m"
        raise BadValue(f"{bad}: {shown(written)}", hint) from None
    except ValueError as bad:
        raise BadValue(f"{bad}: {shown(written)}") from None


def duration_or_never(value: object) -> float | None:
    """Like :func:`duration`; None for ``never``."""
    return None if value == "never" else _with_word(duration, value, "never")


def probe_interval(value: object) -> float:
    """Seconds between probes: 100 ms to 1 h."""
    return _between(value, 0.1, 3600.0, "100ms", "1h")


def ask_interval(value: object) -> float:
    """Seconds between descriptions of an account's addresses: 10 s to 1 h."""
    return _between(value, 10.0, 3600.0, "10s", "1h")


def drain_time(value: object) -> float:
    """Seconds for which an endpoint that leaves is still published: 0 to 24 h."""
    return _between(value, 0.0, 86400.0, "0s", "24h")


def probe_timeout(value: object) -> float:
    """Timeout of a probe in seconds: 10 ms to 1 min."""
    return _between(value, 0.01, 60.0, "10ms", "1m")


def _between(value: object, least: float, most: float, shortest: str, longest: str) -> float:
    """A duration within limits; ``shortest`` and ``longest`` are the limits as users write them."""
    if _is_number(value) and not least <= value <= most:
        raise BadValue(f"must be a duration with a unit, not the number {value}", f"from {shortest} to {longest}")
    seconds = duration(value)
    if not least <= seconds <= most:
        raise BadValue(f"is not between {shortest} and {longest}: {shown(value)}")
    return seconds


def percent(value: object) -> float:
    """The fraction (0.5) of a percentage such as ``50%``, from 0 % to 100 %."""
    if _is_number(value):
        share = f"{value * 100:g}%" if 0 < value < 1 else f"{value}%"
        raise BadValue(f"must be a percentage, not the number {value}", _suggested(percent, share, "such as 50%"))
    written = text(value)
    if not _PERCENT.fullmatch(written):
        raise BadValue(f"is not a percentage from 0% to 100%: {shown(written)}", "such as 50%")
    return float(written[:-1]) / 100


def percent_or_off(value: object) -> float | None:
    """Like :func:`percent`; None for ``off``."""
    return None if value == "off" else _with_word(percent, value, "off")


def _suggested(parse: Callable[[object], object], written: str, otherwise: str, why: str = "") -> str:
    """A hint to write ``written`` instead, followed by ``why``; ``otherwise`` if ``written`` is not valid."""
    try:
        parse(written)
    except BadValue:
        return otherwise
    return f"write {written}{why}"


def _with_word(parse: Callable[[object], float], value: object, word: str) -> float:
    """The parsed value; errors mention that ``word`` is allowed too."""
    if isinstance(value, bool):  # YAML 1.1 tools turn off into false
        raise BadValue(f"must not be {str(value).lower()}", f'write "{word}" in quotes')
    try:
        return parse(value)
    except BadValue as bad:
        raise BadValue(bad.message, f"{bad.hint}, or {word}" if bad.hint else f"or {word}") from None


def label(value: object) -> str:
    """A DNS label (RFC 1123), at most 63 characters: names of clusters, namespaces, Services, ports."""
    return _named(value, _LABEL, LABEL_LIMIT, "a DNS label (a-z, 0-9 and - inside)")


def subdomain(value: object) -> str:
    """A DNS subdomain, at most 253 characters: names of Nodes and Secrets."""
    return _named(value, _SUBDOMAIN, NAME_LIMIT, "a DNS name (a-z, 0-9, - and . inside)")


def provider_name(value: object) -> str:
    """The name of a provider's entry point."""
    return _named(value, _PROVIDER, LABEL_LIMIT, "a provider's name (a-z, 0-9 and - inside)")


def secret_key(value: object) -> str:
    """A key inside a Secret."""
    written = text(value)
    if len(written) > NAME_LIMIT or not _SECRET_KEY.fullmatch(written):
        raise BadValue(f"is not a key of a Secret: {shown(written)}", "letters, digits, -, _ and . are allowed")
    return written


def _named(value: object, pattern: re.Pattern[str], limit: int, what: str) -> str:
    """A name that matches a pattern; the error suggests a valid spelling."""
    written = text(value)
    if len(written) > limit:
        raise BadValue(f"is longer than {limit} characters: {shown(written)}")
    if not pattern.fullmatch(written):
        suggested = re.sub(r"[^a-z0-9]+", "-", written.lower()).strip("-")
        raise BadValue(f"is not {what}: {shown(written)}", f"such as {suggested}" if suggested else "")
    return written


def label_key(value: object) -> str:
    """A label key: a name, or ``prefix/name`` with a DNS subdomain as prefix."""
    written = text(value)
    prefix, slash, name = written.rpartition("/")
    if slash and (len(prefix) > NAME_LIMIT or not _SUBDOMAIN.fullmatch(prefix)):
        raise BadValue(f"is not a label key: the prefix of {shown(written)} is not a DNS name")
    if len(name) > LABEL_LIMIT or not _QUALIFIED.fullmatch(name):
        raise BadValue(f"is not a label key: {shown(written)}", "letters, digits, -, _ and . inside, at most 63")
    return written


def label_value(value: object) -> str:
    """A label value; may be empty."""
    if value == "":
        return ""
    written = text(value)
    if len(written) > LABEL_LIMIT or not _QUALIFIED.fullmatch(written):
        raise BadValue(f"is not a label value: {shown(written)}", "letters, digits, -, _ and . inside, at most 63")
    return written


def zone(value: object) -> str:
    """The name of a zone: the value of a Node's label topology.kubernetes.io/zone."""
    written = label_value(value)
    if not written:
        raise BadValue("must not be empty", "write the value of the Nodes' label topology.kubernetes.io/zone")
    return written


def owner(value: object) -> str:
    """The hub's owner: a label value, and a DNS subdomain since the names of Lease and ConfigMaps end with it."""
    written = previous_owner(value)
    if not _SUBDOMAIN.fullmatch(written):
        raise BadValue(
            f"must consist of a-z, 0-9, and - or . inside, not {shown(written)}",
            "the name of the hub's Lease ends with it",
        )
    return written


def previous_owner(value: object) -> str:
    """A former owner, whose slices are adopted: a label value that is not empty."""
    return label_value(text(value))


def managed_by(value: object) -> str:
    """The managed-by label's value of another controller, whose slices are adopted.

    The hub's own value is refused, and so are Kubernetes' own controllers: they cannot be stopped.
    """
    written = label_value(text(value))
    if written == MANAGED_BY:
        raise BadValue("is the hub's own value", "slices of another hub are adopted with previousOwners")
    if written in _BUILT_IN:
        raise BadValue(f"{written} is Kubernetes' own and writes again what is deleted", _BUILT_IN[written])
    return written


_BUILT_IN: Final = {
    "endpointslice-controller.k8s.io": "remove the Service's selector and delete the slices it left behind",
    "endpointslicemirroring-controller.k8s.io": "delete the Endpoints object that is mirrored",
}
"""Kubernetes' own controllers, which cannot be stopped -> how to make one stop writing slices of a Service."""


def selector(value: object) -> tuple[SelectorTerm, ...]:
    """A label selector in kubectl's syntax; sorted, so that the order of terms does not matter.

    Source of the grammar: apimachinery pkg/labels/selector.go (without ``<`` and ``>``).
    """
    if value == "":
        return ()
    written = text(value)
    terms = {_term(part.strip(), written) for part in re.split(r",(?![^(]*\))", written)}
    return tuple(sorted(terms, key=lambda term: (term.key, term.operator, sorted(term.values))))


_EXISTS = re.compile(r"(!?)\s*([^\s!=<>(),]+)")
_EQUALS = re.compile(r"([^\s!=<>(),]+)\s*(==|=|!=)\s*([^\s!=<>(),]*)")
_SET = re.compile(r"([^\s!=<>(),]+)\s+(in|notin)\s*\(([^()]*)\)")


def _term(part: str, whole: str) -> SelectorTerm:
    """One requirement of the selector ``whole``."""
    if found := _EQUALS.fullmatch(part):
        key, sign, single = found.groups()
        return SelectorTerm(label_key(key), "notin" if sign == "!=" else "in", frozenset((label_value(single),)))
    if found := _SET.fullmatch(part):
        key, operator, listed = found.groups()
        values = frozenset(label_value(item.strip()) for item in listed.split(","))
        return SelectorTerm(label_key(key), "in" if operator == "in" else "notin", values)
    if found := _EXISTS.fullmatch(part):
        return SelectorTerm(label_key(found[2]), "absent" if found[1] else "exists")
    where = f" at {shown(part)}" if part and part != whole else ""
    raise BadValue(f"is not a label selector: {shown(whole)}{where}", "such as pool=ingress,zone in (a,b),!spot")


def cidr(value: object) -> Network:
    """A network in CIDR notation; the bits outside the mask must be zero."""
    written = text(value)
    if not _CIDR.fullmatch(written):
        try:
            alone = ip_address(written)
        except ValueError:
            raise BadValue(f"is not a network: {shown(written)}", "such as 10.7.0.0/16 or fd00:7::/64") from None
        hint = _suggested(cidr, f"{alone}/{alone.max_prefixlen}", "such as 10.7.0.0/16 or fd00:7::/64")
        raise BadValue(f"is an address without a mask: {shown(written)}", hint)
    try:
        network = ip_network(written, strict=False)
    except ValueError:
        raise BadValue(f"is not a network: {shown(written)}", "such as 10.7.0.0/16 or fd00:7::/64") from None
    address = ip_address(written.partition("/")[0])
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise BadValue(f"is an IPv4 network written as IPv6: {shown(written)}", "write it as IPv4")
    if network.network_address != address:
        raise BadValue(f"has bits set outside the mask: {shown(written)}", f"did you mean {network}?")
    return network


def address(value: object) -> str:
    """An IP address in canonical spelling; a zone and an IPv4 address written as IPv6 are refused."""
    written = text(value)
    try:
        found = ip_address(written)
    except ValueError:
        hint = "a network does not fit here" if "/" in written else ""
        raise BadValue(f"is not an IP address: {shown(written)}", hint) from None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        raise BadValue(f"is an IPv4 address written as IPv6: {shown(written)}", f"write {found.ipv4_mapped}")
    if isinstance(found, IPv6Address) and found.scope_id is not None:
        raise BadValue(f"has a zone: {shown(written)}", f"write {written.partition('%')[0]}")
    return str(found)


def port_range(value: object) -> tuple[int, int]:
    """First and last port of a range such as ``30000-32767``; a single number is a range of one."""
    return _range(value, _PORTS, 1, 65535, "ports", "is not a port or a range of ports", "such as 443 or 30000-32767")


def _range(
    value: object, pattern: re.Pattern[str], least: int, most: int, what: str, otherwise: str, hint: str
) -> tuple[int, int]:
    """First and last number of ``FIRST-LAST`` or of a single number.

    Args:
        value: the value to parse.
        pattern: matches ``FIRST-LAST``, with a group for each number.
        least: the smallest allowed number.
        most: the largest allowed number.
        what: what the numbers are, in the plural.
        otherwise: the message for a value of another form.
        hint: the hint for a value of another form.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        first = last = value
    else:
        found = pattern.fullmatch(text(value))
        if not found:
            raise BadValue(f"{otherwise}: {shown(value)}", hint)
        first, last = int(found[1]), int(found[2])
    if not least <= first <= most or not least <= last <= most:
        raise BadValue(f"is outside the {what} from {least} to {most}: {shown(value)}")
    if first > last:
        raise BadValue(f"is a range that ends before it starts: {shown(value)}", f"did you mean {last}-{first}?")
    return first, last


def port_or_name(value: object) -> int | str:
    """A Service's port by number or by name."""
    if isinstance(value, int) and not isinstance(value, bool):
        first, _ = port_range(value)
        return first
    return label(value)


def object_name(value: object) -> str:
    """A Service as ``namespace/name``."""
    written = text(value)
    namespace, _, name = written.partition("/")
    if not _LABEL.fullmatch(namespace) or not _LABEL.fullmatch(name):
        raise BadValue(f"is not a Service: {shown(written)}", "write namespace/name")
    return written


def object_glob(value: object) -> str:
    """A pattern of Services: ``namespace/name``, in which ``*`` stands for any run of characters."""
    written = text(value)
    namespace, _, name = written.partition("/")
    if not _GLOB.fullmatch(namespace) or not _GLOB.fullmatch(name):
        raise BadValue(f"is not a pattern of Services: {shown(written)}", "write namespace/name, with * for any")
    return written


def file_path(value: object) -> str:
    """A path as written; a leading ``~`` is refused, since the hub does not expand it."""
    written = text(value)
    if written.startswith("~"):
        raise BadValue(f"starts with ~, which is not expanded: {shown(written)}", "write the whole path")
    return written


def header_name(value: object) -> str:
    """The name of an HTTP header; headers that carry secrets or that the prober sets itself are refused."""
    written = text(value)
    if len(written) > LABEL_LIMIT or not _HEADER.fullmatch(written):
        raise BadValue(f"is not the name of a header: {shown(written)}", "letters, digits and - are allowed")
    if written.lower() in _SECRET_HEADERS:
        raise BadValue(f"carries a secret: {shown(written)}", "secrets are not written into this file")
    if (own := _OWN_HEADERS.get(written.lower())) is not None:
        raise BadValue(f"cannot be set: {shown(written)}", own)
    return written


def header_value(value: object) -> str:
    """The value of an HTTP header: printable ASCII on one line; may be empty."""
    if value == "":
        return ""
    written = text(value)
    if not written.isascii() or written != written.strip():
        raise BadValue(f"is not the value of a header: {shown(written)}", "printable ASCII, no space around it")
    return written


def host(value: object) -> str:
    """A Host header: a name, optionally with a port."""
    written = text(value)
    if len(written) > NAME_LIMIT or not _HOST.fullmatch(written):
        raise BadValue(f"is not a host: {shown(written)}", "such as shop.example.com")
    return written


def grpc_service(value: object) -> str:
    """The name of a gRPC service, as the server knows it; may be empty."""
    if value == "":
        return ""
    written = text(value)
    if len(written) > NAME_LIMIT or not written.isascii() or " " in written:
        raise BadValue(f"is not the name of a gRPC service: {shown(written)}", "such as shop.v1.Cart")
    return written


def http_path(value: object) -> str:
    """The path, and query, of an HTTP request."""
    written = text(value)
    if not written.startswith("/"):
        raise BadValue(f"must begin with /, not {shown(written)}", _suggested(http_path, f"/{written}", ""))
    if not written.isascii() or " " in written:
        raise BadValue(f"has a character that a path cannot have: {shown(written)}", "write it as %XX, a space as %20")
    return written


def status_range(value: object) -> tuple[int, int]:
    """First and last HTTP status of a range such as ``200-299``; a single number is a range of one."""
    otherwise = "is not an HTTP status or a range of them"
    return _range(value, _STATUSES, 100, 599, "statuses", otherwise, "such as 204 or 200-299")


def cel(value: object) -> str:
    """A CEL expression that the hub can evaluate. The CEL library is imported only if the file has an expression."""
    if not isinstance(value, str) or not value.strip():
        raise BadValue(f"must be a CEL expression as text, not {kind(value)}", CEL_HINT)
    from hub.cel import CelError, Expression

    try:
        return Expression(value).text
    except CelError as error:
        raise BadValue(f"the expression {error}", CEL_HINT) from None
