"""Percentile watermarks: from what members tell of their work, journaled, never going back (G7; section 7.2)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.authority.core import CoreSettings
from millwheel.authority.messages import InjectorsExpected, PercentileRequested
from millwheel.authority.shard import ShardSettings
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.keys import ALL_KEYS
from millwheel.model.sketch import TimestampSketch
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.watermarks import Member, PendingWork, WatermarkReport
from tests.authority.conftest import Served
from tests.authority.shard import GROUP, INJECTOR, Shard, cut

LEFT, RIGHT = cut(b"m")
P50, P99, WHOLE = 5_000, 9_900, 10_000


def work(*timestamps: int, newest: int | None = None) -> PendingWork:
    sketch = TimestampSketch()
    sketch.add((timestamp, 1) for timestamp in timestamps)
    return PendingWork(sketch, max(timestamps, default=MIN_TIMESTAMP) if newest is None else newest)


class Asked(Shard):
    """A shard that is asked for percentiles; nothing that it answers goes back, through restarts too."""

    def __init__(self, *arguments: object) -> None:
        self.published: dict[tuple[str, int], int] = {}
        super().__init__(*arguments)  # type: ignore[arg-type]

    def ask(self, points: int, group: str = GROUP, *, answer: bool = True) -> int:
        token = next(self._tokens)
        self.call(PercentileRequested(token, group, points, self.now))
        if not answer:
            self.append()
            return MIN_TIMESTAMP
        self.flush()
        value = self.answers[token]
        assert value >= self.published.get((group, points), MIN_TIMESTAMP), "it went back"
        self.published[group, points] = value
        return value

    def tell(self, member: Member, sequencer: int, low: int, pending: PendingWork | None, name: str = GROUP) -> None:
        self.report(member, sequencer, low, name, pending=pending)


@pytest.mark.paper(section="7.2")
def test_the_smallest_timestamps_at_work_are_left_out() -> None:
    shard = Asked()
    shard.own_all([LEFT, RIGHT])
    shard.tell(LEFT, 1, 5, work(5, *range(100, 200)))
    shard.tell(RIGHT, 2, 7, work(7, *range(100, 199)))
    assert shard.ask(P99) == 100, "two of 201 are left out, one in a hundred"
    assert shard.ask(9_950) == 7, "one may be left out: the other holds"
    assert shard.ask(P50) >= 140
    assert shard.ask(WHOLE) == 5, "the low watermark itself"


@pytest.mark.guarantee("G7", section="7.2")
def test_nothing_at_work_is_no_infinity() -> None:
    """If no work is pending, the percentile is the time of the newest record. The next record becomes pending work."""
    shard = Asked()
    shard.own_all([LEFT, RIGHT])
    shard.tell(LEFT, 1, 50, work(newest=80))
    shard.tell(RIGHT, 2, 60, work(newest=70))
    assert shard.ask(P99) == 80
    shard.tell(LEFT, 1, 60, work(*range(90, 200)))
    assert shard.ask(P99) == 91
    shard.tell(LEFT, 1, MAX_TIMESTAMP, work())
    shard.tell(RIGHT, 2, MAX_TIMESTAMP, work())
    assert shard.ask(P99) == MAX_TIMESTAMP, "it has ended, as its low watermark says"


@pytest.mark.paper(section="7.2")
def test_timers_ahead_of_all_records_are_not_where_time_is() -> None:
    shard = Asked()
    shard.own_all()
    shard.tell(ALL_KEYS, 1, 10, work(*range(10_000, 10_100), newest=40))
    assert shard.ask(P99) == 40


@pytest.mark.paper(section="7.2")
def test_an_owner_that_reports_no_work_counts_at_its_watermark() -> None:
    shard = Asked()
    shard.own_all([LEFT, RIGHT])
    shard.tell(LEFT, 1, 5, work(*range(100, 300)))
    shard.tell(RIGHT, 2, 9, None)
    assert shard.ask(P99) == 9
    shard.now = 1_000
    assert shard.ask(P50) == 9, "what was published before it was asked says nothing of now"
    shard.tell(LEFT, 1, 5, work(*range(100, 300)))
    shard.tell(RIGHT, 2, 9, work())
    assert shard.ask(P99) == 102


@pytest.mark.paper(section="5.2")
def test_an_injectors_processes_have_records_of_their_own_each() -> None:
    shard = Asked()
    for sequencer, process in enumerate("abc", 1):
        shard.accept(process, sequencer, INJECTOR)
    shard.tell("a", 1, 10, work(newest=100), INJECTOR)
    shard.tell("b", 2, 5, work(newest=60), INJECTOR)
    shard.report("c", 3, 5, INJECTOR, idle=True)
    assert shard.ask(P99, INJECTOR) == 60, "b will send from there on; c is idle"
    shard.call(InjectorsExpected(99, "queries", ["a", "b", "d"]))
    assert shard.ask(P99, INJECTOR) == 60


@pytest.mark.guarantee("G7", section="7.2")
def test_what_was_answered_is_in_the_journal_and_in_its_base() -> None:
    shard = Asked(CoreSettings(snapshot_bytes=600))
    shard.own_all([LEFT, RIGHT])
    shard.tell(LEFT, 1, 5, work(newest=80))
    shard.tell(RIGHT, 2, 5, work(newest=90))
    assert shard.ask(P99) == 90
    shard.restart()
    assert shard.ask(P99) == 90
    for low in range(100, 200):
        shard.report(LEFT, 1, low)
    assert shard.snapshots
    shard.restart()
    assert shard.ask(P99) == 90
    assert shard.ask(P50) == 90, "a smaller percentile is no smaller than a larger one"
    assert shard.ask(9_999) == shard.known()


@pytest.mark.guarantee("G7", section="7.2")
@settings(max_examples=60)
@given(st.integers(0, 1 << 32))
def test_percentiles_are_above_the_watermark_and_never_go_back(seed: int) -> None:
    chance = random.Random(seed)
    shard = Asked(CoreSettings(entry_bytes=200, part_bytes=150, snapshot_bytes=900))
    owned, low, newest = shard.own_all([LEFT, RIGHT]), {LEFT: 0, RIGHT: 0}, 0
    for _ in range(30):
        shard.now += 1
        for keys, sequencer in owned:
            newest = max(newest, low[keys] + chance.randrange(50))
            pending = [chance.randint(low[keys], newest) for _ in range(chance.randrange(300))]
            low[keys] = max(low[keys], min([*pending, low[keys] + chance.randrange(10)]))
            if chance.random() < 0.9:
                shard.tell(keys, sequencer, low[keys], work(*pending, newest=newest))
        if chance.random() < 0.2:
            if chance.random() < 0.5:
                shard.ask(P99, answer=False)
            shard.restart()
            continue
        points = chance.choice([P50, 9_000, P99, WHOLE])
        assert shard.known() <= shard.ask(points) <= max(newest, shard.known())


@pytest.mark.paper(section="7.2")
async def test_owners_are_queried_only_on_request(served: Served) -> None:
    asked: list[str] = []

    def pending_of(group: str) -> dict[Member, PendingWork]:
        asked.append(group)
        return {LEFT: work(3, *range(100, 300), newest=500), RIGHT: work(newest=400)}

    async with (
        WatermarkClient(served.where, on_refused=print, pending_of=pending_of) as owner,
        WatermarkClient(served.where, on_refused=print) as reader,
    ):
        for sequencer, keys in enumerate((LEFT, RIGHT), 1):
            await owner.accept(GROUP, keys, sequencer)
            owner.report(WatermarkReport(GROUP, keys, sequencer, 3))
        await owner.accept(GROUP, LEFT, 1)
        explanation = await reader.percentile(GROUP, P99)
        assert (explanation.watermark_us, explanation.member_count, explanation.silent_count) == (100, 2, 0)
        assert set(asked) == {GROUP}
        before = len(asked)
        await reader.explain(GROUP)
        assert len(asked) == before, "no member is asked for what nothing wants"
        for points in (0, 10_001):
            with pytest.raises(RequestError, match="hundredths of a percent"):
                await reader.percentile(GROUP, points)


@pytest.mark.paper(section="7.2")
async def test_a_silent_owner_does_not_delay_the_answer_for_long(served: Served) -> None:
    await served.kill()
    await served.start(ShardSettings(ask=0.05))
    async with WatermarkClient(served.where, on_refused=print) as silent:
        await silent.accept(GROUP, ALL_KEYS, 1)
        silent.report(WatermarkReport(GROUP, ALL_KEYS, 1, 7))
        await silent.accept(GROUP, ALL_KEYS, 1)
        explanation = await silent.percentile(GROUP, P99)
        assert (explanation.member_count, explanation.silent_count) == (1, 1)
        assert explanation.watermark_us in (MIN_TIMESTAMP, 7)
        with pytest.raises(RequestError, match="nothing was ever accepted"):
            await silent.percentile("unknown.1", P99)
