"""How many records are read for a call for many, through filters and functions before it (sections 4.1, 4.2; G8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import millwheel as mw
from millwheel.worker.interval.hook_meter import BatchTime, HookMeter
from tests.worker.interval.test_batch_sizes import Clock, TimedDriver

Record = tuple[str, str]


class Read:
    """An interval whose hook gets what ``keep`` passes. ``of_row``: how many seconds it takes for each record."""

    def __init__(self, keep: Callable[[Record], bool], of_row: float = 0.0) -> None:
        self.clock = TimedDriver.clock = Clock()
        self.sizes: list[int] = []
        self.order: list[str] = []
        read = self

        class Hook(mw.BatchComputation[Record]):
            def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Record]) -> None:
                read.clock.now += of_row * len(batch)
                read.sizes.append(len(batch))
                read.order += [text for _, text in batch.values]

        meter = HookMeter(self.clock, batch_time=BatchTime(0.01))
        self.driver = TimedDriver(Hook(), meter=meter, keep=keep, on_failure=mw.dead_letter(after=1))

    def deliver(self, texts: list[str], at: int = 100) -> float:
        """Deliver some records, and run them. Returns how long the longest step took, in seconds."""
        self.driver.longest = 0.0
        self.driver.deliver(*((f"key {number}", text, at) for number, text in enumerate(texts)))
        for _ in range(200):
            self.driver.commit_all()
            self.driver.pass_time(1_000)
        return self.driver.longest


def numbers(count: int, drop: int = 0) -> list[str]:
    """So many texts. ``drop``: how many are dropped for each one that passes."""
    return ["dropped" if drop and number % (drop + 1) else str(number) for number in range(count)]


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("drop", [0, 1, 7, 99])
def test_calls_grow_behind_a_filter(drop: int) -> None:
    """What the filter drops counts. So calls do not stay small where few records of a delivery pass."""
    read, texts = Read(lambda record: record[1] != "dropped"), numbers(400, drop)
    passing = [text for text in texts if text != "dropped"]
    for _ in range(12):
        read.deliver(texts)
    assert read.order == 12 * passing
    assert read.sizes[-1] == len(passing)


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("passes", [True, False])
def test_a_slow_function_before_a_hook_makes_few_reads(passes: bool) -> None:
    """Its time counts, also if it drops each record: no step takes long."""

    def slow(record: Record) -> bool:
        read.clock.now += 0.7 if record[1] != "quick" else 0.0
        return passes

    read = Read(slow)
    assert read.deliver(numbers(200)) < 3.0
    for _ in range(10):
        read.deliver(["quick"] * 200)
    read.deliver(numbers(200))  # they cost more suddenly
    read.deliver(numbers(200))
    assert read.deliver(numbers(200)) < 3.0


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("late", [False, True])
def test_what_suddenly_passes_a_filter_comes_by_calls_that_grow(late: bool) -> None:
    """Many records are read at once, since the filter has dropped nearly all. The hook has not shown what it takes.

    ``late``: late records are gathered one by one.
    """
    read = Read(lambda record: record[1] != "dropped", of_row=0.05)
    for _ in range(10):
        assert read.deliver(["dropped"] * 400) == 0.0
    if late:
        read.driver.watermark(200)
    assert read.deliver(numbers(400)) < 2.0
    assert read.sizes[:3] == [2, 4, 8]
    assert max(read.sizes) < 32
    assert read.order == numbers(400)


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("of_row", [0.0, 0.01])
def test_a_record_is_not_read_again_for_each_call(of_row: float) -> None:
    """What is too much for one call is read again. The next calls read less, so that is rare."""
    reads: list[str] = []

    def keep(record: Record) -> bool:
        reads.append(record[1])
        return record[1] != "dropped"

    read = Read(keep, of_row)
    for _ in range(10):
        read.deliver(["dropped"] * 400)
    del reads[:]
    read.deliver(numbers(400))
    assert len(reads) < 1_000


@pytest.mark.guarantee("G8", section="4.1")
def test_slow_readings_that_fail_end_their_step() -> None:
    """Such as those of a service that does not answer: each waits for it."""

    def waits(record: Record) -> bool:
        if record[1] == "down":
            read.clock.now += 1.0
            raise ValueError("no answer")
        return True

    read = Read(waits)
    for _ in range(10):
        read.deliver(["x"] * 400)
    assert read.deliver(["down"] * 40) < 5.0
