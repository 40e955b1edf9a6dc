"""The log of hooks: a traceback once for each kind of error, then a line a minute with counts."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from millwheel.rpc.hook_failures import REMEDY
from millwheel.worker.interval.failing_keys import ErrorKind
from millwheel.worker.interval.hook_meter import SlowBatch
from millwheel.worker.messages import HookFailed, HooksSlow
from millwheel.worker.process.hook_log import LINE_EVERY_US, HookLog

PLACE = ("words", "count")


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def failed(
    number: int, place: str = "words.py:3 in process_record", permanent: bool = False, unkeyed: bool = False
) -> HookFailed:
    try:
        raise ValueError(f"number {number}")
    except ValueError as error:
        kind = ErrorKind("ValueError", place, permanent)
        text = f"key 'k{number}' failed"
        return HookFailed(text, "process_record", kind, error, stopped=False, endless=unkeyed, unkeyed=unkeyed)


class Lines:
    """The logged lines, as texts."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def texts(self) -> list[str]:
        return [one.getMessage() for one in self._caplog.records]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "millwheel.worker")
    return Lines(caplog)


def test_a_traceback_is_logged_once_and_then_a_line_a_minute(lines: Lines) -> None:
    clock = Clock()
    log = HookLog(clock)
    for number in range(601):
        clock.now = number * 1_000_000
        log.failed(PLACE, failed(number))
    texts = lines.texts
    assert sum("Traceback" in text for text in texts) == 1
    assert "number 0" in texts[0]
    assert len(texts) == 11
    assert texts[1] == (
        "computation words/count: process_record raised ValueError at words.py:3 in process_record 60 more times; "
        "the last: key 'k60' failed"
    )


def test_each_place_and_each_computation_has_its_own_traceback(lines: Lines) -> None:
    log = HookLog(Clock())
    for place in ("a.py:1 in f", "a.py:2 in f", "a.py:1 in f"):
        log.failed(PLACE, failed(1, place))
    log.failed(("words", "other"), failed(1, "a.py:1 in f"))
    assert len(lines.texts) == 3


def test_a_dead_letter_without_a_key_is_logged_without_remedy(lines: Lines) -> None:
    """Earlier such failures became dead letters.

    Regression: a blocked key counted as one more of them, without a line of its own.
    """
    log = HookLog(Clock())
    for unkeyed in (False, True, True):
        log.failed(PLACE, failed(1, permanent=True, unkeyed=unkeyed))
    given_up, blocked = lines.texts
    assert (REMEDY in given_up, REMEDY in blocked) == (True, False)


def test_the_last_failures_of_a_series_are_written_too(lines: Lines) -> None:
    clock = Clock()
    log = HookLog(clock)
    for number in range(3):
        log.failed(PLACE, failed(number))
    assert log.pending
    log.flush()
    assert len(lines.texts) == 1, "a minute has not passed"
    clock.now = LINE_EVERY_US
    log.flush()
    assert "2 more times; the last: key 'k2' failed" in lines.texts[-1]
    assert not log.pending


def test_an_error_back_after_an_hour_has_its_traceback_again(lines: Lines) -> None:
    clock = Clock()
    log = HookLog(clock)
    log.failed(PLACE, failed(1))
    clock.now = 3_600_000_000
    log.failed(PLACE, failed(2))
    assert sum("Traceback" in text for text in lines.texts) == 2


def test_an_error_that_no_retry_can_fix_is_logged_as_such(lines: Lines) -> None:
    HookLog(Clock()).failed(PLACE, failed(1, permanent=True))
    assert f"does not pass by trying again: {REMEDY}" in lines.texts[0]
    of_sink = replace(failed(1, permanent=True), remedy="mend the table")
    HookLog(Clock()).failed(PLACE, of_sink)
    assert "does not pass by trying again: mend the table\n" in lines.texts[1]


def test_slow_batches_are_logged_with_time_and_then_counted(lines: Lines) -> None:
    clock = Clock()
    log = HookLog(clock)
    log.slow(PLACE, HooksSlow(SlowBatch("process_record", 1, 1.25, b"k")))
    log.slow(PLACE, HooksSlow(SlowBatch("process_record", 800, 2.0, None)))
    clock.now = LINE_EVERY_US
    log.slow(PLACE, HooksSlow(SlowBatch("process_record", 900, 3.0, None)))
    texts = lines.texts
    assert "computation words/count: one call of process_record for key 'k' kept the event loop for 1.2 s" in texts[0]
    assert "process_record kept the event loop 2 more times, for 5.0 s in all; the last: " in texts[1]
    assert "900 calls of process_record kept the event loop for 3.0 s" in texts[1]
