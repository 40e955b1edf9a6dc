"""Mutations of the changes of a table of PostgreSQL: positions, and what the slot forgets (section 5.2)."""

from __future__ import annotations

from millwheel.connectors.postgres import copying, peeking, shapes, source, tables, transactions
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "simulated topologies have no connectors: the test shows it by itself, in seconds"
_SOURCE = "tests/connectors/test_postgres_source.py::"
_COPY = "tests/connectors/test_postgres_copy.py::"
_TABLES = "tests/connectors/test_postgres_copied_tables.py::"
_COPY_MODEL = "tests/connectors/test_postgres_copying.py::"
_MODEL = "tests/connectors/test_pgoutput.py::"

rewriting(
    "slot-ahead-of-commits",
    "G1",
    "a replication slot keeps what may not be committed",
    source,
    "committed, self._former = self._former, self._at",
    "committed = self._at",
    seeds=0,
    test=f"{_SOURCE}test_the_slot_keeps_what_may_not_be_committed",
    why=_WHY,
)

rewriting(
    "slot-not-looked-at-afterwards",
    "G1",
    "no change is missing behind a position",
    peeking,
    "self._slot.checked(self._behind)",
    "None",
    seeds=0,
    test="tests/connectors/test_postgres_slots.py::test_a_slot_that_moves_while_it_is_read_is_noticed",
    why=_WHY,
)

rewriting(
    "look-taken-for-the-whole-log",
    "G1",
    "a look that the number of messages has ended leaves the rest for the next one",
    peeking,
    "self._messages < PEEK_MESSAGES",
    "True",
    seeds=0,
    test=f"{_SOURCE}test_a_position_has_the_same_records_whenever_it_is_read[10]",
    why=_WHY,
)

rewriting(
    "changes-of-a-part-again",
    "G1",
    "of a transaction that was read in part, the rest comes",
    transactions,
    "(transaction.lsn, self._count) > (position.lsn, position.index)",
    "transaction.lsn >= position.lsn",
    seeds=0,
    test=f"{_MODEL}test_a_transaction_that_was_read_in_part_goes_on",
    why=_WHY,
)

rewriting(
    "commit-times-as-they-are",
    "G7",
    "the times of changes do not go back",
    transactions,
    "max(position.time, transaction.time)",
    "transaction.time",
    seeds=0,
    test=f"{_MODEL}test_event_times_do_not_go_back",
    why=_WHY,
)

rewriting(
    "copied-rows-with-their-changes",
    "G1",
    "a change that a copied row has does not count",
    copying,
    "return not sees and (copy.ended or not beyond_copied)",
    "return copy.ended or not beyond_copied",
    seeds=0,
    test=f"{_COPY_MODEL}test_which_changes_of_a_copy_count",
    why=_WHY,
)

rewriting(
    "changes-before-their-rows",
    "G1",
    "a change of a row that is not yet copied does not count",
    copying,
    "return not sees and (copy.ended or not beyond_copied)",
    "return not sees",
    seeds=0,
    test=f"{_COPY_MODEL}test_which_changes_of_a_copy_count",
    why=_WHY,
)

rewriting(
    "snapshot-forgotten-too-early",
    "G1",
    "a snapshot is forgotten when the log was read behind all that it sees",
    copying,
    "position.lsn < copy.until",
    "False",
    seeds=0,
    test=f"{_COPY_MODEL}test_a_snapshot_is_kept_until_the_log_was_read",
    why=_WHY,
)

rewriting(
    "invisible-commits-passed-over",
    "G1",
    "the log is read up to a transaction that a later snapshot may not see",
    peeking,
    "not self._visible.sees(message.xid)",
    "False",
    seeds=0,
    test=f"{_COPY}test_a_commit_that_is_not_visible_is_waited_for",
    why=_WHY,
)

rewriting(
    "copy-beside-open-transactions",
    "G1",
    "a copy begins when what may have committed before the slot is visible",
    tables,
    "if not self._one(_ENDED, self._after)[0]:",
    "if False:",
    seeds=0,
    test=f"{_COPY}test_a_copy_waits_for_what_ran_before_it",
    why=_WHY,
)

rewriting(
    "snapshot-before-the-lock",
    "G1",
    "the snapshot of a copy is taken behind the lock of its table",
    tables,
    'connection.execute(f"LOCK TABLE {place.name} IN ACCESS SHARE MODE")',
    'connection.execute("SELECT 1")',
    seeds=0,
    test=f"{_COPY}test_a_table_that_is_being_rewritten_is_no_empty_one",
    why=_WHY,
)

rewriting(
    "copied-before-it-is-durable",
    "G1",
    "all that the snapshot of a copied row sees is durable",
    tables,
    "if not self._is_durable(until):",
    "if False:",
    seeds=0,
    test=f"{_COPY}test_a_copied_row_outlives_a_crash",
    why=_WHY,
)

rewriting(
    "keys-compared-by-any-path",
    "G1",
    "keys are compared by the operators of their index",
    tables,
    "find_operators(self._connection, shape.path)",
    "None",
    seeds=0,
    test=f"{_TABLES}test_an_order_of_another_schema_is_that_of_the_key",
    why=_WHY,
)

rewriting(
    "unpublished-table-copied-whole",
    "G1",
    "a table that leaves the publication is copied no further",
    shapes,
    "raise place.not_published(kind)",
    'return tuple(fields), ""',
    seeds=0,
    test=f"{_TABLES}test_what_a_publication_no_longer_has_is_not_copied",
    why=_WHY,
)

rewriting(
    "copies-raise-the-watermark",
    "G7",
    "no row of a copy is late",
    peeking,
    "return Read(records, position, MIN_TIMESTAMP, behind=1, places=place)",
    "return Read(records, position, behind=1)",
    seeds=0,
    test=f"{_COPY}test_no_row_of_a_copy_is_late",
    why=_WHY,
)
