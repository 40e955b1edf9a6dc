"""Journals under other names: what a takeover makes of them, and what it refuses (6.1.1, 6.2; G1, G12)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.sdk.dead_letters import letter_id, letter_query
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import BatchIds, Dedup, DedupError, Sender, decode_delta, encode_batch_ids
from millwheel.worker.dedup.renaming import renamed_delta, renamed_snapshot
from millwheel.worker.dedup.results import IdDelta
from millwheel.worker.dedup.snapshot import load
from millwheel.worker.interval import renaming
from millwheel.worker.interval.commits.divided import divide, entry_parts, joined
from millwheel.worker.interval.entry import RUNS_FORMAT, IntervalEntry, ProductionRun, decode_entry, encode, encode_part
from millwheel.worker.interval.panes.changes import PaneChange
from millwheel.worker.interval.renaming import renamed_entry, renamed_part
from millwheel.worker.names import RestoredNames
from tests.worker.interval.driver import IntervalDriver

NAMES = {
    "up.1": "up.7",
    "up.1.j2": "up.7.j8",
    "test.1": "test.9",
    "test.1.j1": "test.9.j10",
    "sink:out": "sink.11",
    "shop/dead-letters.log.2": "shop/dead-letters.log.12",
}


def delta(up: str, journal: str) -> IdDelta:
    """Facts of all kinds, of a sending journal and of an injector."""
    return IdDelta(
        positions=[(journal, [1, 2, 5]), ("in/p/0", [7])],
        opaque=[(up, 50, [b"a" * 16, b"b" * 16]), ("injector/in", 60, [b"c" * 16])],
        batches=[("query", 3, [b"d" * 16])],
        admitted=[(journal, ""), ("in/p/0", "injector/in/p")],
        marks=[(journal, 2, [])],
        retired=["gone.1.j1"],
        sequencers=[(up, (b"", None), 4), ("", "injector/in/p", 5)],
        horizons=[(up, 20, 20), ("injector/in", 30, 25)],
        ranges=[("in/p/0", [range(8, 20)]), (journal, [range(30, 32), range(40, 41)])],
    )


def known(deltas: list[IdDelta], journal: str) -> Dedup:
    dedup = Dedup(ALL_KEYS, journal)
    for one in deltas:
        dedup.replay(one)
    return dedup


@pytest.mark.guarantee("G1", section="6.1.1")
def test_renamed_ids_are_those_of_the_fresh_journals() -> None:
    names = RestoredNames(NAMES)
    wire = renamed_delta(delta("up.1", "up.1.j2").to_wire(), names)
    expected = delta("up.7", "up.7.j8")
    del expected.horizons[1]  # the injectors begin again, below their former horizon
    assert decode_delta(wire).to_wire() == expected.to_wire()
    assert names.queries == {"query"}
    former = known([delta("up.1", "up.1.j2")], "test.1.j1").snapshot()
    fresh = known([expected], "test.9.j10").snapshot()
    assert tuple(renamed_snapshot(blob, names) for blob in former.blobs) == fresh.blobs


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("based", ["", "base", "part"], ids=["entries", "base", "base with a part of ids"])
def test_a_letter_that_is_sent_again_after_a_restore_is_known(based: str) -> None:
    names = RestoredNames(NAMES)
    consumed = IdDelta(batches=[(letter_query("shop/dead-letters.log.2"), 1, [letter_id(3)])])
    if based:
        owner, receiver = known([consumed], "test.1.j1"), known([], "test.9.j10")
        owner.segment_ids = 1 if based == "part" else 2
        snapshot = owner.snapshot()
        parts = {
            PartId("dedup/1048576", 1, 1): encode_batch_ids(query, batch, one.ids)
            for query, batch, one in snapshot.batch_ids
        }
        assert len(parts) == (based == "part")
        renamed = {part: renamed_snapshot(blob, names) for part, blob in parts.items()}
        load(receiver.tables, [renamed_snapshot(blob, names) for blob in snapshot.blobs], {}, renamed)
    else:
        receiver = known([decode_delta(renamed_delta(consumed.to_wire(), names))], "test.9.j10")
    log = "shop/dead-letters.log.12"
    sender = Sender(f"replay/{log}", 0, None, f"replay/{log}")
    verdict = receiver.check(BatchIds(letter_query(log), 1, [letter_id(3)]), [b"k"], [1], sender)
    assert list(verdict.duplicates) == [0]


def test_ids_of_another_format_are_refused() -> None:
    names = RestoredNames({})
    assert renamed_delta([], names) == []
    with pytest.raises(DedupError):
        renamed_delta([9, [], [], [], [], [], [], [], []], names)
    with pytest.raises(DedupError):
        renamed_snapshot(encode((9, [])), names)
    with pytest.raises(DedupError):
        renamed_snapshot(encode((1, [["other", "x"]])), names)


class Reminder(mw.Computation[tuple[str, str], int]):
    """A state, a timer and a production for each record, on two streams with one consumer each."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
        ctx.state += 1
        ctx.set_timer(mw.Timestamp(record.timestamp + 100), "later")
        ctx.produce("out", record.value[1])
        ctx.produce("other", record.value[1])

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("out", f"at {timer.timestamp}")


def worked(driver: IntervalDriver) -> IntervalDriver:
    for number in range(5):
        driver.deliver((f"key-{number % 3}", f"value-{number}", number + 1))
        driver.commit_all()
    return driver


def found(driver: IntervalDriver) -> tuple[object, ...]:
    """What a takeover has restored: states, timers, and productions by consumer."""
    state = driver.state
    states = {key: bytes(cell.encoded) for key, cell in state.cells.items()}
    timers = sorted(
        (key, tag, setting.at) for table in state.timers.tables.values() for key, tag, setting in table.items()
    )
    rows = sorted(row for batch in state.outbox for row in state.outbox.rows_of(batch))
    return states, timers, rows


@pytest.mark.guarantee("G12", section="6.2")
def test_a_base_with_windows_by_columns_is_restored() -> None:
    change = PaneChange(0, 10, b"\xa5count", b"\0\0\0\0", [b"key"], [("<i8", b"\3" + bytes(7))], b"")
    part, blob = PartId("panes/0", 7, 9), encode_part([change])
    assert renamed_part(part, blob, RestoredNames(NAMES), part.name) == blob
    with pytest.raises(CorruptValueError, match="not a base part"):
        renamed_part(part, encode_part([[1]]), RestoredNames(NAMES), part.name)


@pytest.mark.guarantee("G12", section="6.2")
@pytest.mark.parametrize("based", [False, True], ids=["entries", "base"])
def test_a_renamed_journal_gives_the_same_state(based: bool) -> None:
    names = RestoredNames(NAMES)
    former = worked(IntervalDriver(Reminder()))
    parts, entries = (dict(former.base().parts), []) if based else ({}, former.entries)
    renamed_parts = {part: renamed_part(part, blob, names, part.name) for part, blob in parts.items()}
    renamed = [renamed_entry(blob, n, {}, names, f"entry {n}", 11)[0] for n, blob in enumerate(entries, 1)]
    states, timers, rows = found(IntervalDriver(Reminder(), parts=parts, entries=entries))
    restored = found(IntervalDriver(Reminder(), parts=renamed_parts, entries=renamed))
    expected = [
        (position, key, stream, value, at, ((IncarnationId("sink.11"), target[1]),), opaque)
        for position, key, stream, value, at, (target,), opaque in rows  # type: ignore[attr-defined]
        if target[0] == "sink:out"
    ]
    assert restored == (states, timers, expected), "what other topologies read is left out"
    assert len(expected) == 5


def test_a_divided_entry_is_renamed_as_a_whole() -> None:
    names = RestoredNames(NAMES)
    whole = worked(IntervalDriver(Reminder())).entries[0]
    small, parts = divide(whole, 3, 1, 40)
    assert len(parts) > 1
    blob, made = renamed_entry(small, 1, parts, names, "entry 1", 11)
    assert {part.sequencer for part in made} == {11}
    assert set(entry_parts(made)) == {1}
    read = decode_entry(joined(blob, 1, made, "entry 1"), "entry 1")
    assert [target for row in read.productions for target, _ in row[5]] == ["sink.11"]
    with pytest.raises(CorruptValueError, match="is needed"):
        renamed_entry(small, 1, {}, names, "entry 1", 11)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_results_by_columns_are_renamed_once_each() -> None:
    sink, fresh = ((IncarnationId("sink:out"), b""),), ((IncarnationId("sink.11"), b""),)
    run = ProductionRun(16, "s", sink, [b"cat", b"dog"], [b"1", b"2"], [(2, 7)])
    row = (18, b"owl", "s", b"3", 8, sink, b"")
    entry = IntervalEntry(RUNS_FORMAT, 0, 0, [], [], [], [], [row], [], [], (0,), runs=[run])
    blob, _ = renamed_entry(encode(entry), 1, {}, RestoredNames(NAMES), "entry 1", 11)
    stored = msgspec.msgpack.decode(blob, type=IntervalEntry)
    assert (stored.format, stored.runs) == (RUNS_FORMAT, [])
    assert stored.productions == [
        (16, b"cat", "s", b"1", 7, fresh, b""),
        (17, b"dog", "s", b"2", 7, fresh, b""),
        (18, b"owl", "s", b"3", 8, fresh, b""),
    ]


@pytest.mark.guarantee("G2", section="6.1.2")
def test_a_read_whose_rows_are_many_bytes_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """One append does not take the rows of a run that it has taken."""
    keys = [b"key-%03d" % at for at in range(100)]
    targets = ((IncarnationId("sink:out"), keys), (IncarnationId("another"), b""))
    run = ProductionRun(16, "s", targets, [(100, b"split")], [b"v"] * 100, list(range(100)))
    entry = encode(IntervalEntry(RUNS_FORMAT, 0, 0, [], [], [], [], [], [], [], (0,), runs=[run]))
    monkeypatch.setattr(renaming, "MAX_ENTRY_BYTES", len(entry))
    small, parts = renamed_entry(entry, 1, {}, RestoredNames(NAMES), "entry 1", 11)
    assert set(entry_parts(parts)) == {1}
    read = decode_entry(joined(small, 1, parts, "entry 1"), "entry 1").productions
    assert [(row[0], row[4], row[5]) for row in read] == [
        (16 + at, at, ((IncarnationId("sink.11"), key),)) for at, key in enumerate(keys)
    ]


@pytest.mark.parametrize(
    ("name", "blob"),
    [("meta/0", b"no part"), ("outbox/0", encode_part("no rows")), ("inherited/0", encode_part([])), ("new/0", b"")],
)
def test_parts_that_no_takeover_reads_are_refused(name: str, blob: bytes) -> None:
    with pytest.raises(CorruptValueError, match=r"entry|part"):
        renamed_part(PartId(name, 1, 1), blob, RestoredNames(NAMES), f"base part {name}")
