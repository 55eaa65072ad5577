"""``python -m hub_provider_ionos.testing``: serves the fake on loopback and prints each request until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress

from hub_provider_ionos.testing.cloud import DATACENTER, PRIVATE, PUBLIC
from hub_provider_ionos.testing.fake import IonosFake, Served

USAGE = """\
# Servers n1 to n{count}; the providerIDs of their Nodes: {ids}
# Run the hub with --allow-api-host {host} and IONOS_TOKEN={token}
provider: ionos
config: {{datacenters: [{datacenter}], apiUrl: "{url}", token: {{env: IONOS_TOKEN}}}}
addresses: [{addresses}]
# Load balancers: hub cloud-controller --cloud-provider ionos --cloud-config FOLDER with IONOS_API_URL={url}
# and in FOLDER a file {datacenter} with {{"tokens": ["{token}"]}}; annotate Services with
# endpointslice-hub/ionos-listener-lan: "{public}" and endpointslice-hub/ionos-target-lan: "{private}"
"""


def main(arguments: list[str] | None = None) -> None:
    """Parses the arguments and serves until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m hub_provider_ionos.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of the API (default: a free one)")
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="servers (default 3)")
    parser.add_argument("--addresses", type=int, default=2, metavar="N", help="reserved addresses (default 2)")
    parser.add_argument(
        "--operation", type=float, default=2.0, metavar="SECONDS", help="length of a change (default 2)"
    )
    options = parser.parse_args(arguments)
    fake = IonosFake(options.port)
    ids = [fake.cloud.add_server(f"n{number}") for number in range(1, options.servers + 1)]
    addresses = [fake.cloud.reserve() for _ in range(options.addresses)]
    fake.cloud.seconds = options.operation
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(fake, ids, addresses))


async def _serve(fake: IonosFake, ids: list[str], addresses: list[str]) -> None:
    """Prints an account that uses the fake, and then the requests, until cancelled."""
    async with fake:
        names = {"count": len(ids), "ids": " ".join(f"ionos://{id_}" for id_ in ids), "datacenter": DATACENTER}
        where = {"host": fake.host, "url": fake.url, "token": fake.token, "addresses": ", ".join(addresses)}
        _show(USAGE.format(**names, **where, public=PUBLIC, private=PRIVATE))
        fake.shown = _show_request
        await asyncio.Event().wait()


def _show_request(served: Served) -> None:
    _show(f"{served.status} {served.text} {served.body}".rstrip() + "\n")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
