"""A fake IONOS API on loopback: stateful, paged, rate limited, and failing on demand.

    async with FakeIonos() as ionos:
        datacenter = ionos.add_datacenter()
        server = ionos.add_server(datacenter, "n1", "10.7.0.1", lan=2)
        ...                                    # ionos.url, ionos.token
        ionos.fail_next(503)

It answers as the real API's documentation says: ``depth`` selects what is expanded, lists come in pages of 100 unless
another limit is requested, a change is accepted with 202 and done later. :class:`FakeIonosThread` is the same for
blocking tests.
"""

from __future__ import annotations

from hub_testkit.ionos.fake import FakeIonos, Fault
from hub_testkit.ionos.thread import FakeIonosThread

__all__ = ["FakeIonos", "FakeIonosThread", "Fault"]
