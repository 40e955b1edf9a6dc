"""The holds of an interval against a naive multiset of timestamps (4.5, 5.2, 7.2; G7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millwheel.model.time import LAST_TIMESTAMP, MAX_TIMESTAMP, MIN_TIMESTAMP, TimeDomain
from millwheel.model.watermarks import MinTracker
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.sdk.effects import TimerSetting
from millwheel.worker.interval.clocks import OutputWatermark
from millwheel.worker.interval.holds import Hold, Holds
from millwheel.worker.interval.invariants import check_holds
from millwheel.worker.interval.timers import TimerTable

TIMES = st.one_of(st.integers(0, 6), st.sampled_from([LAST_TIMESTAMP, MAX_TIMESTAMP]))
NUMBERS = st.integers(0, 5)
DOMAINS = st.sampled_from(TimeDomain)


@dataclass
class Passing:
    """A hold, and all timestamps that it must cover."""

    hold: Hold
    times: list[int] = field(default_factory=list)


class HoldsModel(RuleBasedStateMachine):
    """Owners state holds, end them, cover, merge and release. Each step is applied to plain lists, too."""

    def __init__(self) -> None:
        super().__init__()
        self.records, self.productions = MinTracker(), MinTracker()
        self.holds = Holds()
        self.output = OutputWatermark(self.records, self.productions, self.holds)
        self.keys: dict[bytes, int] = {}
        self.tables = {domain: TimerTable(self.holds, domain) for domain in TimeDomain}
        self.timers: dict[tuple[TimeDomain, str], TimerSetting] = {}
        self.passing: list[Passing] = []

    def _open(self, number: int) -> Passing:
        if not self.passing:
            self.passing.append(Passing(self.holds.open()))
        return self.passing[number % len(self.passing)]

    @rule()
    def open(self) -> None:
        self.passing.append(Passing(self.holds.open()))

    @rule(at=TIMES)
    def open_at(self, at: int) -> None:
        self.passing.append(Passing(self.holds.open(at), [at]))

    @rule(number=NUMBERS, at=TIMES)
    def cover(self, number: int, at: int) -> None:
        one = self._open(number)
        one.hold.cover(at)
        one.times.append(at)

    @rule(number=NUMBERS)
    def release(self, number: int) -> None:
        one = self._open(number)
        self.passing.remove(one)
        one.hold.release()
        _refuses(one.hold)

    @rule(number=NUMBERS)
    def take(self, number: int) -> None:
        other = self._open(number)
        self.passing.remove(other)
        one = self._open(number)
        one.hold.take(other.hold)
        one.times += other.times
        _refuses(other.hold)

    @rule(key=st.sampled_from([b"a", b"b"]), at=st.none() | TIMES, number=NUMBERS, journaled=st.booleans())
    def set_of_key(self, key: bytes, at: int | None, number: int, journaled: bool) -> None:
        ending = self._open(number)
        self.holds.set_of_key(key, at, None if journaled else ending.hold)
        previous = self.keys.pop(key, None)
        if previous is not None and not journaled:
            ending.times.append(previous)
        if at is not None:
            self.keys[key] = at

    @rule(domain=DOMAINS, tag=st.sampled_from("tu"), at=TIMES, hold=st.none() | TIMES, number=NUMBERS)
    def set_timer(self, domain: TimeDomain, tag: str, at: int, hold: int | None, number: int) -> None:
        ending, setting = self._open(number), TimerSetting(at, hold, 3, 0)
        self.tables[domain].set(b"k", tag, setting, ending.hold)
        self._ended(domain, tag, ending)
        self.timers[domain, tag] = setting

    @rule(domain=DOMAINS, tag=st.sampled_from("tu"), number=NUMBERS)
    def cancel_timer(self, domain: TimeDomain, tag: str, number: int) -> None:
        ending = self._open(number)
        assert self.tables[domain].cancel(b"k", tag, ending.hold) == self.timers.get((domain, tag))
        self._ended(domain, tag, ending)

    @rule(domain=DOMAINS, tag=st.sampled_from("tu"))
    def spill_timer_and_load_it(self, domain: TimeDomain, tag: str) -> None:
        setting = self.timers.get((domain, tag))
        if setting is not None:
            assert self.tables[domain].spill(b"k", tag) == _stated(setting, domain)
            self.tables[domain].load([(b"k", tag, setting)])

    def _ended(self, domain: TimeDomain, tag: str, ending: Passing) -> None:
        previous = self.timers.pop((domain, tag), None)
        if previous is not None:
            hold = _stated(previous, domain)
            ending.times.append(previous.at if hold is None else hold)

    @rule(at=TIMES)
    def raise_output(self, at: int) -> None:
        before = self.output.value
        assert self.output.rise(at) == self.output.value == max(before, at)

    def _model(self) -> list[int]:
        timers = [_stated(setting, domain) for (domain, _), setting in self.timers.items()]
        return [*self.keys.values(), *(hold for hold in timers if hold is not None)]

    @invariant()
    def equals_the_model(self) -> None:
        stated = self._model()
        passing = [min(at, LAST_TIMESTAMP) for one in self.passing for at in one.times]
        assert self.holds.of_keys == self.keys
        assert self.holds.min_stated() == min(stated, default=MAX_TIMESTAMP)
        assert self.holds.min() == min([*stated, *passing], default=MAX_TIMESTAMP)
        assert sum(count for _, count in self.holds.items()) == len(stated) + len(passing)
        assert len(self.holds) == len(stated) + sum(bool(one.times) for one in self.passing)
        check_holds(self.holds, stated, [one.hold for one in self.passing])

    @invariant()
    def is_what_the_output_watermark_stands_at(self) -> None:
        least = self.holds.min()
        for watermark in (0, 3, MAX_TIMESTAMP):
            assert self.output.lowest(watermark)[0] == min(least, watermark)


def _refuses(hold: Hold) -> None:
    """A hold that has ended cannot end again, and covers nothing any more."""
    for use in (hold.release, lambda: hold.cover(1)):
        with pytest.raises(RuntimeError, match="a hold"):
            use()


def _stated(setting: TimerSetting, domain: TimeDomain) -> int | None:
    """The stated hold of a timer, if it has one (4.6): its setter's, or the cause of a processing-time timer."""
    return setting.cause if setting.hold is None and domain is TimeDomain.PROCESSING_TIME else setting.hold


TestHolds = HoldsModel.TestCase
TestHolds.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.guarantee("G7", section="4.5")
@given(st.integers(0, 9), st.lists(TIMES), st.lists(TIMES), st.lists(TIMES), st.lists(st.none() | TIMES, max_size=3))
def test_the_output_watermark_is_at_the_oldest_unfinished_work(
    watermark: int, records: list[int], productions: list[int], held: list[int], times: list[int | None]
) -> None:
    holds, pending, unacked = Holds(), MinTracker(), MinTracker()
    for tracker, timestamps in ((pending, records), (unacked, productions)):
        for timestamp in timestamps:
            tracker.add(timestamp)
    output_watermark = OutputWatermark(pending, unacked, holds)
    hold = holds.open()
    for at in held:
        hold.cover(at)
    timers = [min(at, LAST_TIMESTAMP) for at in times if at is not None]
    held = [min(at, LAST_TIMESTAMP) for at in held]
    output, kind = output_watermark.lowest(watermark, *times)
    assert output == min([watermark, *records, *productions, *timers, *held])
    of_kind = {
        HoldKind.HOLD_KIND_INPUT: [watermark],
        HoldKind.HOLD_KIND_RECORD: records,
        HoldKind.HOLD_KIND_PRODUCTION: productions,
        HoldKind.HOLD_KIND_TIMER: timers,
        HoldKind.HOLD_KIND_STATE: held,
    }
    assert output in of_kind[kind]
    assert output_watermark.value == MIN_TIMESTAMP, "to look at it changes nothing"


def _lose_a_stated_one(holds: Holds, hold: Hold) -> None:
    holds.end(4, None)


def _keep_a_stated_one(holds: Holds, hold: Hold) -> None:
    holds.begin(4)


def _release(holds: Holds, hold: Hold) -> None:
    hold.release()


def _forget_one(holds: Holds, hold: Hold) -> None:
    holds.open(2)


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("wrong", [_lose_a_stated_one, _keep_a_stated_one, _release, _forget_one])
def test_a_hold_that_is_lost_or_kept_is_found(wrong: Callable[[Holds, Hold], None]) -> None:
    holds = Holds()
    hold = holds.open(7)
    holds.begin(4)
    check_holds(holds, [4], [hold, holds.open()])
    wrong(holds, hold)
    with pytest.raises(RuntimeError, match="holds are"):
        check_holds(holds, [4], [hold])


@pytest.mark.guarantee("G7")
def test_a_hold_ends_once_and_its_replacement_has_its_time() -> None:
    holds = Holds()
    commit, batch = holds.open(9), holds.open(7)
    beside = holds.open(7)
    commit.take(batch)
    assert (holds.min(), commit.at) == (7, 7)
    beside.release()
    for ended in (batch, beside):
        _refuses(ended)
    assert holds.min() == 7, "the commit's hold is not ended with others at its time"
    commit.release()
    assert holds.min() == MAX_TIMESTAMP


@pytest.mark.guarantee("G7")
def test_a_stated_hold_that_is_not_there_cannot_end() -> None:
    holds = Holds()
    holds.begin(4)
    with pytest.raises(KeyError, match="timestamp 5 is present 0 times"):
        holds.end(5, None)
