"""Compares what owners of intervals say with the store and other owners: watermarks and deliveries (G4, G9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millwheel.worker.dedup import PositionIds
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.outbox.flows import INDEX_BITS
from millwheel.worker.messages import Delivery, SendDelivery
from millwheel.worker.owner import OwnerPhase
from simulation.world import World

__all__ = ["OwnerChecks", "serving"]


def serving(world: World) -> Iterator[tuple[str, IntervalCore]]:
    """Serving cores that are the newest owners of their journals in the store, each with its worker's name."""
    for name, worker in world.workers.items():
        for hosted in worker.hosts.hosted.values():
            core = hosted.built.core
            if isinstance(core, IntervalCore) and core.phase is OwnerPhase.SERVING:
                head = world.store.inner.head(core.state.config.journal)
                if head is not None and head.sequencer == core.state.config.sequencer:
                    yield name, core


class OwnerChecks:
    """Checks all broadcasts that workers receive and all deliveries that they send."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._said: dict[tuple[str, str, int | bytes], tuple[str, bytes, bytes, int]] = {}
        """By consumer, sequence and id: what was first sent under it."""
        self._broadcasts = 0
        """How many broadcasts workers received."""
        world.broadcasts.append(self._on_broadcast)
        world.taps.deliveries.append(self._sent)

    def _on_broadcast(self, watermarks: Mapping[str, int]) -> None:
        """A broadcast value is at most what each interval's current owner has reported.

        Other processes' reports do not count.
        """
        self._broadcasts += 1
        for _, core in serving(self._world):
            state = core.state
            value = watermarks.get(state.config.incarnation)
            if value is not None and value > state.output.value:
                text = f"a broadcast of {state.config.incarnation} is at {value}"
                self._world.violated(f"{text}, and the owner of {state.config.journal} is at {state.output.value} (G4)")

    def conclude(self) -> None:
        """A checker without any observation has checked nothing: its hook no longer fits the product."""
        if not self._broadcasts:
            self._world.violated("no broadcast was checked")
        if not self._said:
            self._world.violated("no delivery was checked")

    def _sent(self, core: IntervalCore, send: SendDelivery) -> None:
        """A strong production that is sent is in the journal that its positions refer to."""
        delivery, ids = send.delivery, send.delivery.ids
        self._repeated(delivery)
        if isinstance(ids, PositionIds) and ids.positions:
            head = self._world.store.inner.head(ids.sequence)
            commit = max(ids.positions) >> INDEX_BITS
            if head is not None and commit > head.commit:
                text = f"a production of commit {commit} of {ids.sequence} is sent to {delivery.consumer}"
                self._world.violated(f"{text}, and {head.commit} is the journal's last (G9)")

    def _repeated(self, delivery: Delivery) -> None:
        """A production that is sent again under an id equals the first one, also if another owner sends it."""
        ids = delivery.ids
        sequence = ids.sequence if isinstance(ids, PositionIds) else ""
        guarantee = "G9" if sequence else "G10"
        named: Sequence[int | bytes] = ids.positions if isinstance(ids, PositionIds) else ids.ids
        for index, name in enumerate(named):
            said = delivery.stream, delivery.keys[index], delivery.values[index], delivery.timestamps[index]
            before = self._said.setdefault((delivery.consumer, sequence, name), said)
            if before != said:
                text = f"a production of {sequence or delivery.sender.name}, {name!r}, for {delivery.consumer}"
                self._world.violated(f"{text} was {before}, and is {said} ({guarantee})")
