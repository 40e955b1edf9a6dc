"""Masters' cores over a coordinator's state and a store. The test drives them: there is no clock and no task."""

from __future__ import annotations

from typing import Any, assert_never

from millwheel.coordination.contract import Compare, KeyValue, Put, TransactionResult
from millwheel.coordination.state import CoordinatorState
from millwheel.master import messages as m
from millwheel.master.core import MasterCore
from millwheel.master.settings import MasterSettings
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.model.stream_names import full_name
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.store.contract import JournalExistsError, JournalMissingError
from millwheel.store.memory import MemoryStore
from millwheel.store.sequencer_allocation import reserve_sequencers
from millwheel.testing.store_effects import result_of
from tests.driving import SingleCoreDriver


class SpoiltState(CoordinatorState):
    """A coordinator's state whose entries a test can damage, as a disk does."""

    def entry(self, key: str) -> KeyValue:
        """The entry of a key, which exists."""
        return self._entries[key]

    def store(self, entry: KeyValue) -> None:
        """Replace the entry without a new revision."""
        self._entries[entry.key] = entry


class Cluster:
    """The coordinator and the store, which outlive masters."""

    def __init__(self) -> None:
        self.state = SpoiltState()
        self.store = MemoryStore()
        self.accepted: dict[str, int] = {}
        """The largest sequencer that the authority has accepted, by injector."""

    def forget_injector(self, injector: str, up_to: int) -> None:
        """Forget an injector, as the authority does."""
        if self.accepted.get(injector, 0) <= up_to:
            self.accepted.pop(injector, None)

    def transact(
        self, compares: tuple[Compare, ...], puts: tuple[Put, ...], deletes: tuple[str, ...] = ()
    ) -> TransactionResult:
        transition = self.state.decide(compares, puts, deletes, 0.0)
        if transition is not None:
            self.state.apply(transition)
        return TransactionResult(transition is not None, self.state.revision)

    def elect(self, name: str) -> Compare:
        """Make ``name`` the leader, in place of the current one."""
        self.transact((), (), (keys.LEADERSHIP,))
        outcome = self.transact((), (Put(keys.LEADERSHIP, name.encode()),))
        return Compare(keys.LEADERSHIP, outcome.revision)

    def join(self, worker: str, *, daemon: str = "", package: str = "") -> None:
        record = catalog.WorkerRecord(daemon=daemon, package=package)
        record.endpoint.worker_id, record.endpoint.address = worker, f"127.0.0.1:{5000 + len(worker)}"
        self.transact((), (Put(keys.worker_key(worker), record.SerializeToString()),))

    def leave(self, worker: str) -> None:
        self.transact((), (), (keys.worker_key(worker),))

    def has_journal(self, journal: str) -> bool:
        try:
            result_of(self.store.read_head(journal))
        except JournalMissingError:
            return False
        return True

    def catalog(self) -> Catalog:
        found = Catalog()
        found.load(self.state.list(""))
        return found


class Master(SingleCoreDriver[m.MasterEvent, m.MasterEffect]):
    """The driver of a master's core. All effects wait. ``run`` performs them until none is left."""

    core: MasterCore

    def __init__(self, cluster: Cluster, name: str = "m", settings: MasterSettings | None = None) -> None:
        super().__init__()
        self.cluster = cluster
        self.core = MasterCore(cluster.elect(name), settings)
        self.answers: dict[int, m.Answer | RequestError] = {}
        self.seen = cluster.state.revision
        self.observing: list[str] = []
        self.stepped_down = False
        self._tickets = 0
        self.handle(m.SnapshotLoaded(cluster.state.list("")))

    def ask(self, request: m.Request, now: int = 0) -> int:
        """Send a request, and leave the effects waiting."""
        self._tickets += 1
        self.handle(m.RequestReceived(self._tickets, request), now)
        return self._tickets

    def call(self, request: m.Request, now: int = 0) -> Any:
        """Send a request, perform all effects, and return the answer. A refusal is raised."""
        ticket = self.ask(request, now)
        self.run()
        answer = self.answers[ticket]
        if isinstance(answer, RequestError):
            raise answer
        return answer

    def tick(self, now: int) -> None:
        self.handle(m.Tick(), now)
        self.run()

    def run(self) -> None:
        """Perform all effects, and follow the coordinator."""
        while self.waiting or self.follow():
            super().run()

    def follow(self) -> bool:
        """Take the coordinator's next revision. Returns False if there is none."""
        for changes in self.cluster.state.changes_after("", self.seen):
            self.seen = changes[0].revision
            self.handle(m.RevisionArrived(changes))
            return True
        return False

    def finish(self, effect: m.MasterEffect) -> m.MasterEvent | None:
        match effect:
            case m.Reply(ticket, answer) | m.Fail(ticket, answer):
                self.answers[ticket] = answer
            case m.StepDown():
                self.stepped_down = True
            case m.Observe(topology):
                self.observing.append(topology)
            case m.Reload(operation):
                return m.SnapshotLoaded(self.cluster.state.list(""), operation)
            case m.ReserveNumbers(operation, above):
                block = result_of(reserve_sequencers(self.cluster.store, above))
                return m.NumbersReserved(operation, block.first, block.last)
            case m.CreateJournals(operation, journals):
                return self._create(operation, journals)
            case m.Drop(operation, journals, computations, injectors):
                for journal in journals:
                    result_of(self.cluster.store.drop_journal(journal))
                for computation in computations:
                    result_of(self.cluster.store.drop_incarnation(computation))
                for injector, sequencer in injectors:
                    self.cluster.forget_injector(injector, sequencer)
                return m.StateDropped(operation)
            case m.Transact(operation, compares, puts, deletes):
                return m.TransactionEnded(operation, self.cluster.transact(compares, puts, deletes))
            case _:
                assert_never(effect)
        return None

    def _create(self, operation: int, journals: tuple[str, ...]) -> m.MasterEvent:
        try:
            for journal in journals:
                result_of(self.cluster.store.create_journal(journal))
        except JournalExistsError as error:
            return m.StoreFailed(operation, str(error), retry=True)
        return m.JournalsCreated(operation)


def computation(name: str, inputs: dict[str, str], outputs: list[str], feedback: tuple[str, ...] = ()) -> Any:
    """A computation's spec; ``inputs`` gives the key field of each stream."""
    spec = specs.ComputationSpec(name=name, outputs=outputs, exactly_once=True, strong_productions=True)
    for stream, field in inputs.items():
        spec.inputs.add(stream=stream, key=specs.KeySpec(fields=[field]), feedback=stream in feedback)
    return spec


def source(name: str, record_type: str = "app.Query", **more: Any) -> specs.StreamSpec:
    return specs.StreamSpec(
        name=name, record_type=record_type, format=specs.VALUE_FORMAT_MSGPACK, injected=True, **more
    )


def external(name: str, record_type: str = "app.Query") -> specs.StreamSpec:
    return specs.StreamSpec(name=name, record_type=record_type, format=specs.VALUE_FORMAT_MSGPACK, external=True)


def topology(
    name: str = "zeitgeist",
    streams: list[specs.StreamSpec] | None = None,
    computations: list[specs.ComputationSpec] | None = None,
) -> specs.TopologySpec:
    """A spec. Stream names may be short. Default: queries -> window-counter -> windows -> dip-detector -> dips."""
    if streams is None:
        streams = [source("queries"), specs.StreamSpec(name="windows", record_type="app.Count")]
    if computations is None:
        computations = [
            computation("window-counter", {"queries": "text"}, ["windows"]),
            computation("dip-detector", {"windows": "query"}, ["dips"]),
        ]
    code = specs.CodeReference(digest="ab" * 32, entry_point="app:zeitgeist")
    return in_full(specs.TopologySpec(name=name, streams=streams, computations=computations, code=code))


def in_full(spec: specs.TopologySpec) -> specs.TopologySpec:
    """The same spec with full names of streams, as the SDK makes it."""
    for stream in spec.streams:
        stream.name = full_name(spec.name, stream.name)
    for one in spec.computations:
        for edge in one.inputs:
            edge.stream = full_name(spec.name, edge.stream)
        one.outputs[:] = [full_name(spec.name, stream) for stream in one.outputs]
        one.late_stream = full_name(spec.name, one.late_stream) if one.late_stream else ""
    return spec
