"""A real forward proxy in a process of its own: HTTP CONNECT, with or without TLS, and SOCKS5; with or without a login.

Run as a program, it serves until it is killed and prints a JSON line for each connection. :class:`ForwardProxy` starts
and kills it. It can also answer nonsense: then it reads the first bytes, sends what it was told, and closes or waits.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypedDict

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


class Seen(TypedDict):
    """A connection as the proxy saw it.

    Attributes:
        asked: ``host:port`` that the client asked for; "" if it did not come to that.
        login: ``user:password`` that the client sent; "" if none.
        head: the client's bytes up to the tunnel, of CONNECT only.
        first: the first bytes in the tunnel: those of a TLS handshake.
        certificate: whether the client showed a TLS certificate, to a proxy that asks for one.
        flooded: bytes sent by a proxy that never stops, until the client closed.
    """

    asked: str
    login: str
    head: str
    first: str
    certificate: bool
    flooded: int


@dataclass
class ForwardProxy:
    """A proxy process; a context manager that starts and kills it.

    Attributes:
        kind: ``http``, ``https`` or ``socks5``.
        login: ``user:password`` that it wants; "" = none.
        certificate: a file with key and certificate, for ``https``; the proxy asks clients for a certificate of the
            authorities in it.
        names: ``host:port`` asked for -> the port on loopback that it connects to; others are ports on loopback
            themselves.
        answer: what it sends instead of serving; None = it serves.
        then: ``close``, ``wait``, or ``flood``: send the last 1,000 bytes of the answer for ever.
        port: the same after each start.
    """

    kind: str = "http"
    login: str = ""
    certificate: Path | None = None
    names: Mapping[str, int] = field(default_factory=dict)
    answer: bytes | None = None
    then: str = "close"
    port: int = 0
    _lines: list[Any] = field(default_factory=list)
    _child: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def place(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.port}"

    def url(self, scheme: str = "", login: str | None = None) -> str:
        """Its URL, with its own login unless another is given."""
        login = self.login if login is None else login
        return f"{scheme or self.kind}://{login}{'@' if login else ''}{self.place}"

    @property
    def seen(self) -> list[Seen]:
        """The connections that have ended or whose tunnel is open, in that order."""
        return [line for line in self._lines if "asked" in line]

    def awaits(self, count: int) -> list[Seen]:
        """The connections, once there are so many."""

        def check() -> bool:
            assert len(self.seen) >= count, f"{len(self.seen)} connections, not {count}"
            return True

        eventually(check, 5)
        return self.seen

    def start(self) -> None:
        """Start it; returns once it listens."""
        told = {
            "kind": self.kind,
            "login": self.login,
            "certificate": str(self.certificate or ""),
            "names": dict(self.names),
            "answer": base64.b64encode(self.answer).decode() if self.answer is not None else None,
            "then": self.then,
            "port": self.port,
        }
        argv = [sys.executable, "-m", "tests.support.forward_proxy", json.dumps(told)]
        self._child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._child.stdout is not None
        first = self._child.stdout.readline()
        assert first, "the proxy does not start"
        self.port = json.loads(first)["port"]
        self._reader = threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """Kill it, and with it all its connections."""
        if self._child is not None and self._reader is not None:
            self._child.kill()
            self._child.wait(10)
            self._reader.join(10)
            self._child = None

    def _read(self, lines: Any) -> None:
        with lines:
            self._lines.extend(json.loads(line) for line in lines)


# --- the program ---------------------------------------------------------------------------------------


class _Refused(Exception):
    """The client does not get a tunnel."""


class _Program:
    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.answer = base64.b64decode(told["answer"]) if told["answer"] is not None else None

    async def serve(self) -> None:
        context = None
        if self.told["kind"] == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.told["certificate"])
            context.load_verify_locations(self.told["certificate"])
            context.verify_mode = ssl.CERT_OPTIONAL
        server = await asyncio.start_server(self._connection, "127.0.0.1", self.told["port"], ssl=context)
        _say({"port": server.sockets[0].getsockname()[1]})
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = bool(writer.get_extra_info("peercert"))
        seen = Seen(asked="", login="", head="", first="", certificate=certificate, flooded=0)
        try:
            if self.answer is not None:
                await self._nonsense(self.answer, reader, writer, seen)
                return
            serve = self._socks if self.told["kind"] == "socks5" else self._http
            there = await serve(reader, writer, seen)
            first = await reader.read(1 << 16)
            seen["first"] = first[:3].hex()
            there[1].write(first)
            _say(seen)
            seen["flooded"] = -1
            await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer))
        except (_Refused, asyncio.IncompleteReadError, OSError):
            pass
        finally:
            if seen["flooded"] >= 0:
                _say(seen)
            writer.close()

    async def _nonsense(
        self, answer: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen
    ) -> None:
        seen["head"] = (await reader.read(1 << 16)).decode("latin-1")
        writer.write(answer)
        await writer.drain()
        while self.told["then"] == "flood":
            writer.write(answer[-1000:])
            seen["flooded"] += 1000
            await writer.drain()
        if self.told["then"] == "wait":
            await reader.read()

    async def _open(self, host: str, port: int, seen: Seen) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        seen["asked"] = f"{host}:{port}"
        return await asyncio.open_connection("127.0.0.1", self.told["names"].get(seen["asked"], port))

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen) -> Any:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        seen["head"] = head
        for line in head.split("\r\n"):
            if line.lower().startswith("proxy-authorization: basic "):
                seen["login"] = base64.b64decode(line[27:]).decode()
        method, _, rest = head.partition(" ")
        host, _, port = rest.partition(" ")[0].rpartition(":")
        if seen["login"] != self.told["login"]:
            writer.write(b"HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
            raise _Refused
        if method != "CONNECT":
            writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
            raise _Refused
        try:
            there = await self._open(host.strip("[]"), int(port), seen)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            raise
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return there

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen) -> Any:
        _, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        wanted = 2 if self.told["login"] else 0
        writer.write(bytes([5, wanted if wanted in methods else 255]))
        if wanted not in methods:
            raise _Refused
        if wanted:
            await reader.readexactly(1)
            pair = [(await reader.readexactly((await reader.readexactly(1))[0])).decode() for _ in range(2)]
            seen["login"] = ":".join(pair)
            good = seen["login"] == self.told["login"]
            writer.write(bytes([1, 0 if good else 1]))
            if not good:
                raise _Refused
        kind = (await reader.readexactly(4))[3]
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16)))
        port = int.from_bytes(await reader.readexactly(2), "big")
        try:
            there = await self._open(host, port, seen)
        except OSError:
            writer.write(b"\x05\x05\x00\x01" + bytes(6))
            raise
        writer.write(b"\x05\x00\x00\x03\x05proxy\x00\x00")
        return there


def _say(line: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(_Program(json.loads(sys.argv[1])).serve())
