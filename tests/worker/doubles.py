"""Doubles for tests of a worker process: a scripted core, its peers, and a channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import Dedup, PositionIds, Sender
from millwheel.worker.messages import AcceptSequencer, Delivery, Report, SendDelivery, Started
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.process.host import CoreHost

Step = TypeVar("Step")
Answer = tuple[int, DeliveryOutcome.ValueType, list[int], str]


class ScriptedCore:
    """A core that notes every event, and returns the effects of ``react``."""

    keys = ALL_KEYS
    phase = OwnerPhase.SERVING

    def __init__(self, react: Callable[[Any], Sequence[Any]] = lambda event: ()) -> None:
        self.react = react
        self.state = SimpleNamespace(dedup=Dedup(self.keys, "c.1.j1"))
        self.events: list[Any] = []
        self.alarm: int | None = None

    def step(self, event: Any, now: int) -> Sequence[Any]:
        if isinstance(event, Started):
            return ()
        self.events.append(event)
        return self.react(event)

    def next_deadline(self) -> int | None:
        return self.alarm

    def check_invariants(self) -> None:
        """A scripted core has no invariants."""

    def of(self, kind: type) -> list[Any]:
        """The events of one type."""
        return [event for event in self.events if type(event) is kind]


class ScriptedPeers:
    """Notes what hosts send and report, and which hosts end. ``accepts`` and ``lives`` script the answers."""

    def __init__(self) -> None:
        self.sent: list[SendDelivery] = []
        self.reports: list[Report] = []
        self.lost_hosts: list[tuple[CoreHost, str]] = []
        self.accepts: list[int | Exception] = []
        self.lives: list[bool | Exception] = []

    def send(self, host: CoreHost, send: SendDelivery) -> None:
        self.sent.append(send)

    def report(self, report: Report) -> None:
        self.reports.append(report)

    async def accept(self, request: AcceptSequencer) -> int:
        return _play(self.accepts)

    async def sequence_lives(self, sequence: str) -> bool:
        return _play(self.lives)

    def lost(self, host: CoreHost, reason: str) -> None:
        self.lost_hosts.append((host, reason))


def _play(script: list[Step | Exception]) -> Step:
    step = script.pop(0)
    if isinstance(step, Exception):
        raise step
    return step


class Answers:
    """A channel that notes the answers."""

    def __init__(self) -> None:
        self.got: list[Answer] = []

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, indexes: Sequence[int], message: str) -> None:
        self.got.append((token, outcome, list(indexes), message))


def delivery(token: int, count: int = 1, channel: Any = None, journal: str = "c.1.j1") -> Delivery:
    """A batch of ``count`` records."""
    ids = PositionIds("u.1.j1", token << 20, list(range(token << 20, (token << 20) + count)))
    keys, times = [b"k%d" % index for index in range(count)], list(range(1_000, 1_000 + count))
    sender = Sender("u.1.j1", 3, ALL_KEYS, "u.1", 77)
    return Delivery(IncarnationId("c.1"), journal, "s", sender, ids, keys, [b"value"] * count, times, token, channel)
