"""``hub demo``: the hub at work on simulated clusters, for people who have none at hand.

The hub is the one that runs in production: same composition, same transport, same plugin hook. What is
simulated is the world around it: API servers and a cloud, on loopback. Only the command line imports this package;
the hub finds :mod:`hub_testkit.demo.provider` by its entry point.
"""

from __future__ import annotations


def main(duration: float | None = None) -> int:
    """Show the hub at work.

    Args:
        duration: seconds; None = until Ctrl-C on a terminal, 30 s without one.

    Returns:
        0 if at the end exactly that is published what the simulated world says, and nothing was lost
        meanwhile; 1 otherwise.

    Raises:
        HubError: the hub could not be started.
    """
    from hub_testkit.demo.run import run  # heavy, and not needed by who imports the provider

    return run(duration)


__all__ = ["main"]
