"""The bytes of requests and answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.decide.checks import Check
from hub.observe.health.http import HEAD_LIMIT, accepted, request, status_of

HTTP = Check("http", 30080, path="/healthz?full=1")


def test_host_header_defaults_to_address_and_port() -> None:
    """The Host header is address and port by default, with brackets for IPv6."""
    assert request(HTTP, "10.7.0.1") == (
        b"GET /healthz?full=1 HTTP/1.1\r\nHost: 10.7.0.1:30080\r\n"
        b"User-Agent: endpointslice-hub\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
    assert b"Host: [fd00::7]:30080\r\n" in request(HTTP, "fd00::7")


def test_request_takes_host_method_and_headers_from_the_check() -> None:
    """A header of the check replaces the default header of the same name."""
    check = Check("http", 80, method="HEAD", host="shop.example.com", headers=(("User-Agent", "x"), ("X-A", "b c")))
    assert request(check, "10.7.0.1") == (
        b"HEAD / HTTP/1.1\r\nHost: shop.example.com\r\nAccept: */*\r\nConnection: close\r\n"
        b"User-Agent: x\r\nX-A: b c\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("received", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody", 200),
        (b"HTTP/1.0 204\r\n\r\n", 204),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://169.254.169.254/\r\n\r\n", 301),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 No\r\n\r\n", 503),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2", None),
        (b"HTTP/1.1 200 OK\r\nA: b", None),
        (b"", None),
    ],
)
def test_status_of_a_complete_head(received: bytes, status: int | None) -> None:
    """The status is None until the head is complete; interim answers are skipped."""
    assert status_of(received) == status


@pytest.mark.parametrize(
    "received",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/2 200 OK\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x01\x02"],
)
def test_non_http_answer_is_rejected_early(received: bytes) -> None:
    """An answer that is not HTTP is rejected before its head is complete."""
    with pytest.raises(ValueError, match="not an HTTP answer"):
        status_of(received)


def test_a_head_without_end_is_refused() -> None:
    """A head of more than 16 KiB is rejected."""
    with pytest.raises(ValueError, match="16384 bytes"):
        status_of(b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_LIMIT)


def test_head_is_refused_once_it_has_as_many_bytes_as_allowed() -> None:
    """An incomplete head is refused when HEAD_LIMIT bytes were received, a complete one is not."""
    start = b"HTTP/1.1 200 OK\r\nX: "
    head = start + b"a" * (HEAD_LIMIT - len(start))
    assert status_of(head[:-1]) is None
    with pytest.raises(ValueError, match=f"a head of more than {HEAD_LIMIT} bytes"):
        status_of(head)
    assert status_of(head + b"\r\n\r\n") == 200


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"])
def test_start_of_an_answer_is_judged_once_it_has_a_status(before: bytes) -> None:
    """The first 13 bytes of each head show whether it is HTTP; fewer do not."""
    assert status_of(before + b"x" * 12) is None
    with pytest.raises(ValueError, match="not an HTTP answer"):
        status_of(before + b"x" * 13)


@given(st.binary(max_size=200))
def test_garbage_is_a_status_nothing_or_refused(received: bytes) -> None:
    """For any bytes, the result is a status, None or a ValueError."""
    try:
        status = status_of(received)
    except ValueError:
        return
    assert status is None or 100 <= status <= 599


def test_accepted_statuses() -> None:
    """By default every status that is not an error passes; otherwise exactly the listed ones do."""
    assert accepted(HTTP, 204)
    assert accepted(HTTP, 302)
    assert not accepted(HTTP, 404)
    strict = Check("http", 80, status=((200, 200), (401, 401)))
    assert [status for status in (200, 201, 401) if accepted(strict, status)] == [200, 401]
