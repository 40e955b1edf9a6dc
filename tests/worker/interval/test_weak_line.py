"""Queued weak commits: productions do not wait for the ACKs of earlier ones (6.1.3; G10)."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.model.limits import MAX_ENTRY_BYTES
from millwheel.model.time import Timestamp
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import (
    Acknowledged,
    AnswerDelivery,
    AppendEntry,
    Deposed,
    FlushStates,
    Report,
    Resend,
    SendDelivery,
    StatesFlushed,
    Tick,
)
from tests.worker.interval.driver import IntervalDriver


class Counting(mw.Computation[tuple[str, str], int]):
    """Produces each record, and counts. "timer" also sets a processing-time timer."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        if record.value[1] == "timer":
            ctx.set_timer(Timestamp(ctx.now + 10), "t", domain=mw.TimeDomain.PROCESSING_TIME)
        ctx.produce("out", record.value[1])

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("out", "fired")


class Changing(mw.Computation[tuple[str, str], int]):
    """Follows the order in the record."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        what = record.value[1]
        if what in ("set", "again"):
            ctx.set_timer(Timestamp(100 if what == "set" else 200), "t")
        elif what == "cancel":
            ctx.cancel_timer("t")
        elif what == "hold":
            ctx.set_hold(Timestamp(50))
        elif what == "let-go":
            ctx.clear_hold()
        ctx.produce("out", what)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        raise AssertionError("nothing is due")


class Swelling(mw.Computation[tuple[str, str], bytes]):
    """A key's state is as many MiB as a record states."""

    def __init__(self) -> None:
        self.runs = 0

    def process_record(self, ctx: mw.Context[bytes], record: mw.Record[tuple[str, str]]) -> None:
        self.runs += 1
        ctx.state = b"." * (int(record.value[1]) << 20)
        ctx.produce("out", record.value[1])


class Passing(mw.Computation[tuple[str, str], None]):
    """Produces each record, and keeps nothing."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        ctx.produce("out", record.value[1])


class Refusing(mw.Computation[tuple[str, str], None]):
    """Raises for "bad", and produces each other record."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "bad":
            raise ValueError("not this one")
        ctx.produce("out", record.value[1])


def weak(settings: IntervalSettings | None = None) -> IntervalDriver:
    return IntervalDriver(Counting(), strong=False, straggler_delay=1_000, settings=settings)


def lined_up(driver: IntervalDriver, *values: str) -> list[int]:
    """Deliver the values one by one. Returns the tokens of the productions that were sent at once."""
    tokens = []
    for number, value in enumerate(values):
        driver.deliver((f"k{number}", value, number + 1))
        (send,) = driver.take(SendDelivery)
        tokens.append(send.delivery.token)
    return tokens


@pytest.mark.guarantee("G10", section="6.1.3")
def test_appends_follow_the_commits_and_wait_for_their_own_acks() -> None:
    """Behind the first commit, the open commit takes new records, and waits for all their ACKs."""
    driver = weak()
    first, second, third = lined_up(driver, "a", "b", "c")
    driver.handle(Acknowledged(second))
    assert driver.take(AppendEntry) == [], "the first comes first"
    driver.handle(Acknowledged(first))
    (fourth,) = lined_up(driver, "d")
    driver.commit()
    assert len(driver.take(AnswerDelivery)) == 1
    (fifth,) = lined_up(driver, "e")
    driver.handle(Acknowledged(fourth))
    assert driver.take(AppendEntry) == [], "the third is not ACKed"
    driver.handle(Acknowledged(third))
    driver.commit()
    assert len(driver.take(AnswerDelivery)) == 3, "the second, the third and the fourth are one commit"
    assert driver.take(AppendEntry) == [], "the fifth is not ACKed"
    driver.handle(Acknowledged(fifth))
    driver.commit()
    assert len(driver.take(AnswerDelivery)) == 1
    successor = IntervalDriver(Counting(), strong=False, entries=driver.entries)
    assert successor.take(SendDelivery) == []
    assert successor.state.counts.records == 5
    assert successor.state.committed == 3


@pytest.mark.guarantee("G10", section="6.1.3")
def test_stragglers_are_stored_commit_by_commit_and_sent_again() -> None:
    driver = weak()
    _, second, _, _ = lined_up(driver, "a", "b", "c", "d")
    driver.handle(Acknowledged(second))
    driver.now += 1_000
    driver.handle(Tick())
    assert driver.commit_all() == 2
    assert IntervalDriver(Counting(), strong=False, entries=driver.entries).sent() == [("a", 1), ("c", 3), ("d", 4)]


@pytest.mark.guarantee("G12")
def test_a_later_batch_of_a_commit_replaces_its_changes_of_a_key() -> None:
    """A later batch of a commit changes a key of an earlier one in each possible way. The entry is replayed."""
    driver = IntervalDriver(Changing(), strong=False, straggler_delay=1_000)
    tokens = lined_up(driver, "ahead")
    steps = [("k", what) for what in ("set", "again", "cancel", "hold", "let-go", "set")]
    steps += [("ended", "set"), ("ended", "cancel"), ("moved", "set"), ("moved", "again"), ("held", "hold")]
    for key, what in steps:
        driver.deliver((key, what, 10))
        tokens.append(driver.take(SendDelivery)[0].delivery.token)
    for token in tokens:
        driver.handle(Acknowledged(token))
    assert driver.commit_all() == 2
    successor = IntervalDriver(Changing(), strong=False, entries=driver.entries)
    for domain in mw.TimeDomain:
        assert sorted(successor.state.timers.tables[domain].items()) == sorted(
            driver.state.timers.tables[domain].items()
        )
    assert successor.state.holds.of_keys == driver.state.holds.of_keys
    assert {key: setting.at for key, _, setting in driver.state.timers.tables[mw.TimeDomain.EVENT_TIME].items()} == {
        b"k": 100,
        b"moved": 200,
    }
    assert {key: cell.encoded for key, cell in successor.state.cells.items()} == {
        key: cell.encoded for key, cell in driver.state.cells.items()
    }


def test_what_does_not_fit_the_open_commit_waits_for_the_queue() -> None:
    driver = IntervalDriver(Swelling(), strong=False, straggler_delay=1_000)
    tokens = lined_up(driver, "1", "3", "3")
    driver.deliver(("other", "3", 9))
    assert driver.take(SendDelivery) == []
    for token in tokens:
        driver.handle(Acknowledged(token))
    assert driver.commit_all() == 2
    assert max(map(len, driver.entries)) <= MAX_ENTRY_BYTES
    assert len(driver.take(SendDelivery)) == 1


@pytest.mark.guarantee("G8")
def test_what_does_not_fit_the_open_commit_runs_once() -> None:
    """Regression: work too large for one entry and for the open commit ran thousands of times while it waited."""
    swelling = Swelling()
    driver = IntervalDriver(swelling, strong=False, straggler_delay=1_000)
    tokens = lined_up(driver, "1", "3")
    driver.deliver(*((key, "3", 9) for key in ("p", "q", "r")))
    assert driver.take(SendDelivery) == []
    assert swelling.runs == 5
    while tokens:
        for token in tokens:
            driver.handle(Acknowledged(token))
        driver.commit_all()
        tokens = [send.delivery.token for send in driver.take(SendDelivery)]
    assert len(driver.take(AnswerDelivery)) == 3
    assert swelling.runs == 5
    assert max(map(len, driver.entries)) <= MAX_ENTRY_BYTES
    assert {key: len(cell.encoded) >> 20 for key, cell in driver.state.cells.items() if key < b"x"} == {
        b"k0": 1, b"k1": 3, b"p": 3, b"q": 3, b"r": 3,
    }  # fmt: skip


@pytest.mark.guarantee("G10", section="6.1.3")
def test_a_timer_fires_when_what_set_it_is_in_the_journal() -> None:
    """The ids of a timer's productions come from the commit that set it.

    A timer that is set again elsewhere has other ids.
    """
    driver = weak()
    (token,) = lined_up(driver, "timer")
    driver.now += 10
    driver.handle(Tick())
    assert driver.take(AppendEntry) == []
    driver.handle(Acknowledged(token))
    driver.commit()
    driver.commit()
    assert driver.sent() == [("fired", 1)]


@pytest.mark.guarantee("G10", section="6.1.3")
def test_a_deposed_owner_sends_nothing_its_timers_make() -> None:
    """Regression: the production was sent first.

    The owner was paused, and its successor counted further. Then the paused owner got the watermark that its successor
    had released, and sent its own count under the same id. Receivers that did not know the successor accepted the first
    one to arrive.
    """

    class Closing(Counting):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
            ctx.state += 1
            ctx.set_timer(Timestamp(100), "end")

        def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
            ctx.produce("out", f"{ctx.state} in all")

    paused = IntervalDriver(Closing(), strong=False)
    paused.deliver(("k", "one", 10))
    paused.commit_all()
    successor = IntervalDriver(Closing(), strong=False, entries=list(paused.entries))
    successor.position = paused.position
    successor.deliver(("k", "two", 20))
    successor.commit_all()
    paused.watermark(100)
    assert paused.take(SendDelivery) == []
    paused.handle(Deposed("another owner has the journal"))
    assert paused.take(SendDelivery) == []
    successor.watermark(100)
    successor.commit()
    assert successor.sent() == [("2 in all", 100)]


def fired() -> IntervalDriver:
    """A timer has fired, and its commit is in flight."""
    driver = weak()
    (token,) = lined_up(driver, "timer")
    driver.handle(Acknowledged(token))
    driver.commit()
    driver.now += 10
    driver.handle(Tick())
    return driver


@pytest.mark.guarantee("G10", section="6.1.3")
def test_what_a_timer_produced_survives_its_owner() -> None:
    driver = fired()
    driver.commit()
    (sent,) = driver.take(SendDelivery)
    (again,) = IntervalDriver(Counting(), strong=False, entries=list(driver.entries)).take(SendDelivery)
    assert (again.delivery.ids, again.delivery.values) == (sent.delivery.ids, sent.delivery.values)
    driver.handle(Acknowledged(sent.delivery.token))
    driver.commit()
    assert IntervalDriver(Counting(), strong=False, entries=list(driver.entries)).take(SendDelivery) == []


@pytest.mark.guarantee("G15", section="4.1")
def test_productions_after_a_timer_are_sent_after_the_timers_own() -> None:
    driver = fired()
    driver.deliver(("k0", "behind", 9))
    assert driver.take(SendDelivery) == []
    driver.commit()
    assert driver.sent() == [("fired", 1), ("behind", 9)]


@pytest.mark.guarantee("G12")
def test_rows_are_captured_when_nothing_is_queued_or_in_flight() -> None:
    driver = weak(IntervalSettings(flush_interval=100))
    first, second = lined_up(driver, "a", "b")
    driver.now += 100
    driver.deliver(("k", "c", 9))
    assert driver.take(SendDelivery) == [], "rows are due: what is in line goes first"
    driver.handle(Acknowledged(first))
    driver.commit()
    assert driver.take(FlushStates) == []
    driver.handle(Acknowledged(second))
    driver.commit()
    (flush,) = driver.take(FlushStates)
    assert {(row.key, row.commit) for row in flush.rows} == {(b"k0", 1), (b"k1", 2)}
    assert driver.sent() == [("c", 9)]
    driver.handle(StatesFlushed(flush.number))


@pytest.mark.guarantee("G13")
def test_at_most_one_batch_of_records_is_in_the_queue() -> None:
    driver = weak(IntervalSettings(batch_records=3))
    lined_up(driver, "a", "b", "c")
    driver.deliver(("k", "d", 9))
    assert driver.take(SendDelivery) == []


@pytest.mark.paper(section="6.1.3")
def test_what_keeps_nothing_is_never_appended() -> None:
    driver = IntervalDriver(Passing(), strong=False, exactly_once=False)
    for _ in range(3):
        driver.deliver(("k", "x", 1))
        (send,) = driver.take(SendDelivery)
        driver.deliver(("k", "x", 2))
        assert driver.take(SendDelivery) == []
        driver.handle(Acknowledged(send.delivery.token))
        (send,) = driver.take(SendDelivery)
        driver.handle(Acknowledged(send.delivery.token))
    assert driver.take(AppendEntry) == []
    assert len(driver.take(AnswerDelivery)) == 6


@pytest.mark.guarantee("G10", section="6.1.3")
def test_all_that_is_queued_is_sent_again_with_the_same_ids() -> None:
    driver = weak()
    for value in ("a", "b"):
        driver.deliver(("k", value, 1))
    first = {send.delivery.token: send.delivery for send in driver.take(SendDelivery)}
    driver.handle(Resend(None))
    (head,) = driver.take(SendDelivery)
    driver.handle(Acknowledged(head.delivery.token, [0]))
    again = {send.delivery.token: send.delivery for send in [head, *driver.take(SendDelivery)]}
    assert [one.ids for one in again.values()] == [one.ids for one in first.values()]
    for token in again:
        driver.handle(Acknowledged(token))
    assert driver.commit_all() == 2
    assert len(driver.take(AnswerDelivery)) == 2
    assert driver.state.journal.sealed == driver.state.committed == 2


class Stateless(mw.Computation[tuple[str, str], None]):
    """Sets a hold, or a timer, and produces nothing."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "hold":
            ctx.set_hold(Timestamp(50))
        else:
            ctx.set_timer(Timestamp(100), "t")

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        assert timer.tag == "t"


@pytest.mark.guarantee("G7", section="4.5")
def test_a_hold_that_is_all_of_a_weak_commit_survives_its_owner() -> None:
    driver = IntervalDriver(Stateless(), strong=False, exactly_once=False)
    driver.deliver(("k", "hold", 60))
    driver.commit_all()
    successor = IntervalDriver(Stateless(), strong=False, exactly_once=False, entries=driver.entries)
    successor.watermark(90)
    assert successor.output == 50


@pytest.mark.guarantee("G6", section="4.6")
def test_a_firing_that_is_all_of_a_weak_commit_is_not_repeated() -> None:
    driver = IntervalDriver(Stateless(), strong=False, exactly_once=False)
    driver.deliver(("k", "timer", 60))
    driver.commit_all()
    driver.watermark(200)
    driver.commit_all()
    successor = IntervalDriver(Stateless(), strong=False, exactly_once=False, entries=driver.entries)
    assert successor.state.timers.count == 0


@pytest.mark.guarantee("G7", section="7.2")
def test_an_owner_reports_no_less_than_was_broadcast_before_it() -> None:
    driver = IntervalDriver(Stateless(), accepted=70)
    driver.watermark(40)
    assert driver.output == 70
    assert {report.output for report in driver.take(Report)} == {70}


@pytest.mark.guarantee("G8", section="6.1.3")
def test_the_watermark_moves_after_a_commit_that_stores_nothing() -> None:
    """The last production is ACKed, no append follows, and no other event may come.

    Regression: the watermark moved before that.
    """
    driver = IntervalDriver(Passing(), strong=False, exactly_once=False)
    driver.watermark(40)
    driver.deliver(("k", "late", 30))
    (send,) = driver.take(SendDelivery)
    driver.watermark(200)
    driver.handle(Acknowledged(send.delivery.token))
    assert driver.output == 200


@pytest.mark.guarantee("G10", section="6.1.3")
def test_a_weak_letter_is_stored_before_it_is_sent() -> None:
    """A letter that were sent first would say that a record had no effect, whose next attempt may succeed."""
    driver = IntervalDriver(Refusing(), strong=False, straggler_delay=1_000, on_failure=mw.dead_letter(after=1))
    (first,) = lined_up(driver, "a")
    driver.deliver(("k", "bad", 5))
    assert driver.take(SendDelivery) == []
    driver.handle(Acknowledged(first))
    driver.commit()
    assert driver.take(SendDelivery) == [], "its append is in flight"
    driver.commit()
    assert len(driver.take(SendDelivery)) == 1
    assert driver.state.counts.dead_letters == 1


class AtTimesDown(mw.Computation[tuple[str, str], int]):
    """Counts and produces, unless the record says "down"."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "down":
            raise ValueError("the database is down")
        ctx.state += 1
        ctx.produce("out", record.value[1])


@pytest.mark.guarantee("G8", section="6.1.3")
def test_a_batch_that_found_no_room_and_was_undone_is_no_commit() -> None:
    """Its states were encoded. The commit that comes after it, for an ACK, has none of them."""
    driver = IntervalDriver(AtTimesDown(), strong=False, straggler_delay=1_000)
    driver.deliver(("z", "stored", 1))
    driver.now += 1_000
    driver.handle(Tick())
    driver.commit_all()
    (straggler,) = driver.take(SendDelivery)
    driver.deliver(("first", "waits for its ACK", 2))
    count = MAX_ENTRY_BYTES // 2_000_000 + 1  # a record counts twice: as an input, and as a production
    for number in range(count):  # they fill an open commit, and the last one has no room
        driver.deliver((f"key-{number}", "." * 1_000_000, 3))
    driver.deliver((f"key-{count - 1}", "down", 4))
    for send in driver.take(SendDelivery):
        driver.handle(Acknowledged(send.delivery.token))
    driver.commit_all()
    driver.handle(Acknowledged(straggler.delivery.token))
    driver.commit_all()
    assert driver.state.journal.committed > 0
