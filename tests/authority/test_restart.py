"""The authority's journal: restarts, base parts, deposed shards (G3, G7; section 7.2)."""

from __future__ import annotations

import pytest

from millwheel.authority.base import BaseSnapshot
from millwheel.authority.core import AuthorityCore, CoreSettings
from millwheel.authority.journal import AuthorityEntry, Part, decode_entry, decode_part, encode
from millwheel.authority.messages import AppendJournaled, BroadcastValues, SnapshotWritten, WriteSnapshot
from millwheel.authority.pace import PaceSettings
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.watermarks import Member, WatermarkReport
from millwheel.store.contract import CorruptValueError, SequencerRefusedError
from millwheel.testing.store_effects import result_of
from tests.authority.shard import GROUP, INJECTOR, JOURNAL, Shard, by_columns, cut

LEFT, RIGHT = cut(b"m")
SMALL = CoreSettings(entry_bytes=200, part_bytes=150, snapshot_bytes=1_000)


def state(core: AuthorityCore) -> object:
    """Everything that is journaled of a core."""
    return {
        group.name: (
            group.value,
            [(state.member, state.sequencer, state.watermark, state.idle) for state in group.states()],
        )
        for group in core.registry  # all that a restart knows
    }


@pytest.mark.guarantee("G7", section="7.2")
def test_a_restart_broadcasts_the_same_values() -> None:
    shard = Shard()
    shard.own_all([LEFT, RIGHT])
    shard.report(LEFT, 1, 10)
    shard.report(RIGHT, 2, 20)
    shard.accept("a", 3, INJECTOR)
    shard.inject("a", 3, 30)
    before = state(shard.core)
    core = shard.restart()
    assert core.broadcasts() == {GROUP: 10, INJECTOR: 30}
    assert state(core) == before
    assert shard.report(LEFT, 1, 40) == 20, "owners go on with what they hold"


@pytest.mark.guarantee("G7")
def test_a_successor_broadcasts_what_was_journaled_but_not_sent() -> None:
    shard = Shard()
    shard.own_all()
    shard.say(ALL_KEYS, 1, 100)
    shard.append()
    assert shard.known() == MIN_TIMESTAMP
    shard.restart()
    assert shard.known() == 100


@pytest.mark.guarantee("G7")
def test_what_was_not_journaled_has_no_effect_after_a_restart() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 10)
    shard.say(ALL_KEYS, 1, 100)
    shard.restart()
    assert shard.known() == 10
    assert shard.report(ALL_KEYS, 1, 100) == 100


@pytest.mark.guarantee("G3", section="7.2")
def test_a_deposed_shard_cannot_append_and_so_never_broadcasts() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 10)
    zombie = shard.core
    successor = shard.restart()
    shard.core = zombie
    shard.say(ALL_KEYS, 1, 1_000)
    with pytest.raises(SequencerRefusedError):
        shard.append()
    assert shard.known() == 10
    shard.core = successor
    assert shard.report(ALL_KEYS, 1, 11) == 11


def test_a_cut_intervals_rest_keeps_its_value_through_a_restart() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 10)
    shard.accept(LEFT, 2)
    shard.report(LEFT, 2, 90)
    shard.restart()
    assert shard.known() == 10
    assert shard.core.sequencers(GROUP) == [(LEFT, 2), (RIGHT, 1)]
    shard.accept(RIGHT, 3)
    assert shard.report(RIGHT, 3, 50) == 50


def test_a_value_reported_before_a_cut_is_journaled_for_the_rest() -> None:
    shard = Shard()
    shard.own_all([LEFT, RIGHT])
    shard.report(LEFT, 1, 5)
    shard.say(RIGHT, 2, 80)
    shard.begin_accept(cut(b"p", b"t")[1], 3)
    shard.flush()
    before = state(shard.core)
    assert state(shard.restart()) == before


@pytest.mark.paper(section="7.2")
def test_the_journal_stays_short_and_restarts_read_the_base() -> None:
    shard = Shard(SMALL)
    shard.own_all(cut(*(b"key-%02d" % n for n in range(20))))
    shard.accept("a", 100, INJECTOR)
    shard.accept("b", 101, INJECTOR)
    for value in range(200):
        for keys, sequencer in shard.core.sequencers(GROUP):
            shard.say(keys, sequencer, value)
        shard.say("a", 100, value, INJECTOR)
        shard.flush()
    shard.say("a", 100, 1_000, INJECTOR, idle=True)
    shard.flush()
    assert shard.snapshots > 3
    head = result_of(shard.store.read_head(JOURNAL))
    assert head.commit - head.truncation_point < 40, f"{head.commit - head.truncation_point} entries of {head.commit}"
    assert set(result_of(shard.store.list_parts(JOURNAL))) >= set(head.parts)
    assert len(result_of(shard.store.list_parts(JOURNAL))) <= 2 * len(head.parts), "old parts go"
    before = state(shard.core)
    assert state(shard.restart()) == before
    assert shard.known() == 199


def test_a_base_holds_expected_sets_removals_and_old_values() -> None:
    shard = Shard(SMALL)
    shard.expect("a", "b")
    shard.own_all([ALL_KEYS])
    shard.report(ALL_KEYS, 1, 10)
    shard.accept(ALL_KEYS, 2, "gone.4")
    shard.remove("gone.4")
    shard.accept(ALL_KEYS, 5, "busy.5")
    for value in range(100):
        shard.report(ALL_KEYS, 5, value, "busy.5")
    head = result_of(shard.store.read_head(JOURNAL))
    assert head.truncation_point > 6, "the entries above are gone"
    shard.restart()
    assert shard.core.broadcasts() == {GROUP: 10, "busy.5": 99, INJECTOR: MIN_TIMESTAMP}
    assert shard.say(ALL_KEYS, 2, 1, "gone.4")[0].superseded
    shard.accept("a", 1, INJECTOR)
    assert shard.inject("a", 1, 5) == MIN_TIMESTAMP, "b is still expected"


def until_snapshot(shard: Shard, intervals: int) -> tuple[BaseSnapshot, int]:
    """Let all of ``intervals`` intervals report until the shard wants a base written; the value they reached."""
    for sequencer, keys in enumerate(cut(*(b"%02d" % n for n in range(intervals - 1))), start=1):
        shard.begin_accept(keys, sequencer)
    value = 0
    while True:
        value += 1
        for member, sequencer in shard.core.sequencers(GROUP):
            shard.say(member, sequencer, value)
        while shard.append():
            effects = shard.post(AppendJournaled())
            snapshot = next((one.snapshot for one in effects if isinstance(one, WriteSnapshot)), None)
            shard.perform(one for one in effects if not isinstance(one, WriteSnapshot))
            if snapshot is not None:
                return snapshot, value


def test_a_base_whose_parts_no_append_has_named_is_not_read() -> None:
    shard = Shard(SMALL)
    snapshot, value = until_snapshot(shard, 8)
    for part, blob in snapshot.parts():
        result_of(shard.store.write_part(JOURNAL, part, blob))
    shard.flush()
    head = result_of(shard.store.read_head(JOURNAL))
    assert (head.parts, head.truncation_point) == ((), 0)
    before = state(shard.core)
    assert state(shard.restart()) == before
    assert shard.known() == value


@pytest.mark.guarantee("G7")
def test_a_base_written_amid_moves_and_reports_loses_nothing() -> None:
    shard = Shard(SMALL)
    snapshot, value = until_snapshot(shard, 16)
    parts = 0
    for parts, (part, blob) in enumerate(snapshot.parts(), start=1):
        result_of(shard.store.write_part(JOURNAL, part, blob))
        shard.accept(cut(b"%02d" % parts, b"%02d5" % parts)[1], 100 + parts)
        for keys, sequencer in shard.core.sequencers(GROUP):
            shard.say(keys, sequencer, value + parts)
        shard.flush()
    assert parts > 3
    shard.post(SnapshotWritten(snapshot))
    shard.flush()
    assert result_of(shard.store.read_head(JOURNAL)).truncation_point == snapshot.commit
    before = state(shard.core)
    assert state(shard.restart()) == before


def test_an_entry_of_a_bounded_size_leaves_the_rest_to_the_next() -> None:
    shard = Shard(SMALL)
    for n, keys in enumerate(cut(*(b"key-%02d" % n for n in range(30))), start=1):
        shard.begin_accept(keys, n)
        shard.say(keys, n, 7)
    sizes = []
    while append := shard.next_append():
        sizes.append(len(append.entry))
        result_of(shard.store.append(JOURNAL, append))
        shard.handle(AppendJournaled())
    assert len(sizes) > 10
    assert max(sizes) < 400
    assert shard.known() == 7
    shard.restart()


@pytest.mark.guarantee("G13", section="7.2")
def test_parts_and_entries_have_a_bounded_number_of_rows() -> None:
    """The shard stands still while one is made. The bound is that of the product's own settings."""
    shard, most = Shard(), 8_193
    pieces = cut(*(b"%05d" % n for n in range(1, 2 * most)))
    reports = [WatermarkReport(GROUP, keys, sequencer, 7) for sequencer, keys in enumerate(pieces, start=1)]
    for report in reports:
        shard.begin_accept(report.member, report.sequencer)
    shard.receive(by_columns(reports))
    entries = []
    while append := shard.next_append():
        entries.append(decode_entry(append.entry, "an entry"))
        result_of(shard.store.append(JOURNAL, append))
        shard.handle(AppendJournaled())
    head = result_of(shard.store.read_head(JOURNAL))
    parts = [decode_part(blob, "a part") for blob in result_of(shard.store.read_parts(JOURNAL, head.parts))]
    assert sum(len(entry.changes) for entry in entries) == len(pieces) == sum(len(part.keys) for part in parts)
    assert max(len(entry.changes) + sum(map(len, entry.keys.values())) for entry in entries) <= most
    assert max(len(part.keys) for part in parts) <= most
    assert shard.known() == 7


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("appends", range(12))
def test_nothing_counts_before_its_acceptance_is_journaled(appends: int) -> None:
    shard = Shard(SMALL)
    pieces = cut(*(b"key-%02d" % n for n in range(30)))
    for n, keys in enumerate(pieces, start=1):
        shard.begin_accept(keys, n)
        shard.say(keys, n, 7)
    journaled: set[Member] = set()
    for _ in range(appends):
        if shard.append():
            effects = shard.post(AppendJournaled())
            for one in effects:
                if isinstance(one, BroadcastValues):
                    journaled.update(member for _, member, _ in one.sequencers)
            if any(isinstance(one, WriteSnapshot) for one in effects):
                assert journaled == set(pieces), "a base shows nothing that the journal does not know"
            shard.perform(effects)
    shard.restart()
    assert {member for member, _ in shard.core.sequencers(GROUP)} == journaled
    assert shard.known() == MIN_TIMESTAMP or journaled == set(pieces)


@pytest.mark.parametrize("blob", [b"", b"\x07\x94\x90\x80\x80\x80", b"\x01\x94\x90", b"\x01\xc3"])
def test_a_damaged_or_foreign_entry_is_named_and_never_skipped(blob: bytes) -> None:
    with pytest.raises(CorruptValueError, match=r"authority\.0: entry 5"):
        decode_entry(blob, "authority.0: entry 5")


def test_blobs_carry_their_format_and_come_back_equal() -> None:
    entry = AuthorityEntry([], {}, {}, {"a.1": -5})
    part = Part("a.1", 7, [], [], [])
    assert decode_entry(encode(entry), "here") == entry
    assert decode_part(encode(part), "here") == part
    assert encode(entry)[0] == encode(part)[0] == 1


@pytest.mark.guarantee("G8", section="7.2")
def test_a_busy_group_does_not_keep_others_out_of_the_entries() -> None:
    """Otherwise a successor does not know that a process is idle, and a dead one would hold its stream for ever."""
    shard, pieces = Shard(SMALL), cut(*(b"%02d" % number for number in range(1, 50)))
    shard.own_all(pieces)
    shard.accept("p", 100, INJECTOR)
    for watermark in range(1, 4):
        for sequencer, keys in enumerate(pieces, start=1):
            shard.say(keys, sequencer, watermark)
        shard.say("p", 100, 5, INJECTOR, idle=True)
        assert shard.append()  # it has room for some of these rows
        shard.handle(AppendJournaled())
    shard.restart()
    (process,) = shard.core.registry.get(INJECTOR).states()  # type: ignore[union-attr]
    assert process.idle


@pytest.mark.guarantee("G13", section="7.2")
def test_calls_that_do_not_fit_in_an_entry_wait_for_no_rest() -> None:
    """Reports do, so that a slow store gets fewer appends."""
    pace = PaceSettings(coalesce=1, rest=1_000, longest_rest=1_000_000, idle=1, verify=1 << 60)
    shard = Shard(SMALL, pace)
    for sequencer, keys in enumerate(cut(*(b"%02d" % number for number in range(1, 50))), start=1):
        shard.begin_accept(keys, sequencer)
    for _ in range(3):
        shard.now += 10
        assert shard.append()
        shard.now += 100  # how long it takes
        shard.handle(AppendJournaled())
        due = shard.core.next_deadline()
        assert due is not None
        assert due <= shard.now
