"""The injector of the hostile world: it keeps what is not ACKed, and its watermark waits for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.sdk.compiled import consumers_of
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.messages import Delivery

if TYPE_CHECKING:
    from tests.interval.world import World

__all__ = ["INJECTOR", "WorldInjector"]

INJECTOR = "injector/events"
PROCESS = "injector/events/p"


class WorldInjector:
    """One process that sends records of stream "events" to the mappers."""

    def __init__(self, world: World) -> None:
        self.declared: int = MIN_TIMESTAMP
        self.unacked: dict[int, Delivery] = {}
        self.sent: list[Delivery] = []
        self._world = world
        self._position = 0
        codec = world.topology.plan().streams["events"].codec
        assert codec is not None
        self._encode = codec.checked
        ((_, self._key_of),) = consumers_of(world.topology, "events")

    def send(self, records: Sequence[tuple[Any, int]]) -> None:
        """Send (value, timestamp) records that go out together; one delivery for each interval concerned."""
        first = self._position + 1
        self._position += len(records)
        keys = [self._key_of(value) for value, _ in records]
        values = [self._encode(value) for value, _ in records]
        sender = Sender(PROCESS, 1, None, INJECTOR, self._world.broadcast[INJECTOR])
        ids = PositionIds(PROCESS, 0, range(first, first + len(records)))
        self.sent += self._divide(
            Delivery("mapper", "", "events", sender, ids, keys, values, [stamp for _, stamp in records])
        )

    def _divide(self, delivery: Delivery) -> list[Delivery]:
        """Send each record of a delivery to who owns its key now."""
        ids = delivery.ids
        assert isinstance(ids, PositionIds)
        parts: dict[str, list[int]] = {}
        for index, key in enumerate(delivery.keys):
            parts.setdefault(self._world.locate("mapper", key), []).append(index)
        made = []
        for journal, at in parts.items():
            part = replace(
                delivery,
                journal=journal,
                ids=PositionIds(PROCESS, 0, [ids.positions[index] for index in at]),
                keys=[delivery.keys[index] for index in at],
                values=[delivery.values[index] for index in at],
                timestamps=[delivery.timestamps[index] for index in at],
            )
            self._position += 1
            part.token = self._position
            self.unacked[part.token] = part
            made.append(part)
        self._world.send_injected(made)
        return made

    def reroute(self, delivery: Delivery) -> None:
        """The journal is gone: its records go to who owns their keys now."""
        if self.unacked.pop(delivery.token, None) is not None:
            self._divide(delivery)

    def resend(self) -> None:
        """Send again all that is not ACKed."""
        self._world.send_injected(list(self.unacked.values()))

    def resend_everything(self) -> None:
        """Send all that was ever sent, as one that knows of no ACK."""
        self.unacked = {delivery.token: delivery for delivery in self.sent}
        self.resend()

    def as_sent_now(self, delivery: Delivery) -> Delivery:
        """The delivery with the present mark and watermark."""
        others = [one.ids for one in self.unacked.values()]
        assert isinstance(delivery.ids, PositionIds)
        mark = min(min(ids.positions) for ids in [delivery.ids, *others] if isinstance(ids, PositionIds))
        sender = replace(delivery.sender, watermark=self._world.broadcast[INJECTOR])
        return replace(delivery, ids=PositionIds(PROCESS, mark, delivery.ids.positions), sender=sender, channel=None)

    def acknowledged(self, token: int) -> None:
        """A whole delivery is ACKed."""
        self.unacked.pop(token, None)
        self._publish()

    def advance(self, to: int) -> None:
        """Declare a watermark; what is not ACKed holds it."""
        self.declared = max(self.declared, to)
        self._publish()

    def _publish(self) -> None:
        pending = [min(one.timestamps) for one in self.unacked.values()]
        self._world.broadcast_value(INJECTOR, min([self.declared, *pending]))
