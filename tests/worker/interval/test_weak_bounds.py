"""Limits of queued weak commits: bytes of an entry, ids in memory, repeated work (6.1.3; G8, G13)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_ENTRY_BYTES
from millwheel.sdk.scope import OutputBinding
from millwheel.worker.dedup import OpaqueIds, Sender
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import (
    Acknowledged,
    Appended,
    AppendEntry,
    Delivery,
    FlushStates,
    PartsWritten,
    SendDelivery,
    StatesFlushed,
    Tick,
    WriteParts,
)
from tests.worker.interval.driver import INJECTOR, IntervalDriver
from tests.worker.interval.test_weak_line import Swelling


class Echoing(mw.Computation[tuple[str, str], None]):
    """Produces each record."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        ctx.produce("out", record.value[1])


class Seldom(mw.Computation[tuple[str, str], int]):
    """Counts one record, and produces each."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        if record.timestamp == 25:
            ctx.state += 1
        ctx.produce("out", record.value[1])


def with_consumers(driver: IntervalDriver, *names: str) -> None:
    """Let the computations ``names`` read stream "out"."""
    targets = tuple((IncarnationId(name), b"") for name in names)
    outputs: Any = driver.state.scope.outputs
    outputs["out"] = OutputBinding("out", outputs["out"].encode, lambda value: targets)


@pytest.mark.guarantee("G13", section="6.1.3")
def test_a_straggler_is_stored_once_for_any_number_of_consumers() -> None:
    """Regression: an entry had each production once for each consumer. It exceeded what a store takes in one write."""
    driver = IntervalDriver(Echoing(), strong=False, straggler_delay=1_000)
    with_consumers(driver, "a", "b", "c")
    driver.deliver(("ahead", "ahead", 1))
    for number in range(7):
        driver.deliver(*((f"k{number}", "." * 1_000_000, 1) for _ in range(1)))
    late = next(one.delivery for one in driver.take(SendDelivery) if one.delivery.consumer == "b")
    driver.handle(Acknowledged(late.token))
    driver.now += 1_000
    driver.handle(Tick())
    assert driver.commit_all() == 2
    assert max(map(len, driver.entries)) <= MAX_ENTRY_BYTES
    successor = IntervalDriver(Echoing(), strong=False, entries=driver.entries)
    sent = {
        (one.delivery.consumer, len(value)) for one in successor.take(SendDelivery) for value in one.delivery.values
    }
    assert sent == {("a", 6), ("c", 6)} | {(name, 1_000_005) for name in "abc"}


@pytest.mark.guarantee("G13", section="6.1.3")
def test_many_stored_stragglers_acks_are_journaled_in_portions() -> None:
    """Regression: one entry had all ACKs that came during an append, however large it became."""
    driver = IntervalDriver(Echoing(), strong=False, straggler_delay=1_000)
    names = [f"{letter * 250}.1" for letter in "abcd"]
    with_consumers(driver, *names)
    for first in range(0, 20_000, 500):
        driver.deliver(*((f"k{first + number}", "x", 1) for number in range(500)))
        driver.now += 1_000
        driver.handle(Tick())
        driver.commit_all()
    sent = [send.delivery for send in driver.take(SendDelivery)]
    stored = len(driver.entries)
    driver.deliver(("k", "x", 1))
    driver.now += 1_000
    driver.handle(Tick())
    for delivery in sent:
        driver.handle(Acknowledged(delivery.token))
    driver.commit_all()
    late = driver.entries[stored:]
    assert len(late) > 8
    assert max(map(len, late)) <= MAX_ENTRY_BYTES
    successor = IntervalDriver(Echoing(), strong=False, entries=driver.entries)
    assert sum(len(one.delivery.keys) for one in successor.take(SendDelivery)) == 4


@pytest.mark.guarantee("G13", section="6.1.1")
def test_full_id_segments_are_stored_with_a_never_empty_queue() -> None:
    driver = IntervalDriver(Echoing(), strong=False, straggler_delay=1_000)
    driver.state.dedup.segment_ids = 4
    tokens: list[int] = []
    most = 0
    for number in range(100):
        value = msgspec.msgpack.encode(("k", "x"))
        ids = OpaqueIds([number.to_bytes(16)])
        sender = Sender("injector/in/p", 1, None, INJECTOR, None)
        driver.handle(Delivery(IncarnationId("test.1"), "test.1.j1", "in", sender, ids, [b"k"], [value], [1], number))
        tokens += [send.delivery.token for send in driver.take(SendDelivery)]
        if len(tokens) > 2:
            driver.handle(Acknowledged(tokens.pop(0)))
        for append in driver.take(AppendEntry):
            driver.waiting.append(append)
            driver.commit()
        most = max(most, *(len(source.exact) for source in driver.state.dedup.tables.opaque.values()))
    assert driver.state.committed > 10
    assert most < 8


@pytest.mark.guarantee("G8", section="6.1.3")
def test_work_postponed_for_room_reruns_once_per_queue_movement() -> None:
    """Regression: each event ran the work again and encoded all that waited, until an ACK came."""
    swelling = Swelling()
    driver = IntervalDriver(swelling, strong=False, straggler_delay=1_000)
    for key, size in (("ahead", "1"), ("open", "3")):
        driver.deliver((key, size, 1))
    driver.deliver(*((key, "3", 9) for key in ("p", "q", "r")))
    before = swelling.runs
    for number in range(20):
        driver.deliver((f"more{number}", "0", 9))
    assert swelling.runs <= before + 20
    tokens = [send.delivery.token for send in driver.take(SendDelivery)]
    while tokens:
        for token in tokens:
            driver.handle(Acknowledged(token))
        driver.commit_all()
        tokens = [send.delivery.token for send in driver.take(SendDelivery)]
    assert driver.state.counts.records == 25
    assert max(map(len, driver.entries)) <= MAX_ENTRY_BYTES


@pytest.mark.guarantee("G13", section="6.2")
def test_the_journal_stays_short_though_the_queue_is_never_empty() -> None:
    """If states seldom change, no rows are due.

    Regression: no one checked whether they were written, so no base was named.
    """
    settings = IntervalSettings(checkpoint_entries=8, flush_interval=20_000)
    driver = IntervalDriver(Seldom(), strong=False, straggler_delay=1_000_000, settings=settings)
    waiting: list[list[Any]] = [[], []]
    longest = 0
    for number in range(400):
        driver.now += 1_000
        driver.deliver(("k", "x", number))
        waiting.append([Acknowledged(send.delivery.token) for send in driver.take(SendDelivery)])
        waiting[-1] += [Appended(append.append.commit) for append in driver.take(AppendEntry)]
        waiting[-1] += [PartsWritten(write.number) for write in driver.take(WriteParts)]
        waiting[-1] += [StatesFlushed(flush.number) for flush in driver.take(FlushStates)]
        for event in waiting.pop(0):
            driver.handle(event)
        longest = max(longest, driver.state.committed - driver.state.journal.truncation_point)
    assert driver.state.committed > 50
    assert longest < 16
