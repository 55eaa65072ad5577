"""``/healthz`` and ``/metrics`` of ``hub cloud-controller``, on the address of Kubernetes' own cloud controllers.

On loopback everybody on this machine may read them. Beyond loopback the address has TLS, and ``/metrics`` needs a token
of the cluster that may ``get`` it, as the listener of Kubernetes' own cloud controllers does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol

from hub.controlling.cluster import ControlledCluster
from hub.controlling.run import Controlling
from hub.report.auth import Reviews, Unauthenticated, Unauthorized, Unavailable
from hub.report.certificate import Certificate
from hub.report.collect import Collected
from hub.report.collect_clouds import collect, original
from hub.report.listener import Address, Reply, Request, is_loopback, listening
from hub.report.metrics import Metrics
from hub.report.probes import FRESH
from hub.runtime.clock import Clock

PROBES: Final = ("/healthz", "/livez", "/readyz")
REFUSALS: Final[dict[type[Exception], int]] = {Unauthenticated: 401, Unauthorized: 403, Unavailable: 503}


class Controller(Protocol):
    """The parts of a cloud controller that are read."""

    @property
    def clock(self) -> Clock: ...  # noqa: D102
    @property
    def beat(self) -> float: ...  # noqa: D102
    @property
    def controlling(self) -> Controlling: ...  # noqa: D102


class _Collector:
    """The hub's own metrics of cloud controllers, and those of Kubernetes' own."""

    def __init__(self, controlling: Controlling) -> None:
        self._controlling = controlling

    async def prepare(self) -> None:
        """See :class:`hub.report.metrics.Collects`."""

    def collect(self) -> Collected:
        """See :class:`hub.report.metrics.Collects`."""
        clusters = self._controlling.clusters.values()
        return [*collect(self._controlling), *(row for cluster in clusters for row in original(cluster))]


class _Api:
    """The API of the cluster, whose connection may change. Implements :class:`hub.report.auth.Api`."""

    def __init__(self, controlling: Controlling) -> None:
        self._controlling = controlling

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        """See :class:`hub.report.auth.Api`."""
        cluster: ControlledCluster = next(iter(self._controlling.clusters.values()))
        return await (await cluster.client()).request(method, path, **more)


@asynccontextmanager
async def serving_controller(
    address: Address | None, controller: Controller, certificate: Certificate | None
) -> AsyncIterator[None]:
    """Answer probes and scrapes while the context is open.

    Args:
        address: the address to listen on; None = do not listen.
        controller: the running controller.
        certificate: serves TLS; None = plain HTTP.

    Raises:
        HubError: the address cannot be listened on.
    """
    metrics = Metrics(_Collector(controller.controlling))
    reviews = Reviews(_Api(controller.controlling), controller.clock)
    local = address is not None and is_loopback(address.host)

    async def answer(request: Request) -> Reply:
        if request.path in PROBES:
            fresh = controller.clock.now() - controller.beat < FRESH
            return Reply(200, b"ok") if fresh else Reply(500, b"no heartbeat\n")
        if request.path != "/metrics":
            return Reply(404, b"only /healthz and /metrics\n")
        if not local:
            try:
                await reviews.check(request.headers.get("authorization", ""), request.path)
            except tuple(REFUSALS) as refused:
                challenge = "WWW-Authenticate: Bearer\r\n" if isinstance(refused, Unauthenticated) else ""
                return Reply(REFUSALS[type(refused)], f"{refused}\n".encode(), headers=challenge)
        content_type, body = await metrics.text(request.headers.get("accept", ""))
        return Reply(200, body, content_type)

    tls = certificate.context if certificate is not None else None
    following = asyncio.create_task(certificate.follow(controller.clock)) if certificate is not None else None
    try:
        async with listening(address, answer, flag="--secure-port", what="probes and metrics", own_names=True, tls=tls):
            yield
    finally:
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
