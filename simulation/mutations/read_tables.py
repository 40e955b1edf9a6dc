"""What a source reads as columns: which rows may be columns, their entry, and their way to consumers (5.2, 6.1)."""

from __future__ import annotations

from typing import Final

from millwheel.connectors import table_reads
from millwheel.connectors.reading import ReadSplits
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.context import Context
from millwheel.sdk.effects import ProducedTable
from millwheel.worker.interval.column_run import ColumnRun
from millwheel.worker.interval.commits import read_runs
from millwheel.worker.interval.commits.sealing import Sealer
from millwheel.worker.interval.outbox import batch_division
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.process.destinations import CatalogRouting
from millwheel.worker.process.peers import PeerConnection
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY: Final = "few simulated sources read columns: the test shows it by itself, in seconds"
_FILES: Final = "tests/connectors/files/test_tables.py::test_"
_WINDOWS: Final = "tests/connectors/files/test_tables_in_topologies.py::test_"
_TABLES: Final = "tests/worker/interval/test_read_tables.py::test_"

rewriting(
    "nulls-where-a-type-has-none",
    "G1",
    "rows with a null in a field that is never None are records, and bad ones",
    table_reads.TableForm.columns_of,
    "column.null_count and not field.takes_null",
    "False",
    seeds=0,
    test=_FILES + "rows_around_a_bad_one_are_columns_again",
    why=_WHY,
)

rewriting(
    "fractions-as-numbers",
    "G1",
    "a column becomes that of a field only if each of its values is the same there",
    table_reads,
    "return bool(types.is_integer(given))",
    "return bool(types.is_integer(given) or types.is_floating(given))",
    seeds=0,
    test=_FILES + "rows_by_columns_have_the_bytes_of_records",
    why=_WHY,
)

rewriting(
    "defaults-left-out",
    "G9",
    "a row has the default of a field that its file lacks, as its record has it",
    table_reads.TableForm,
    "_repeated(field.default, wanted, len(numbers))",
    "pa.nulls(len(numbers), wanted)",
    seeds=0,
    test=_FILES + "a_large_file_is_read_in_tables",
    why=_WHY,
)

rewriting(
    "read-tables-of-any-size",
    "G13",
    "a read by columns has no more bytes than a delivery",
    table_reads,
    "(size := _size_of(batch)) > TABLE_BYTES:",
    "(size := _size_of(batch)) > 64 * TABLE_BYTES:",
    seeds=0,
    test=_FILES + "a_table_has_no_more_bytes_than_a_delivery",
    why=_WHY,
)

rewriting(
    "types-of-any-width-by-columns",
    "G12",
    "what is journaled as columns can be read: a type with a larger schema is read as rows",
    table_reads.plain_fields,
    "> SCHEMA_BYTES:",
    "< 0:",
    seeds=0,
    test=_FILES + "a_type_whose_schema_no_reader_takes_is_read_as_rows",
    why=_WHY,
)

rewriting(
    "tables-that-no-journal-gives-back",
    "G12",
    "no table is produced that a reader of the journal refuses",
    Context,
    "records.why_unreadable or ",
    "",
    seeds=0,
    test=_TABLES + "what_cannot_go_by_columns_produces_nothing",
    why=_WHY,
)

rewriting(
    "all-decoded-rows-converted",
    "G13",
    "a read converts twice as many rows as fitted last, and not all that are decoded",
    table_reads.TableForm.columns_of,
    "min(2 * (fitted if fitted < count else self._most), TABLE_ROWS)",
    "TABLE_ROWS",
    seeds=0,
    test=_FILES + "only_rows_that_fit_are_converted",
    why=_WHY,
)

rewriting(
    "unusual-times-by-columns",
    "G7",
    "rows with an unusual time are judged one by one",
    ReadSplits,
    "if least < OLDEST_USUAL_US or newest > self._latest_usual(self._known_time(ctx, began)):",
    "if False:",
    seeds=0,
    test=_WINDOWS + "files_by_columns_have_the_outcome_of_rows",
    why=_WHY,
)

rewriting(
    "keys-that-are-null",
    "G1",
    "a column of keys has no nulls",
    RecordColumns.has_keys,
    "not column.null_count",
    "True",
    seeds=0,
    test=_TABLES + "what_cannot_go_by_columns_produces_nothing",
    why=_WHY,
)

rewriting(
    "tables-that-replace-one-another",
    "G1",
    "a key produces a table only as the first of its commit",
    Context,
    "targets is None or self._read is not None or self._productions is not None",
    "targets is None",
    seeds=0,
    test=_TABLES + "a_successor_sends_the_rows_of_a_table_with_their_ids",
    why=_WHY,
)

rewriting(
    "tables-at-one-position",
    "G1",
    "the tables of a commit have positions one after the other",
    read_runs.tables_in,
    "position += len(read.values)",
    "pass",
    seeds=0,
    test=_TABLES + "a_successor_sends_the_rows_of_a_table_with_their_ids",
    why=_WHY,
)

rewriting(
    "tables-over-rows",
    "G1",
    "rows of a commit have positions behind those of its tables",
    Sealer.apply,
    "made += sum(len(one.table.values) for one in tables)",
    "pass",
    seeds=0,
    test=_TABLES + "a_successor_sends_the_rows_of_a_table_with_their_ids",
    why=_WHY,
)

rewriting(
    "tables-not-journaled",
    "G12",
    "an entry has what a source has read as columns",
    Sealer.apply,
    "[one.stored() for one in tables],",
    "[],",
    seeds=0,
    test=_TABLES + "a_successor_sends_the_rows_of_a_table_with_their_ids",
    why=_WHY,
)

rewriting(
    "tables-under-one-key",
    "G1",
    "a record of a table comes under its own key, also after a takeover",
    ColumnRun.rows,
    "ProducedTable(self.stream, records, targets)",
    "ProducedTable(self.stream, records, tuple((name, '') for name, _ in targets))",
    seeds=0,
    test=_TABLES + "a_successor_sends_the_rows_of_a_table_with_their_ids",
    why=_WHY,
)

rewriting(
    "one-key-lost-at-a-takeover",
    "G1",
    "a record for a sink of one shard has the key of that shard, also after a takeover",
    ProducedTable.productions,
    "if one.same is None else one.same",
    "if one.same is None else b''",
    seeds=0,
    test=_TABLES + "an_entry_has_the_rows_of_its_tables",
    why=_WHY,
)

rewriting(
    "tables-undivided",
    "G8",
    "a table is divided by the intervals that own its keys",
    batch_division.tables_by_journal,
    "(journal and locate(greatest) == journal)",
    "journal",
    seeds=0,
    test=_TABLES + "tables_reach_the_intervals_that_their_rows_reach",
    why=_WHY,
)

rewriting(
    "tables-at-their-first-positions",
    "G1",
    "a record of a divided table keeps its position",
    Outbox,
    "own if places is None else [own[at] for at in places]",
    "own[: len(records)]",
    seeds=0,
    test=_TABLES + "tables_reach_the_intervals_that_their_rows_reach",
    why=_WHY,
)

rewriting(
    "tables-for-former-consumers",
    "G1",
    "what is read as columns goes to the consumers that the stream has now",
    CatalogRouting.refresh,
    "if id(binding) in self._of_tables:",
    "if False:",
    seeds=0,
    test="tests/worker/test_others_keys.py::test_tables_go_to_the_consumers_of_now",
    why=_WHY,
)

rewriting(
    "columns-for-ever",
    "G8",
    "a worker that reads no columns gets rows",
    PeerConnection.answered,
    "self._by_rows = True",
    "pass",
    seeds=0,
    test="tests/worker/test_delivery_service.py::test_a_worker_without_pyarrow_gets_rows",
    why=_WHY,
)
