"""Small tables: how an injector gathers them, and joins them into deliveries (sections 5.2, 6.1.1)."""

from __future__ import annotations

from typing import Final

from millwheel.client.injector import outbound
from millwheel.client.injector.intake import RecordIntake
from millwheel.client.injector.outbound_queue import InjectedBatch
from millwheel.client.injector.table_buffer import TableBuffer
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY: Final = "simulated injectors send no tables: the test shows it by itself, in seconds"
_JOINED: Final = "tests/injectors/test_joined_tables.py"

rewriting(
    "joined-over-a-gap",
    "G1",
    "a delivery of several tables is complete only if no position between them is missing",
    outbound,
    "max(batch.gapless, gapless)",
    "batch.gapless",
    seeds=0,
    test=f"{_JOINED}::test_a_gap_between_joined_tables_is_no_range",
    why=_WHY,
)

rewriting(
    "joined-with-other-columns",
    "G1",
    "only tables with equal columns are joined",
    InjectedBatch.takes,
    "bool(first.batch.schema == table.batch.schema)",
    "True",
    seeds=0,
    test=f"{_JOINED}::test_tables_with_other_columns_are_not_joined",
    why=_WHY,
)

rewriting(
    "joined-without-a-bound",
    "G13",
    "joined tables are no larger than a delivery",
    InjectedBatch.takes,
    "return fits and ",
    "return ",
    seeds=0,
    test=f"{_JOINED}::test_joined_tables_are_no_larger_than_a_delivery",
    why=_WHY,
)

rewriting(
    "joined-held-by-the-last",
    "G7",
    "joined tables hold the watermark at their oldest record",
    InjectedBatch.extend_columns,
    "min(self.held, oldest)",
    "oldest",
    seeds=0,
    test=f"{_JOINED}::test_joined_tables_hold_the_watermark_at_their_oldest_record",
    why=_WHY,
)

rewriting(
    "gathered-behind-a-promise",
    "G14",
    "a record that is older than a promise before it is not gathered with the records before that",
    TableBuffer.takes,
    "self.promise is None or records.extremes()[0] >= self.promise",
    "True",
    seeds=0,
    test="tests/injectors/test_table_buffer.py::test_a_record_behind_a_promise_does_not_join_those_before_it",
    why=_WHY,
)

rewriting(
    "gathered-behind-later-records",
    "G1",
    "single records do not overtake the small tables that were sent before them",
    RecordIntake.put,
    "self._admission.drain()  # small tables that were sent before",
    "pass",
    seeds=0,
    test="tests/injectors/test_small_tables.py::test_small_tables_keep_the_order_of_all_calls",
    why=_WHY,
)
