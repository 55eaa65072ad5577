"""The type that holds every credential in memory: a string that is never printed."""

from __future__ import annotations

from hmac import compare_digest


class Secret:
    """Holds a credential. ``repr``, ``str`` and formatting give ``***``; pickling raises TypeError.

    Two Secrets with the same value are equal (compared in constant time), so that objects that contain Secrets can be
    compared. Secrets are not hashable on purpose, since no dict should have a credential as its key.
    """

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself; call this only to fill a header or a TLS context."""
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return compare_digest(self._value.encode(), other._value.encode())

    def __repr__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled")
