"""An open-loop client: a new request at a fixed rate, each on its own connection, whatever became of earlier ones.

Every request has its own source port, so that a packet can be assigned to its request. Prints one JSON line for each
request: source port, start (CLOCK_MONOTONIC), seconds, answer (the node's name), error ("" = answered).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import time

import uvloop

LOWEST, HIGHEST = 11000, 32000
"""The source ports: above those of Envoy, which runs on the same host, below those that the kernel gives to others."""
TIMEOUT = 1.0
Line = tuple[int, float, float, str, str]


async def request(source: tuple[str, int], target: tuple[str, int], text: bytes) -> Line:
    """Make one request."""
    loop, begin, answer, error = asyncio.get_running_loop(), time.monotonic(), b"", ""
    with socket.socket() as connection:
        connection.setblocking(False)  # noqa: FBT003
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            connection.bind(source)
            async with asyncio.timeout(TIMEOUT):
                await loop.sock_connect(connection, target)
                await loop.sock_sendall(connection, text)
                while data := await loop.sock_recv(connection, 4096):
                    answer += data
        except TimeoutError:
            error = f"no answer within {TIMEOUT:g} s"
        except OSError as failure:
            error = os.strerror(failure.errno) if failure.errno else type(failure).__name__
    head, _, name = answer.decode(errors="replace").partition("\r\n\r\n")
    if not error and not (head.startswith("HTTP/1.1 200") and name):
        error = head.partition("\r\n")[0][:80] or "closed without an answer"
    return source[1], begin, time.monotonic() - begin, "" if error else name, error


async def run(args: argparse.Namespace) -> list[Line]:
    """Make all requests."""
    loop, tasks = asyncio.get_running_loop(), []
    delay = args.begin - time.monotonic()  # the loop has its own clock
    first = loop.time() + delay
    text = f"GET / HTTP/1.1\r\nHost: {args.authority}\r\nConnection: close\r\n\r\n".encode()
    for number in range(round(args.rate * args.seconds)):
        await asyncio.sleep(first + number / args.rate - loop.time())
        port = LOWEST + (args.port_offset + number) % (HIGHEST - LOWEST)
        tasks.append(asyncio.create_task(request((args.source, port), (args.host, args.port), text)))
    return list(await asyncio.gather(*tasks))


def main() -> None:
    """Run the client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--source", required=True, help="the address to send from")
    parser.add_argument("--authority", required=True, help="the name in the request's Host header")
    parser.add_argument("--rate", type=float, required=True, help="requests per second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--begin", type=float, required=True, help="CLOCK_MONOTONIC of the first request")
    parser.add_argument("--port-offset", type=int, default=0)
    for line in uvloop.run(run(parser.parse_args())):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
