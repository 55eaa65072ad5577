"""The fake of Google Cloud for blocking tests."""

from __future__ import annotations

from hub_provider_gcp.testing import GcpFake

from tests.support.fake_thread import FakeThread


class GcpThread(FakeThread[GcpFake]):
    """Serves a :class:`GcpFake` in a thread; tests change its ``cloud`` by single assignments and calls."""

    def __init__(self) -> None:
        super().__init__(GcpFake)

    def fail(self, fault: str) -> None:
        """Make every request fail until :meth:`heal`."""
        self.call(lambda: self.fake.fail(fault, times=None))

    def heal(self) -> None:
        """End all faults."""
        self.call(self.fake.heal)
