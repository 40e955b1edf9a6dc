"""Look-ups of states: committed ones only, from the interval's present owner only (sections 4.4 and 6.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_STATE_BYTES
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import state_pb2 as wire
from millwheel.store.contract import CorruptValueError, JournalHead, JournalMissingError, StateRow
from millwheel.store.memory import MemoryStore
from millwheel.worker.messages import AppendEntry
from millwheel.worker.process import state_service
from millwheel.worker.process.owned_states import OwnedStates
from millwheel.worker.process.state_service import FreshHeads, StateService
from tests.patience import patience
from tests.worker.interval.driver import IntervalDriver

JOURNAL = "test.1.j1"
SEQUENCER = 7
"""The journal and the sequencer of an IntervalDriver."""


class Count(mw.Computation[tuple[str, str], int]):
    """Counts the records of each key."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


class Store(MemoryStore):
    """Row "damaged" cannot be read. ``reads`` counts the reads of heads, which wait for ``gate``."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def read_head(self, journal: str) -> JournalHead:
        self.reads += 1
        await self.gate.wait()
        return await super().read_head(journal)

    async def read_states(self, computation: str, keys: Any) -> Any:
        if b"damaged" in keys:
            raise CorruptValueError("row of key b'damaged'", "its checksum does not match")
        return await super().read_states(IncarnationId(computation), keys)


async def owner(
    computation: mw.Computation[Any, Any] | None = None, **options: Any
) -> tuple[IntervalDriver, Store, StateService]:
    """An interval with its service. ``driver.core`` is replaced by None when the interval leaves the process."""
    driver, store = IntervalDriver(computation or Count(), **options), Store()
    await store.create_journal(JOURNAL, commit=3)
    await store.fence(JOURNAL, SEQUENCER)
    owned = OwnedStates(lambda incarnation, key: JOURNAL, lambda journal: driver.core, lambda journal: "", store)
    return driver, store, StateService(owned, store)


def request(*keys: str) -> wire.GetStatesRequest:
    return wire.GetStatesRequest(incarnation=IncarnationId("test.1"), keys=[key.encode() for key in keys])


async def states(service: StateService, *keys: str) -> list[Any]:
    """The decoded states, or errors."""
    answer = await service.answer(request(*keys))
    return [one.error or (msgspec.msgpack.decode(one.state) if one.state else None) for one in answer.states]


@pytest.mark.guarantee("G2", section="4.4")
async def test_a_lookup_waits_for_the_commit_in_flight() -> None:
    driver, _, service = await owner()
    driver.deliver(("k", "", 1))
    lookup = asyncio.create_task(states(service, "k", "other"))
    await asyncio.sleep(0.01)
    assert not lookup.done(), "the state is in memory and not in the journal"
    driver.commit()
    assert await lookup == [1, None]


@pytest.mark.guarantee("G2", section="4.4")
async def test_a_lookup_does_not_show_a_commit_that_failed() -> None:
    driver, _, service = await owner()
    driver.deliver(("k", "", 1))
    lookup = asyncio.create_task(states(service, "k"))
    await asyncio.sleep(0.01)
    driver.core = None  # type: ignore[assignment]  # the append was refused, so the interval has left
    with pytest.raises(RequestError, match="does not own") as refused:
        await lookup
    assert refused.value.reason == "NOT_OWNER"


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_deposed_owner_answers_no_lookup() -> None:
    driver, store, service = await owner()
    driver.deliver(("k", "", 1))
    driver.commit()
    assert await states(service, "k") == [1]
    await store.fence(JOURNAL, SEQUENCER + 1)  # this process does not know of the successor
    with pytest.raises(RequestError, match="does not own"):
        await states(service, "k")


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_sealed_parent_answers_no_lookup() -> None:
    driver, store, service = await owner()
    driver.deliver(("k", "", 1))
    driver.commit()
    await store.seal(JOURNAL, SEQUENCER + 1)
    with pytest.raises(RequestError, match="does not own"):
        await states(service, "k")


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_head_that_was_read_before_the_lookup_proves_nothing() -> None:
    driver, store, service = await owner()
    driver.deliver(("k", "", 1))
    driver.commit()
    store.gate.clear()
    first = asyncio.create_task(states(service, "k"))
    await asyncio.sleep(0)
    later = [asyncio.create_task(states(service, "k")) for _ in range(50)]
    await asyncio.sleep(0)
    store.gate.set()
    assert await asyncio.gather(first, *later) == [[1]] * 51
    assert store.reads == 2, "those that came during the first read share the second one"


async def test_a_failed_read_of_the_head_fails_its_lookups_alone() -> None:
    store = Store()
    heads = FreshHeads(store)
    with pytest.raises(JournalMissingError):
        await heads.read(JOURNAL)
    await store.create_journal(JOURNAL)
    assert (await heads.read(JOURNAL)).commit == 0


@pytest.mark.guarantee("G12", section="8.3")
async def test_an_evicted_key_is_read_from_its_row() -> None:
    driver, store, service = await owner()
    driver.state.cells.evicted = True
    row = StateRow(b"k", 3, msgspec.msgpack.encode(41))
    await store.write_states(IncarnationId("test.1"), JOURNAL, SEQUENCER, [row])
    assert await states(service, "k", "absent") == [41, None]


async def test_a_damaged_row_spoils_its_own_key_alone() -> None:
    driver, store, service = await owner()
    driver.state.cells.evicted = True
    await store.write_states(
        IncarnationId("test.1"), JOURNAL, SEQUENCER, [StateRow(b"k", 3, msgspec.msgpack.encode(41))]
    )
    damaged, intact = await states(service, "damaged", "k")
    assert "checksum" in damaged
    assert intact == 41


@pytest.mark.guarantee("G13", section="8.3")
async def test_large_states_come_in_several_answers() -> None:
    driver, store, service = await owner()
    driver.state.cells.evicted = True
    large = msgspec.msgpack.encode("x" * (MAX_STATE_BYTES - 8))
    keys = [f"k{number:02}" for number in range(40)]
    rows = [StateRow(key.encode(), 3, large) for key in keys]
    await store.write_states(IncarnationId("test.1"), JOURNAL, SEQUENCER, rows)
    left, answers = list(keys), 0
    while left:
        found = await states(service, *left)
        assert 0 < len(found) * len(large) <= 2 * MAX_STATE_BYTES
        left, answers = left[len(found) :], answers + 1
    assert answers == 40


@pytest.mark.guarantee("G8", section="4.4")
async def test_the_first_key_is_answered_beside_large_states() -> None:
    driver, store, service = await owner()
    driver.state.cells.evicted = True
    for key in (b"large", b"larger"):
        driver.state.cells.insert(key, msgspec.msgpack.encode("x" * (3 << 20)))
    await store.write_states(
        IncarnationId("test.1"), JOURNAL, SEQUENCER, [StateRow(b"k", 3, msgspec.msgpack.encode(41))]
    )
    assert (await states(service, "k", "large", "larger"))[0] == 41


class Weak(mw.Computation[tuple[str, str], int]):
    """Passes records on, and keeps nothing of them."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.produce("out", "it")


@pytest.mark.guarantee("G8", section="4.4")
async def test_a_lookup_waits_for_no_commit_that_keeps_nothing() -> None:
    driver, _, service = await owner(Weak(), strong=False, exactly_once=False)
    driver.deliver(("k", "", 1))
    assert driver.state.journal.sealed > driver.state.journal.committed, (
        "the commit waits for the ACK of its production"
    )
    assert await asyncio.wait_for(states(service, "k"), patience(5)) == [None]


async def test_a_request_has_a_bounded_number_of_keys() -> None:
    _, _, service = await owner()
    for keys in ([], ["k"] * 1_001):
        with pytest.raises(RequestError, match="1 to 1,000 keys") as refused:
            await states(service, *keys)
        assert refused.value.code is FailureCode.INVALID_ARGUMENT


@pytest.mark.guarantee("G13", section="8.3")
async def test_lookups_beyond_a_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_service, "MAX_REQUESTS", 2)
    _, store, service = await owner()
    store.gate.clear()
    two = [asyncio.create_task(states(service, "k")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="answering 2 look-ups") as refused:
        await states(service, "k")
    assert refused.value.code is FailureCode.RESOURCE_EXHAUSTED
    store.gate.set()
    assert await asyncio.gather(*two) == [[None], [None]]
    assert await states(service, "k") == [None]


class Renamed(mw.Computation[tuple[str, str], dict[str, int]]):
    """A later version of Count."""

    state_version = 2

    def migrate(self, stored: mw.StoredState) -> dict[str, int]:
        if stored.data == msgspec.msgpack.encode(13):
            raise ValueError("an unlucky number")
        return {"count": stored.read(int)}

    def process_record(self, ctx: mw.Context[dict[str, int]], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1


async def test_a_state_of_an_earlier_version_is_migrated_for_lookups() -> None:
    driver, store, service = await owner(Renamed())
    driver.state.cells.evicted = True
    rows = [StateRow(b"old", 3, msgspec.msgpack.encode(41)), StateRow(b"unlucky", 3, msgspec.msgpack.encode(13))]
    await store.write_states(IncarnationId("test.1"), JOURNAL, SEQUENCER, rows)
    old, unlucky = await states(service, "old", "unlucky")
    assert old == {"count": 41}
    assert "an unlucky number" in unlucky
    driver.state.cells.evicted = False
    driver.deliver(("new", "", 1))
    assert len(driver.take(AppendEntry)) == 1
    driver.state.journal.committed = driver.state.journal.sealed
    assert await states(service, "new") == [{"count": 1}], "without the envelope of its version"
