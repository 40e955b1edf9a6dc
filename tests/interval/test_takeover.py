"""A takeover of many keys and timers: what it costs before the first record can be processed (6.2, 7.1)."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

import millwheel as mw
from millwheel.store.contract import JournalHead, PartId
from millwheel.worker.messages import (
    Appended,
    AppendEntry,
    Opened,
    WriteParts,
)
from tests.interval.solo import Solo

KEYS = 100_000
SECONDS = 2.0


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


def seconds_to_open(head: JournalHead, parts: dict[PartId, bytes], entries: list[bytes]) -> float:
    """Of one processor, whatever else it does meanwhile; without collections, as in a worker."""
    solo = Solo(Waiting())
    successor = type(solo.core)(solo.state.config, solo.state.program, {}, lambda consumer, key: "")
    successor.start()
    gc.disable()
    try:
        began = time.process_time()
        successor.handle(Opened(head, parts, entries), 1)
        took = time.process_time() - began
    finally:
        gc.enable()
    assert len(successor.state.timers[False]) == KEYS
    return took


@pytest.mark.timeout(120)
def test_a_hundred_thousand_keys_and_timers_are_taken_over_within_two_seconds_6_2() -> None:
    solo, parts = owner()
    commit = solo.state.committed
    assert seconds_to_open(JournalHead(7, commit, 0, ()), {}, solo.entries) < SECONDS
    (write,) = solo.core._checkpoints._write_base()
    assert isinstance(write, WriteParts)
    parts.update(write.parts)
    assert seconds_to_open(JournalHead(7, commit, commit, tuple(parts)), parts, []) < SECONDS
