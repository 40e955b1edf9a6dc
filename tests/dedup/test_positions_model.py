"""Positions against a naive model: senders and receivers crash, split and merge; zombies deliver what they have."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from simulation.held_ids import pending_ids, seen_ids
from tests.dedup.rules import ReceiverRules, chosen, keys, some, subset
from tests.dedup.strong_senders import Owner, StrongSenders


class PositionsModel(ReceiverRules):
    def __init__(self) -> None:
        super().__init__()
        self.senders = StrongSenders()
        self.world.alive = self.senders.alive

    def owner(self, at: int) -> Owner:
        return self.senders.owners[at % len(self.senders.owners)]

    @rule(at=some, gap=st.sampled_from([0, 0, 1, 5]), key=keys, producers=st.lists(keys, min_size=1, max_size=6))
    def produce(self, at: int, gap: int, key: bytes, producers: list[bytes]) -> None:
        for producer in producers:
            owner = next(o for o in self.senders.owners if producer in o.keys)
            owner.produce(gap, bytes([97 + (key[0] + producer[0]) % 8]), producer)

    @rule(at=some, key=keys, bits=subset, holes=st.booleans(), arrives=st.booleans())
    def owner_sends(self, at: int, key: bytes, bits: int, holes: bool, arrives: bool) -> None:
        self._send(self.owner(at), key, bits, holes, arrives)

    @rule(at=some, key=keys, bits=subset, holes=st.booleans())
    def zombie_sends(self, at: int, key: bytes, bits: int, holes: bool) -> None:
        if self.senders.zombies:
            self._send(self.senders.zombies[-1 - at % len(self.senders.zombies)], key, bits, holes, True)

    def _send(self, owner: Owner, key: bytes, bits: int, holes: bool, arrives: bool) -> None:
        for sequence in owner.outbox:
            positions = chosen(list(owner.outbox[sequence]), bits)
            self.send(owner.copy(sequence, key, self.receivers, positions, holes), arrives)

    @rule(bits=subset, holes=st.booleans(), deaf=st.booleans())
    def work_flows(self, bits: int, holes: bool, deaf: bool) -> None:
        """What usually happens: owners send what they hold to every receiver, and it is committed and ACKed."""
        for owner in self.senders.owners:
            for receiver in self.receivers.all:
                self._send(owner, receiver.interval.start, bits, holes, True)
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
        """Everything is delivered at last: each record has taken effect, and next to nothing is remembered."""
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
                assert self.world.effects.get(production.record.identity) == 1, "a record was lost"
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
