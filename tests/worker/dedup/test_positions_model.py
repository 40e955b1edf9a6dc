"""Positions against a naive model: senders and receivers crash, split and merge, and zombies deliver."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.dedup import PositionIds, Sender
from simulation.held_ids import pending_ids, seen_ids
from tests.worker.dedup.receivers import Copy, ReceiverRules, Receivers, Record, chosen, keys, some, subset


@dataclass
class Production:
    """A record, and the key that produced it."""

    record: Record
    producer: bytes


@dataclass(eq=False)
class Sequence:
    """A journal in the store: the productions, and the recorded ACKs."""

    name: str
    productions: dict[int, Production] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    sealed: bool = False
    next: int = 0


class Owner:
    """A process that owns producing keys, or believes so. ``outbox``: its un-ACKed productions, by sequence."""

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
        self,
        sequence: Sequence,
        receiver_at: bytes,
        receivers: Receivers,
        positions: list[int],
        holes: bool,
        complete: bool = False,
    ) -> Copy:
        """Deliver those of ``positions`` that the receiver of that key owns, with a true mark.

        ``complete``: with all others between them that have no ACK. Another owner may hold some of a parent's, so only
        the owner's own productions are complete.
        """
        receiver = receivers.owner(receiver_at)
        due = {p: o for p, o in self.outbox[sequence].items() if o.record.key in receiver.interval}
        mark = 0
        unacked: tuple[int, ...] = ()
        if sequence is self.own:
            mark = self.next if holes else min(due, default=self.next)
            unacked = tuple(due) if holes else ()
        sent = [p for p in positions if p in due]
        if complete := complete and bool(sent) and sequence is self.own:
            sent = sorted(p for p in due if sent[0] <= p <= sent[-1])
            receivers.model.reached["complete"] += 1

        def acked(record: Record) -> None:
            if self.outbox[sequence].pop(record.identity[1], None) is not None:
                self.acked.append((sequence, record.identity[1]))

        return Copy(
            receiver.journal,
            PositionIds(sequence.name, mark, sent, unacked, complete),
            [due[p].record for p in sent],
            Sender(self.own.name, self.number, self.keys, "sender.1"),
            acked,
        )

    def write_acks(self) -> None:
        """The true owner's next commit records the ACKs of productions."""
        for sequence, position in self.acked:
            sequence.acked.add(position)
        self.acked = []

    def release(self) -> None:
        """Commit the ACKs of the parents' productions, before the owner's own split or merge."""
        kept = [(sequence, position) for sequence, position in self.acked if sequence is self.own]
        self.acked = [(sequence, position) for sequence, position in self.acked if sequence is not self.own]
        self.write_acks()
        self.acked = kept


class StrongSenders:
    """The owners of one sending computation, and all former ones."""

    def __init__(self) -> None:
        self.sequencer = 1
        self.sequences = [Sequence("s1")]
        self.owners = [Owner(1, ALL_KEYS, self.sequences[0], [])]
        self.zombies: list[Owner] = []
        self.retired: set[str] = set()

    def alive(self, sequence: str) -> bool:
        return sequence not in self.retired

    def crash(self, owner: Owner) -> None:
        """Another process takes over the keys."""
        self._replace([owner], [(owner.keys, owner.own, owner.inherited)])

    def split(self, owner: Owner, at: bytes) -> None:
        """Split an owner, unless it still has productions of its parents: no owner has grandparents."""
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
        for interval, own, inherited in new:
            self.sequencer += 1
            self.owners.append(Owner(self.sequencer, interval, own, inherited))
        self.owners.sort(key=lambda owner: owner.keys.start)

    def retire(self) -> list[str]:
        """Retire sealed sequences without a production in any outbox. Returns all retired ones."""
        for sequence in self.sequences:
            if sequence.sealed and sequence.acked.issuperset(sequence.productions):
                self.retired.add(sequence.name)
        return sorted(self.retired)


class PositionsModel(ReceiverRules):
    def __init__(self) -> None:
        super().__init__()
        self.senders = StrongSenders()
        self.model.alive = self.senders.alive

    def owner(self, at: int) -> Owner:
        return self.senders.owners[at % len(self.senders.owners)]

    @rule(at=some, gap=st.sampled_from([0, 0, 1, 5]), key=keys, producers=st.lists(keys, min_size=1, max_size=6))
    def produce(self, at: int, gap: int, key: bytes, producers: list[bytes]) -> None:
        for producer in producers:
            owner = next(o for o in self.senders.owners if producer in o.keys)
            owner.produce(gap, bytes([97 + (key[0] + producer[0]) % 8]), producer)

    @rule(at=some, key=keys, bits=subset, holes=st.booleans(), complete=st.booleans(), arrives=st.booleans())
    def owner_sends(self, at: int, key: bytes, bits: int, holes: bool, complete: bool, arrives: bool) -> None:
        self._send(self.owner(at), key, bits, holes, complete, arrives)

    @rule(at=some, key=keys, bits=subset, holes=st.booleans(), complete=st.booleans())
    def zombie_sends(self, at: int, key: bytes, bits: int, holes: bool, complete: bool) -> None:
        if self.senders.zombies:
            self._send(self.senders.zombies[-1 - at % len(self.senders.zombies)], key, bits, holes, complete, True)

    def _send(self, owner: Owner, key: bytes, bits: int, holes: bool, complete: bool, arrives: bool) -> None:
        for sequence in owner.outbox:
            positions = chosen(list(owner.outbox[sequence]), bits)
            self.send(owner.copy(sequence, key, self.receivers, positions, holes, complete), arrives)

    @rule(bits=subset, holes=st.booleans(), complete=st.booleans(), deaf=st.booleans())
    def work_flows(self, bits: int, holes: bool, complete: bool, deaf: bool) -> None:
        """The usual steps: owners send their outboxes to every receiver, which commits and ACKs."""
        for owner in self.senders.owners:
            for receiver in self.receivers.all:
                self._send(owner, receiver.interval.start, bits, holes, complete, True)
        self.everything_commits(deaf)

    @rule(at=some)
    def owner_writes_acks(self, at: int) -> None:
        self.owner(at).write_acks()

    @rule(at=some)
    def sender_crashes(self, at: int) -> None:
        self.senders.crash(self.owner(at))

    @rule(at=some, key=keys)
    def sender_splits(self, at: int, key: bytes) -> None:
        self.senders.split(self.owner(at), key)

    @rule(at=some)
    def senders_merge(self, at: int) -> None:
        if len(self.senders.owners) > 1:
            self.senders.merge(*self.senders.owners[at % (len(self.senders.owners) - 1) :][:2])

    @rule(at=some)
    def sequences_retire(self, at: int) -> None:
        retired = self.senders.retire()
        for name in retired:
            self.pick(at).dedup.retire(name)

    def teardown(self) -> None:
        """Deliver everything. Then each record has taken effect, and hardly any state is left."""
        for _ in range(2):
            self.receivers.run()
            for owner in self.senders.owners:
                for receiver in self.receivers.all:
                    for sequence, held in owner.outbox.items():
                        self.receivers.deliver(
                            owner.copy(sequence, receiver.interval.start, self.receivers, list(held), False)
                        )
        for sequence in self.senders.sequences:
            for production in sequence.productions.values():
                assert self.model.effects.get(production.record.identity) == 1, "a record was lost"
        for owner in self.senders.owners:
            assert not any(owner.outbox.values()), "a record is never ACKed"
            owner.write_acks()
        retired = self.senders.retire()
        for receiver in self.receivers.all:
            for name in retired:
                receiver.dedup.retire(name)
            assert seen_ids(receiver.dedup) == 0, "ids are kept for ever"
            assert pending_ids(receiver.dedup) == 0


PositionsModel.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestPositionsExactlyOnce = pytest.mark.guarantee("G1", section="6.1.1")(PositionsModel.TestCase)
