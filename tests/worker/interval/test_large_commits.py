"""A commit may be larger than an append. Then parts of it are written before the append (6.1.2; G2, G9, G13)."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.keys import KeyInterval
from millwheel.model.limits import MAX_ENTRY_BYTES, MAX_PRODUCTIONS
from millwheel.model.time import Timestamp
from millwheel.store.contract import CorruptValueError, JournalHead, PartId
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.commits.divided import is_entry_part
from millwheel.worker.interval.entry import decode_entry
from millwheel.worker.interval.outbox.flows import INDEX_BITS
from millwheel.worker.messages import (
    Acknowledged,
    AnswerDelivery,
    Appended,
    AppendEntry,
    DeleteParts,
    Deposed,
    FlushStates,
    OpenedParent,
    Parent,
    PartsWritten,
    SendDelivery,
    StatesFlushed,
    Tick,
    WriteParts,
)
from tests.worker.interval.driver import IntervalDriver

SMALL: Final = IntervalSettings(entry_bytes=500)
"""Most entries are divided."""


class Backlog(mw.Computation[tuple[str, str], list[str]]):
    """A record "n size" produces n values of that size, and sets n timers. Each timer produces one value."""

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        count, _, size = record.value[1].partition(" ")
        ctx.state.append(count)
        for number in range(int(count)):
            ctx.produce("out", f"{ctx.key}{number:08d}" + "." * int(size))
            ctx.set_timer(Timestamp(1_000 + number), str(number))

    def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        ctx.produce("other", timer.tag)


def successor(driver: IntervalDriver, **options: Any) -> IntervalDriver:
    """A new owner of the stored journal."""
    return IntervalDriver(Backlog(), entries=driver.entries, parts=driver.parts, **options)


def values(*keys: str, count: int, size: int = 0) -> list[tuple[str, int]]:
    return [(f"{key}{number:08d}" + "." * size, 1) for key in keys for number in range(count)]


@pytest.mark.guarantee("G2", section="6.1.2")
def test_one_hook_call_produces_20_mib_in_one_commit() -> None:
    driver = IntervalDriver(Backlog())
    driver.deliver(("k", "40 500000", 1))
    assert driver.take(AppendEntry) == [], "first the parts"
    assert driver.commit_all() == 1
    assert driver.sent() == values("k", count=40, size=500_000)
    assert len(driver.entries[0]) < 100
    assert max(map(len, driver.parts.values())) <= 4 << 20
    after = successor(driver)
    assert after.sent() == values("k", count=40, size=500_000)
    assert after.state.timers.count == 40


@pytest.mark.guarantee("G9", section="6.1.2")
def test_a_divided_entry_shows_nothing_before_its_append() -> None:
    driver = IntervalDriver(Backlog(), settings=SMALL)
    driver.deliver(("k", "20 50", 1))
    driver.watermark(500)
    (write,) = driver.take(WriteParts)
    driver.deliver(("j", "1 1", 2))
    assert (driver.take(AppendEntry), driver.take(SendDelivery), driver.take(AnswerDelivery)) == ([], [], [])
    driver.handle(PartsWritten(write.number + 1))
    assert driver.take(AppendEntry) == [], "other parts"
    driver.handle(PartsWritten(write.number))
    (append,) = driver.take(AppendEntry)
    assert set(append.append.parts) == set(write.parts)
    assert (driver.take(SendDelivery), driver.take(AnswerDelivery)) == ([], [])
    assert driver.output <= 1, "its record holds the watermark"
    driver.handle(Appended(append.append.commit))
    assert driver.sent() == values("k", count=20, size=50)
    assert len(driver.take(AnswerDelivery)) == 1


@pytest.mark.guarantee("G2", section="6.1.2")
def test_parts_without_their_append_have_no_effect() -> None:
    """The owner dies, or is deposed, between the parts and the append."""
    driver = IntervalDriver(Backlog(), settings=SMALL)
    driver.deliver(("k", "20 50", 1))
    (write,) = driver.take(WriteParts)
    driver.handle(Deposed("a successor"))
    driver.handle(PartsWritten(write.number))
    assert driver.take(AppendEntry) == []
    after = successor(driver, settings=SMALL)
    assert (after.state.counts.records, after.state.timers.count, after.sent()) == (0, 0, [])


def test_an_entrys_parts_are_deleted_after_its_truncation() -> None:
    driver = IntervalDriver(
        Backlog(), settings=IntervalSettings(entry_bytes=500, checkpoint_entries=2, flush_interval=10)
    )
    named: set[PartId] = set()
    deleted: list[PartId] = []
    for number in range(6):
        driver.deliver((f"k{number}", "5 50", number))
        while out := [*driver.take(WriteParts), *driver.take(AppendEntry), *driver.take(FlushStates)]:
            one: Any
            for one in out:
                if isinstance(one, WriteParts):
                    driver.parts.update(one.parts)
                    driver.handle(PartsWritten(one.number))
                elif isinstance(one, FlushStates):
                    driver.handle(StatesFlushed(one.number))
                else:
                    named = set(one.append.parts)
                    above = {part.commit for part in named if is_entry_part(part)}
                    assert above == set(range(one.append.truncation_point + 1, one.append.commit + 1))
                    driver.handle(Appended(one.append.commit))
            driver.now += 20
            driver.handle(Tick())
        deleted += [part for delete in driver.take(DeleteParts) for part in delete.parts]
    assert driver.state.journal.truncation_point > 2
    gone = {part for part in deleted if is_entry_part(part)}
    assert {part.commit for part in gone} == set(range(1, driver.state.journal.truncation_point + 1))
    assert not gone & named
    assert set(driver.state.journal.entry_parts) == set(
        range(driver.state.journal.truncation_point + 1, driver.state.committed + 1)
    )


@pytest.mark.guarantee("G12")
def test_a_base_after_a_divided_entry_and_a_takeover_reads_both() -> None:
    driver = IntervalDriver(Backlog(), settings=IntervalSettings(entry_bytes=500, checkpoint_bytes=1_000))
    driver.deliver(("k", "20 50", 1))
    driver.commit()
    (write,) = driver.take(WriteParts)
    assert any(part.name == "meta" for part in write.parts), "its bytes count"
    after = successor(driver, settings=IntervalSettings(entry_bytes=500, checkpoint_bytes=1_000))
    assert after.state.journal.bytes > 1_000
    assert after.sent() == driver.sent()


@pytest.mark.guarantee("G11", section="7.1")
@pytest.mark.parametrize("cut", ["b", "k", "z"])
def test_children_of_a_split_read_their_parents_divided_entries(cut: str) -> None:
    driver = IntervalDriver(Backlog(), settings=SMALL)
    driver.deliver(("a", "9 50", 1), ("m", "9 50", 1), ("z", "9 50", 1))
    driver.commit_all()
    parent = Parent("test.1.j0", driver.core.keys)
    head = JournalHead(1 << 62, len(driver.entries), 0, tuple(driver.parts))
    opened = OpenedParent(parent, head, dict(driver.parts), driver.entries)
    children = [
        IntervalDriver(Backlog(), settings=SMALL, parents=[opened], keys=keys)
        for keys in (KeyInterval(b"", cut.encode()), KeyInterval(cut.encode(), None))
    ]
    sent = [one for child in children for one in child.sent()]
    assert Counter(sent) == Counter(values("a", "m", "z", count=9, size=50))
    assert sum(child.state.timers.count for child in children) == 27


@pytest.mark.guarantee("G11", section="7.1")
def test_a_child_of_divided_entries_without_base_needs_parents() -> None:
    driver = IntervalDriver(Backlog(), settings=SMALL)
    driver.deliver(("k", "9 50", 1))
    driver.commit_all()
    head = JournalHead(1 << 62, len(driver.entries), 0, tuple(driver.parts))
    parents = [OpenedParent(Parent("test.1.j0", driver.core.keys), head, dict(driver.parts), driver.entries)]
    child = IntervalDriver(Backlog(), settings=SMALL, parents=parents)
    child.position = driver.position
    child.deliver(("l", "9 50", 1))
    child.commit()
    assert all(map(is_entry_part, child.parts))
    after = successor(child, settings=SMALL, parents=parents)
    assert not after.core.independent
    assert sorted(after.sent()) == values("k", "l", count=9, size=50)


@pytest.mark.guarantee("G10", section="6.1.3")
def test_stragglers_beyond_one_entry_are_stored_in_the_commit() -> None:
    driver = IntervalDriver(Backlog(), strong=False, straggler_delay=1_000, settings=SMALL)
    driver.deliver(("k", "20 50", 1))
    sends = driver.take(SendDelivery)
    assert sum(len(send.delivery.values) for send in sends) == 20
    driver.now += 1_000
    driver.handle(Tick())
    (write,) = driver.take(WriteParts)
    for send in sends:
        driver.handle(Acknowledged(send.delivery.token))
    assert driver.take(AnswerDelivery) == []
    driver.waiting.append(write)
    assert driver.commit_all() == 2, "the second journals the ACKs that came while the parts were written"
    assert len(driver.take(AnswerDelivery)) == 1
    assert successor(driver, strong=False).sent() == []


def test_keys_that_change_together_are_one_commit_of_any_size() -> None:
    """No hook runs again because of a lack of room."""
    driver = IntervalDriver(Backlog(), settings=SMALL)
    driver.deliver(*((key, "9 50", 1) for key in "abcdefgh"))
    assert driver.commit_all() == 1
    assert driver.sent() == values(*"abcdefgh", count=9, size=50)


class Slices(mw.Computation[tuple[str, str], list[int]]):
    """Produces a backlog as the error advises: a few values for each timer of a chain."""

    def process_record(self, ctx: mw.Context[list[int]], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state = list(range(int(record.value[1])))
        ctx.set_timer(Timestamp(100))

    def process_timer(self, ctx: mw.Context[list[int]], timer: mw.Timer) -> None:
        for row in ctx.state[:10]:
            ctx.produce("out", str(row))
        del ctx.state[:10]
        if ctx.state:
            ctx.set_timer(timer.timestamp, "next slice")


def test_a_chain_of_timers_produces_a_backlog_in_slices() -> None:
    driver = IntervalDriver(Slices())
    driver.deliver(("k", "35", 1))
    driver.commit_all()
    driver.watermark(200)
    assert driver.commit_all() == 4
    assert driver.sent() == [(str(row), 100) for row in range(35)]


@pytest.mark.guarantee("G9", section="6.1.2")
@given(
    sizes=st.lists(st.lists(st.integers(0, 300), max_size=8), min_size=1, max_size=6),
    most=st.integers(40, 2_000),
    strong=st.booleans(),
    after=st.integers(0, 20),
)
def test_productions_of_any_size_arrive_once_and_in_order(
    sizes: list[list[int]], most: int, strong: bool, after: int
) -> None:
    """The owner is replaced after any step. The next owners send the rest."""
    driver = _Sized.driver(most, strong)
    made: list[str] = []
    seen: dict[Any, str] = {}
    steps = 0
    for number, one in enumerate(sizes):
        made += [f"{number}.{index}." + "." * size for index, size in enumerate(one)]
        driver.deliver(("k", msgspec.json.encode(one).decode(), number + 1))
        while driver.waiting:
            steps += 1
            what = driver.waiting.pop(0)
            if steps == after:
                driver = _Sized.driver(most, strong, driver)
                for again, earlier in enumerate(sizes[: number + 1]):
                    driver.deliver(("k", msgspec.json.encode(earlier).decode(), again + 1))
                continue
            _perform(driver, what, seen)
    assert list(seen.values()) == made


class _Sized(mw.Computation[tuple[str, str], int]):
    """Produces a numbered value of each size that its record names."""

    @staticmethod
    def driver(most: int, strong: bool, before: IntervalDriver | None = None) -> IntervalDriver:
        entries, parts = (before.entries, before.parts) if before else ([], {})
        named = {part: blob for part, blob in parts.items() if part.commit <= len(entries)}
        options: dict[str, Any] = {"strong": strong, "straggler_delay": 1}
        return IntervalDriver(
            _Sized(), entries=entries, parts=named, settings=IntervalSettings(entry_bytes=most), **options
        )

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        for index, size in enumerate(msgspec.json.decode(record.value[1], type=list[int])):
            ctx.produce("out", f"{record.timestamp - 1}.{index}." + "." * size)
        ctx.state += 1


def _perform(driver: IntervalDriver, what: Any, seen: dict[Any, str]) -> None:
    if isinstance(what, WriteParts):
        driver.parts.update(what.parts)
        driver.handle(PartsWritten(what.number))
    elif isinstance(what, AppendEntry):
        driver.entries.append(what.append.entry)
        driver.handle(Appended(what.append.commit))
    elif isinstance(what, FlushStates):
        driver.handle(StatesFlushed(what.number))
    elif isinstance(what, SendDelivery):
        ids: Any = what.delivery.ids
        names = getattr(ids, "positions", None) or ids.ids
        for name, value in zip(names, what.delivery.values, strict=True):
            assert seen.setdefault(name, msgspec.msgpack.decode(value)) == msgspec.msgpack.decode(value)
        driver.handle(Acknowledged(what.delivery.token))


@pytest.mark.parametrize("change", ["missing", "shorter"])
def test_a_divided_entry_without_all_of_its_parts_is_damaged(change: str) -> None:
    driver = IntervalDriver(Backlog(), settings=SMALL)
    driver.deliver(("k", "20 50", 1))
    driver.commit_all()
    last = max(driver.parts, key=lambda part: int(part.name.partition("/")[2]))
    if change == "missing":
        del driver.parts[last]
    else:
        driver.parts[last] = driver.parts[last][:-1]
    with pytest.raises(CorruptValueError, match=r"journal test\.1\.j1, entry 1: its part"):
        successor(driver)


def test_a_reader_that_knows_no_divided_entries_refuses_one() -> None:
    driver = IntervalDriver(Backlog(), settings=SMALL)
    driver.deliver(("k", "20 50", 1))
    driver.commit_all()
    with pytest.raises(CorruptValueError, match="not a journal entry"):
        decode_entry(driver.entries[0], "here")


def test_more_productions_than_a_commit_can_number_fail_the_hook() -> None:
    assert MAX_PRODUCTIONS + MAX_ENTRY_BYTES // 64 < 1 << INDEX_BITS
    driver = IntervalDriver(Backlog(), on_failure=mw.dead_letter(after=1))
    driver.state.scope.most = 10
    driver.deliver(("k", "11 1", 1), ("j", "10 1", 1))
    driver.commit_all()
    assert driver.state.counts.dead_letters == 1
    (message,) = [one.message for one in driver.waiting if hasattr(one, "message")][:1]
    assert "the hooks of key 'k' produce in one commit has 11 records" in message
    assert "ctx.set_timer(" in message
