"""Senders of strong productions: journals of positions, owners that crash, split, merge, and come back as zombies."""

from __future__ import annotations

from dataclasses import dataclass, field

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.dedup import PositionIds, Sender
from tests.dedup.world import Copy, Receivers, Record


@dataclass
class Production:
    """A record, and the key that produced it."""

    record: Record
    producer: bytes


@dataclass(eq=False)
class Sequence:
    """A journal, as the store has it: what was produced, and which ACKs were written down."""

    name: str
    productions: dict[int, Production] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    sealed: bool = False
    next: int = 0


class Owner:
    """A process that owns producing keys, or believes so. ``outbox``: what it holds un-ACKed, by sequence."""

    def __init__(self, number: int, keys: KeyInterval, own: Sequence, inherited: list[Sequence]) -> None:
        self.number = number
        self.keys = keys
        self.own = own
        self.outbox = {
            sequence: {
                position: production
                for position, production in sequence.productions.items()
                if position not in sequence.acked and production.producer in keys
            }
            for sequence in [own, *inherited]
        }
        self.next = own.next
        self.acked: list[tuple[Sequence, int]] = []

    @property
    def inherited(self) -> list[Sequence]:
        return [sequence for sequence in self.outbox if sequence is not self.own]

    def produce(self, gap: int, record_key: bytes, producer: bytes) -> None:
        """A commit of the true owner: one more production in the journal and the outbox."""
        position = self.own.next + gap
        production = Production(Record((self.own.name, position), record_key), producer)
        self.own.productions[position] = self.outbox[self.own][position] = production
        self.own.next = self.next = position + 1

    def copy(
        self, sequence: Sequence, receiver_at: bytes, receivers: Receivers, positions: list[int], holes: bool
    ) -> Copy:
        """A delivery of those of ``positions`` that the receiver of that key owns, with a true mark."""
        receiver = receivers.owner(receiver_at)
        due = {p: o for p, o in self.outbox[sequence].items() if o.record.key in receiver.interval}
        mark = 0
        unacked: tuple[int, ...] = ()
        if sequence is self.own:
            mark = self.next if holes else min(due, default=self.next)
            unacked = tuple(due) if holes else ()
        sent = [p for p in positions if p in due]

        def acked(record: Record) -> None:
            if self.outbox[sequence].pop(record.identity[1], None) is not None:
                self.acked.append((sequence, record.identity[1]))

        return Copy(
            receiver.journal,
            PositionIds(sequence.name, mark, sent, unacked),
            [due[p].record for p in sent],
            Sender(self.own.name, self.number, self.keys, "sender.1"),
            acked,
        )

    def write_acks(self) -> None:
        """The true owner's next commit says which productions are ACKed."""
        for sequence, position in self.acked:
            sequence.acked.add(position)
        self.acked = []

    def release(self) -> None:
        """Of its parents, before its own split or merge: a commit that says which of theirs are ACKed."""
        kept = [(sequence, position) for sequence, position in self.acked if sequence is self.own]
        self.acked = [(sequence, position) for sequence, position in self.acked if sequence is not self.own]
        self.write_acks()
        self.acked = kept


class StrongSenders:
    """The owners of one sending computation, and every process that ever was one."""

    def __init__(self) -> None:
        self.sequencer = 1
        self.sequences = [Sequence("s1")]
        self.owners = [Owner(1, ALL_KEYS, self.sequences[0], [])]
        self.zombies: list[Owner] = []
        self.retired: set[str] = set()

    def alive(self, sequence: str) -> bool:
        return sequence not in self.retired

    def crash(self, owner: Owner) -> None:
        """Another process takes the keys over."""
        self._replace([owner], [(owner.keys, owner.own, owner.inherited)])

    def split(self, owner: Owner, at: bytes) -> None:
        """Unless the owner has parents' productions still: lineage is one deep."""
        if at in owner.keys and at != owner.keys.start and not any(owner.outbox[s] for s in owner.inherited):
            owner.release()
            owner.own.sealed = True
            self._replace([owner], [(keys, self._new(), [owner.own]) for keys in owner.keys.split(at)])

    def merge(self, left: Owner, right: Owner) -> None:
        if any(owner.outbox[s] for owner in (left, right) for s in owner.inherited):
            return
        left.release()
        right.release()
        left.own.sealed = right.own.sealed = True
        keys = KeyInterval(left.keys.start, right.keys.end)
        self._replace([left, right], [(keys, self._new(), [left.own, right.own])])

    def _new(self) -> Sequence:
        self.sequences.append(Sequence(f"s{len(self.sequences) + 1}"))
        return self.sequences[-1]

    def _replace(self, old: list[Owner], new: list[tuple[KeyInterval, Sequence, list[Sequence]]]) -> None:
        self.zombies += old
        self.owners = [owner for owner in self.owners if owner not in old]
        for keys, own, inherited in new:
            self.sequencer += 1
            self.owners.append(Owner(self.sequencer, keys, own, inherited))
        self.owners.sort(key=lambda owner: owner.keys.start)

    def retire(self) -> list[str]:
        """Sealed sequences that nobody holds a production of are retired; returns all that are."""
        for sequence in self.sequences:
            if sequence.sealed and sequence.acked.issuperset(sequence.productions):
                self.retired.add(sequence.name)
        return sorted(self.retired)
