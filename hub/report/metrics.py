"""``/metrics``: the metrics as text for Prometheus.

The numbers are collected in the event loop and encoded in a thread. prometheus-client is imported at the first scrape,
to save memory in hubs that are not scraped. Concurrent scrapes share one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Protocol

from hub.report.collect import Collected, Durations, Row
from hub.report.listener import Address, Reply, Request, listening
from hub.report.metrics_catalog import Metric

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client import ProcessCollector

OPENMETRICS: Final = "application/openmetrics-text"
FORMATS: Final = ("", f"{OPENMETRICS};version=1.0.0")
"""The only Accept headers that are passed to the library, which fails on a malformed one."""


class Collects(Protocol):
    """Collects the values of a scrape."""

    async def prepare(self) -> None: ...  # noqa: D102
    def collect(self) -> Collected: ...  # noqa: D102


class Metrics:
    """The metrics of one process."""

    def __init__(self, collector: Collects) -> None:
        self._collector = collector
        self._process: ProcessCollector | None = None
        self._under_way: dict[str, asyncio.Task[tuple[str, bytes]]] = {}

    async def text(self, accept: str = "") -> tuple[str, bytes]:
        """The content type and the body, in the format that an Accept header selects."""
        wanted = FORMATS[OPENMETRICS in accept]
        task = self._under_way.get(wanted)
        if task is None:
            task = asyncio.create_task(self._text(wanted), name="metrics")
            self._under_way[wanted] = task
            task.add_done_callback(lambda _: self._under_way.pop(wanted, None))
        return await asyncio.shield(task)

    async def _text(self, wanted: str) -> tuple[str, bytes]:
        await self._collector.prepare()
        return await asyncio.to_thread(self._encode, self._collector.collect(), wanted)

    def _encode(self, collected: Collected, wanted: str) -> tuple[str, bytes]:
        from prometheus_client import ProcessCollector
        from prometheus_client.exposition import choose_encoder
        from prometheus_client.registry import CollectorRegistry

        if self._process is None:
            self._process = ProcessCollector(registry=None)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once(collected))
        registry.register(self._process)
        encode, content_type = choose_encoder(wanted)
        return content_type, encode(registry)


def serving_metrics(address: Address | None, metrics: Metrics) -> AbstractAsyncContextManager[None]:
    """Serve ``/metrics`` on ``--metrics-bind-address`` while the context is open.

    Args:
        address: the address to listen on; None = do not serve.
        metrics: the metrics to serve.

    Raises:
        HubError: the address cannot be listened on.
    """

    async def answer(request: Request) -> Reply:
        if request.path != "/metrics":
            return Reply(404, b"only /metrics\n")
        content_type, body = await metrics.text(request.headers.get("accept", ""))
        return Reply(200, body, content_type)

    return listening(address, answer, flag="--metrics-bind-address", what="metrics", own_names=True)


class _Once:
    """A collector for prometheus-client that returns collected values."""

    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def collect(self) -> Iterable[Family]:
        """All metric families with at least one series."""
        return [_family(metric, rows) for metric, rows in self._collected if rows]


def _family(metric: Metric, rows: Iterable[Row]) -> Family:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )

    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in rows:
            assert isinstance(value, Durations)  # noqa: S101 - the catalog says so
            histogram.add_metric(labels, list(_buckets(value).items()), value.sum)
        return histogram
    if metric.kind == "info":
        info = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, labels=metric.labels)
        for labels, _ in rows:
            info.add_metric(labels, {})
        return info
    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = made(metric.name, metric.help, labels=metric.labels)
    for labels, value in rows:
        assert not isinstance(value, Durations)  # noqa: S101 - the catalog says so
        family.add_metric(labels, value)
    return family


def _buckets(value: Durations) -> Mapping[str, float]:
    """Cumulative counts by upper bound."""
    found: dict[str, float] = {}
    total = 0
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        total += count
        found["+Inf" if bound == float("inf") else str(float(bound))] = total
    return found
