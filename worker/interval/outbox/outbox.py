"""The productions of one interval that their consumers have not ACKed (sections 6.1.1, 6.1.2).

Productions travel in *outbound batches* (``ProductionBatch``): columns of records of one sequence, one stream, one
consumer and one of the consumer's intervals. The sequence is usually the interval's own journal. Productions inherited
by a split or merge keep the parent's sequence, because receivers know them by it.

An outbound batch is kept until each of its records is ACKed. After any failure it is sent again with the same ids and
the same bytes (G9). Its *flow* keeps its order (``flows.py``; G15).
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Final, TypeVar

from millwheel.model.incarnation import IncarnationId
from millwheel.model.outbound import UnackedBatches
from millwheel.rpc.columns import bytes_of
from millwheel.rpc.packed_values import PackedValues
from millwheel.worker.interval.column_run import UnsentTable
from millwheel.worker.interval.entry import ProductionRow, ProductionRun
from millwheel.worker.interval.outbox.batch_division import parts_of, places_by_journal, tables_by_journal
from millwheel.worker.interval.outbox.flows import (
    INDEX_BITS,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    Flow,
    ProductionBatch,
)
from millwheel.worker.interval.outbox.outbox_flows import OutboxFlows
from millwheel.worker.messages import DeliveryOrder

__all__ = ["Outbox", "ProductionBatch"]

MAX_STUCK_RECORDS: Final = 64
"""Maximum stuck records per consumer that are stated one by one. Receivers can then still forget younger ids."""

MAX_SIFTED_BATCHES: Final = 1_000
"""Maximum outbound batches of one consumer that are searched for stuck ones."""

MIN_ALIKE: Final = 8
"""Fewer productions are grouped one by one."""

_OWN_AGE: Final = 1 << 62
"""The age of the own sequence. All other sequences are older, so their ages are smaller."""

_NO_FLOWS: Final[dict[str, Flow]] = {}

_Columns = tuple[list[bytes], list[bytes], Sequence[bytes], list[int], list[bytes]]
"""Keys at the consumer, producing keys, values, timestamps, and opaque ids. No opaque id: the positions are the ids."""

_Item = TypeVar("_Item")


class Outbox:
    """All outbound batches that are not completely ACKed.

    Invariants:

    - Positions rise within an outbound batch.
    - ``_firsts`` has, by consumer, the first position of every outbound batch, and possibly outdated ones.
    - ``mark(consumer)`` never exceeds the position of a record of that consumer that is not ACKed.

    The last two concern the interval's own sequence only. Siblings also send under a parent's sequence, so no mark is
    stated for it.

    Invariant: every outbound batch is in the flow of the journal that owns its keys, by the interval map known here.
    This is checked when a flow is created. It suffices, because keys only move to a journal that did not exist before.
    So a key's older productions are regrouped before a younger production is located.
    """

    def __init__(self, locate: Callable[[IncarnationId, bytes], str]) -> None:
        self._locate = locate
        self._next_token = 1
        self._batches: dict[int, ProductionBatch] = {}
        self._by_consumer: dict[IncarnationId, dict[int, ProductionBatch]] = {}
        """Outbound batches of the own sequence."""
        self._inherited: dict[int, ProductionBatch] = {}
        """Outbound batches of parents' sequences."""
        self._firsts: dict[IncarnationId, list[tuple[int, int]]] = {}
        self.flows = OutboxFlows(self._batches, locate, self._replace)
        self.unacked = UnackedBatches[ProductionBatch]()
        """Totals over all outbound batches."""
        self.acks = 0
        """How many ACKs have come."""

    def __iter__(self) -> Iterator[ProductionBatch]:
        return iter(self._batches.values())

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def has_uncommitted(self) -> bool:
        """Whether productions wait for their commit."""
        return bool(self.flows.uncommitted)

    @property
    def inherited(self) -> int:
        """The number of outbound batches of parents' sequences that are not ACKed."""
        return len(self._inherited)

    def get(self, token: int) -> ProductionBatch | None:
        """The outbound batch with that token. None: it is ACKed, or was sent again under another token."""
        return self._batches.get(token)

    # Adding productions.

    def add(
        self,
        rows: Sequence[ProductionRow],
        sequence: str = "",
        *,
        runs: Iterable[ProductionRun] = (),
        tables: Iterable[UnsentTable] = (),
        committed: bool = True,
        now: int = 0,
    ) -> list[ProductionBatch]:
        """Add productions of one sequence, by increasing position. Returns their outbound batches, not sent yet.

        ``runs``: own productions before those in ``rows``. ``tables``: those behind these, and before ``rows``.
        ``committed`` False: they are not sent before ``release``.
        """
        batches = [*self._group_runs(runs), *self._group_tables(tables), *self._group(rows, sequence)]
        for one in batches:
            self._insert(one)
            one.committed, one.since = committed, now
        self._make_way(batches)
        for one in batches:
            self._enter(one)
        return batches

    def _make_way(self, batches: Iterable[ProductionBatch]) -> None:
        """Regroup older outbound batches of the same consumers if their keys may have moved."""
        for consumer, journal in {(one.consumer, one.journal) for one in batches}:
            flows = self.flows.by_consumer.get(consumer, _NO_FLOWS)
            nowhere = flows.get("")
            if journal not in flows or (journal and nowhere is not None and nowhere.batches):
                self.flows.look_for_moves(consumer)

    def _group(self, rows: Sequence[ProductionRow], sequence: str) -> list[ProductionBatch]:
        made = self._group_alike(rows, sequence)
        return self._group_each(rows, sequence) if made is None else made

    def _group_alike(self, rows: Sequence[ProductionRow], sequence: str) -> list[ProductionBatch] | None:
        """Group productions of one commit and stream that have one target, as a log, with no step for each of them.

        None: they are not so.
        """
        if len(rows) < MIN_ALIKE or rows[0][5] != rows[-1][5]:
            return None
        positions, producers, streams, values, timestamps, targets, opaque = zip(*rows, strict=True)
        several = positions[0] >> INDEX_BITS != positions[-1] >> INDEX_BITS or len(targets[0]) != 1
        if several or any(one.count(one[0]) != len(rows) for one in (streams, targets)) or any(opaque) != all(opaque):
            return None
        numbers: Sequence[int] = list(positions)
        if positions[-1] - positions[0] == len(positions) - 1:
            numbers = range(positions[0], positions[-1] + 1)
        ((consumer, key),) = targets[0]
        place = consumer, streams[0], self._locate(consumer, key), sequence
        others = list(timestamps), list(opaque if opaque[0] else ())
        columns = [key] * len(rows), list(producers), list(values), *others
        return list(self._made_of(place, numbers, columns, complete=isinstance(numbers, range)))

    def _group_runs(self, runs: Iterable[ProductionRun]) -> Iterator[ProductionBatch]:
        """Group runs of productions, with no step for each production."""
        for run in runs:
            producers, stamps = run.each_producer(), run.timestamps()
            for consumer, key in run.targets:
                locate = partial(self._locate, consumer)
                keys = [key] * len(run.values) if isinstance(key, bytes) else key
                located = keys[:1] if isinstance(key, bytes) else keys  # one for all, as for logs, is located once
                for journal, chosen in places_by_journal(locate, located):
                    place = consumer, run.stream, journal, ""
                    columns: _Columns = keys, producers, run.values, stamps, []
                    positions: Sequence[int] = run.positions
                    if chosen is not None:
                        own = _chosen(keys, chosen), _chosen(producers, chosen), _chosen(run.values, chosen)
                        columns = *own, _chosen(stamps, chosen), []
                        positions = [run.position + at for at in chosen]
                    # Each record of the run has one key at the consumer. So what is left out is due to other intervals.
                    yield from self._made_of(place, positions, columns, complete=True)

    def _group_tables(self, tables: Iterable[UnsentTable]) -> Iterator[ProductionBatch]:
        """Group records that are columns: a batch for each interval that has some.

        Invariant (G13): a table is no larger than a batch may be. Its reader sees to it.
        """
        for one in tables:
            table = one.table
            for consumer, key in table.targets:
                locate = partial(self._locate, consumer)
                for journal, records, places in tables_by_journal(locate, table.records.keyed(key)):
                    batch = ProductionBatch(self._next_token, consumer, table.stream, journal, "")
                    self._next_token += 1
                    batch.age, batch.bytes, batch.complete = _OWN_AGE, bytes_of(records), True
                    own = range(one.position, one.position + len(table.records))
                    batch.positions = own if places is None else [own[at] for at in places]
                    batch.keys, batch.values, batch.timestamps = records.keys(), records, records.timestamps
                    batch.producers = [one.producer] * len(records)
                    yield batch

    def _made_of(
        self,
        place: tuple[IncarnationId, str, str, str],
        positions: Sequence[int],
        columns: _Columns,
        *,
        complete: bool,
    ) -> Iterator[ProductionBatch]:
        """The outbound batches of productions for one interval.

        Bound (G13): parts of packed values share the buffer of their run, so each keeps all of it in memory. A run has
        about ``batch_bytes`` at most. A flow is ACKed nearly in order, so it keeps about one run too much.

        Args:
            place: The consumer, the stream, the journal of the interval, and the sequence.
            positions: They rise.
            columns: Of the productions.
            complete: Whether nothing between the positions is due to the interval. In a range nothing is between.
        """
        consumer, stream, journal, sequence = place
        keys, producers, values, timestamps, opaque = columns
        age = _age(sequence)
        for part, size in parts_of(keys, values, MAX_BATCH_RECORDS, MAX_BATCH_BYTES):
            batch = ProductionBatch(self._next_token, consumer, stream, journal, sequence)
            self._next_token += 1
            batch.age, batch.bytes, batch.positions, batch.complete = age, size, positions[part], complete
            batch.keys, batch.producers, batch.values = keys[part], producers[part], values[part]
            batch.timestamps, batch.opaque = timestamps[part], opaque[part]
            yield batch

    def _group_each(self, rows: Iterable[ProductionRow], sequence: str) -> list[ProductionBatch]:
        groups: dict[tuple[str, str, str], ProductionBatch] = {}
        made: list[ProductionBatch] = []
        locate = self._locate
        age, beyond = _age(sequence), 0
        for position, producer, stream, value, timestamp, targets, opaque in rows:
            if position >= beyond:
                beyond = (position >> INDEX_BITS) + 1 << INDEX_BITS
                _close_commit(groups)
            for consumer, key in targets:
                group = (consumer, stream, locate(consumer, key))
                batch = groups.get(group)
                # Ids of one batch are of one kind. A computation that has become weak by an update has both.
                if batch is None or not batch.room() or bool(batch.opaque) is not bool(opaque):
                    batch = groups[group] = ProductionBatch(self._next_token, consumer, stream, group[2], sequence)
                    batch.age = age
                    self._next_token += 1
                    made.append(batch)
                batch.bytes += len(value) + len(key)
                batch.keys.append(key)
                batch.values.append(value)
                batch.timestamps.append(timestamp)
                batch.positions.append(position)
                batch.producers.append(producer)
                if opaque:
                    batch.opaque.append(opaque)
        return made

    def _insert(self, batch: ProductionBatch) -> None:
        batch.measure()
        self._list(batch)
        self.unacked.add(batch)

    def _list(self, batch: ProductionBatch) -> None:
        self._batches[batch.token] = batch
        if batch.sequence:
            self._inherited[batch.token] = batch
        else:
            self._by_consumer.setdefault(batch.consumer, {})[batch.token] = batch
            self._note_first(batch)

    def release(self) -> None:
        """Allow the sending of productions that were added before their commit was in the journal."""
        released, self.flows.uncommitted = self.flows.uncommitted, []
        ready = self.flows.ready
        for batch in released:
            batch.committed = True
            batch.flow.waiting.append(batch)
            ready[batch.flow] = None

    # Flows.

    def _enter(self, batch: ProductionBatch) -> None:
        """Append an outbound batch to the flow of its journal."""
        flows = self.flows.by_consumer.get(batch.consumer)
        if flows is None:
            self.flows.forget_gone()
            flows = self.flows.by_consumer[batch.consumer] = {}
        flow = flows.get(batch.journal)
        if flow is None:
            flow = flows[batch.journal] = Flow(batch.consumer, batch.journal)
        batch.flow = flow
        flow.batches[batch] = None
        if batch.committed:
            flow.waiting.append(batch)
            self.flows.ready[flow] = None
        else:
            self.flows.uncommitted.append(batch)

    def _replace(self, batch: ProductionBatch) -> list[ProductionBatch]:
        """Replace an outbound batch by new ones, grouped by the current owners of its keys."""
        fresh = self._group(list(self.rows_of(batch)), batch.sequence)
        self._remove(batch)
        for one in fresh:
            self._insert(one)
            one.committed, one.awaited, one.since = batch.committed, batch.awaited, batch.since
            if one.awaited is not None:
                one.awaited.add(one.token)
            self._enter(one)
        return fresh

    def take_ready(self) -> list[tuple[ProductionBatch, DeliveryOrder]]:
        """The outbound batches to send now, in order, each under a token that was not used before."""
        found: list[tuple[ProductionBatch, DeliveryOrder]] = []
        ready, self.flows.ready = self.flows.ready, {}
        for flow in ready:
            if taken := flow.next_round():
                last = flow.last
                for batch, _ in taken:
                    if batch.used or batch.token <= last:
                        self._renew(batch)
                    last, batch.used = batch.token, True
                found += flow.orders(taken)
        return found

    def _renew(self, batch: ProductionBatch) -> None:
        """Give the outbound batch a new token, so that answers to the earlier attempt do not apply to this one."""
        before = batch.token
        del self._batches[before]
        (self._inherited if batch.sequence else self._by_consumer[batch.consumer]).pop(before)
        size = batch.bytes
        batch.compact()
        self.unacked.resized(batch, size)
        batch.token = self._next_token
        self._next_token += 1
        self._list(batch)
        if batch.awaited is not None:
            batch.awaited.discard(before)
            batch.awaited.add(batch.token)

    # Answers of receivers.

    def acknowledged(self, token: int, remaining: Sequence[int]) -> None:
        """Register that all records except ``remaining`` are ACKed. An unknown token is ignored."""
        batch = self._batches.get(token)
        if batch is None:
            return
        self.acks += 1
        if batch.flow.answered(token):
            self.flows.ready[batch.flow] = None
        if self.unacked.acknowledge(batch, remaining):
            self._remove(batch)
        elif not batch.sequence:
            self._note_first(batch)

    def _note_first(self, batch: ProductionBatch) -> None:
        batches = self._by_consumer[batch.consumer]
        firsts = self._firsts.setdefault(batch.consumer, [])
        heapq.heappush(firsts, (batch.first, batch.token))
        if len(firsts) > 2 * len(batches) + MAX_STUCK_RECORDS:
            # The first entry may be stuck, with outdated entries behind it.
            firsts[:] = [(one.first, one.token) for one in batches.values()]
            heapq.heapify(firsts)

    def _remove(self, batch: ProductionBatch) -> None:
        self.unacked.remove(batch)
        batch.flow.batches.pop(batch, None)
        if batch.awaited is not None:
            batch.awaited.discard(batch.token)
        del self._batches[batch.token]
        if batch.sequence:
            del self._inherited[batch.token]
            return
        siblings = self._by_consumer[batch.consumer]
        del siblings[batch.token]
        if not siblings:
            del self._by_consumer[batch.consumer], self._firsts[batch.consumer]

    def mark(self, consumer: IncarnationId, otherwise: int) -> int:
        """The ACK mark: every record for ``consumer`` below it is ACKed. ``otherwise`` if nothing is pending."""
        firsts = self._firsts.get(consumer)
        if firsts is None:
            return otherwise
        batches = self._by_consumer[consumer]
        while True:
            position, token = firsts[0]
            batch = batches.get(token)
            if batch is not None and batch.first == position:
                return position
            heapq.heappop(firsts)

    def statement(self, consumer: IncarnationId, otherwise: int, stuck_below: int) -> tuple[int, list[int]]:
        """An ACK mark for ``consumer``, and the positions below it that are not ACKed.

        Such positions exist only if the oldest outbound batches are pending from before position ``stuck_below``.
        Otherwise one key that always fails would force all receivers to remember every later id.

        Invariant (G1): a stated mark is at most ``otherwise``, the position of the first commit that is not in the
        journal. Weak productions are sent, and ACKed, before their commit. If it keeps nothing, or its owner is
        deposed, another commit gets its positions.
        """
        mark = min(self.mark(consumer, otherwise), otherwise)
        if mark >= stuck_below or len(self._by_consumer[consumer]) > MAX_SIFTED_BATCHES:
            return mark, []
        stuck: list[int] = []
        beyond = otherwise
        for batch in self._by_consumer[consumer].values():
            if batch.first >= stuck_below:
                beyond = min(beyond, batch.first)
                continue
            if len(stuck) + batch.count() > MAX_STUCK_RECORDS:
                return mark, []
            stuck.extend(batch.positions[index] for index in batch.indexes())
        return beyond, sorted(position for position in stuck if position < beyond)

    @staticmethod
    def rows_of(batch: ProductionBatch) -> Iterator[ProductionRow]:
        """The records that are not ACKed, as a journal stores them."""
        values = batch.values.tolist() if isinstance(batch.values, PackedValues) else batch.values
        if batch.waiting is None and isinstance(values, list) and isinstance(batch.keys, list):
            consumer = batch.consumer
            targets = [((consumer, key),) for key in batch.keys]
            ids = batch.opaque or repeat(b"", len(values))
            columns = batch.positions, batch.producers, repeat(batch.stream, len(values)), values, batch.timestamps
            yield from zip(*columns, targets, ids, strict=True)
            return
        for index in batch.indexes():
            yield (
                batch.positions[index],
                batch.producers[index],
                batch.stream,
                values[index],
                batch.timestamps[index],
                ((batch.consumer, batch.keys[index]),),
                batch.opaque[index] if batch.opaque else b"",
            )


def _age(sequence: str) -> int:
    """A sort key for sequences, parents before children: the number at the end of the journal's name."""
    if not sequence:
        return _OWN_AGE
    number = re.search(r"\d+$", sequence)
    return int(number[0]) if number else 0


def _chosen(column: Sequence[_Item], places: Sequence[int]) -> list[_Item]:
    return [column[at] for at in places]


def _close_commit(groups: dict[tuple[str, str, str], ProductionBatch]) -> None:
    """Close groups at the end of a commit: those of a journal that received several outbound batches of this commit."""
    if len(groups) < 2:
        return
    several = Counter((consumer, journal) for consumer, _, journal in groups)
    for group in [group for group in groups if several[group[0], group[2]] > 1]:
        del groups[group]
