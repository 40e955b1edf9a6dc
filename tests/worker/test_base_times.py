"""When journals have their bases: those with as many commits have them at different times."""

from __future__ import annotations

from typing import Final

from millwheel.worker.interval import IntervalSettings
from millwheel.worker.journal import OwnedJournal

ENTRIES: Final = IntervalSettings().checkpoint_entries


def base_at(name: str, entries: int, size: int = 1 << 40) -> int:
    """The first commit at which a base is due. Each entry has 1,000 bytes."""
    journal = OwnedJournal(name, 7, False)
    while not journal.needs_base(entries, size):
        journal.committed += 1
        journal.bytes += 1_000
    return journal.committed


def test_bases_of_one_records_way_are_apart() -> None:
    """Regression: two stages and a log wrote and deleted theirs together, and records waited for 30 to 45 ms."""
    way = ["first.100001.j100002", "second.100004.j100005", "stages/by-page.log.100007.j100008"]
    assert len({base_at(name, ENTRIES) // 64 for name in way}) == 3
    assert len({base_at(name, 1 << 40, 1_000 * ENTRIES) // 64 for name in way}) == 3, "large entries make it by bytes"
    due = [base_at(f"stage{number}.{number}.j{number + 1}", ENTRIES) for number in range(100)]
    assert min(due) >= 0.75 * ENTRIES
    assert max(due) <= ENTRIES
    assert len({at // 64 for at in due}) > 15, "they are spread over the last quarter"


def test_few_entries_are_counted_as_they_are() -> None:
    assert {base_at(f"j{number}", 40) for number in range(100)} == {40}
