"""Error answers: the ``Status`` objects of a Kubernetes API server, word for word."""

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
    """The API server refuses a request.

    Attributes:
        code: The HTTP status.
        body: The whole ``Status`` object.
        retry_after: Seconds for the Retry-After header; None = no such header.
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
    """One entry of a 422's ``details.causes``. ``kind`` is the entry's reason without the prefix ``FieldValue``."""

    field: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    @property
    def wire(self) -> Json:
        """The entry as it is in ``details.causes``."""
        return {"reason": f"FieldValue{self.kind}", "message": self.message, "field": self.field}


def bad(field: str, value: object, why: str) -> Cause:
    """Returns an ``Invalid value`` cause; strings are quoted as Go quotes them."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return Cause(field, "Invalid", f"Invalid value: {shown}: {why}")


def required(field: str, why: str = "") -> Cause:
    """Returns a ``Required value`` cause."""
    return Cause(field, "Required", f"Required value: {why}" if why else "Required value")


def unsupported(field: str, value: str, supported: tuple[str, ...]) -> Cause:
    """Returns an ``Unsupported value`` cause, with the supported values."""
    choices = ", ".join(f'"{choice}"' for choice in supported)
    return Cause(field, "NotSupported", f'Unsupported value: "{value}": supported values: {choices}')


def too_many(field: str, count: int, limit: int) -> Cause:
    """Returns a ``Too many`` cause, for a list with too many items."""
    return Cause(field, "TooMany", f"Too many: {count}: must have at most {limit} items")


def duplicate(field: str, value: str) -> Cause:
    """Returns a ``Duplicate value`` cause."""
    return Cause(field, "Duplicate", f'Duplicate value: "{value}"')


def forbidden_field(field: str, why: str) -> Cause:
    """Returns a ``Forbidden`` cause, which belongs to a 422, not to a 403."""
    return Cause(field, "Forbidden", f"Forbidden: {why}")


def invalid(group: str, kind: str, name: str, causes: list[Cause]) -> Refusal:
    """Returns a 422 with all causes."""
    text = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    details = details_of(name, group, kind)
    details["causes"] = [cause.wire for cause in causes]
    qualified = f"{kind}.{group}" if group else kind
    return Refusal(422, f'{qualified} "{name}" is invalid: {text}', details=details)


def details_of(name: str, group: str, kind: str) -> Json:
    """Returns ``details`` with those fields that are not empty."""
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def no_such_path() -> Refusal:
    """Returns the 404 for a resource that the server does not serve."""
    return Refusal(404, "the server could not find the requested resource", details={})


def no_such_method() -> Refusal:
    """Returns the 405."""
    return Refusal(405, "the server does not allow this method on the requested resource", details={})


def unauthorized() -> Refusal:
    """Returns the 401 for an unknown token."""
    return Refusal(401, "Unauthorized")


def expired(what: str) -> Refusal:
    """Returns a 410 for an expired resourceVersion; ``what`` is ``list`` or ``watch``."""
    return Refusal(410, f"The resourceVersion for the provided {what} is too old.")


def version_too_large(version: int, current: int) -> Refusal:
    """Returns the 504 for a list or get at a resourceVersion that is higher than the server's current one."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refusal(
        504,
        f"Timeout: Too large resource version: {version}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        retry_after=1,
    )


def invalid_options(kind: str, cause: Cause) -> Refusal:
    """Returns a 422 for query parameters (ListOptions, CreateOptions, …)."""
    return invalid("meta.k8s.io", kind, "", [cause])
