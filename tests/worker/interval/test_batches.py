"""Hooks that get many records at once do what hooks of single records do (4.1, 4.2; G1, G2, G5, G14, G15)."""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.rpc.columns import RecordColumns
from millwheel.testing import TopologyHarness
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.receiver import IntervalReceiver
from millwheel.worker.messages import Delivery
from tests.telemetry.traced_driver import TracedDriver
from tests.worker.interval.calls import let_calls_grow

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
    if price < 0 and not late:  # a timer that is due already fires behind its commit, and commits differ
        ctx.set_timer(mw.Timestamp(timestamp + 3 * SECOND), str(price))
    if price == FAILS and Broken.now:
        raise ValueError("it fails")
    if price == 7:
        del ctx.state


class Single(mw.Computation[Bid, Totals]):
    def process_record(self, ctx: mw.Context[Totals], record: mw.Record[Bid]) -> None:
        add(ctx, record.value.price, record.timestamp, record.late)
        ctx.produce("sums", [ctx.key, "behind", record.value.price])

    def process_timer(self, ctx: mw.Context[Totals], timer: mw.Timer) -> None:
        ctx.state.fired += 1
        ctx.produce("sums", [ctx.key, timer.tag, ctx.state.fired, timer.timestamp])


class Batched(mw.BatchComputation[Bid, Totals]):
    max_records = 4

    def process_batch(self, ctx: mw.BatchContext[Totals], batch: mw.RecordBatch[Bid]) -> None:
        prices, late = batch.column("price").tolist(), batch.late.tolist()
        for row, timestamp in enumerate(batch.timestamps.tolist()):
            context = ctx.at(row)
            assert ctx.now == context.now
            add(context, prices[row], timestamp, late[row])
        behind = [[key, "behind", price] for key, price in zip(batch.keys, prices, strict=True)]
        ctx.produce("sums", behind[::-1], rows=range(len(batch))[::-1])

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


deliver = IntervalReceiver.deliver


def as_table(receiver: IntervalReceiver, delivery: Delivery) -> Any:
    """Deliver bids as columns of Arrow, as an injector sends tables."""
    if isinstance(delivery.values, list):
        batch = pa.RecordBatch.from_pylist([msgspec.msgpack.decode(value) for value in delivery.values])
        records = RecordColumns(batch, array("q", delivery.timestamps), "auction")
        delivery.keys, delivery.values, delivery.timestamps = records.keys(), records, records.timestamps
    return deliver(receiver, delivery)


def outcome(
    made: Any, actions: list[Any], limits: IntervalSettings, tables: bool = False, grow: bool = False, **options: Any
) -> Any:
    """What a computation does, by key and stream in the order of its productions. ``grow``: calls begin with two."""
    with pytest.MonkeyPatch.context() as patches:
        if grow:
            let_calls_grow(patches)
        if tables:
            patches.setattr(IntervalReceiver, "deliver", as_table)
        return outcome_of(made, actions, limits, **options)


def outcome_of(made: Any, actions: list[Any], limits: IntervalSettings, **options: Any) -> Any:
    """The same, with records in the form that the interval gets."""
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
        letters = harness.values("dead-letters") if options["on_failure"].max_attempts else []
        return {
            "sums": sums,
            "states": {key: harness.state("sum", key) for key in "abc"},
            "late": sorted(repr(one) for one in harness.values("late")) if options["late"] == "late" else [],
            "letters": sorted((one.key, one.timestamp, one.attempts) for one in letters),
            "counts": counts,
            "watermark": harness.watermark("sum"),
        }


def by_time(actions: list[Any]) -> list[Any]:
    """The same, but no record is older than one before it, none sets a timer, and none fails.

    While something is over its limit, records that hold the watermark run before others that an injector has sent. And
    commits differ, so it differs which records run before a timer that is due, and before all is mended.
    """
    latest, made = 0, []
    for kind, what in actions:
        if kind == "send":
            times = list(accumulate((at for _, at, _ in what), max, initial=latest))
            calm = [price if 0 <= price <= 7 or price == DROPPED else 0 for _, _, price in what]
            latest, what = times[-1], list(zip((key for key, _, _ in what), times[1:], calm, strict=True))
        made.append((kind, what))
    return made


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=40)
@given(actions, st.booleans(), st.sampled_from([None, "drop", "late"]), st.integers(1, 9), *[st.booleans()] * 3)
def test_batches_do_what_single_records_do(
    name: str, actions: list[Any], reads: bool, late: str | None, most: int, gives_up: bool, tables: bool, grow: bool
) -> None:
    policy = mw.dead_letter(after=1) if gives_up else mw.retry(initial=mw.seconds(1))
    options: dict[str, Any] = {"reads": reads, "late": late, "on_failure": policy}
    if name in ("no memory", "full outbox"):
        actions = by_time(actions)
    batched = Batched()
    batched.max_records = most
    by_batches = outcome(batched, actions, SETTINGS[name], tables, grow, **options)
    assert by_batches == outcome(Single(), actions, SETTINGS[name], **options)


def run(actions: list[Any], **options: Any) -> Any:
    options = {"reads": False, "late": None, "on_failure": mw.dead_letter(after=1)} | options
    return outcome(Batched(), actions, USUAL, **options)


@pytest.mark.guarantee("G1", section="4.2")
def test_a_record_that_fails_is_given_up_alone() -> None:
    found = run([("send", [("a", 1, 1), ("b", 1, FAILS), ("c", 1, 2), ("a", 2, 3)])])
    assert found["letters"] == [("b", NOON + SECOND, 1)]
    assert found["states"] == {"a": Totals(2, 4), "b": None, "c": Totals(1, 2)}
    assert [value[1:3] for _, value in found["sums"]["a"]] == [[1, 1], ["behind", 1], [2, 4], ["behind", 3]]


@pytest.mark.guarantee("G1", section="4.2")
def test_work_before_a_failing_batch_is_undone_and_runs_again() -> None:
    """The second batch fails in the commit of the first. Both have records of the key ``a``."""
    first = [("a", number, 1) for number in range(4)]
    found = run([("send", [*first, ("a", 5, 1), ("c", 5, FAILS), ("b", 5, 1)])])
    assert found["states"] == {"a": Totals(5, 5), "b": Totals(1, 1), "c": None}
    assert [value[1] for _, value in found["sums"]["a"] if value[1] != "behind"] == [1, 2, 3, 4, 5]
    assert found["letters"] == [("c", NOON + 5 * SECOND, 1)]


@pytest.mark.guarantee("G15", section="4.2")
def test_a_delivery_waits_behind_blocked_keys() -> None:
    """The first record of ``a`` fails until all is mended. What comes behind it waits, and other keys do not."""
    actions = [("send", [("a", 1, FAILS)]), ("send", [("a", 2, 1), ("b", 2, 1)]), ("mend", None)]
    found = run(actions, on_failure=mw.retry(initial=mw.seconds(1)))
    assert [value[2] for _, value in found["sums"]["a"] if value[1] != "behind"] == [FAILS, FAILS + 1]
    assert found["states"] == {"a": Totals(2, FAILS + 1), "b": Totals(1, 1), "c": None}


@pytest.mark.guarantee("G15", section="4.2")
def test_a_late_record_is_diverted_behind_earlier_ones() -> None:
    class Both(mw.BatchComputation[Bid]):
        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Bid]) -> None:
            ctx.produce("late", batch.values)

    topology = mw.Topology("auction")
    topology.source("bids", Bid)
    topology.add(Both, inputs={"bids": mw.key("auction")}, outputs={"late": Bid}, late=mw.divert("late"))
    with TopologyHarness(topology, now=mw.Timestamp(NOON)) as harness:
        harness.advance(mw.Timestamp(NOON))
        times = [(1, NOON + SECOND), (2, NOON - SECOND), (3, NOON + SECOND)]
        harness.send_all("bids", [(Bid("a", price), mw.Timestamp(at)) for price, at in times])
        assert [bid.price for bid in harness.values("late")] == [1, 2, 3]


@pytest.mark.guarantee("G13", section="4.1")
def test_a_failing_record_costs_few_calls() -> None:
    calls: list[int] = []

    class Counting(mw.BatchComputation[Bid]):
        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Bid]) -> None:
            calls.append(len(batch))
            if FAILS in batch.column("price"):
                raise ValueError("it fails")

    topology = mw.Topology("auction")
    topology.source("bids", Bid)
    topology.add(Counting, inputs={"bids": mw.key("auction")}, on_failure=mw.dead_letter(after=1))
    with TopologyHarness(topology) as harness:
        bids = [Bid(f"key {number}", FAILS if number == 300 else 1) for number in range(1_000)]
        harness.send_all("bids", [(bid, mw.Timestamp(NOON)) for bid in bids])
        assert harness.counts("counting")["records"] == 1_000
        assert len(harness.values("dead-letters")) == 1
    assert len(calls) < 35


def test_a_batch_is_bounded_and_has_one_stream() -> None:
    sizes: list[tuple[str, int]] = []

    class Counting(mw.BatchComputation[Bid]):
        max_records = 3

        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Bid]) -> None:
            sizes.append((batch.stream, len(batch)))

    topology = mw.Topology("auction")
    for stream in ("bids", "more"):
        topology.source(stream, Bid)
    topology.add(Counting, inputs={"bids": mw.key("auction"), "more": mw.key("auction")})
    with TopologyHarness(topology) as harness:
        for stream in ("bids", "more"):
            harness.send_all(stream, [(Bid("a", number), mw.Timestamp(NOON)) for number in range(7)])
    assert sizes == [(stream, size) for stream in ("bids", "more") for size in (3, 3, 1)]


def test_a_hook_that_returns_a_value_fails() -> None:
    class Returning(mw.BatchComputation[Bid]):
        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Bid]) -> Any:
            return batch.keys

    topology = mw.Topology("auction")
    topology.source("bids", Bid)
    topology.add(Returning, inputs={"bids": mw.key("auction")})
    with TopologyHarness(topology) as harness:
        with pytest.raises(mw.UsageError, match=r"Returning\.process_batch returned list, and a hook"):
            harness.send_all("bids", [(Bid(key, 1), mw.Timestamp(NOON)) for key in "ab"])
        with pytest.raises(mw.UsageError, match=r"Returning\.process_batch returned list"):
            harness.send("bids", Bid("c", 1), mw.Timestamp(NOON))
        assert harness.counts("returning")["records"] == 0


class Echo(mw.BatchComputation[tuple[str, str], int]):
    """Counts and forwards records. Some fail."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def process_batch(self, ctx: mw.BatchContext[int], batch: mw.RecordBatch[tuple[str, str]]) -> None:
        self.sizes.append(len(batch))
        for key in batch.keys:
            ctx.states[key] += 1
        ctx.produce("out", [text for _, text in batch.values])
        if ("d", "fails") in batch.values:
            raise ValueError("it fails")


@pytest.mark.paper(section="6.1")
def test_a_sampled_record_is_a_batch_of_its_own() -> None:
    sizes: list[int] = []
    driver = TracedDriver(Echo(sizes), lambda text: "seen" in text, on_failure=mw.dead_letter(after=1))
    records = [("a", "1"), ("b", "2"), ("c", "seen"), ("a", "3"), ("d", "fails"), ("b", "4")]
    driver.deliver(*((*record, at) for at, record in enumerate(records)))
    for _ in range(10):
        driver.commit_all()
    assert sizes[:3] == [2, 1, 3]
    assert driver.state.counts.row[0] == len(records)
    assert sorted(name.split()[0] for name in driver.spans.names())[:3] == ["commit", "process", "receive"]
