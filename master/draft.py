"""A transaction in the making. Every interval map passes through here, and is checked here (G11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message

from millwheel.coordination.contract import Compare, Put
from millwheel.core import catalog_keys as keys
from millwheel.core.catalog import Catalog
from millwheel.core.interval_table import IntervalTable
from millwheel.master.messages import Answer
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["Draft", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one operation does: drop from the store, create journals, then one transaction, then answer.

    ``silence``: injectors that the authority is to forget, each unless it accepted a sequencer above the one given.
    Without puts and deletes there is no transaction, and the answer stands already. ``answer`` is made
    only once the catalog shows the transaction's effect.
    """

    compares: tuple[Compare, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()
    journals: tuple[str, ...] = ()
    drop_journals: tuple[str, ...] = ()
    drop_computations: tuple[str, ...] = ()
    silence: tuple[tuple[str, int], ...] = ()
    drawn: int = 0
    answer: Callable[[], Answer] | None = None


class Draft:
    """Collects puts and deletes with the compares that they rest on, and draws numbers.

    Numbers come from one counter, in the same transaction as what they are for: sequencers grow in the
    order of the assignments. Numbers up to ``burned`` were drawn for transactions that failed; journals
    may have been named after them, so they are passed over.
    """

    def __init__(self, known: Catalog, burned: int = 0) -> None:
        self._known = known
        self._first = max(known.drawn, burned)
        self._drawn = self._first
        self._compares: dict[str, Compare] = {}
        self._puts: dict[str, Put] = {}
        self._deletes: dict[str, None] = {}
        self._journals: list[str] = []

    def draw(self) -> int:
        """The next number: larger than every number drawn before, by whomever."""
        self._drawn += 1
        return self._drawn

    def rest_on(self, key: str) -> None:
        """Have the transaction fail if ``key`` has changed since the catalog was read."""
        self._compares[key] = Compare(key, self._known.modified(key))

    def put(self, key: str, record: Message) -> None:
        """Write a record, if nobody else has since the catalog was read."""
        self.rest_on(key)
        self._puts[key] = Put(key, record.SerializeToString(deterministic=True))

    def delete(self, key: str) -> None:
        """Delete a record, if nobody else has changed it since the catalog was read."""
        self.rest_on(key)
        self._deletes[key] = None

    def put_map(self, incarnation: str, record: catalog.IntervalMapRecord) -> None:
        """Write an interval map. CoverageError unless it covers every key once; ValueError if a sequencer
        would go back, or an interval change hands under the sequencer that it had."""
        IntervalTable(incarnation, record)
        old = self._known.interval_map(incarnation)
        before = {interval.journal: interval for interval in (old.intervals if old else ())}
        for interval in record.intervals:
            was = before.get(interval.journal)
            if was is None:
                self._journals.append(interval.journal)
            elif not _may_follow(was, interval):
                raise ValueError(f"journal {interval.journal}: a new owner needs a sequencer above {was.sequencer}")
        self.put(keys.interval_map_key(incarnation), record)

    @property
    def empty(self) -> bool:
        """Whether nothing has been put or deleted."""
        return not self._puts and not self._deletes

    def plan(
        self,
        answer: Callable[[], Answer] | None = None,
        drop_journals: tuple[str, ...] = (),
        drop_computations: tuple[str, ...] = (),
        silence: tuple[tuple[str, int], ...] = (),
    ) -> Plan:
        """The transaction as it now stands."""
        puts = list(self._puts.values())
        if self._drawn > self._first:
            self.rest_on(keys.SEQUENCER)
            puts.append(Put(keys.SEQUENCER, str(self._drawn).encode()))
        return Plan(
            tuple(self._compares.values()),
            tuple(puts),
            tuple(self._deletes),
            tuple(self._journals),
            drop_journals,
            drop_computations,
            silence,
            self._drawn,
            answer,
        )


def _may_follow(was: catalog.IntervalRecord, now: catalog.IntervalRecord) -> bool:
    if now.sequencer > was.sequencer:
        return True
    same_owner = now.owner == was.owner and now.owner_revision == was.owner_revision
    return now.sequencer == was.sequencer and (same_owner or not now.HasField("owner"))
