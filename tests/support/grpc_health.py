"""A gRPC server with the health service, on the library h2; for asyncio.start_server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, PingAckReceived, RequestReceived, SettingsAcknowledged, StreamEnded
from hub_testkit.simulator.identity import server_tls

from hub.runtime.protowire import fields

UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)

Answer = Callable[[H2Connection, int], None]
"""Answers a complete request on a stream, instead of the health service."""


def message(status: int) -> bytes:
    """A HealthCheckResponse in its frame of gRPC; protobuf leaves out the number 0."""
    body = bytes((0x08, status)) if status else b""
    return b"\0" + len(body).to_bytes(4, "big") + body


def reply(
    connection: H2Connection,
    stream: int,
    body: bytes,
    code: str | None = "0",
    **headers: str,
) -> None:
    """Send a whole answer.

    Args:
        connection: of the client.
        stream: of the request.
        body: of the answer.
        code: the ``grpc-status``; None = no trailers.
        headers: replace ``status`` and ``content_type``.
    """
    given = {"status": "200", "content_type": "application/grpc", **headers}
    connection.send_headers(stream, [(":status", given["status"]), ("content-type", given["content_type"])])
    connection.send_data(stream, body, end_stream=code is None)
    if code is not None:
        connection.send_headers(stream, [("grpc-status", code)], end_stream=True)


@dataclass
class HealthServer:
    """The state of one server.

    Attributes:
        statuses: service -> its status; "" is the server as a whole.
        answer: instead of the answers from ``statuses``.
        pause: seconds between receiving a request and answering.
        ping: whether the server pings the client before it answers, and waits.
        seen: the headers of the requests.
        acknowledged: what the client acknowledged: ``settings``, ``ping``.
    """

    statuses: dict[str, int] = field(default_factory=lambda: {"": SERVING})
    answer: Answer | None = None
    pause: float = 0.0
    ping: bool = False
    seen: list[dict[str, str]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.initiate_connection()
        bodies: dict[int, bytes] = {}
        while True:
            writer.write(connection.data_to_send())
            await writer.drain()
            data = await reader.read(65_536)
            if not data:
                return
            for event in connection.receive_data(data):
                await self._handle(connection, event, bodies, writer)

    async def _handle(
        self, connection: H2Connection, event: Event, bodies: dict[int, bytes], writer: asyncio.StreamWriter
    ) -> None:
        match event:
            case RequestReceived():
                assert event.headers is not None
                self.seen.append({str(name): str(value) for name, value in event.headers})
            case DataReceived():
                bodies[event.stream_id] = bodies.get(event.stream_id, b"") + (event.data or b"")
            case SettingsAcknowledged():
                self.acknowledged.append("settings")
            case PingAckReceived():
                self.acknowledged.append("ping")
                self._reply(connection, max(bodies), bodies)
            case StreamEnded():
                writer.write(connection.data_to_send())
                await asyncio.sleep(self.pause)
                if self.ping:
                    connection.ping(b"hub-test")
                else:
                    self._reply(connection, event.stream_id, bodies)
            case _:
                pass

    def _reply(self, connection: H2Connection, stream: int, bodies: dict[int, bytes]) -> None:
        if self.answer is not None:
            self.answer(connection, stream)
            return
        body = bodies.pop(stream)
        assert body[:5] == b"\0" + (len(body) - 5).to_bytes(4, "big")
        named = [value.decode() for number, value in fields(body[5:]) if number == 1 and isinstance(value, bytes)]
        status = self.statuses.get(named[-1] if named else "")
        if status is None:  # an error has no message, so its headers and trailers are one block
            error = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "5")]
            connection.send_headers(stream, error, end_stream=True)
        else:
            reply(connection, stream, message(status))


def grpc_tls() -> ssl.SSLContext:
    """A server's context that negotiates HTTP/2."""
    context = server_tls.__wrapped__()  # not the shared one, since ALPN would change for all
    context.set_alpn_protocols(["h2"])
    return context
