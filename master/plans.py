"""One function per request: from the catalog as it stands to a plan, or a refusal (section 7.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from millwheel.core import catalog_keys as keys
from millwheel.core.catalog import (
    ACTIVE_STATES,
    LIVE_STATES,
    Catalog,
    dead_letter_stream,
    outputs_of,
)
from millwheel.core.interval_table import initial_intervals, interval_to_proto
from millwheel.core.keys import ALL_KEYS, KeyInterval
from millwheel.core.time import Timestamp
from millwheel.master.assignment import Assigner, release
from millwheel.master.draft import Draft, Plan
from millwheel.master.messages import CancelTopology, DrainTopology, EnsureLog, SubmitTopology
from millwheel.master.settings import MasterSettings
from millwheel.master.validation import validate
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import did_you_mean

__all__ = ["Planner", "refuse_unknown_stream", "refuse_unknown_topology"]


def refuse_unknown_topology(name: str, known: Catalog) -> NoReturn:
    """NOT_FOUND, with the nearest name there is."""
    raise RequestError(
        FailureCode.NOT_FOUND,
        f"there is no topology {name!r}{did_you_mean(name, sorted(known.topologies))}",
        "`millwheel topology list` shows those that there are",
        reason="TOPOLOGY_UNKNOWN",
    )


def refuse_unknown_stream(name: str, known: Catalog) -> NoReturn:
    """NOT_FOUND, with the nearest name there is."""
    raise RequestError(
        FailureCode.NOT_FOUND,
        f"there is no stream {name!r}{did_you_mean(name, sorted(known.streams()))}",
        "submit the topology that declares or produces it first",
        reason="STREAM_UNKNOWN",
    )


class Planner:
    """Plans for topologies and logs, resting on one reading of the catalog."""

    def __init__(
        self, known: Catalog, settings: MasterSettings, now: Timestamp, burned: int, loads: Mapping[str, float]
    ) -> None:
        self._known = known
        self._settings = settings
        self._now = now
        self._draft = Draft(known, burned)
        self._assigner = Assigner(known, loads)
        self._new_logs: set[str] = set()

    def submit(self, request: SubmitTopology) -> Plan:
        """Names become incarnations: ids for journals and state that were never used, and never will be again."""
        spec = request.spec
        known = self._known.topologies.get(spec.name)
        if known is not None and self._is_repetition(request, known):
            return Plan(answer=lambda: self._known.topologies[spec.name])
        problems = validate(spec, self._known)
        if problems:
            count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise RequestError(
                FailureCode.INVALID_ARGUMENT,
                f"topology {spec.name!r} has {count}",
                reason="TOPOLOGY_INVALID",
                problems=problems,
            )
        record = catalog.TopologyRecord(
            spec=spec,
            version=known.version + 1 if known is not None else 1,
            state=catalog.TOPOLOGY_STATE_RUNNING,
            submitted_at_us=self._now,
            state_changed_at_us=self._now,
            request_id=request.request_id,
        )
        for computation in spec.computations:
            intervals = self._first_intervals()
            record.incarnations[computation.name] = self._new_map(
                computation.name, spec.name, intervals, spec.code.digest
            )
        self._draft.put(keys.topology_key(spec.name), record)
        self._logs_of(spec)
        return self._draft.plan(lambda: self._known.topologies[spec.name])

    def _is_repetition(self, request: SubmitTopology, known: catalog.TopologyRecord) -> bool:
        """Whether this very submission was made before; ALREADY_EXISTS if another one holds the name."""
        name = request.spec.name
        same = bool(request.request_id) and request.request_id == known.request_id and request.spec == known.spec
        if known.state in LIVE_STATES and same:
            return True
        if same:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"this submission of topology {name!r} was cancelled since",
                "submit it again with a new request id",
                reason="SUBMISSION_CANCELLED",
            )
        if known.state not in LIVE_STATES:
            return False
        state = catalog.TopologyState.Name(known.state).removeprefix("TOPOLOGY_STATE_").lower()
        what = "with the same spec and code" if request.spec == known.spec else "with another spec or other code"
        remedy = f"use another name, or give up its state by `millwheel topology cancel {name}` first"
        if known.state in ACTIVE_STATES:
            remedy = f"use another name, or first end it by `millwheel topology drain {name}` and then `cancel`"
        raise RequestError(
            FailureCode.ALREADY_EXISTS, f"topology {name!r} is {state} already, {what}", remedy, reason="NAME_TAKEN"
        )

    def _first_intervals(self) -> list[KeyInterval]:
        return initial_intervals(self._settings.intervals_per_computation, self._settings.split_points)

    def _new_map(self, base: str, topology: str, intervals: list[KeyInterval], code: str | None) -> str:
        """Put the interval map of a new incarnation, with owners if there are any; returns its id."""
        incarnation = f"{base}.{self._draft.draw()}"
        record = catalog.IntervalMapRecord(computation=base if topology else "", topology=topology)
        for keys_of_interval in intervals:
            interval = record.intervals.add(keys=interval_to_proto(keys_of_interval))
            interval.journal = f"{incarnation}.j{self._draft.draw()}"
            self._assigner.assign(interval, code, self._draft)
        self._draft.put_map(incarnation, record)
        return incarnation

    def _logs_of(self, spec: specs.TopologySpec) -> None:
        """A log for what the topology produces and nobody reads, and for its dead letters, read or not."""
        read = {edge.stream for computation in spec.computations for edge in computation.inputs}
        declared = {stream.name: stream for stream in spec.streams}
        produced = dict.fromkeys(output for computation in spec.computations for output in outputs_of(computation))
        for stream in produced:
            if stream not in read and stream not in self._known.logs and not self._known.consumers(stream):
                self._new_log(stream, declared.get(stream) or self._known.stream(stream))
        if dead_letter_stream(spec.name) not in self._known.logs:
            self._new_log(dead_letter_stream(spec.name), declared.get(dead_letter_stream(spec.name)))

    def _new_log(self, stream: str, declared: specs.StreamSpec | None) -> None:
        # What does not fit into this transaction follows at once, as a log that is missing.
        if stream in self._new_logs or self._draft.is_full:
            return
        self._new_logs.add(stream)
        incarnation = self._new_map(f"{stream}.log", "", [ALL_KEYS], None)
        record = catalog.StreamLogRecord(stream=stream, incarnation=incarnation)
        if declared is not None and declared.HasField("retention"):
            record.retention.CopyFrom(declared.retention)
        self._draft.put(keys.log_key(stream), record)

    def ensure_log(self, request: EnsureLog) -> Plan:
        """The log keeps what is produced from now on."""
        declared = self._known.stream(request.stream)
        if declared is None:
            refuse_unknown_stream(request.stream, self._known)
        if request.stream not in self._known.logs:
            self._new_log(request.stream, declared)
        return self._draft.plan(lambda: self._where_is(request.stream))

    def _where_is(self, stream: str) -> control.EnsureStreamLogResponse:
        incarnation = self._known.logs[stream].incarnation
        interval = next(iter(self._known.tables[incarnation]))
        owner = interval.owner if interval.HasField("owner") else None
        return control.EnsureStreamLogResponse(
            incarnation=incarnation, journal=interval.journal, owner=owner, stream=self._known.stream(stream)
        )

    def missing_logs(self) -> Plan:
        """Logs for streams whose last consumer went with its topology: what is produced must go somewhere."""
        for _, record in self._known.live_topologies():
            if record.state in ACTIVE_STATES:
                self._logs_of(record.spec)
        return self._draft.plan()

    def drain(self, request: DrainTopology) -> Plan:
        """Injections end now; the topology goes on until everything pending is processed."""
        record = self._record(request.name)
        if record.state in (catalog.TOPOLOGY_STATE_DRAINING, catalog.TOPOLOGY_STATE_DRAINED):
            return Plan(answer=lambda: self._known.topologies[request.name])
        if record.state != catalog.TOPOLOGY_STATE_RUNNING:
            state = catalog.TopologyState.Name(record.state).removeprefix("TOPOLOGY_STATE_").lower()
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"topology {request.name!r} is {state}, and only a running one can be drained",
                "nothing is left to drain" if state == "cancelled" else f"resume it first: {request.name}",
                reason="NOT_RUNNING",
            )
        return self._change_state(record, catalog.TOPOLOGY_STATE_DRAINING)

    def drained(self, name: str) -> Plan:
        """Everything pending is processed: the intervals lose their owners, and keep their state."""
        return self._change_state(self._record(name), catalog.TOPOLOGY_STATE_DRAINED)

    def cancel(self, request: CancelTopology) -> Plan:
        """The intervals lose their owners at once; journals and state are dropped after that, as litter."""
        record = self._record(request.name)
        if record.state == catalog.TOPOLOGY_STATE_CANCELLED:
            return Plan(answer=lambda: self._known.topologies[request.name])
        return self._change_state(record, catalog.TOPOLOGY_STATE_CANCELLED)

    def _record(self, name: str) -> catalog.TopologyRecord:
        known = self._known.topologies.get(name)
        if known is None:
            refuse_unknown_topology(name, self._known)
        record = catalog.TopologyRecord()
        record.CopyFrom(known)
        return record

    def _change_state(self, record: catalog.TopologyRecord, state: catalog.TopologyState.ValueType) -> Plan:
        name = record.spec.name
        record.state = state
        record.state_changed_at_us = self._now
        self._draft.put(keys.topology_key(name), record)
        if state not in ACTIVE_STATES:
            for incarnation in record.incarnations.values():
                release(self._known, incarnation, self._draft)
        return self._draft.plan(lambda: self._known.topologies[name])
