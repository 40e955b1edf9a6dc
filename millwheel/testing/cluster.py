"""A small cluster in one process: one topology's interval cores, and the work of master, authority and log for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millwheel.model.incarnation import GroupId, IncarnationId, injector_group, new_incarnation
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.codecs import ValueCodec
from millwheel.sdk.compiled import compile_computation, consumers_of, key_columns_of
from millwheel.sdk.declarations import StreamKind
from millwheel.sdk.effects import KeyColumns
from millwheel.sdk.errors import UsageError, did_you_mean
from millwheel.sdk.options import ComputationOptions
from millwheel.sdk.plan import Plan
from millwheel.sdk.scope import FixedRoute, OutputBinding, RouteOfAll, route_of_all
from millwheel.sdk.topology import TopologyGraph
from millwheel.store.memory import MemoryStore
from millwheel.testing.captured import refuse_other_names
from millwheel.testing.cores import CoreDriver
from millwheel.testing.injected import InjectedBatches
from millwheel.testing.store_effects import result_of
from millwheel.worker.dedup import PositionIds
from millwheel.worker.interval import DrainingCore, IntervalConfig, IntervalCore, IntervalSettings
from millwheel.worker.messages import (
    Acknowledged,
    AnswerDelivery,
    Delivery,
    GroupWatermarks,
    Halted,
    HookFailed,
    Report,
    Resend,
    SendDelivery,
)

__all__ = ["Produced", "VirtualCluster"]

_RESEND_AFTER_US: Final = 10_000
"""The delay before a refused batch is sent again, in microseconds of virtual time."""

_SINK: Final = "sink:"
"""The prefix of the consumer names that collect the records of a stream."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A record that reached a stream: its decoded value, and its timestamp in microseconds since the epoch."""

    value: Any
    timestamp: Timestamp


@dataclass(frozen=True, slots=True)
class _Removed:
    """A removed computation whose productions are not all delivered yet."""

    name: str
    options: ComputationOptions
    outputs: frozenset[str]


class VirtualCluster:
    """Runs the present version of a topology. It implements ``HarnessPeers`` for the driver of its cores.

    It has many attributes: the harness reads them for its tests.
    """

    def __init__(
        self,
        now: int,
        cuts: Iterable[str],
        settings: IntervalSettings,
        hook_timeout_seconds: float,
        fed: Iterable[str] = (),
        captured: Iterable[str] = (),
    ) -> None:
        """Start without a topology.

        Args:
            now: The first value of the virtual clock, in microseconds.
            cuts: The keys at which each computation's intervals are split.
            settings: The bounds and delays of the interval cores.
            hook_timeout_seconds: The real seconds that an asynchronous hook may take.
            fed: The streams that the test feeds in place of their sources.
            captured: The sinks whose records the test reads, in place of their writers.
        """
        self.driver = CoreDriver(MemoryStore(), now, self, hook_timeout_seconds)
        self.failures: list[HookFailed] = []
        self.produced: dict[str, list[Produced]] = {}
        self.codecs: dict[str, ValueCodec] = {}
        self.watermarks: dict[str, int] = {}
        """By incarnation or injector: the last broadcast watermark."""
        self.declared: dict[str, int] = {}
        """By source: the last watermark that its injector declared."""
        self.injected = InjectedBatches()
        self.incarnations: dict[str, IncarnationId] = {}
        """By a computation's name: the incarnation id, under which its journals, states and watermark are kept."""
        self.captured = frozenset(captured)
        self._fed = frozenset(fed)
        self._settings = settings
        points = sorted(cut.encode() for cut in cuts)
        self._intervals = [KeyInterval(a, b) for a, b in zip([b"", *points], [*points, None], strict=True)]
        self._numbers = itertools.count(1)
        """The numbers of incarnations and sequencers."""
        self._removed: dict[IncarnationId, _Removed] = {}
        self._seen: dict[str, set[tuple[str, int | bytes]]] = {}
        self._reported: dict[str, dict[KeyInterval, int]] = {}

    def run(self) -> None:
        """Run until no event is left. Then delete removed computations that have delivered everything."""
        self.driver.run()
        for incarnation in [one for one in self._removed if self.watermarks.get(one) == MAX_TIMESTAMP]:
            self._drop(incarnation)

    # The requests of cores: see testing.cores.HarnessPeers.

    def send_batch(self, journal: str, one: SendDelivery) -> None:
        """Deliver a batch to a core, collect it for the test, or discard it if its consumer is removed."""
        delivery = one.delivery
        if delivery.consumer in self.incarnations.values():
            delivery.channel = journal
            self.driver.post(delivery.journal, delivery)
            return
        if delivery.consumer.startswith(_SINK):
            self._collect(delivery)
        self.driver.post(journal, Acknowledged(delivery.token))

    def answer(self, journal: str, one: AnswerDelivery) -> None:
        """Send the answer to the batch's sender, which is a core or the harness itself."""
        delivery = one.delivery
        acked = one.outcome == DeliveryOutcome.DELIVERY_OUTCOME_ACKED
        if delivery.channel is None:
            if not acked:
                again = self.injected.refused(journal, delivery.token, one.indexes)
                self.driver.post_later(_RESEND_AFTER_US, journal, again)
            elif self.injected.acked(journal, delivery.token, one.indexes):
                self.publish(delivery.stream)
        elif acked:
            self.driver.post(delivery.channel, Acknowledged(delivery.token, one.indexes))
        else:
            full = one.outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
            refused = {delivery.token: one.indexes} if full and one.indexes else {}
            whole = [delivery.token] if full and not one.indexes else []
            if not refused:
                self.driver.post(delivery.channel, Halted(delivery.token))
            self.driver.post_later(_RESEND_AFTER_US, delivery.channel, Resend([delivery.token], refused, whole))

    def report(self, journal: str, one: Report) -> None:
        """Broadcast the minimum of the computation's intervals, after all of them have reported."""
        values = self._reported.setdefault(one.incarnation, {})
        values[one.keys] = one.output
        if len(values) == len(self._intervals):
            self._broadcast(one.incarnation, min(values.values()))

    def hook_failed(self, journal: str, one: HookFailed) -> None:
        """Record the failure for the test."""
        self.failures.append(one)

    # The cluster's own work.

    def load(self, topology: TopologyGraph) -> None:
        """Take over a version of the topology. New computations and sources start.

        Raises:
            UsageError: No source reads a stream that the test feeds in its place. Or it captures what is no sink.
        """
        plan = topology.plan()
        refuse_other_names(plan, self.captured)
        left_out = _sources_of(plan, self._fed) | self.captured
        self.topology, self.plan = topology, plan
        for name, stream in plan.streams.items():
            assert stream.codec is not None, "a topology that passed its check has a codec for every stream"
            self.codecs[name] = stream.codec
        sources = [
            name
            for name, stream in plan.streams.items()
            if name in self._fed or (stream.declaration and stream.declaration.kind is not StreamKind.STREAM)
        ]
        for name in [name for name in self.declared if name not in sources]:
            del self.declared[name], self.watermarks[injector_group(name)]
        for name in sources:
            self.declared.setdefault(name, int(MIN_TIMESTAMP))
            self.watermarks.setdefault(injector_group(name), int(MIN_TIMESTAMP))
        for name in [name for name in plan.computations if name not in self.incarnations and name not in left_out]:
            self.incarnations[name] = new_incarnation(name, next(self._numbers))
            for journal in self._journals(self.incarnations[name]):
                result_of(self.driver.store.create_journal(journal))

    def remove(self, name: str) -> set[str]:
        """Remove a computation. Its productions are still delivered, but records for it are discarded.

        Returns:
            The sources that had records which the computation had not ACKed.
        """
        incarnation = self.incarnations.pop(name)
        outputs = frozenset(stream.name for stream in self.plan.streams.values() if name in stream.producers)
        self._removed[incarnation] = _Removed(name, self.plan.computations[name].options, outputs)
        return self.injected.discard(incarnation)

    def _drop(self, incarnation: IncarnationId) -> None:
        """Delete the journals and states of a removed computation that has delivered everything."""
        del self._removed[incarnation]
        for journal in self._journals(incarnation):
            del self.driver.cores[journal]
            result_of(self.driver.store.drop_journal(journal))
        result_of(self.driver.store.drop_incarnation(incarnation))

    def restart(self) -> None:
        """Lose all memory, and start every core from the store."""
        self.driver.clear()
        self._reported.clear()
        self._start_all()
        for delivery in self.injected.all_again():
            self.driver.post(delivery.journal, delivery)

    def _start_all(self) -> None:
        for name, incarnation in self.incarnations.items():
            for keys in self._intervals:
                self.start(name, incarnation, keys)
        for incarnation, removed in self._removed.items():
            for keys in self._intervals:
                config = self._config(incarnation, keys, ())
                self.driver.start(DrainingCore(config, removed.name, removed.options, self.locate))
        self.driver.run()

    def start(self, name: str, incarnation: IncarnationId, keys: KeyInterval) -> None:
        """Start an interval of a computation: it reads its journal."""
        program = compile_computation(self.topology, name)
        outputs = {
            stream: OutputBinding(
                stream,
                encode,
                *self._route(stream),
                program.encode_all.get(stream),
                self._key_columns(stream) if stream in program.tables else None,
            )
            for stream, encode in program.outputs.items()
        }
        inputs = self.plan.computations[name].inputs
        config = self._config(
            incarnation,
            keys,
            [stream for stream, extractor in inputs.items() if not extractor.feedback],
            frozenset(stream for stream, extractor in inputs.items() if extractor.feedback),
        )
        self.driver.start(IntervalCore(config, program, outputs, self.locate))
        self.driver.post(config.journal, GroupWatermarks(dict(self.watermarks)))

    def _config(
        self,
        incarnation: IncarnationId,
        keys: KeyInterval,
        followed: Sequence[str],
        feedback: frozenset[str] = frozenset(),
    ) -> IntervalConfig:
        declarations = [self.plan.streams[stream].declaration for stream in followed]
        return IntervalConfig(
            incarnation=incarnation,
            journal=_journal(incarnation, keys),
            keys=keys,
            sequencer=next(self._numbers),
            groups=frozenset(group for stream in followed for group in self._groups_of(stream)),
            slack={
                injector_group(one.name): one.id_slack
                for one in declarations
                if one and (one.kind is StreamKind.SOURCE or one.name in self._fed)
            },
            feedback=feedback,
            settings=self._settings,
        )

    def _groups_of(self, stream: str) -> Iterable[GroupId]:
        """The groups whose minimum is the input watermark of a stream."""
        producers = self.plan.streams[stream].producers
        yield from (self.incarnations[name] for name in producers if name in self.incarnations)
        yield from (incarnation for incarnation, removed in self._removed.items() if stream in removed.outputs)
        if stream in self.declared:
            yield injector_group(stream)

    def _route(self, stream: str) -> tuple[Callable[[Any], tuple[tuple[IncarnationId, bytes], ...]], RouteOfAll]:
        consumers = [
            (self.incarnations[name], extract)
            for name, extract in consumers_of(self.topology, stream)
            if name not in self.captured
        ]
        sink = ((IncarnationId(_SINK + stream), b""),)
        of_all = route_of_all(consumers, sink)
        if not consumers:
            return FixedRoute(sink), of_all
        return lambda value: (*((consumer, extract(value)) for consumer, extract in consumers), *sink), of_all

    def _key_columns(self, stream: str) -> KeyColumns | None:
        """The consumers of records that are columns."""
        found = key_columns_of(self.topology, stream)
        if found is None:
            return None
        own = ((self.incarnations[name], key) for name, key in found.items() if name not in self.captured)
        return (*own, (IncarnationId(_SINK + stream), b""))

    def locate(self, consumer: IncarnationId, key: bytes) -> str:
        """The journal of the consumer's interval that contains ``key``; empty for a sink or a removed computation."""
        if consumer not in self.incarnations.values():
            return ""
        return next(_journal(IncarnationId(consumer), keys) for keys in self._intervals if key in keys)

    def cores_of(self, computation: str) -> list[IntervalCore]:
        """The cores of a computation's intervals."""
        return [self.driver.cores[journal] for journal in self._journals(self.incarnations[computation])]

    def core_of(self, computation: str, key: bytes) -> IntervalCore:
        """The core of the interval that contains ``key``."""
        return self.driver.cores[self.locate(self.incarnations[computation], key)]

    def waiting(self) -> tuple[int, HookFailed | None]:
        """The number of keys that wait for a retry which no policy ends, and a failure.

        The failure is the last one of the key that failed first.
        """
        cores = [core for name in self.incarnations for core in self.cores_of(name)]
        endless = [core for core in cores if not core.state.program.options.on_failure.max_attempts]
        oldest = [(one.since, core.state.program.name, one) for core in endless for one in core.failing.oldest(1)]
        if not oldest:
            return 0, None
        _, name, failure = min(oldest, key=lambda found: found[0])
        key = failure.key.decode("utf-8", "backslashreplace")
        where = f"computation {name!r}, key {key!r}, {failure.work}: "
        last = next(one for one in reversed(self.failures) if one.message.startswith(where))
        return sum(core.failing.blocked for core in endless), last

    def _journals(self, incarnation: IncarnationId) -> list[str]:
        return [_journal(incarnation, keys) for keys in self._intervals]

    def publish(self, stream: str) -> None:
        """Broadcast the injector's low watermark: the declared one, held by records without an ACK."""
        declared, oldest = self.declared.get(stream), self.injected.oldest(stream)
        if declared is not None:
            self._broadcast(injector_group(stream), declared if oldest is None else min(declared, oldest))

    def _broadcast(self, group: GroupId, watermark: int) -> None:
        if watermark > self.watermarks.get(group, MIN_TIMESTAMP):
            self.watermarks[group] = watermark
            self.driver.post_to_all(GroupWatermarks({group: watermark}))

    def _collect(self, delivery: Delivery) -> None:
        codec = self.codecs[delivery.stream]
        seen = self._seen.setdefault(delivery.stream, set())
        ids: Any = delivery.ids
        for index, (value, timestamp) in enumerate(zip(delivery.values, delivery.timestamps, strict=True)):
            identity = (ids.sequence, ids.positions[index]) if isinstance(ids, PositionIds) else ("", ids.ids[index])
            if identity not in seen:
                seen.add(identity)
                record = Produced(codec.decode(value), Timestamp(timestamp))
                self.produced.setdefault(delivery.stream, []).append(record)


def _sources_of(plan: Plan, fed: Iterable[str]) -> set[str]:
    """The computations that would read these streams."""
    found: set[str] = set()
    for name in fed:
        stream = plan.streams.get(name)
        readers = [one for one in (stream.producers if stream else ()) if _feeds(plan, one)]
        if not readers:
            raise UsageError(f"no source reads stream {name!r}{did_you_mean(name, list(plan.streams))}: fed= names one")
        found.update(readers)
        splits = [one for reader in readers for one in plan.computations[reader].inputs]
        found.update(one for each in splits for one in plan.streams[each].producers)
    return found


def _feeds(plan: Plan, name: str) -> bool:
    computation = plan.computations[name].computation
    return computation is not None and computation._feeds


def _journal(incarnation: IncarnationId, keys: KeyInterval) -> str:
    return f"{incarnation}/{keys.start.decode('utf-8', 'backslashreplace')}"
