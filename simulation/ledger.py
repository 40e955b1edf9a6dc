"""The combined content of the journals of intervals and logs: produced records, and where each is committed.

The ledger reads each entry as it is appended, from the first one on, and forgets nothing. So it can check the
conclusions of every owner, receiver and takeover, even after they have written new base parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId, incarnation_of_journal
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import BatchIds, OpaqueIds, PositionIds
from millwheel.worker.interval.entry import IntervalEntry, ProductionRow
from millwheel.worker.log.entry import LogEntry
from millwheel.worker.messages import Delivery
from simulation.journal_keys import JournalKeys
from simulation.twin import plain_entry
from simulation.twin_ids import IdFacts

__all__ = ["Ledger", "Made"]

Made = tuple[str, bytes, int, dict[str, bytes]]
"""Stream, value, timestamp, and the key by consumer."""

_NONE: Final[frozenset[Any]] = frozenset()


class Ledger:
    """Consumers are incarnations. A record that one interval has committed counts as committed for its consumer."""

    def __init__(self, catalog: Catalog, store: MemoryStore) -> None:
        self._catalog = catalog
        self._store = store
        self.made: dict[str, dict[int, Made]] = {}
        """Strong productions by sequence and position."""
        self.due: dict[tuple[IncarnationId, str], dict[int, str]] = {}
        """By consumer and sequence: positions that are not committed there, each with its stream."""
        self.stated: dict[tuple[str, str], int] = {}
        """By consumer and an injector's sequence: its largest ACK mark.

        A record that the injector repeats from below the mark is not due. A consumer that was added later has never
        received it.
        """
        self.committed: dict[str, IdFacts] = {}
        """By consumer."""
        self._ranges: dict[tuple[str, str], list[tuple[KeyInterval, range]]] = {}
        """By consumer and sequence: ranges of positions, each with the keys of whose records all are committed."""
        self.keys = JournalKeys(catalog)
        self._is_log: dict[str, bool] = {}
        """By consumer that the catalog has had: whether it is a log.

        A removed consumer's owner may still write entries until it is notified of the removal.
        """

    def read(self, journal: str, append: Append) -> IntervalEntry | LogEntry | None:
        """Process an entry and return it; None if the journal belongs neither to an interval nor to a log."""
        consumer = incarnation_of_journal(journal)
        entry: IntervalEntry | LogEntry
        if (is_log := self._kind(consumer)) is None:
            return None
        if is_log:
            entry = msgspec.msgpack.decode(append.entry, type=LogEntry)
        else:
            parts = self._store.journals[journal].parts
            entry = plain_entry(append.entry, append.commit, parts.__getitem__)
            self._produced(journal, entry.productions)
        if consumer not in self.committed:
            self.committed[consumer] = IdFacts(ALL_KEYS)
        if entry.ids:
            self._consumed(consumer, journal, entry.ids)
        return entry

    def _kind(self, consumer: IncarnationId) -> bool | None:
        """True for a log, False for a computation, and None if the consumer is neither."""
        if consumer not in self._is_log:
            if (
                self._catalog.computation(consumer) is not None
                or self._catalog.removed_computation(consumer) is not None
            ):
                self._is_log[consumer] = False
            elif self._catalog.log_of(consumer) is not None:
                self._is_log[consumer] = True
        return self._is_log.get(consumer)

    def _produced(self, journal: str, rows: Iterable[ProductionRow]) -> None:
        # An owner that does not know the newest version yet may still produce for a consumer that no longer reads.
        edges = self._catalog.edges()
        for position, _, stream, value, timestamp, targets, opaque in rows:
            if not opaque:
                self.made.setdefault(journal, {})[position] = stream, value, timestamp, dict(targets)
                for consumer, _ in targets:
                    if (consumer, stream) in edges:
                        self.due.setdefault((consumer, journal), {})[position] = stream

    def _consumed(self, consumer: IncarnationId, journal: str, wire: list[Any]) -> None:
        facts = IdFacts(ALL_KEYS)
        facts.apply([1, *wire[1:4], [], [], [], [], []])
        for name, numbers in wire[9] if wire[0] > 1 else ():
            keys, known = self.keys.of(journal), self._ranges.setdefault((consumer, name), [])
            for at, count in zip(numbers[::2], numbers[1::2], strict=True):
                whole = range(at, at + count)
                known.append((keys, whole))
                if due := self.due.get((consumer, name)):
                    made = self.made[name]
                    for position in [one for one in whole if one in due and made[one][3][consumer] in keys]:
                        del due[position]
        mine = self.committed[consumer]
        for name, mark, _ in wire[5]:
            self.stated[consumer, name] = max(mark, self.stated.get((consumer, name), 0))
        for name, sequence in facts.positions.items():
            mine.sequence(name).committed |= sequence.committed
            if due := self.due.get((consumer, name)):
                for position in sequence.committed:
                    due.pop(position, None)
        facts.positions = {}
        mine.inherit(facts)

    def follow(self) -> None:
        """The catalog has changed.

        A consumer that no longer reads a stream may lose the productions that are due to it. Each consumer is noted
        while the catalog has it: its first entry may come after its removal.
        """
        index = self._catalog.index()
        self._is_log.update(dict.fromkeys(index.computations, False))
        self._is_log.update({log.incarnation: True for log in self._catalog.logs.values()})
        edges = self._catalog.edges()
        for (consumer, _), due in self.due.items():
            for position in [one for one, stream in due.items() if (consumer, stream) not in edges]:
                del due[position]

    def uncommitted(self, delivery: Delivery, indexes: Iterable[int]) -> list[int | bytes]:
        """The ids of a delivery whose records are in no journal of the consumer."""
        facts, ids = self.committed.get(delivery.consumer), delivery.ids
        known: Any = _NONE
        names: Any
        if isinstance(ids, PositionIds):
            place = delivery.consumer, ids.sequence
            mark = self.stated[place] = max(ids.mark, self.stated.get(place, 0))
            names = ids.positions
            if delivery.sender.keys is None:
                indexes = [index for index in indexes if names[index] >= mark]
            known = facts.positions[ids.sequence].committed if facts and ids.sequence in facts.positions else _NONE
            whole = self._ranges.get((delivery.consumer, ids.sequence), ())
            keys = delivery.keys
            indexes = [at for at in indexes if not any(names[at] in one and keys[at] in its for its, one in whole)]
        elif isinstance(ids, OpaqueIds):
            names, name = ids.ids, delivery.sender.group
            known = facts.opaque[name].collect if facts and name in facts.opaque else _NONE
        else:
            assert isinstance(ids, BatchIds)
            names = ids.ids
            known = facts.batches.get(ids.query, {}).get(ids.batch, _NONE) if facts else _NONE
        return [names[index] for index in indexes if names[index] not in known]
