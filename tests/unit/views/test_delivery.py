"""Calls of consumers: their order and repetition, and consumers that hang or raise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from hub.model import EndpointView
from hub.views import delivery as module
from hub.views.board import Owner
from hub.views.delivery import Delivery
from hub.views.join import Views
from tests.support.waiting import eventually

Call = tuple[str, str, int]


class Consumer:
    """Hooks that record their calls; ``before`` may block or raise."""

    def __init__(self, before: Callable[[str, str], None] = lambda *_: None) -> None:
        self.calls: list[Call] = []
        self._before = before

    def hub_endpoint_upserted(self, view: EndpointView) -> None:
        """Record an upsert."""
        self._note("upserted", view.name, view.port)

    def hub_endpoint_deleted(self, view: EndpointView) -> None:
        """Record a deletion."""
        self._note("deleted", view.name, view.port)

    def hub_endpoints_listed(self, cluster: str, views: Sequence[EndpointView]) -> None:
        """Record a complete list."""
        self._note("listed", cluster, len(views))

    def _note(self, what: str, name: str, number: int) -> None:
        self._before(what, name)
        self.calls.append((what, name, number))

    def of(self, name: str) -> list[Call]:
        """The calls for one view or cluster."""
        return [call for call in self.calls if call[1] == name]


def view(name: str, port: int = 80, cluster: str = "local") -> EndpointView:
    """A view; ``port`` distinguishes its states."""
    return EndpointView(cluster, "edge", name, "web", "ClusterIP", port, "", 80, "TCP", ("10.0.0.1",))


def views(*found: EndpointView) -> Views:
    """The views of one Service."""
    return {view.name: view for view in found}


OWNER = Owner("local", "edge", "web")
Start = Callable[..., Delivery]


@pytest.fixture
def start() -> Iterator[Start]:
    """A function that starts deliveries, which are closed after the test."""
    made: list[Delivery] = []

    def begin(consumer: Any, name: str = "probe", **more: Any) -> Delivery:
        load = consumer if callable(consumer) else lambda: consumer
        made.append(Delivery(name, load, **more))
        made[-1].start()
        return made[-1]

    yield begin
    for delivery in made:
        delivery.close()


def test_changes_are_delivered_in_order(start: Start) -> None:
    """Changes of a view are delivered in order; unchanged views are not delivered again."""
    consumer = Consumer()
    delivery = start(consumer)
    for found in ((view("a"), view("b")), (view("a", 81), view("b")), (view("b"),)):
        delivery.changed(OWNER, views(*found))
        eventually(lambda: delivery.waiting == 0)
    eventually(lambda: len(consumer.calls) == 4)

    assert consumer.of("a") == [("upserted", "a", 80), ("upserted", "a", 81), ("deleted", "a", 81)]
    assert consumer.of("b") == [("upserted", "b", 80)]
    assert (delivery.calls, delivery.problem) == (4, "")


def test_the_list_comes_after_everything_in_it(start: Start) -> None:
    """A cluster's list follows its upserts, and does not wait for another cluster's."""
    gate = threading.Event()

    def before(what: str, name: str) -> None:
        if name == "far" and not gate.is_set():
            raise RuntimeError("not yet")

    consumer = Consumer(before)
    delivery = start(consumer)
    delivery.changed(Owner("eu", "edge", "web"), views(view("far", cluster="eu")))
    delivery.changed(OWNER, views(view("a"), view("b")))
    delivery.complete(["eu", "local"])
    eventually(lambda: consumer.of("local"))
    assert consumer.of("eu") == []
    gate.set()
    eventually(lambda: consumer.of("eu"))

    assert consumer.calls[:2] == [("upserted", "a", 80), ("upserted", "b", 80)]
    assert consumer.of("local") + consumer.of("eu") == [("listed", "local", 2), ("listed", "eu", 1)]


def test_a_call_that_raises_is_repeated_and_others_go_on(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A failed call is logged and repeated with the newest state, without delaying other views."""
    attempts: list[str] = []

    def before(what: str, name: str) -> None:
        if name == "a" and what == "upserted":
            attempts.append(name)
            if len(attempts) < 3:
                raise SystemExit("no route to host")

    consumer = Consumer(before)
    with caplog.at_level(logging.WARNING):
        delivery = start(consumer)
        delivery.changed(OWNER, views(view("a"), view("b")))
        eventually(lambda: consumer.of("b"))
        delivery.changed(OWNER, views(view("a", 81), view("b")))
        eventually(lambda: consumer.of("a"))

    assert consumer.of("a") == [("upserted", "a", 81)]
    assert "consumer 'probe': hub_endpoint_upserted of edge/a: SystemExit: no route to host" in caplog.text
    assert "other consumers are not affected" in caplog.text
    eventually(lambda: delivery.problem == "")


def test_a_consumer_whose_every_call_fails_does_not_fill_the_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Many failing calls log one line; further failures are only counted."""
    tried: set[str] = set()

    def before(what: str, name: str) -> None:
        tried.add(name)
        raise OSError("no route to host")

    with caplog.at_level(logging.WARNING):
        delivery = start(Consumer(before))
        delivery.changed(OWNER, views(*[view(f"v{number}") for number in range(100)]))
        eventually(lambda: len(tried) == 100)
    assert len(caplog.records) == 1
    assert "OSError: no route to host" in caplog.text
    assert delivery.calls == 0


def test_view_with_a_failed_upsert_is_deleted(start: Start) -> None:
    """A view whose upsert failed is deleted, since the upsert may have taken partial effect."""

    def before(what: str, name: str) -> None:
        if what == "upserted":
            raise ValueError("half")

    consumer = Consumer(before)
    delivery = start(consumer)
    delivery.changed(OWNER, views(view("a")))
    eventually(lambda: delivery.problem)
    delivery.changed(OWNER, {})
    eventually(lambda: consumer.calls)
    assert consumer.calls == [("deleted", "a", 80)]


def test_undelivered_view_is_not_deleted(start: Start) -> None:
    """A view that was never delivered is not deleted."""
    gate = threading.Event()
    consumer = Consumer(lambda _, name: gate.wait(10) and None if name == "a" else None)
    delivery = start(consumer)
    delivery.changed(OWNER, views(view("a")))
    eventually(lambda: delivery.waiting == 0)
    delivery.changed(OWNER, views(view("a"), view("b")))
    delivery.changed(OWNER, views(view("a")))
    gate.set()
    delivery.complete(["local"])
    eventually(lambda: consumer.of("local"))
    assert consumer.calls == [("upserted", "a", 80), ("listed", "local", 1)]


def test_a_slow_consumer_gets_the_last_state_and_holds_nothing_up(start: Start) -> None:
    """A slow consumer gets only the last state, and does not delay another consumer."""
    gate = threading.Event()
    slow, quick = Consumer(lambda *_: gate.wait(10) and None), Consumer()
    behind, beside = start(slow, "slow"), start(quick, "quick")
    for port in range(1, 1001):
        for called in (behind, beside):
            called.changed(OWNER, views(view("a", port)))
    eventually(lambda: quick.calls[-1:] == [("upserted", "a", 1000)])
    assert behind.waiting <= 1
    gate.set()
    eventually(lambda: slow.calls[-1:] == [("upserted", "a", 1000)])
    assert len(slow.calls) <= 2


def test_a_call_that_hangs_is_named_once(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A hanging call is logged once with the number of waiting views; other consumers are called."""
    monkeypatch.setattr(module, "HUNG_AFTER", 0.0)
    gate = threading.Event()
    consumer, other = Consumer(lambda *_: gate.wait(10) and None), Consumer()
    delivery, beside = start(consumer), start(other)
    with caplog.at_level(logging.WARNING):
        for called in (delivery, beside):
            called.changed(OWNER, views(view("a"), view("b")))
        eventually(lambda: delivery.waiting == 1)
        eventually(lambda: len(other.calls) == 2)
        delivery.log_hung_call()
        delivery.log_hung_call()
    assert delivery.problem == "hangs in hub_endpoint_upserted of edge/a"
    assert len(caplog.records) == 1
    assert "consumer 'probe' hangs in hub_endpoint_upserted of edge/a; 1 views wait for it" in caplog.text
    gate.set()
    eventually(lambda: len(consumer.calls) == 2)


@pytest.mark.parametrize("error", [ImportError("no module named x"), SystemExit(3), KeyboardInterrupt()])
def test_a_consumer_that_cannot_be_loaded_is_named(
    start: Start, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Any exception of a consumer's import is logged and stays in its thread."""

    def load() -> Any:
        raise error

    with caplog.at_level(logging.WARNING):
        delivery = start(load)
        eventually(lambda: f"consumer 'probe' cannot be loaded: {type(error).__name__}" in caplog.text)
    assert delivery.problem.startswith("cannot be loaded")


def test_the_next_life_waits_for_the_last_call(start: Start) -> None:
    """A new delivery to a consumer waits for the last call of the earlier one."""
    gate = threading.Event()
    first, second = Consumer(lambda *_: gate.wait(10) and None), Consumer()
    before = start(first)
    before.changed(OWNER, views(view("a")))
    eventually(lambda: before.waiting == 0)
    before.close()
    after = start(second, after=before)
    after.changed(OWNER, views(view("a")))
    assert second.calls == []
    gate.set()
    eventually(lambda: second.calls)
    assert first.calls == second.calls == [("upserted", "a", 80)]


def test_view_that_came_and_went_is_not_delivered() -> None:
    """A delivery that has not started keeps only views that differ; one that was deleted again stays in the queue."""
    delivery = Delivery("probe", Consumer)
    delivery.changed(OWNER, views(view("a"), view("b")))
    assert delivery.waiting == 2
    delivery.changed(OWNER, views(view("a")))
    delivery.changed(Owner("eu", "edge", "web"), views(view("a", cluster="eu")))
    assert delivery.waiting == 3
    delivery.log_hung_call()
    assert delivery.problem == ""


def test_closed_delivery_makes_no_call(start: Start) -> None:
    """Changes after the end are not delivered, and the thread ends."""
    consumer = Consumer()
    delivery = start(consumer)
    delivery.close()
    delivery.join()
    delivery.changed(OWNER, views(view("a")))
    delivery.complete(["local"])
    assert (consumer.calls, delivery.waiting) == ([], 1)
