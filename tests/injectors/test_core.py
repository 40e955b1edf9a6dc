"""The injector's core, in one situation for each test (5.2, 6.1.1, 8.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.errors import (
    InjectorClosedError,
    InjectorSupersededError,
    InvalidRecordsError,
    RecordsLeftError,
    StreamDrainingError,
)
from millwheel.client.injector.ids import partition_scope
from millwheel.client.injector.messages import (
    Connect,
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    EndDeclared,
    IdleDeclared,
    IdleEnded,
    InjectorEffect,
    InjectorEvent,
    KeyedRecords,
    KeysFound,
    Limits,
    PublishWatermark,
    RoutingArrived,
    SendBatch,
    Tick,
    WatermarkDeclared,
    WatermarkReached,
    WatermarksBroadcast,
    WritesPending,
)  # fmt: skip
from millwheel.client.injector.resend_policy import MAX_COPIES
from millwheel.client.injector.routing import ConsumerRouting, Route, StreamRouting
from millwheel.client.injector.unacked import unacked_by_consumer
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.channel import MAX_MESSAGE_BYTES
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.errors import UsageError


def step(core: InjectorCore, event: InjectorEvent, now: int = 0) -> list[InjectorEffect]:
    """The effects of an event, except those on the published watermark. See ``core.published`` for them."""
    effects = core.step(event, now)
    core.check_invariants()
    return [effect for effect in effects if not isinstance(effect, PublishWatermark)]


def sends(effects: Iterable[InjectorEffect]) -> list[SendBatch]:
    """The attempts among effects."""
    return [effect for effect in effects if isinstance(effect, SendBatch)]


ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
SUPERSEDED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
INVALID = DeliveryOutcome.DELIVERY_OUTCOME_INVALID

LIMITS = Limits(batch_records=10, linger=2_000, retry_first=100, retry_last=1_000, resend_after=30_000, max_in_flight=4)
SCOPE = partition_scope("s", "p", "0")


def one(*routes: Route, name: str = "c") -> ConsumerRouting:
    return ConsumerRouting(IncarnationId(name), routes or [Route(ALL_KEYS, "j1", "a")], computation=name)


def routing(*consumers: ConsumerRouting, revision: int = 1, skew: int = 0, draining: bool = False) -> StreamRouting:
    found = consumers or (one(),)
    return StreamRouting(revision, {c.incarnation: c for c in found}, draining, skew)


def opened(limits: Limits = LIMITS, of: StreamRouting | None = None, watermark: int = MIN_TIMESTAMP) -> InjectorCore:
    core = InjectorCore("s", "p", limits=limits, watermark=watermark)
    for effect in step(core, RoutingArrived(of or routing()), 0):
        assert isinstance(effect, Connect)
        step(core, ConnectionOpened(effect.address), 0)
    return core


def add(
    core: InjectorCore, positions: Sequence[int], now: int = 0, *, key: bytes = b"k", at: int = 50
) -> list[InjectorEffect]:
    assert core.routing is not None
    values = [b"v%d" % position for position in positions]
    keys = {name: [key] * len(positions) for name in core.routing.consumers}
    return step(core, KeyedRecords(values, [at] * len(positions), keys, SCOPE, list(positions)), now)


def test_full_batches_do_not_linger() -> None:
    core = opened()
    assert [len(send.ids) for send in sends(add(core, range(25)))] == [10, 10]


def test_batches_are_bounded_in_bytes_too() -> None:
    core = opened(replace(LIMITS, batch_bytes=8))
    values = [b"abc", b"def", b"ghi", b"0123456789", b"x"]
    columns = KeyedRecords(values, [0] * 5, {IncarnationId("c"): [b"k"] * 5}, SCOPE, range(5))
    out = sends(step(core, columns, 0)) + sends(step(core, Tick(), 5_000))
    assert [list(send.values) for send in out] == [[b"abc", b"def"], [b"ghi"], [b"0123456789"], [b"x"]]


@pytest.mark.guarantee("G13")
def test_a_batch_with_the_longest_keys_fits_into_a_message() -> None:
    limits, framing = Limits(), 64
    assert limits.batch_records * (MAX_KEY_BYTES + framing) + limits.batch_bytes < MAX_MESSAGE_BYTES // 3


def test_records_go_to_their_intervals_in_order() -> None:
    routes = [Route(KeyInterval(b"", b"m"), "j1", "a"), Route(KeyInterval(b"m", None), "j2", "a")]
    core = opened(of=routing(one(*routes)))
    keys = {IncarnationId("c"): [b"z", b"a", b"m", b"b"]}
    out = sends(step(core, KeyedRecords([b"1", b"2", b"3", b"4"], [5, 6, 7, 8], keys, SCOPE, range(4)), 0))
    out += sends(add(opened(of=routing(one(*routes))), [1], key=b"z"))
    sent = [(send.journal, send.keys, send.values, send.timestamps, send.ids) for send in out]
    assert sent == [
        ("j2", [b"z", b"m"], [b"1", b"3"], [5, 7], [0, 2]),
        ("j1", [b"a", b"b"], [b"2", b"4"], [6, 8], [1, 3]),
        ("j2", [b"z"], [b"v1"], [50], [1]),
    ]


@pytest.mark.guarantee("G13")
def test_who_waited_goes_on_when_an_eighth_is_free() -> None:
    """Else each ACK of a few records lets in as few, and a stream with many consumers has tiny batches for ever."""
    core = opened(replace(LIMITS, window_records=80, batch_records=4))
    waiting = deque(sends(add(core, range(80))))
    free_at_each_ack = []
    while waiting:
        waiting.extend(sends(step(core, DeliveryAnswered((waiting.popleft().token,), ACKED), 0)))
        free_at_each_ack.append((core.room(), core.refills(1)))
    assert free_at_each_ack[0] == (4, False)
    assert free_at_each_ack[-1] == (80, True)
    assert all(goes_on == (room >= 10) for room, goes_on in free_at_each_ack)
    assert core.refills(40)


@pytest.mark.guarantee("G13")
def test_the_window_reports_how_much_it_takes() -> None:
    core = opened(replace(LIMITS, window_records=30), routing(one(), one(Route(ALL_KEYS, "j2", "a"), name="d")))
    assert core.room() == 15
    out = sends(add(core, range(10)))
    assert core.room() == 5
    step(core, DeliveryAnswered((out[0].token,), ACKED), 0)
    assert core.room() == 10


@pytest.mark.guarantee("G13")
def test_each_of_many_consumers_has_a_share_of_the_window() -> None:
    limits = replace(LIMITS, window_records=1_000)
    for consumers, room in ((1, 1_000), (25, 40), (26, 40), (100, 40)):
        names = map("c{}".format, range(consumers))
        core = opened(limits, routing(*(one(Route(ALL_KEYS, f"j-{name}", "a"), name=name) for name in names)))
        assert core.room() == room
        add(core, range(30))
        assert (core.room(), core.fits(20)) == (room - 30, consumers == 1)
        assert core.routing is not None
        assert opened(replace(LIMITS, window_records=49), core.routing).window == max(49, 49 * consumers // 25)


def test_the_window_counts_bytes() -> None:
    core = opened(replace(LIMITS, window_bytes=4))
    add(core, [1])
    assert core.room() > 0
    add(core, [2, 3])
    assert (core.unacked_bytes, core.room()) == (6, 0)


@pytest.mark.paper(section="6.1.1")
def test_a_broken_connection_resends_the_same_ids_and_bytes() -> None:
    core = opened()
    first = sends(add(core, range(20)))
    step(core, ConnectionLost("a"))
    again = sends(step(core, ConnectionOpened("a"), 5))
    assert [(s.ids, s.values, s.keys) for s in again] == [(s.ids, s.values, s.keys) for s in first]
    assert not {s.token for s in again} & {s.token for s in first}


def test_an_ack_with_remaining_records_keeps_only_those() -> None:
    core = opened()
    (send,) = sends(add(core, range(10)))
    step(core, DeliveryAnswered((send.token,), ACKED, [3, 7], ""), 0)
    assert core.unacked == 2
    step(core, ConnectionLost("a"))
    (again,) = sends(step(core, ConnectionOpened("a"), 5))
    assert again.ids == [3, 7]
    step(core, DeliveryAnswered((again.token,), ACKED, [1], ""), 6)
    step(core, ConnectionLost("a"))
    (last,) = sends(step(core, ConnectionOpened("a"), 7))
    assert last.ids == [7]


@pytest.mark.paper(section="6.1.1")
def test_a_copy_of_its_own_batch_is_not_told_as_known_before() -> None:
    core = opened()
    (send,) = sends(add(core, range(10)))
    step(core, DeliveryAnswered((send.token,), ACKED, [3, 7], "had taken effect before"), 0)
    assert (core.acked, core.known) == (8, 8)
    step(core, ConnectionLost("a"))
    (again,) = sends(step(core, ConnectionOpened("a"), 5))
    step(core, DeliveryAnswered((again.token,), ACKED, [], "had taken effect before"), 6)
    assert (core.acked, core.known) == (10, 8), "the first attempt may be what had the effect"


@pytest.mark.paper(section="6.1.1")
def test_a_mark_passes_a_stuck_record_and_lists_it() -> None:
    core = opened()
    (stuck,) = sends(add(core, range(10)))
    step(core, DeliveryAnswered((stuck.token,), ACKED, [4], ""), 0)
    (send,) = sends(add(core, range(10, 20)))
    assert (send.mark, send.unacked) == (10, [4])


@pytest.mark.paper(section="6.1.1")
def test_a_mark_stops_at_the_first_batch_that_is_not_acked() -> None:
    core = opened()
    first, second = sends(add(core, range(5, 25)))
    step(core, DeliveryAnswered((second.token,), ACKED), 0)
    (send,) = sends(add(core, range(30, 40)))
    assert (send.mark, send.unacked) == (5, [])
    step(core, DeliveryAnswered((first.token,), ACKED), 0)
    (send,) = sends(add(core, range(40, 50)))
    assert send.mark == 30


@pytest.mark.guarantee("G13", section="6.1.1")
def test_a_mark_passes_no_more_stuck_records_than_can_be_listed() -> None:
    """Each message names those that a mark passes, so their number is bounded."""
    core = opened(replace(LIMITS, batch_records=40, max_in_flight=9))
    for first in (0, 40, 80):
        (stuck,) = sends(add(core, range(first, first + 40)))
        step(core, DeliveryAnswered((stuck.token,), ACKED, range(30), ""), 0)
    (send,) = sends(add(core, range(120, 160)))
    assert len(send.unacked) <= 64
    assert 30 <= send.mark <= 120
    assert set(send.unacked) == {at for at in range(send.mark) if at % 40 < 30}


def test_records_refused_for_lack_of_room_are_retried_later() -> None:
    core = opened()
    (send,) = sends(add(core, range(10), now=1_000))
    assert step(core, DeliveryAnswered((send.token,), FULL, [2, 5], "full"), 1_000) == []
    step(core, DeliveryAnswered((send.token,), ACKED, [2, 5], ""), 1_010)
    assert core.unacked == 2
    assert core.next_deadline() is not None
    assert sends(step(core, Tick(), 1_050)) == []
    (again,) = sends(step(core, Tick(), 1_100))
    assert again.ids == [2, 5]


def test_a_refused_copy_of_a_record_in_flight_is_not_sent_again() -> None:
    core = opened()
    (first,) = sends(add(core, range(10)))
    (copy,) = sends(step(core, Tick(), LIMITS.resend_after))
    step(core, DeliveryAnswered((copy.token,), FULL, list(range(10)), "a copy is being processed"), 40_000)
    assert sends(step(core, Tick(), 50_000)) == []
    step(core, DeliveryAnswered((first.token,), ACKED), 50_000)
    assert core.unacked == 0


@pytest.mark.guarantee("G1")
def test_silence_loses_no_record_and_an_ack_of_any_copy_counts() -> None:
    for answered in range(9):
        core = opened(replace(LIMITS, max_in_flight=9))
        (first,) = sends(add(core, range(10)))
        tokens, times = [first.token], [0]
        for _ in range(8):
            due = core.next_deadline()
            assert due is not None
            assert sends(step(core, Tick(), due - 1)) == []
            (again,) = sends(step(core, Tick(), due))
            assert again.ids == list(range(10))
            tokens.append(again.token)
            times.append(due)
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert waits == [LIMITS.resend_after * factor // 2 for factor in (2, 3, 6, 12, 24, 24, 24, 24)]
        step(core, DeliveryAnswered((tokens[answered],), ACKED), 0)
        assert core.unacked == (10 if MAX_COPIES <= answered < 8 else 0), "only the last copies were replaced"


@pytest.mark.guarantee("G13")
def test_a_receiver_that_reads_nothing_gets_no_copies() -> None:
    core = opened()
    (first,) = sends(add(core, range(10)))
    for _ in range(9):
        due = core.next_deadline()
        assert due is not None
        step(core, WritesPending({"a": first.token}))
        assert sends(step(core, Tick(), due)) == []
    due = core.next_deadline()
    assert due is not None
    step(core, WritesPending({"a": first.token + 1}))
    (copy,) = sends(step(core, Tick(), due))
    assert copy.ids == first.ids
    step(core, DeliveryAnswered((first.token,), ACKED), due)
    assert core.unacked == 0
    assert step(core, Tick(), core.next_deadline() or due) == []
    assert core.next_deadline() is None


def test_refusals_bound_what_is_on_its_way_but_never_stop_it() -> None:
    core = opened()
    first = sends(add(core, range(40)))
    assert len(first) == 4
    for send in first:
        step(core, DeliveryAnswered((send.token,), FULL, (), "full"), 0)
    assert len(sends(step(core, Tick(), 200))) == 1, "one at a time after a refusal"
    now, more = 200, 0
    for _ in range(3):
        now += LIMITS.retry_last
        more += len(sends(step(core, Tick(), now)))
    assert more == 3, "silence alone does not stop the queue"


def test_acks_let_a_refused_queue_continue() -> None:
    core = opened()
    for send in sends(add(core, range(40))):
        step(core, DeliveryAnswered((send.token,), FULL, (), "full"), 0)
    (probe,) = sends(step(core, Tick(), 200))
    assert len(sends(step(core, DeliveryAnswered((probe.token,), ACKED), 210))) == 2


def test_invalid_records_are_named_and_hold_the_watermark() -> None:
    core = opened()
    (send,) = sends(add(core, [7], at=60))
    step(core, WatermarkDeclared(70))
    step(core, DeliveryAnswered((send.token,), INVALID, (), "too big"), 0)
    with pytest.raises(InvalidRecordsError, match=r"'c' cannot take.*'s': too big \(sent: key 'k' id 7\)"):
        core.check_open()
    assert core.published.watermark == 60


@pytest.mark.guarantee("G3", section="fig. 12")
def test_a_process_that_has_a_successor_stops_for_good() -> None:
    core = opened()
    first, _ = sends(add(core, range(20)))
    step(core, DeliveryAnswered((first.token,), SUPERSEDED), 0)
    with pytest.raises(InjectorSupersededError, match="has a successor"):
        add(core, [90])
    step(core, ConnectionLost("a"))
    assert step(core, ConnectionOpened("a"), 1) == []
    assert step(core, Tick(), 10**9) == []


def test_a_draining_stream_takes_no_more_and_delivers_the_rest() -> None:
    core = opened()
    add(core, [1])
    step(core, RoutingArrived(routing(draining=True, revision=2)), 0)
    with pytest.raises(StreamDrainingError):
        add(core, [2])
    step(core, ConnectionLost("a"))
    assert len(sends(step(core, ConnectionOpened("a"), 1))) == 1


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.parametrize(
    "after", [routing(one(name="log"), draining=True, revision=2), routing(one(name="d"), revision=2)]
)
def test_records_that_ended_readers_left_are_not_reported_as_in(after: StreamRouting) -> None:
    core = opened()
    (send,) = sends(add(core, [1, 2]))
    step(core, DeliveryAnswered((send.token,), ACKED, [1], ""), 0)
    assert step(core, RoutingArrived(after), 0) == []
    assert not core.flushed(core.accepted)
    assert core.acknowledged(SCOPE) == 2
    assert core.published.watermark <= 50
    with pytest.raises(RecordsLeftError, match="'c', which read stream 's', has ended"):
        core.check_open()


@pytest.mark.guarantee("G1", section="5.2")
def test_a_late_reader_took_nothing_that_an_ended_one_left() -> None:
    """Regression: an earlier routing had named the late reader.

    It counted as a receiver of what the ended one had not ACKed.
    """
    core = opened()
    add(core, [1])
    step(core, RoutingArrived(routing(one(), one(name="d"), revision=2)), 0)
    step(core, RoutingArrived(routing(one(name="d"), revision=3)), 0)
    assert not core.flushed(core.accepted)
    with pytest.raises(RecordsLeftError, match="'c', which read stream 's', has ended"):
        core.check_open()


@pytest.mark.paper(section="5.2")
def test_what_a_reader_left_is_in_where_another_was_sent_it_too() -> None:
    core = opened()
    (first,) = sends(add(core, [1]))
    step(core, DeliveryAnswered((first.token,), ACKED, [], ""), 0)
    step(core, RoutingArrived(routing(one(), one(name="d"), revision=2)), 0)
    tokens = {send.consumer: send.token for send in sends(add(core, [2]))}
    step(core, RoutingArrived(routing(one(name="d"), revision=3)), 0)
    step(core, DeliveryAnswered((tokens[IncarnationId("d")],), ACKED, [], ""), 0)
    core.check_open()
    assert core.flushed(core.accepted)


def test_a_drained_streams_end_is_no_failure_if_all_is_in() -> None:
    core = opened()
    (send,) = sends(add(core, [1]))
    step(core, DeliveryAnswered((send.token,), ACKED, [], ""), 0)
    step(core, RoutingArrived(StreamRouting(2, {}, draining=True)), 0)
    assert core.flushed(core.accepted)
    assert core.failed is None


@pytest.mark.paper(section="6.1.1")
def test_positions_must_rise_for_a_mark_passes_what_is_not_there() -> None:
    core = opened()
    add(core, [5])
    for positions in ([5], [6, 6], [4]):
        with pytest.raises(UsageError, match="must rise"):
            add(core, positions)
    with pytest.raises(UsageError, match=r"2\^64"):
        add(core, [1 << 64])
    assert (core.accepted, core.unacked) == (1, 1)


def test_an_infinite_timestamp_is_refused() -> None:
    core = opened()
    for timestamp in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        with pytest.raises(UsageError, match="infinity"):
            add(core, [1], at=timestamp)


def test_keys_for_every_consumer_are_asked_for() -> None:
    core = opened()
    with pytest.raises(UsageError, match="consumers c"):
        step(core, KeyedRecords([b""], [0], {}, SCOPE, [1]), 0)


@pytest.mark.guarantee("G7", section="4.5")
def test_the_watermark_is_the_declared_or_the_oldest_unacked() -> None:
    core = opened()
    step(core, WatermarkDeclared(100))
    assert core.published == (100, False)
    (first,) = sends(add(core, [1], at=150))
    step(core, WatermarkDeclared(300))
    assert core.published.watermark == 150
    add(core, [2], at=140)
    assert (core.published.watermark, core.late) == (150, 1)
    step(core, DeliveryAnswered((first.token,), ACKED), 0)
    assert core.published.watermark == 150, "a late record that is not ACKed keeps it where it is"
    step(core, WatermarkDeclared(10))
    step(core, ConnectionLost("a"))
    for send in sends(step(core, ConnectionOpened("a"), 1)):
        step(core, DeliveryAnswered((send.token,), ACKED), 0)
    assert core.published.watermark == 300


@pytest.mark.guarantee("G7", section="4.5")
def test_records_that_wait_to_be_sent_hold_the_watermark_too() -> None:
    core = opened()
    step(core, WatermarkDeclared(100))
    (first,) = sends(add(core, [1], at=150))
    add(core, [2], at=120)
    step(core, WatermarkDeclared(300))
    assert core.published.watermark == 120
    step(core, DeliveryAnswered((first.token,), ACKED), 0)
    assert core.published.watermark == 120


@pytest.mark.guarantee("G7", section="4.5")
def test_part_of_a_batch_holds_the_watermark_at_its_own_oldest() -> None:
    core = opened()
    columns = KeyedRecords([b"a", b"b", b"c"], [10, 30, 20], {IncarnationId("c"): [b"k"] * 3}, SCOPE, [1, 2, 3])
    (send,) = sends(step(core, columns, 0))
    step(core, WatermarkDeclared(100))
    for remaining, watermark in (([1, 2], 20), ([1], 30), ([], 100)):
        step(core, DeliveryAnswered((send.token,), ACKED, remaining, ""), 0)
        assert core.published.watermark == watermark


@pytest.mark.guarantee("G8", section="5.2")
def test_idle_needs_all_acked_and_waking_starts_at_the_minimum() -> None:
    core = opened()
    (send,) = sends(add(core, [1], at=10))
    step(core, IdleDeclared())
    assert core.published == (MIN_TIMESTAMP, False)
    step(core, DeliveryAnswered((send.token,), ACKED), 0)
    assert core.published == (MIN_TIMESTAMP, True)
    step(core, IdleEnded())
    step(core, WatermarkReached(500))
    assert core.published == (500, False)


@pytest.mark.guarantee("G7", section="5.2")
def test_the_end_is_plus_infinity_and_final_once_all_is_acked() -> None:
    core = opened()
    step(core, WatermarkDeclared(MAX_TIMESTAMP))
    assert core.published.watermark < MAX_TIMESTAMP, "only finish is final"
    (send,) = sends(add(core, [1], at=10))
    step(core, EndDeclared())
    assert core.publication.value < MAX_TIMESTAMP
    with pytest.raises(InjectorClosedError):
        add(core, [2])
    step(core, DeliveryAnswered((send.token,), ACKED), 0)
    assert core.published == (MAX_TIMESTAMP, False)
    assert core.publication.value == MAX_TIMESTAMP


@pytest.mark.guarantee("G7")
def test_a_restarted_process_starts_where_it_was() -> None:
    core = opened(watermark=400)
    assert core.published.watermark == 400
    (send,) = sends(add(core, [1], at=10))
    assert (core.published.watermark, core.late, send.watermark) == (400, 1, 400)


@pytest.mark.paper(section="8.4")
def test_the_throttle_waits_for_consumers_but_never_for_itself() -> None:
    log = ConsumerRouting(IncarnationId("log"), [Route(ALL_KEYS, "l1", "a")], log=True)
    core = opened(of=routing(one(), log, skew=100))
    step(core, WatermarkDeclared(1_000))
    assert core.throttled(1_000), "nothing is known of the consumer"
    step(core, WatermarksBroadcast({"c": 950}))
    assert not core.throttled(1_050)
    assert core.throttled(1_051)
    step(core, WatermarksBroadcast({"c": 1_000}))
    assert not core.throttled(99_000), "the consumer waits for this very process"
    step(core, WatermarkDeclared(1_001))
    assert core.throttled(99_000)


@pytest.mark.paper(section="8.4")
def test_without_a_stated_skew_nothing_is_throttled() -> None:
    core = opened()
    step(core, WatermarkDeclared(1_000))
    assert not core.throttled(1 << 60)


@pytest.mark.paper(section="5.2")
def test_a_source_learns_where_to_start_again() -> None:
    core = opened(of=routing(one(), one(Route(ALL_KEYS, "j2", "a"), name="d")))
    assert core.acknowledged(SCOPE) is None
    first = sends(add(core, range(3, 13)))
    assert core.acknowledged(SCOPE) == 3
    step(core, DeliveryAnswered((first[0].token,), ACKED), 0)
    assert core.acknowledged(SCOPE) == 3
    step(core, DeliveryAnswered((first[1].token,), ACKED, [4], ""), 0)
    assert (core.acknowledged(SCOPE), core.flushed(1)) == (7, False)
    step(core, DeliveryAnswered((first[1].token,), ACKED, [], ""), 0)
    assert (core.acknowledged(SCOPE), core.flushed(10), core.flushed(11)) == (13, True, True)


def test_flushed_looks_only_at_what_was_accepted_before() -> None:
    core = opened()
    (first,) = sends(add(core, range(10)))
    add(core, range(10, 20))
    assert not core.flushed(10)
    step(core, DeliveryAnswered((first.token,), ACKED), 0)
    assert core.flushed(10)
    assert not core.flushed(11)


def test_limits_must_be_positive() -> None:
    with pytest.raises(UsageError, match="window_records"):
        Limits(window_records=0)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_nothing_overtakes_a_record_that_waits_for_its_key() -> None:
    """A mark says that everything below it is ACKed. A later record at a lower position would be lost."""
    core = opened()
    values = [b"v0", b"v1", b"v2"]
    columns = KeyedRecords(
        values, [50] * 3, {IncarnationId("c"): [b"k"]}, SCOPE, [0, 1, 2], {IncarnationId("c"): "no key"}
    )
    (first,) = sends(step(core, columns, 0))
    assert first.ids == [0]
    assert sends(step(core, DeliveryAnswered((first.token,), ACKED), 1)) == []
    assert sends(add(core, [3], 2, at=60)) == []
    assert (core.unacked, core.acknowledged(SCOPE), core.published.watermark) == (3, 1, MIN_TIMESTAMP)
    (head,) = core.unkeyed.heads(10)
    assert [record.id for record in head.records] == [1, 2, 3]
    (rest,) = sends(step(core, KeysFound(head, [b"k", b"k"], "no key yet"), 3))
    assert (rest.ids, rest.mark) == ([1, 2], 1)
    assert unacked_by_consumer(core) == {"c": 3}
    assert step(core, KeysFound(head, [b"k"], ""), 4) == [], "these went on before"
    (head,) = core.unkeyed.heads(10)
    step(core, KeysFound(head, [b"k"], ""), 5)
    (last,) = sends(step(core, DeliveryAnswered((rest.token,), ACKED), 6))
    step(core, DeliveryAnswered((last.token,), ACKED), 7)
    assert core.flushed(core.accepted)
    assert core.unacked_bytes == 0
