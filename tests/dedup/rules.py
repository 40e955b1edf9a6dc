"""What may happen to receivers at any time, as rules that the three model tests share."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.dedup.world import KEYS, Copy, Receiver, Receivers, World

some = st.integers(0, 7)
keys = st.sampled_from(KEYS)
subset = st.integers(1, 255)


def chosen(items: list, bits: int) -> list:  # type: ignore[type-arg]
    """A subset of ``items``, in order, that ``bits`` picks."""
    return [item for index, item in enumerate(items) if bits >> (index % 8) & 1]


class ReceiverRules(RuleBasedStateMachine):
    """A consumer, and a network that has kept every copy ever sent."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.receivers = Receivers(self.world)
        self.network: list[Copy] = []

    def send(self, copy: Copy, arrives: bool) -> None:
        """Put a copy into the network, and perhaps through it at once."""
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
        """``deaf``: and the ACKs are lost."""
        self.world.deaf = deaf
        self.receivers.run()
        self.world.deaf = False

    @rule(at=some)
    def abandon(self, at: int) -> None:
        self.pick(at).abandon()

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
