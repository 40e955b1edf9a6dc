"""The rows of GetOverview: each topology, computation and stream, with the sums over its intervals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millwheel.master.load_book import LoadBook, merged_columns, merged_hooks, merged_traffic
from millwheel.model.catalog import Catalog, outputs_of
from millwheel.model.connector_parts import connector_parts
from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.model.stream_names import dead_letter_stream
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["OverviewRows"]


class OverviewRows:
    """Makes the rows from one state of the catalog and of the workers' reports.

    ``watermarks`` has the low watermark of each group for which the authority answered.
    """

    def __init__(
        self,
        known: Catalog,
        book: LoadBook,
        watermarks: Mapping[str, wire.WatermarkOverview],
        failures: Iterable[wire.ComputationFailures],
    ) -> None:
        self._known = known
        self._book = book
        self._watermarks = watermarks
        self._failures = {(one.topology, one.computation): one for one in failures}
        self._hooks: dict[tuple[str, str], list[inspection.HookTime]] = {}
        self._traffic: dict[tuple[str, str], list[inspection.ComputationTraffic]] = {}
        self._columns: dict[tuple[str, str], list[inspection.ComputationColumns]] = {}
        for worker in book.workers.values():
            for hook in worker.load.hooks:
                self._hooks.setdefault((hook.topology, hook.computation), []).append(hook.time)
            for part in worker.load.traffic:
                self._traffic.setdefault((part.topology, part.computation), []).append(part)
            for use in worker.load.columns:
                self._columns.setdefault((use.topology, use.computation), []).append(use)
        self._written: dict[str, list[str]] = {}
        self._read: dict[str, list[str]] = {}
        for name, record in sorted(known.topologies.items()):
            for spec in record.spec.computations:
                for stream in outputs_of(spec):
                    self._written.setdefault(stream, []).append(f"{name}/{spec.name}")
                for stream in dict.fromkeys(edge.stream for edge in spec.inputs):
                    self._read.setdefault(stream, []).append(f"{name}/{spec.name}")

    def topology(self, record: catalog.TopologyRecord, waiting_for: Iterable[str]) -> wire.TopologyOverview:
        """Return the row of a topology, with those of its computations and streams."""
        parts = connector_parts(record.spec)
        return wire.TopologyOverview(
            name=record.spec.name,
            state=record.state,
            version=record.version,
            submitted_at_us=record.submitted_at_us,
            version_at_us=record.version_at_us,
            state_changed_at_us=record.state_changed_at_us,
            waiting_for=waiting_for,
            unhandled_letters=self._unhandled_letters(record.spec.name),
            computations=[
                self._computation(record, spec, parts.get(spec.name, wire.CONNECTOR_PART_UNSPECIFIED))
                for spec in record.spec.computations
            ],
            streams=[self._stream(stream) for stream in record.spec.streams if not stream.external],
        )

    def _computation(
        self, record: catalog.TopologyRecord, spec: specs.ComputationSpec, part: wire.ConnectorPart.ValueType
    ) -> wire.ComputationOverview:
        topology, incarnation = record.spec.name, IncarnationId(record.incarnations[spec.name])
        traffic = merged_traffic(self._traffic.get((topology, spec.name), ()))
        columns = self._columns.get((topology, spec.name))
        row = wire.ComputationOverview(
            name=spec.name,
            implementation=spec.implementation,
            inputs=spec.inputs,
            outputs=outputs_of(spec),
            watermark=self._watermarks.get(incarnation),
            failures=self._failures.get((topology, spec.name)),
            hooks=merged_hooks(self._hooks.get((topology, spec.name), ())),
            traffic=traffic.streams,
            commit_latency_seconds=traffic.commit_latency_seconds,
            connector=part,
            columns=None if columns is None else merged_columns(columns),
        )
        self._count_owners(row, incarnation)
        row.MergeFrom(self._book.together(self._known, incarnation).sums)
        return row

    def _count_owners(self, row: wire.ComputationOverview, incarnation: IncarnationId) -> None:
        interval_map = self._known.maps.get(incarnation)
        if interval_map is None:
            return
        row.intervals = len(interval_map)
        workers = set[str]()
        for (worker, registration), intervals in interval_map.owned.items():
            if self._known.lives(worker, registration):
                workers.add(worker)
            else:
                row.without_owner += len(intervals)
        row.workers.extend(sorted(workers))

    def _unhandled_letters(self, topology: str) -> int:
        log = self._known.logs.get(dead_letter_stream(topology))
        intervals = () if log is None else self._known.maps.get(log.incarnation, ())
        return sum(load.log.unhandled_letters for one in intervals if (load := self._book.load_of(one)) is not None)

    def _stream(self, spec: specs.StreamSpec) -> wire.StreamOverview:
        row = wire.StreamOverview(
            name=spec.name,
            record_type=spec.record_type,
            injected=spec.injected,
            written_by=self._written.get(spec.name, ()),
            read_by=self._read.get(spec.name, ()),
            watermark=self._watermarks.get(injector_group(spec.name)) if spec.injected else None,
        )
        log = self._known.logs.get(spec.name)
        if log is not None:
            row.log.created_at_us = log.created_at_us
            row.log.SetInParent()
            for interval in self._known.maps.get(log.incarnation, ()):
                row.log.worker = interval.owner.worker_id
                load = self._book.load_of(interval)
                if load is not None:
                    row.log.records_per_second = load.records_per_second
                    row.log.cached_bytes = load.cached_bytes
                    if load.HasField("log"):
                        row.log.kept.CopyFrom(load.log)
        return row
