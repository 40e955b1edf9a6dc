"""What an interval's owner says of a key that waits, and of what holds the interval's watermark."""

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
from millwheel.worker.messages import StatesRead, Tick
from millwheel.worker.process.inspection import InspectionService
from millwheel.worker.process.owned_states import OwnedStates
from tests.worker.interval.solo import Solo


class Picky(mw.Computation[tuple[str, str], int]):
    """Raises for "bad"."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        if record.value[1] == "bad":
            raise ValueError("no")


class Damaged(MemoryStore):
    """No row of it can be read."""

    async def read_states(self, computation: str, keys: Any) -> Any:
        raise CorruptValueError("row of key b'k'", "its checksum does not match")


def service(solo: Solo, store: MemoryStore | None = None, append_seconds: float = 60) -> InspectionService:
    store = store or MemoryStore()
    owned = OwnedStates(lambda incarnation, key: "solo.1.j1", lambda journal: solo.core, lambda journal: "", store)
    return InspectionService(owned, store, wire.GetWorkerLoadResponse, append_seconds)


async def inspected(
    solo: Solo, store: MemoryStore | None = None, append_seconds: float = 60
) -> wire.InspectKeyResponse:
    return await service(solo, store, append_seconds).InspectKey(
        wire.InspectKeyRequest(incarnation=IncarnationId("solo.1"), key=b"k"), None
    )


async def status(solo: Solo) -> wire.GetIntervalStatusResponse:
    return await service(solo).GetIntervalStatus(wire.GetIntervalStatusRequest(journal="solo.1.j1"), None)


def again(solo: Solo, after: int = 0) -> None:
    solo.now += after
    solo.handle(Tick())
    solo.commit_all()


async def test_a_blocked_key_shows_error_attempts_and_next_attempt() -> None:
    solo = Solo(Picky(), on_failure=mw.retry(initial=seconds(2)))
    solo.deliver(("k", "good", 1), ("k", "bad", 2))
    began = solo.now
    solo.commit_all()
    again(solo, seconds(2))
    answer = await inspected(solo)
    assert (answer.failure.error, answer.failure.message, answer.failure.hook) == ("ValueError", "no", "process_record")
    assert (answer.failure.attempts, answer.failure.since_us, answer.failure.last_us) == (2, began, solo.now)
    assert answer.failure.next_attempt_us == solo.now + seconds(4)
    assert answer.waits == "for its next attempt, after a failure"
    assert answer.state_text == "1", "what the last commit left"


async def test_a_dead_letter_without_a_key_is_shown_beside_hook_errors() -> None:
    solo = Solo(Picky(), on_failure=mw.dead_letter(after=1))

    def no_key(letter: Any) -> Any:
        raise KeyExtractionError("why", computation="repair")

    solo.state.scope.outputs["dead-letters"].route = no_key
    solo.deliver(("k", "bad", 2))
    solo.commit_all()
    answer = await inspected(solo)
    assert (answer.failure.error, answer.failure.message) == ("ValueError", "no")
    problem = "its dead letter has no key at computation `repair`: KeyExtractionError: why: fix `repair`'s key function"
    assert answer.failure.dead_letter_problem == problem
    assert failure_text(answer.failure, solo.now).endswith(problem)


async def test_a_key_of_a_stopped_computation_waits_for_an_update() -> None:
    solo = Solo(Picky(), on_failure=mw.stop(after=1))
    solo.deliver(("k", "bad", 2))
    answer = await inspected(solo)
    assert not answer.failure.HasField("next_attempt_us")
    assert answer.waits.startswith("for an update")
    assert "ValueError: no" in answer.stopped


async def test_a_key_whose_row_is_damaged_is_shown_with_its_failure() -> None:
    """Regression: the answer was an error alone, and showed nothing of the key."""
    solo = Solo(Picky(), on_failure=mw.retry(initial=seconds(2)))
    solo.state.cells.evicted = True
    solo.deliver(("k", "good", 1))
    solo.handle(StatesRead([b"k"], [None], {b"k": "row of key b'k': its checksum does not match"}))
    answer = await inspected(solo, Damaged())
    assert "checksum" in answer.state_error
    assert (answer.failure.error, answer.failure.attempts, answer.pending_records) == ("StateDamagedError", 1, 1)


@pytest.mark.guarantee("G8", section="4.5")
async def test_the_owner_reports_what_holds_its_watermark_now() -> None:
    solo = Solo(Picky(), on_failure=mw.retry(initial=seconds(2)))
    solo.watermark(1)
    solo.deliver(("k", "bad", 2))
    solo.watermark(50)
    again(solo, seconds(2))
    answer = await status(solo)
    assert answer.hold.kind == HoldKind.HOLD_KIND_RECORD
    assert "key 'k' waits for its next attempt after 2 failed: ValueError at test_inspection.py" in answer.hold.subject
    assert (answer.failures.blocked_keys, answer.failures.oldest[0].key) == (1, b"k")
    assert [(one.hook, one.failures) for one in answer.hooks] == [("process_record", 2)]


async def test_a_key_is_shown_as_its_last_commit_leaves_it() -> None:
    """Regression: the answer showed sealed effects under the number of the commit before."""
    solo = Solo(Picky())
    solo.deliver(("k", "good", 1))
    asked = asyncio.create_task(inspected(solo))
    await asyncio.sleep(0)
    solo.commit_all()
    answer = await asked
    assert (answer.state_text, answer.commit, answer.sealed_commit) == ("1", 1, 0)


async def test_a_commit_that_the_store_does_not_take_is_named() -> None:
    solo = Solo(Picky())
    solo.deliver(("k", "good", 1))
    solo.commit_all()
    solo.deliver(("k", "good", 2))
    answer = await inspected(solo, append_seconds=0)
    assert (answer.state_text, answer.commit, answer.sealed_commit) == ("2", 1, 2)
