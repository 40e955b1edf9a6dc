"""The services of a worker: deliveries, subscriptions, inspection, states and handover (sections 4.2 to 4.4, 7.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc

from millwheel.model.catalog import Catalog, Consumer, code_of
from millwheel.model.deliveries import Sender
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1 import common_pb2
from millwheel.rpc.v1.dead_letter_pb2_grpc import add_DeadLetterServiceServicer_to_server
from millwheel.rpc.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from millwheel.rpc.v1.handover_pb2_grpc import add_HandoverServiceServicer_to_server
from millwheel.rpc.v1.inspection_pb2_grpc import add_InspectionServiceServicer_to_server
from millwheel.rpc.v1.snapshot_pb2_grpc import add_JournalHoldServiceServicer_to_server
from millwheel.rpc.v1.state_pb2_grpc import add_StateServiceServicer_to_server
from millwheel.rpc.v1.subscription_pb2_grpc import add_SubscriptionServiceServicer_to_server
from millwheel.store.contract import StateStore
from millwheel.worker.process.column_use import columns_of
from millwheel.worker.process.delivery_service import DeliveryService
from millwheel.worker.process.handover import HandoverService
from millwheel.worker.process.hook_reports import HookReports
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.hosts import Hosts, Quarantined
from millwheel.worker.process.inspection import InspectionService
from millwheel.worker.process.journal_holds import JournalHoldService
from millwheel.worker.process.key_failures import KeyFailures
from millwheel.worker.process.letter_service import LetterService
from millwheel.worker.process.links import WorkerLinks
from millwheel.worker.process.load import LoadMeter
from millwheel.worker.process.owned_states import OwnedStates
from millwheel.worker.process.ownership import Absent
from millwheel.worker.process.preparing import RecordPreparer
from millwheel.worker.process.programs import Programs
from millwheel.worker.process.state_service import StateService
from millwheel.worker.process.tallies import Tallies

__all__ = ["WorkerServices"]


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """What the services of one worker work on."""

    catalog: Catalog
    programs: Programs
    hosts: Hosts
    store: StateStore
    tallies: Tallies
    hooks: HookReports
    key_failures: KeyFailures
    absence: Callable[[str], str]
    """Why an interval does not run here, by journal."""
    knows: Callable[[CoreHost, Sender], bool]
    """Whether a host has received a catalog at least as new as the sender."""
    quarantined: Callable[[], Mapping[tuple[str, int], Quarantined]]
    absent: Callable[[], Mapping[tuple[str, int], Absent]]
    links: WorkerLinks

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve on ``server``."""
        hosts = self.hosts
        preparer = RecordPreparer(self.catalog, self.programs, self._key_failed, self.key_failures.got_keys)
        add_DeliveryServiceServicer_to_server(
            DeliveryService(hosts.hosted, preparer.prepare, hosts.quotas, self.knows), server
        )
        add_SubscriptionServiceServicer_to_server(hosts.logs, server)
        add_DeadLetterServiceServicer_to_server(LetterService(hosts.logs.requests), server)
        load = LoadMeter(
            hosts.metered,
            damaged=self.quarantined,
            absent=self.absent,
            hooks=self.tallies.hooks,
            key_functions=lambda: self.key_failures.shown(self.catalog.consumers, wall_now()),
            measures=self.tallies.measures,
            columns=lambda: columns_of(self.tallies.cores_by_place()),
            describe_links=self.links.add_to,
        ).load
        owned = OwnedStates(hosts.routing.locate, hosts.core_of, self.absence, self.store)
        add_InspectionServiceServicer_to_server(InspectionService(owned, self.store, load), server)
        add_StateServiceServicer_to_server(StateService(owned, self.store), server)
        handover = HandoverService(hosts.find_owned, self.store, hosts.ahead, self._load_code)
        add_HandoverServiceServicer_to_server(handover, server)
        add_JournalHoldServiceServicer_to_server(JournalHoldService(hosts.find_owned), server)

    def _key_failed(
        self, consumer: Consumer, stream: str, error: BaseException, waiting: common_pb2.WaitingRecords | None
    ) -> None:
        failure = self.key_failures.failed(consumer, stream, error, waiting, wall_now())
        self.hooks.failed((consumer.topology, consumer.computation), failure)

    async def _load_code(self, incarnation: IncarnationId) -> None:
        """Load the code of a computation that this process will run soon."""
        found = self.catalog.computation(incarnation)
        if found is not None:
            await self.programs.load(code_of(found[0].spec, found[1]))
