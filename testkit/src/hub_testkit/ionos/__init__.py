"""An IONOS API on loopback: stateful, paged, rate limited, and broken on demand.

    async with FakeIonos() as ionos:
        datacenter = ionos.add_datacenter()
        server = ionos.add_server(datacenter, "n1", "10.7.0.1", lan=2)
        ...                                    # ionos.url, ionos.token
        ionos.fail_next(503)

Answers as the real one is documented to: depth decides what is expanded, lists come in pages of 100 unless asked
otherwise, a change is accepted with 202 and done later. :class:`FakeIonosThread` is the same for blocking tests.
"""

from __future__ import annotations

from hub_testkit.ionos.fake import FakeIonos, Fault
from hub_testkit.ionos.thread import FakeIonosThread

__all__ = ["FakeIonos", "FakeIonosThread", "Fault"]
