"""Mutations of sinks that get tables: rows, their order and folders, what holds the watermark (sections 4.2, 4.3)."""

from __future__ import annotations

from typing import Final

from millwheel.client.injector import column_division
from millwheel.connectors import writing
from millwheel.connectors.collecting import ShardTable
from millwheel.connectors.contents import BatchRecords
from millwheel.connectors.files import table_parts
from millwheel.connectors.tables import RowColumns
from millwheel.sdk.batches import column_records
from millwheel.sdk.batches.records import RecordBatch
from millwheel.streams import declaring
from millwheel.worker.interval.hooks.batch_running import BatchRunner
from simulation.mutations.base import rewriting

__all__: list[str] = []

_TESTS: Final = "tests/connectors/test_sink_tables.py::test_"
_UPDATES: Final = "tests/connectors/test_sink_updates.py::test_"
_KEYS: Final = "tests/streams/test_same_key.py::test_"
_FEW: Final = "no simulated injector sends tables to a sink: a test shows it by itself, in seconds"

rewriting(
    "tables-held-at-their-first",
    "G7",
    "the records of a table hold the watermark for their batch at the oldest of them",
    ShardTable,
    "start + int(times[start:end].argmin())",
    "start",
    seeds=0,
    test=_TESTS + "a_table_holds_the_watermark_at_its_oldest_record",
    why=_FEW,
)

rewriting(
    "tables-before-values",
    "G15",
    "a batch has tables and values in the order in which they came",
    ShardTable,
    "len(pending.values)))",
    "0))",
    seeds=0,
    test=_TESTS + "values_and_tables_keep_their_order_in_a_batch",
    why=_FEW,
)

rewriting(
    "tables-that-no-reader-takes",
    "G13",
    "columns are stored where a reader of them takes them, and their schema is small beside them",
    ShardTable,
    "return self.size(0, len(self)) >= _SCHEMAS * size and not self._records.why_unreadable",
    "return True",
    seeds=0,
    test=_TESTS + "few_records_and_long_names_go_as_values",
    why=_FEW,
)

rewriting(
    "ids-without-tables",
    "G1",
    "the id of a batch depends on its tables, too",
    writing,
    "tables = [pending.tables] if pending.tables else []",
    "tables = []",
    seeds=0,
    test=_TESTS + "equal_ids_mean_equal_tables",
    why=_FEW,
)

rewriting(
    "filters-of-tables-forgotten",
    "G1",
    "a sink gets the rows of a table that pass the filters before it",
    column_records,
    "rows[passed.places].tolist()",
    "rows.tolist()",
    seeds=0,
    test=_TESTS + "no_value_is_made_where_columns_say_it",
    why=_FEW,
)

rewriting(
    "steps-of-tables-forgotten",
    "G1",
    "a sink gets what filters and selections make of a table",
    BatchRunner,
    "passed, rows.table = found",
    "passed, rows.table = found.indexes, None",
    seeds=0,
    test=_TESTS + "no_value_is_made_where_columns_say_it",
    why=_FEW,
)

rewriting(
    "columns-of-any-type",
    "G1",
    "a column of another type than that of the sink is read from the values",
    RowColumns,
    "return None",
    "columns.append(column.cast(field.type, safe=False))",
    seeds=0,
    test="tests/connectors/test_row_columns.py::test_columns_become_those_of_a_sink_of_another_type",
    why=_FEW,
)

rewriting(
    "values-beside-tables-lost",
    "G1",
    "a table of a batch has the records that came as values, too",
    BatchRecords,
    "concat_tables([self._table(number, columns) for number in range(len(self.parts))])",
    "concat_tables([self._table(at, columns) for at, one in enumerate(self.parts) if isinstance(one, RecordColumns)])",
    seeds=0,
    test=_TESTS + "values_and_tables_keep_their_order_in_a_batch",
    why=_FEW,
)

rewriting(
    "rows-of-a-folder-in-any-order",
    "G15",
    "the rows of a folder keep their order",
    table_parts,
    'np.argsort(of_rows, kind="stable")',
    'np.argsort(of_rows, kind="stable")[::-1]',
    seeds=0,
    test=_TESTS + "rows_of_a_folder_keep_their_order",
    why=_FEW,
)

rewriting(
    "one-key-in-the-first-interval",
    "G11",
    "records of one key go to the interval that has it",
    column_division,
    'bisect_right(starts, columns.same or b"")',
    "0",
    seeds=0,
    test="tests/injectors/test_dividing.py::test_records_of_one_key_go_to_its_interval",
    why=_FEW,
)

rewriting(
    "columns-of-a-former-type",
    "G1",
    "stored columns are read as such only if they are exactly the fields of the present type",
    BatchRecords,
    "return not isinstance(fields, str) and fields.are_in(part)",
    "return True",
    seeds=0,
    test=_UPDATES + "columns_of_a_former_type_are_decoded",
    why=_FEW,
)

rewriting(
    "none-taken-over-as-it-is",
    "G1",
    "a column that a selection takes over has nulls only where its field may be None",
    column_records,
    "return PassedColumns(found, made) if fields.are_in(made) else None",
    "return PassedColumns(found, made)",
    seeds=0,
    test=_UPDATES + "none_that_select_takes_over_fails_before_its_batch",
    why=_FEW,
)

rewriting(
    "made-values-unverified",
    "G1",
    "a value that steps make is in a batch only if its encoding decodes",
    RecordBatch,
    "if same else codec.verify_all(values)",
    "if True else []",
    seeds=0,
    test=_UPDATES + "none_that_select_takes_over_fails_before_its_batch",
    why=_FEW,
)

rewriting(
    "raising-filters-at-the-sink",
    "G1",
    "a filter that may raise runs where a record is sent, and fails for that record alone",
    declaring,
    "return same if never_raise(known[: len(deciding)], before) else None",
    "return same",
    seeds=0,
    test=_KEYS + "a_filter_that_raises_fails_at_the_sender_alone",
    why=_FEW,
)

rewriting(
    "dropped-records-in-one-interval",
    "G1",
    "the key of columns is for single records only where no step drops any",
    declaring,
    "if same is not None and not until_last_filter(read[0][1].steps):",
    "if same is not None:",
    seeds=0,
    test=_KEYS + "single_records_that_expressions_drop_are_spread",
    why=_FEW,
)
