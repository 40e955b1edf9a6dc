"""A change of the coordinator's records: its plan, and the builder of that plan.

Every change of an interval map passes through the builder, which checks it (G11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from millwheel.coordination.contract import Compare, Put
from millwheel.master.messages import Answer
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_chunks import MAX_CHUNK_BYTES, IntervalChunk, MapEdit
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["MAX_OPERATIONS", "MAX_TRANSACTION_BYTES", "ChangePlan", "PlanBuilder"]

MAX_OPERATIONS: Final = 128
MAX_TRANSACTION_BYTES: Final = 1 << 20
"""The limits of one transaction. By default, etcd accepts 128 compares or changes, and 1.5 MiB."""

_RESERVED_OPERATIONS: Final = 8
"""Operations reserved for the leadership, the counter, a worker's registration, and a chunk that is cut."""


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The steps of one change: drop data from the store, create journals, run one transaction, then answer.

    ``drop_injectors``: injectors that the authority forgets, each unless it accepted a sequencer above the given one.
    ``owners``: the number of intervals that housekeeping gives to other owners, by the owners before and after.
    ``before``, ``after``: intervals that a move, a split or a merge replaces, and those that take their place.
    ``drawn``: the largest number that the plan draws, or names in ``drop_injectors``. 0: neither.
    Without puts and deletes there is no transaction, and the answer is available at once. Otherwise ``answer`` is
    called only once the catalog shows the transaction's effect.
    """

    compares: tuple[Compare, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()
    journals: tuple[str, ...] = ()
    drop_journals: tuple[str, ...] = ()
    drop_incarnations: tuple[IncarnationId, ...] = ()
    drop_injectors: tuple[tuple[str, int], ...] = ()
    drawn: int = 0
    answer: Callable[[], Answer] | None = None
    owners: tuple[tuple[str, str, int], ...] = ()
    before: tuple[catalog.IntervalRecord, ...] = ()
    after: tuple[catalog.IntervalRecord, ...] = ()

    @property
    def clears(self) -> bool:
        """Whether data is dropped or forgotten before the transaction."""
        return bool(self.drop_journals or self.drop_incarnations or self.drop_injectors)


class PlanBuilder:
    """Collects the puts and deletes of a plan together with their compares, and draws numbers.

    Invariant: sequencers grow in the order of assignments, because a number is drawn from one counter in the
    transaction that uses it. Numbers up to ``unusable`` are skipped: those that this term has drawn, also for failed
    transactions, as journals may have been named after them, and those below the block that this term reserved.
    """

    def __init__(self, known: Catalog, unusable: int = 0) -> None:
        self._known = known
        self._first = max(known.drawn, unusable)
        self._drawn = self._first
        self._compares: dict[str, Compare] = {}
        self._puts: dict[str, Put] = {}
        self._deletes: dict[str, None] = {}
        self._journals: dict[str, None] = {}
        self._edits: dict[str, MapEdit] = {}
        self._chunks: dict[str, dict[str, IntervalChunk]] = {}
        self._owners: dict[tuple[str, str], int] = {}

    @property
    def drawn_before(self) -> int:
        """An upper bound of the numbers that any master drew before this plan. Draws of later masters are above it."""
        return self._first

    def draw(self) -> int:
        """Return the next number, which is larger than every number drawn before, by any master.

        Raises DamagedValueError if the counter cannot be read.
        """
        self._known.check_readable(keys.SEQUENCER)
        self._drawn += 1
        return self._drawn

    def note_owner(self, before: str, after: str) -> None:
        """Count an interval that goes from one owner to another. The event log has these counts."""
        self._owners[before, after] = self._owners.get((before, after), 0) + 1

    def rest_on(self, key: str) -> None:
        """Make the transaction fail if ``key`` has changed since the catalog was read.

        Raises DamagedValueError if its value cannot be read. Such a value is never used or overwritten.
        """
        self._known.check_readable(key)
        self._compares[key] = Compare(key, self._known.modified(key))

    def put(self, key: str, record: Message) -> None:
        """Write a record. The transaction fails if the record has changed since the catalog was read."""
        self.rest_on(key)
        self._deletes.pop(key, None)
        self._puts[key] = Put(key, record.SerializeToString(deterministic=True))

    def delete(self, key: str) -> None:
        """Delete a record. The transaction fails if the record has changed since the catalog was read."""
        self.rest_on(key)
        self._puts.pop(key, None)
        self._deletes[key] = None

    def put_map(self, incarnation: IncarnationId, record: catalog.IntervalMapRecord, stored: bool = False) -> None:
        """Write a whole interval map, new or changed. Of a changed map, only the changed chunks are written.

        ``stored``: its journals exist in the store. Otherwise new ones are created.

        Raises CoverageError unless the map covers every key exactly once. Raises ValueError in three cases: a
        sequencer would go back, an interval would get a new owner under its old sequencer, or a journal would get
        other keys.
        """
        edit = self._edit(incarnation)
        self._follow_on(incarnation, record.intervals, stored)
        edit.replace_all(record.intervals)
        self._write(incarnation, edit, (record.computation, record.topology))

    def put_intervals(self, incarnation: IncarnationId, intervals: Sequence[catalog.IntervalRecord]) -> bool:
        """Replace the intervals of the same keys by these neighbours. Return whether that changes anything.

        The cost does not grow with the map. Raises CoverageError and ValueError as :meth:`put_map` does.
        """
        edit = self._edit(incarnation)
        self._follow_on(incarnation, intervals)
        if not edit.replace(intervals):
            return False
        self._write(incarnation, edit, self._known.maps[incarnation].origin)
        return True

    def _edit(self, incarnation: IncarnationId) -> MapEdit:
        self._known.check_map(incarnation)
        if incarnation not in self._edits:
            interval_map = self._known.maps.get(incarnation)
            self._edits[incarnation] = MapEdit(incarnation, interval_map.chunks if interval_map is not None else ())
        return self._edits[incarnation]

    def _follow_on(
        self, incarnation: IncarnationId, intervals: Iterable[catalog.IntervalRecord], stored: bool = False
    ) -> None:
        """Check that each interval may follow its journal's interval in the catalog. Note new journals for creation.

        The journal of a split's or a merge's child is not noted. The first owner that opens the child creates it,
        from the end of its parents' journals.
        """
        interval_map = self._known.maps.get(incarnation)
        for interval in intervals:
            was = interval_map.of_journal(interval.journal) if interval_map is not None else None
            if was is None:
                if not interval.parents and not stored:
                    self._journals[interval.journal] = None
            elif was.keys != interval.keys:
                raise ValueError(f"journal {interval.journal}: other keys need another journal")
            elif not _may_follow(was, interval):
                raise ValueError(f"journal {interval.journal}: a new owner needs a sequencer above {was.sequencer}")

    def _write(self, incarnation: IncarnationId, edit: MapEdit, origin: tuple[str, str]) -> None:
        """Put and delete exactly what differs from the catalog.

        Undo this builder's earlier writes that no longer differ.
        """
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
        """Whether one more chunk might exceed a coordinator's limit for a transaction."""
        operations = max(len(self._compares), len(self._puts) + len(self._deletes))
        size = sum(len(put.key) + len(put.value) for put in self._puts.values())
        return operations >= MAX_OPERATIONS - _RESERVED_OPERATIONS or size >= MAX_TRANSACTION_BYTES - MAX_CHUNK_BYTES

    @property
    def empty(self) -> bool:
        """Whether the plan has no puts and no deletes so far."""
        return not self._puts and not self._deletes

    def plan(
        self,
        answer: Callable[[], Answer] | None = None,
        drop_journals: tuple[str, ...] = (),
        drop_incarnations: tuple[IncarnationId, ...] = (),
        drop_injectors: tuple[tuple[str, int], ...] = (),
    ) -> ChangePlan:
        """Return the plan as it is now. RequestError if it exceeds a coordinator's limit for a transaction."""
        puts = list(self._puts.values())
        if self._drawn > self._first:
            self.rest_on(keys.SEQUENCER)
            puts.append(Put(keys.SEQUENCER, str(self._drawn).encode()))
        self._check_size(puts)
        return ChangePlan(
            tuple(self._compares.values()),
            tuple(puts),
            tuple(self._deletes),
            tuple(self._journals),
            drop_journals,
            drop_incarnations,
            drop_injectors,
            self._drawn if drop_injectors or self._drawn > self._first else 0,
            answer,
            tuple((*owners, count) for owners, count in sorted(self._owners.items())),
        )

    def _check_size(self, puts: Sequence[Put]) -> None:
        # The core adds one compare, that of the leadership, and an event, for which the oldest event is deleted.
        operations = max(len(self._compares) + 1, len(puts) + len(self._deletes) + 2)
        size = sum(len(put.key) + len(put.value) for put in puts)
        if operations > MAX_OPERATIONS or size > MAX_TRANSACTION_BYTES:
            raise RequestError(
                FailureCode.RESOURCE_EXHAUSTED,
                f"this takes {operations} changes and {size} bytes in one transaction, and a coordinator takes "
                f"{MAX_OPERATIONS} and {MAX_TRANSACTION_BYTES}",
                "begin with fewer intervals for each computation (master.intervals_per_computation), as load splits "
                "them; or cut the topology in several",
                reason="TRANSACTION_TOO_LARGE",
            )


def _may_follow(was: catalog.IntervalRecord, now: catalog.IntervalRecord) -> bool:
    if now.sequencer > was.sequencer:
        return True
    same_owner = now.owner == was.owner and now.owner_revision == was.owner_revision
    return now.sequencer == was.sequencer and (same_owner or not now.HasField("owner"))
