"""Small tables: how an injector gathers them, and joins them into deliveries (sections 5.2, 6.1.1)."""

from __future__ import annotations

from typing import Final

from millwheel.client.injector import outbound
from millwheel.client.injector.driver import InjectorDriver
from millwheel.client.injector.intake import RecordIntake
from millwheel.client.injector.outbound_queue import InjectedBatch
from millwheel.client.injector.small_tables import SmallTableLayout
from millwheel.client.injector.table_buffer import TableBuffer
from millwheel.client.injector.table_forms import TableForms
from millwheel.client.injector.table_intake import TableIntake
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
    "self.promise is None or table.oldest >= self.promise",
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

rewriting(
    "small-tables-in-the-callers-memory",
    "G1",
    "a small table is copied: the caller may use its memory again",
    SmallTableLayout.copied,
    "own = in_one((self.empty, batch))",
    "own = batch",
    seeds=0,
    test="tests/injectors/test_table_buffer.py::test_a_table_may_change_after_it_was_added",
    why=_WHY,
)

rewriting(
    "gathered-without-room",
    "G13",
    "small tables are gathered only as far as the window has room",
    TableIntake,
    "count <= self._room",
    "True",
    seeds=0,
    test="tests/injectors/test_table_intake.py::test_what_is_gathered_fits_into_the_window",
    why=_WHY,
)

rewriting(
    "gathered-records-dropped-in-silence",
    "G1",
    "an injector that cannot pass gathered records on accepts no later ones",
    InjectorDriver.pass_on,
    "self.fail(",
    "repr(",
    seeds=0,
    test="tests/injectors/test_small_tables.py::test_an_injector_fails_if_it_cannot_join_tables",
    why=_WHY,
)

rewriting(
    "small-tables-by-a-former-routing",
    "G1",
    "each routing is asked for the keys of small tables: it may have another consumer",
    TableForms,
    "known.routing is routing and known.has(table)",
    "known.has(table)",
    seeds=0,
    test="tests/injectors/test_table_intake.py::test_keys_are_looked_for_again_by_another_routing",
    why=_WHY,
)

rewriting(
    "small-tables-with-the-keys-of-the-last-one",
    "G13",
    "a small table with nulls or a long key is looked at as any other",
    TableForms,
    "known.routing is routing and known.has(table)",
    "known.routing is routing",
    seeds=0,
    test="tests/injectors/test_table_intake.py::test_a_table_with_a_long_key_goes_by_rows",
    why=_WHY,
)

rewriting(
    "joined-after-the-batch-is-gone",
    "G1",
    "a batch whose tables cannot be joined stays where it was",
    outbound,
    "batch.join()  # first: it may raise, and the batch is then still there\n    queue.filling = None\n",
    "queue.filling = None\n    batch.join()\n",
    seeds=0,
    test=f"{_JOINED}::test_tables_that_cannot_be_joined_are_kept",
    why=_WHY,
)
