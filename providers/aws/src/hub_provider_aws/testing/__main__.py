"""Serves a fake EC2 API with three instances and two Elastic IPs on loopback, and prints each request.

python -m hub_provider_aws.testing
"""

from __future__ import annotations

import signal
import sys

from hub_provider_aws.testing.fake import ACCESS_KEY, REGION, SECRET_KEY, FakeAws, Served


def main() -> None:
    """Serves until SIGINT or SIGTERM."""
    with FakeAws(show=_show) as fake:
        nodes = [fake.add_instance(f"node-{number}", ephemeral=True) for number in (1, 2, 3)]
        addresses = [fake.reserve() for _ in range(2)]
        sys.stdout.write(
            f"# EC2 of region {REGION} at {fake.url}\n"
            f"# AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={SECRET_KEY}\n"
            f"# Elastic IPs: {' '.join(addresses)}\n"
            + "".join(f"# {node.name}: providerID {node.provider_id}\n" for node in nodes)
        )
        sys.stdout.flush()
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


def _show(served: Served) -> None:
    sys.stdout.write(f"{served.status} {served.text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    main()
