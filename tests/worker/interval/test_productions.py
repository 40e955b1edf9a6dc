"""Regressions: productions on their way, strong and weak, their marks and their ACKs (6.1.1 to 6.1.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.worker.dedup import OpaqueIds, PositionIds
from millwheel.worker.interval.outbox import flows
from millwheel.worker.interval.outbox import outbox as outboxes
from millwheel.worker.interval.outbox.flows import INDEX_BITS
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.messages import (
    Acknowledged,
    AnswerDelivery,
    AppendEntry,
    Resend,
    SendDelivery,
    Tick,
)
from tests.worker.interval.driver import IntervalDriver


class Echo(mw.Computation[tuple[str, str], None]):
    """Produces each record. It produces "2 x" twice."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        for _ in range(2 if what.startswith("2") else 1):
            ctx.produce("out", what)

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        ctx.produce("out", f"timer {timer.tag}")


@pytest.mark.guarantee("G9", section="6.1.2")
def test_nothing_is_sent_or_acked_before_its_append_is_durable() -> None:
    driver = IntervalDriver(Echo())
    driver.deliver(("k", "x", 1))
    assert driver.take(SendDelivery) == []
    assert driver.take(AnswerDelivery) == []
    driver.commit()
    assert len(driver.take(AnswerDelivery)) == 1
    assert driver.sent() == [("x", 1)]


@pytest.mark.guarantee("G9", section="6.1.2")
def test_every_owner_resends_a_strong_production_byte_for_byte() -> None:
    driver = IntervalDriver(Echo())
    driver.deliver(("k", "x", 1), ("j", "y", 2))
    driver.commit()
    (first,) = driver.take(SendDelivery)
    driver.handle(Resend([first.delivery.token]))
    (second,) = driver.take(SendDelivery)
    (third,) = IntervalDriver(Echo(), entries=driver.entries).take(SendDelivery)
    columns = [
        (s.delivery.ids, s.delivery.keys, s.delivery.values, s.delivery.timestamps) for s in (first, second, third)
    ]
    assert columns[0] == columns[1] == columns[2]


@pytest.mark.guarantee("G1")
def test_a_partial_ack_moves_no_mark_past_a_siblings_record() -> None:
    """Regression: the first queued batch of a commit counted as the one with the least position.

    That is wrong once a part of it is ACKed. The mark then passed a record that its receiver had never got, which was
    lost as a duplicate.
    """
    outbox = Outbox(lambda consumer, key: key.decode())
    rows: list[Any] = [
        (position, b"k", "s", b"v", 1, (("c", key),), b"") for position, key in enumerate([b"left", b"right", b"left"])
    ]
    left, right = outbox.add(rows)
    outbox.acknowledged(left.token, [1])
    assert (left.first, right.first) == (2, 1)
    assert outbox.mark(IncarnationId("c"), 99) == 1
    outbox.acknowledged(right.token, [])
    assert outbox.mark(IncarnationId("c"), 99) == 2
    outbox.acknowledged(left.token, [])
    assert outbox.mark(IncarnationId("c"), 99) == 99


@pytest.mark.guarantee("G15", section="4.1")
def test_what_copies_were_refused_of_is_sent_again_as_a_whole() -> None:
    """Regression: the batch was divided.

    In a flow that began again, the later part could arrive before the earlier one.
    """
    driver = IntervalDriver(Echo())
    driver.deliver(*[("k", f"record {number}", number) for number in range(4)])
    driver.commit()
    (first,) = driver.take(SendDelivery)
    token = first.delivery.token
    driver.handle(Acknowledged(token, [1, 2, 3]))
    driver.handle(Resend([token], {token: [1, 3]}))
    (second,) = driver.take(SendDelivery)
    assert second.delivery.timestamps == [1, 2, 3], "all that is not ACKed"
    assert second.delivery.token != token, "what is said of one attempt is not said of another"
    assert second.delivery.order is not None
    assert second.delivery.order.after == token, "the receiver has taken the first attempt"
    driver.handle(Resend([token], {token: [1, 3]}))
    driver.handle(Acknowledged(token))
    assert driver.take(SendDelivery) == [], "what is said of the first attempt comes too late"
    driver.handle(Acknowledged(second.delivery.token))
    assert (len(driver.state.outbox), driver.state.outbox.unacked.records, driver.state.outbox.unacked.bytes) == (
        0,
        0,
        0,
    )


@pytest.mark.guarantee("G15", section="4.1")
def test_records_resent_after_a_refusal_have_their_own_numbers() -> None:
    """A late answer to the first attempt does not count as an answer to the second one."""
    driver = IntervalDriver(Echo())
    for number in range(3):
        driver.deliver(("k", f"record {number}", number))
        driver.commit()
    before = [send.delivery.token for send in driver.take(SendDelivery)]
    driver.handle(Acknowledged(before[0]))
    driver.handle(Resend([before[1]], full={before[1]}))
    (again,) = driver.take(SendDelivery)
    assert again.delivery.timestamps == [1]
    assert again.delivery.token not in before
    assert again.delivery.order is not None
    assert again.delivery.order.after == before[0]
    driver.handle(Resend([before[1], before[2]], full={before[1]}))
    assert driver.take(SendDelivery) == [], "it is about attempts that are over"
    driver.handle(Acknowledged(again.delivery.token))
    (last,) = driver.take(SendDelivery)
    assert (last.delivery.timestamps, last.delivery.token in before) == ([2], False)


@pytest.mark.guarantee("G10", section="6.1.3")
def test_a_commit_waits_for_a_weak_batch_that_is_sent_again() -> None:
    driver = weak()
    driver.deliver(("k", "x", 1), ("k", "y", 2))
    (first,) = driver.take(SendDelivery)
    token = first.delivery.token
    driver.handle(Resend([token], {token: [1]}))
    (second,) = driver.take(SendDelivery)
    driver.handle(Acknowledged(token, [1]))
    assert driver.take(AppendEntry) == []
    driver.handle(Acknowledged(second.delivery.token))
    driver.commit()
    assert len(driver.take(AnswerDelivery)) == 1


@pytest.mark.guarantee("G1")
@given(st.lists(st.tuples(st.sampled_from(["ack", "refuse", "move"]), st.integers(0, 99), st.sets(st.integers(0, 9)))))
def test_a_mark_never_passes_unacked_records_in_any_grouping(
    steps: list[tuple[str, int, set[int]]],
) -> None:
    owner = {"of": "a"}
    outbox = Outbox(lambda consumer, key: owner["of"] + key.decode())
    outbox.add([(n, b"p", "s", b"v" * n, n, ((IncarnationId("c"), b"%d" % (n % 2)),), b"") for n in range(12)])
    left = set(range(12))
    for what, which, indexes in steps:
        batches = list(outbox)
        if not batches:
            break
        batch = batches[which % len(batches)]
        mine = {batch.positions[index] for index in batch.indexes()}
        chosen = {index for index in indexes if index < len(batch.positions)}
        if what == "ack":
            outbox.acknowledged(batch.token, sorted(chosen))
            left -= mine - {batch.positions[index] for index in chosen}
        elif what == "refuse":
            outbox.flows.copies_refused(batch, chosen)
        else:
            owner["of"] += "x"
            outbox.take_ready()
            outbox.flows.refuse(batch.token, full=False)
            outbox.flows.go_on()
            outbox.take_ready()
        positions = sorted(one.positions[index] for one in outbox for index in one.indexes())
        assert positions == sorted(left)
        assert outbox.unacked.records == len(left)
        blobs = [blob for one in outbox for blob in (*one.values, *one.keys)]
        assert outbox.unacked.bytes == sum(map(len, blobs)), "all that is held"
        assert outbox.mark(IncarnationId("c"), 99) == min(left, default=99)
        assert outbox.unacked.held.min() == min(left, default=MAX_TIMESTAMP)
    for one in list(outbox):
        outbox.acknowledged(one.token, ())
    assert (outbox.unacked.records, outbox.unacked.bytes) == (0, 0)


@pytest.mark.guarantee("G13")
def test_a_stuck_key_does_not_make_receivers_keep_all_later_ids() -> None:
    """Regression: the mark stayed at the stuck record. Receivers had to keep every later id."""
    outbox = Outbox(lambda consumer, key: key.decode())
    for position in range(200):
        key = b"stuck" if position == 3 else b"fine"
        (batch,) = outbox.add([(position << 20, b"k", "s", b"v", 1, ((IncarnationId("c"), key),), b"")])
        if position != 3:
            outbox.acknowledged(batch.token, [])
    assert outbox.statement(IncarnationId("c"), 200 << 20, 0) == (3 << 20, [])
    assert outbox.statement(IncarnationId("c"), 200 << 20, 100 << 20) == (200 << 20, [3 << 20])
    outbox.add([(150 << 20, b"k", "s", b"v", 1, ((IncarnationId("c"), b"fine"),), b"")])
    assert outbox.statement(IncarnationId("c"), 200 << 20, 100 << 20) == (150 << 20, [3 << 20])


def test_a_batch_fits_a_message_also_after_a_takeover() -> None:
    """Regression: a takeover put all productions for one receiver into one batch, of any size."""
    outbox = Outbox(lambda consumer, key: "j")
    rows: list[Any] = [(n, b"k", "s", b"v" * 700_000, 1, (("c", b"k"),), b"") for n in range(9)]
    batches = outbox.add(rows)
    assert max(sum(map(len, one.values)) for one in batches) <= 2 << 20
    assert [position for one in batches for position in one.positions] == list(range(9))
    assert outbox.unacked.bytes == 9 * 700_001
    for one in batches:
        outbox.acknowledged(one.token, [])
    assert (outbox.unacked.bytes, outbox.unacked.records) == (0, 0)


def weak(**options: Any) -> IntervalDriver:
    return IntervalDriver(Echo(), strong=False, straggler_delay=50, **options)


@pytest.mark.guarantee("G10", section="6.1.3")
def test_weak_productions_are_sent_first_and_acked_later() -> None:
    driver = weak()
    driver.deliver(("k", "x", 1))
    (send,) = driver.take(SendDelivery)
    assert driver.take(AppendEntry) == []
    assert driver.take(AnswerDelivery) == []
    driver.handle(Acknowledged(send.delivery.token))
    driver.commit()
    assert len(driver.take(AnswerDelivery)) == 1
    assert IntervalDriver(Echo(), strong=False, entries=driver.entries).take(SendDelivery) == [], (
        "it was ACKed: nothing is stored"
    )


@pytest.mark.guarantee("G10", section="6.1.3")
def test_a_straggler_is_stored_in_a_commit_its_ack_in_a_later() -> None:
    """Regression: an ACK during the append that stores the straggler was not journaled.

    Each takeover sent the record again, long after its id had been collected.
    """
    driver = weak()
    driver.deliver(("k", "x", 1))
    (send,) = driver.take(SendDelivery)
    assert driver.core.next_deadline() == driver.now + 50
    driver.now += 50
    driver.handle(Tick())
    driver.watermark(100)
    driver.handle(Acknowledged(send.delivery.token))
    assert driver.output <= 1
    driver.commit()
    assert driver.output <= 1, "a takeover would send it again until the ACK is journaled"
    (again,) = IntervalDriver(Echo(), strong=False, entries=driver.entries).take(SendDelivery)
    assert again.delivery.ids == send.delivery.ids
    assert again.delivery.values == send.delivery.values
    driver.commit_all()
    assert driver.output == 100
    assert IntervalDriver(Echo(), strong=False, entries=driver.entries).take(SendDelivery) == []


@pytest.mark.guarantee("G8", section="6.1.3")
def test_a_wall_clock_that_is_set_back_keeps_no_delay_waiting() -> None:
    """Regression: delays were measured from times of a clock that was ahead, here or at an earlier owner.

    Until the clock reached them, no straggler was stored, no row was flushed and no hook was retried.
    """
    driver = weak()
    driver.watermark(0)
    driver.now -= 900_000
    driver.deliver(("k", "x", 1))
    driver.now += 10
    driver.handle(Tick())
    assert driver.core.next_deadline() == driver.now + 40
    assert not driver.take(AppendEntry)
    driver.now += 40
    driver.handle(Tick())
    driver.commit()
    assert driver.state.clocks.wall == 1_000_000, "no processing-time timer goes back"


@pytest.mark.guarantee("G8", section="7.1")
def test_a_successor_uses_its_own_clock_after_an_owner_far_ahead() -> None:
    """Regression: the next owner inherited the wall time. A timer of a second waited until its clock had caught up."""
    for ahead, shown in [(9_000_000, 10_000_000), (3_600_000_000, 1_000_000)]:
        before = IntervalDriver(Echo())
        before.now += ahead
        before.deliver(("k", "x", 1))
        before.commit_all()
        assert before.state.clocks.wall == 1_000_000 + ahead
        after = IntervalDriver(Echo(), entries=before.entries)
        assert after.state.clocks.wall == shown
        assert after.state.scope.now == shown


@pytest.mark.guarantee("G8", section="4.6")
def test_a_wall_clock_that_had_been_far_ahead_is_followed_back() -> None:
    """Regression: the wall time did not advance until the clock had caught up.

    A timer of a second fired an hour later.
    """

    class Alarm(Echo):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
            ctx.set_timer(Timestamp(ctx.now + 1_000_000), "soon", domain=mw.TimeDomain.PROCESSING_TIME)

    driver = IntervalDriver(Alarm())
    driver.now += 3_600_000_000
    driver.handle(Tick())
    driver.now -= 3_600_000_000
    driver.deliver(("k", "x", 1))
    driver.commit_all()
    assert driver.state.clocks.wall == driver.now
    driver.now += 999_999
    driver.handle(Tick())
    assert not driver.take(AppendEntry)
    driver.now += 1
    driver.handle(Tick())
    driver.commit_all()
    assert len(driver.take(SendDelivery)) == 1


@pytest.mark.guarantee("G10", section="6.1.3")
def test_weak_ids_are_the_same_after_a_crash_in_any_batch() -> None:
    def ids(driver: IntervalDriver) -> list[bytes]:
        found: list[bytes] = []
        while sends := driver.take(SendDelivery):
            for send in sends:
                assert isinstance(send.delivery.ids, OpaqueIds)
                found += send.delivery.ids.ids
                driver.handle(Acknowledged(send.delivery.token))
            driver.commit_all()
        return found

    together, apart = weak(), weak()
    together.deliver(("k", "2 a", 1), ("k", "2 b", 2), ("j", "c", 3))
    for key, what, stamp in [("k", "2 a", 1), ("k", "2 b", 2), ("j", "c", 3)]:
        apart.deliver((key, what, stamp))
    made = ids(together)
    assert len(set(made)) == 5
    assert sorted(made) == sorted(ids(apart))


@pytest.mark.guarantee("G10", section="6.1.3")
def test_a_timers_production_keeps_its_id_until_it_is_set_again() -> None:
    class Ticking(Echo):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
            ctx.set_timer(Timestamp(10), "t")

    def fired(driver: IntervalDriver) -> Any:
        driver.watermark(50)
        driver.commit()
        (send,) = driver.take(SendDelivery)
        return send

    driver = IntervalDriver(Ticking(), strong=False)
    driver.deliver(("k", "x", 1))
    driver.commit_all()
    second = fired(IntervalDriver(Ticking(), strong=False, entries=list(driver.entries)))
    first = fired(driver)
    assert first.delivery.ids == second.delivery.ids
    driver.handle(Acknowledged(first.delivery.token))
    driver.commit_all()
    driver.deliver(("k", "x", 60))
    driver.commit_all()
    (third,) = driver.take(SendDelivery)
    assert third.delivery.ids != first.delivery.ids


@pytest.mark.guarantee("G10")
def test_a_takeover_resends_all_also_of_an_append_in_flight() -> None:
    """Regression: stragglers whose append was in flight were skipped, as if they had never been sent."""
    driver = weak()
    driver.deliver(("k", "x", 1))
    driver.take(SendDelivery)
    driver.now += 50
    driver.handle(Tick())
    driver.handle(Resend(None))
    assert driver.sent() == [("x", 1)]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_weak_productions_carry_what_their_sender_has_received() -> None:
    """Receivers collect ids by the sender's watermark.

    That may pass a late record, up to what the senders of its causes have reached. Regression: receivers did not get
    this value, and forgot the id of a production that could be sent again.
    """
    driver = weak()
    driver.deliver(("k", "x", 1), watermark=77)
    (send,) = driver.take(SendDelivery)
    assert send.delivery.sender.received_watermark == 77


@pytest.mark.guarantee("G1")
def test_positions_are_stated_with_what_is_not_acked() -> None:
    driver = IntervalDriver(Echo())
    driver.deliver(("k", "x", 1))
    driver.commit()
    (send,) = driver.take(SendDelivery)
    ids = send.delivery.ids
    assert isinstance(ids, PositionIds)
    assert (ids.mark, list(ids.positions), list(ids.unacked)) == (1 << INDEX_BITS, [1 << INDEX_BITS], [])


rows_of_a_log = st.lists(
    st.tuples(
        st.integers(0, 1).map(lambda commit: commit << INDEX_BITS),
        st.sampled_from(["s", "s", "s", "t"]),
        st.binary(max_size=3),
        st.sampled_from([((IncarnationId("log.1"), b""),)] * 6 + [((IncarnationId("c.1"), b"k"),), ()]),
    ),
    max_size=30,
)


@given(rows_of_a_log, st.integers(0, 29), st.sampled_from(["", "c.1.j4"]), st.sampled_from([b"", bytes(16)]))
def test_productions_for_one_log_are_grouped_like_all_others(
    made: list[Any], alike: int, sequence: str, opaque: bytes
) -> None:
    """``alike``: so many of the last ones are as the first one."""
    made = [made[0] if at >= len(made) - alike else one for at, one in enumerate(made)]
    given_rows = [
        (commit + at, b"%d" % at, stream, value, at, targets, opaque)
        for at, (commit, stream, value, targets) in enumerate(sorted(made, key=lambda one: one[0]))
    ]

    def batches(least: int) -> list[Any]:
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(outboxes, "MIN_ALIKE", least)
            for module in (outboxes, flows):
                patches.setattr(module, "MAX_BATCH_RECORDS", 7)
                patches.setattr(module, "MAX_BATCH_BYTES", 18)
            outbox = Outbox(lambda consumer, key: f"{consumer}.j")
            return [
                (one.token, one.consumer, one.stream, one.journal, one.bytes, one.age, list(outbox.rows_of(one)))
                for part in (given_rows[:20], given_rows[20:])
                for one in outbox.add(part, sequence)
            ]

    assert batches(2) == batches(1_000)


@pytest.mark.parametrize("other", ["target", "stream", "two targets"])
def test_one_production_among_others_reaches_its_own_target(other: str) -> None:
    log, another = (IncarnationId("log.1"), b""), (IncarnationId("c.1"), b"k")
    made: list[Any] = [(at, b"k", "s", b"v", at, (log,), b"") for at in range(20)]
    made[7] = (7, b"k", "t" if other == "stream" else "s", b"v", 7,
               {"target": (another,), "stream": (log,), "two targets": (log, another)}[other], b"")  # fmt: skip
    outbox = Outbox(lambda consumer, key: f"{consumer}.j")
    found = [row for one in outbox.add(made) for row in outbox.rows_of(one)]
    assert sorted(found) == sorted((*row[:5], (target,), b"") for row in made for target in row[5])


@pytest.mark.guarantee("G1", section="6.1.3")
def test_no_mark_passes_what_is_not_in_the_journal() -> None:
    """Weak productions are ACKed before their commit. The positions of a commit that is never made come again."""
    log = (IncarnationId("log.1"), b"")
    outbox, next_commit = Outbox(lambda consumer, key: f"{consumer}.j"), 5 << INDEX_BITS
    first, second = (outbox.add([(next_commit + at, b"k", "s", b"v", at, (log,), bytes(16))])[0] for at in range(2))
    outbox.acknowledged(first.token, ())
    assert outbox.get(second.token) is not None
    assert outbox.statement(log[0], next_commit, 0) == (next_commit, [])


@pytest.mark.guarantee("G1", section="6.1.3")
def test_ids_of_one_batch_are_of_one_kind() -> None:
    """Those of weak productions are opaque. Strong ones from before an update have positions."""
    log = (IncarnationId("log.1"), b"")
    kinds = [b"", b"", bytes(16), bytes(16), b""] * 4
    made = [(at << INDEX_BITS, b"k", "s", b"v", at, (log,), opaque) for at, opaque in enumerate(kinds)]
    outbox = Outbox(lambda consumer, key: f"{consumer}.j")
    batches = outbox.add(made)
    assert [row for one in batches for row in outbox.rows_of(one)] == made
    assert all(len(one.opaque) in (0, len(one.keys)) for one in batches)
    assert len(batches) == 8 + 1
