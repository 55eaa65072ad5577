"""The resolution of each node, computed from a provider's answers. Pure.

A found address stays until the provider reports another address, or "absent". An answer without the node, a failure and
"unknown" change nothing. "Absent" counts only after a second "absent", ``window`` seconds after the first, because
an eventually consistent cloud may not show a server for a moment. After a restart nothing is remembered, so after the
first "absent" the node is unknown and its published endpoint stays unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hub.model import Absent, Found, Resolution, Unknown

NOT_ASKED = Unknown("not resolved yet")
LEFT_OUT = Unknown("the provider's answer does not mention this node")


class Memory:
    """Resolutions by node name.

    Args:
        window: seconds between the two answers that confirm "absent".
    """

    def __init__(self, window: float) -> None:
        self.window = window
        self._resolutions: dict[str, Resolution] = {}
        self._absent_since: dict[str, float] = {}

    @property
    def resolutions(self) -> Mapping[str, Resolution]:
        """Node name -> resolution, for every node that was added; a live, read-only view."""
        return MappingProxyType(self._resolutions)

    def add(self, name: str) -> None:
        """Add a node that is not resolved yet; replaces another node of the same name."""
        self._absent_since.pop(name, None)
        self._resolutions[name] = NOT_ASKED

    def forget(self, name: str) -> bool:
        """Remove a node; returns False if it was not there."""
        self._absent_since.pop(name, None)
        return self._resolutions.pop(name, None) is not None

    def apply(self, name: str, resolution: Resolution | None, now: float) -> bool:
        """Apply one node's part of an answer (None = left out); returns True if its resolution changed."""
        before = self._resolutions[name]
        if isinstance(resolution, Absent):
            after = self._absent(name, before, resolution, now)
        elif isinstance(resolution, Found):
            self._absent_since.pop(name, None)
            after = resolution
        else:
            if name in self._absent_since:  # the answer does not confirm "absent": wait for another window
                self._absent_since[name] = now
            after = (resolution or LEFT_OUT) if isinstance(before, Unknown) else before
        if after == before:
            return False
        self._resolutions[name] = after
        return True

    def failed(self, names: Iterable[str], reason: str) -> bool:
        """Note a failed call as the reason of those nodes that are unknown; returns True if any reason changed."""
        unknown, changed = Unknown(reason), False
        for name in names:
            before = self._resolutions.get(name)
            if isinstance(before, Unknown) and before != unknown:
                self._resolutions[name] = unknown
                changed = True
        return changed

    def unconfirmed(self) -> Mapping[str, float]:
        """Name of a node with one "absent" -> the earliest time at which a second "absent" counts."""
        return {name: since + self.window for name, since in self._absent_since.items()}

    def confirm_at(self) -> float | None:
        """The earliest time of :meth:`unconfirmed`; None if there is none."""
        return min(self._absent_since.values()) + self.window if self._absent_since else None

    def _absent(self, name: str, before: Resolution, resolution: Absent, now: float) -> Resolution:
        if isinstance(before, Absent):
            return resolution
        since = self._absent_since.setdefault(name, now)
        if now >= since + self.window:  # the same sum as in confirm_at(): a difference may round to less
            del self._absent_since[name]
            return resolution
        return before if isinstance(before, Found) else Unknown(f"to be confirmed: {resolution.reason}")
