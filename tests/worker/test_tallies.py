"""A worker's counters: what a process has committed, also while intervals come and go."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.interval.panes.table import PaneTable, WindowPanes
from millwheel.worker.process.load import LoadMeter
from millwheel.worker.process.metrics import WorkerCollector
from millwheel.worker.process.tallies import Tallies
from tests.worker.doubles import delivery
from tests.worker.interval.column_windows import Results, driver_of
from tests.worker.interval.driver import IntervalDriver

PLACE = ("topology", "test")


class Counting(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


def shown(tallies: Tallies) -> tuple[float, float]:
    """The counter of committed records, and those of the intervals that are here."""
    found = {
        sample.name: sample.value
        for metric in WorkerCollector(tallies).collect()
        for sample in metric.samples
        if sample.labels == {"topology": PLACE[0], "computation": PLACE[1]}
    }
    return found["millwheel_records_total"], found.get("millwheel_owned_records", 0)


def some(driver: IntervalDriver, count: int) -> IntervalDriver:
    driver.position = driver.state.counts.records
    for _ in range(count):
        driver.deliver(("key", "value", 1))
        driver.commit_all()
    return driver


def test_a_counter_only_rises_when_intervals_leave_and_arrive() -> None:
    """Regression: a move looked like a restart to monitoring that computes rates.

    At the new worker, all earlier records seemed to come at once.
    """
    here, there = Tallies(), Tallies()
    driver = some(IntervalDriver(Counting()), 5)
    here.enter("test.1.j1", PLACE, driver.core)
    assert shown(here) == (5, 5)
    here.leave("test.1.j1")
    assert shown(here) == (5, 0)
    successor = IntervalDriver(Counting(), entries=driver.entries)
    there.enter("test.1.j1", PLACE, successor.core)
    assert shown(there) == (0, 5)
    some(successor, 2)
    assert shown(there) == (2, 7)
    there.leave("test.1.j1")
    here.enter("test.1.j1", PLACE, some(IntervalDriver(Counting(), entries=successor.entries), 1).core)
    assert shown(here) == (6, 8)
    assert shown(there) == (2, 0)


def test_what_computations_counted_that_are_no_more_is_forgotten() -> None:
    tallies = Tallies()
    tallies.enter("test.1.j1", PLACE, some(IntervalDriver(Counting()), 1).core)
    tallies.leave("test.1.j1")
    tallies.leave("test.1.j1")
    tallies.refused.add(PLACE, delivery(1), DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL)
    tallies.keep({PLACE})
    assert shown(tallies) == (1, 0)
    assert tallies.refused.totals()
    tallies.keep({("topology", "another")})
    assert tallies.look() == ([], {})
    assert tallies.refused.totals() == {}


def test_the_keys_in_memory_are_shown() -> None:
    tallies, driver = Tallies(), IntervalDriver(Counting())
    tallies.enter("test.1.j1", PLACE, driver.core)
    for key in ("a", "b", "a"):
        driver.deliver((key, "value", 1))
    (cached,) = [one for one in WorkerCollector(tallies).collect() if one.name == "millwheel_cached_keys"]
    assert [sample.value for sample in cached.samples] == [2]


def test_a_scrape_amid_the_firing_of_a_window_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it divided by zero, and the page had no metric of the worker."""
    largest = vars(PaneTable)["largest"].fget

    def then_it_fires(table: PaneTable) -> WindowPanes | None:
        window: WindowPanes | None = largest(table)
        assert window is not None
        for key in list(window.rows):
            window.close([key])
        return window

    tallies, _ = tallies_with_windows()
    monkeypatch.setattr(PaneTable, "largest", property(then_it_fires))
    (cached,) = [one for one in WorkerCollector(tallies).collect() if one.name == "millwheel_cached_keys"]
    assert [sample.value for sample in cached.samples] == [0]


def test_a_scrape_amid_a_change_of_windows_has_all() -> None:
    """Regression: a window that came meanwhile ended it."""
    tallies, table = tallies_with_windows()
    more = (number for number in range(100, 200))

    class Changing(WindowPanes):
        """The event loop's thread goes on between two steps of the scrape."""

        @property
        def count(self) -> int:
            end = next(more)
            table.windows[0, end, b""] = WindowPanes((0, end, b""), ())
            return super().count

    (window,) = table.windows.values()
    table.windows[window.name] = changing = Changing(window.name, ["<i8"])
    changing.rows_of(window.keys)
    samples = {one.name: one.samples for one in WorkerCollector(tallies).collect()}
    for name in ("millwheel_cached_keys", "millwheel_timers"):
        assert [sample.value for sample in samples[name]] == [2]


def tallies_with_windows() -> tuple[Tallies, PaneTable]:
    """Two keys have panes in a window, and no states."""
    tallies, driver = Tallies(), driver_of(Results())
    tallies.enter("test.1.j1", PLACE, driver.core)
    driver.deliver(("a", "", 1), ("b", "", 1))
    driver.commit_all()
    return tallies, driver.state.panes


class Failing(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        raise ValueError("no")


def hooks(tallies: Tallies) -> dict[tuple[str, str], float]:
    """The counts of a computation, by metric and hook."""
    return {
        (sample.name, sample.labels["hook"]): sample.value
        for metric in WorkerCollector(tallies).collect()
        for sample in metric.samples
        if "hook" in sample.labels and (sample.labels["topology"], sample.labels["computation"]) == PLACE
    }


def tallies_of_two_that_left() -> Tallies:
    """One call failed at each of two intervals, which have left."""
    tallies = Tallies()
    for number in range(2):
        driver = IntervalDriver(Failing())
        tallies.enter(f"test.1.j{number}", PLACE, driver.core)
        driver.deliver(("key", "value", 1))
        tallies.leave(f"test.1.j{number}")
    return tallies


def test_hook_calls_stay_counted_after_an_interval_left() -> None:
    tallies = tallies_of_two_that_left()
    found = hooks(tallies)
    assert found["millwheel_hook_calls_total", "process_record"] == 2
    assert found["millwheel_hook_failures_total", "process_record"] == 2
    assert ("millwheel_hook_calls_total", "process_timer") not in found, "there is no such hook"
    tallies.keep(set())
    assert hooks(tallies) == {}


def test_a_load_report_has_hook_calls_of_intervals_that_left() -> None:
    tallies = tallies_of_two_that_left()
    (reported,) = LoadMeter(list, hooks=tallies.hooks).load().hooks
    assert (reported.topology, reported.computation, reported.time.hook) == (*PLACE, "process_record")
    assert (reported.time.calls, reported.time.failures) == (2, 2)


def test_a_hook_that_blocks_the_event_loop_is_measured_meanwhile() -> None:
    collector = WorkerCollector(Tallies(), running=lambda: {(PLACE, "process_record"): 2.5})
    (gauge,) = [one for one in collector.collect() if one.name == "millwheel_hook_blocking_seconds"]
    assert [(sample.labels["hook"], sample.value) for sample in gauge.samples] == [("process_record", 2.5)]
