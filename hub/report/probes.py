"""``/healthz`` and ``/readyz``: the probes of the hub's Pod.

A process is alive while the event loop's heartbeat is fresh. It is ready if it is alive, the hub cluster is synced, and
it is not shutting down. Remote clusters and the Lease do not count: a standby is ready, and an unreachable cluster must
not restart a hub that knows the cluster's last good state. Answers have the format of kube-apiserver: ``ok``, or one
line per check with ``?verbose`` and on failure. Reasons are only in the log, since the port has no authentication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Protocol

from hub.report.listener import Address, Reply, Request, listening
from hub.runtime.clock import Clock

if TYPE_CHECKING:
    from hub.app.settings import Health

FRESH: Final = 30.0
"""Seconds after which a heartbeat is too old; it comes once a second, and a pass over a huge fleet takes one or two."""


class Probed(Protocol):
    """The parts of the hub that probes read."""

    @property
    def health(self) -> Health: ...  # noqa: D102
    @property
    def clock(self) -> Clock: ...  # noqa: D102


def checks(hub: Probed, path: str) -> Mapping[str, str] | None:
    """The checks of a probe: name -> problem, "" if the check passes. None if ``path`` is not a probe."""
    beat = "" if hub.clock.now() - hub.health.beat < FRESH else "no heartbeat"
    if path in ("/healthz", "/livez"):
        return {"loop": beat}
    if path == "/readyz":
        return {
            "loop": beat,
            "hub-cluster": "" if hub.health.local_synced else "not synced yet",
            "running": "shutting down" if hub.health.stopping else "",
        }
    return None


def answer(found: Mapping[str, str], probe: str, *, verbose: bool) -> tuple[int, str]:
    """Status and body, as kube-apiserver words them."""
    failed = any(found.values())
    if not failed and not verbose:
        return 200, "ok"
    lines = [f"[-]{name} failed: {wrong}" if wrong else f"[+]{name} ok" for name, wrong in found.items()]
    return (500 if failed else 200), "\n".join([*lines, f"{probe} check {'failed' if failed else 'passed'}", ""])


def serving(address: Address | None, hub: Probed) -> AbstractAsyncContextManager[None]:
    """Answer probes while the context is open.

    Args:
        address: the address to listen on; None = do not listen.
        hub: the hub to probe.

    Raises:
        HubError: the address cannot be listened on.
    """

    async def respond(request: Request) -> Reply:
        probed = checks(hub, request.path)
        if probed is None:
            return Reply(404, b"only /healthz and /readyz\n")
        status, text = answer(probed, request.path[1:], verbose="verbose" in re.split("[&=]", request.query))
        return Reply(status, text.encode())

    return listening(address, respond, flag="--health-probe-bind-address", what="probes")
