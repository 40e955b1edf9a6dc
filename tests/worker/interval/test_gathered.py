"""Deliveries that are there already share a commit, so that a key's state is stored once for all of them (6.1.1)."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.worker import messages as m
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.entry import decode_entry
from millwheel.worker.interval.hook_meter import HookMeter
from tests.worker.interval.driver import IntervalDriver

EACH = IntervalSettings(gathered_from=1)
"""Deliveries of any size wait for the next one."""


class Counter(mw.Computation[tuple[str, str], int]):
    """Counts its key's records, and produces each count."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "fail":
            raise ValueError("as asked")
        ctx.state += 1
        ctx.produce("out", f"{ctx.key}{ctx.state}")


def appends(driver: IntervalDriver) -> int:
    """How many entries wait for their append."""
    return sum(isinstance(one, m.AppendEntry) for one in driver.waiting)


def states(driver: IntervalDriver) -> Any:
    """The states of the last entry."""
    return dict(decode_entry(driver.entries[-1], "the last").states)


@pytest.mark.guarantee("G1", "G2", section="6.1.1")
def test_a_delivery_that_is_followed_shares_the_next_commit() -> None:
    driver = IntervalDriver(Counter(), settings=EACH)
    driver.deliver(("a", "", 10), ("b", "", 10), followed=True)
    assert appends(driver) == 0
    driver.deliver(("a", "", 20), followed=True)
    assert appends(driver) == 0
    driver.deliver(("a", "", 30))
    assert appends(driver) == 1
    driver.commit()
    assert states(driver) == {b"a": b"\x03", b"b": b"\x01"}
    assert len(driver.take(m.AnswerDelivery)) == 3
    assert [value for value, _ in driver.sent()] == ["a1", "a2", "a3", "b1"]


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_small_delivery_waits_for_no_other() -> None:
    driver = IntervalDriver(Counter(), settings=IntervalSettings(gathered_from=2))
    driver.deliver(("a", "", 10), followed=True)
    assert appends(driver) == 1


@pytest.mark.guarantee("G13", section="6.1.1")
def test_a_full_batch_waits_for_no_other_delivery() -> None:
    driver = IntervalDriver(Counter(), settings=IntervalSettings(batch_records=2, gathered_from=1))
    driver.deliver(("a", "", 10), followed=True)
    assert appends(driver) == 0
    driver.deliver(("b", "", 10), followed=True)
    assert appends(driver) == 1
    driver.commit()
    assert states(driver) == {b"a": b"\x01", b"b": b"\x01"}


@pytest.mark.paper(section="6.1.1")
def test_many_keys_of_one_record_wait_for_no_others() -> None:
    driver = IntervalDriver(Counter(), settings=IntervalSettings(gathered_from=1, gathered_keys=4))
    driver.deliver(*((key, "", 10) for key in "aaabbcd"), followed=True)
    assert appends(driver) == 0, "keys occur again"
    driver.deliver(*((key, "", 10) for key in "efghijklmn"), followed=True)
    assert appends(driver) == 1, "fourteen keys have seventeen records"
    driver.commit()
    assert len(states(driver)) == 14


@pytest.mark.guarantee("G8", section="6.1.1")
@pytest.mark.parametrize("event", [m.Tick(), m.GroupWatermarks({"injector/in": 5}), m.Acknowledged(99, [])])
def test_each_other_event_ends_the_wait(event: Any) -> None:
    driver = IntervalDriver(Counter(), settings=EACH)
    driver.deliver(("a", "", 10), followed=True)
    driver.handle(event)
    assert appends(driver) == 1


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_wait_for_deliveries_ends_after_its_time() -> None:
    driver = IntervalDriver(Counter(), settings=IntervalSettings(gathered_from=1, gathered_for=100))
    for number, (passed, entries) in enumerate([(0, 0), (99, 0), (1, 1)]):
        driver.now += passed
        driver.deliver((f"{number}", "", 10), followed=True)
        assert appends(driver) == entries
    driver.commit()
    assert sorted(states(driver)) == [b"0", b"1", b"2"]
    driver.deliver(("a", "", 10), followed=True)
    assert appends(driver) == 0, "the next batch has a wait of its own"


@pytest.mark.guarantee("G8", section="6.1.1")
def test_an_alarm_ends_a_wait_for_a_delivery_that_is_lost() -> None:
    driver = IntervalDriver(Counter(), settings=IntervalSettings(gathered_from=1, gathered_for=100))
    driver.deliver(("a", "", 10), followed=True)
    driver.now += 40
    driver.deliver(("b", "", 10), followed=True)
    assert driver.core.next_deadline() == driver.now + 60
    driver.now += 60
    driver.handle(m.Tick())
    assert appends(driver) == 1
    assert driver.core.next_deadline() is None


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_batch_waits_no_longer_behind_a_slow_append() -> None:
    """The wait was over while the append was in flight. So the batch is sealed as soon as that one ends."""
    driver = IntervalDriver(Counter(), settings=IntervalSettings(gathered_from=1, gathered_for=100))
    driver.deliver(("a", "", 10))
    for _ in range(4):
        driver.deliver(("b", "", 20), followed=True)
        driver.now += 40
    (append,) = driver.take(m.AppendEntry)
    driver.handle(m.Appended(append.append.commit, followed=True))
    assert appends(driver) == 1


@pytest.mark.guarantee("G8", section="6.1.1")
def test_undone_work_waits_for_no_delivery() -> None:
    """Each undone hook runs in a commit of its own. So a wait of each commit would be one for each of these hooks."""
    driver = IntervalDriver(Counter(), settings=EACH)
    driver.deliver(("a", "", 10), ("a", "", 10), ("a", "fail", 10), ("b", "", 10), followed=True)
    committed: list[Any] = []
    for _ in range(3):
        driver.deliver(("c", "", 20), followed=True)
        assert appends(driver) == 1
        driver.commit()
        committed.append(states(driver))
    assert [one.get(b"a") for one in committed] == [None, b"\x01", b"\x02"]


@pytest.mark.guarantee("G13", section="6.1.1")
def test_a_batch_has_a_limited_number_of_bytes_of_records() -> None:
    """A state may keep what it gets. So the entry may become larger by as much as the records have."""
    driver = IntervalDriver(Counter(), settings=IntervalSettings(gathered_from=1, consumed_bytes=100))
    for entries in (0, 1):
        driver.deliver(("a", "x" * 60, 10), followed=True)
        assert appends(driver) == entries


@pytest.mark.guarantee("G8", section="6.1.1")
def test_records_of_a_nearly_full_batch_run_together() -> None:
    """Records of keys that the batch has add nothing to what it stores, so its last bytes do not divide them."""
    reads: list[None] = []

    def clock() -> float:
        reads.append(None)
        return 0.0

    driver = IntervalDriver(
        Counts(), settings=IntervalSettings(gathered_from=1, batch_bytes=80), meter=HookMeter(clock)
    )
    driver.deliver(("a", "", 10), followed=True)
    del reads[:]
    driver.deliver(*[("a", "", 10)] * 100, followed=True)
    assert (appends(driver), len(reads)) == (0, 2)


@pytest.mark.guarantee("G1", "G8", section="6.1.1")
def test_a_batch_waits_over_appends_and_watermarks() -> None:
    """What comes between two deliveries that are there ends no wait: the next delivery is the next event again."""
    driver = IntervalDriver(Counter(), settings=EACH)
    driver.deliver(("a", "", 10))
    driver.deliver(("b", "", 20), followed=True)
    (append,) = driver.take(m.AppendEntry)
    driver.entries.append(append.append.entry)
    driver.handle(m.Appended(append.append.commit, followed=True))
    assert appends(driver) == 0
    driver.handle(m.GroupWatermarks({"injector/in": 5}, followed=True))
    assert appends(driver) == 0
    driver.deliver(("b", "", 30))
    driver.commit()
    assert states(driver) == {b"b": b"\x02"}


@pytest.mark.guarantee("G8", section="6.1.1")
def test_duplicates_prolong_no_wait() -> None:
    driver = IntervalDriver(Counter(), settings=IntervalSettings(gathered_from=1, gathered_for=100))
    driver.deliver(("a", "", 10))
    driver.commit_all()
    driver.deliver(("b", "", 20), followed=True)
    for entries in (0, 1):
        driver.position = 0
        driver.now += 50
        driver.deliver(("a", "", 10), followed=True)
        assert appends(driver) == entries


@pytest.mark.guarantee("G1", "G8", section="6.1.1")
def test_a_failing_hook_undoes_its_key_in_both_deliveries() -> None:
    driver = IntervalDriver(Counter(), settings=EACH)
    driver.deliver(("a", "", 10), ("b", "", 10), followed=True)
    driver.deliver(("a", "fail", 20), ("b", "", 20))
    driver.commit_all()
    held = {key: cell.encoded for key, cell in driver.state.cells.items()}
    assert held == {b"a": b"\x01", b"b": b"\x02"}


@pytest.mark.guarantee("G10", section="6.1.3")
def test_weak_productions_of_gathered_records_are_sent_together() -> None:
    driver = IntervalDriver(Counter(), settings=EACH, strong=False)
    driver.deliver(("a", "", 10), followed=True)
    assert driver.sent() == []
    driver.deliver(("b", "", 10))
    assert [value for value, _ in driver.sent()] == ["a1", "b1"]


class Counts(Counter):
    """Counts its key's records, and produces nothing."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


class Wakes(Counter):
    """Sets a timer for each record, and produces nothing."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        ctx.set_timer(mw.Timestamp(1_000), record.value[1])

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        del ctx.state


@pytest.mark.guarantee("G10", section="6.1.3")
def test_weak_work_without_productions_is_sealed_once() -> None:
    """Its timers counted as productions. So each delivery was sealed by itself while an append was in flight."""
    driver = IntervalDriver(Wakes(), strong=False)
    driver.deliver(("a", "first", 10))
    for number in range(3):
        driver.deliver(("a", f"{number}", 10), ("b", f"{number}", 10))
    assert driver.state.journal.sealed == 1
    driver.commit()
    assert driver.state.journal.sealed == 2
    driver.commit()
    assert states(driver) == {b"a": b"\x04", b"b": b"\x03"}
