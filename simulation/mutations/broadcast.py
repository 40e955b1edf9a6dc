"""The join with a broadcast table: one history of the table for all copies (sections 4.5, 4.6)."""

from __future__ import annotations

from typing import Final

from millwheel.operators.broadcast import BroadcastAsOfJoin, BroadcastTable
from millwheel.streams import derivations
from simulation.mutations.base import rewriting

__all__: list[str] = []

_TESTS: Final = "tests/operators/test_broadcast.py::"
_WHY: Final = "seeds were not tried: the test shows it by itself"

rewriting(
    "changes-late-at-copies",
    "G7",
    "a change is not late at a copy, so all copies use it from the same time on",
    BroadcastTable.process_record,
    "max(at, ctx.watermark)",
    "at",
    seeds=0,
    test=f"{_TESTS}test_a_late_change_holds_from_the_low_watermark_on",
    why=_WHY,
)

rewriting(
    "older-changes-hold",
    "G14",
    "in a table by timestamps, a late value that is older than its row is dropped",
    BroadcastTable.process_record,
    "if self.by_time and",
    "if not self.by_time and",
    seeds=0,
    test=f"{_TESTS}test_a_late_change_is_older_only_where_time_counts",
    why=_WHY,
)

rewriting(
    "tables-of-any-size",
    "G13",
    "a broadcast table has at most so many rows",
    BroadcastTable.process_record,
    "len(table) >= self.limit",
    "len(table) < 0",
    seeds=0,
    test=f"{_TESTS}test_a_table_that_is_too_large_says_so_and_can_grow",
    why=_WHY,
)

rewriting(
    "earlier-records-not-waited-for",
    "G7",
    "a copy holds the low watermark at the first record that waits",
    BroadcastAsOfJoin.process_record,
    "first is None or at < first",
    "first is None",
    seeds=0,
    test=f"{_TESTS}test_a_record_meets_the_table_of_its_time",
    why=_WHY,
)

rewriting(
    "changes-of-the-same-time-left-out",
    "G1",
    "a record meets the changes up to its time",
    BroadcastAsOfJoin.process_timer,
    "changes[0][0] <= at",
    "changes[0][0] < at",
    seeds=0,
    test=f"{_TESTS}test_a_record_meets_the_table_of_its_time",
    why=_WHY,
)

rewriting(
    "hashed-keys-unnoticed",
    "G1",
    "an update may not change the key from which a step makes another one",
    derivations.derived_key,
    'KeyDerivation(f"{name} {how}", parts)',
    "KeyDerivation(how, ())",
    seeds=0,
    test="tests/streams/test_keys.py::test_a_key_that_is_hashed_is_compared_in_an_update",
    why="simulated updates change no such steps",
)
