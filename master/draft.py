"""A transaction in the making. Every interval map passes through here, and is checked here (G11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from millwheel.coordination.contract import Compare, Put
from millwheel.core import catalog_keys as keys
from millwheel.core.catalog import Catalog
from millwheel.core.interval_chunks import MOST_BYTES, Chunk, MapEdit
from millwheel.master.messages import Answer
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["MOST_OPERATIONS", "MOST_TRANSACTION_BYTES", "Draft", "Plan"]

MOST_OPERATIONS: Final = 128
MOST_TRANSACTION_BYTES: Final = 1 << 20
"""What a transaction stays below: etcd takes 128 compares or changes, and 1.5 MiB, unless it is told otherwise."""

_SPARE: Final = 8
"""Operations kept for the leadership, the counter and a worker's registration, and for a chunk that is cut."""


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

    @property
    def clears(self) -> bool:
        """Whether something is dropped or forgotten before the transaction."""
        return bool(self.drop_journals or self.drop_computations or self.silence)


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
        self._journals: dict[str, None] = {}
        self._edits: dict[str, MapEdit] = {}
        self._chunks: dict[str, dict[str, Chunk]] = {}

    def draw(self) -> int:
        """The next number: larger than every number drawn before, by whomever. DamagedValueError if it is not known
        which were."""
        self._known.check_readable(keys.SEQUENCER)
        self._drawn += 1
        return self._drawn

    def rest_on(self, key: str) -> None:
        """Have the transaction fail if ``key`` has changed since the catalog was read. DamagedValueError if it cannot
        be read: nothing is decided by it, and nothing is written over it."""
        self._known.check_readable(key)
        self._compares[key] = Compare(key, self._known.modified(key))

    def put(self, key: str, record: Message) -> None:
        """Write a record, if nobody else has since the catalog was read."""
        self.rest_on(key)
        self._deletes.pop(key, None)
        self._puts[key] = Put(key, record.SerializeToString(deterministic=True))

    def delete(self, key: str) -> None:
        """Delete a record, if nobody else has changed it since the catalog was read."""
        self.rest_on(key)
        self._puts.pop(key, None)
        self._deletes[key] = None

    def put_map(self, incarnation: str, record: catalog.IntervalMapRecord) -> None:
        """Write a whole interval map, new or changed; of one that changed, only the chunks that did.

        CoverageError unless it covers every key once; ValueError if a sequencer would go back, or an interval
        changes hands under the sequencer that it had, or other keys under its journal.
        """
        edit = self._edit(incarnation)
        self._follow_on(incarnation, record.intervals)
        edit.replace_all(record.intervals)
        self._write(incarnation, edit, (record.computation, record.topology))

    def put_intervals(self, incarnation: str, intervals: Sequence[catalog.IntervalRecord]) -> bool:
        """Put neighbouring intervals in place of those that have the same keys together; whether that changes
        anything. What it costs does not grow with the map. CoverageError, ValueError: as :meth:`put_map`."""
        edit = self._edit(incarnation)
        self._follow_on(incarnation, intervals)
        if not edit.replace(intervals):
            return False
        self._write(incarnation, edit, self._known.tables[incarnation].origin)
        return True

    def _edit(self, incarnation: str) -> MapEdit:
        self._known.check_map(incarnation)
        if incarnation not in self._edits:
            table = self._known.tables.get(incarnation)
            self._edits[incarnation] = MapEdit(incarnation, table.chunks if table is not None else ())
        return self._edits[incarnation]

    def _follow_on(self, incarnation: str, intervals: Iterable[catalog.IntervalRecord]) -> None:
        """Each interval may follow what the catalog has under its journal; a new one's journal is to be created.

        The journal of a split's or a merge's child is created by whoever opens it, where its parents' journals end.
        """
        table = self._known.tables.get(incarnation)
        for interval in intervals:
            was = table.of_journal(interval.journal) if table is not None else None
            if was is None:
                if not interval.parents:
                    self._journals[interval.journal] = None
            elif was.keys != interval.keys:
                raise ValueError(f"journal {interval.journal}: other keys need another journal")
            elif not _may_follow(was, interval):
                raise ValueError(f"journal {interval.journal}: a new owner needs a sequencer above {was.sequencer}")

    def _write(self, incarnation: str, edit: MapEdit, origin: tuple[str, str]) -> None:
        """Put and delete exactly what differs from the catalog, whatever earlier edits in this draft had written."""
        chunks, numbers = edit.changes()
        written = {keys.chunk_key(incarnation, chunk.number): chunk for chunk in chunks}
        for key in self._chunks.get(incarnation, {}).keys() - written.keys():
            del self._puts[key]
        for number in numbers:
            self.delete(keys.chunk_key(incarnation, number))
        before = self._chunks.get(incarnation, {})
        for key, chunk in written.items():
            if before.get(key) is not chunk:
                computation, topology = origin
                record = catalog.IntervalMapRecord(computation=computation, topology=topology)
                record.intervals.extend(chunk.intervals)
                self.put(key, record)
        self._chunks[incarnation] = written

    @property
    def is_full(self) -> bool:
        """Whether one more chunk might make the transaction larger than a coordinator takes it."""
        operations = max(len(self._compares), len(self._puts) + len(self._deletes))
        size = sum(len(put.key) + len(put.value) for put in self._puts.values())
        return operations >= MOST_OPERATIONS - _SPARE or size >= MOST_TRANSACTION_BYTES - MOST_BYTES

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
        """The transaction as it now stands. RequestError if it is more than a coordinator takes at a time."""
        puts = list(self._puts.values())
        if self._drawn > self._first:
            self.rest_on(keys.SEQUENCER)
            puts.append(Put(keys.SEQUENCER, str(self._drawn).encode()))
        self._check_size(puts)
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

    def _check_size(self, puts: Sequence[Put]) -> None:
        # One compare is added: that of the leadership.
        operations = max(len(self._compares) + 1, len(puts) + len(self._deletes))
        size = sum(len(put.key) + len(put.value) for put in puts)
        if operations > MOST_OPERATIONS or size > MOST_TRANSACTION_BYTES:
            raise RequestError(
                FailureCode.RESOURCE_EXHAUSTED,
                f"this takes {operations} changes and {size} bytes in one transaction, and a coordinator takes "
                f"{MOST_OPERATIONS} and {MOST_TRANSACTION_BYTES}",
                "begin with fewer intervals for each computation (master.intervals_per_computation), as load splits "
                "them; or cut the topology in several",
                reason="TRANSACTION_TOO_LARGE",
            )


def _may_follow(was: catalog.IntervalRecord, now: catalog.IntervalRecord) -> bool:
    if now.sequencer > was.sequencer:
        return True
    same_owner = now.owner == was.owner and now.owner_revision == was.owner_revision
    return now.sequencer == was.sequencer and (same_owner or not now.HasField("owner"))
