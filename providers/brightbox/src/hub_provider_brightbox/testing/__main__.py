"""``python -m hub_provider_brightbox.testing``: serves the fake on loopback and prints each request."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress

from hub_provider_brightbox.testing.account import CLIENT, SECRET
from hub_provider_brightbox.testing.fake import BrightboxFake, Served

USAGE = """\
url: {url}
# Nodes: {ids}
# BRIGHTBOX_API_URL={url} BRIGHTBOX_CLIENT={client} BRIGHTBOX_CLIENT_SECRET={secret}
# A hub with a registry needs --allow-api-host {host}
# Faults, settings and servers: see curl {url}/fake/
"""


def main(arguments: list[str] | None = None) -> None:
    """Parse the arguments and serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m hub_provider_brightbox.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of the API (default: a free one)")
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="servers (default 3)")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="before each answer (default 0)")
    options = parser.parse_args(arguments)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    """Print how to use the fake, and then the requests, until cancelled."""
    async with BrightboxFake(options.port) as fake:
        ids = [fake.account.add_server()["id"] for _ in range(options.servers)]
        fake.latency = options.latency
        where = {"url": fake.url, "host": fake.host, "ids": " ".join(ids), "client": CLIENT, "secret": SECRET}
        _show(USAGE.format(**where))
        fake.shown = _show_request
        await asyncio.Event().wait()


def _show_request(served: Served) -> None:
    _show(f"{served.status} {served.text} {served.body if served.writes else ''}".rstrip() + "\n")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
