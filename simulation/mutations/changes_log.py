"""Mutations of comparisons, extrema and conditions in a stream's log (section 4.3)."""

from __future__ import annotations

from millwheel.worker.journal import OwnedJournal
from millwheel.worker.log import retention
from millwheel.worker.log.commits import LogCommits
from millwheel.worker.log.cursors import Cursors
from millwheel.worker.log.intake import LogReceiver
from millwheel.worker.log.pump import LogPump, Subscribers
from millwheel.worker.log.retention import Retainer
from millwheel.worker.log.sessions import Sessions
from millwheel.worker.turns import HolderTurns
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "log-pending-holds-nothing",
    "G7",
    "records that a log has not committed hold its watermark",
    LogPump,
    "min(state.inputs.value, state.intake.pending.min())",
    "state.inputs.value",
    seeds=0,
    test="tests/worker/log/test_log_core.py::test_the_watermark_follows_senders_and_uncommitted_holds",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "open-segments-of-full-logs",
    "G8",
    "a log at its cap ends its open segment if records may go then",
    Retainer.drops_some,
    "return self.start_after(cursors, [records.open.end]) > records.start",
    "return False",
    seeds=0,
    test="tests/worker/log/test_log_retention.py::test_a_record_above_the_cap_goes_once_it_is_read",
    why="one seed in thousands has a record above the cap of a log; the test shows it by itself",
)

rewriting(
    "retentions-fill-logs",
    "G13",
    "a retention alone never fills a log",
    retention,
    "kept > min(retention.max_bytes or kept, self.state.settings.retained_bytes)",
    "kept > (retention.max_bytes or kept)",
    seeds=0,
    test="tests/worker/log/test_log_retention.py::test_a_retention_alone_never_stops_the_producers",
    why="few seeds have letters and a small cap, such as 184047084; the test shows it by itself",
)

rewriting(
    "fastest-cursor-decides",
    "G1",
    "what a log keeps is decided by its slowest cursor",
    Retainer.start_after,
    "min(cursors.values()",
    "max(cursors.values()",
    seeds=0,
    test="tests/worker/log/test_log_subscribers.py::test_records_that_every_cursor_has_acked_go_by_the_segment",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "stated-retention-ignored",
    "G1",
    "a stated retention keeps records that all cursors have ACKed",
    Retainer.start_after,
    "self.state.retention.stated or not cursors",
    "not cursors",
    seeds=0,
    test="tests/worker/log/test_log_retention.py::test_a_stated_retention_keeps_records_for_later_subscribers",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "soft-cap",
    "G13",
    "a log that is a quarter beyond its cap takes nothing",
    LogReceiver.bound,
    "MIN_TIMESTAMP - 1 if hard else self._inputs.value",
    "self._inputs.value",
    seeds=0,
    test="tests/worker/log/test_log_subscribers.py::test_a_quarter_beyond_the_cap_nothing_is_taken",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "holding-records-refused",
    "G8",
    "a log that is at its cap takes records at the watermark",
    HolderTurns.choose,
    "delivery.timestamps[index] > bound",
    "delivery.timestamps[index] >= bound",
    seeds=0,
    test="tests/worker/log/test_log_core.py::test_the_truncation_point_waits_for_the_rows",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "acks-go-back",
    "G1",
    "a cursor never moves back",
    Cursors.ack,
    "below <= cursor.newest or ",
    "",
    seeds=0,
    test="tests/worker/log/test_cursor_acks.py::test_a_cursor_never_moves_back",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "new-cursors-wait",
    "G8",
    "the creation of a cursor is committed at once",
    Cursors.create,
    "self.urgent = True",
    "pass",
    seeds=0,
    test="tests/worker/log/test_log_subscribers.py::test_cursors_begin_at_the_oldest_record_or_now",
    why="other commits come all the time in a simulated run",
)

rewriting(
    "acks-beyond-the-end",
    "G1",
    "an ACK beyond the log's end is refused",
    Sessions.ack,
    "event.below > self.state.records.end",
    "event.below < 0",
    seeds=0,
    test="tests/worker/log/test_log_subscribers.py::test_acks_and_resumptions_beyond_the_end_are_refused_by_name",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "window-ignored",
    "G13",
    "a subscriber is sent no more than its window beyond its ACK",
    Subscribers,
    "limit = min(limit, session.cursor.newest + session.window)",
    "pass",
    seeds=0,
    test="tests/worker/log/test_log_subscribers.py::test_no_more_than_the_window_is_sent_beyond_the_last_ack",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "end-reported-early",
    "G7",
    "the end of a stream is shown to those that have read all of it",
    Subscribers,
    "return min(watermark, _LAST)",
    "return state.journaled_watermark",
    seeds=0,
    test="tests/worker/log/test_log_core.py::test_a_slow_reader_gets_no_watermark_beyond_what_it_has_read",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "resumed-before-the-ack",
    "G1",
    "a subscriber goes on where its cursor or its own reading is further",
    Subscribers,
    "max(session.cursor.newest, session.resume or 0)",
    "min(session.cursor.newest, session.resume or 0)",
    seeds=0,
    test="tests/worker/log/test_log_subscribers.py::test_cursors_begin_at_the_oldest_record_or_now",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "dropped-cursor-names-taken-back",
    "G8",
    "a subscriber that lost its cursor to another does not take it back",
    Sessions,
    "if name and name in names[:-1]:",
    "if False:",
    seeds=0,
    test="tests/worker/log/test_log_subscribers.py::test_a_replaced_subscriber_does_not_take_the_cursor_back",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "base-before-its-rows",
    "G12",
    "a log's truncation point waits for the rows before it",
    LogCommits.try_commit,
    "state.records.stored_to",
    "lambda: 1 << 62",
    seeds=0,
    test="tests/worker/log/test_log_core.py::test_the_truncation_point_waits_for_the_rows",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "log-deleted-one-too-far",
    "G12",
    "the entry after a log's truncation point stays",
    OwnedJournal.appended,
    "self.truncation_point + 1",
    "self.truncation_point + 2",
    seeds=0,
    test="tests/worker/log/test_log_core.py::test_the_truncation_point_moves_and_a_takeover_reads_little",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
