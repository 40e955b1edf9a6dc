"""The productions of one interval that their consumers have not ACKed (sections 6.1.1, 6.1.2).

Productions travel in *shipments*: columns of records of one sequence, for one stream, consumer and
interval of it. The sequence is the interval's own journal; productions that it inherits by a split or merge
keep the parent's, under which receivers know them. A shipment is kept until every record of it is ACKed;
whatever goes wrong on the way, it is sent again with the same ids and the same bytes (G9). The shipments for one
journal form a *flow*, which keeps them in order (G15).
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from millwheel.core.watermarks import MinTracker
from millwheel.worker.interval.entry import InheritedRow, ProductionRow
from millwheel.worker.interval.flows import Flow
from millwheel.worker.interval.shipments import INDEX_BITS, Shipment
from millwheel.worker.messages import DeliveryOrder

__all__ = ["Outbox", "Shipment"]

_STUCK: Final = 64
"""So many of a consumer's oldest records may be stuck, and not keep receivers from forgetting younger ids."""

_SIFTED: Final = 1_000
"""Shipments of a consumer that are gone through for those that are stuck."""

_OWN: Final = 1 << 62
"""The age of the own sequence: all others are older."""

_FLOWS: Final = 1_000
"""Flows of a consumer beyond which the empty ones are dropped: there would be one of every journal that ever was."""

_NO_FLOWS: Final[dict[str, Flow]] = {}


class Outbox:
    """All shipments that are not wholly ACKed.

    Invariants: ``pending`` holds the least timestamp of every shipment; positions rise within a
    shipment; ``_firsts`` has the first position of every shipment by consumer, and possibly former ones;
    ``mark(consumer)`` never exceeds the position of a record of that consumer that is not ACKed. The last
    two are about the interval's own sequence: nothing is stated about a parent's, which siblings send too.

    Every shipment is in the flow of the journal that has its keys, as far as is known. Whether that is so still is
    looked at when a flow is made: keys change their journal only to one that there was not before, so no younger
    production of a key is located before its older ones are regrouped.
    """

    def __init__(self, locate: Callable[[str, bytes], str]) -> None:
        self._locate = locate
        self._next_token = 1
        self._shipments: dict[int, Shipment] = {}
        self._by_consumer: dict[str, dict[int, Shipment]] = {}
        """Those of the own sequence."""
        self._inherited: dict[int, Shipment] = {}
        """Those of parents' sequences."""
        self._firsts: dict[str, list[tuple[int, int]]] = {}
        self._flows: dict[str, dict[str, Flow]] = {}
        """By consumer and journal; the journal is empty where nobody has the keys."""
        self._eager: dict[Flow, None] = {}
        """Flows that may have something to send."""
        self._halted: dict[Flow, None] = {}
        """Flows of which something was refused."""
        self._uncommitted: list[Shipment] = []
        self.pending = MinTracker()
        self.records = 0
        self.bytes = 0
        """Of the shipments' values, whole shipments counted until their last record is ACKed."""

    def __iter__(self) -> Iterator[Shipment]:
        return iter(self._shipments.values())

    def __len__(self) -> int:
        return len(self._shipments)

    @property
    def has_uncommitted(self) -> bool:
        """Whether productions wait for their commit."""
        return bool(self._uncommitted)

    @property
    def inherited(self) -> int:
        """How many shipments of parents' sequences are not ACKed."""
        return len(self._inherited)

    def get(self, token: int) -> Shipment | None:
        """The shipment of that token, unless it is ACKed."""
        return self._shipments.get(token)

    def unawaited(self, token: int) -> None:
        """No commit waits for the ACK of that shipment any more."""
        shipment = self._shipments.get(token)
        if shipment is not None:
            shipment.awaited = None

    # Taking productions in.

    def add(self, rows: Iterable[ProductionRow], sequence: str = "", *, committed: bool = True) -> list[Shipment]:
        """Take productions of one sequence in, in increasing positions; returns their shipments, not sent yet.

        ``committed`` False: they are not to be sent before ``release``.
        """
        shipments = self._group(rows, sequence)
        for one in shipments:
            self._insert(one)
            one.committed = committed
        self._make_way(shipments)
        for one in shipments:
            self._enter(one)
        return shipments

    def _make_way(self, shipments: Iterable[Shipment]) -> None:
        """Regroup older shipments of the consumers concerned if their keys may have moved."""
        for consumer, journal in {(one.consumer, one.journal) for one in shipments}:
            flows = self._flows.get(consumer, _NO_FLOWS)
            nowhere = flows.get("")
            if journal not in flows or (journal and nowhere is not None and nowhere.shipments):
                self._look_for_moves(consumer)

    def _group(self, rows: Iterable[ProductionRow], sequence: str) -> list[Shipment]:
        groups: dict[tuple[str, str, str], Shipment] = {}
        made: list[Shipment] = []
        locate = self._locate
        age, beyond = _age(sequence), 0
        for position, producer, stream, value, timestamp, targets, opaque in rows:
            if position >= beyond:
                beyond = (position >> INDEX_BITS) + 1 << INDEX_BITS
                _close_commit(groups)
            for consumer, key in targets:
                group = (consumer, stream, locate(consumer, key))
                shipment = groups.get(group)
                if shipment is None or not shipment.room():
                    shipment = groups[group] = Shipment(self._next_token, consumer, stream, group[2], sequence)
                    shipment.age = age
                    self._next_token += 1
                    made.append(shipment)
                shipment.bytes += len(value) + len(key)
                shipment.keys.append(key)
                shipment.values.append(value)
                shipment.timestamps.append(timestamp)
                shipment.positions.append(position)
                shipment.producers.append(producer)
                if opaque:
                    shipment.opaque.append(opaque)
        return made

    def _insert(self, shipment: Shipment) -> None:
        shipment.measure()
        self._list(shipment)
        self.pending.add(shipment.held)
        self.records += len(shipment.keys)
        self.bytes += shipment.bytes

    def _list(self, shipment: Shipment) -> None:
        self._shipments[shipment.token] = shipment
        if shipment.sequence:
            self._inherited[shipment.token] = shipment
        else:
            self._by_consumer.setdefault(shipment.consumer, {})[shipment.token] = shipment
            self._note_first(shipment)

    def release(self) -> None:
        """What was taken in before its commit was in the journal may be sent."""
        released, self._uncommitted = self._uncommitted, []
        for shipment in released:
            shipment.committed = True
            shipment.flow.waiting.append(shipment)
            self._eager[shipment.flow] = None

    # Flows.

    def _enter(self, shipment: Shipment) -> None:
        """Put a shipment at the end of the flow of its journal."""
        flows = self._flows.get(shipment.consumer)
        if flows is None:
            self._forget_gone()
            flows = self._flows[shipment.consumer] = {}
        flow = flows.get(shipment.journal)
        if flow is None:
            flow = flows[shipment.journal] = Flow(shipment.consumer, shipment.journal)
        shipment.flow = flow
        flow.shipments[shipment] = None
        if shipment.committed:
            flow.waiting.append(shipment)
            self._eager[flow] = None
        else:
            self._uncommitted.append(shipment)

    def _look_for_moves(self, consumer: str) -> None:
        """Regroup what waits for journals that do not have its keys any more, before anything younger joins a flow."""
        flows = self._flows.get(consumer)
        if not flows:
            return
        if len(flows) > _FLOWS:
            self._forget_empty(flows)
        gone = [flow for flow in flows.values() if flow.shipments and self._moved(flow)]
        if gone:
            self._regroup(consumer, gone)

    def _moved(self, flow: Flow) -> bool:
        """A journal's keys go elsewhere all at once: one of them says it of all. Keys of no journal go one by one."""
        if flow.journal:
            one = next(iter(flow.shipments))
            return self._locate(flow.consumer, one.keys[0]) != flow.journal
        return any(self._locate(flow.consumer, one.keys[i]) for one in flow.shipments for i in one.indexes())

    def _regroup(self, consumer: str, gone: Sequence[Flow]) -> None:
        """Have what was due to these flows go to the journals that have its keys now, oldest first."""
        flows = self._flows[consumer]
        moving: list[Shipment] = []
        for flow in gone:
            moving += flow.shipments
            del flows[flow.journal]
            self._eager.pop(flow, None)
            self._halted.pop(flow, None)
        uncommitted = list(self._uncommitted)
        replaced: dict[Shipment, list[Shipment]] = {}
        for shipment in sorted(moving, key=lambda one: (one.age, one.first)):
            replaced[shipment] = self._replace(shipment)
        self._uncommitted = [one for shipment in uncommitted for one in replaced.get(shipment, [shipment])]
        for flow in {one.flow: None for fresh in replaced.values() for one in fresh}:
            self._begin(flow)

    def _forget_empty(self, flows: dict[str, Flow]) -> None:
        """Drop flows in which nothing is. One that is made again begins again, as it may when all was ACKed."""
        for journal in [journal for journal, flow in flows.items() if not flow.shipments]:
            flow = flows.pop(journal)
            self._halted.pop(flow, None)
            self._eager.pop(flow, None)

    def _forget_gone(self) -> None:
        """Drop the flows of consumers that are no more, and that nothing is due to.

        Consumers are dropped when a new one joins them: so there are never more than once were at a time (G13).
        """
        for consumer in [one for one in self._flows if not self._locate(one, b"")]:
            flows = self._flows[consumer]
            self._forget_empty(flows)
            if not flows:
                del self._flows[consumer]

    def _replace(self, shipment: Shipment) -> list[Shipment]:
        """Have shipments of its rows, by who owns their keys now, take the place of a shipment."""
        fresh = self._group(list(self.rows_of(shipment)), shipment.sequence)
        self.records -= shipment.count()
        self._remove(shipment)
        for one in fresh:
            self._insert(one)
            one.committed, one.awaited = shipment.committed, shipment.awaited
            if one.awaited is not None:
                one.awaited.add(one.token)
            self._enter(one)
        return fresh

    def take_ready(self) -> list[tuple[Shipment, DeliveryOrder]]:
        """What is to be sent now, in order, each under a token that it was not sent under before."""
        found: list[tuple[Shipment, DeliveryOrder]] = []
        eager, self._eager = self._eager, {}
        for flow in eager:
            if taken := flow.next_round():
                last = flow.last
                for shipment, _ in taken:
                    if shipment.used or shipment.token <= last:
                        self._renew(shipment)
                    last, shipment.used = shipment.token, True
                found += flow.orders(taken)
        return found

    def _renew(self, shipment: Shipment) -> None:
        """Give the shipment another token. What receivers say of the one before is not about this sending."""
        before = shipment.token
        del self._shipments[before]
        (self._inherited if shipment.sequence else self._by_consumer[shipment.consumer]).pop(before)
        self.bytes -= shipment.bytes
        shipment.compact()
        self.bytes += shipment.bytes
        shipment.token = self._next_token
        self._next_token += 1
        self._list(shipment)
        if shipment.awaited is not None:
            shipment.awaited.discard(before)
            shipment.awaited.add(shipment.token)

    def halt(self, token: int) -> None:
        """That sending was refused: send nothing more behind it until it is sent again."""
        shipment = self._shipments.get(token)
        if shipment is not None and shipment.sent:
            shipment.flow.halted = token
            self._halted[shipment.flow] = None

    def refuse(self, token: int, full: bool) -> None:
        """That sending was refused, or lost, and ``go_on`` is due. ``full``: for want of room, and nothing else."""
        shipment = self._shipments.get(token)
        if shipment is not None and shipment.sent:
            shipment.flow.refuse(shipment, full)
            self._halted[shipment.flow] = None

    def go_on(self) -> None:
        """Have the flows of which something was refused go on, to wherever their keys live now."""
        for flow in [one for one in self._halted if one.refused]:
            if flow not in self._halted:
                continue  # it was regrouped with another
            del self._halted[flow]
            if flow.shipments and self._moved(flow):
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
        """Have a flow send everything again."""
        flow.begin()
        self._eager[flow] = None

    # What receivers say.

    def acknowledged(self, token: int, remaining: Sequence[int]) -> Shipment | None:
        """All of the shipment but ``remaining`` is ACKed; returns the shipment if it was not known to be so before."""
        shipment = self._shipments.get(token)
        if shipment is None:
            return None
        if shipment.flow.answered(token):
            self._eager[shipment.flow] = None
        if not remaining:
            self.records -= shipment.count()
            self._remove(shipment)
            shipment.waiting = set()
            return shipment
        before = shipment.count()
        keep = set(remaining)
        shipment.waiting = keep if shipment.waiting is None else shipment.waiting & keep
        self.records -= before - shipment.count()
        if not shipment.waiting:
            self._remove(shipment)
            return shipment
        self._measure_again(shipment)
        return shipment

    def _measure_again(self, shipment: Shipment) -> None:
        """Fewer of the shipment's records are waiting than before."""
        self.pending.remove(shipment.held)
        shipment.measure()
        self.pending.add(shipment.held)
        if not shipment.sequence:
            self._note_first(shipment)

    def _note_first(self, shipment: Shipment) -> None:
        shipments = self._by_consumer[shipment.consumer]
        firsts = self._firsts.setdefault(shipment.consumer, [])
        heapq.heappush(firsts, (shipment.first, shipment.token))
        if len(firsts) > 2 * len(shipments) + _STUCK:
            # The first may be stuck, with those that are gone behind it.
            firsts[:] = [(one.first, one.token) for one in shipments.values()]
            heapq.heapify(firsts)

    def _remove(self, shipment: Shipment) -> None:
        self.pending.remove(shipment.held)
        self.bytes -= shipment.bytes
        shipment.flow.shipments.pop(shipment, None)
        if shipment.awaited is not None:
            shipment.awaited.discard(shipment.token)
        del self._shipments[shipment.token]
        if shipment.sequence:
            del self._inherited[shipment.token]
            return
        siblings = self._by_consumer[shipment.consumer]
        del siblings[shipment.token]
        if not siblings:
            del self._by_consumer[shipment.consumer], self._firsts[shipment.consumer]

    def mark(self, consumer: str, otherwise: int) -> int:
        """Every record due to ``consumer`` below this position is ACKed; ``otherwise`` if nothing is pending."""
        firsts = self._firsts.get(consumer)
        if firsts is None:
            return otherwise
        shipments = self._by_consumer[consumer]
        while True:
            position, token = firsts[0]
            shipment = shipments.get(token)
            if shipment is not None and shipment.first == position:
                return position
            heapq.heappop(firsts)

    def statement(self, consumer: str, otherwise: int, stuck_below: int) -> tuple[int, list[int]]:
        """A mark for ``consumer``, and the positions below it that are not ACKed all the same.

        There are none, unless the oldest shipments have been pending from before the position
        ``stuck_below``: a key that fails for ever would otherwise have all receivers remember every id since.
        """
        mark = self.mark(consumer, otherwise)
        if mark >= stuck_below or len(self._by_consumer[consumer]) > _SIFTED:
            return mark, []
        stuck: list[int] = []
        beyond = otherwise
        for shipment in self._by_consumer[consumer].values():
            if shipment.first >= stuck_below:
                beyond = min(beyond, shipment.first)
                continue
            if len(stuck) + shipment.count() > _STUCK:
                return mark, []
            stuck.extend(shipment.positions[index] for index in shipment.indexes())
        return beyond, sorted(position for position in stuck if position < beyond)

    def copies_refused(self, shipment: Shipment, indexes: Iterable[int]) -> None:
        """The receiver has taken the sending, and refused the records of these indexes as copies of what it has.

        The shipment is sent again as a whole, behind what was sent last. The receiver has all of it, so nothing has to
        wait for it. It is never divided: the parts could change places when a flow begins again.
        """
        flow = shipment.flow
        if flow.answered(shipment.token):
            self._eager[flow] = None
        if shipment.sent and not set(shipment.indexes()).isdisjoint(indexes):
            shipment.sent = False
            flow.waiting.append(shipment)
            self._eager[flow] = None

    @staticmethod
    def rows_of(shipment: Shipment) -> Iterator[ProductionRow]:
        """The shipment's records that are not ACKed, as a journal stores them."""
        for index in shipment.indexes():
            yield (
                shipment.positions[index],
                shipment.producers[index],
                shipment.stream,
                shipment.values[index],
                shipment.timestamps[index],
                ((shipment.consumer, shipment.keys[index]),),
                shipment.opaque[index] if shipment.opaque else b"",
            )

    def snapshot(self) -> list[ProductionRow]:
        """Every production of the own sequence that is not ACKed, by increasing position: a base part."""
        rows = [row for one in self._shipments.values() if not one.sequence for row in self.rows_of(one)]
        rows.sort(key=lambda row: row[0])
        return rows

    def inherited_snapshot(self) -> list[InheritedRow]:
        """Every production of a parent's sequence that is not ACKed, by sequence and increasing position."""
        rows = [(one.sequence, row) for one in self._inherited.values() for row in self.rows_of(one)]
        rows.sort(key=lambda row: (row[0], row[1][0]))
        return rows


def _age(sequence: str) -> int:
    """A place among sequences that rises from parents to children: the number that their names end in."""
    if not sequence:
        return _OWN
    number = re.search(r"\d+$", sequence)
    return int(number[0]) if number else 0


def _close_commit(groups: dict[tuple[str, str, str], Shipment]) -> None:
    """The next commit begins: what one journal got of the last one in several shipments is complete."""
    if len(groups) < 2:
        return
    several = Counter((consumer, journal) for consumer, _, journal in groups)
    for group in [group for group in groups if several[group[0], group[2]] > 1]:
        del groups[group]
