"""Mutations of the sink into tables of Cassandra: write times, and what must not come late (sections 6.1, 6.2)."""

from __future__ import annotations

from millwheel.connectors import progress as shard_progress
from millwheel.connectors.cassandra import columns, progress, rows, writer
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "simulated topologies have no connectors: the test shows it by itself, in seconds"
_TESTS = "tests/connectors/cassandra"

rewriting(
    "write-times-of-the-clock-alone",
    "G15",
    "the write times of a shard grow, also if the clock is behind",
    progress,
    "max(now, found.time + TIMES)",
    "now",
    seeds=0,
    test=f"{_TESTS}/test_times.py::test_a_clock_that_is_behind_sets_no_time_back",
    why=_WHY,
)

rewriting(
    "rows-with-the-time-of-sending",
    "G1",
    "rows that a former process sends late have the time of its batch",
    writer,
    "change.at(write_time)",
    "change.at(time.time_ns() // 1_000)",
    seeds=0,
    test=f"{_TESTS}/test_times.py::test_the_late_rows_of_a_former_process_change_nothing",
    why=_WHY,
)

rewriting(
    "progress-of-another-taken",
    "G3",
    "of two writers one gets the write time of a batch",
    writer,
    "return bool(answer[0][0])",
    "return True",
    seeds=0,
    test=f"{_TESTS}/test_times.py::test_the_late_rows_of_a_former_process_change_nothing",
    why=_WHY,
)

rewriting(
    "records-of-a-batch-at-one-time",
    "G15",
    "of the records of a batch for one row, the last one counts",
    rows,
    "found[change.key] = change",
    "found[(*change.key, bytes([number]))] = change",
    seeds=0,
    test=f"{_TESTS}/test_times.py::test_the_last_record_of_a_batch_counts",
    why=_WHY,
)

rewriting(
    "deleted-at-the-time-of-the-write",
    "G15",
    "a row that is deleted and written in one batch is there",
    rows,
    "time if self.upsert is None else time - 1",
    "time",
    seeds=0,
    test=f"{_TESTS}/test_sink.py::test_a_row_that_is_written_behind_its_deletion_is_new",
    why=_WHY,
)

rewriting(
    "old-rows-sent",
    "G1",
    "a process that stood still sends no rows",
    writer,
    "_now() > until",
    "False",
    seeds=0,
    test=f"{_TESTS}/test_times.py::test_a_process_that_stood_still_sends_no_old_rows",
    why=_WHY,
)

rewriting(
    "tables-that-forget-deletions",
    "G1",
    "a table keeps deletions until no older write can arrive",
    columns,
    "table.grace < LEAST_GRACE_SECONDS",
    "False",
    seeds=0,
    test=f"{_TESTS}/test_columns.py::test_a_table_that_forgets_deletions_at_once_is_refused",
    why=_WHY,
)

rewriting(
    "equal-decimals-apart",
    "G15",
    "keys that Cassandra finds equal are one row of a batch",
    columns,
    '_normalised if kind == "clustering"',
    'convert if kind == "clustering"',
    seeds=0,
    test=f"{_TESTS}/test_columns.py::test_equal_decimals_are_one_key",
    why=_WHY,
)

rewriting(
    "decimals-of-28-digits",
    "G1",
    "keys of many digits stay apart",
    columns,
    "normalize(_ALL_DIGITS)",
    "normalize()",
    seeds=0,
    test=f"{_TESTS}/test_columns.py::test_decimals_of_many_digits_are_keys_apart",
    why=_WHY,
)

rewriting(
    "runs-that-cannot-begin",
    "G1",
    "the statement of an error lets the first batch of a run follow",
    shard_progress,
    "place.run if batch.after else place.run - 1",
    "place.run",
    seeds=0,
    test=f"{_TESTS}/test_times.py::test_the_statement_of_an_error_lets_a_run_begin",
    why=_WHY,
)
