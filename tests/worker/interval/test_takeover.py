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
from tests.worker.interval.solo import Solo

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


def owner() -> tuple[Solo, dict[PartId, bytes]]:
    """One that has taken a record of each key, and committed all."""
    solo, parts = Solo(Waiting()), dict[PartId, bytes]()
    for first in range(0, KEYS, 1_000):
        solo.deliver(*[(f"key-{number:06d}", "", number % 997) for number in range(first, first + 1_000)])
        for append in solo.take(AppendEntry):
            solo.entries.append(append.append.entry)
            solo.handle(Appended(append.append.commit))
    return solo, parts


def calls_to_open(head: JournalHead, parts: dict[PartId, bytes], entries: list[bytes]) -> int:
    """How many functions a successor calls, of Python and of C: a cost that does not depend on the machine."""
    solo = Solo(Waiting())
    successor = type(solo.core)(solo.state.config, solo.state.program, {}, lambda consumer, key: "")
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
    solo, parts = owner()
    commit = solo.state.committed
    assert calls_to_open(JournalHead(7, commit, 0, ()), {}, solo.entries) < CALLS * KEYS
    write = solo.base()
    parts.update(write.parts)
    assert calls_to_open(JournalHead(7, commit, commit, tuple(parts)), parts, []) < CALLS * KEYS


def test_an_entry_without_the_newest_counts_is_read() -> None:
    """A new count goes to the end of the row, so that a takeover reads what an older version wrote."""
    solo = Solo(Waiting())
    solo.deliver(("k", "", 1))
    (append,) = solo.take(AppendEntry)
    entry = decode_entry(append.append.entry, "here")
    older = encode(replace(entry, counts=entry.counts[:4]))
    successor = Solo(Waiting(), entries=[older])
    assert successor.state.counts.row == (1, 0, 0, 0, 0)
