"""Errors of the API, beside those that test_gcp.py gets from the fake."""

from __future__ import annotations

import email.utils

import pytest
from hub_provider_gcp.failures import Problem, Refused, decoded, error_for, problem_in, retry_after


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "-7"}, 0.0),
        ({"Retry-After": "1e9"}, 3600.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": email.utils.formatdate(1_000_030.0, usegmt=True)}, 30.0),
        ({"Retry-After": "Mon, 99 Nov 2026 00:00:00 GMT"}, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(headers: dict[str, str], expected: float | None) -> None:
    """Retry-After may be seconds or a date; anything else counts as missing."""
    assert retry_after(headers, 1_000_000.0) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, Problem()),
        ([], Problem()),
        ({"errors": []}, Problem()),
        ({"errors": [5], "status": "ABORTED"}, Problem("ABORTED", "")),
        ({"code": 404, "status": "NOT_FOUND", "message": "gone"}, Problem("NOT_FOUND", "gone")),
        ({"errors": [{"reason": "<html>", "message": 5}], "message": "text"}, Problem("", "text")),
        ({"errors": [{"code": "QUOTA_EXCEEDED", "message": "full"}]}, Problem("QUOTA_EXCEEDED", "full")),
    ],
)
def test_problem_in_reads_answers_and_operations(error: object, expected: Problem) -> None:
    """Reason and message are found in both forms, and "" stands for anything else."""
    assert problem_in(error) == expected


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"<html>", b"\xff", b"[" * 100_000])
def test_decoded_accepts_only_objects(body: bytes) -> None:
    """A body that is not a JSON object has no value."""
    assert decoded(body) is None


@pytest.mark.parametrize(
    ("status", "problem", "expected"),
    [
        (404, Problem("notFound", "The resource 'projects/p/zones/z/instances/n1' was not found"), True),
        (404, Problem("notFound", "The resource 'projects/p' was not found"), False),
        (404, Problem("notFound", "The resource 'projects/p/zones/z/instances/n10' was not found"), False),
        (404, Problem(), False),
        (400, Problem("notFound", "The resource 'projects/p/zones/z/instances/n1' was not found"), False),
    ],
)
def test_missing_means_the_resource_itself(status: int, problem: Problem, *, expected: bool) -> None:
    """Only the API's own 404 about the resource says that it does not exist."""
    error = error_for(status, problem, "GET x", str, None, write=False)
    assert isinstance(error, Refused)
    assert error.is_missing("n1") is expected


def test_message_of_a_failed_server_is_not_quoted() -> None:
    """A 5xx may repeat the request's headers, so only its reason is shown."""
    error = error_for(503, Problem("backendError", "Bearer ya29.x"), "GET x", str, None, write=False)
    assert str(error) == "GET x: 503 backendError"
