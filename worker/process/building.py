"""Builds the core of an interval from the catalog: a computation's core, or a stream log's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from time import perf_counter

from millwheel.model.catalog import Catalog, OwnedInterval, code_of
from millwheel.model.formats import COLUMNS, DEFLATED_ENTRIES, POSITION_RANGES, RESULT_COLUMNS
from millwheel.model.incarnation import injector_group
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import interval_text
from millwheel.model.stream_names import full_name, is_dead_letter_stream
from millwheel.model.time import Duration
from millwheel.model.traces import SpanSource
from millwheel.rpc.clock import steady_now, wall_now
from millwheel.rpc.v1 import catalog_pb2 as catalog_pb2
from millwheel.rpc.v1 import topology_pb2 as topology
from millwheel.sdk.options import ComputationOptions
from millwheel.sdk.scope import OutputBinding
from millwheel.worker.interval import DrainingCore, HookMeter, IntervalConfig, IntervalCore, IntervalSettings
from millwheel.worker.interval.hook_meter import BatchTime
from millwheel.worker.interval.measures import IntervalMeasures
from millwheel.worker.interval.traces import IntervalTraces
from millwheel.worker.log import DEAD_LETTER_RETENTION, DEFAULT_RETENTION, LogConfig, LogCore, LogRetention
from millwheel.worker.log.traces import LogTraces
from millwheel.worker.messages import Parent
from millwheel.worker.process.destinations import CatalogRouting
from millwheel.worker.process.programs import Programs
from millwheel.worker.process.tallies import ComputationName
from millwheel.worker.traces import OwnerTraces

__all__ = ["Builder", "Built", "retention_of"]

log = logging.getLogger("millwheel.worker")


@dataclass(slots=True)
class Built:
    """A core, the streams that its input watermark follows, and what must be released with it."""

    core: IntervalCore | LogCore
    inputs: tuple[str, ...]
    bindings: list[OutputBinding] = field(default_factory=list)
    log_of: str = ""
    """The stream whose log the core is. Empty for a computation's interval."""
    feedback: tuple[str, ...] = ()
    """The streams whose records it also receives."""
    code: topology.CodeReference | None = None
    """The user code that it runs. None: no code."""
    traces: OwnerTraces | None = None
    """The spans of its sampled records. None: there are none."""
    beside: frozenset[str] = frozenset()
    """The groups whose watermarks it receives though they hold nothing back: a source's own one, for its throttle."""
    clock: Callable[[], int] = wall_now
    """The core's clock. Hooks see wall time. A log measures elapsed time, so that a set wall clock drops nothing."""


class Builder:
    """Builds cores for owned intervals."""

    def __init__(
        self,
        catalog: Catalog,
        programs: Programs,
        routing: CatalogRouting,
        settings: IntervalSettings,
        measures: Callable[[ComputationName], IntervalMeasures],
        batch_time: BatchTime,
        slow_hook: float = 0.0,
        spans: SpanSource | None = None,
    ) -> None:
        """
        Args:
            catalog: The catalog.
            programs: The code of topologies.
            routing: Where the keys of consumers are.
            settings: The limits of intervals.
            measures: The measures of a computation.
            batch_time: How long a batch of hooks may take.
            slow_hook: Seconds from which on hooks count as blocking the event loop. 0: never.
            spans: Starts spans of sampled records. None: there are none.
        """
        self._catalog = catalog
        self._programs = programs
        self._routing = routing
        self._settings = settings
        self._measures = measures
        self._batch_time = batch_time
        self._slow_hook = slow_hook
        self._spans = spans
        self._noted = False
        """Whether the log says that windows by columns need another format of the cluster."""

    def build(self, owned: OwnedInterval) -> Built | None:
        """The core of an interval. None while its code is not loaded, or if the catalog does not have it any more."""
        log = self._catalog.log_of(owned.incarnation)
        if log is not None:
            return self._log(owned, log)
        removed = self._catalog.removed_computation(owned.incarnation)
        if removed is not None:
            return self._draining(owned, removed[1].spec)
        found = self._catalog.computation(owned.incarnation)
        if found is None or not self._programs.has(code_of(found[0].spec, found[1])):
            return None
        return self._computation(owned, *found)

    def groups(self, inputs: Iterable[str]) -> frozenset[str]:
        """All groups of these streams: the input watermark is the minimum of their watermarks (4.5)."""
        return frozenset(group for stream in inputs for group in self._catalog.groups_of(stream))

    def _computation(
        self, owned: OwnedInterval, record: catalog_pb2.TopologyRecord, spec: topology.ComputationSpec
    ) -> Built:
        code = code_of(record.spec, spec)
        program = self._programs.compile(code, record.spec.name, spec.name)
        outputs = {
            name: self._routing.bind(
                full_name(record.spec.name, name), encode, program.encode_all.get(name), tables=name in program.tables
            )
            for name, encode in program.outputs.items()
        }
        inputs = tuple(edge.stream for edge in spec.inputs if not edge.feedback)
        feedback = frozenset(edge.stream for edge in spec.inputs if edge.feedback)
        config = self._config(owned, inputs, feedback, code.digest)
        place: ComputationName = (record.spec.name, spec.name)
        traces = self._traces(config, place)
        meter = HookMeter(perf_counter, self._slow_hook, self._measures(place), self._batch_time, traces)
        core = IntervalCore(config, program, outputs, self._routing.locate, meter)
        beside = frozenset[str]({owned.incarnation} if program.feeds else ())
        return Built(core, inputs, list(outputs.values()), "", tuple(sorted(feedback)), code, traces, beside)

    def _traces(self, config: IntervalConfig, place: ComputationName) -> IntervalTraces | None:
        """The spans of an interval's sampled records."""
        if self._spans is None:
            return None
        topology_name, computation = place
        spans = self._spans.about(
            {
                "millwheel.topology": topology_name,
                "millwheel.computation": computation,
            }
        )
        owner: dict[str, str | int] = {
            "millwheel.interval": interval_text(config.keys),
            "millwheel.sequencer": config.sequencer,
        }
        return IntervalTraces(spans, computation, config.journal, owner)

    def _config(
        self, owned: OwnedInterval, inputs: tuple[str, ...], feedback: frozenset[str], code: str = ""
    ) -> IntervalConfig:
        interval, settings = owned.interval, self._settings
        if settings.columns_from and self._catalog.format < COLUMNS:
            self._note_format()
            settings = replace(settings, columns_from=0)
        return IntervalConfig(
            owned.incarnation,
            interval.journal,
            interval_from_proto(interval.keys),
            interval.sequencer,
            self.groups(inputs),
            self.slack((*inputs, *feedback)),
            feedback,
            settings,
            tuple(Parent(parent.journal, interval_from_proto(parent.keys)) for parent in interval.parents),
            code,
            self._catalog.format >= RESULT_COLUMNS,
            self._deflates,
        )

    @property
    def _deflates(self) -> bool:
        return self._catalog.format >= DEFLATED_ENTRIES

    def _note_format(self) -> None:
        if not self._noted:
            self._noted = True
            log.info(
                "worker.columns has no effect: the cluster has format %d, windows by columns need %d, and tables by "
                "columns %d. Raise cluster.format (start-dev: --cluster-format) to %d "
                "(docs/upgrading.md). Intervals take it up when they are opened again.",
                self._catalog.format,
                COLUMNS,
                POSITION_RANGES,
                POSITION_RANGES,
            )

    def _draining(self, owned: OwnedInterval, spec: topology.ComputationSpec) -> Built:
        """The draining interval of a removed computation. It only sends what it has already produced."""
        options = ComputationOptions(
            exactly_once=spec.exactly_once,
            strong=spec.strong_productions,
            straggler_delay=Duration(spec.straggler_delay_us),
        )
        config = self._config(owned, (), frozenset())
        return Built(DrainingCore(config, spec.name, options, self._routing.locate), ())

    def _log(self, owned: OwnedInterval, record: catalog_pb2.StreamLogRecord) -> Built:
        inputs = (record.stream,)
        config = LogConfig(
            record.stream,
            owned.incarnation,
            owned.interval.journal,
            owned.interval.sequencer,
            self.groups(inputs),
            self.slack(inputs),
            retention_of(record),
            deflates=self._deflates,
        )
        traces = None
        if self._spans is not None:
            traces = LogTraces(self._spans.about({"millwheel.log": record.stream}))
        return Built(LogCore(config, traces), inputs, log_of=record.stream, traces=traces, clock=steady_now)

    def slack(self, streams: Iterable[str]) -> dict[str, int]:
        """For each group of these streams' injectors: how long the ids of late records are kept, in microseconds
        (6.1.1)."""
        specs = {stream: self._catalog.stream(stream) for stream in streams}
        return {injector_group(name): spec.id_slack_us for name, spec in specs.items() if spec and spec.injected}


def retention_of(log: catalog_pb2.StreamLogRecord) -> LogRetention:
    """The retention of a stream's log: its own, or the default if it has none."""
    stated = log.retention
    if not stated.max_age_us and not stated.max_bytes:
        return DEAD_LETTER_RETENTION if is_dead_letter_stream(log.stream) else DEFAULT_RETENTION
    return LogRetention(stated.max_age_us, stated.max_bytes, stated=True)
