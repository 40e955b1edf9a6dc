"""The receiving side of the model tests: intervals that crash, replay, split and merge, and a naive record of effects.

Only the test knows a record's identity. Invariant: no identity takes effect twice, and none is ACKed without effect.
This holds for all ids and marks. The three models share the rules of this module. The workers of the injectors' tests
use it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.store.contract import PartId
from millwheel.worker.dedup import (
    CheckOutcome,
    Dedup,
    DeliveryIds,
    DeliveryVerdict,
    IdDelta,
    Sender,
    decode_delta,
    encode_batch_ids,
)

KEYS = [bytes([97 + n]) for n in range(8)]
SMALL: dict[str, Any] = {"segment_ids": 4, "cached_segments": 1}


@dataclass(frozen=True)
class Record:
    """A record as the test knows it. Each ``identity`` must take effect once."""

    identity: Any
    key: bytes
    timestamp: int = 0


@dataclass(eq=False)
class Copy:
    """One copy of a delivery on its way. Only the receiver with that journal gets it."""

    journal: str
    ids: DeliveryIds
    records: Sequence[Record]
    sender: Sender
    acked: Callable[[Record], None]


@dataclass
class ReferenceModel:
    """The state that receivers share: effects so far, the store's segments, and which sequences are alive."""

    alive: Callable[[str], bool] = lambda sequence: True
    effects: Counter[Any] = field(default_factory=Counter)
    segments: dict[str, Any] = field(default_factory=dict)
    parts: dict[PartId, bytes] = field(default_factory=dict)
    """Base parts with ids of batches."""
    prefix: str = "r"
    """The prefix of journals' names."""
    numbers: Iterator[int] = field(default_factory=partial(count, 1))
    deaf: bool = False
    """True while ACKs are lost."""
    reached: Counter[str] = field(default_factory=Counter)
    """How often each interesting case came up. Tests assert that each did."""
    committed: list[Record] = field(default_factory=list)

    def take_effect(self, record: Record) -> None:
        self.effects[record.identity] += 1
        assert self.effects[record.identity] == 1, f"{record} took effect twice"
        self.committed.append(record)

    def journal(self) -> str:
        return f"{self.prefix}{next(self.numbers)}"


class Receiver:
    """An interval with its durable journal (snapshot and deltas) and the work in memory."""

    def __init__(
        self, model: ReferenceModel, interval: KeyInterval, dedup: Dedup | None = None, journal: str = ""
    ) -> None:
        self.model = model
        self.interval = interval
        self.journal = journal or model.journal()
        self.dedup = dedup or Dedup(interval, self.journal, **SMALL)
        self.copies: dict[DeliveryVerdict, Copy] = {}
        self.work: list[tuple[DeliveryVerdict, int]] = []
        self.unsure: list[DeliveryVerdict] = []
        self.flight: tuple[IdDelta, bytes, dict[DeliveryVerdict, list[int]]] | None = None
        self.batch_parts: Set[PartId] = frozenset()
        self.write_snapshot()

    def write_snapshot(self) -> None:
        snapshot = self.dedup.snapshot()
        filters = {name: self.model.segments[name].filter for name in snapshot.segments}
        for query, batch, one in snapshot.batch_ids:
            if one.part is None:
                one.part = PartId(f"part-{next(self.model.numbers)}", 1, 1)
                self.model.parts[one.part] = encode_batch_ids(query, batch, one.ids)
        batch_ids = {one.part: self.model.parts[one.part] for *_, one in snapshot.batch_ids if one.part is not None}
        self.model.reached["base with a part of an earlier one"] += len(batch_ids.keys() & self.batch_parts) > 0
        self.batch_parts = batch_ids.keys()
        self.durable = (snapshot.blobs, filters, batch_ids)
        self.deltas: list[bytes] = []

    def deliver(self, copy: Copy) -> DeliveryVerdict:
        keys = [record.key for record in copy.records]
        assert all(key in self.interval for key in keys)
        check = partial(self.dedup.check, copy.ids, keys, [record.timestamp for record in copy.records], copy.sender)
        verdict = check()
        if verdict.outcome is CheckOutcome.UNKNOWN_SEQUENCE:
            self.model.reached[verdict.outcome.name] += 1
            sequence: str = copy.ids.sequence  # type: ignore[union-attr]
            if not self.model.alive(sequence):
                self.dedup.retire(sequence)
                return verdict
            self.dedup.admit(sequence)
            verdict = check()
        self.model.reached[verdict.outcome.name] += 1
        if verdict.outcome is not CheckOutcome.CHECKED:
            assert not verdict.all_fresh
            assert not [*verdict.fresh, *verdict.duplicates, *verdict.waiting]
            return verdict
        self.copies[verdict] = copy
        listed = sorted([*verdict.fresh_indexes, *verdict.duplicates, *verdict.waiting, *verdict.unsure])
        assert listed == list(range(len(copy.records))), "each record is in one list"
        self._fresh(verdict, verdict.fresh_indexes)
        self.ack(copy, verdict.duplicates)
        self.model.reached.update(duplicate=len(verdict.duplicates), waiting=len(verdict.waiting))
        self.unsure.append(verdict)
        return verdict

    def _fresh(self, verdict: DeliveryVerdict, indexes: Sequence[int]) -> None:
        for index in indexes:
            record = self.copies[verdict].records[index]
            assert record.identity not in self.model.effects, f"{record} was called fresh after its effect"
            self.work.append((verdict, index))

    def ack(self, copy: Copy, indexes: Sequence[int]) -> None:
        for record in (copy.records[index] for index in indexes):
            assert record.identity in self.model.effects, f"{record} was ACKed without its effect"
            if not self.model.deaf:
                copy.acked(record)

    def resolve(self) -> None:
        """Read the segments that unsure records need. The store no longer has the collected ones."""
        for verdict in filter(lambda one: one.unsure, self.unsure):
            known = {name: self.model.segments[name].ids for name in verdict.segments if name in self.model.segments}
            resolution = self.dedup.resolve(verdict, known)
            self._fresh(verdict, resolution.fresh)
            self.model.reached["confirmed"] += len(resolution.duplicates)
            self.model.reached["collected while read"] += len(resolution.again)
            self.ack(self.copies[verdict], resolution.duplicates)
        self.unsure = []

    def seal(self) -> None:
        for sealed in self.dedup.seal():
            self.model.segments[sealed.name] = sealed
            self.model.reached["sealed"] += 1
            self.dedup.segment_stored(sealed.name)

    def take(self, most: int) -> None:
        """Put work into an entry, and begin to append it."""
        if self.flight is not None:
            return
        chosen: dict[DeliveryVerdict, list[int]] = {}
        for verdict, index in self.work[:most]:
            chosen.setdefault(verdict, []).append(index)
        self.work = self.work[most:]
        rows = chosen.items()
        whole = {verdict for verdict, indexes in rows if verdict.all_fresh and len(indexes) == verdict.size}
        delta = self.dedup.take([(verdict, None if verdict in whole else indexes) for verdict, indexes in rows])
        self.flight = (delta, msgspec.msgpack.encode(delta.to_wire()), chosen)

    def commit(self) -> None:
        """Append the entry in flight. Its records take effect, and their senders get ACKs."""
        if self.flight is None:
            return
        delta, _, chosen = self.flight
        self._apply()
        self.dedup.committed(delta)
        for verdict, indexes in chosen.items():
            self.ack(self.copies[verdict], indexes)

    def _apply(self) -> None:
        """Add the entry in flight to the durable journal."""
        assert self.flight is not None
        _, entry, chosen = self.flight
        self.flight = None
        self.deltas.append(entry)
        for verdict, indexes in chosen.items():
            for index in indexes:
                self.model.take_effect(self.copies[verdict].records[index])

    def abandon(self, given_up: Sequence[tuple[DeliveryVerdict, int]]) -> None:
        """Give up work, as an interval with a full intake does."""
        for verdict, index in given_up:
            self.work.remove((verdict, index))
            self.dedup.abandon(verdict, [index])

    def crash(self, applied: bool = False) -> None:
        """Lose the memory. If ``applied``, the journal has the entry in flight, but no sender got its ACK."""
        if self.flight is not None and applied:
            self._apply()
        self.dedup = Dedup.restore(self.interval, self.journal, *self.durable, **SMALL)
        for entry in self.deltas:
            self.dedup.replay(decode_delta(msgspec.msgpack.decode(entry)))
        self.copies, self.work, self.unsure, self.flight = {}, [], [], None
        self.model.reached["replayed with ids"] += bool(self.deltas)


class Receivers:
    """The intervals of one consumer, which cover every key once."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model = model
        self.all = [Receiver(model, ALL_KEYS)]

    def owner(self, key: bytes) -> Receiver:
        return next(receiver for receiver in self.all if key in receiver.interval)

    def deliver(self, copy: Copy) -> None:
        """Deliver a copy to the journal that it names. A sealed journal takes nothing."""
        for receiver in self.all:
            if receiver.journal == copy.journal:
                receiver.deliver(copy)

    def split(self, key: bytes, applied: bool) -> None:
        parent = self.owner(key)
        if key == parent.interval.start:
            return
        self._replace([parent], parent.interval.split(key), applied)

    def merge(self, at: int, applied: bool) -> None:
        if len(self.all) < 2:
            return
        left, right = self.all[at % (len(self.all) - 1) :][:2]
        self._replace([left, right], [KeyInterval(left.interval.start, right.interval.end)], applied)

    def _replace(self, parents: list[Receiver], intervals: Sequence[KeyInterval], applied: bool) -> None:
        for parent in parents:
            parent.crash(applied)
            self.all.remove(parent)
        self.all += [self._child(interval, parents) for interval in intervals]
        self.all.sort(key=lambda receiver: receiver.interval.start)

    def _child(self, interval: KeyInterval, parents: list[Receiver]) -> Receiver:
        journal = self.model.journal()
        dedup = Dedup.inherit(interval, journal, [parent.dedup for parent in parents], **SMALL)
        return Receiver(self.model, interval, dedup, journal)

    def run(self) -> None:
        """Commit all work."""
        for receiver in self.all:
            receiver.resolve()
            receiver.commit()
            receiver.take(1_000_000)
            receiver.commit()
            receiver.seal()


some = st.integers(0, 7)
keys = st.sampled_from(KEYS)
subset = st.integers(1, 255)


def chosen(items: list, bits: int) -> list:  # type: ignore[type-arg]
    """A subset of ``items``, in order, that ``bits`` picks."""
    return [item for index, item in enumerate(items) if bits >> (index % 8) & 1]


class ReceiverRules(RuleBasedStateMachine):
    """A consumer, and a network that keeps every copy that was ever sent."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ReferenceModel()
        self.receivers = Receivers(self.model)
        self.network: list[Copy] = []

    def send(self, copy: Copy, arrives: bool) -> None:
        """Put a copy into the network. If ``arrives``, it is delivered at once."""
        self.network.append(copy)
        if arrives:
            self.receivers.deliver(copy)

    def pick(self, at: int) -> Receiver:
        return self.receivers.all[at % len(self.receivers.all)]

    @rule(at=st.integers(0, 1_000))
    def old_copy_arrives(self, at: int) -> None:
        if self.network:
            self.receivers.deliver(self.network[-1 - at % len(self.network)])

    @rule(at=some, count=st.integers(1, 6))
    def take(self, at: int, count: int) -> None:
        self.pick(at).take(count)

    @rule(at=some)
    def commit(self, at: int) -> None:
        self.pick(at).commit()

    @rule(deaf=st.booleans())
    def everything_commits(self, deaf: bool) -> None:
        """Commit all work. If ``deaf``, the ACKs are lost."""
        self.model.deaf = deaf
        self.receivers.run()
        self.model.deaf = False

    @rule(at=some)
    def abandon(self, at: int) -> None:
        receiver = self.pick(at)
        receiver.abandon(receiver.work[:1])

    @rule(at=some, applied=st.booleans())
    def receiver_crashes(self, at: int, applied: bool) -> None:
        self.pick(at).crash(applied)

    @rule(at=some)
    def receiver_writes_snapshot(self, at: int) -> None:
        self.pick(at).write_snapshot()

    @rule(key=keys, applied=st.booleans())
    def receiver_splits(self, key: bytes, applied: bool) -> None:
        self.receivers.split(key, applied)

    @rule(at=some, applied=st.booleans())
    def receivers_merge(self, at: int, applied: bool) -> None:
        self.receivers.merge(at, applied)
