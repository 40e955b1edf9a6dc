"""A takeover of many keys and timers: its cost before the first record can be processed (6.2, 7.1)."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from msgspec.structs import replace

import millwheel as mw
from millwheel.store.contract import JournalHead, PartId
from millwheel.worker.interval.entry import decode_entry, encode
from millwheel.worker.messages import (
    Appended,
    AppendEntry,
    Opened,
    Started,
)
from tests.worker.interval.driver import IntervalDriver

KEYS = 100_000
CALLS = 30
"""Function calls for each key that a takeover may cost. It takes 100,000 keys over in about a second."""


class Waiting(mw.Computation[tuple[str, str], dict[str, int]]):
    """One small state and one timer for each key."""

    def process_record(self, ctx: mw.Context[dict[str, int]], record: mw.Record[Any]) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        ctx.set_timer(mw.Timestamp(1_000_000 + len(ctx.key) * 1_000 + record.timestamp), "end")

    def process_timer(self, ctx: mw.Context[dict[str, int]], timer: mw.Timer) -> None:
        del ctx.state


def owner() -> tuple[IntervalDriver, dict[PartId, bytes]]:
    """An owner that has committed a record of each key."""
    driver, parts = IntervalDriver(Waiting()), dict[PartId, bytes]()
    for first in range(0, KEYS, 1_000):
        driver.deliver(*[(f"key-{number:06d}", "", number % 997) for number in range(first, first + 1_000)])
        for append in driver.take(AppendEntry):
            driver.entries.append(append.append.entry)
            driver.handle(Appended(append.append.commit))
    return driver, parts


def calls_to_open(head: JournalHead, parts: dict[PartId, bytes], entries: list[bytes]) -> int:
    """The number of function calls of a successor, of Python and of C. This cost does not depend on the machine."""
    driver = IntervalDriver(Waiting())
    successor = type(driver.core)(driver.state.config, driver.state.program, {}, lambda consumer, key: "")
    successor.step(Started(), 1)
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        successor.step(Opened(head, parts, entries), 1)
    finally:
        sys.setprofile(None)
    assert len(successor.state.timers.tables[mw.TimeDomain.EVENT_TIME]) == KEYS
    return calls


@pytest.mark.paper(section="6.2")
def test_a_takeover_costs_a_few_calls_for_each_key_and_timer() -> None:
    driver, parts = owner()
    commit = driver.state.committed
    assert calls_to_open(JournalHead(7, commit, 0, ()), {}, driver.entries) < CALLS * KEYS
    write = driver.base()
    parts.update(write.parts)
    assert calls_to_open(JournalHead(7, commit, commit, tuple(parts)), parts, []) < CALLS * KEYS


def test_an_entry_without_the_newest_counts_is_read() -> None:
    """A new count goes to the end of the row, so that a takeover reads what an older version wrote."""
    driver = IntervalDriver(Waiting())
    driver.deliver(("k", "", 1))
    (append,) = driver.take(AppendEntry)
    entry = decode_entry(append.append.entry, "here")
    older = encode(replace(entry, counts=entry.counts[:4]))
    successor = IntervalDriver(Waiting(), entries=[older])
    assert successor.state.counts.row == (1, 0, 0, 0, 0)
