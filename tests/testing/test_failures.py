"""A hook that raises fails the test that runs it, unless its policy deals with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.sdk.errors import UsageError
from millwheel.testing import HookTimeoutError, TopologyHarness

AT = mw.Timestamp(1)


class Fragile(mw.Computation[str, int]):
    """Counts. Raises the error from ``wrong`` for a record or timer whose text begins with "bad"."""

    def __init__(self, wrong: Callable[[], BaseException] = lambda: ValueError("I do not like it")) -> None:
        self.wrong = wrong

    def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
        ctx.state += 1
        if record.value.startswith("bad record"):
            raise self.wrong()
        ctx.set_timer(mw.Timestamp(100), record.value)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        if timer.tag.startswith("bad timer"):
            raise self.wrong()


class AsyncFragile(Fragile):
    async def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().process_record(ctx, record)


def harness_of(computation: Any = Fragile, hook_timeout_seconds: float = 60, **options: Any) -> TopologyHarness:
    topology = mw.Topology("words")
    topology.source("words", str)
    topology.add(computation, name="fragile", inputs={"words": mw.key(lambda word: word[-1])}, **options)
    return TopologyHarness(topology, hook_timeout_seconds=hook_timeout_seconds)


@pytest.mark.parametrize("computation", [Fragile, AsyncFragile])
def test_a_failing_record_raises_in_the_call_that_sends_it(computation: Any) -> None:
    harness = harness_of(computation)
    harness.send("words", "good a", AT)
    with pytest.raises(ValueError, match="I do not like it") as raised:
        harness.send("words", "bad record a", AT)
    (note,) = raised.value.__notes__
    record = "record of stream 'words' at 1970-01-01T00:00:00.000001Z"
    assert f"computation 'fragile', key 'a', {record}: ValueError: I do not like it" in note
    assert harness.failures == [note]
    assert harness.state("fragile", "a") == 1
    harness.close()


def test_a_failing_timer_raises_in_the_call_that_makes_it_due() -> None:
    harness = harness_of()
    harness.send("words", "bad timer a", AT)
    with pytest.raises(ValueError, match="I do not like it") as raised:
        harness.finish()
    assert "key 'a', timer 'bad timer a' at 1970-01-01T00:00:00.000100Z" in raised.value.__notes__[0]


def test_the_exception_is_the_hooks_own_with_its_traceback() -> None:
    wrong = KeyError("missing")
    harness = harness_of(Fragile(lambda: wrong))
    with pytest.raises(KeyError) as raised:
        harness.send("words", "bad record a", AT)
    assert raised.value is wrong
    assert "process_record" in [entry.name for entry in raised.traceback]


def test_each_attempt_that_fails_is_raised() -> None:
    harness = harness_of(on_failure=mw.retry(initial=mw.seconds(1)))
    with pytest.raises(ValueError, match="I do not like it"):
        harness.send("words", "bad record a", AT)
    with pytest.raises(ValueError, match="I do not like it"):
        harness.advance_clock(mw.seconds(1))
    harness.advance(mw.Timestamp(50))
    with pytest.raises(ValueError, match="I do not like it"):
        harness.crash()


def test_of_several_failures_the_first_is_raised_others_counted() -> None:
    harness = harness_of()
    with pytest.raises(ValueError, match="I do not like it") as raised:
        harness.send_all("words", [(f"bad record {key}", AT) for key in "abc"])
    assert "key 'a'" in raised.value.__notes__[0]
    assert raised.value.__notes__[1] == "2 more failures in this call: TopologyHarness.failures lists them"
    assert len(harness.failures) == 3


def test_a_test_can_go_on_after_a_transient_failure() -> None:
    wrong = True

    class Transient(mw.Computation[str, int]):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
            if wrong:
                raise ConnectionError("not now")
            ctx.state += 1

    harness = harness_of(Transient, on_failure=mw.retry(initial=mw.seconds(1)))
    with pytest.raises(ConnectionError, match="not now"):
        harness.send("words", "a", AT)
    wrong = False
    harness.advance_clock(mw.seconds(1))
    assert harness.state("fragile", "a") == 1


@pytest.mark.parametrize("policy", [mw.dead_letter(after=2, initial=mw.seconds(1)), mw.stop(after=1)])
def test_what_the_policy_deals_with_is_not_raised(policy: mw.FailurePolicy) -> None:
    harness = harness_of(on_failure=policy)
    harness.send("words", "bad record a", AT)
    harness.advance_clock(mw.seconds(5))
    assert len(harness.failures) == (2 if policy.action.name == "DEAD_LETTER" else 1)
    assert bool(harness.stopped("fragile")) == (policy.action.name == "STOP")


class Forgetful(mw.Computation[str, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> Any:
        return asyncio.sleep(1)


class AsyncForgetful(mw.Computation[str, int]):
    async def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> Any:
        return asyncio.sleep(1)


@pytest.mark.parametrize("computation", [Forgetful, AsyncForgetful])
def test_a_hook_that_returns_an_awaitable_is_a_failure(computation: Any) -> None:
    harness = harness_of(computation)
    with pytest.raises(mw.UsageError, match=f"{computation.__name__}.process_record returned coroutine"):
        harness.send("words", "a", AT)
    harness.close()


@pytest.mark.parametrize("wrong", [lambda: SystemExit(3), asyncio.CancelledError])
@pytest.mark.parametrize("computation", [Fragile, AsyncFragile])
def test_what_would_end_the_test_run_is_raised_as_a_failure(
    computation: type[Fragile], wrong: Callable[[], BaseException]
) -> None:
    harness = harness_of(computation(wrong))
    with pytest.raises(RuntimeError, match=r"a hook raised|SystemExit|cancelled"):
        harness.send("words", "bad record a", AT)
    harness.close()


def test_a_value_of_another_type_than_its_stream_fails_there() -> None:
    class Wrong(mw.Computation[str]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[str]) -> None:
            ctx.produce("numbers", "no number")

    harness = harness_of(Wrong, outputs={"numbers": int})
    with pytest.raises(mw.ValueEncodeError, match="stream 'numbers' carries int, not str"):
        harness.send("words", "a", AT)


def test_a_batch_of_which_one_value_is_wrong_is_not_sent_at_all() -> None:
    harness = harness_of()
    with pytest.raises(mw.ValueEncodeError, match="stream 'words' carries str, not int"):
        harness.send_all("words", [("a", AT), (1, AT)])
    assert harness.state("fragile", "a") is None


def test_finish_raises_what_still_fails() -> None:
    """Regression: finish returned without an error, because the call before had already raised the failure."""
    wrong = True

    class Transient(mw.Computation[str, int]):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
            if wrong:
                raise ConnectionError(f"not now, {record.value}")
            ctx.state += 1

    harness = harness_of(Transient, on_failure=mw.retry(initial=mw.seconds(1)))
    with pytest.raises(ConnectionError):
        harness.send_all("words", [("a", AT), ("b", AT)])
    for _ in range(2):
        with pytest.raises(ConnectionError, match="not now, a") as raised:
            harness.finish()
        assert ["key 'a'" in one for one in raised.value.__notes__].count(True) == 1
        assert raised.value.__notes__[-1].startswith("2 keys wait for the next attempt: after advance_clock(...)")
    wrong = False
    harness.advance_clock(mw.seconds(1))
    harness.finish()
    assert harness.state("fragile", "a") == 1


def test_finish_leaves_to_a_policy_what_it_deals_with() -> None:
    harness = harness_of(on_failure=mw.dead_letter(after=2, initial=mw.seconds(1)))
    harness.send("words", "bad record a", AT)
    harness.finish()


def test_nothing_is_sent_after_finish() -> None:
    harness = harness_of()
    harness.finish()
    with pytest.raises(mw.UsageError, match=r"stream 'words' has finished.*send before finish\(\)"):
        harness.send("words", "a", AT)
    harness.finish()


@pytest.mark.parametrize("by", [-1, 0.5])
def test_the_clock_goes_forward(by: Any) -> None:
    harness = harness_of()
    now = harness.now
    with pytest.raises(mw.UsageError, match=f"the clock goes forward, .* not by {by}"):
        harness.advance_clock(by)
    assert harness.now == now
    harness.advance_clock(mw.Duration(0))


def test_keys_are_what_extractors_give() -> None:
    class Alarm(mw.Computation[int, int]):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[int]) -> None:
            ctx.state += 1
            ctx.set_timer(mw.Timestamp(5), "t")

        def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None: ...

    topology = mw.Topology("numbers")
    topology.source("in", int)
    topology.add(Alarm, inputs={"in": mw.key(lambda value: value)})
    harness = TopologyHarness(topology)
    harness.send("in", 7, AT)
    for key in (7, "7"):
        assert harness.state("alarm", key) == 1
        assert harness.timers("alarm", key) == {("t", mw.TimeDomain.EVENT_TIME): 5}
    with pytest.raises(mw.UsageError, match="got float"):
        harness.state("alarm", 7.0)  # type: ignore[arg-type]


def test_names_that_do_not_exist_are_refused_with_the_nearest() -> None:
    harness = harness_of()
    with pytest.raises(
        mw.UsageError, match=r"stream 'word' is no source of topology 'words' \(did you mean 'words'\?\)"
    ):
        harness.send("word", "a", AT)
    with pytest.raises(mw.UsageError, match="stream 'fragile' is no source"):
        harness.advance(AT, "fragile")
    with pytest.raises(mw.UsageError, match=r"has no computation 'fragil' \(did you mean 'fragile'\?\)"):
        harness.state("fragil", "a")


def test_a_source_without_readers_shows_what_was_injected() -> None:
    topology = mw.Topology("sources")
    topology.source("words", str)
    harness = TopologyHarness(topology)
    harness.send("words", "a", AT)
    harness.finish()
    harness.crash()
    assert [(one.value, one.timestamp) for one in harness.produced("words")] == [("a", AT)]


class Endless(mw.Computation[str, int]):
    """Waits without end while ``gone``. ``stubborn``: it ignores its cancellation."""

    def __init__(self, stubborn: bool = False) -> None:
        self.stubborn = stubborn
        self.gone = True
        self.begun: list[str] = []

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
        self.begun.append(record.value)
        while self.gone:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
        ctx.state += 1


@pytest.mark.parametrize("options", [{}, {"on_failure": mw.dead_letter(after=1)}])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_hook_that_awaits_what_never_comes_fails_by_name(stubborn: bool, options: dict[str, Any]) -> None:
    """Regression: the call never returned.

    A failure policy must not hide it, because a cluster would not end such a hook.
    """
    endless = Endless(stubborn)
    harness = harness_of(endless, hook_timeout_seconds=0.05, **options)
    with pytest.raises(HookTimeoutError, match=r"Endless.process_record has not ended after 0.05 s") as raised:
        harness.send("words", "a", AT)
    (note,) = raised.value.__notes__
    assert "computation 'fragile', key 'a', record of stream 'words' at" in note
    endless.gone = False
    harness.close()


class Swallowing(mw.Computation[str, int]):
    """Ignores its cancellation while ``gone``. The cancelled call ends after the next attempt's first step."""

    def __init__(self) -> None:
        self.gone = True
        self.ended: list[str] = []
        self.old_ended = asyncio.Event()

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
        attempt = "old" if self.gone else "new"
        while self.gone:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        ctx.state += 1
        ctx.produce("kept", attempt)
        self.ended.append(attempt)
        if attempt == "old":
            self.old_ended.set()
        await self.old_ended.wait()


@pytest.mark.guarantee("G1", section="4.1")
def test_a_hook_that_has_timed_out_and_goes_on_leaves_no_trace() -> None:
    """Regression: the hook still had the cell of its key, so one record was counted twice."""
    swallowing = Swallowing()
    topology = mw.Topology("w")
    topology.source("words", str)
    topology.add(swallowing, name="swallowing", inputs={"words": mw.key(str)}, outputs={"kept": str})
    harness = TopologyHarness(topology, hook_timeout_seconds=0.05)
    with pytest.raises(HookTimeoutError):
        harness.send("words", "a", AT)
    swallowing.gone = False
    harness.advance_clock(mw.seconds(60))
    assert sorted(swallowing.ended) == ["new", "old"]
    assert harness.state("swallowing", "a") == 1
    assert harness.values("kept") == ["new"]
    harness.crash()
    assert harness.state("swallowing", "a") == 1
    harness.close()


def test_after_an_endless_hook_the_others_begin_in_the_next_call() -> None:
    """Otherwise each of a hundred keys might take a minute."""
    endless = Endless()
    harness = harness_of(endless, hook_timeout_seconds=0.05)
    with pytest.raises(HookTimeoutError):
        harness.send_all("words", [("a", AT), ("b", AT), ("c", AT)])
    assert endless.begun == ["a"]
    endless.gone = False
    harness.advance_clock(mw.seconds(60))
    assert endless.begun == ["a", "b", "c", "a"]
    assert [harness.state("fragile", key) for key in "abc"] == [1, 1, 1]
    harness.close()


def test_a_crash_drops_postponed_hooks_and_they_begin_again() -> None:
    endless = Endless()
    harness = harness_of(endless, hook_timeout_seconds=0.05)
    with pytest.raises(HookTimeoutError):
        harness.send_all("words", [("a", AT), ("b", AT)])
    endless.gone = False
    harness.crash()
    assert [harness.state("fragile", key) for key in "ab"] == [1, 1]
    harness.close()


def test_the_limit_of_hooks_is_a_number_of_seconds_above_zero() -> None:
    with pytest.raises(UsageError, match="hook_timeout_seconds is a number of seconds above 0, not 0"):
        harness_of(hook_timeout_seconds=0)


def test_a_record_that_no_injector_accepts_is_refused() -> None:
    harness = harness_of()
    with pytest.raises(mw.MillwheelError, match="a record of stream 'words'"):
        harness.send_all("words", [("a", AT), ("b" * (2 << 20), AT)])
    assert harness.state("fragile", "a") is None, "none of them is sent"


class Flaky(mw.Computation[str, int]):
    """Fails while ``broken``."""

    broken = True

    def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
        if self.broken:
            raise ValueError("not yet")
        ctx.produce("out", record.value)


@pytest.mark.guarantee("G1")
def test_a_crash_loses_no_record_of_two_streams() -> None:
    """Both records were the first of their streams, and waited under one number. The second replaced the first."""
    flaky, topology = Flaky(), mw.Topology("two")
    streams = ("left", "right")
    for stream in streams:
        topology.source(stream, str)
    keys = dict.fromkeys(streams, mw.key(mw.everything))
    topology.add(flaky, inputs=keys, outputs={"out": str}, on_failure=mw.retry(initial=mw.seconds(1)))
    harness = TopologyHarness(topology)
    for stream in streams:
        with contextlib.suppress(ValueError):
            harness.send(stream, stream, timestamp=AT)
    flaky.broken = False
    harness.crash()
    harness.advance_clock(mw.seconds(60))
    assert sorted(harness.values("out")) == ["left", "right"]


def test_a_letter_says_where_and_when_it_failed() -> None:
    harness = harness_of(on_failure=mw.dead_letter(after=1))
    harness.send("words", "bad record a", AT)
    (letter,) = harness.values("dead-letters")
    assert letter.delivery_key.decode() == letter.key
    assert letter.incarnation.startswith(letter.computation)
    assert (letter.replay_of, letter.code) == (None, ""), "no replay, and no package in the harness"
    assert letter.failed_at > 0
