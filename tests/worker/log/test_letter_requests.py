"""A log keeps what people have done with its dead letters: durable before it is answered, across crashes and bases."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.model.letters import LetterAction, LetterState
from millwheel.rpc.failures import FailureCode
from millwheel.worker import log
from millwheel.worker.log import letter_requests
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogEntry, LogMeta, decode
from millwheel.worker.log.letter_figures import retention_used, unhandled_letters
from millwheel.worker.log.letters import LetterChange
from millwheel.worker.log.messages import LetterInfo
from millwheel.worker.messages import Deposed
from tests.worker.log.driver import SMALL, LogDriver, fill

BEGIN, CONFIRM, DISCARD = LetterAction.BEGIN, LetterAction.CONFIRM, LetterAction.DISCARD
STREAM = "shop/dead-letters"


def letters(count: int = 6) -> LogDriver:
    """A log with dead letters, with a base every few commits."""
    driver = LogDriver(SMALL, stream=STREAM)
    fill(driver, 0, count, 20)
    return driver


def mark(driver: LogDriver, *changes: LetterChange) -> None:
    """Change letters, and wait until that is durable."""
    driver.handle(log.MarkLetters("operator", [(int(action), first, end) for action, first, end in changes]))
    driver.run()
    assert driver.letter_answers.pop() == log.LettersAnswer("operator")


def marks(driver: LogDriver) -> LetterInfo:
    driver.handle(log.ListLetters("operator"))
    found = driver.letter_answers.pop().marks
    assert found is not None
    return found


@pytest.mark.guarantee("G1", section="4.3")
def test_marks_survive_crashes_and_bases() -> None:
    driver = letters()
    mark(driver, (BEGIN, 1, 3))
    mark(driver, (CONFIRM, 1, 2), (DISCARD, 5, 6))
    expected = [(LetterState.REPLAYED, 1, 2), (LetterState.IN_REPLAY, 2, 3), (LetterState.DISCARDED, 5, 6)]
    for number in range(6, 12):
        assert (marks(driver).runs, marks(driver).batch) == (expected, 1)
        driver.crash(applied=True)
        assert (marks(driver).runs, marks(driver).batch) == (expected, 1)
        fill(driver, number, 1, 20)  # a base comes with every fourth commit
    mark(driver, (CONFIRM, 2, 3))
    mark(driver, (BEGIN, 3, 4))
    driver.crash(applied=True)
    assert marks(driver).batch == 2


@pytest.mark.guarantee("G1", section="4.3")
def test_a_change_is_answered_when_it_is_durable() -> None:
    driver = letters()
    driver.handle(log.MarkLetters("operator", [(BEGIN, 0, 2)]))
    assert driver.letter_answers == []
    assert marks(driver).runs == []
    driver.crash(applied=False)
    assert driver.letter_answers == []
    assert marks(driver).runs == []


def test_a_lost_log_answers_its_requests() -> None:
    driver = letters()
    driver.handle(log.MarkLetters("waits", [(BEGIN, 0, 2)]))
    driver.handle(log.MarkLetters("behind", [(BEGIN, 2, 3)]))
    driver.handle(Deposed("a successor"))
    driver.handle(log.ListLetters("later"))
    failed = {one.asker: one.error.code for one in driver.letter_answers if one.error is not None}
    assert failed == dict.fromkeys(("waits", "behind", "later"), FailureCode.UNAVAILABLE)


def test_what_cannot_be_marked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_requests, "MAX_IN_BATCH", 3)
    monkeypatch.setattr(letter_requests, "MAX_MARKS", 5)
    refused: list[tuple[FailureCode, str]] = []
    plain, driver = LogDriver(SMALL), letters()
    plain.handle(log.ListLetters("operator"))
    driver.handle(log.MarkLetters("operator", [(BEGIN, 5, 7)]))
    driver.handle(log.MarkLetters("operator", [(BEGIN, 0, 2)]))
    driver.handle(log.MarkLetters("operator", [(BEGIN, 2, 4)]))
    driver.run()
    driver.handle(log.MarkLetters("operator", [(DISCARD, 3, 4)]))
    driver.run()
    driver.handle(log.MarkLetters("operator", [(DISCARD, 5, 6)]))
    for answer in (*plain.letter_answers, *driver.letter_answers):
        if answer.error is not None:
            refused.append((answer.error.code, answer.error.reason))
    assert refused == [
        (FailureCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        (FailureCode.OUT_OF_RANGE, "OUT_OF_RANGE"),
        (FailureCode.RESOURCE_EXHAUSTED, "LETTERS_IN_REPLAY"),
        (FailureCode.RESOURCE_EXHAUSTED, "LETTERS_SCATTERED"),
    ]


@pytest.mark.guarantee("G8", section="4.3")
def test_a_killed_replay_goes_on_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its letters began once. That was refused when as many letters were in replay as may be, and no replay went on."""
    monkeypatch.setattr(letter_requests, "MAX_IN_BATCH", 3)
    driver = letters()
    mark(driver, (BEGIN, 0, 3))
    mark(driver, (BEGIN, 0, 3))
    mark(driver, (BEGIN, 1, 2), (CONFIRM, 0, 3))
    mark(driver, (BEGIN, 3, 6))
    assert marks(driver).batch == 2


@pytest.mark.guarantee("G13", section="4.3")
def test_a_letter_that_stays_in_replay_bounds_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch goes on, and receivers keep the ids of each letter that was replayed meanwhile."""
    monkeypatch.setattr(letter_requests, "MAX_IN_BATCH", 3)
    driver = letters(12)
    mark(driver, (BEGIN, 0, 1))
    for offset in (1, 2):
        mark(driver, (BEGIN, offset, offset + 1))
        mark(driver, (CONFIRM, offset, offset + 1))
    for number in range(12, 17):  # with bases
        driver.handle(log.MarkLetters("operator", [(BEGIN, 3, 4)]))
        error = driver.letter_answers.pop().error
        assert error is not None
        assert error.reason == "LETTERS_IN_REPLAY"
        fill(driver, number, 1, 20)
        driver.crash(applied=True)
    mark(driver, (LetterAction.DISCARD_ALSO_IN_REPLAY, 0, 1))
    mark(driver, (BEGIN, 3, 6))
    assert marks(driver).batch == 2


def test_a_log_drops_the_marks_of_dropped_letters() -> None:
    retention = log.LogRetention(max_bytes=400, stated=True)
    driver = LogDriver(SMALL, retention, stream=STREAM)
    fill(driver, 0, 4, 60)
    mark(driver, (BEGIN, 0, 2), (DISCARD, 2, 4))
    fill(driver, 4, 20, 60)
    found = marks(driver)
    assert found.start >= 4
    assert found.runs == []
    assert driver.core.state.letters.handled() == 0


def test_values_without_marks_are_read() -> None:
    entry = LogEntry(LOG_ENTRY_FORMAT, 0, 0, 0, [], [], [], 0, [], [], [], (0, 0, 0))
    meta = LogMeta(LOG_ENTRY_FORMAT, 0, 0, 0, [], [], (0, 0, 0))
    former_entry = msgspec.msgpack.encode(msgspec.to_builtins(entry)[:-1])
    assert decode(former_entry, LogEntry, "entry") == entry
    for fields in (1, 2):
        former_meta = msgspec.msgpack.encode(msgspec.to_builtins(meta)[:-fields])
        assert decode(former_meta, LogMeta, "meta") == meta


def test_operators_see_how_long_unhandled_letters_stay() -> None:
    driver = LogDriver(SMALL, log.LogRetention(max_age=8_000_000, max_bytes=10_000, stated=True), stream=STREAM)
    state = driver.core.state
    assert (unhandled_letters(state), retention_used(state)) == (0, 0.0)
    fill(driver, 0, 3, 60)
    assert unhandled_letters(state) == 3
    assert retention_used(state) == pytest.approx(3 * (60 + 16) / 10_000)
    driver.pass_time(4_000_000)
    driver.run()
    assert 0.4 < retention_used(state) <= 0.5
    fill(driver, 3, 1, 60)
    mark(driver, (BEGIN, 0, 3))
    assert (unhandled_letters(state), retention_used(state) > 0.4) == (4, True), "a replay may still fail"
    mark(driver, (CONFIRM, 0, 3))
    assert (unhandled_letters(state), retention_used(state) < 0.1) == (1, True)
    mark(driver, (DISCARD, 3, 4))
    assert (unhandled_letters(state), retention_used(state)) == (0, 0.0)
