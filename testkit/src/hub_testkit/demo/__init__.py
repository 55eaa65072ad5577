"""``hub demo``: the real hub with simulated clusters, for people who have no clusters at hand.

The hub is composed as in production, with the same transport and the same plugin hook. Only its surroundings, API
servers and a cloud, are simulated, on loopback. The command line imports this package; the hub finds
:mod:`hub_testkit.demo.provider` by its entry point.
"""

from __future__ import annotations


def main(duration: float | None = None, *, allocations: bool = False) -> int:
    """Runs the demo.

    Args:
        duration: Seconds; None = until Ctrl-C on a terminal, 30 s without one; of allocations, the whole script.
        allocations: Show reserved addresses that follow nodes, instead of endpoints.

    Returns:
        0 if the hub publishes exactly the expected endpoints at the end and lost none before, or if every address is
        where it should be; 1 otherwise.

    Raises:
        HubError: The hub could not be started.
    """
    if allocations:
        from hub_testkit.demo.allocations import run as run_allocations

        return run_allocations(duration)
    from hub_testkit.demo.run import run  # slow to import, and the hub imports this package for the provider only

    return run(duration)


__all__ = ["main"]
