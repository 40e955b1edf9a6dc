"""What owners of intervals say, against what store and other owners know: watermarks and deliveries (G4, G9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from millwheel.worker.dedup import PositionIds
from millwheel.worker.interval import IntervalCore, Phase
from millwheel.worker.interval.state import INDEX_BITS
from millwheel.worker.messages import Delivery
from simulation.world import World

__all__ = ["OwnerChecks"]


class OwnerChecks:
    """Looks at all that workers hear and send."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.broadcasts.append(self._heard)
        world.deliveries.append(self._sent)

    def _heard(self, watermarks: Mapping[str, int]) -> None:
        """A broadcast value is at most what each interval's owner has said, and nobody else's word counts."""
        for core in self._serving():
            state = core.state
            value = watermarks.get(state.config.computation)
            if value is not None and value > state.output:
                told = f"{state.config.computation} is heard to be at {value}"
                self._world.violated(f"{told}, and the owner of {state.config.journal} is at {state.output} (G4)")

    def _serving(self) -> Iterator[IntervalCore]:
        """Cores that serve, and that the store has as the newest of their journals."""
        for worker in self._world.workers.values():
            for hosted in worker.hosted.values():
                core = hosted.built.core
                if isinstance(core, IntervalCore) and core.phase is Phase.SERVING:
                    head = self._world.store.inner._head(core.state.config.journal)
                    if head is not None and head.sequencer == core.state.config.sequencer:
                        yield core

    def _sent(self, delivery: Delivery) -> None:
        """A strong production that is sent is in the journal whose positions it has."""
        ids = delivery.ids
        if isinstance(ids, PositionIds) and ids.positions:
            head = self._world.store.inner._head(ids.sequence)
            commit = max(ids.positions) >> INDEX_BITS
            if head is not None and commit > head.commit:
                told = f"a production of commit {commit} of {ids.sequence} is sent to {delivery.consumer}"
                self._world.violated(f"{told}, and {head.commit} is the journal's last (G9)")
