"""An interval's owner explains why a key waits, and which work holds the interval's watermark."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import seconds
from millwheel.rpc.hook_failures import failure_text
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.sdk.errors import KeyExtractionError
from millwheel.store.contract import CorruptValueError
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import StatesRead, Tick
from millwheel.worker.process.inspection import InspectionService
from millwheel.worker.process.owned_states import OwnedStates
from tests.worker.interval.driver import IntervalDriver


class Picky(mw.Computation[tuple[str, str], int]):
    """Raises for "bad"."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        if record.value[1] == "bad":
            raise ValueError("no")


class Damaged(MemoryStore):
    """A store in which no row can be read."""

    async def read_states(self, computation: str, keys: Any) -> Any:
        raise CorruptValueError("row of key b'k'", "its checksum does not match")


def service(driver: IntervalDriver, store: MemoryStore | None = None, append_seconds: float = 60) -> InspectionService:
    store = store or MemoryStore()
    owned = OwnedStates(lambda incarnation, key: "test.1.j1", lambda journal: driver.core, lambda journal: "", store)
    return InspectionService(owned, store, wire.GetWorkerLoadResponse, append_seconds)


async def inspected(
    driver: IntervalDriver, store: MemoryStore | None = None, append_seconds: float = 60
) -> wire.InspectKeyResponse:
    return await service(driver, store, append_seconds).InspectKey(
        wire.InspectKeyRequest(incarnation=IncarnationId("test.1"), key=b"k"), None
    )


async def status(driver: IntervalDriver) -> wire.GetIntervalStatusResponse:
    return await service(driver).GetIntervalStatus(wire.GetIntervalStatusRequest(journal="test.1.j1"), None)


def again(driver: IntervalDriver, after: int = 0) -> None:
    driver.now += after
    driver.handle(Tick())
    driver.commit_all()


async def test_a_blocked_key_shows_error_attempts_and_next_attempt() -> None:
    driver = IntervalDriver(Picky(), on_failure=mw.retry(initial=seconds(2)))
    driver.deliver(("k", "good", 1), ("k", "bad", 2))
    began = driver.now
    driver.commit_all()
    again(driver, seconds(2))
    answer = await inspected(driver)
    assert (answer.failure.error, answer.failure.message, answer.failure.hook) == ("ValueError", "no", "process_record")
    assert (answer.failure.attempts, answer.failure.since_us, answer.failure.last_us) == (2, began, driver.now)
    assert answer.failure.next_attempt_us == driver.now + seconds(4)
    assert answer.waits == "for its next attempt, after a failure"
    assert answer.state_text == "1", "what the last commit left"


async def test_a_dead_letter_without_a_key_is_shown_beside_hook_errors() -> None:
    driver = IntervalDriver(Picky(), on_failure=mw.dead_letter(after=1))

    def no_key(letter: Any) -> Any:
        raise KeyExtractionError("why", computation="repair")

    driver.state.scope.outputs["dead-letters"].route = no_key
    driver.deliver(("k", "bad", 2))
    driver.commit_all()
    answer = await inspected(driver)
    assert (answer.failure.error, answer.failure.message) == ("ValueError", "no")
    problem = "its dead letter has no key at computation `repair`: KeyExtractionError: why: fix `repair`'s key function"
    assert answer.failure.dead_letter_problem == problem
    assert failure_text(answer.failure, driver.now).endswith(problem)


async def test_a_key_of_a_stopped_computation_waits_for_an_update() -> None:
    driver = IntervalDriver(Picky(), on_failure=mw.stop(after=1))
    driver.deliver(("k", "bad", 2))
    answer = await inspected(driver)
    assert not answer.failure.HasField("next_attempt_us")
    assert answer.waits.startswith("for an update")
    assert "ValueError: no" in answer.stopped


async def test_a_key_whose_row_is_damaged_is_shown_with_its_failure() -> None:
    """Regression: the answer was an error alone, and showed nothing of the key."""
    driver = IntervalDriver(Picky(), on_failure=mw.retry(initial=seconds(2)))
    driver.state.cells.evicted = True
    driver.deliver(("k", "good", 1))
    driver.handle(StatesRead([b"k"], [None], {b"k": "row of key b'k': its checksum does not match"}))
    answer = await inspected(driver, Damaged())
    assert "checksum" in answer.state_error
    assert (answer.failure.error, answer.failure.attempts, answer.pending_records) == ("StateDamagedError", 1, 1)


@pytest.mark.guarantee("G8", section="4.5")
async def test_the_owner_reports_what_holds_its_watermark_now() -> None:
    driver = IntervalDriver(Picky(), on_failure=mw.retry(initial=seconds(2)))
    driver.watermark(1)
    driver.deliver(("k", "bad", 2))
    driver.watermark(50)
    again(driver, seconds(2))
    answer = await status(driver)
    assert answer.hold.kind == HoldKind.HOLD_KIND_RECORD
    assert "key 'k' waits for its next attempt after 2 failed: ValueError at test_inspection.py" in answer.hold.subject
    assert (answer.failures.blocked_keys, answer.failures.oldest[0].key) == (1, b"k")
    assert [(one.hook, one.failures) for one in answer.hooks] == [("process_record", 2)]


@pytest.mark.guarantee("G8", section="4.5")
async def test_records_that_came_together_hold_it_together() -> None:
    """Regression: one key seemed to be starved, while its delivery of an outage was worked off in order."""
    driver = IntervalDriver(Picky(), settings=IntervalSettings(batch_records=1))
    driver.watermark(1)
    driver.deliver(("k", "good", 2), ("l", "good", 3), ("m", "good", 4))
    driver.watermark(50)
    answer = await status(driver)
    assert answer.hold.subject.endswith(
        "in the queue, one of 3 records that came together and hold it until all are done"
    )
    (receipt,) = driver.state.intake.unfinished
    driver.state.intake.set_aside(receipt, 1)
    driver.state.intake.requeue([(receipt, 1)])
    answer = await status(driver)
    assert "key 'l' of stream 'in' in the queue, one of 3 records" in answer.hold.subject, "a key is tried again"


async def test_a_key_is_shown_as_its_last_commit_leaves_it() -> None:
    """Regression: the answer showed sealed effects under the number of the commit before."""
    driver = IntervalDriver(Picky())
    driver.deliver(("k", "good", 1))
    asked = asyncio.create_task(inspected(driver))
    await asyncio.sleep(0)
    driver.commit_all()
    answer = await asked
    assert (answer.state_text, answer.commit, answer.sealed_commit) == ("1", 1, 0)


class Latest(mw.Computation[tuple[str, str], list[mw.Timestamp]]):
    def process_record(self, ctx: mw.Context[list[mw.Timestamp]], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state = [record.timestamp]


async def test_a_time_of_a_state_is_shown_as_one() -> None:
    driver = IntervalDriver(Latest())
    driver.deliver(("k", "good", 1))
    driver.commit_all()
    answer = await inspected(driver)
    assert (answer.state_text, answer.state_shown) == ("[1]", '["1970-01-01T00:00:00.000001Z"]')


async def test_a_commit_that_the_store_does_not_take_is_named() -> None:
    driver = IntervalDriver(Picky())
    driver.deliver(("k", "good", 1))
    driver.commit_all()
    driver.deliver(("k", "good", 2))
    answer = await inspected(driver, append_seconds=0)
    assert (answer.state_text, answer.commit, answer.sealed_commit) == ("2", 1, 2)
