"""``python -m hub_provider_gcp.testing``: serves the fake on loopback and prints each request until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from hub_provider_gcp.testing.fake import PROJECT, GcpFake

USAGE = """\
# Instances n1 to n{instances}; the Node of n1 has the providerID gce://{project}/us-west1-a/n1, and so on.
# Run the hub with --allow-api-host {host} and --credentials-dir {folder}
provider: gcp
config: {{project: {project}, regions: [us-west1], endpoint: "{url}", credentials: {{file: {key}}}}}
addresses: [{addresses}]
"""


def main(arguments: list[str] | None = None) -> None:
    """Parses the arguments and serves until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m hub_provider_gcp.testing", description=__doc__)
    parser.add_argument("key", type=Path, help="where to write the key file of the fake's service account")
    parser.add_argument("--port", type=int, default=0, help="port of the API (default: a free one)")
    parser.add_argument("--instances", type=int, default=3, metavar="N", help="instances with ephemeral addresses")
    parser.add_argument("--addresses", type=int, default=2, metavar="N", help="reserved addresses")
    parser.add_argument("--operation", type=float, default=2.0, metavar="SECONDS", help="length of an operation")
    options = parser.parse_args(arguments)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(options))


async def serve(options: argparse.Namespace) -> None:
    """Prints an account that uses the fake, and then the requests, until cancelled."""
    async with GcpFake(options.port) as fake:
        for number in range(1, options.instances + 1):
            fake.cloud.add_vm(f"n{number}", ephemeral="external-nat")
        addresses = [fake.cloud.reserve() for _ in range(options.addresses)]
        fake.cloud.seconds = options.operation
        key: Path = options.key
        key.write_text(fake.key_file(), encoding="utf-8")
        key.chmod(0o600)
        fake.shown = lambda served: print(served.status, served.text, flush=True)  # noqa: T201
        text = USAGE.format(
            instances=options.instances,
            project=PROJECT,
            host=fake.host,
            url=fake.url,
            folder=key.absolute().parent,
            key=key.name,
            addresses=", ".join(addresses),
        )
        sys.stdout.write(text)
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
