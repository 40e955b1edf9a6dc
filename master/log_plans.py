"""Plans for the logs of streams: which streams have one, and when it begins and ends (sections 4.3, 7.1). Pure."""

from __future__ import annotations

from millwheel.master.assignment import IntervalAssigner, release
from millwheel.master.change_plan import ChangePlan, PlanBuilder
from millwheel.master.messages import DeleteLog, EnsureLog
from millwheel.master.new_maps import new_map
from millwheel.master.stream_resolution import refuse_unknown_stream
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import ACTIVE_STATES, Catalog, outputs_of
from millwheel.model.keys import ALL_KEYS
from millwheel.model.stream_names import dead_letter_stream, is_dead_letter_stream
from millwheel.model.time import Timestamp
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["LogPlanner"]


class LogPlanner:
    """Plans for logs, based on one version of the catalog. Plans for topologies use it, with their builder."""

    def __init__(self, known: Catalog, now: Timestamp, builder: PlanBuilder, assigner: IntervalAssigner) -> None:
        self._known = known
        self._now = now
        self._builder = builder
        self._assigner = assigner
        self._new: set[str] = set()
        """The streams whose logs this plan creates."""
        self._ended: set[str] = set()
        """The streams whose logs this plan deletes."""

    # Requests, and what no request asks for.

    def ensure(self, request: EnsureLog) -> ChangePlan:
        """Plan a log that keeps what is produced from now on."""
        declared = self._known.stream(request.stream)
        if declared is None:
            refuse_unknown_stream(request.stream, self._known)
        is_new = request.stream not in self._known.logs
        if is_new:
            self._create(request.stream, declared)
        return self._builder.plan(lambda: self._where_is(request.stream, is_new))

    def delete(self, request: DeleteLog) -> ChangePlan:
        """Plan the end of a log. Its cursors end with it. Refused if the records of the stream go nowhere else.

        Senders discard what they still have for the log, as for any consumer that is removed from a live stream. After
        this transaction no record refers to the log's interval map, so its data in the store is dropped later.
        """
        stream = request.stream
        if self._known.stream(stream) is None:
            refuse_unknown_stream(stream, self._known)
        log = self._known.logs.get(stream)
        if log is None:
            return ChangePlan(answer=lambda: control.DeleteStreamLogResponse(stream=stream))
        letters = is_dead_letter_stream(stream)
        if letters or all(one.log for one in self._known.consumers(stream)):
            why = "dead letters are kept" if letters else "no computation reads it: its records go to its log alone"
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"the log of stream {stream!r} is needed: {why}",
                "the log keeps them for the stream's retention",
                reason="LOG_NEEDED",
            )
        if request.incarnation not in (None, log.incarnation):
            raise RequestError(
                FailureCode.ABORTED,
                f"the log of stream {stream!r} has begun meanwhile",
                "repeat the request, if the new log is meant, too",
                reason="LOG_REPLACED",
            )
        self._builder.delete(keys.log_key(stream))
        release(self._known, log.incarnation, self._builder)
        return self._builder.plan(lambda: control.DeleteStreamLogResponse(stream=stream, deleted=True))

    def create_missing(self) -> ChangePlan:
        """Plan logs for streams whose last consumer went with its topology: their records need a destination."""
        for _, record in self._known.live_topologies():
            if record.state in ACTIVE_STATES:
                self.create_needed(record.spec)
        return self._builder.plan()

    # Logs in the plan of a topology.

    def create_needed(self, spec: specs.TopologySpec) -> None:
        """Create logs for streams that no computation reads, and for dead letters in any case."""
        read = {edge.stream for computation in spec.computations for edge in computation.inputs}
        declared = {stream.name: stream for stream in spec.streams}
        written = [output for computation in spec.computations for output in outputs_of(computation)]
        written += [stream.name for stream in spec.streams if stream.injected]
        for stream in dict.fromkeys(written):
            others = any(one.topology != spec.name for one in self._known.consumers(stream) if not one.log)
            if stream not in read and not self._has(stream) and not others:
                self._create(stream, declared.get(stream) or self._known.stream(stream))
        if not self._has(dead_letter_stream(spec.name)):
            self._create(dead_letter_stream(spec.name), declared.get(dead_letter_stream(spec.name)))

    def keep_as_declared(self, spec: specs.TopologySpec) -> None:
        """Bring the retention of the topology's own streams to their logs. The owners of the logs follow the catalog.

        Invariant: it is in the transaction of the update. A plan that is too large is refused as a whole.
        """
        for stream in spec.streams:
            if stream.external or not self._has(stream.name):
                continue
            log = self._known.logs[stream.name]
            if log.retention == stream.retention and log.HasField("retention") == stream.HasField("retention"):
                continue
            record = catalog.StreamLogRecord()
            record.CopyFrom(log)
            record.ClearField("retention")
            if stream.HasField("retention"):
                record.retention.CopyFrom(stream.retention)
            self._builder.put(keys.log_key(stream.name), record)

    def end_earlier(self, spec: specs.TopologySpec) -> None:
        """Delete the logs of streams that are re-created before their earlier logs were retired (G1, G7).

        Such a log holds the records, the cursors and the watermark of the earlier stream. It ends in this
        transaction. After it no record refers to the log's interval map, so its data in the store is dropped later.
        """
        brought = {stream.name for stream in spec.streams if not stream.external}
        brought.update(output for computation in spec.computations for output in outputs_of(computation))
        brought.add(dead_letter_stream(spec.name))
        for stream in sorted(brought & self._known.logs.keys() - self._known.streams().keys()):
            self._ended.add(stream)
            self._builder.delete(keys.log_key(stream))
            release(self._known, self._known.logs[stream].incarnation, self._builder)

    def restore(self, log: catalog.StreamLogRecord) -> None:
        """Write the record of a snapshot's log. Its interval map is written beside it."""
        self._new.add(log.stream)
        self._builder.put(keys.log_key(log.stream), log)

    # Parts.

    def _create(self, stream: str, declared: specs.StreamSpec | None) -> None:
        # Logs that do not fit into this transaction follow at once as missing logs.
        if stream in self._new or self._builder.is_full:
            return
        self._new.add(stream)
        incarnation = new_map(self._builder, self._assigner, f"{stream}.log", "", [ALL_KEYS], None)
        record = catalog.StreamLogRecord(stream=stream, incarnation=incarnation, created_at_us=self._now)
        if declared is not None and declared.HasField("retention"):
            record.retention.CopyFrom(declared.retention)
        self._builder.put(keys.log_key(stream), record)

    def _has(self, stream: str) -> bool:
        return stream in self._known.logs and stream not in self._ended

    def _where_is(self, stream: str, is_new: bool) -> control.EnsureStreamLogResponse:
        log = self._known.logs[stream]
        incarnation = log.incarnation
        interval = next(iter(self._known.maps[incarnation]))
        owner = interval.owner if interval.HasField("owner") else None
        return control.EnsureStreamLogResponse(
            incarnation=incarnation,
            journal=interval.journal,
            owner=owner,
            stream=self._known.stream(stream),
            created_at_us=log.created_at_us,
            created=is_new,
            former_ends=log.former_ends,
        )
