"""Measures how long the provider ionos takes to parse and match 1,000 servers: ``python benchmarks/ionos.py``."""

from __future__ import annotations

import json
import statistics
import time
from uuid import uuid4

from hub_provider_ionos import inventory
from hub_provider_ionos.match import Rules, resolve
from hub_testkit.ionos import shapes

from hub.plugin import Found, Node

COUNT, ROUNDS = 1000, 21


def main() -> None:
    """Print the medians of all rounds, in milliseconds."""
    servers = []
    for number in range(COUNT):
        server = shapes.server(str(uuid4()), f"n{number}", "AUTO", "https://api.ionos.com/x")
        ips = [f"10.7.{number // 250}.{number % 250 + 1}"]
        server["entities"]["nics"]["items"] = [shapes.nic(0, 1, ["203.0.113.1"], ()), shapes.nic(1, 2, ips, ())]
        servers.append(shapes.expanded(server, 3))
    text = json.dumps({"items": servers})
    nodes = [Node(f"n{number}", provider_id=f"ionos://{server['id']}") for number, server in enumerate(servers)]
    rules = Rules((2,))
    parsing, resolving = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        page = inventory.page(json.loads(text), COUNT, inventory.uuid_of)
        fleet = inventory.fleet((inventory.server(name, item) for name, item in page.items), ())
        parsed = time.perf_counter()
        answers = [resolve(node, [fleet], rules) for node in nodes]
        resolving.append((time.perf_counter() - parsed) * 1000)
        parsing.append((parsed - started) * 1000)
        assert all(isinstance(answer, Found) for answer in answers)
    print(f"{len(text) / 1e6:.1f} MB: parsed in {statistics.median(parsing):.0f} ms,", end=" ")
    print(f"{COUNT} nodes resolved in {statistics.median(resolving):.0f} ms")


if __name__ == "__main__":
    main()
