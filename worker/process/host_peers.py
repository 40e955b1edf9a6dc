"""What the hosts of one worker process need besides the store: other workers, the authority, the coordinator."""

from __future__ import annotations

from collections.abc import Callable

from millwheel.coordination.contract import Coordinator
from millwheel.model.catalog import Catalog
from millwheel.worker.messages import AcceptSequencer
from millwheel.worker.process.destinations import DeliverySender
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.lineage import journal_lives
from millwheel.worker.process.watermarks import Authority

__all__ = ["WorkerPeers"]


class WorkerPeers:
    """The :class:`~millwheel.worker.process.host.HostPeers` of all hosts of one worker process."""

    def __init__(
        self,
        sending: DeliverySender,
        authority: Authority,
        coordinator: Coordinator,
        catalog: Catalog,
        lost: Callable[[CoreHost, str], None],
    ) -> None:
        """``lost``: called with a host whose core has lost its interval, and the reason."""
        self.send = sending.send
        self.report = authority.report
        self.lost = lost
        self._authority = authority
        self._coordinator = coordinator
        self._catalog = catalog

    async def accept(self, request: AcceptSequencer) -> int:
        """Let the authority accept a sequencer (G4)."""
        return await self._authority.accept(request.incarnation, request.keys, request.sequencer)

    async def sequence_lives(self, sequence: str) -> bool:
        """Whether ``sequence`` is the journal of a live interval, or of a parent of one, by a linearizable read."""
        return await journal_lives(self._coordinator, self._catalog, sequence)
