"""The authority's driver on a store: values are journaled before they are broadcast, also over a bad network (7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from millwheel.authority.broadcasts import Listener
from millwheel.authority.core import CoreSettings
from millwheel.authority.driver import AuthorityStoppedError
from millwheel.authority.group_names import GroupLabels
from millwheel.authority.shard import AuthorityShard, ShardSettings
from millwheel.authority.writer import JournalWriter
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.watermarks import AcceptRefusedError, BroadcastUpdate, Member, WatermarkReport
from millwheel.store.contract import Append, JournalMissingError, PartId, SequencerRefusedError, StateStore
from millwheel.store.memory import MemoryStore
from tests.authority.shard import GROUP, INJECTOR, JOURNAL, STREAM, cut
from tests.faulty_store import FaultyStore
from tests.kept import kept
from tests.patience import patience


async def opened(store: StateStore, sequencer: int = 1, **more: object) -> AuthorityShard:
    if sequencer == 1:
        await store.create_journal(JOURNAL)
    return await AuthorityShard.open(store, JOURNAL, sequencer, **more)  # type: ignore[arg-type]


def said(watermark: int, sequencer: int = 1, keys: KeyInterval = ALL_KEYS) -> list[WatermarkReport]:
    return [WatermarkReport(GROUP, keys, sequencer, watermark)]


async def reaches(updates: AsyncIterator[dict[str, BroadcastUpdate]], watermark: int, name: str = GROUP) -> None:
    """Watch until the watermark of ``name`` is ``watermark``."""
    async for news in updates:
        if name in news and news[name].watermark == watermark:
            return


@pytest.mark.guarantee("G4", section="7.2")
async def test_accept_report_and_watch_work_through_the_driver() -> None:
    open_shard = await opened(MemoryStore())
    updates = open_shard.broadcasts.watch([GROUP, "other.2"])
    first = await anext(updates)
    assert first == {GROUP: BroadcastUpdate(MIN_TIMESTAMP), "other.2": BroadcastUpdate(MIN_TIMESTAMP)}
    assert await open_shard.accept(GROUP, ALL_KEYS, 1) == MIN_TIMESTAMP
    assert await anext(updates) == {GROUP: BroadcastUpdate(MIN_TIMESTAMP, ((ALL_KEYS, 1),))}
    assert await open_shard.report(said(42)) == []
    assert await anext(updates) == {GROUP: BroadcastUpdate(42)}
    with pytest.raises(AcceptRefusedError):
        await open_shard.accept(GROUP, cut(b"m")[0], 1)
    (refusal,) = await open_shard.report(said(50, sequencer=9))
    assert not refusal.superseded
    await open_shard.close()


@pytest.mark.guarantee("G7", section="7.2")
async def test_nothing_is_let_out_before_it_is_journaled() -> None:
    store = FaultyStore()
    open_shard = await opened(store)
    await open_shard.accept(GROUP, ALL_KEYS, 1)
    updates = open_shard.broadcasts.watch([GROUP])
    await anext(updates)
    store.gate.clear()
    accepting = asyncio.create_task(open_shard.accept("other.2", ALL_KEYS, 2))
    await open_shard.report(said(10))
    coming = asyncio.ensure_future(anext(updates))
    await asyncio.sleep(0.05)
    assert store.in_flight == 1
    assert not coming.done()
    assert not accepting.done()
    store.gate.set()
    assert await coming == {GROUP: BroadcastUpdate(10)}
    assert await accepting == MIN_TIMESTAMP
    await open_shard.close()


@pytest.mark.paper(section="7.2")
async def test_changes_during_an_append_share_the_next_one() -> None:
    store = FaultyStore()
    open_shard = await opened(store)
    await open_shard.accept(GROUP, ALL_KEYS, 1)
    before = len(store.appends)
    store.gate.clear()
    updates = open_shard.broadcasts.watch([GROUP])
    for watermark in range(1, 200):
        await open_shard.report(said(watermark))
        if watermark % 20 == 0:
            await asyncio.sleep(0.003)
    store.gate.set()
    await reaches(updates, 199)
    assert store.most_in_flight == 1
    assert len(store.appends) - before <= 3
    await open_shard.close()


@pytest.mark.paper(section="7.2")
async def test_nearby_changes_share_an_append_a_lone_one_does_not_wait() -> None:
    store, pause = FaultyStore(), patience(0.3)
    open_shard = await opened(store, settings=ShardSettings(coalesce=pause))
    await open_shard.accept(GROUP, ALL_KEYS, 1)
    updates = open_shard.broadcasts.watch([GROUP])
    await asyncio.sleep(pause * 1.1)
    store.appends.clear()
    async with asyncio.timeout(pause * 0.9):
        await open_shard.report(said(1))
        await reaches(updates, 1)
    for watermark in range(2, 50):
        await open_shard.report(said(watermark))
    assert len(store.appends) == 1
    await reaches(updates, 49)
    assert len(store.appends) == 2
    await open_shard.close()


async def after_a_slow_append(longest_rest: float) -> tuple[FaultyStore, AuthorityShard]:
    """A shard that has just waited 50 ms for its store, and rests for 1,000 times as long if it may."""
    store = FaultyStore()
    open_shard = await opened(store, settings=ShardSettings(coalesce=0.0, rest=1_000.0, longest_rest=longest_rest))
    store.gate.clear()
    asyncio.get_running_loop().call_later(0.05, store.gate.set)
    await open_shard.accept(GROUP, ALL_KEYS, 1)
    return store, open_shard


@pytest.mark.paper(section="7.2")
async def test_watermarks_leave_a_slow_store_idle_but_calls_do_not() -> None:
    store, open_shard = await after_a_slow_append(longest_rest=50.0)
    # The shard rests for 50 s now.
    store.appends.clear()
    await open_shard.report(said(10))
    await asyncio.sleep(0.05)
    assert store.appends == []
    updates = open_shard.broadcasts.watch([GROUP])
    async with asyncio.timeout(patience(1)):
        await open_shard.accept("other.2", ALL_KEYS, 2)
        await reaches(updates, 10)
    assert len(store.appends) == 1
    await open_shard.close()


@pytest.mark.guarantee("G8", section="7.2")
async def test_watermarks_resume_soon_after_any_store_outage() -> None:
    _, open_shard = await after_a_slow_append(longest_rest=0.05)
    updates = open_shard.broadcasts.watch([GROUP])
    async with asyncio.timeout(patience(1)):
        await open_shard.report(said(10))
        await reaches(updates, 10)
    await open_shard.close()


@pytest.mark.guarantee("G3", section="6.2")
async def test_an_append_of_unknown_outcome_is_repeated_byte_for_byte() -> None:
    store = FaultyStore()
    open_shard = await opened(store)
    await open_shard.accept(GROUP, ALL_KEYS, 1)
    updates = open_shard.broadcasts.watch([GROUP])
    store.appends.clear()
    store.script = ["lost", "unsure"]
    await open_shard.report(said(10))
    await reaches(updates, 10)
    assert len(store.appends) == 3
    assert len(set(store.appends)) == 1
    await open_shard.report(said(11))
    await reaches(updates, 11)
    await open_shard.close()


@pytest.mark.guarantee("G3", section="7.2")
async def test_a_deposed_shard_stops_and_never_broadcasts() -> None:
    store = MemoryStore()
    zombie = await opened(store)
    await zombie.accept(GROUP, ALL_KEYS, 1)
    updates = zombie.broadcasts.watch([GROUP])
    await anext(updates)
    successor = await opened(store, 2)
    await zombie.report(said(1_000))
    accepting = asyncio.create_task(zombie.accept(GROUP, ALL_KEYS, 2))
    with pytest.raises(AuthorityStoppedError, match="deposed"):
        await anext(updates)
    with pytest.raises(AuthorityStoppedError, match="deposed"):
        await accepting
    assert "sequencer 2" in await zombie.wait_stopped()
    for call in (lambda: zombie.report(said(1)), lambda: zombie.remove(GROUP)):
        with pytest.raises(AuthorityStoppedError):
            await call()
    with pytest.raises(AuthorityStoppedError):
        zombie.explain(GROUP)
    answer = successor.explain(GROUP)
    assert answer is not None
    assert (answer.watermark, answer.rows[0].sequencer) == (MIN_TIMESTAMP, 1)
    await successor.close()
    await zombie.close()


@pytest.mark.guarantee("G8")
async def test_a_deposed_shard_with_nothing_to_write_finds_out_itself() -> None:
    store = MemoryStore()
    zombie = await opened(store, settings=ShardSettings(verify=0.05))
    updates = zombie.broadcasts.watch([GROUP])
    await anext(updates)
    successor = await opened(store, 2)
    with pytest.raises(AuthorityStoppedError, match="deposed"):
        await anext(updates)
    await successor.close()
    await zombie.close()


async def test_a_lost_answer_is_no_success_if_another_process_appended() -> None:
    store = FaultyStore()
    zombie = await opened(store)
    await zombie.accept(GROUP, ALL_KEYS, 1)
    store.gate.clear()
    store.script = ["lost"]
    updates = zombie.broadcasts.watch([GROUP])
    await anext(updates)
    await zombie.report(said(10))
    await asyncio.sleep(0.02)
    await store.fence(JOURNAL, 2)
    store.gate.set()
    with pytest.raises(AuthorityStoppedError, match="deposed"):
        await anext(updates)
    await zombie.close()


@pytest.mark.guarantee("G3")
async def test_a_refusal_without_an_unknown_attempt_is_never_success() -> None:
    store = MemoryStore()
    await store.create_journal(JOURNAL)
    await store.fence(JOURNAL, 1)
    await JournalWriter(store, JOURNAL).append(Append(1, 1, 0, (), b"mine"))
    with pytest.raises(SequencerRefusedError):
        await JournalWriter(store, JOURNAL).append(Append(1, 1, 0, (), b"of another process with my sequencer"))


@pytest.mark.guarantee("G7", section="7.2")
async def test_a_successor_starts_from_what_was_broadcast() -> None:
    store = MemoryStore()
    open_shard = await opened(store)
    await open_shard.accept(GROUP, ALL_KEYS, 1)
    updates = open_shard.broadcasts.watch([GROUP])
    await open_shard.report(said(77))
    await reaches(updates, 77)
    await open_shard.close()
    registry = CollectorRegistry()
    labels = GroupLabels("computation", "web", "window-counter", "")
    successor = await opened(store, 2, registry=registry, labels=lambda group: labels)
    first = await anext(successor.broadcasts.watch([GROUP]))
    assert first == {GROUP: BroadcastUpdate(77, ((ALL_KEYS, 1),))}
    assert registry.get_sample_value("millwheel_authority_watermark_seconds", labels._asdict()) == 77e-6
    await successor.close()


@pytest.mark.guarantee("G8")
async def test_changes_without_a_waiting_caller_are_journaled_in_time() -> None:
    store = MemoryStore()
    open_shard = await opened(store, settings=ShardSettings(idle=0.03))
    left, right = cut(b"m")
    await open_shard.accept(GROUP, left, 1)
    await open_shard.accept(GROUP, right, 2)
    before = (await store.read_head(JOURNAL)).commit
    await open_shard.report(said(100, 1, left))
    assert (await store.read_head(JOURNAL)).commit == before
    await asyncio.sleep(0.1)
    assert (await store.read_head(JOURNAL)).commit == before + 1
    await open_shard.close()


async def test_a_base_is_written_at_run_time_and_crash_remains_deleted() -> None:
    store = FaultyStore()
    settings = ShardSettings(coalesce=0.0, core=CoreSettings(snapshot_bytes=2_000))
    open_shard = await opened(store, settings=settings)
    await open_shard.accept(GROUP, ALL_KEYS, 1)
    store.parts = ["lost"]
    updates = open_shard.broadcasts.watch([GROUP])
    for watermark in range(1, 60):
        await open_shard.report(said(watermark))
        await reaches(updates, watermark)
    for _ in range(500):
        if (await store.read_head(JOURNAL)).parts:
            break
        await asyncio.sleep(0.01)
    await open_shard.close()
    orphan = PartId("left behind", 1, 7)
    await store.write_part(JOURNAL, orphan, b"")
    successor = await opened(store, 2)
    head = await store.read_head(JOURNAL)
    assert head.truncation_point > 0
    assert set(await store.list_parts(JOURNAL)) == set(head.parts)
    assert (await anext(successor.broadcasts.watch([GROUP])))[GROUP].watermark == 59
    await successor.close()


@pytest.mark.guarantee("G3", section="6.2")
async def test_an_owner_deposed_while_opening_spares_its_successor() -> None:
    """Regression: the deposed owner deleted base parts as leftovers, because no head named them yet.

    Its successor then named them.
    """
    written = PartId("base", 3, 0)

    class Overtaken(MemoryStore):
        async def list_parts(self, journal: str) -> list[PartId]:
            await self.fence(journal, 3)
            await self.write_part(journal, written, b"")
            return await super().list_parts(journal)

    store = Overtaken()
    await store.create_journal(JOURNAL)
    late = await opened(store, 2)
    await store.append(JOURNAL, Append(3, 1, 1, (written,), b""))
    assert await store.read_parts(JOURNAL, [written]) == [b""]
    await late.close()


@pytest.mark.guarantee("G13", section="7.2")
async def test_a_slow_listener_gets_only_the_newest_value() -> None:
    open_shard = await opened(MemoryStore(), settings=ShardSettings(coalesce=0.0))
    await open_shard.accept(GROUP, ALL_KEYS, 1)
    slow, fast = open_shard.broadcasts.watch([GROUP]), open_shard.broadcasts.watch([GROUP])
    await anext(slow)
    for watermark in range(1, 50):
        await open_shard.report(said(watermark))
        await reaches(fast, watermark)
    assert await anext(slow) == {GROUP: BroadcastUpdate(49)}
    await slow.aclose()
    await fast.aclose()
    assert not kept(open_shard.broadcasts, Listener)
    await open_shard.close()


@pytest.mark.guarantee("G13")
async def test_a_listener_that_missed_many_sequencers_gets_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millwheel.authority.broadcasts.MAX_WAITING_SEQUENCERS", 3)
    open_shard = await opened(MemoryStore(), settings=ShardSettings(coalesce=0.0))
    updates = open_shard.broadcasts.watch([GROUP])
    await anext(updates)
    pieces = cut(b"a", b"b", b"c", b"d", b"e")
    for sequencer, keys in enumerate(pieces, start=1):
        await open_shard.accept(GROUP, keys, sequencer)
    news = await anext(updates)
    assert dict(news[GROUP].sequencers) == dict(zip(pieces, range(1, 7), strict=True))
    await open_shard.close()


@pytest.mark.guarantee("G13")
async def test_a_listener_keeps_a_bounded_number_of_sequencers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.authority.broadcasts.MAX_WAITING_SEQUENCERS", 3)
    listener = Listener([GROUP], lambda group: 0, lambda group: [])
    await listener.next()
    for sequencer, keys in enumerate(cut(b"a", b"b", b"c", b"d", b"e"), start=1):
        listener.publish({}, [(GROUP, keys, sequencer)])
        assert len(kept(listener, KeyInterval)) <= 3


@pytest.mark.guarantee("G13")
async def test_a_listener_of_large_groups_gets_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """To list all members of all groups in one turn would stop the shard. Small groups come together."""
    monkeypatch.setattr("millwheel.authority.broadcasts.MAX_WAITING_SEQUENCERS", 3)
    listed: list[str] = []

    def members_of(group: str) -> list[tuple[Member, int]]:
        listed.append(group)
        members = cut(b"a", b"b", b"c", b"d") if "large" in group else cut()
        return [(keys, 1) for keys in members]

    listener = Listener(["large.1", "large.2", "large.3"], lambda group: 7, members_of)
    found: dict[str, int] = {}
    for calls in range(1, 4):
        listener.publish(dict.fromkeys(listener.groups, 7), [])
        news = await listener.next()
        assert len(listed) == calls, "one large group for each call"
        found |= {group: len(update.sequencers) for group, update in news.items() if update.sequencers}
    assert found == dict.fromkeys(listener.groups, 5)
    assert len(await Listener(["small.1", "small.2"], lambda group: 7, members_of).next()) == 2
    listed.clear()
    listener.publish({}, [(group, ALL_KEYS, 2) for group in listener.groups])
    assert set(await listener.next()) == listener.groups
    assert listed == [], "an acceptance lists no members"


async def test_the_last_value_of_a_removed_group_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits behind the members of another group. Then the group is gone, and has no value any more."""
    monkeypatch.setattr("millwheel.authority.broadcasts.MAX_WAITING_SEQUENCERS", 1)
    listener = Listener(["a", "b"], lambda group: MIN_TIMESTAMP, lambda group: [(ALL_KEYS, 1)])
    listener.publish({"b": MAX_TIMESTAMP}, [])
    assert set(await listener.next()) == {"a"}
    assert (await listener.next())["b"].watermark == MAX_TIMESTAMP


@pytest.mark.paper(section="5.2")
async def test_expected_injectors_and_removal_work_through_the_driver() -> None:
    registry = CollectorRegistry()
    store = MemoryStore()
    open_shard = await opened(store, registry=registry)
    await open_shard.expect_injectors(STREAM, ["a", "b"])
    with pytest.raises(AcceptRefusedError, match="expects no process 'c'"):
        await open_shard.accept(INJECTOR, "c", 1)
    await open_shard.accept(INJECTOR, "a", 1)
    await open_shard.accept(INJECTOR, "b", 2)
    updates = open_shard.broadcasts.watch([INJECTOR])
    await open_shard.report([WatermarkReport(INJECTOR, "a", 1, 5), WatermarkReport(INJECTOR, "b", 2, MAX_TIMESTAMP)])
    await reaches(updates, 5, INJECTOR)
    await open_shard.report([WatermarkReport(INJECTOR, "a", 1, MAX_TIMESTAMP)])
    await reaches(updates, MAX_TIMESTAMP, INJECTOR)
    labels = {"kind": "source", "topology": STREAM, "computation": "", "stream": STREAM}
    assert registry.get_sample_value("millwheel_authority_watermark_seconds", labels) == float("inf")
    assert registry.get_sample_value("millwheel_authority_reports_total") == 3
    assert registry.get_sample_value("millwheel_authority_refused_total", {"reason": "acceptance"}) == 1
    assert (registry.get_sample_value("millwheel_authority_append_seconds_count") or 0) >= 4
    await open_shard.remove(INJECTOR)
    await open_shard.remove("never-there.9")
    assert registry.get_sample_value("millwheel_authority_watermark_seconds", labels) is None
    await open_shard.close()


@pytest.mark.guarantee("G7", section="6.2")
async def test_a_delayed_removal_spares_an_injector_that_is_back() -> None:
    store = MemoryStore()
    open_shard = await opened(store)
    await open_shard.accept(INJECTOR, "a", 41)
    await open_shard.remove(INJECTOR, 40)
    assert open_shard.explain(INJECTOR) is not None
    await open_shard.remove(INJECTOR, 41)
    assert open_shard.explain(INJECTOR) is None
    await open_shard.close()


async def test_a_shard_opens_an_existing_journal_by_a_new_sequencer() -> None:
    store = MemoryStore()
    with pytest.raises(JournalMissingError):
        await AuthorityShard.open(store, JOURNAL, 1)
    open_shard = await opened(store)
    with pytest.raises(SequencerRefusedError):
        await AuthorityShard.open(store, JOURNAL, 1)
    await open_shard.close()


async def test_closing_notifies_all_waiting_callers() -> None:
    store = FaultyStore()
    open_shard = await opened(store)
    store.gate.clear()
    waiting = asyncio.create_task(open_shard.accept(GROUP, ALL_KEYS, 1))
    await asyncio.sleep(0.02)
    await open_shard.close()
    with pytest.raises(AuthorityStoppedError, match="was closed"):
        await waiting
