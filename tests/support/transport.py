"""A transport for tests of protocols, which never waits."""

from __future__ import annotations

import asyncio


class Wire(asyncio.Transport):
    """A transport that records the calls of a protocol.

    Attributes:
        sent: the bytes that were written.
        aborted: whether it was aborted.
        reading: whether reading is not paused.
        protocol: the protocol that replaced the first one; None = none did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.aborted = False
        self.reading = True
        self.protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
