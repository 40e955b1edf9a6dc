"""Mutations of the changes of a table of PostgreSQL: positions, and what the slot forgets (section 5.2)."""

from __future__ import annotations

from millwheel.connectors.postgres import peeking, source, transactions
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "simulated topologies have no connectors: the test shows it by itself, in seconds"
_SOURCE = "tests/connectors/test_postgres_source.py::"
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
