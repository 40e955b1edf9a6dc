"""The cut among senders and receivers that commit, take over, and answer at any moment: it is always consistent."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.cut import CutFailedError, Positions, take_cut
from millwheel.store.contract import JournalHead

JOURNALS = ("a", "b", "c")
Message = tuple[str, int]
"""The journal and the commit that produced it."""


@dataclass(frozen=True)
class Durable:
    """What a journal says at one commit."""

    produced: frozenset[Message] = frozenset()
    acked: frozenset[tuple[Message, str]] = frozenset()
    """Productions that the sender will not send again, each with its consumer."""
    consumed: frozenset[Message] = frozenset()


@dataclass
class Journal:
    sequencer: int = 1
    commits: list[Durable] = field(default_factory=lambda: [Durable()])


@dataclass
class OwnerModel:
    """A process that owns a journal, or believes so. It takes in at once what others send it."""

    journal: str
    sequencer: int
    durable: Durable
    commit: int
    received: set[Message] = field(default_factory=set)
    acked: set[tuple[Message, str]] = field(default_factory=set)
    frozen: bool = False


class Model:
    """The journals, and all owners that have not noticed the loss of theirs."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.trouble = self.chance.choice([0.0, 0.01, 0.05, 0.1])
        self.journals = {name: Journal() for name in JOURNALS}
        self.owners = [OwnerModel(name, 1, Durable(), 0) for name in JOURNALS]

    def newest(self, journal: str) -> OwnerModel:
        return max((one for one in self.owners if one.journal == journal), key=lambda one: one.sequencer)

    def run(self, most: int) -> None:
        for _ in range(self.chance.randrange(most)):
            owner = self.chance.choice(self.owners)
            if self.chance.random() < self.trouble / 2:
                self.take_over(owner.journal)
            elif self.chance.random() < self.trouble:
                owner.frozen = False  # its time is over
            elif self.chance.random() < 0.5:
                self.send(owner)
            else:
                self.commit(owner)

    def take_over(self, name: str) -> None:
        journal = self.journals[name]
        journal.sequencer += 1
        durable = journal.commits[-1]
        self.owners.append(
            OwnerModel(name, journal.sequencer, durable, len(journal.commits) - 1, acked=set(durable.acked))
        )

    def send(self, owner: OwnerModel) -> None:
        """Send what is committed and not ACKed to the owners of another journal. A duplicate is ACKed at once."""
        to = self.chance.choice([name for name in JOURNALS if name != owner.journal])
        receiver = self.chance.choice([one for one in self.owners if one.journal == to])
        for message in owner.durable.produced:
            if (message, to) in owner.acked:
                continue
            if message in receiver.durable.consumed:
                owner.acked.add((message, to))
            else:
                receiver.received.add(message)

    def commit(self, owner: OwnerModel) -> None:
        journal = self.journals[owner.journal]
        if owner.frozen:
            return
        if journal.sequencer != owner.sequencer:
            self.owners.remove(owner)  # the store refuses it
            return
        owner.commit += 1
        owner.durable = Durable(
            owner.durable.produced | {(owner.journal, owner.commit)},
            frozenset(owner.acked),
            owner.durable.consumed | owner.received,
        )
        owner.received.clear()
        journal.commits.append(owner.durable)

    # What a snapshot calls.

    async def read_head(self, journal: str) -> JournalHead:
        self.run(4)
        held = self.journals[journal]
        return JournalHead(held.sequencer, len(held.commits) - 1, 0, ())


class ModelOwners:
    """The owners that the catalog named when the snapshot began."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.asked = {name: model.newest(name) for name in JOURNALS}
        self.sequencers = {name: owner.sequencer for name, owner in self.asked.items()}

    async def freeze(self) -> Positions:
        return self._ask(True)

    async def thaw(self) -> Positions:
        return self._ask(False)

    def _ask(self, frozen: bool) -> Positions:
        answers: dict[str, wire.JournalPosition] = {}
        for name in self.model.chance.sample(JOURNALS, len(JOURNALS)):
            self.model.run(24)
            owner = self.asked[name]
            if owner in self.model.owners:
                held = frozen or owner.frozen
                owner.frozen = frozen
                answers[name] = wire.JournalPosition(
                    journal=name, sequencer=owner.sequencer, held=held, settled=True, commit=owner.commit
                )
        return answers


def check_consistent(model: Model, commits: dict[str, int]) -> None:
    """A receiver has what its senders will not send again, and nothing that they will produce later."""
    at = {name: model.journals[name].commits[commit] for name, commit in commits.items()}
    for durable in at.values():
        for message, consumer in durable.acked:
            assert message in at[consumer].consumed, "it is lost: its sender does not send it again"
        for message in durable.consumed:
            assert message in at[message[0]].produced, "its sender does not know it, and gives its id to another one"


@pytest.mark.guarantee("G1", section="6.1")
async def test_each_cut_is_consistent_at_any_moment() -> None:
    taken = failed = 0
    for seed in range(1_000):
        model = Model(seed)
        model.run(60)
        store: Any = model
        try:
            cut = await take_cut(ModelOwners(model), store)
        except CutFailedError:
            failed += 1
            continue
        taken += 1
        check_consistent(model, dict(cut.commits))
    assert taken > 50, f"{taken} cuts"
    assert failed > 50, f"{failed} failures"
