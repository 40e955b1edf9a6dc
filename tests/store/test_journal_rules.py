"""A store that keeps its heads in memory refuses misuse that would lose data."""

from __future__ import annotations

import pytest

from millwheel.store import journal_rules as rules
from millwheel.store.contract import TERMINAL_SEQUENCER, Append, JournalHead, PartId, StateRow, StoreError

PART = PartId("timers", 5, 3)
HEAD = JournalHead(5, 9, 4, (PART,))


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_journal_id_is_not_empty_and_holds_no_nul(name: str) -> None:
    with pytest.raises(ValueError, match="journal id"):
        rules.created(name, None, 0)


def test_the_terminal_sequencer_is_given_to_no_owner() -> None:
    for rule in (rules.fenced, rules.sealed):
        with pytest.raises(ValueError, match="reserved"):
            rule("j", HEAD, TERMINAL_SEQUENCER)


@pytest.mark.parametrize("truncation_point", [3, 11])
def test_the_truncation_point_moves_neither_back_nor_ahead(truncation_point: int) -> None:
    with pytest.raises(ValueError, match="truncation point"):
        rules.appended("j", HEAD, Append(5, 10, truncation_point, (), b""))


def test_entries_that_a_takeover_reads_are_not_deleted() -> None:
    rules.check_deletable("j", HEAD, 5)
    with pytest.raises(ValueError, match="needed"):
        rules.check_deletable("j", HEAD, 6)


def test_parts_that_the_head_names_are_not_deleted() -> None:
    rules.check_unnamed("j", HEAD, [PartId("timers", 5, 2)])
    with pytest.raises(ValueError, match="timers"):
        rules.check_unnamed("j", HEAD, [PartId("timers", 5, 2), PART])


@pytest.mark.guarantee("G2")
def test_a_row_is_never_ahead_of_its_entry() -> None:
    assert rules.check_rows("j", HEAD, [StateRow(b"k", 9, b""), StateRow(b"l", 2, b"")]) == 9
    with pytest.raises(StoreError, match="commit 10"):
        rules.check_rows("j", HEAD, [StateRow(b"k", 10, b"")])
