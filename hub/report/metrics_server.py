"""``/metrics`` on an address of its own (``--metrics-bind-address``)."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from hub.report.listener import Address, Reply, Request, listening
from hub.report.metrics import Metrics


def serving(address: Address | None, metrics: Metrics) -> AbstractAsyncContextManager[None]:
    """Answer scrapes while the context is open; None = do not.

    Raises:
        UsageError: the address cannot be listened on.
    """

    async def answer(request: Request) -> Reply:
        if request.path != "/metrics":
            return Reply(404, b"only /metrics\n")
        content_type, body = await metrics.text(request.headers.get("accept", ""))
        return Reply(200, body, content_type)

    return listening(address, answer, flag="--metrics-bind-address", what="metrics", own_names=True)
