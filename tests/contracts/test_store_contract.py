"""What every store promises (design of section 6.1.2 and 6.2). Nothing here knows which one it is."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import (
    TERMINAL_SEQUENCER,
    Append,
    CorruptValueError,
    JournalExistsError,
    JournalHead,
    JournalMissingError,
    PartId,
    SequencerRefusedError,
    StateRow,
    StateStore,
    StoreUnavailableError,
)
from tests.contracts.conftest import OpenStore


def entry(sequencer: int, commit: int, **fields: object) -> Append:
    values: dict[str, object] = {"truncation_point": 0, "parts": (), "entry": b"entry %d of %d" % (commit, sequencer)}
    return Append(sequencer, commit, **(values | fields))  # type: ignore[arg-type]


async def owned(store: StateStore, journal: str, sequencer: int, commits: int = 0) -> None:
    """Create ``journal``, fence it, and append that many entries."""
    await store.create_journal(journal)
    await store.fence(journal, sequencer)
    for commit in range(1, commits + 1):
        await store.append(journal, entry(sequencer, commit))


# Journals come into being once.


async def test_a_new_journal_is_empty_and_unowned(store: StateStore, journal: str) -> None:
    await store.create_journal(journal)
    assert await store.read_head(journal) == JournalHead(0, 0, 0, ())
    assert await store.read_entries(journal, 1, 0) == []
    assert await store.list_parts(journal) == []


async def test_a_journal_is_created_only_once(store: StateStore, journal: str) -> None:
    await owned(store, journal, 3, commits=1)
    with pytest.raises(JournalExistsError):
        await store.create_journal(journal)
    assert await store.read_head(journal) == JournalHead(3, 1, 0, ())


async def test_a_child_starts_at_the_sealed_commit_of_its_parents(store: StateStore, journal: str) -> None:
    await store.create_journal(journal, 41)
    assert await store.fence(journal, 7) == JournalHead(7, 41, 41, ())
    with pytest.raises(SequencerRefusedError):
        await store.append(journal, entry(7, 1))
    await store.append(journal, entry(7, 42, truncation_point=41))
    assert await store.read_entries(journal, 42, 42) == [b"entry 42 of 7"]


async def test_a_missing_journal_is_an_error_never_an_empty_one(store: StateStore, journal: str) -> None:
    with pytest.raises(JournalMissingError):
        await store.read_head(journal)
    with pytest.raises(JournalMissingError):
        await store.fence(journal, 1)
    with pytest.raises(JournalMissingError):
        await store.append(journal, entry(1, 1))
    with pytest.raises(JournalMissingError):
        await store.seal(journal, 1)
    with pytest.raises(CorruptValueError):
        await store.read_entries(journal, 1, 1)


# Fencing (section 6.2).


@pytest.mark.guarantee("G3", section="6.2")
async def test_only_a_larger_sequencer_takes_a_journal(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5, commits=2)
    for older in (1, 4, 5):
        with pytest.raises(SequencerRefusedError) as refused:
            await store.fence(journal, older)
        assert (refused.value.sequencer, refused.value.commit) == (5, 2)
    assert await store.fence(journal, 9) == JournalHead(9, 2, 0, ())


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_deposed_owner_changes_nothing(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5, commits=2)
    await store.fence(journal, 6)
    with pytest.raises(SequencerRefusedError) as refused:
        await store.append(journal, entry(5, 3, truncation_point=2))
    assert (refused.value.journal, refused.value.sequencer, refused.value.commit) == (journal, 6, 2)
    assert await store.read_head(journal) == JournalHead(6, 2, 0, ())
    with pytest.raises(CorruptValueError):
        await store.read_entries(journal, 3, 3)
    await store.append(journal, entry(6, 3))
    assert await store.read_entries(journal, 1, 3) == [b"entry 1 of 5", b"entry 2 of 5", b"entry 3 of 6"]


@pytest.mark.guarantee("G3", section="6.2")
async def test_an_append_and_a_fence_at_once_agree_on_who_was_first(store: StateStore, journal: str) -> None:
    await owned(store, journal, 1)
    commit = 0
    for sequencer in range(2, 8):
        appended, head = await asyncio.gather(
            store.append(journal, entry(sequencer - 1, commit + 1)),
            store.fence(journal, sequencer),
            return_exceptions=True,
        )
        assert isinstance(head, JournalHead)
        if appended is None:
            commit += 1
        else:
            assert isinstance(appended, SequencerRefusedError)
            assert appended.sequencer == sequencer
        assert head == JournalHead(sequencer, commit, 0, ())
        assert await store.read_head(journal) == head


@pytest.mark.guarantee("G3", section="6.2")
async def test_of_many_fences_at_once_the_largest_stands(store: StateStore, journal: str) -> None:
    await store.create_journal(journal)
    order = [3, 8, 1, 9, 2, 7]
    results = await asyncio.gather(*(store.fence(journal, each) for each in order), return_exceptions=True)
    assert results[order.index(9)] == JournalHead(9, 0, 0, ())
    for sequencer, result in zip(order, results, strict=True):
        if isinstance(result, BaseException):
            assert isinstance(result, SequencerRefusedError)
            assert result.sequencer > sequencer
    assert (await store.read_head(journal)).sequencer == 9


# The commit point.


@pytest.mark.guarantee("G2")
async def test_appends_continue_the_journal_without_a_gap(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5, commits=2)
    for wrong in (0, 1, 2, 4):
        with pytest.raises(SequencerRefusedError) as refused:
            await store.append(journal, entry(5, wrong, entry=b"wrong"))
        assert (refused.value.sequencer, refused.value.commit) == (5, 2)
    with pytest.raises(SequencerRefusedError):
        await store.append(journal, entry(6, 3, entry=b"never fenced"))
    assert await store.read_head(journal) == JournalHead(5, 2, 0, ())
    assert await store.read_entries(journal, 1, 2) == [b"entry 1 of 5", b"entry 2 of 5"]


@pytest.mark.guarantee("G2", section="6.1.2")
async def test_repeating_an_append_that_took_effect_reports_that(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5)
    append = entry(5, 1)
    await store.append(journal, append)
    with pytest.raises(SequencerRefusedError) as refused:
        await store.append(journal, append)
    assert (refused.value.sequencer, refused.value.commit) == (append.sequencer, append.commit)
    assert await store.read_entries(journal, 1, 1) == [append.entry]


@pytest.mark.guarantee("G2", section="6.2")
async def test_truncation_point_and_parts_move_with_the_entry_or_not(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5, commits=3)
    parts = (PartId("timers/a", 5, 3), PartId("ids", 4, 1))
    for part in parts:
        await store.write_part(journal, part, b"blob")
    with pytest.raises(SequencerRefusedError):
        await store.append(journal, entry(5, 5, truncation_point=3, parts=parts))
    assert await store.read_head(journal) == JournalHead(5, 3, 0, ())
    await store.append(journal, entry(5, 4, truncation_point=3, parts=parts))
    assert await store.read_head(journal) == JournalHead(5, 4, 3, parts)
    await store.append(journal, entry(5, 5, truncation_point=3, parts=parts))
    assert await store.fence(journal, 6) == JournalHead(6, 5, 3, parts)
    await store.append(journal, entry(6, 6, truncation_point=5, parts=parts[:1]))
    assert (await store.read_head(journal)).parts == parts[:1]
    await store.append(journal, entry(6, 7, truncation_point=7))
    assert await store.read_head(journal) == JournalHead(6, 7, 7, ())


async def test_an_append_without_sync_is_read_like_any_other(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5)
    await store.append(journal, entry(5, 1, sync=False))
    await store.append(journal, entry(5, 2))
    await store.append(journal, entry(5, 3, sync=False))
    assert await store.fence(journal, 6) == JournalHead(6, 3, 0, ())
    assert await store.read_entries(journal, 1, 3) == [b"entry 1 of 5", b"entry 2 of 5", b"entry 3 of 5"]


async def test_entries_may_be_empty_large_and_of_any_bytes(store: StateStore, journal: str) -> None:
    entries = [b"", bytes(range(256)), b"\xff" * 1_000_000]
    await owned(store, journal, 1)
    for commit, blob in enumerate(entries, 1):
        await store.append(journal, entry(1, commit, entry=blob))
    assert await store.read_entries(journal, 1, 3) == entries


async def test_an_entry_that_may_be_deflated_is_read_as_it_was(store: StateStore, journal: str) -> None:
    entries = [b"", b"\x00" * 100_000, random.Random(1).randbytes(50_000), bytes(range(256)) * 100]
    await owned(store, journal, 1)
    for commit, blob in enumerate(entries, 1):
        append = entry(1, commit, entry=blob, deflate=True)
        await store.append(journal, append)
        with pytest.raises(SequencerRefusedError):
            await store.append(journal, append)  # it took effect
    assert await store.read_entries(journal, 1, 4) == entries


async def test_many_entries_are_read_in_order(store: StateStore, journal: str) -> None:
    await owned(store, journal, 1, commits=40)
    assert await store.read_entries(journal, 1, 40) == [b"entry %d of 1" % commit for commit in range(1, 41)]
    assert await store.read_entries(journal, 7, 9) == [b"entry 7 of 1", b"entry 8 of 1", b"entry 9 of 1"]


async def test_a_missing_entry_is_named_never_skipped(store: StateStore, journal: str) -> None:
    await owned(store, journal, 1, commits=2)
    with pytest.raises(CorruptValueError) as missing:
        await store.read_entries(journal, 1, 3)
    assert "3" in missing.value.where
    assert journal in missing.value.where


async def test_journals_do_not_touch_each_other(store: StateStore, journal: str) -> None:
    other = journal + "1"
    await owned(store, journal, 5, commits=2)
    await owned(store, other, 3, commits=1)
    await store.append(journal, entry(5, 3, truncation_point=3))
    await store.write_part(other, PartId("p", 3, 1), b"kept")
    await store.delete_entries(journal, 4)
    await store.seal(journal, 5)
    await store.drop_journal(journal)
    assert await store.read_head(other) == JournalHead(3, 1, 0, ())
    assert await store.read_entries(other, 1, 1) == [b"entry 1 of 3"]
    assert await store.list_parts(other) == [PartId("p", 3, 1)]


# The end of a journal.


@pytest.mark.guarantee("G11")
async def test_a_sealed_journal_takes_no_owner_and_no_entry(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5, commits=2)
    assert await store.seal(journal, 5) == JournalHead(TERMINAL_SEQUENCER, 2, 0, ())
    assert await store.seal(journal, 5) == JournalHead(TERMINAL_SEQUENCER, 2, 0, ())
    for sequencer in (5, 6, TERMINAL_SEQUENCER):
        with pytest.raises(SequencerRefusedError) as refused:
            await store.append(journal, entry(sequencer, 3))
        assert refused.value.sequencer == TERMINAL_SEQUENCER
    with pytest.raises(SequencerRefusedError):
        await store.fence(journal, 99)
    assert await store.read_entries(journal, 1, 2) == [b"entry 1 of 5", b"entry 2 of 5"]


@pytest.mark.guarantee("G3")
async def test_an_older_sequencer_seals_nothing(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5)
    await store.fence(journal, 7)
    for older in (1, 5, 6):
        with pytest.raises(SequencerRefusedError) as refused:
            await store.seal(journal, older)
        assert (refused.value.sequencer, refused.value.commit) == (7, 0)
    assert (await store.read_head(journal)).sequencer == 7
    await store.append(journal, entry(7, 1))


@pytest.mark.guarantee("G11")
async def test_each_child_seals_its_parent_in_any_order_repeatedly(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5, commits=2)
    for child in (9, 8, 9, 6, 10):
        assert await store.seal(journal, child) == JournalHead(TERMINAL_SEQUENCER, 2, 0, ())
    with pytest.raises(SequencerRefusedError):
        await store.append(journal, entry(5, 3))
    never_owned = journal + "-idle"
    await store.create_journal(never_owned, 7)
    assert await store.seal(never_owned, 8) == JournalHead(TERMINAL_SEQUENCER, 7, 7, ())


@pytest.mark.guarantee("G11")
async def test_an_append_racing_two_seals_agrees_on_the_last_commit(store: StateStore, journal: str) -> None:
    for number in range(5):
        name = f"{journal}-{number}"
        await owned(store, name, 5, commits=1)
        appended, left, right = await asyncio.gather(
            store.append(name, entry(5, 2)), store.seal(name, 8), store.seal(name, 9), return_exceptions=True
        )
        assert appended is None or isinstance(appended, SequencerRefusedError)
        last = 2 if appended is None else 1
        assert left == right == JournalHead(TERMINAL_SEQUENCER, last, 0, ())
        assert await store.read_entries(name, 1, last) == [b"entry %d of 5" % commit for commit in range(1, last + 1)]


async def test_a_dropped_journal_is_missing(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5, commits=2)
    await store.write_part(journal, PartId("p", 5, 1), b"blob")
    await store.drop_journal(journal)
    await store.drop_journal(journal)
    with pytest.raises(JournalMissingError):
        await store.read_head(journal)
    with pytest.raises(CorruptValueError):
        await store.read_entries(journal, 1, 1)
    assert await store.list_parts(journal) == []


async def test_a_journal_can_be_written_as_it_was_elsewhere(store: StateStore, journal: str) -> None:
    """A restored journal has the commits, the truncation point and the parts of another one, whose writer was older."""
    part, divided = PartId("meta", 3, 41), PartId("entry/0", 9, 43)
    await store.create_journal(journal, 40)
    await store.fence(journal, 9)
    await store.write_part(journal, part, b"base")
    await store.append(journal, Append(9, 41, 41, (part,), b""))
    await store.append(journal, Append(9, 42, 41, (part,), b"entry 42"))
    await store.write_part(journal, divided, b"entry 43")
    parts = tuple(sorted((part, divided)))
    await store.append(journal, Append(9, 43, 41, parts, b"entry 43 is divided"))
    await store.delete_entries(journal, 42)
    incarnation = IncarnationId(journal + ".i")
    await store.write_states(incarnation, journal, 9, [StateRow(b"k", 17, b"state"), StateRow(b"l", 43, b"state")])
    assert await store.fence(journal, 12) == JournalHead(12, 43, 41, parts)
    assert await store.read_parts(journal, parts) == [{part: b"base", divided: b"entry 43"}[one] for one in parts]
    assert await store.read_entries(journal, 42, 43) == [b"entry 42", b"entry 43 is divided"]
    assert await store.read_states(incarnation, [b"k"]) == [StateRow(b"k", 17, b"state")]
    assert await store.list_states(incarnation, b"", None, 10) == [b"k", b"l"]


async def test_entries_below_the_truncation_point_are_deleted_alone(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5, commits=5)
    await store.append(journal, entry(5, 6, truncation_point=4))
    await store.delete_entries(journal, 3)
    await store.delete_entries(journal, 3)
    assert len(await store.read_entries(journal, 3, 6)) == 4
    await store.delete_entries(journal, 5)
    assert await store.read_entries(journal, 5, 6) == [b"entry 5 of 5", b"entry 6 of 5"]
    for gone in (1, 2, 4):
        with pytest.raises(CorruptValueError):
            await store.read_entries(journal, gone, 5)


# Base parts.


async def test_parts_are_read_in_the_order_asked_for(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5)
    blobs = {
        PartId("timers/[a,b)", 5, 10): b"one",
        PartId("timers/[b,∞)", 5, 3): b"",
        PartId("", 4, 200): b"three" * 50_000,
    }
    for part, blob in blobs.items():
        await store.write_part(journal, part, blob)
    for order in (list(blobs), list(blobs)[::-1]):
        assert await store.read_parts(journal, order) == [blobs[part] for part in order]
    assert await store.read_parts(journal, []) == []
    assert sorted(await store.list_parts(journal)) == sorted(blobs)


@pytest.mark.guarantee("G3")
async def test_a_deposed_owners_part_never_replaces_its_successors(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5)
    await store.fence(journal, 6)
    await store.write_part(journal, PartId("timers", 6, 1), b"successor")
    await store.write_part(journal, PartId("timers", 5, 1), b"zombie")
    assert await store.read_parts(journal, [PartId("timers", 6, 1)]) == [b"successor"]


async def test_deleting_parts_leaves_the_others(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5)
    parts = [PartId("p", 5, commit) for commit in (1, 2, 3)]
    for part in parts:
        await store.write_part(journal, part, b"%d" % part.commit)
    await store.delete_parts(journal, parts[:2])
    await store.delete_parts(journal, [])
    assert await store.list_parts(journal) == parts[2:]
    assert await store.read_parts(journal, parts[2:]) == [b"3"]
    with pytest.raises(CorruptValueError) as missing:
        await store.read_parts(journal, [parts[2], parts[0]])
    assert journal in missing.value.where


# State rows.


async def test_rows_are_read_in_the_order_asked_for(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=3)
    rows = [StateRow(b"b", 1, b"one"), StateRow(b"a", 3, b"two"), StateRow(b"a\0b", 2, b"\0"), StateRow(b"", 2, b"x")]
    await store.write_states(incarnation, journal, 5, rows)
    await store.write_states(incarnation, journal, 5, [])
    found = await store.read_states(incarnation, [b"a", b"missing", b"", b"b", b"a\0b", b"a"])
    assert found == [rows[1], None, rows[3], rows[0], rows[2], rows[1]]
    assert await store.read_states(incarnation, []) == []
    assert await store.read_states(IncarnationId(incarnation + "x"), [b"a"]) == [None]


async def test_the_keys_of_rows_are_listed_in_order(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=1)
    keys = [b"", b"a", b"a\0b", *(b"k%03d" % number for number in range(200)), "\U0010ffff".encode(), b"\xff\x01"]
    await store.write_states(incarnation, journal, 5, [StateRow(key, 1, b"x") for key in reversed(keys)])
    assert await store.list_states(incarnation, b"", None, 1_000) == keys
    assert await store.list_states(incarnation, b"", None, 3) == keys[:3]
    assert await store.list_states(incarnation, b"a\0", b"k002", 1_000) == [b"a\0b", b"k000", b"k001"]
    assert await store.list_states(incarnation, b"k198", None, 2) == [b"k198", b"k199"]
    assert await store.list_states(incarnation, b"b", b"b", 1_000) == []
    assert await store.list_states(IncarnationId(incarnation + "x"), b"", None, 1_000) == []
    await store.drop_incarnation(incarnation)
    assert await store.list_states(incarnation, b"", None, 1_000) == []


async def test_of_two_rows_the_larger_commit_stands_in_any_order(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=9)
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 9, b"new"), StateRow(b"l", 4, b"first")])
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 3, b"old"), StateRow(b"l", 5, b"second")])
    assert await store.read_states(incarnation, [b"k", b"l"]) == [
        StateRow(b"k", 9, b"new"),
        StateRow(b"l", 5, b"second"),
    ]


async def test_of_two_rows_in_one_call_the_larger_commit_stands(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=9)
    rows = [StateRow(b"k", commit, b"%d" % commit) for commit in (2, 7, 4)]
    await store.write_states(incarnation, journal, 5, rows)
    assert await store.read_states(incarnation, [b"k"]) == [rows[1]]


async def test_two_flushes_in_flight_leave_the_newer_row(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=9)
    keys = [b"%d" % number for number in range(1500)]
    newer = [StateRow(key, 9, b"newer") for key in keys]
    older = [StateRow(key, 8, b"older") for key in keys]
    await asyncio.gather(
        store.write_states(incarnation, journal, 5, newer), store.write_states(incarnation, journal, 5, older)
    )
    assert await store.read_states(incarnation, keys) == newer


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_zombies_late_flush_never_replaces_its_successors_rows(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=3)
    await store.fence(journal, 6)
    await store.append(journal, entry(6, 4))
    await store.write_states(incarnation, journal, 6, [StateRow(b"k", 4, b"successor"), StateRow(b"l", 2, b"replayed")])
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 3, b"zombie"), StateRow(b"l", 1, b"zombie")])
    assert await store.read_states(incarnation, [b"k", b"l"]) == [
        StateRow(b"k", 4, b"successor"),
        StateRow(b"l", 2, b"replayed"),
    ]


async def test_a_replay_never_replaces_its_predecessors_newer_row(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=8)
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 8, b"newest")])
    await store.fence(journal, 6)
    await store.write_states(incarnation, journal, 6, [StateRow(b"k", 7, b"on the way")])
    assert await store.read_states(incarnation, [b"k"]) == [StateRow(b"k", 8, b"newest")]
    await store.append(journal, entry(6, 9))
    await store.write_states(incarnation, journal, 6, [StateRow(b"k", 9, b"next")])
    assert await store.read_states(incarnation, [b"k"]) == [StateRow(b"k", 9, b"next")]


@pytest.mark.guarantee("G11")
async def test_a_childs_rows_stand_over_its_sealed_parents(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    child = journal + "-child"
    await owned(store, journal, 5, commits=8)
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 6, b"parent"), StateRow(b"l", 8, b"parent")])
    await store.seal(journal, 5)
    await store.create_journal(child, 8)
    await store.fence(child, 6)
    await store.append(child, entry(6, 9, truncation_point=8))
    replayed_and_new = [StateRow(b"k", 7, b"replayed"), StateRow(b"l", 7, b"replayed"), StateRow(b"m", 9, b"child")]
    await store.write_states(incarnation, child, 6, replayed_and_new)
    late = [StateRow(b"k", 6, b"late"), StateRow(b"l", 8, b"parent"), StateRow(b"m", 8, b"late")]
    await store.write_states(incarnation, journal, 5, late)
    found = await store.read_states(incarnation, [b"k", b"l", b"m"])
    assert found == [StateRow(b"k", 7, b"replayed"), StateRow(b"l", 8, b"parent"), StateRow(b"m", 9, b"child")]


async def test_an_emptied_row_reads_as_absent_and_stays_so(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=9)
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 4, b"state")])
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 7, b"")])
    assert await store.read_states(incarnation, [b"k"]) == [None]
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 6, b"older")])
    assert await store.read_states(incarnation, [b"k"]) == [None]
    await store.append(journal, entry(5, 10, truncation_point=9))
    assert await store.read_states(incarnation, [b"k"]) == [None]
    await store.write_states(incarnation, journal, 5, [StateRow(b"k", 10, b"again")])
    assert await store.read_states(incarnation, [b"k"]) == [StateRow(b"k", 10, b"again")]
    await store.append(journal, entry(5, 11, truncation_point=10))
    assert await store.read_states(incarnation, [b"k"]) == [StateRow(b"k", 10, b"again")]


async def test_many_rows_are_written_at_once(store: StateStore, journal: str, incarnation: IncarnationId) -> None:
    await owned(store, journal, 5, commits=1)
    rows = [StateRow(b"%06d" % number, 1, b"value %d" % number) for number in range(3000)]
    await store.write_states(incarnation, journal, 5, rows)
    assert await store.read_states(incarnation, [row.key for row in rows]) == rows


async def test_a_dropped_computation_leaves_its_neighbours_alone(
    store: StateStore, journal: str, incarnation: IncarnationId
) -> None:
    await owned(store, journal, 5, commits=1)
    for name in (incarnation, incarnation + "0"):
        await store.write_states(IncarnationId(name), journal, 5, [StateRow(b"k", 1, b"v")])
    await store.drop_incarnation(incarnation)
    assert await store.read_states(incarnation, [b"k"]) == [None]
    assert await store.read_states(IncarnationId(incarnation + "0"), [b"k"]) == [StateRow(b"k", 1, b"v")]


# Closing, and opening again.


async def test_a_closed_store_is_unavailable(store: StateStore, journal: str) -> None:
    await owned(store, journal, 5)
    await store.close()
    with pytest.raises(StoreUnavailableError):
        await store.append(journal, entry(5, 1))
    with pytest.raises(StoreUnavailableError):
        await store.read_entries(journal, 1, 1)


@pytest.mark.guarantee("G1")
async def test_what_was_acknowledged_is_there_after_opening_again(
    open_store: OpenStore, tmp_path: Path, journal: str, incarnation: IncarnationId
) -> None:
    part = PartId("timers", 5, 2)
    rows = [StateRow(b"k", 3, b"state"), StateRow(b"l", 3, b"")]
    async with open_store(tmp_path) as store:
        await owned(store, journal, 5, commits=2)
        await store.write_part(journal, part, b"part")
        await store.append(journal, entry(5, 3, truncation_point=2, parts=(part,)))
        await store.write_states(incarnation, journal, 5, rows)
        await store.delete_entries(journal, 3)
    async with open_store(tmp_path) as store:
        with pytest.raises(SequencerRefusedError):
            await store.fence(journal, 5)
        assert await store.fence(journal, 6) == JournalHead(6, 3, 2, (part,))
        assert await store.read_entries(journal, 3, 3) == [b"entry 3 of 5"]
        assert await store.read_parts(journal, [part]) == [b"part"]
        assert await store.read_states(incarnation, [b"k", b"l"]) == [rows[0], None]
        await store.write_states(incarnation, journal, 6, [StateRow(b"k", 2, b"old"), StateRow(b"l", 2, b"old")])
        assert await store.read_states(incarnation, [b"k", b"l"]) == [rows[0], None]
        with pytest.raises(JournalExistsError):
            await store.create_journal(journal)
