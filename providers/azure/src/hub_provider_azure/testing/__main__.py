"""``python -m hub_provider_azure.testing``: serves the fake until interrupted and prints the requests it serves."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import suppress

from hub_provider_azure.testing.server import FakeAzure

USAGE = """\
# Run the hub with --allow-api-host {host} and AZURE_CLIENT_SECRET={secret}.
# Nodes: {nodes}
allocations:
  clouds:
    - name: azure-fake
      provider: azure
      addresses: [20.50.0.0/16]       # reserved: {addresses}
      clusters: [local]
      config: {config}
"""


def main(arguments: list[str] | None = None) -> None:
    """Parses the arguments and serves until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m hub_provider_azure.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="where to listen on loopback (default: any free port)")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="machines, n1 to nN (default 3)")
    parser.add_argument("--addresses", type=int, default=2, metavar="N", help="reserved addresses (default 2)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of an operation (default 2)")
    options = parser.parse_args(arguments)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(options.port, options.nodes, options.addresses, options.seconds))


async def serve(port: int, nodes: int, addresses: int, seconds: float) -> None:
    """Prints an account that uses the fake, then the requests, until cancelled."""
    async with FakeAzure(port=port, printer=_say) as azure:
        azure.operations(seconds)
        reserved = [azure.reserve() for _ in range(addresses)]
        ids = [azure.add_instance(f"n{number}").provider_id for number in range(1, nodes + 1)]
        usage = USAGE.format(
            host=azure.host,
            secret=azure.client_secret,
            nodes=", ".join(ids),
            addresses=", ".join(reserved),
            config=json.dumps(azure.config),
        )
        _say(usage)
        await asyncio.Event().wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
