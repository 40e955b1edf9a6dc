"""A topology in virtual time: the real interval cores and store contract, no sockets, no threads, no sleeps.

``TopologyHarness`` owns a clock that moves only when it is told to, and a memory store. Records are
fed to the topology's sources; every call runs until nothing is left to do. What user code sees, duplicates,
commits, timers, watermarks, late records, failures and their policies, is what it will see on a cluster.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from millwheel.core.keys import ALL_KEYS, KeyInterval
from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.codecs import ValueCodec
from millwheel.sdk.compiled import compile_computation, consumers_of
from millwheel.sdk.context import OutputBinding
from millwheel.sdk.dead_letters import dead_letter_stream
from millwheel.sdk.declarations import StreamKind
from millwheel.sdk.topology import Topology
from millwheel.store.contract import SequencerRefusedError
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import OpaqueIds, PositionIds, Sender
from millwheel.worker.interval import IntervalConfig, IntervalCore, Settings
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledge,
    Acknowledged,
    Appended,
    AppendEntry,
    AsyncHook,
    CheckSequence,
    Delivery,
    Deposed,
    Event,
    FenceJournal,
    FlushStates,
    Halted,
    HookFailed,
    HookFinished,
    Opened,
    PartsRead,
    PartsWritten,
    ReadSegments,
    ReadStates,
    Report,
    Resend,
    Send,
    SenderWatermarks,
    SequenceChecked,
    StatesFlushed,
    StatesRead,
    Tick,
    WriteParts,
)

__all__ = ["Produced", "TopologyHarness"]

T = TypeVar("T")

_RESEND_AFTER: Final = 10_000
"""Microseconds until a refused batch is sent again."""

_START: Final = Timestamp(1_700_000_000_000_000)
"""The virtual clock's first value: 2023-11-14T22:13:20Z."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A record that reached a stream: its decoded value and its timestamp."""

    value: Any
    timestamp: Timestamp


def _part(delivery: Delivery, indexes: Sequence[int], token: int) -> Delivery:
    """Some records of a delivery."""
    ids, columns = delivery.ids, (delivery.keys, delivery.values, delivery.timestamps)
    if isinstance(ids, PositionIds):
        ids = PositionIds(ids.sequence, ids.mark, [ids.positions[index] for index in indexes])
    elif isinstance(ids, OpaqueIds):
        ids = OpaqueIds([ids.ids[index] for index in indexes])
    keys, values, timestamps = ([column[index] for index in indexes] for column in columns)
    return replace(delivery, ids=ids, keys=keys, values=values, timestamps=timestamps, token=token)  # type: ignore[arg-type]


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as the memory store's are."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("the memory store waited")


class TopologyHarness:
    """Runs one topology. ``intervals`` splits every computation's keys at these points.

    Every record fed, watermark advanced or moment passed takes its full effect before the call returns.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        split_at: Iterable[str] = (),
        now: Timestamp = _START,
        settings: Settings | None = None,
    ) -> None:
        topology.check()
        self.topology = topology
        self._plan = topology.plan()
        self._sources = [
            name
            for name, stream in self._plan.streams.items()
            if stream.declaration is not None and stream.declaration.kind is not StreamKind.STREAM
        ]
        self.now = int(now)
        self.store = MemoryStore()
        self.failures: list[str] = []
        """What user code raised, as an operator would read it."""
        self._settings = settings or Settings(flush_interval=0, checkpoint_entries=20)
        self._cuts = sorted(point.encode() for point in split_at)
        self._cores: dict[str, IntervalCore] = {}
        self._events: deque[tuple[str, Event]] = deque()
        self._sequencers = itertools.count(1)
        self._produced: dict[str, list[Produced]] = {}
        self._seen: dict[str, set[tuple[str, int]]] = {}
        self._injected: dict[str, int] = {}
        self._extractors: dict[str, list[tuple[str, Callable[[Any], bytes]]]] = {}
        self._watermarks: dict[str, int] = {}
        self._by_interval: dict[str, dict[KeyInterval, int]] = {}
        self._declared: dict[str, int] = dict.fromkeys(self._sources, int(MIN_TIMESTAMP))
        self._unacked: dict[tuple[str, int], Delivery] = {}
        """Injected records by journal and token: sent again after a crash, and holding the injector's watermark."""
        self._parted: dict[tuple[str, int], set[int]] = {}
        """Of these, the indexes of records that were refused, and are in batches of their own now."""
        self._parts = itertools.count(-1, -1)
        self._later: list[tuple[int, int, str, Event]] = []
        """Events at a virtual time to come, as a heap."""
        self._order = itertools.count()
        for name in self._plan.computations:
            for keys in self._intervals():
                _now(self.store.create_journal(_journal(name, keys)))
        for stream in self._sources:
            self._watermarks[f"injector/{stream}"] = MIN_TIMESTAMP
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_all()

    # What tests do.

    def send(self, stream: str, value: Any, timestamp: Timestamp, *, record_id: bytes | None = None) -> None:
        """Inject a record. With ``record_id`` (16 bytes) the same id again is a duplicate, as an injector's own are."""
        self.send_all(stream, [(value, timestamp)], record_ids=[record_id] if record_id else [])

    def send_all(
        self,
        stream: str,
        records: Iterable[tuple[Any, Timestamp]],
        *,
        record_ids: Sequence[bytes] = (),
    ) -> None:
        """Inject records, as (value, timestamp), that arrive together: they may share commits, as under load."""
        codec, consumers = self._codec(stream), self._consumers(stream)
        deliveries: dict[str, Delivery] = {}
        for index, (value, timestamp) in enumerate(records):
            encoded = codec.checked(value)
            position = self._injected[stream] = self._injected.get(stream, 0) + 1
            for consumer, extract in consumers:
                key = extract(value)
                journal = self._locate(consumer, key)
                delivery = deliveries.get(journal)
                if delivery is None:
                    delivery = self._delivery(consumer, journal, stream, position, opaque=bool(record_ids))
                    deliveries[journal] = delivery
                delivery.keys.append(key)
                delivery.values.append(encoded)
                delivery.timestamps.append(timestamp)
                ids: Any = delivery.ids
                if record_ids:
                    ids.ids.append(record_ids[index])
                else:
                    ids.positions.append(position)
            if not consumers:
                self._produced.setdefault(stream, []).append(Produced(value, timestamp))
        for journal, delivery in deliveries.items():
            self._unacked[journal, delivery.token] = delivery
            self._events.append((journal, replace(delivery)))
        self._run()

    def advance_watermark(self, to: Timestamp, stream: str | None = None) -> None:
        """All data up to ``to`` has been sent: of one source, or of all."""
        for name in [stream] if stream is not None else self._sources:
            self._declared[name] = max(self._declared[name], to)
            self._publish(name)
        self._run()

    def finish(self) -> None:
        """The sources have ended: the low watermark goes to plus infinity."""
        self.advance_watermark(MAX_TIMESTAMP)

    def advance_clock(self, by: Duration) -> None:
        """Let wall time pass: wall timers, retries and other alarms fire at their own moments on the way."""
        end = self.now + by
        while (event := self._next_event(end)) is not None:
            at, journal, what = event
            self.now = max(self.now, at)
            self._events.append((journal, what))
            self._run()
        self.now = end
        for journal in self._cores:
            self._events.append((journal, Tick()))
        self._run()

    def crash(self) -> None:
        """Lose all memory, and start again from what the store holds, as after ``kill -9``."""
        self._cores.clear()
        self._events.clear()
        self._later.clear()
        self._by_interval.clear()
        self._parted.clear()
        self._start_all()
        self._events.extend((delivery.journal, replace(delivery)) for delivery in self._unacked.values())
        self._run()

    # What tests read.

    def produced(self, stream: str) -> list[Produced]:
        """The records produced to ``stream`` so far, each once, in the order of their delivery."""
        return list(self._produced.get(stream, ()))

    def values(self, stream: str) -> list[Any]:
        """The values of ``produced``."""
        return [record.value for record in self.produced(stream)]

    def state(self, computation: str, key: str) -> Any:
        """A key's state as the last commit left it; None if it has none."""
        core = self._core_of(computation, key)
        cell = core.state.cells.get(key.encode())
        encoded = cell.encoded if cell is not None else self._row(computation, key)
        return core.state.program.state.decode(encoded) if encoded else None

    def timers(self, computation: str, key: str) -> dict[tuple[str, bool], Timestamp]:
        """A key's timers: (tag, wall) → time."""
        tables = self._core_of(computation, key).state.timers
        return {
            (tag, wall): Timestamp(setting.at)
            for wall, table in tables.items()
            for tag, setting in table.of_key(key.encode()).items()
        }

    def watermark(self, computation: str) -> Timestamp:
        """The computation's low watermark (section 4.5): what its consumers see."""
        return Timestamp(self._watermarks.get(computation, MIN_TIMESTAMP))

    def counts(self, computation: str) -> Mapping[str, int]:
        """Totals: records, duplicates, late, dead_letters."""
        totals = {"records": 0, "duplicates": 0, "late": 0, "dead_letters": 0}
        for journal, core in self._cores.items():
            if journal.startswith(f"{computation}/"):
                for name in totals:
                    totals[name] += getattr(core.state.counts, name)
        return totals

    def stopped(self, computation: str) -> str:
        """Why the computation stands still by its failure policy; empty while it runs."""
        cores = [core for journal, core in self._cores.items() if journal.startswith(f"{computation}/")]
        return next((core.stopped for core in cores if core.stopped), "")

    # The cluster in miniature.

    def _intervals(self) -> list[KeyInterval]:
        cuts = self._cuts
        return [KeyInterval(a, b) for a, b in zip([b"", *cuts], [*cuts, None], strict=True)] if cuts else [ALL_KEYS]

    def _delivery(self, consumer: str, journal: str, stream: str, position: int, *, opaque: bool) -> Delivery:
        """An injected batch to be filled, from ``position`` on."""
        unacked = [one.ids for (to, _), one in self._unacked.items() if to == journal and one.stream == stream]
        pending = [min(ids.positions) for ids in unacked if isinstance(ids, PositionIds)]
        origin = f"injector/{stream}/test"
        ids = OpaqueIds([]) if opaque else PositionIds(origin, min(pending, default=position), [])
        sender = Sender(origin, 1, None, f"injector/{stream}", self._watermarks[f"injector/{stream}"])
        return Delivery(consumer, journal, stream, sender, ids, [], [], [], position, None)

    def _consumers(self, stream: str) -> list[tuple[str, Callable[[Any], bytes]]]:
        if stream not in self._extractors:
            self._extractors[stream] = list(consumers_of(self.topology, stream))
        return self._extractors[stream]

    def _codec(self, stream: str) -> ValueCodec:
        codec = self._plan.streams[stream].codec
        assert codec is not None, "a topology that passed its check has a codec for every stream"
        return codec

    def _senders(self, name: str) -> frozenset[str]:
        inputs = self._plan.computations[name].inputs
        followed = [stream for stream, extractor in inputs.items() if not extractor.feedback]
        producers = {producer for stream in followed for producer in self._plan.streams[stream].producers}
        return frozenset(producers | {f"injector/{stream}" for stream in followed if stream in self._sources})

    def _locate(self, consumer: str, key: bytes) -> str:
        return next(_journal(consumer, keys) for keys in self._intervals() if key in keys)

    def _core_of(self, computation: str, key: str) -> IntervalCore:
        return self._cores[self._locate(computation, key.encode())]

    def _row(self, computation: str, key: str) -> bytes:
        row = _now(self.store.read_states(computation, [key.encode()]))[0]
        return row.blob if row is not None else b""

    def _start_all(self) -> None:
        for name in self._plan.computations:
            for keys in self._intervals():
                self._start(name, keys)
        self._run()

    def _start(self, name: str, keys: KeyInterval) -> None:
        program = compile_computation(self.topology, name)
        outputs = {stream: OutputBinding(encode, self._route(stream)) for stream, encode in program.outputs.items()}
        config = IntervalConfig(
            computation=name,
            journal=_journal(name, keys),
            keys=keys,
            sequencer=next(self._sequencers),
            senders=self._senders(name),
            dead_letters=dead_letter_stream(self.topology.name),
            settings=self._settings,
        )
        core = self._cores[config.journal] = IntervalCore(config, program, outputs, self._locate_or_sink)
        for instruction in core.start():
            self._perform(config.journal, instruction)
        self._events.append((config.journal, SenderWatermarks(dict(self._watermarks))))

    def _locate_or_sink(self, consumer: str, key: bytes) -> str:
        return "" if consumer.startswith("sink:") else self._locate(consumer, key)

    def _route(self, stream: str) -> Any:
        consumers = consumers_of(self.topology, stream)
        sink = ((f"sink:{stream}", b""),)
        return lambda value: (*((name, extract(value)) for name, extract in consumers), *sink)

    def _publish(self, stream: str) -> None:
        """The injector's low watermark: what it declared, held back by what is not ACKed."""
        pending = [min(one.timestamps) for one in self._unacked.values() if one.stream == stream]
        self._broadcast(f"injector/{stream}", min([self._declared[stream], *pending]))

    def _at(self, time: int, journal: str, event: Event) -> None:
        heapq.heappush(self._later, (time, next(self._order), journal, event))

    def _next_event(self, end: int) -> tuple[int, str, Event] | None:
        """What happens next, up to the time ``end``, if only time passes."""
        alarms = [(at, journal) for journal, core in self._cores.items() if (at := core.next_alarm()) is not None]
        first = min(alarms, default=None)
        if self._later and self._later[0][0] <= end and (first is None or self._later[0][0] <= first[0]):
            time, _, journal, event = heapq.heappop(self._later)
            return time, journal, event
        return (*first, Tick()) if first is not None and first[0] <= end else None

    def _broadcast(self, computation: str, watermark: int) -> None:
        if watermark > self._watermarks.get(computation, MIN_TIMESTAMP):
            self._watermarks[computation] = watermark
            for journal in self._cores:
                self._events.append((journal, SenderWatermarks({computation: watermark})))

    def _run(self) -> None:
        while self._events:
            journal, event = self._events.popleft()
            core = self._cores.get(journal)
            if core is None:
                continue
            for instruction in core.handle(event, self.now):
                self._perform(journal, instruction)

    def _perform(self, journal: str, instruction: Any) -> None:
        answer = (
            self._PERFORM[type(instruction)](self, journal, instruction) if type(instruction) in self._PERFORM else None
        )
        if answer is not None:
            self._events.append((journal, answer))

    def _fence(self, journal: str, one: FenceJournal) -> Event:
        head = _now(self.store.fence(one.journal, one.sequencer))
        blobs = _now(self.store.read_parts(one.journal, head.parts))
        entries = _now(self.store.read_entries(one.journal, head.floor + 1, head.commit))
        return Opened(head, dict(zip(head.parts, blobs, strict=True)), entries)

    def _append(self, journal: str, one: AppendEntry) -> Event:
        try:
            _now(self.store.append(one.journal, one.append))
        except SequencerRefusedError as error:
            return Deposed(str(error))
        return Appended(one.append.commit)

    def _send(self, journal: str, one: Send) -> Event | None:
        delivery = one.delivery
        if not delivery.consumer.startswith("sink:"):
            delivery.channel = journal
            self._events.append((delivery.journal, delivery))
            return None
        codec = self._codec(delivery.stream)
        seen = self._seen.setdefault(delivery.stream, set())
        for index, (value, timestamp) in enumerate(zip(delivery.values, delivery.timestamps, strict=True)):
            ids = delivery.ids
            identity = (ids.sequence, ids.positions[index]) if isinstance(ids, PositionIds) else ("", ids.ids[index])
            if identity not in seen:
                seen.add(identity)  # type: ignore[arg-type]
                record = Produced(codec.decode(value), Timestamp(timestamp))
                self._produced.setdefault(delivery.stream, []).append(record)
        return Acknowledged(delivery.token)

    def _acknowledge(self, journal: str, one: Acknowledge) -> None:
        delivery = one.delivery
        acked = one.outcome == DeliveryOutcome.DELIVERY_OUTCOME_ACKED
        if delivery.channel is None:
            if not acked:
                self._refused(journal, delivery.token, one.remaining)
            elif self._parted.get((journal, delivery.token), set()).issuperset(one.remaining):
                self._unacked.pop((journal, delivery.token), None)
                self._parted.pop((journal, delivery.token), None)
                self._publish(delivery.stream)
        elif acked:
            self._events.append((delivery.channel, Acknowledged(delivery.token, one.remaining)))
        else:
            full = one.outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
            refused = {delivery.token: one.remaining} if full and one.remaining else {}
            again = Resend([delivery.token], refused, [delivery.token] if full and not one.remaining else [])
            if not refused:
                self._events.append((delivery.channel, Halted(delivery.token)))
            self._at(self.now + _RESEND_AFTER, delivery.channel, again)

    def _refused(self, journal: str, token: int, indexes: Sequence[int]) -> None:
        """Send injected records again: those that were refused, as a batch of their own if the rest was not."""
        delivery = self._unacked[journal, token]
        if 0 < len(indexes) < len(delivery.keys):
            rest = [index for index in range(len(delivery.keys)) if index not in indexes]
            self._unacked[journal, token] = _part(delivery, rest, token)
            self._parted.setdefault((journal, token), set()).update(indexes)
            delivery = _part(delivery, indexes, next(self._parts))
            self._unacked[journal, delivery.token] = delivery
        self._at(self.now + _RESEND_AFTER, journal, replace(delivery))

    def _report(self, journal: str, one: Report) -> None:
        values = self._by_interval.setdefault(one.computation, {})
        values[one.keys] = one.output
        if len(values) == len(self._intervals()):
            self._broadcast(one.computation, min(values.values()))

    def _flush(self, journal: str, one: FlushStates) -> Event:
        _now(self.store.write_states(one.computation, one.journal, one.sequencer, one.rows))
        return StatesFlushed(one.number)

    def _write_parts(self, journal: str, one: WriteParts) -> Event:
        for part, blob in one.parts.items():
            _now(self.store.write_part(one.journal, part, blob))
        return PartsWritten(one.number)

    def _run_hook(self, journal: str, one: AsyncHook) -> Event:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(one.coroutine)
        except Exception as error:
            return HookFinished(one.hook, error)
        return HookFinished(one.hook, None)

    def _hook_failed(self, journal: str, one: HookFailed) -> None:
        self.failures.append(one.message)

    def close(self) -> None:
        """Release the event loop that asynchronous hooks ran on."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    _PERFORM: Final[dict[type, Any]] = {
        FenceJournal: _fence,
        AcceptSequencer: lambda self, journal, one: Accepted(MIN_TIMESTAMP),
        AppendEntry: _append,
        Send: _send,
        Acknowledge: _acknowledge,
        Report: _report,
        FlushStates: _flush,
        WriteParts: _write_parts,
        ReadStates: lambda self, journal, one: StatesRead(
            one.keys, _now(self.store.read_states(one.computation, one.keys))
        ),
        ReadSegments: lambda self, journal, one: PartsRead(
            dict(zip(one.parts, _now(self.store.read_parts(one.journal, one.parts)), strict=True))
        ),
        CheckSequence: lambda self, journal, one: SequenceChecked(one.sequence, True),
        AsyncHook: _run_hook,
        HookFailed: _hook_failed,
    }


def _journal(computation: str, keys: KeyInterval) -> str:
    return f"{computation}/{keys.start.decode('utf-8', 'backslashreplace')}"
