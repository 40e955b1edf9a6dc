"""Regressions: bounds of memory and of the journal (G13)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_ENTRY_BYTES, MAX_VALUE_BYTES
from millwheel.model.time import Duration, Timestamp
from millwheel.sdk.effects import TimerSetting
from millwheel.sdk.scope import OutputBinding
from millwheel.testing import TopologyHarness
from millwheel.worker.admission import column_problem
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.commits.parts import PART_BYTES
from millwheel.worker.interval.holds import Holds
from millwheel.worker.interval.hooks.runner import MAX_FAILED_HOOKS
from millwheel.worker.interval.intake import IntervalIntake
from millwheel.worker.interval.timers import TimerTable
from millwheel.worker.messages import (
    Acknowledged,
    Delivery,
    FlushStates,
    HookFailed,
    ReadStates,
    SendDelivery,
    StatesFlushed,
    StatesRead,
    Tick,
)
from tests.kept import kept
from tests.worker.interval.driver import IntervalDriver


class Grows(mw.Computation[tuple[str, str], str]):
    """Keeps a state of the size that a record states, and produces as many values of 100 kB as it states."""

    def process_record(self, ctx: mw.Context[str], record: mw.Record[tuple[str, str]]) -> None:
        size, _, count = record.value[1].partition(" ")
        ctx.state = "x" * int(size)
        for _ in range(int(count or 0)):
            ctx.produce("out", "y" * 100_000)
        ctx.set_timer(Timestamp(1_000), "end")

    def process_timer(self, ctx: mw.Context[str], timer: mw.Timer) -> None:
        ctx.produce("out", "fired")


class Stubborn(mw.Computation[tuple[str, str], None]):
    """Fails for one key, and counts its runs for the others."""

    runs: ClassVar[list[str]] = []

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[0] == "fails":
            raise ValueError("again and again")
        self.runs.append(record.value[0])


@pytest.mark.guarantee("G13", section="4.1")
def test_the_harness_resends_an_injected_batchs_refused_part() -> None:
    """Regression: the harness sent the whole batch again.

    Without exactly-once, an accepted record then ran every ten milliseconds.
    """
    topology = mw.Topology("stubborn")
    topology.source("in", tuple[str, str])
    topology.add(Stubborn, name="stubborn", inputs={"in": mw.key(lambda value: value[0])}, exactly_once=False)
    Stubborn.runs.clear()
    harness = TopologyHarness(topology, settings=IntervalSettings(queue_records=10))
    harness.advance(Timestamp(100))
    with pytest.raises(ValueError, match="again and again"):
        harness.send_all("in", [(("fails", ""), Timestamp(1_000))] * 10)
    harness.send_all("in", [(("late", ""), Timestamp(50)), (("ahead", ""), Timestamp(2_000))])
    with pytest.raises(ValueError, match="again and again"):
        harness.advance_clock(Duration(1_000_000))
    assert Stubborn.runs == ["late"], "what is ahead waits for room"


@pytest.mark.guarantee("G13", section="4.1")
def test_a_batchs_refused_part_is_not_kept_with_the_accepted_one() -> None:
    values = [b"taken", b"refused"]
    sender = Sender("injector/in/p", 1, None, "injector/in")
    delivery = Delivery(
        IncarnationId("c"), "j", "in", sender, PositionIds("s", 0, [1, 2]), [b"k", b"k"], values, [1, 2]
    )
    intake = IntervalIntake()
    receipt = intake.admit(delivery, None, [0])
    assert (receipt.delivery.values, intake.bytes) == ([b"taken", b""], 5)
    assert values == [b"taken", b"refused"], "the list may be the sender's, too"


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("work", ["1000000", "0 30", "500000 5"])
def test_no_entry_is_larger_than_the_store_takes(work: str) -> None:
    """The size of a batch was checked only between deliveries. So 40 keys of 1 MB each made an entry of 40 MB."""
    driver = IntervalDriver(Grows())
    driver.deliver(*[(f"k{number}", work, 1) for number in range(40)])
    assert driver.commit_all() > 0
    assert max(map(len, driver.entries)) <= MAX_ENTRY_BYTES
    assert max(map(len, driver.parts.values()), default=0) <= PART_BYTES
    assert driver.state.counts.records == 40
    assert driver.state.intake.records == 0


class Repeats(mw.Computation[tuple[str, str], None]):
    """Produces as many empty values, or sets as many timers with the longest tags, as a record states."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        what, _, count = record.value[1].partition(" ")
        for number in range(int(count)):
            if what == "produce":
                ctx.produce("out", "")
            else:
                ctx.set_timer(Timestamp(1_000), f"{number:0256d}")

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        pass


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("work", ["produce 900", "set 900"])
def test_no_entry_exceeds_the_store_limit_with_long_keys(work: str) -> None:
    """The entry has a key beside each of its productions and timers, also beside timers that have fired."""
    driver = IntervalDriver(Repeats())
    keys = [f"{number:04096d}" for number in range(5)]
    driver.deliver(*((key, work, 1) for key in keys))
    driver.commit_all()
    driver.watermark(2_000)
    assert driver.commit_all() > 0 or work == "produce 900"
    assert max(map(len, driver.entries)) <= MAX_ENTRY_BYTES
    assert driver.state.counts.records == len(keys)
    assert driver.state.timers.count == 0


@pytest.mark.guarantee("G13")
def test_names_count_in_what_a_commit_may_come_to() -> None:
    """The entry has the stream and all consumers of each production. Small productions are mostly names."""
    driver = IntervalDriver(Repeats(), settings=IntervalSettings(batch_bytes=30_000))
    targets = tuple((IncarnationId(f"{name * 63}.12345"), b"") for name in "abc")
    outputs: Any = driver.state.scope.outputs
    outputs["out"] = OutputBinding("out", outputs["out"].encode, lambda value: targets)
    driver.deliver(*((key, "produce 20", 1) for key in "abcdefghijklmnopqrst"))
    assert driver.commit_all() > 1
    assert max(map(len, driver.entries)) <= 30_000 + 20 * 300


class Refusing(mw.Computation[tuple[str, str], None]):
    """Raises for each record."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        raise ValueError("no")


@pytest.mark.guarantee("G13", section="4.1")
def test_dead_letters_due_together_are_spread_over_commits() -> None:
    """Regression: dead letters were not counted. A failure of many keys at once made an entry that no store accepts."""
    driver = IntervalDriver(Refusing(), on_failure=mw.dead_letter(after=2))
    driver.deliver(*((f"k{number}", "x" * 500_000, 1) for number in range(24)))
    driver.commit_all()
    driver.now += 2_000_000
    driver.handle(Tick())
    assert driver.commit_all() > 1
    assert max(map(len, driver.entries)) <= MAX_ENTRY_BYTES
    assert driver.state.counts.dead_letters == 24


class Keeps(mw.Computation[tuple[str, str], str]):
    """Keeps much, or takes nothing."""

    def process_record(self, ctx: mw.Context[str], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1].startswith("no"):
            raise ValueError("no")
        ctx.state = "x" * 4_000_000


def test_a_dead_letter_in_a_divided_commit_is_counted_once() -> None:
    driver = IntervalDriver(Keeps(), on_failure=mw.dead_letter(after=1))
    driver.deliver(("j", "", 1), ("k", "", 1), ("l", "no" * 250_000, 1))
    driver.commit_all()
    assert driver.parts
    assert driver.state.counts.dead_letters == len(driver.sent()) == 1


def test_a_state_over_its_limit_fails_its_hook_with_a_remedy() -> None:
    driver = IntervalDriver(Grows(), on_failure=mw.dead_letter(after=1))
    driver.deliver(("k", "5000000", 1), ("j", "1 1", 1))
    driver.commit_all()
    assert driver.state.counts.dead_letters == 1
    (message, *_) = [one.message for one in driver.waiting if isinstance(one, HookFailed)]
    assert "the state of key 'k' has 5,000,00" in message
    assert "topology.add(" in message


@pytest.mark.guarantee("G13", section="4.6")
def test_timers_that_end_together_are_spread_over_commits() -> None:
    """Whole buckets fired at once. So the end of a window that a million keys share was one commit."""
    driver = IntervalDriver(Grows(), settings=IntervalSettings(batch_records=10))
    driver.deliver(*[(f"k{number}", "1", 1) for number in range(95)])
    driver.commit_all()
    driver.sent()
    driver.watermark(2_000)
    commits = driver.commit_all()
    assert commits >= 10
    assert len(driver.sent()) == 95
    assert len(driver.state.timers.tables[mw.TimeDomain.EVENT_TIME]) == 0


@pytest.mark.guarantee("G13")
def test_a_timer_that_moves_with_each_record_leaves_no_trail() -> None:
    """Each move left a slot in a bucket until the watermark came by: for sessions a slot a record."""
    table = TimerTable(Holds(), domain=mw.TimeDomain.EVENT_TIME)
    for at in range(10_000):
        table.set(b"k", "session", TimerSetting(1_000_000 + at, None, at), None)
    table.cancel(b"j", "none", None)
    assert len(kept(table, object)) < 1_000
    assert [due[0] for due in table.pop_due(2_000_000, 10)] == [1_009_999]


@pytest.mark.guarantee("G13", section="4.6")
@pytest.mark.parametrize("handed_out", [True, False])
def test_a_timer_that_has_fired_leaves_no_slot(handed_out: bool) -> None:
    """Also that of a blocked key, whose timer fires out of its bucket."""
    holds = Holds()
    table = TimerTable(holds, domain=mw.TimeDomain.EVENT_TIME)
    for key in (b"a", b"b"):
        table.set(key, "end", TimerSetting(10, None, 1), None)
    if handed_out:
        table.pop_due(10, 1)
    ending = holds.open()
    table.fired(b"a", "end", 10, ending)
    assert list(table.times()) == [(10, 1)]
    assert (len(table), ending.at) == (1, 10), "the commit holds the watermark where the timer did"
    assert [key for _, key, _ in table.pop_due(10, 9)] == [b"b"]


@pytest.mark.guarantee("G13", section="4.6")
def test_timers_that_fire_ahead_leave_no_trail() -> None:
    """They fire one by one before their times are due, as after a merge: their buckets are empty then."""
    holds = Holds()
    table = TimerTable(holds, domain=mw.TimeDomain.EVENT_TIME)
    ending = holds.open()
    for at in range(1_000_000, 1_010_000):
        table.set(b"a", "end", TimerSetting(at, None, 1), None)
        table.hand_out(b"a", "end", at)
        table.fired(b"a", "end", at, ending)
    assert len(kept(table, object)) < 1_000


@pytest.mark.guarantee("G13", section="8.3")
def test_the_cache_keeps_its_limit_also_under_small_batches() -> None:
    """The interval evicted states only when a batch was large."""
    driver = IntervalDriver(Grows(), settings=IntervalSettings(cache_bytes=20_000, flush_interval=1_000_000))
    for number in range(300):
        driver.now += 10
        driver.deliver((f"k{number}", "10", 1))
        driver.commit_all()
        for flush in driver.take(FlushStates):
            driver.handle(StatesFlushed(flush.number))
        for send in driver.take(SendDelivery):
            driver.handle(Acknowledged(send.delivery.token))
    assert driver.state.cells.bytes_held <= 2 * 20_000
    assert len(driver.state.cells) < 100


@pytest.mark.guarantee("G13")
def test_while_rows_cannot_be_flushed_only_holding_work_runs() -> None:
    driver = IntervalDriver(Grows(), settings=IntervalSettings(cache_bytes=5_000))
    for number in range(100):
        driver.deliver((f"k{number}", "10", 100 + number))
        driver.commit_all()
    assert driver.state.counts.records < 40
    assert driver.state.cells.bytes_held < 15_000
    for _ in range(100):
        for flush in driver.take(FlushStates):
            driver.handle(StatesFlushed(flush.number))
        for read in driver.take(ReadStates):
            driver.handle(StatesRead(read.keys, [None] * len(read.keys)))
        driver.handle(Tick())
        driver.commit_all()
    assert driver.state.counts.records == 100


def test_no_flush_is_requested_while_a_commit_is_in_flight() -> None:
    """The alarm rang repeatedly until the append ended. A straggler kept the loop busy for a second."""
    driver = IntervalDriver(Grows(), settings=IntervalSettings(flush_interval=10))
    driver.deliver(("k", "10", 1))
    driver.commit()
    driver.deliver(("k", "11", 1))
    driver.now += 1_000
    driver.handle(Tick())
    alarm = driver.core.next_deadline()
    assert alarm is None or alarm > driver.now


@pytest.mark.guarantee("G13")
def test_senders_are_notified_of_records_that_wait_by_halves() -> None:
    """Each commit named every waiting record, which was quadratic for a delivery whose keys all wait."""
    intake = IntervalIntake()
    count = 1_000
    delivery: Any = Delivery("c", "j", "s", None, None, [b"k"] * count, [b""] * count, list(range(count)))  # type: ignore[arg-type]
    receipt = intake.admit(delivery, None, range(count))
    for index in range(count):
        intake.set_aside(receipt, index)
    answered = []
    for index in range(count):
        receipt.blocked.discard(index)
        intake.settle(receipt, [index])
        answered += [one.open for one in intake.to_report()]
    assert sum(answered) < 3 * count
    assert answered[-1] == 1
    assert (intake.records, len(intake.pending)) == (0, 0)


class Broken(mw.Computation[tuple[str, str], None]):
    """Each hook fails while ``broken``. Counts the calls."""

    broken = True
    calls = 0

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        self.calls += 1
        if self.broken:
            raise ValueError("broken")


@pytest.mark.guarantee("G13", section="4.1")
def test_hooks_that_all_fail_leave_nothing_behind() -> None:
    """Each attempt added an empty list to a batch that never became a commit, and looked through all lists."""
    driver = IntervalDriver(Broken(), on_failure=mw.retry(initial=Duration(1), maximum=Duration(1)))
    driver.deliver(("a", "", 1))
    driver.deliver(("b", "", 1))
    counts = []
    for _ in range(2):
        for _ in range(50):
            driver.now += 1
            driver.handle(Tick())
            driver.waiting.clear()
        counts.append(len(kept(driver.state.blocked, list)) + len(kept(driver.core, list)))
    assert counts[1] <= counts[0]
    assert driver.core.failing.total > 200


@pytest.mark.guarantee("G8", section="4.1")
def test_many_failing_keys_are_tried_in_several_steps() -> None:
    """One step tried them all. The worker answered nothing meanwhile, and its lease could end."""
    broken, count, second = Broken(), 3 * MAX_FAILED_HOOKS + 1, Duration(1_000_000)
    driver = IntervalDriver(broken, on_failure=mw.retry(initial=second))
    for begin in range(0, count, 100):
        driver.deliver(*((f"k{key}", "", 1) for key in range(begin, min(begin + 100, count))))
    assert broken.calls == count
    driver.now += second
    for most in range(2, 6):
        driver.handle(Tick())
        assert broken.calls == min(count + (most - 1) * MAX_FAILED_HOOKS, 2 * count)
        deadline = driver.core.next_deadline()
        assert deadline is not None
        assert (deadline <= driver.now + 1) == (most < 5), "the rest waits for no other event"
    broken.broken = False
    driver.pass_time(3 * second)
    driver.commit_all()
    assert driver.state.counts.records == count


@pytest.mark.guarantee("G8", section="4.1")
def test_a_queue_of_failing_records_takes_several_steps() -> None:
    """They were all tried in the step in which room came, also if they were many deliveries."""
    broken, count = Broken(), 2 * MAX_FAILED_HOOKS
    driver = IntervalDriver(broken, settings=IntervalSettings(batch_records=1))
    broken.broken = False
    for key in range(count + 2):
        driver.deliver((f"k{key}", "", 1))
    broken.broken, calls = True, broken.calls
    driver.commit()
    assert broken.calls - calls == MAX_FAILED_HOOKS
    driver.pass_time(1)
    assert broken.calls - calls == count


def test_the_dead_letter_of_the_largest_record_can_be_delivered() -> None:
    """Regression: with its error text, the dead letter exceeded the limit of a record.

    It was refused for ever, and held the watermark.
    """

    class Bad(mw.Computation[tuple[str, str], None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
            raise ValueError("ü" * 100_000)

    driver = IntervalDriver(Bad(), on_failure=mw.dead_letter(after=1))
    driver.deliver(("k", "x" * (MAX_VALUE_BYTES - 20), 1))
    driver.commit_all()
    (send,) = driver.take(SendDelivery)
    assert send.delivery.stream == "dead-letters"
    assert len(send.delivery.values[0]) > MAX_VALUE_BYTES
    assert column_problem(send.delivery) is None
