"""``python -m hub_testkit.ionos``: serves the fake API on loopback until interrupted, to try a clusters.yaml."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress

from hub_testkit.ionos.fake import FakeIonos

DATACENTER = "10000000-0000-4000-8000-000000000001"
SERVER = "20000000-0000-4000-8000-{:012d}"
LAN = 2
USAGE = """\
# Servers n1 to n{servers}; n1's node has the providerID ionos://{first}, and so on.
# Run the hub with --allow-api-host {host} and IONOS_TOKEN={token}.
"""
PROVIDER = """\
provider:
  name: ionos
  config:
    datacenters: [{datacenter}]
    lan: {lan}
    apiUrl: {url}
    token: {{env: IONOS_TOKEN}}
"""


def main(arguments: list[str] | None = None) -> None:
    """Parses the arguments and serves until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m hub_testkit.ionos", description=__doc__)
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="running servers, n1 to nN (default 3)")
    parser.add_argument("--token", default="fake-token", help="the token that is accepted (default fake-token)")
    options = parser.parse_args(arguments)
    if not 0 <= options.servers <= 60_000:
        parser.error("--servers: 0 to 60000")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(options.servers, options.token))


async def serve(servers: int, token: str) -> None:
    """Prints a provider entry that uses the fake, and serves until cancelled."""
    async with FakeIonos(token=token) as ionos:
        ionos.add_datacenter(identity=DATACENTER)
        for number in range(1, servers + 1):
            address = f"10.7.{number // 250}.{number % 250 + 1}"
            ionos.add_server(DATACENTER, f"n{number}", address, lan=LAN, identity=SERVER.format(number))
        sys.stdout.write(USAGE.format(servers=servers, first=SERVER.format(1), host=ionos.host, token=token))
        sys.stdout.write(PROVIDER.format(datacenter=DATACENTER, lan=LAN, url=ionos.url))
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
