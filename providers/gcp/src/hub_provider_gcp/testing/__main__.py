"""``python -m hub_provider_gcp.testing``: serves the fake on loopback and prints each request until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from hub_provider_gcp.testing.fake import PROJECT, GcpFake, Served

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
    parser.add_argument("key", type=Path, help="where to write the credential file")
    parser.add_argument("--port", type=int, default=0, help="port of the API (default: a free one)")
    parser.add_argument("--instances", type=int, default=3, metavar="N", help="instances with ephemeral addresses")
    parser.add_argument("--addresses", type=int, default=2, metavar="N", help="reserved addresses")
    parser.add_argument("--operation", type=float, default=2.0, metavar="SECONDS", help="length of an operation")
    options = parser.parse_args(arguments)
    fake = GcpFake(options.port)
    for number in range(1, options.instances + 1):
        fake.cloud.add_vm(f"n{number}", ephemeral="external-nat")
    addresses = [fake.cloud.reserve() for _ in range(options.addresses)]
    fake.cloud.seconds = options.operation
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(fake, options.key.absolute(), options.instances, addresses))


async def _serve(fake: GcpFake, key: Path, instances: int, addresses: list[str]) -> None:
    """Prints an account that uses the fake, and then the requests, until cancelled."""
    async with fake:
        await asyncio.to_thread(_write_key, key, fake.key_file())
        names = {"instances": instances, "project": PROJECT, "host": fake.host, "url": fake.url}
        _show(USAGE.format(**names, folder=key.parent, key=key.name, addresses=", ".join(addresses)))
        fake.shown = _show_request
        await asyncio.Event().wait()


def _write_key(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def _show_request(served: Served) -> None:
    _show(f"{served.status} {served.text}\n")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
