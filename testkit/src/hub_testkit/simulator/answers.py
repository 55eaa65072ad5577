"""The ``Status`` objects a Kubernetes API server refuses with, word for word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Refusal(Exception):
    """The API server said no.

    Attributes:
        code: the HTTP status.
        body: the whole ``Status`` object.
        retry_after: seconds of a Retry-After header, or None.
    """

    def __init__(
        self,
        code: int,
        message: str,
        reason: str | None = None,
        details: Json | None = None,
        *,
        retry_after: int | None = None,
        metadata: Json | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        self.body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
        }
        reason = REASONS.get(code, "") if reason is None else reason
        if reason:
            self.body["reason"] = reason
        if details is not None:
            self.body["details"] = details
        self.body["code"] = code


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of a 422's ``details.causes``; ``kind`` is the reason without its ``FieldValue`` prefix."""

    field: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    @property
    def wire(self) -> Json:
        """As in ``details.causes``."""
        return {"reason": f"FieldValue{self.kind}", "message": self.message, "field": self.field}


def bad(field: str, value: object, why: str) -> Cause:
    """``Invalid value``; strings are quoted as Go quotes them."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return Cause(field, "Invalid", f"Invalid value: {shown}: {why}")


def required(field: str, why: str = "") -> Cause:
    """``Required value``."""
    return Cause(field, "Required", f"Required value: {why}" if why else "Required value")


def unsupported(field: str, value: str, supported: tuple[str, ...]) -> Cause:
    """``Unsupported value``, with the choices."""
    choices = ", ".join(f'"{choice}"' for choice in supported)
    return Cause(field, "NotSupported", f'Unsupported value: "{value}": supported values: {choices}')


def too_many(field: str, count: int, limit: int) -> Cause:
    """``Too many`` items in a list."""
    return Cause(field, "TooMany", f"Too many: {count}: must have at most {limit} items")


def duplicate(field: str, value: str) -> Cause:
    """``Duplicate value``."""
    return Cause(field, "Duplicate", f'Duplicate value: "{value}"')


def forbidden_field(field: str, why: str) -> Cause:
    """``Forbidden`` as a cause, not as a 403."""
    return Cause(field, "Forbidden", f"Forbidden: {why}")


def invalid(group: str, kind: str, name: str, causes: list[Cause]) -> Refusal:
    """422 with every finding."""
    text = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    details = details_of(name, group, kind)
    details["causes"] = [cause.wire for cause in causes]
    qualified = f"{kind}.{group}" if group else kind
    return Refusal(422, f'{qualified} "{name}" is invalid: {text}', details=details)


def details_of(name: str, group: str, kind: str) -> Json:
    """``details`` with the fields that are not empty."""
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def no_such_path() -> Refusal:
    """404 for a resource the server does not serve."""
    return Refusal(404, "the server could not find the requested resource", details={})


def no_such_method() -> Refusal:
    """405."""
    return Refusal(405, "the server does not allow this method on the requested resource", details={})


def unauthorized() -> Refusal:
    """401 for a token nobody knows."""
    return Refusal(401, "Unauthorized")


def expired(what: str) -> Refusal:
    """410; ``what`` is ``list`` or ``watch``."""
    return Refusal(410, f"The resourceVersion for the provided {what} is too old.")


def from_the_future(version: int, current: int) -> Refusal:
    """504: a list or get that may not be older than a version the server has not seen."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refusal(
        504,
        f"Timeout: Too large resource version: {version}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        retry_after=1,
    )


def bad_options(kind: str, cause: Cause) -> Refusal:
    """422 for query parameters (ListOptions, CreateOptions, …)."""
    return invalid("meta.k8s.io", kind, "", [cause])
