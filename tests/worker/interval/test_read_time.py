"""How many records are read for a call for many, through filters and functions before it (sections 4.1, 4.2; G8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.worker.interval.hook_meter import BatchTime, HookMeter
from millwheel.worker.messages import Acknowledged, ReadStates, SendDelivery, StatesRead
from tests.worker.interval.test_batch_sizes import Clock, TimedDriver

Record = tuple[str, str]


class Read:
    """An interval whose hook gets what ``keep`` passes.

    The hook takes ``of_row`` seconds for each record, and ``of_call`` seconds by itself. It produces ``produced`` bytes
    for each record.
    """

    def __init__(
        self,
        keep: Callable[[Record], bool],
        of_row: float = 0.0,
        *,
        of_call: float = 0.0,
        produced: int = 0,
        **options: Any,
    ) -> None:
        self.clock = TimedDriver.clock = Clock()
        self.sizes: list[int] = []
        self.order: list[str] = []
        read = self

        class Hook(mw.BatchComputation[Record]):
            def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[Record]) -> None:
                read.clock.now += of_row * len(batch) + of_call
                read.sizes.append(len(batch))
                read.order += [text for _, text in batch.values]
                if produced:
                    ctx.produce("out", ["x" * produced] * len(batch))

        meter = HookMeter(self.clock, batch_time=BatchTime(0.01))
        self.driver = TimedDriver(Hook(), meter=meter, keep=keep, **{"on_failure": mw.dead_letter(after=1)} | options)

    def deliver(self, texts: list[str], at: int = 100, keys: int = 1_000, times: int = 200) -> float:
        """Deliver some records, and run them. Returns how long the longest step took, in seconds."""
        self.driver.longest = 0.0
        self.driver.deliver(*((f"key {number % keys}", text, at) for number, text in enumerate(texts)))
        return self.run(times)

    def run(self, times: int = 200, pause: int = 1_000) -> float:
        """Run what waits. Returns how long the longest step took, in seconds."""
        for _ in range(times):
            self.driver.commit_all()
            for sent in self.driver.take(SendDelivery):
                self.driver.handle(Acknowledged(sent.delivery.token))
            for asked in self.driver.take(ReadStates):
                self.driver.handle(StatesRead(asked.keys, [None] * len(asked.keys)))
            self.driver.pass_time(pause)
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
def test_what_a_call_does_not_take_is_not_read_for_it(of_row: float) -> None:
    reads: list[str] = []

    def keep(record: Record) -> bool:
        reads.append(record[1])
        return record[1] != "dropped"

    read = Read(keep, of_row)
    for _ in range(10):
        read.deliver(["dropped"] * 400)
    del reads[:]
    read.deliver(numbers(400))
    assert reads == numbers(400)


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


def slow(read: Callable[[], Read]) -> Callable[[Record], bool]:
    """A filter that takes 50 ms for a record. It drops some at once."""

    def keep(record: Record) -> bool:
        if record[1] == "dropped":
            return False
        read().clock.now += 0.05
        return True

    return keep


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("share", [1_000, 100, 2])
def test_slow_functions_behind_what_was_dropped_end_their_step(share: int) -> None:
    """Nothing that was dropped says how long the next record takes: of earlier deliveries, or of the same one."""
    read = Read(slow(lambda: read))
    for _ in range(12):
        read.deliver(["slow" if number % share == 1 else "dropped" for number in range(1_000)], times=100)
    assert read.deliver(["dropped"] * 500 + numbers(100)) < 0.3
    assert read.order[-100:] == numbers(100)


@pytest.mark.guarantee("G8", section="4.1")
def test_slow_functions_behind_late_records_end_their_step() -> None:
    """Late records are dropped, and no function runs for them."""
    read = Read(slow(lambda: read), late=mw.Late.DROP)
    read.driver.watermark(200)
    for _ in range(12):
        assert read.deliver(["late"] * 1_000, times=1) == 0.0
    assert read.deliver(numbers(100), at=300) < 0.3
    assert read.order == numbers(100)


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("keys", [1, 8, 100])
def test_slow_functions_of_keys_without_rows_end_their_step(keys: int) -> None:
    """An owner reads the rows of its keys first. Records that wait behind such a key say nothing of its functions."""
    read = Read(slow(lambda: read))
    read.driver.state.cells.evicted = True
    for _ in range(4):
        read.driver.deliver(*((f"key {number % keys}", text, 100) for number, text in enumerate(numbers(200))))
    assert read.run(400) < 0.3
    assert len(read.order) == 800
    assert [text for text in read.order if int(text) % keys == 0] == 4 * numbers(200)[::keys]


@pytest.mark.guarantee("G8", section="4.1")
def test_slow_functions_of_a_key_that_was_blocked_end_their_step() -> None:
    """The service before the hook is down, and all records of a key wait behind the first. Then it answers slowly."""
    down = True

    def keep(record: Record) -> bool:
        if down:
            raise ValueError("no answer")
        read.clock.now += 0.05
        return True

    read = Read(keep, on_failure=mw.retry())
    for _ in range(4):
        assert read.deliver(numbers(200), keys=1, times=1) == 0.0
    down = False
    assert read.run(400, pause=100_000_000) < 0.3
    assert read.order == 4 * numbers(200)


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize(("share", "least"), [(1, 30), (2, 30), (8, 25), (100, 9)])
def test_a_costly_call_behind_a_filter_gets_32_records(share: int, least: int) -> None:
    """Or all that passes of so many that are read. A call that takes 200 ms by itself gets 32 without a filter."""
    read = Read(lambda record: record[1] != "dropped", of_call=0.2)
    for _ in range(6):
        read.deliver(numbers(4_000, share - 1))
    assert sum(read.sizes[-8:]) >= 8 * least


@pytest.mark.guarantee("G13", section="4.1")
@pytest.mark.parametrize(("share", "least"), [(1, 40), (10, 40), (100, 10)])
def test_what_is_produced_bounds_what_passes(share: int, least: int) -> None:
    """A hundred results fill a commit. Of what a filter drops there is none."""
    read = Read(lambda record: record[1] != "dropped", produced=20_000)
    for _ in range(8):
        read.deliver(numbers(1_000, share - 1), times=50)
    assert sum(read.sizes[-6:]) >= 6 * least
    assert max(read.sizes) <= 128


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("share", [2, 10])
def test_calls_grow_between_records_that_cannot_be_read(share: int) -> None:
    """Each of these is judged alone."""

    def keep(record: Record) -> bool:
        if int(record[1]) % share == 0:
            raise ValueError("it cannot be read")
        return True

    read = Read(keep)
    for _ in range(12):
        read.deliver(numbers(400), times=20)
    assert len(read.sizes) < 40
    assert read.sizes[-1] > 150
    assert read.driver.state.counts.dead_letters == 12 * 400 // share
