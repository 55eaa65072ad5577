"""Parts of the metrics: tallies, latencies, measures of providers, the catalog and the text format."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession
from hub_testkit.contexts import LocalHub
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.cli.options import BindAddress
from hub.errors import CredentialError
from hub.model import TargetKey
from hub.observe.providers.calls import ProviderCrashed, ProviderStalled
from hub.observe.providers.context import ProviderHub
from hub.observe.providers.faults import ProviderSuspended
from hub.observe.providers.stats import OUTCOMES, CallStats
from hub.plugin.spec import TerminalProviderError, TransientProviderError
from hub.reconcile.latency import Latency
from hub.report import metrics_reference
from hub.report.collect import Collected, Durations, Row
from hub.report.metrics import Metrics, serving_metrics
from hub.report.metrics_catalog import METRICS, PREFIX, PUBLISH_SECONDS, REGISTRY_RELOADS, measured
from hub.runtime.clock import SystemClock
from hub.runtime.tally import Tally
from tests.support.ports import free_port

ROOT = Path(__file__).parents[3]
KEY, OTHER = TargetKey("edge", "payments"), TargetKey("edge", "orders")


# --- tallies -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_tally_counts_each_duration_once(seconds: list[float]) -> None:
    """Every duration is in the first bucket whose bound it does not exceed."""
    tally = Tally((0.1, 1.0, 10.0))
    for duration in seconds:
        tally.note(duration)
    cumulative = [sum(tally.counts[: number + 1]) for number in range(3)]
    assert cumulative == [sum(duration <= bound for duration in seconds) for bound in tally.bounds]
    assert sum(tally.counts) == len(seconds)
    assert tally.sum == pytest.approx(sum(seconds))


# --- from a change to its publication ------------------------------------------------------------------


def published(latency: Latency) -> tuple[int, float]:
    """The number of published changes, and the sum of their durations."""
    return sum(latency.seconds.counts), latency.seconds.sum


def test_latency_counts_from_the_first_change_to_the_write() -> None:
    """Two changes that one pass publishes count once, from the arrival of the first."""
    latency = Latency()
    latency.arrived(KEY, 10.0)
    latency.arrived(KEY, 12.0)
    latency.begin(KEY)
    latency.published(KEY, 15.0)
    assert published(latency) == (1, 5.0)


def test_latency_survives_a_failed_pass() -> None:
    """After a failed pass the next pass counts from the first change, whatever arrives in between."""
    latency = Latency()
    latency.arrived(KEY, 10.0)
    latency.begin(KEY)
    latency.arrived(KEY, 20.0)
    assert latency.oldest(25.0) == 15.0
    latency.begin(KEY)
    latency.published(KEY, 30.0)
    assert published(latency) == (1, 20.0)
    assert latency.oldest(99.0) == 0.0


def test_change_during_a_pass_counts_with_the_next_write() -> None:
    """A change that arrives during a pass is counted with the next write."""
    latency = Latency()
    latency.arrived(KEY, 10.0)
    latency.begin(KEY)
    latency.arrived(KEY, 11.0)
    latency.published(KEY, 12.0)
    latency.begin(KEY)
    latency.published(KEY, 14.0)
    assert published(latency) == (2, 5.0)


def test_latency_forgets_changes_that_mean_no_write() -> None:
    """Changes that cause no write are forgotten, separately for each target."""
    latency = Latency()
    latency.arrived(KEY, 10.0)
    latency.begin(KEY)
    latency.wrote_nothing(KEY)
    latency.begin(KEY)
    latency.published(KEY, 500.0)
    latency.arrived(OTHER, 10.0)
    latency.forget(OTHER)
    latency.begin(OTHER)
    latency.published(OTHER, 500.0)
    latency.arrived(OTHER, 10.0)
    latency.clear()
    assert latency.oldest(500.0) == 0.0
    assert published(latency) == (0, 0.0)


# --- providers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TransientProviderError("x"), "transient"),
        (TerminalProviderError("x"), "terminal"),
        (CredentialError("x"), "terminal"),
        (ProviderStalled("x"), "timeout"),
        (ProviderSuspended("x"), "suspended"),
        (ProviderCrashed("x"), "defect"),
        (KeyError("x"), "defect"),
    ],
)
def test_outcome_of_an_error_is_one_of_few(error: Exception, outcome: str) -> None:
    """Any exception of a plugin maps to one of a fixed set of labels."""
    stats = CallStats()
    stats.failed(error)
    stats.answered()
    assert {name for name, number in stats.outcomes.items() if number} == {outcome, "answered"}
    assert tuple(stats.outcomes) == OUTCOMES


BAD_NAMES = [
    "",
    "Upper",
    "a b",
    "a-b",
    "1st",
    "_x",
    "x_",
    "a__b",
    "x" * 41,
    "naïve",
    "size_count",
    "calls_total",
    "a\nb",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_measure_refuses_invalid_names(name: str) -> None:
    """A provider's measure must have a valid name that the hub itself does not use."""
    for hub in (ProviderHub("acme", clock=SystemClock()), LocalHub()):
        with pytest.raises(TerminalProviderError, match="not a valid name of a measure"):
            hub.measure(name, dict)


def test_measure_is_bounded() -> None:
    """A provider may have 20 names and 1,000 scopes of 128 characters, and may register a name again."""
    hub = ProviderHub("acme", clock=SystemClock())
    for number in range(20):
        hub.measure(f"m{number}", dict)
    hub.measure("m3", lambda: {f"{number:04}" + "s" * 500: number for number in range(5000)})
    with pytest.raises(TerminalProviderError, match="one too many"):
        hub.measure("m20", dict)
    found = list(hub.measures())
    assert len(found) == 1000
    assert {len(scope) for _, scope, _ in found} == {128}


def test_measure_that_fails_hides_no_other() -> None:
    """A measure that raises or returns no numbers is left out; all others are shown."""
    hub = ProviderHub("acme", clock=SystemClock())
    readings: dict[str, Any] = {"boom": lambda: 1 / 0, "text": lambda: {"": "many"}, "none": lambda: None}
    readings["exits"] = sys.exit
    readings["fine"] = lambda: {"dc": 3, "\ud800": 4}
    for name, read in readings.items():
        hub.measure(name, read)
    assert list(hub.measures()) == [("fine", "dc", 3.0), ("fine", "?", 4.0)]


# --- the catalog and its reference ---------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS, ids=[metric.name for metric in METRICS])
def test_metric_is_named_as_the_convention_asks(metric: Any) -> None:
    """Prefix, unit and suffix follow Prometheus' conventions; labels do not collide with those that a scrape adds."""
    assert re.fullmatch(rf"{PREFIX}[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.endswith("_seconds") or metric.kind != "histogram"
    assert not {"namespace", "service", "cluster", "pod", "instance", "job", "node", "address"} & set(metric.labels)
    assert metric.help
    assert not metric.help.endswith(".")


def test_metrics_are_distinct() -> None:
    """All metrics have different names."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_reference_is_current() -> None:
    """If this fails, run ``python -m hub.report.metrics_reference``."""
    assert (ROOT / "docs" / "reference" / "metrics.md").read_text() == metrics_reference.text()


# --- the text ------------------------------------------------------------------------------------------


class Metered(Metrics):
    """Metrics with given numbers that counts collections."""

    def __init__(self, collected: Collected) -> None:
        super().__init__(cast("Any", SimpleNamespace()))
        self.times = 0
        self._collector = cast("Any", SimpleNamespace(collect=self._collect, prepare=self._prepare))
        self._collected = collected

    async def _prepare(self) -> None:
        await asyncio.sleep(0)

    def _collect(self) -> Collected:
        self.times += 1
        return self._collected


COLLECTED: Collected = [
    (REGISTRY_RELOADS, [Row(("accepted",), 3)]),
    (PUBLISH_SECONDS, [Row((), Durations((0.5, 1.0), (2, 0, 1), 12.5))]),
    (measured("api_requests_total"), [Row(("acme", 'dc "1"\n'), 7)]),
    (measured("queue"), []),
]


async def test_text_has_cumulative_buckets_and_escaped_labels() -> None:
    """Buckets are cumulative, labels are escaped, and a family without a series is left out."""
    content_type, body = await Metered(COLLECTED).text()
    lines = body.decode().splitlines()
    assert content_type.startswith("text/plain; version=0.0.4")
    assert f'{PREFIX}registry_reloads_total{{outcome="accepted"}} 3.0' in lines
    name = PREFIX + "change_to_publish_seconds"
    assert [line for line in lines if line.startswith(name)] == [
        f'{name}_bucket{{le="0.5"}} 2.0',
        f'{name}_bucket{{le="1.0"}} 2.0',
        f'{name}_bucket{{le="+Inf"}} 3.0',
        f"{name}_count 3.0",
        f"{name}_sum 12.5",
    ]
    assert rf'{PREFIX}provider_api_requests_total{{provider="acme",scope="dc \"1\"\n"}} 7.0' in lines
    assert not any("provider_queue" in line for line in lines)


async def test_scrapes_that_come_together_share_an_answer() -> None:
    """Concurrent scrapes share one collection, and cancelling one does not affect the others."""
    metrics = Metered(COLLECTED)
    scrapes = [asyncio.create_task(metrics.text()) for _ in range(50)]
    await asyncio.sleep(0)
    scrapes[0].cancel()
    answers = await asyncio.gather(*scrapes[1:])
    assert metrics.times == 1
    assert len(set(answers)) == 1
    await metrics.text()
    assert metrics.times == 2


@pytest.mark.parametrize(("path", "status", "body"), [("/metrics", 200, "# HELP "), ("/", 404, "only /metrics\n")])
async def test_metrics_have_one_path(path: str, status: int, body: str) -> None:
    """The metrics are served at ``/metrics`` only."""
    port = free_port()
    async with (
        serving_metrics(BindAddress("127.0.0.1", port), Metered(COLLECTED)),
        ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        assert answer.status == status
        assert (await answer.text()).startswith(body)
