"""What a provider is believed to say of each node: pure bookkeeping over its answers.

A found address stays until the provider says something else; saying nothing, failing or being unsure is
not something else. "Absent" is believed when a second answer, ``window`` seconds after the first, agrees:
eventually consistent clouds lose a server for a moment. After a restart nothing is remembered, so a first
"absent" reads as unknown and the published slice stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hub.model import Absent, Found, Resolution, Unknown

NOT_ASKED = Unknown("not resolved yet")
LEFT_OUT = Unknown("the provider said nothing about this node")


class Memory:
    """Resolutions by node name.

    Args:
        window: seconds between the two answers it takes to believe "absent".
    """

    def __init__(self, window: float) -> None:
        self.window = window
        self._believed: dict[str, Resolution] = {}
        self._absent_since: dict[str, float] = {}

    @property
    def resolutions(self) -> Mapping[str, Resolution]:
        """A live, read-only view; every node that was added is in it."""
        return MappingProxyType(self._believed)

    def add(self, name: str) -> None:
        """A node, or another one under the same name: nothing is known of it."""
        self._absent_since.pop(name, None)
        self._believed[name] = NOT_ASKED

    def forget(self, name: str) -> bool:
        """The node is gone; False where it was never there."""
        self._absent_since.pop(name, None)
        return self._believed.pop(name, None) is not None

    def answer(self, name: str, said: Resolution | None, now: float) -> bool:
        """Take one node's part of an answer; True where what is believed changed."""
        before = self._believed[name]
        if isinstance(said, Absent):
            after = self._absent(name, before, said, now)
        elif isinstance(said, Found):
            self._absent_since.pop(name, None)
            after = said
        else:
            if name in self._absent_since:  # neither agrees nor objects: asked again a window later
                self._absent_since[name] = now
            after = (said or LEFT_OUT) if isinstance(before, Unknown) else before
        if after == before:
            return False
        self._believed[name] = after
        return True

    def failed(self, names: Iterable[str], reason: str) -> bool:
        """A call failed: nodes never known are unknown because of that; True where anything changed."""
        unknown, changed = Unknown(reason), False
        for name in names:
            before = self._believed.get(name)
            if isinstance(before, Unknown) and before != unknown:
                self._believed[name] = unknown
                changed = True
        return changed

    def unconfirmed(self) -> Mapping[str, float]:
        """Nodes said to be absent once, with the earliest time at which a second answer counts."""
        return {name: since + self.window for name, since in self._absent_since.items()}

    def confirm_at(self) -> float | None:
        """When the next unconfirmed "absent" may be confirmed."""
        return min(self._absent_since.values()) + self.window if self._absent_since else None

    def _absent(self, name: str, before: Resolution, said: Absent, now: float) -> Resolution:
        if isinstance(before, Absent):
            return said
        since = self._absent_since.setdefault(name, now)
        if now >= since + self.window:  # as confirm_at() says it: the difference may round to less
            del self._absent_since[name]
            return said
        return before if isinstance(before, Found) else Unknown(f"to be confirmed: {said.reason}")
