"""Hooks that get many records at once do what hooks of single records do (4.1, 4.2; G1, G2, G5, G14, G15)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.testing import TopologyHarness
from millwheel.worker.interval import IntervalSettings

NOON = 1_767_268_800_000_000
SECOND = 1_000_000
USUAL = IntervalSettings(flush_interval=0, checkpoint_entries=20)
SETTINGS = {
    "usual": USUAL,
    "small commits": replace(USUAL, checkpoint_entries=2, batch_records=3),
    "no memory": replace(USUAL, cache_bytes=500, checkpoint_entries=3),
    "full outbox": replace(USUAL, outbox_records=1, batch_records=4),
    "small bytes": replace(USUAL, batch_bytes=400),
}
UNREADABLE, FAILS, DROPPED, NOT_STORED = 13, 14, 15, 16


class Bid(msgspec.Struct):
    auction: str
    price: int


class Totals(msgspec.Struct):
    count: int = 0
    total: int = 0
    fired: int = 0


class Broken:
    """What fails until it is mended, where it may be."""

    now = True
    sending = 0


def checked(bid: Bid) -> Bid:
    """Reads a bid, unless it cannot be read. Its sender can, and so it finds the key."""
    Broken.sending -= 1
    if bid.price == UNREADABLE and Broken.now and Broken.sending < 0:
        raise ValueError("unreadable")
    return bid


def add(ctx: mw.Context[Totals], price: int, timestamp: int, late: bool) -> None:
    """What both kinds of hooks do for a record."""
    if price == NOT_STORED and Broken.now:
        ctx.state.total = "none"  # type: ignore[assignment]
        return
    state = ctx.state
    state.count += 1
    state.total += price
    ctx.produce("sums", [ctx.key, state.count, state.total, timestamp, late])
    if price < 0:
        ctx.set_timer(mw.Timestamp(timestamp + 3 * SECOND), str(price))
    if price == FAILS and Broken.now:
        raise ValueError("it fails")
    if price == 7:
        del ctx.state


class Single(mw.Computation[Bid, Totals]):
    def process_record(self, ctx: mw.Context[Totals], record: mw.Record[Bid]) -> None:
        add(ctx, record.value.price, record.timestamp, record.late)

    def process_timer(self, ctx: mw.Context[Totals], timer: mw.Timer) -> None:
        ctx.state.fired += 1
        ctx.produce("sums", [ctx.key, timer.tag, ctx.state.fired, timer.timestamp])


class Batched(mw.BatchComputation[Bid, Totals]):
    max_records = 4

    def process_batch(self, ctx: mw.BatchContext[Totals], batch: mw.RecordBatch[Bid]) -> None:
        prices, late = batch.column("price").tolist(), batch.late.tolist()
        for row, timestamp in enumerate(batch.timestamps.tolist()):
            add(ctx.at(row), prices[row], timestamp, late[row])

    def process_timer(self, ctx: mw.Context[Totals], timer: mw.Timer) -> None:
        ctx.state.fired += 1
        ctx.produce("sums", [ctx.key, timer.tag, ctx.state.fired, timer.timestamp])


def topology(made: Any, *, reads: bool, late: str | None, **options: Any) -> mw.Topology:
    built = mw.Topology("auction")
    bids: Any = built.source("bids", Bid)
    if reads:
        bids = bids.filter(lambda bid: bid.price != DROPPED).map(checked, Bid)
    outputs: dict[str, Any] = {"sums": list[Any]} | ({"late": Bid} if late == "late" else {})
    options["late"] = {None: mw.Late.PROCESS, "drop": mw.Late.DROP, "late": mw.divert("late")}[late]
    bids.key_by("auction").process("sum", made, outputs, **options)
    return built


keys = st.sampled_from("abc")
prices = st.one_of(st.integers(-3, 5), st.sampled_from([7, UNREADABLE, FAILS, DROPPED, NOT_STORED]))
send = st.tuples(st.just("send"), st.lists(st.tuples(keys, st.integers(0, 40), prices), min_size=1, max_size=9))
advance = st.tuples(st.just("advance"), st.integers(0, 45))
others = st.sampled_from([("crash", None), ("mend", None)])
actions = st.lists(st.one_of(send, send, advance, others), max_size=12)


def outcome(made: Any, actions: list[Any], limits: IntervalSettings, grouped: bool = True, **options: Any) -> Any:
    """What a computation does, by key and stream in the order of its productions. ``grouped``: records come together."""
    Broken.now = True
    with TopologyHarness(topology(made, **options), now=mw.Timestamp(NOON), settings=limits) as harness:
        watermark = 0

        def act(kind: str, what: Any) -> None:
            nonlocal watermark
            if kind == "send":
                batch = [(Bid(key, price), mw.Timestamp(NOON + at * SECOND)) for key, at, price in what]
                Broken.sending = sum(bid.price != DROPPED for bid, _ in batch)
                harness.send_all("bids", batch)
            elif kind == "advance":
                watermark = max(watermark, what)
                harness.advance(mw.Timestamp(NOON + watermark * SECOND))
            elif kind == "crash":
                harness.crash()
            elif kind == "mend":
                Broken.now = False
                harness.advance_clock(mw.seconds(100))
            else:
                harness.finish()

        for kind, what in [*actions, ("mend", None), ("finish", None)]:
            with suppress(ValueError, mw.ValueEncodeError):
                act(kind, what)
        sums: dict[str, list[Any]] = {}
        for one in harness.produced("sums"):
            sums.setdefault(one.value[0], []).append((one.timestamp, one.value))
        counts = dict(harness.counts("sum"))
        del counts["duplicates"]  # a crash before the next commit loses what was counted since
        letters = [(one.key, one.timestamp, one.attempts) for one in harness.values("dead-letters")] if "on_failure" in options and options["on_failure"].max_attempts else []
        return {
            "sums": sums,
            "states": {key: harness.state("sum", key) for key in "abc"},
            "late": sorted(repr(one) for one in harness.values("late")) if options["late"] == "late" else [],
            "letters": sorted(letters),
            "counts": counts,
            "watermark": harness.watermark("sum"),
        }


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=40)
@given(actions, st.booleans(), st.sampled_from([None, "drop", "late"]), st.integers(1, 9), st.booleans())
def test_batches_do_what_single_records_do(
    name: str, actions: list[Any], reads: bool, late: str | None, most: int, gives_up: bool
) -> None:
    policy = mw.dead_letter(after=1) if gives_up else mw.retry(initial=mw.seconds(1))
    options: dict[str, Any] = {"reads": reads, "late": late, "on_failure": policy}
    batched = Batched()
    batched.max_records = most
    assert outcome(batched, actions, SETTINGS[name], **options) == outcome(Single(), actions, SETTINGS[name], **options)
