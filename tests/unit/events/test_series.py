"""Which Events are sent for findings that appear, last or come back, and for too many of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hub.events.catalog import PUBLISHED, REASONS
from hub.events.series import (
    BURST,
    COMBINED,
    NOTE,
    PENDING,
    QUIET,
    REFRESH,
    SIMILAR,
    SIMILAR_WITHIN,
    UPDATE,
    EventFinding,
    EventSeries,
    Regarding,
    Series,
    note,
)

SERVICE = Regarding("v1", "Service", "edge", "payments", "u1")
PORTS = REASONS["PortMismatch"]
HOLD = EventFinding(PORTS, SERVICE, "eu", "eu: which port?")
RELEASED = EventFinding(REASONS["PlanReleased"], SERVICE, "", "eu: 3 endpoints may go")


def sent(events: EventSeries) -> list[Series]:
    """Take all waiting Events as if they had been sent."""
    found = []
    while (series := events.take()) is not None:
        series.name = series.name or f"event-{id(series)}"
        found.append(series)
    return found


def counts(events: EventSeries) -> list[int]:
    """Take all waiting Events, and return their counts."""
    return [series.count for series in sent(events)]


def test_a_finding_that_appears_is_an_event_and_one_that_stays_is_not() -> None:
    """A finding makes one Event, however many passes report it and with whatever message."""
    events = EventSeries()
    events.set_findings("a", [HOLD], 0.0)
    [first] = sent(events)
    assert (first.count, first.note, first.key.regarding) == (1, "eu: which port?", SERVICE)
    for second in range(1, 600):
        events.set_findings("a", [HOLD._replace(note=f"eu: which port? {second}")], float(second))
        events.tick(float(second))
    assert sent(events) == []


def test_lasting_finding_updates_its_event_every_half_hour() -> None:
    """A lasting finding updates its Event every half hour, since the API server deletes Events after an hour."""
    events = EventSeries()
    events.set_findings("a", [HOLD], 0.0)
    [first] = sent(events)
    seen = []
    for second in range(0, int(2 * REFRESH) + 120, 5):
        events.tick(float(second))
        seen += [(second, series.count) for series in sent(events) if series is first]
    assert [count for _, count in seen] == [2, 3]
    assert all(abs(second - REFRESH * number) <= 70 * number for number, (second, _) in enumerate(seen, 1))


def test_series_ends_six_minutes_after_its_last_occurrence() -> None:
    """A series ends six minutes after its last occurrence."""
    events = EventSeries()
    events.set_findings("a", [HOLD], 0.0)
    [first] = sent(events)
    events.set_findings("a", [], 20.0)
    events.set_findings("a", [HOLD], 40.0)
    assert [(series is first, series.count) for series in sent(events)] == [(True, 2)]
    events.set_findings("a", [], 50.0)
    events.set_findings("a", [HOLD], 50.0 + QUIET)
    [later] = sent(events)
    assert (later is first, later.count) == (False, 1)


def test_flapping_finding_is_sent_every_ten_seconds() -> None:
    """A finding that comes and goes with every pass is sent every ten seconds with the right count."""
    events = EventSeries()
    requests = []
    for step in range(100):
        events.set_findings("a", [HOLD] if step % 2 == 0 else [], step * 0.5)
        events.tick(step * 0.5)
        requests += counts(events)
    assert len(requests) == 1 + int(99 * 0.5 / UPDATE)
    assert requests == sorted(requests)
    events.tick(200.0)
    assert counts(events) == [50]


def test_two_sources_of_a_service_are_two_findings() -> None:
    """Each source's finding begins and ends separately."""
    events = EventSeries()
    other = HOLD._replace(scope="us", note="us: which port?")
    events.set_findings("a", [HOLD, other], 0.0)
    assert len(sent(events)) == 2
    events.set_findings("a", [HOLD], 20.0)
    events.set_findings("a", [HOLD, other], 40.0)
    assert [series.note for series in sent(events)] == ["us: which port?"]


def test_targets_with_the_same_finding_share_an_event() -> None:
    """Targets that report the same finding share an Event; it ends when none reports it."""
    events = EventSeries()
    for number in range(500):
        events.set_findings(number, [HOLD], float(number) / 100)
    assert counts(events) == [1]
    for number in range(499):
        events.set_findings(number, [], 20.0)
    events.set_findings(0, [HOLD], 21.0)
    assert sent(events) == []
    for number in (0, 499):
        events.set_findings(number, [], 22.0)
    events.set_findings(7, [HOLD], 23.0)
    assert counts(events) == [2]


def test_short_finding_makes_no_event() -> None:
    """A finding with ``after`` makes an Event only if it lasts that long."""
    reason = REASONS["NodeUnresolved"]
    events = EventSeries()
    held = HOLD._replace(reason=reason)
    events.set_findings("a", [held], 0.0)
    events.tick(reason.after - 1)
    events.set_findings("a", [], reason.after - 0.5)
    events.tick(reason.after + 10)
    assert sent(events) == []
    events.set_findings("a", [held], 100.0)
    events.tick(100.0 + reason.after)
    assert counts(events) == [1]


def test_occurrences_with_the_same_message_are_counted() -> None:
    """Occurrences with the same message are counted, other messages make new Events."""
    events = EventSeries()
    events.record_occurrence(RELEASED, 0.0)
    events.record_occurrence(RELEASED._replace(note="us: 4 endpoints may go"), 1.0)
    assert counts(events) == [1, 1]
    events.record_occurrence(RELEASED, 20.0)
    assert counts(events) == [2]


def test_publication_events_come_at_most_every_30_seconds() -> None:
    """Publications make an Event at once, and then every 30 s with the last result."""
    events = EventSeries()
    said = []
    for second in range(61):
        events.record_occurrence(EventFinding(PUBLISHED, SERVICE, "", f"endpoints: {second} of eu"), float(second))
        events.tick(float(second))
        said += [series.note for series in sent(events)]
    assert said == ["endpoints: 0 of eu", "endpoints: 30 of eu", "endpoints: 60 of eu"]
    events.tick(200.0)
    events.tick(300.0)
    events.record_occurrence(EventFinding(PUBLISHED, SERVICE, "", "endpoints: 7 of eu"), 300.0)
    assert [series.note for series in sent(events)] == ["endpoints: 7 of eu"]


def test_similar_events_are_combined() -> None:
    """After ten messages of one reason on one object within ten minutes, all further ones share an Event."""
    events = EventSeries()
    clusters = [HOLD._replace(scope=f"c{number}", note=f"c{number}: dead") for number in range(200)]
    events.set_findings("hub", clusters, 0.0)
    found = sent(events)
    assert len(found) == SIMILAR + 1
    assert found[-1].note == f"{COMBINED}c{SIMILAR}: dead"
    events.tick(UPDATE)
    [combined] = {id(series): series for series in [*found[-1:], *sent(events)]}.values()
    assert combined.count == 200 - SIMILAR


def test_similar_messages_count_for_ten_minutes() -> None:
    """Exactly ten minutes after ten messages, another message has an Event of its own."""
    events = EventSeries()
    for number in range(SIMILAR):
        events.record_occurrence(RELEASED._replace(note=f"{number}"), 0.0)
    events.record_occurrence(RELEASED._replace(note="eleventh"), SIMILAR_WITHIN - 1)
    events.record_occurrence(RELEASED._replace(note="twelfth"), SIMILAR_WITHIN)
    assert [series.note for series in sent(events)][SIMILAR:] == [f"{COMBINED}eleventh", "twelfth"]


def test_occurrence_of_a_waiting_event_is_not_suppressed() -> None:
    """An Event that still waits in the queue when its series has ended is not sent twice, and nothing is lost."""
    events = EventSeries()
    events.record_occurrence(RELEASED, 0.0)
    events.record_occurrence(RELEASED, QUIET)
    assert (events.pending, events.suppressed) == (1, 0)
    assert counts(events) == [1]


def test_an_object_has_a_budget() -> None:
    """An object gets 25 Events in a row, then one in five minutes, separately for Normal and Warning."""
    events = EventSeries()
    reasons = [replace(REASONS["PlanReleased"], name=f"R{number}") for number in range(100)]
    for reason in reasons:
        events.record_occurrence(RELEASED._replace(reason=reason), 0.0)
    assert len(sent(events)) == BURST
    assert events.suppressed == 100 - BURST
    events.set_findings("a", [HOLD], 0.0)
    assert [series.reason for series in sent(events)] == [PORTS]
    events.record_occurrence(RELEASED._replace(note="more"), 299.0)
    assert sent(events) == []
    events.record_occurrence(RELEASED._replace(note="more"), 301.0)
    assert len(sent(events)) == 1


def test_finding_is_sent_when_a_token_is_available() -> None:
    """A finding that lasts until the object has a token again is sent then."""
    events = EventSeries()
    reasons = [replace(PORTS, name=f"R{number}") for number in range(int(BURST) + 1)]
    events.set_findings("a", [HOLD._replace(reason=reason) for reason in reasons], 0.0)
    assert len(sent(events)) == BURST
    events.tick(100.0)
    assert sent(events) == []
    events.tick(310.0)
    assert [series.reason for series in sent(events)] == [reasons[-1]]
    assert events.suppressed == 0


def test_the_queue_is_bounded_and_drops_the_oldest() -> None:
    """A full queue drops its oldest Event and counts it; Warnings are sent first."""
    events = EventSeries()
    for number in range(PENDING + 7):
        regarding = SERVICE._replace(name=f"s{number}")
        events.record_occurrence(EventFinding(PUBLISHED, regarding, "", "endpoints: 1 of eu"), 0.0)
    events.set_findings("a", [HOLD], 0.0)
    assert events.pending == PENDING + 1
    assert events.suppressed == 7
    first, second = sent(events)[:2]
    assert (first.reason, second.key.regarding.name) == (PORTS, "s7")


def test_full_queue_does_not_drop_due_findings() -> None:
    """If tick fills the queue, findings that came back are sent all the same."""
    events = EventSeries()
    back = [HOLD._replace(regarding=SERVICE._replace(name=f"back{number}")) for number in range(3)]
    events.set_findings("back", back, 0.0)
    sent(events)
    events.set_findings("back", [], 1.0)
    events.set_findings("back", back, 2.0)
    late = REASONS["NodeUnresolved"]
    for number in range(PENDING + 7):
        events.set_findings(number, [EventFinding(late, SERVICE._replace(name=f"s{number}"), "eu", "eu: n1")], 2.0)
    events.tick(2.0 + late.after)
    assert (events.pending, events.suppressed) == (PENDING, 10)
    assert counts(events)[-3:] == [2, 2, 2]


def test_event_that_a_full_queue_drops_is_not_queued_again() -> None:
    """A tick that fills the queue drops as many Events as it adds, even if the dropped ones have waited for long."""
    events = EventSeries()
    back = [HOLD._replace(regarding=SERVICE._replace(name=f"back{number}")) for number in range(3)]
    events.set_findings("back", back, 0.0)
    sent(events)
    for number in range(PENDING):
        events.set_findings(number, [HOLD._replace(regarding=SERVICE._replace(name=f"s{number}"))], 1.0)
    events.set_findings("back", [], 2.0)
    events.set_findings("back", back, 3.0)
    events.tick(1.0 + UPDATE)
    assert (events.pending, events.suppressed) == (PENDING, 3)
    names = [series.key.regarding.name for series in sent(events)]
    assert names == [*(f"s{number}" for number in range(3, PENDING)), "back0", "back1", "back2"]


def test_update_is_sent_ten_seconds_after_the_last() -> None:
    """An occurrence is sent at once if the last request is ten seconds old, else when it is."""
    events = EventSeries()
    events.record_occurrence(RELEASED, 0.0)
    assert counts(events) == [1]
    events.record_occurrence(RELEASED, UPDATE)
    assert counts(events) == [2]
    events.record_occurrence(RELEASED, UPDATE + 5)
    events.tick(2 * UPDATE - 1)
    assert counts(events) == []
    events.tick(2 * UPDATE)
    assert counts(events) == [3]


def test_process_that_leads_again_goes_on_with_its_events() -> None:
    """An Event that this process created before another one led is updated, but not before it occurs again."""
    events = EventSeries()
    events.record_occurrence(RELEASED, 0.0)
    sent(events)
    events.record_occurrence(RELEASED, 1.0)
    events.clear()
    events.tick(2 * UPDATE)
    assert counts(events) == []
    events.record_occurrence(RELEASED, 2 * UPDATE)
    assert counts(events) == [3]


def test_failed_delivery_creates_a_new_event_next_time() -> None:
    """After a failed delivery the next occurrence makes a new Event, since there is none to update."""
    events = EventSeries()
    events.set_findings("a", [HOLD], 0.0)
    lost = events.take()
    assert lost is not None
    events.forget(lost)
    events.set_findings("a", [], 20.0)
    events.set_findings("a", [HOLD], 40.0)
    assert counts(events) == [1]


def test_new_leader_reports_current_findings() -> None:
    """A process that leads again reports current findings as new, since another process led meanwhile."""
    events = EventSeries()
    events.set_findings("a", [HOLD], 0.0)
    events.clear()
    assert sent(events) == []
    assert not events.has_findings("a")
    events.set_findings("a", [HOLD], 20.0)
    assert counts(events) == [1]


def test_clear_drops_unsent_events() -> None:
    """After clear, neither waiting Events nor counted occurrences are sent."""
    events = EventSeries()
    events.set_findings("a", [HOLD], 0.0)
    sent(events)
    events.set_findings("a", [], 1.0)
    events.set_findings("a", [HOLD, HOLD._replace(scope="us")], 2.0)
    events.clear()
    events.tick(3000.0)
    assert sent(events) == []


def test_state_is_dropped_after_a_day() -> None:
    """A day after the last finding, no state is left."""
    events = EventSeries()
    for number in range(300):
        events.set_findings(number, [HOLD._replace(regarding=SERVICE._replace(name=f"s{number}"))], float(number))
        events.record_occurrence(RELEASED._replace(note=f"{number}"), float(number))
        sent(events)
        events.set_findings(number, [], number + 0.5)
    events.tick(90_000.0)
    sent(events)
    events.tick(100_000.0)
    held = [value for value in vars(events).values() if isinstance(value, dict | set)]
    assert [len(state) for state in held if state is not events._queues] == [0] * (len(held) - 1)


def test_occurrences_are_forgotten_before_lasting_findings() -> None:
    """Series of occurrences are forgotten after six minutes, those of lasting findings are kept."""
    events = EventSeries()
    events.set_findings("a", [HOLD], 0.0)
    for number in range(60):
        events.record_occurrence(RELEASED._replace(regarding=SERVICE._replace(name=f"s{number}")), float(number))
    sent(events)
    events.tick(QUIET)
    assert len(events._series) == 61
    events.tick(QUIET + 120.0)
    assert [series.reason for series in events._series.values()] == [PORTS]
    events.tick(REFRESH + 120.0)
    [again] = sent(events)
    assert (again.reason, again.count) == (PORTS, 2)


@given(st.text())
def test_a_note_is_one_printable_line_of_at_most_1024_bytes(text: str) -> None:
    """Any text becomes a valid note, and a valid note stays unchanged."""
    clean = note(text)
    assert len(clean.encode()) <= NOTE
    assert clean.isprintable() or not clean
    assert note(clean) == clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\r\nb\tc", "a  b c"),
        ("red \x1b[31mtext\x00", "red [31mtext"),
        ("turned \u202eround\u200b", "turned round"),
        ("half \ud800", "half"),
        ("é" * 600, "é" * 510 + "…"),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1021 + "…"),
    ],
)
def test_notes(text: str, clean: str) -> None:
    """Control and format characters are removed, and a long text is cut between two characters."""
    assert note(text) == clean
