"""Opaque ids against a naive model: weak productions of owners and zombies, late ones too, collected with no slack."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from millwheel.model.keys import ALL_KEYS
from millwheel.worker.dedup import OpaqueIds, Sender
from simulation.held_ids import pending_ids, seen_ids, segment_count
from tests.worker.dedup.receivers import Copy, Receiver, ReceiverRules, Receivers, Record, chosen, keys, some, subset

COMPUTATION = "weak.1"


@dataclass(frozen=True)
class Input:
    """A record of the stream upstream, and the keys that its productions go to."""

    number: int
    timestamp: int
    outputs: tuple[bytes, ...]
    stamp: int
    """The watermark that upstream had reported when it sent it."""

    def productions(self) -> list[Record]:
        """The hook depends on its input alone (G10)."""
        return [Record((self.number, index), key, self.timestamp + index) for index, key in enumerate(self.outputs)]


def opaque_id(record: Record) -> bytes:
    return hashlib.blake2b(repr(record.identity).encode(), digest_size=16).digest()


@dataclass
class Upstream:
    """Sends inputs until they are ACKed, and reports its watermark."""

    watermark: int = 0
    unacked: dict[int, Input] = field(default_factory=dict)
    all: list[Input] = field(default_factory=list)

    def send(self, timestamp: int, outputs: tuple[bytes, ...]) -> None:
        """A timestamp below the watermark makes a late record."""
        item = Input(len(self.all), timestamp, outputs, self.watermark)
        self.all.append(item)
        self.unacked[item.number] = item

    def advance(self, to: int) -> None:
        """Raise the watermark up to the oldest un-ACKed record, unless that one is late."""
        self.watermark = max(self.watermark, min([to, *(item.timestamp for item in self.unacked.values())]))


class Owner:
    """A process that runs inputs.

    It sends their productions at once, and commits inputs whose productions are all ACKed.
    """

    def __init__(self, number: int, reported: int) -> None:
        self.number = number
        self.reported = reported
        self.heard = 0
        self.running: dict[int, tuple[Input, dict[Record, None]]] = {}

    def run(self, item: Input) -> None:
        self.heard = max(self.heard, item.stamp)
        self.running.setdefault(item.number, (item, dict.fromkeys(item.productions())))

    def report(self, input_watermark: int) -> int:
        """The output watermark. It passes no received, uncommitted record, and never goes back."""
        received = [item.timestamp for item, _ in self.running.values()]
        self.reported = max(self.reported, min([input_watermark, *received]))
        return self.reported

    def outbox(self) -> list[Record]:
        return [record for _, unacked in self.running.values() for record in unacked]

    def copies(self, records: list[Record], receivers: Receivers) -> list[Copy]:
        """One delivery for each receiver concerned."""
        found = []
        for receiver in receivers.all:
            due = [record for record in records if record.key in receiver.interval]
            if due:
                sender = Sender("weak.1.j1", self.number, ALL_KEYS, COMPUTATION, self.reported, self.heard)
                found.append(Copy(receiver.journal, OpaqueIds([opaque_id(r) for r in due]), due, sender, self._acked))
        return found

    def _acked(self, record: Record) -> None:
        if record.identity[0] in self.running:
            self.running[record.identity[0]][1].pop(record, None)

    def committable(self) -> list[int]:
        return [number for number, (_, unacked) in self.running.items() if not unacked]


class OpaqueModel(ReceiverRules):
    def __init__(self) -> None:
        super().__init__()
        self.upstream = Upstream()
        self.current = Owner(1, 0)
        self.zombies: list[Owner] = []
        self.broadcasts = [(0, 1)]
        self.committed_by: dict[int, int] = {}

    @rule(ahead=st.integers(-8, 12), outputs=st.lists(keys, min_size=1, max_size=3), count=st.integers(1, 4))
    def upstream_sends(self, ahead: int, outputs: list[bytes], count: int) -> None:
        """The owner receives inputs, and runs all that are un-ACKed."""
        for index in range(count):
            self.upstream.send(self.upstream.watermark + ahead + index, tuple(outputs))
        for item in self.upstream.unacked.values():
            self.current.run(item)

    @rule(by=st.integers(0, 20), deaf=st.booleans(), reported=subset)
    def work_flows(self, by: int, deaf: bool, reported: int) -> None:
        """The usual steps: send, receive, commit, ACK. The watermark follows, and some receivers get it."""
        for copy in self.current.copies(self.current.outbox(), self.receivers):
            self.send(copy, True)
        self.everything_commits(deaf)
        self.owner_commits()
        self.upstream.advance(self.upstream.watermark + by)
        self.owner_reports()
        for receiver in chosen(self.receivers.all, reported):
            self._broadcast(receiver, self.broadcasts[-1])

    @rule(by=st.integers(1, 20))
    def upstream_advances(self, by: int) -> None:
        self.upstream.advance(self.upstream.watermark + by)

    @rule(bits=subset)
    def owner_runs(self, bits: int) -> None:
        for item in chosen(list(self.upstream.unacked.values()), bits):
            self.current.run(item)

    @precondition(lambda self: self.zombies and self.upstream.all)
    @rule(at=some, old=st.integers(0, 100))
    def zombie_runs_any_input(self, at: int, old: int) -> None:
        """A zombie runs an input that its own lineage has not committed. It knows no successor's commits."""
        zombie = self.zombies[-1 - at % len(self.zombies)]
        item = self.upstream.all[-1 - old % len(self.upstream.all)]
        if self.committed_by.get(item.number, zombie.number + 1) > zombie.number:
            zombie.run(item)
            self.model.reached["zombie ran what a successor committed"] += item.number in self.committed_by

    @rule(bits=subset, arrives=st.booleans())
    def owner_sends(self, bits: int, arrives: bool) -> None:
        for copy in self.current.copies(chosen(self.current.outbox(), bits), self.receivers):
            self.send(copy, arrives)

    @precondition(lambda self: self.zombies)
    @rule(at=some, bits=subset, watermark=st.booleans())
    def zombie_sends(self, at: int, bits: int, watermark: bool) -> None:
        zombie = self.zombies[-1 - at % len(self.zombies)]
        if watermark:
            zombie.report(self.upstream.watermark)
        for copy in zombie.copies(chosen(zombie.outbox(), bits), self.receivers):
            self.send(copy, True)

    @rule()
    def owner_commits(self) -> None:
        for number in self.current.committable():
            del self.current.running[number]
            if self.upstream.unacked.pop(number, None) is not None:
                self.committed_by[number] = self.current.number

    @rule()
    def owner_reports(self) -> None:
        self.broadcasts.append((self.current.report(self.upstream.watermark), self.current.number))

    @rule()
    def sender_crashes(self) -> None:
        self.zombies.append(self.current)
        self.current = Owner(self.current.number + 1, self.broadcasts[-1][0])
        self.broadcasts.append((self.broadcasts[-1][0], self.current.number))

    @rule(at=some, old=st.sampled_from([1, 1, 1, 2, 3]))
    def broadcast_arrives(self, at: int, old: int) -> None:
        self._broadcast(self.pick(at), self.broadcasts[-min(old, len(self.broadcasts))])

    def _broadcast(self, receiver: Receiver, broadcast: tuple[int, int]) -> None:
        before = seen_ids(receiver.dedup) + 1_000 * segment_count(receiver.dedup)
        self._advance(receiver, broadcast)
        self.model.reached["collected"] += before > seen_ids(receiver.dedup) + 1_000 * segment_count(receiver.dedup)

    def _advance(self, receiver: Receiver, broadcast: tuple[int, int]) -> None:
        receiver.dedup.learn(COMPUTATION, [(ALL_KEYS, broadcast[1])])
        receiver.dedup.advance(COMPUTATION, broadcast[0], 0)

    @rule(at=some)
    def receiver_seals(self, at: int) -> None:
        self.pick(at).seal()

    @rule(at=some)
    def receiver_resolves(self, at: int) -> None:
        self.pick(at).resolve()

    def teardown(self) -> None:
        """Deliver and commit everything. Then the watermark passes, and no id is kept."""
        for item in self.upstream.unacked.values():
            self.current.run(item)
        for _ in range(2):
            for copy in self.current.copies(self.current.outbox(), self.receivers):
                self.receivers.deliver(copy)
            self.receivers.run()
        self.receivers.run()
        self.owner_commits()
        assert not self.current.running, "a record is never ACKed"
        for item in self.upstream.all:
            for record in item.productions():
                assert self.model.effects.get(record.identity) == 1, "a record was lost"
        self.upstream.advance(1_000_000)
        self.owner_reports()
        for receiver in self.receivers.all:
            self._broadcast(receiver, self.broadcasts[-1])
            assert seen_ids(receiver.dedup) == pending_ids(receiver.dedup) == 0, "ids are kept for ever"
            assert segment_count(receiver.dedup) == 0


OpaqueModel.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestOpaqueExactlyOnce = pytest.mark.guarantee("G1", section="6.1.1")(OpaqueModel.TestCase)
