"""The spans of one interval: what they say, how they hang together, and that they are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

import millwheel as mw
from millwheel.model.time import Timestamp
from millwheel.model.traced_records import MAX_TRACED_RECORDS
from millwheel.worker.interval.traces import MAX_CAUSES
from millwheel.worker.messages import (
    Acknowledged,
    Appended,
    AppendEntry,
    AsyncHook,
    Deposed,
    HookFinished,
    ReadStates,
    Resend,
    SendDelivery,
    StatesRead,
)
from tests.telemetry.traced_driver import TracedDriver
from tests.worker.interval.reads import ReadsAtOnce, keyed_by_end
from tests.worker.interval.tables import TARGETS, ReadsTables, Row


class Passing(mw.Computation[tuple[str, str], int]):
    """Produces each record. "timer" sets a timer, "fail" fails the first time."""

    def __init__(self) -> None:
        self.failures = 0

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        if what == "fail" and not self.failures:
            self.failures += 1
            raise LookupError(f"nothing for {ctx.key}")
        if what == "timer":
            ctx.set_timer(Timestamp(100), "a private tag")
        else:
            ctx.produce("out", what)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("out", "fired")


class Awaiting(mw.Computation[tuple[str, str], int]):
    """An asynchronous hook."""

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.produce("out", record.value[1])


def read(driver: TracedDriver) -> None:
    """Answer reads: no key has a state."""
    for asked in driver.take(ReadStates):
        driver.handle(StatesRead(asked.keys, [None] * len(asked.keys)))


def acknowledge(driver: TracedDriver) -> list[SendDelivery]:
    """Let consumers ACK what was sent. Returns it."""
    sends = driver.take(SendDelivery)
    for send in sends:
        driver.handle(Acknowledged(send.delivery.token))
    return sends


def test_a_record_has_a_span_for_each_step() -> None:
    driver = TracedDriver(Passing())
    driver.deliver(("k", "v", 1))
    read(driver)
    driver.commit()
    (send,) = acknowledge(driver)
    assert driver.spans.names() == ["process in", "commit test", "receive in", "send out (acked)"]
    (produced,) = driver.spans.named("send out")
    assert produced.parent is not None
    assert produced.parent.span_id == driver.spans.named("process in")[0].context.span_id
    assert send.delivery.traces is not None
    assert f"{produced.context.span_id:016x}" in send.delivery.traces[0].traceparent


def test_a_duplicate_is_an_event_and_runs_no_hook() -> None:
    driver = TracedDriver(Passing())
    delivery = driver.deliver(("k", "v", 1))
    read(driver)
    driver.commit()
    acknowledge(driver)
    before = len(driver.spans.names())
    driver.handle(delivery)
    assert driver.spans.names()[before:] == ["receive in (duplicate)"]


def test_a_failed_hook_is_an_error_and_its_retry_a_span() -> None:
    driver = TracedDriver(Passing())
    driver.deliver(("private", "fail", 1))
    read(driver)
    driver.pass_time(5_000_000)
    driver.commit()
    first, second = driver.spans.named("process in")
    assert dict(first.attributes or {})["error.type"] == "LookupError"
    assert second.status.is_unset
    assert driver.spans.text(driver.spans.named("receive in")[0]) == "receive in (hook failed)"
    acknowledge(driver)
    assert not [span for span in driver.spans if "private" in span.to_json()], "neither keys nor texts of errors"


def test_a_timer_continues_its_oldest_cause_with_links() -> None:
    driver = TracedDriver(Passing())
    driver.deliver(*(("k", "timer", number) for number in range(MAX_CAUSES + 4)))
    read(driver)
    driver.commit()
    driver.watermark(200)
    driver.commit()
    acknowledge(driver)
    (fired,) = driver.spans.named("fire test")
    hooks = [span.context.span_id for span in driver.spans.named("process in")][-MAX_CAUSES:]
    assert fired.parent is not None
    assert [fired.parent.span_id, *(link.context.span_id for link in fired.links)] == hooks
    (produced,) = driver.spans.named("send out")
    assert produced.parent is not None
    assert produced.parent.span_id == fired.context.span_id
    assert not [span for span in driver.spans if "private" in span.to_json()], "a tag is private"


def test_a_timer_without_a_sampled_cause_has_no_span() -> None:
    driver = TracedDriver(Passing(), lambda what: "timer" not in what)
    driver.deliver(("k", "timer", 1), ("l", "v", 2))
    read(driver)
    driver.commit()
    driver.watermark(200)
    driver.commit_all()
    acknowledge(driver)
    assert driver.spans.named("fire test") == []
    assert len(driver.spans.named("send out")) == 1


def test_weak_productions_have_traces() -> None:
    driver = TracedDriver(Passing(), strong=False)
    driver.deliver(("k", "v", 1), ("k", "w", 2))
    read(driver)
    (send,) = driver.take(SendDelivery)
    assert sorted(send.delivery.traces or ()) == [0, 1]
    driver.handle(Acknowledged(send.delivery.token))
    driver.commit_all()
    assert len(driver.spans.named("send out")) == 2


def test_what_is_produced_at_once_has_traces() -> None:
    """The records of each key come first, and those behind them last."""
    driver = keyed_by_end(TracedDriver(ReadsAtOnce(), lambda what: "sampled" in what))
    driver.deliver(("p", "plain", 1), ("q", "sampled", 2), ("r", "plain", 3))
    read(driver)
    driver.commit()
    sent = [send.delivery for send in acknowledge(driver)]
    traced = [one.values[index] for one in sent for index in sorted(one.traces or ())]
    assert traced == [msgspec.msgpack.encode(f"sampled{end}") for end in ("-a", "-y", "-a", "-z", "")]
    assert len(driver.spans.named("send out")) == 4


def test_what_is_produced_as_columns_has_traces() -> None:
    """Reads of values come before those of columns in an entry, whichever hook ran first."""
    outputs = {"out": Row, "other": str, "late": tuple[str, str]}
    driver = TracedDriver(ReadsTables(), lambda what: "sampled" in what, outputs=outputs)
    driver.state.scope.outputs["out"].key_columns = TARGETS[2:3]
    driver.deliver(("p", "plain", 1), ("q", "sampled", 2), ("r", "row", 3))
    read(driver)
    driver.commit()
    sent = [send.delivery for send in acknowledge(driver)]
    traced = [msgspec.msgpack.decode(one.values[index]) for one in sent for index in sorted(one.traces or ())]
    assert [one["key"] for one in traced[:-1]] == [f"{key}sampled" for key in "ayaz"]
    assert traced[-1] == "sampled"
    assert len(driver.spans.named("send out")) == 4


def test_an_asynchronous_hook_ends_with_its_commit() -> None:
    driver = TracedDriver(Awaiting())
    driver.deliver(("k", "v", 1))
    read(driver)
    (hook,) = driver.take(AsyncHook)
    assert driver.spans.named("process in") == []
    asyncio.run(_completed(hook.coroutine))
    driver.handle(HookFinished(hook.hook, None))
    driver.commit()
    acknowledge(driver)
    (produced,) = driver.spans.named("send out")
    assert produced.parent is not None
    assert produced.parent.span_id == driver.spans.named("process in")[0].context.span_id


async def _completed(coroutine: Coroutine[Any, Any, object]) -> None:
    await coroutine


def test_a_production_that_is_sent_again_has_its_trace() -> None:
    driver = TracedDriver(Passing())
    driver.deliver(("k", "v", 1))
    read(driver)
    driver.commit()
    (first,) = driver.take(SendDelivery)
    driver.handle(Resend())
    (second,) = acknowledge(driver)
    assert second.delivery.traces == first.delivery.traces
    assert "send out (sent again, acked)" in driver.spans.names()


def test_a_lost_interval_ends_its_spans() -> None:
    driver = TracedDriver(Passing())
    driver.deliver(("k", "v", 1))
    read(driver)
    driver.deliver(("k", "w", 1))
    (append,) = driver.take(AppendEntry)
    driver.handle(Appended(append.append.commit))
    driver.handle(Deposed("a larger sequencer"))
    ended = driver.spans.names()
    assert "send out (owner lost)" in ended
    assert [one for one in ended if one.startswith("receive in") and "owner lost" in one]
    assert not driver.traces.received
    assert not len(driver.traces.sent)


def test_what_is_remembered_of_traces_is_bounded() -> None:
    """No consumer ACKs, and nothing waits: the oldest records are not followed any more (G13)."""
    driver = TracedDriver(Passing())
    for number in range(MAX_TRACED_RECORDS + 20):
        driver.deliver((f"k{number}", "v", 1), (f"t{number}", "timer", 1))
        read(driver)
        driver.commit_all()
        driver.take(SendDelivery)
    assert len(driver.traces.sent) == MAX_TRACED_RECORDS
    assert len(driver.traces.causes) <= 1_000
    assert len(driver.traces.marks) <= 1_000
    assert driver.spans.names().count("send out (no longer followed)") == 20
