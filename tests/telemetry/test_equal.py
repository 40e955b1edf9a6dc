"""Traces change nothing: an interval with them has the same effects as one without, byte for byte (G1, G2, G5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import Timestamp
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import Acknowledged, AnswerDelivery, AppendEntry, ReadStates, SendDelivery, StatesRead
from tests.telemetry.traced_driver import TracedDriver
from tests.worker.interval.driver import IntervalDriver


class Doing(mw.Computation[tuple[str, str], int]):
    """Follows the text of the record."""

    def __init__(self) -> None:
        self.failures = 0

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        what = record.value[1]
        if what == "fail" and self.failures < 20:
            self.failures += 1
            raise ValueError("the hook fails")
        if what == "timer":
            ctx.set_timer(Timestamp(record.timestamp + 10), "t")
        if what in ("produce", "much"):
            ctx.produce("out", what * (1 if what == "produce" else 60))
            ctx.produce("other", f"{ctx.state}")

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("out", f"fired {ctx.state}")


RECORDS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["quiet", "produce", "much", "timer", "fail"]),
    st.integers(0, 100),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.lists(RECORDS, min_size=1, max_size=12)),
        st.tuples(st.sampled_from(["commit", "ack", "read", "time"]), st.just(0)),
        st.tuples(st.just("watermark"), st.integers(0, 120)),
    ),
    max_size=25,
)


def history(driver: IntervalDriver, steps: list[tuple[str, Any]]) -> list[Any]:
    """What the core does in these steps, without the traces of deliveries."""
    seen: list[Any] = []
    begin = driver.begin

    def noting(effect: Any) -> None:
        if isinstance(effect, SendDelivery):
            sent = effect.delivery
            seen.append((sent.stream, sent.ids, sent.keys, sent.values, sent.timestamps, sent.token, sent.order))
        elif isinstance(effect, AppendEntry):
            seen.append((effect.append.commit, effect.append.entry))
        elif isinstance(effect, AnswerDelivery):
            seen.append((effect.delivery.token, effect.outcome, list(effect.indexes)))
        else:
            seen.append(type(effect))
        begin(effect)

    driver.begin = noting  # type: ignore[method-assign]
    for kind, what in steps:
        _do(driver, kind, what)
    for _ in range(20):
        _read(driver)
        driver.commit_all()
        driver.pass_time(1_000_000)
    seen.append(driver.state.counts.row)
    return seen


def _do(driver: IntervalDriver, kind: str, what: Any) -> None:
    if kind == "deliver":
        driver.deliver(*what)
    elif kind == "watermark":
        driver.watermark(what)
    elif kind == "time":
        driver.pass_time(2_000_000)
    elif kind == "commit" and any(isinstance(one, AppendEntry) for one in driver.waiting):
        driver.commit()
    elif kind == "ack":
        for send in driver.take(SendDelivery):
            driver.handle(Acknowledged(send.delivery.token))
    elif kind == "read":
        _read(driver)


def _read(driver: IntervalDriver) -> None:
    for read in driver.take(ReadStates):
        driver.handle(StatesRead(read.keys, [None] * len(read.keys)))


@pytest.mark.guarantee("G1", "G2", "G5", section="6.1")
@given(STEPS, st.booleans(), st.sets(st.sampled_from(["quiet", "produce", "much", "timer", "fail"])))
def test_traces_change_no_effect_of_an_interval(steps: list[tuple[str, Any]], strong: bool, sampled: set[str]) -> None:
    settings = IntervalSettings(batch_records=5, batch_bytes=1_500)
    plain = IntervalDriver(Doing(), settings=settings, strong=strong)
    traced = TracedDriver(Doing(), lambda text: any(one in text for one in sampled), settings=settings, strong=strong)
    assert history(traced, steps) == history(plain, steps)


@pytest.mark.guarantee("G2", section="6.1")
def test_a_batch_with_a_trace_ends_at_the_same_record() -> None:
    """The limit of a batch may fall anywhere between the records of a delivery."""
    records = [("a", "produce", 1), *((key, "much", 2) for key in "bcdefgh")]
    for limit in range(300, 2_500, 20):
        settings = IntervalSettings(batch_bytes=limit)
        plain = IntervalDriver(Doing(), settings=settings)
        traced = TracedDriver(Doing(), lambda text: "produce" in text, settings=settings)
        steps = [("deliver", records), ("read", 0)]
        assert history(traced, steps) == history(plain, steps), limit


def counts() -> mw.Computation[Any, Any]:
    return windows.Aggregate(windows.tumbling(mw.Duration(10)), agg.count(), output="out")


@pytest.mark.guarantee("G1", "G2", "G5", section="6.1")
@examples(max_examples=40)
@given(STEPS, st.sets(st.sampled_from(["quiet", "produce", "much", "timer"])))
def test_traces_change_no_effect_of_windows_by_columns(steps: list[tuple[str, Any]], sampled: set[str]) -> None:
    options: dict[str, Any] = {"settings": IntervalSettings(columns_from=2, batch_records=5), "outputs": {}}
    plain = IntervalDriver(counts(), **options)
    traced = TracedDriver(counts(), lambda text: any(one in text for one in sampled), **options)
    assert history(traced, steps) == history(plain, steps)


@pytest.mark.paper(section="6.1")
def test_a_sampled_record_of_a_window_by_columns_has_its_spans() -> None:
    driver = TracedDriver(counts(), lambda text: "seen" in text, settings=IntervalSettings(columns_from=1), outputs={})
    driver.deliver(("a", "seen", 1), ("b", "", 1))
    driver.commit_all()
    driver.watermark(10)
    driver.commit_all()
    for send in driver.take(SendDelivery):
        driver.handle(Acknowledged(send.delivery.token))
    names = [name.split()[0] for name in driver.spans.names()]
    assert {"process", "fire"} <= set(names)
    assert not any("duplicate" in name for name in driver.spans.names())


@pytest.mark.paper(section="6.1")
def test_a_sampled_result_in_a_run_is_traced() -> None:
    driver = TracedDriver(counts(), lambda text: "seen" in text, settings=IntervalSettings(columns_from=1), outputs={})
    driver.deliver(*((f"k{number:02}", "seen" if number == 5 else "", 1) for number in range(12)))
    driver.commit_all()
    driver.watermark(10)
    driver.commit_all()
    (send,) = driver.take(SendDelivery)
    assert len(send.delivery.values) == 12
    assert list(send.delivery.traces or ()) == [5]
