"""Mutations of sources and sinks: positions, beginnings, batches and their numbers (sections 4.1, 5.2, 6.1)."""

from __future__ import annotations

from millwheel.connectors import databases, handles, logs, reading, writing
from millwheel.connectors import progress as shard_progress
from millwheel.connectors.delta import sink as tables
from millwheel.connectors.files import lines, sink, storage
from millwheel.connectors.pacing import Timing
from millwheel.master import updating
from millwheel.worker.interval import recovery
from millwheel.worker.interval.commits.timer_changes import TimerChanges
from millwheel.worker.interval.core import IntervalCore
from millwheel.worker.interval.hooks.firing import Firing
from millwheel.worker.interval.hooks.scheduler import KeyScheduler
from millwheel.worker.process import source_readings
from millwheel.worker.process.building import Builder
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WRITE_FILES = "for path, content in contents.items():\n        self._storage.write(path, content)"
_WHY = "one simulated topology of ten has connectors: the test shows it by itself, in seconds"

rewriting(
    "begins-after-each-takeover",
    "G5",
    "what has begun does not begin again",
    recovery,
    "any(one.commit for one in heads)",
    "False",
)

rewriting(
    "each-child-begins",
    "G5",
    "one child of a split begins, the one with the key",
    recovery,
    "key not in state.config.keys",
    "False",
    seeds=0,
    test="tests/worker/interval/test_beginning.py::test_one_child_of_a_split_begins_unless_its_parent_has",
    why=_WHY,
)

rewriting(
    "source-reads-without-bound",
    "G13",
    "with a full outbox a source reads only what holds the watermark",
    Firing,
    "(at := held_at(one, domain)) < pending",
    "(at := held_at(one, domain)) is not None",
    seeds=0,
    test="tests/worker/interval/test_beginning.py::test_a_full_outbox_takes_what_holds_the_watermark_alone",
    why=_WHY,
)

rewriting(
    "new-splits-read-at-once",
    "G13",
    "with a full outbox one split reads at a time",
    Firing,
    "clocks.elapsed < self.next_feed and",
    "False and",
    seeds=0,
    test="tests/worker/interval/test_beginning.py::test_many_new_splits_read_one_by_one_once_the_outbox_is_full",
    why=_WHY,
)

rewriting(
    "late-split-lets-go",
    "G7",
    "a split that is found late keeps the watermark where it is",
    TimerChanges,
    "if self._feeds else setting.cause",
    "if False else setting.cause",
    seeds=0,
    test="tests/worker/interval/test_beginning.py::test_a_hold_that_comes_too_late_keeps_the_watermark",
    why=_WHY,
)

rewriting(
    "new-split-without-hold",
    "G7",
    "a split of which nothing is known holds the watermark",
    reading,
    "hold=MIN_TIMESTAMP",
    "hold=record.timestamp",
    seeds=0,
    test="tests/connectors/test_sources.py::test_a_split_that_cannot_be_read_holds_the_watermark",
    why=_WHY,
)

rewriting(
    "fast-splits-read-on",
    "G13",
    "a split that is far ahead of the slowest one waits",
    Timing,
    "self.allowed_skew is not None and",
    "False and",
    seeds=0,
    test="tests/connectors/test_pacing.py::test_a_split_waits_for_slower_ones",
    why=_WHY,
)

rewriting(
    "source-does-not-follow-itself",
    "G8",
    "a split that waits for slower ones learns how far these are",
    Builder,
    "if program.feeds else ()",
    "if False else ()",
)

rewriting(
    "idle-split-follows-the-end",
    "G7",
    "an idle split follows the clock at the beginning of its read",
    reading,
    "watermark = max(watermark, began -",
    "watermark = max(watermark, ctx.now -",
    seeds=0,
    test="tests/connectors/test_sources.py::test_an_idle_split_follows_the_beginning_of_a_read",
    why=_WHY,
)

rewriting(
    "source-reads-in-a-drain",
    "G8",
    "a drain stops the reads of a source",
    IntervalCore,
    "event.drains and",
    "False and",
    seeds=0,
    test="tests/worker/interval/test_beginning.py::test_a_source_reads_no_more_while_its_topology_drains",
    why=_WHY,
)

rewriting(
    "positions-of-another-source",
    "G1",
    "an update to another source is refused",
    updating,
    "if was.reads and",
    "if False and",
    seeds=0,
    test="tests/connectors/test_sources.py::test_an_update_to_another_source_is_refused",
    why=_WHY,
)

rewriting(
    "reader-of-another-position",
    "G1",
    "a kept reader is used only where its last read ended",
    handles,
    "kept.place == place",
    "True",
    seeds=0,
    test="tests/connectors/test_reading.py::test_a_reader_of_a_former_owner_is_not_used",
    why=_WHY,
)

rewriting(
    "split-without-hold",
    "G7",
    "a split holds the watermark at its own",
    reading,
    "Timestamp(ctx.state.watermark)",
    "Timestamp(LAST_TIMESTAMP)",
    seeds=0,
    test="tests/connectors/test_reading.py::test_the_slowest_split_holds_the_watermark",
    why=_WHY,
)

rewriting(
    "unreachable-splits-are-idle",
    "G7",
    "a split is idle only if its source says that nothing waits there",
    reading,
    "state.behind == 0 and",
    "",
    seeds=0,
    test="tests/connectors/test_reading.py::test_a_split_that_is_behind_is_never_idle",
    why=_WHY,
)

rewriting(
    "read-at-once-at-any-time",
    "G7",
    "records with unusual times are produced one by one, which judges them",
    reading,
    "if min(times) < OLDEST_USUAL_US or newest > latest:",
    "if False:",
    seeds=0,
    test="tests/connectors/test_sources.py::test_a_time_that_is_not_likely_makes_a_bad_record",
    why=_WHY,
)

rewriting(
    "read-at-once-with-bad-records",
    "G1",
    "a read with a bad record is produced one by one",
    reading,
    "if self._bad_class & set(map(type, values)):",
    "if False:",
    seeds=0,
    test="tests/connectors/test_reading_at_once.py::test_a_bad_record_is_none_of_a_stream_of_all_types",
    why=_WHY,
)

rewriting(
    "all-bad-records-are-values",
    "G1",
    "in a stream of BadRecords, what cannot be read is none of them",
    reading,
    "_UNREAD if has_bad else",
    "frozenset() if has_bad else",
    seeds=0,
    test="tests/connectors/files/test_files_in_topologies.py::"
    "test_bad_records_in_a_file_are_records_and_others_are_not",
    why=_WHY,
)

rewriting(
    "write-before-the-last-commit",
    "G1",
    "a batch is written after the commit of the one before is durable",
    KeyScheduler,
    "self._setup.program.writes and",
    "False and",
)

rewriting(
    "split-begins-again",
    "G1",
    "a position is committed with what was read",
    reading,
    "state.position, state.behind, state.ended = read.position, read.behind, read.ended",
    "state.behind, state.ended = read.behind, read.ended",
)

rewriting(
    "batches-without-numbers",
    "G1",
    "each batch has a number of its own",
    writing,
    "pending.number += 1",
    "pending.number = 1",
    seeds=0,
    test="tests/connectors/test_writing.py::test_each_record_is_written_once",
    why=_WHY,
)

rewriting(
    "progress-apart-from-records",
    "G1",
    "a batch that is in the database is not written again",
    databases,
    "moved == 1",
    "True",
    seeds=0,
    test="tests/connectors/test_database.py::TestDatabase::test_a_batch_that_comes_again_changes_nothing",
    why=_WHY,
)

rewriting(
    "ids-of-numbers-alone",
    "G1",
    "the id of a batch depends on its records and on the batches before",
    writing,
    "(place, after, pending.values, pending.times, *tables)",
    "place",
    seeds=0,
    test="tests/connectors/test_writing.py::test_equal_ids_mean_equal_batches",
    why=_WHY,
)

rewriting(
    "numbers-without-ids",
    "G1",
    "a batch follows the one with the id before it",
    databases,
    "(found.run, found.id) == (run, batch.id)",
    "found.run == run and found.batch >= batch.number",
    seeds=0,
    test="tests/connectors/test_database.py::test_another_batch_of_a_number_is_no_repetition",
    why=_WHY,
)

rewriting(
    "fork-writes-after-its-original",
    "G1",
    "a fork begins a chain of its own",
    writing,
    'batch.after if written.sink == sink else ""',
    "batch.after",
    seeds=0,
    test="tests/connectors/test_writing.py::test_a_fork_writes_under_its_own_name",
    why=_WHY,
)

rewriting(
    "fork-goes-on-with-the-run",
    "G1",
    "a fork begins a run of its own",
    writing,
    "if pending.sink != (sink := _sink_of(ctx)):",
    "sink = pending.sink or _sink_of(ctx)\n    if not pending.sink:",
    seeds=0,
    test="tests/connectors/test_writing.py::test_a_fork_writes_under_its_own_name",
    why=_WHY,
)

rewriting(
    "autocommit-accepted",
    "G2",
    "a database that keeps what was taken back is refused",
    databases,
    "self._progress(probe) is not None",
    "False",
    seeds=0,
    test="tests/connectors/test_database.py::test_a_driver_without_transactions_is_refused",
    why=_WHY,
)

rewriting(
    "batches-held-by-the-first",
    "G7",
    "a batch holds the watermark at its oldest record",
    writing,
    "or held < pending.held",
    "",
    seeds=0,
    test="tests/connectors/test_writing.py::test_the_watermark_waits_for_the_oldest_unwritten_record",
    why=_WHY,
)

rewriting(
    "shards-change-by-updates",
    "G15",
    "an update keeps the shard of a key",
    updating,
    "ANY_SHARD in was.function and ANY_SHARD in now.function",
    "True",
    seeds=0,
    test="tests/connectors/test_writing.py::test_an_update_changes_neither_shards_nor_key",
    why=_WHY,
)

rewriting(
    "position-in-another-file",
    "G1",
    "a file that was replaced is refused",
    lines,
    "digest_of(head, before) != self._position.digest",
    "False",
    seeds=0,
    test="tests/connectors/files/test_lines.py::test_a_file_that_was_replaced_or_cut_is_refused",
    why=_WHY,
)

rewriting(
    "half-lines-of-a-growing-file",
    "G1",
    "a line of a file that grows is one when its end is there",
    lines,
    "ended = closed and len(data) < asked",
    "ended = len(data) < asked",
    seeds=0,
    test="tests/connectors/files/test_lines.py::test_a_growing_file_is_read_line_by_line",
    why=_WHY,
)

rewriting(
    "growing-at-its-end",
    "G1",
    "a file that changes while its end is read has not ended",
    lines,
    "self._storage.stat(self._path) == self._open.info",
    "True",
    seeds=0,
    test="tests/connectors/files/test_lines.py::test_a_file_that_grows_at_its_end_has_not_ended",
    why=_WHY,
)

rewriting(
    "files-before-their-progress",
    "G1",
    "the progress has each batch of which a file may be there",
    sink,
    "self._raise_progress(found, progress)\n    " + _WRITE_FILES,
    _WRITE_FILES + "\n    self._raise_progress(found, progress)",
    seeds=0,
    test="tests/connectors/files/test_sink.py::test_a_batch_that_was_begun_is_known_after_a_restore",
    why=_WHY,
)

rewriting(
    "files-of-any-batch",
    "G1",
    "a batch of files follows the one with the id before it",
    shard_progress,
    "(found.run, found.id) == (place.run, batch.after)",
    "found.run == place.run",
    seeds=0,
    test="tests/connectors/files/test_sink.py::test_a_restored_topology_is_noticed_and_can_go_on",
    why=_WHY,
)

rewriting(
    "directory-without-comparison",
    "G3",
    "a former process does not set the progress of a directory back",
    storage,
    "self.load(path) != former",
    "False",
    seeds=0,
    test="tests/connectors/files/test_sink.py::test_a_former_process_that_wakes_up_changes_nothing",
    why=_WHY,
)

rewriting(
    "bucket-without-comparison",
    "G3",
    "a former process does not set the progress of a bucket back",
    storage,
    "dict(former.version)",
    '"overwrite"',
    seeds=0,
    test="tests/connectors/files/test_buckets.py::test_a_former_process_writes_nothing_into_a_bucket",
    why=_WHY,
)

rewriting(
    "commits-without-their-ids",
    "G1",
    "the commit of a batch has the id of the batch",
    tables,
    "app_transactions=[Transaction(name, number) for name, number in numbers.items()]",
    "app_transactions=[]",
    seeds=0,
    test="tests/connectors/delta/test_buckets.py::test_a_process_that_wakes_up_commits_nothing",
    why=_WHY,
)

rewriting(
    "tables-loaded-without-progress",
    "G1",
    "a batch is committed on the version of the table in which the progress was read",
    tables,
    "continue",
    "self._table = table.update_incremental() or table; continue",
    seeds=0,
    test="tests/connectors/delta/test_buckets.py::test_a_process_that_wakes_up_commits_nothing",
    why=_WHY,
)

rewriting(
    "tables-made-twice",
    "G1",
    "a process that comes second does not replace the columns of a table",
    tables,
    "max_commit_retries=0",
    "max_commit_retries=5",
    seeds=0,
    test="tests/connectors/delta/test_buckets.py::test_of_two_that_make_a_table_one_does",
    why=_WHY,
)

rewriting(
    "parts-behind-their-rest",
    "G7",
    "a part of what a log has answered does not have the low watermark of all of it",
    logs,
    "watermark=int(MIN_TIMESTAMP)",
    "watermark=batch.watermark",
    seeds=0,
    test="tests/system/test_replaying.py::test_a_part_of_a_batch_has_no_low_watermark",
    why=_WHY,
)

rewriting(
    "log-made-for-a-past-time",
    "G1",
    "a source that begins at a time or an offset makes no log, which would begin now",
    logs,
    "await self._find_log()",
    "pass",
    seeds=0,
    test="tests/system/test_replaying.py::test_a_beginning_without_a_log_is_an_error",
    why=_WHY,
)

rewriting(
    "a-source-goes-on-behind-the-snapshot",
    "G1",
    "a source goes on in a restored log only up to the snapshot: behind it, the log has other records",
    logs,
    "if position.offset > end:",
    "if position.offset > 1 << 40:",
    seeds=0,
    test="tests/system/test_restored_logs.py::test_a_reader_behind_the_snapshot_stops_for_ever",
    why=_WHY,
)

rewriting(
    "the-log-of-another-cluster-is-a-former-one",
    "G1",
    "a former log is known by its time, too: logs of two clusters may have one name",
    logs,
    "or position.made != place.created_at_us:",
    "or False:",
    seeds=0,
    test="tests/system/test_restored_logs.py::test_a_log_of_this_name_and_another_time_is_another",
    why=_WHY,
)

rewriting(
    "bad-reads-of-all-times",
    "G8",
    "the health counts what a source has read of late",
    source_readings,
    "while len(looks) > 1 and",
    "while False and",
    seeds=0,
    test="tests/worker/test_source_readings.py::test_what_was_read_long_ago_does_not_count",
    why="the simulator asks for no health",
)
