"""The productions of one interval that their consumers have not ACKed (sections 6.1.1, 6.1.2).

Productions travel in *outbound batches* (``ProductionBatch``): columns of records of one sequence, one stream, one
consumer and one of the consumer's intervals. The sequence is usually the interval's own journal. Productions inherited
by a split or merge keep the parent's sequence, because receivers know them by it.

An outbound batch is kept until each of its records is ACKed. After any failure it is sent again with the same ids and
the same bytes (G9). The outbound batches for one journal form a *flow*, which keeps them in order (G15).
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from millwheel.model.outbound import UnackedBatches
from millwheel.worker.interval.entry import InheritedRow, ProductionRow
from millwheel.worker.interval.flows import INDEX_BITS, Flow, ProductionBatch
from millwheel.worker.messages import DeliveryOrder

__all__ = ["Outbox", "ProductionBatch"]

_MAX_STUCK_RECORDS: Final = 64
"""Maximum stuck records per consumer that are stated one by one. Receivers can then still forget younger ids."""

_MAX_SIFTED_BATCHES: Final = 1_000
"""Maximum outbound batches of one consumer that are searched for stuck ones."""

_OWN_AGE: Final = 1 << 62
"""The age of the own sequence. All other sequences are older, so their ages are smaller."""

_MAX_FLOWS: Final = 1_000
"""Number of flows of a consumer above which empty ones are dropped. Otherwise there is one for every past journal."""

_NO_FLOWS: Final[dict[str, Flow]] = {}


class Outbox:
    """All outbound batches that are not completely ACKed.

    It has many methods: a batch is added, sent, refused, regrouped, ACKed and stored, and each of these has its caller.

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

    def __init__(self, locate: Callable[[str, bytes], str]) -> None:
        self._locate = locate
        self._next_token = 1
        self._batches: dict[int, ProductionBatch] = {}
        self._by_consumer: dict[str, dict[int, ProductionBatch]] = {}
        """Outbound batches of the own sequence."""
        self._inherited: dict[int, ProductionBatch] = {}
        """Outbound batches of parents' sequences."""
        self._firsts: dict[str, list[tuple[int, int]]] = {}
        self._flows: dict[str, dict[str, Flow]] = {}
        """By consumer and journal. The journal is empty for keys that no interval owns."""
        self._eager: dict[Flow, None] = {}
        """Flows that may have something to send."""
        self._halted: dict[Flow, None] = {}
        """Flows with a refused sending."""
        self._uncommitted: list[ProductionBatch] = []
        self.unacked = UnackedBatches[ProductionBatch]()
        """Totals over all outbound batches."""

    def __iter__(self) -> Iterator[ProductionBatch]:
        return iter(self._batches.values())

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def has_uncommitted(self) -> bool:
        """Whether productions wait for their commit."""
        return bool(self._uncommitted)

    @property
    def inherited(self) -> int:
        """The number of outbound batches of parents' sequences that are not ACKed."""
        return len(self._inherited)

    def get(self, token: int) -> ProductionBatch | None:
        """The outbound batch with that token. None: it is ACKed, or was sent again under another token."""
        return self._batches.get(token)

    # Adding productions.

    def add(
        self, rows: Iterable[ProductionRow], sequence: str = "", *, committed: bool = True
    ) -> list[ProductionBatch]:
        """Add productions of one sequence, by increasing position. Returns their outbound batches, not sent yet.

        ``committed`` False: they must not be sent before ``release``.
        """
        batches = self._group(rows, sequence)
        for one in batches:
            self._insert(one)
            one.committed = committed
        self._make_way(batches)
        for one in batches:
            self._enter(one)
        return batches

    def _make_way(self, batches: Iterable[ProductionBatch]) -> None:
        """Regroup older outbound batches of the same consumers if their keys may have moved."""
        for consumer, journal in {(one.consumer, one.journal) for one in batches}:
            flows = self._flows.get(consumer, _NO_FLOWS)
            nowhere = flows.get("")
            if journal not in flows or (journal and nowhere is not None and nowhere.batches):
                self._look_for_moves(consumer)

    def _group(self, rows: Iterable[ProductionRow], sequence: str) -> list[ProductionBatch]:
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
                if batch is None or not batch.room():
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
        released, self._uncommitted = self._uncommitted, []
        for batch in released:
            batch.committed = True
            batch.flow.waiting.append(batch)
            self._eager[batch.flow] = None

    # Flows.

    def _enter(self, batch: ProductionBatch) -> None:
        """Append an outbound batch to the flow of its journal."""
        flows = self._flows.get(batch.consumer)
        if flows is None:
            self._forget_gone()
            flows = self._flows[batch.consumer] = {}
        flow = flows.get(batch.journal)
        if flow is None:
            flow = flows[batch.journal] = Flow(batch.consumer, batch.journal)
        batch.flow = flow
        flow.batches[batch] = None
        if batch.committed:
            flow.waiting.append(batch)
            self._eager[flow] = None
        else:
            self._uncommitted.append(batch)

    def _look_for_moves(self, consumer: str) -> None:
        """Regroup what waits for journals that no longer own its keys, before younger productions join a flow."""
        flows = self._flows.get(consumer)
        if not flows:
            return
        if len(flows) > _MAX_FLOWS:
            self._forget_empty(flows)
        gone = [flow for flow in flows.values() if flow.batches and self._moved(flow)]
        if gone:
            self._regroup(consumer, gone)

    def _moved(self, flow: Flow) -> bool:
        """Whether the flow's keys have moved.

        All keys of a journal move at once, so one key is enough to check. Keys without an owner get owners one by one,
        so each is checked.
        """
        if flow.journal:
            one = next(iter(flow.batches))
            return self._locate(flow.consumer, one.keys[0]) != flow.journal
        return any(self._locate(flow.consumer, one.keys[i]) for one in flow.batches for i in one.indexes())

    def _regroup(self, consumer: str, gone: Sequence[Flow]) -> None:
        """Move what these flows contain to the journals that own its keys now, oldest first."""
        flows = self._flows[consumer]
        moving: list[ProductionBatch] = []
        for flow in gone:
            moving += flow.batches
            del flows[flow.journal]
            self._eager.pop(flow, None)
            self._halted.pop(flow, None)
        uncommitted = list(self._uncommitted)
        replaced: dict[ProductionBatch, list[ProductionBatch]] = {}
        for batch in sorted(moving, key=lambda one: (one.age, one.first)):
            replaced[batch] = self._replace(batch)
        self._uncommitted = [one for batch in uncommitted for one in replaced.get(batch, [batch])]
        for flow in {one.flow: None for fresh in replaced.values() for one in fresh}:
            self._begin(flow)

    def _forget_empty(self, flows: dict[str, Flow]) -> None:
        """Drop empty flows. A flow that is created again starts again, which is safe when everything is ACKed."""
        for journal in [journal for journal, flow in flows.items() if not flow.batches]:
            flow = flows.pop(journal)
            self._halted.pop(flow, None)
            self._eager.pop(flow, None)

    def _forget_gone(self) -> None:
        """Drop the empty flows of consumers that no longer exist.

        This happens when a new consumer is added. So the number of consumers here never exceeds its earlier maximum
        (G13).
        """
        for consumer in [one for one in self._flows if not self._locate(one, b"")]:
            flows = self._flows[consumer]
            self._forget_empty(flows)
            if not flows:
                del self._flows[consumer]

    def _replace(self, batch: ProductionBatch) -> list[ProductionBatch]:
        """Replace an outbound batch by new ones, grouped by the current owners of its keys."""
        fresh = self._group(list(self.rows_of(batch)), batch.sequence)
        self._remove(batch)
        for one in fresh:
            self._insert(one)
            one.committed, one.awaited = batch.committed, batch.awaited
            if one.awaited is not None:
                one.awaited.add(one.token)
            self._enter(one)
        return fresh

    def take_ready(self) -> list[tuple[ProductionBatch, DeliveryOrder]]:
        """The outbound batches to send now, in order, each under a token that was not used before."""
        found: list[tuple[ProductionBatch, DeliveryOrder]] = []
        eager, self._eager = self._eager, {}
        for flow in eager:
            if taken := flow.next_round():
                last = flow.last
                for batch, _ in taken:
                    if batch.used or batch.token <= last:
                        self._renew(batch)
                    last, batch.used = batch.token, True
                found += flow.orders(taken)
        return found

    def _renew(self, batch: ProductionBatch) -> None:
        """Give the outbound batch a new token, so that answers to the earlier sending do not apply to this one."""
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

    def halt(self, token: int) -> None:
        """Stop the flow of a refused sending until that outbound batch is sent again."""
        batch = self._batches.get(token)
        if batch is not None and batch.sent:
            batch.flow.halted = token
            self._halted[batch.flow] = None

    def refuse(self, token: int, full: bool) -> None:
        """Register a sending that was refused or lost. ``go_on`` must follow.

        ``full``: the receiver refused it only because it had no room.
        """
        batch = self._batches.get(token)
        if batch is not None and batch.sent:
            batch.flow.refuse(batch, full)
            self._halted[batch.flow] = None

    def go_on(self) -> None:
        """Restart the flows with a refused sending, towards the current owners of their keys."""
        for flow in [one for one in self._halted if one.refused]:
            if flow not in self._halted:
                continue  # it was regrouped with another
            del self._halted[flow]
            if flow.batches and self._moved(flow):
                self._look_for_moves(flow.consumer)
                continue
            if flow.go_on():
                self._begin(flow)
            self._eager[flow] = None

    def begin_all(self) -> None:
        """Send everything that may be sent again."""
        self._halted.clear()
        for consumer in list(self._flows):
            self._look_for_moves(consumer)
            for flow in list(self._flows[consumer].values()):
                self._begin(flow)

    def _begin(self, flow: Flow) -> None:
        """Restart a flow from its oldest outbound batch."""
        flow.begin()
        self._eager[flow] = None

    # Answers of receivers.

    def acknowledged(self, token: int, remaining: Sequence[int]) -> ProductionBatch | None:
        """Register that all records except ``remaining`` are ACKed.

        Returns the outbound batch, or None if it is unknown.
        """
        batch = self._batches.get(token)
        if batch is None:
            return None
        if batch.flow.answered(token):
            self._eager[batch.flow] = None
        if self.unacked.acknowledge(batch, remaining):
            self._remove(batch)
        elif not batch.sequence:
            self._note_first(batch)
        return batch

    def _note_first(self, batch: ProductionBatch) -> None:
        batches = self._by_consumer[batch.consumer]
        firsts = self._firsts.setdefault(batch.consumer, [])
        heapq.heappush(firsts, (batch.first, batch.token))
        if len(firsts) > 2 * len(batches) + _MAX_STUCK_RECORDS:
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

    def mark(self, consumer: str, otherwise: int) -> int:
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

    def statement(self, consumer: str, otherwise: int, stuck_below: int) -> tuple[int, list[int]]:
        """An ACK mark for ``consumer``, and the positions below it that are not ACKed.

        Such positions exist only if the oldest outbound batches are pending from before position ``stuck_below``.
        Otherwise one key that always fails would force all receivers to remember every later id.
        """
        mark = self.mark(consumer, otherwise)
        if mark >= stuck_below or len(self._by_consumer[consumer]) > _MAX_SIFTED_BATCHES:
            return mark, []
        stuck: list[int] = []
        beyond = otherwise
        for batch in self._by_consumer[consumer].values():
            if batch.first >= stuck_below:
                beyond = min(beyond, batch.first)
                continue
            if len(stuck) + batch.count() > _MAX_STUCK_RECORDS:
                return mark, []
            stuck.extend(batch.positions[index] for index in batch.indexes())
        return beyond, sorted(position for position in stuck if position < beyond)

    def copies_refused(self, batch: ProductionBatch, indexes: Iterable[int]) -> None:
        """The receiver has accepted the sending, but refused the records ``indexes`` as copies of records that it has.

        The whole outbound batch is sent again, behind the last sending. The receiver has all of its records, so nothing
        has to wait for it. It is never divided, because its parts could change places when a flow restarts.
        """
        flow = batch.flow
        if flow.answered(batch.token):
            self._eager[flow] = None
        if batch.sent and not set(batch.indexes()).isdisjoint(indexes):
            batch.sent = False
            flow.waiting.append(batch)
            self._eager[flow] = None

    @staticmethod
    def rows_of(batch: ProductionBatch) -> Iterator[ProductionRow]:
        """The records that are not ACKed, as a journal stores them."""
        for index in batch.indexes():
            yield (
                batch.positions[index],
                batch.producers[index],
                batch.stream,
                batch.values[index],
                batch.timestamps[index],
                ((batch.consumer, batch.keys[index]),),
                batch.opaque[index] if batch.opaque else b"",
            )

    def snapshot(self) -> list[ProductionRow]:
        """Every production of the own sequence that is not ACKed, by increasing position, for a base part."""
        rows = [row for one in self._batches.values() if not one.sequence for row in self.rows_of(one)]
        rows.sort(key=lambda row: row[0])
        return rows

    def inherited_snapshot(self) -> list[InheritedRow]:
        """Every production of a parent's sequence that is not ACKed, by sequence and increasing position."""
        rows = [(one.sequence, row) for one in self._inherited.values() for row in self.rows_of(one)]
        rows.sort(key=lambda row: (row[0], row[1][0]))
        return rows


def _age(sequence: str) -> int:
    """A sort key for sequences, parents before children: the number at the end of the journal's name."""
    if not sequence:
        return _OWN_AGE
    number = re.search(r"\d+$", sequence)
    return int(number[0]) if number else 0


def _close_commit(groups: dict[tuple[str, str, str], ProductionBatch]) -> None:
    """Close groups at the end of a commit: those of a journal that received several outbound batches of this commit."""
    if len(groups) < 2:
        return
    several = Counter((consumer, journal) for consumer, _, journal in groups)
    for group in [group for group in groups if several[group[0], group[2]] > 1]:
        del groups[group]
