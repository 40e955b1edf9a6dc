"""A computation in the form that a worker runs: its hooks, and the codecs of its inputs, outputs and state."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millwheel.model.stream_names import full_name, local_name
from millwheel.rpc.column_keys import KeySource
from millwheel.sdk.batches.computation import BatchComputation, BatchProgram
from millwheel.sdk.batches.records import RecordForm
from millwheel.sdk.codecs import StateCodec, ValueCodec, ValueFormat, codec_for
from millwheel.sdk.column_fields import column_fields
from millwheel.sdk.column_plan import ColumnPlan, column_plan, column_reading, why_hooks
from millwheel.sdk.column_reading import ColumnReading
from millwheel.sdk.columns import ColumnWindows
from millwheel.sdk.computation import Computation, overrides_timer_hook
from millwheel.sdk.context import Context
from millwheel.sdk.declarations import UNKNOWN, ComputationDeclaration, DerivedStream, Reading, as_it_is
from millwheel.sdk.errors import UsageError, did_you_mean
from millwheel.sdk.growing.codec import any_state_codec
from millwheel.sdk.growing.fields import is_growing
from millwheel.sdk.keys import KeyExtractor, encode_key, key_source
from millwheel.sdk.options import ComputationOptions
from millwheel.sdk.plan import Plan, PlannedStream
from millwheel.sdk.reading import hook_name, one_reading, reading_hook, values_read
from millwheel.sdk.records import EncodeAll, Record, Timer
from millwheel.sdk.topology import TopologyGraph

__all__ = ["CompiledComputation", "compile_computation", "consumers_of", "key_columns_of"]


RecordHook = Callable[[Context[Any], Record[Any]], Awaitable[None] | None]
TimerHook = Callable[[Context[Any], Timer], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class CompiledComputation:
    """Everything that is needed to run a computation, prepared in advance.

    It has many attributes, because the runner reads each of them by itself for every record.
    """

    name: str
    computation: Computation[Any, Any]
    inputs: dict[str, Callable[[bytes], Any]]
    """By input stream: the decoder of its values, which raises ValueDecodeError."""
    input_names: dict[str, str]
    """By input stream: the name by which the topology's code knows it."""
    hook_names: dict[str, str]
    """By input stream: the name by which the hooks know its records."""
    one_reading: dict[str, Callable[[bytes], Any] | None]
    """By input stream: the function from an encoded value to what the hook gets, or to DROPPED.

    None: the hook decodes the value itself.
    """
    process_record: dict[str, RecordHook]
    """By input stream: the hook for its records."""
    process_timer: TimerHook
    never_late: frozenset[str]
    """The input streams whose late records are processed like others. ``late=`` does not apply to them."""
    diverted: dict[str, Callable[[Any], list[Any]]]
    """By input stream: the values that a late one of its records becomes in the stream that it is diverted to."""
    outputs: dict[str, Callable[[Any], bytes]]
    """By output stream as the hooks call it, dead letters included: the encoder of its values.

    The encoder raises ValueEncodeError.
    """
    derived: dict[str, list[DerivedStream]]
    """By output stream: those that are made from its records."""
    state: StateCodec
    options: ComputationOptions
    record_is_async: bool
    timer_is_async: bool
    handles_timers: bool
    """Whether ``process_timer`` is overridden. Without it, every timer would fail, so none can be set."""
    growing: bool
    """Whether the state is a growing one."""
    begins_with: bytes | None = None
    """The key whose timer is due when the computation begins, which has no inputs. None: it waits for records."""
    feeds: bool = False
    """Whether it reads records from outside, by timers: see ``Computation._feeds``."""
    writes: bool = False
    """Whether no hook begins before the commits of former ones are durable: see ``Computation._writes``."""
    collects_for: int = 0
    """For how many microseconds a commit may wait for more records: see ``Computation._collects_for``."""
    windows: ColumnWindows | None = None
    """How windows are kept by columns. None: each pane is in the state of its key, or it has no windows."""
    columns: ColumnPlan = field(default_factory=lambda: ColumnPlan("", {}))
    """What of its work may be done by columns, with the full names of its input streams."""
    column_readings: Mapping[str, ColumnReading] = field(default_factory=dict)
    """By input stream: how its records are read from columns, by windows or a sink. A stream without: from values."""
    encode_all: Mapping[str, EncodeAll] = field(default_factory=dict)
    """By output stream of a source: the encoder of many values, each as its own encoder does."""
    tables: frozenset[str] = frozenset()
    """The output streams of a source whose records may be columns: their values are maps in MessagePack."""
    remedy: str = ""
    """What helps if its hooks fail. Empty: what helps with all user code. See ``Computation._remedy``."""
    topology: str = ""
    """The name of the topology that it runs in. A fork has another one than the code says."""
    batches: BatchProgram | None = None
    """How its hook gets many records. None: it gets one by one."""

    @property
    def record_hook(self) -> str:
        """The name of the hook for records."""
        return "process_record" if self.batches is None else "process_batch"

    @property
    def of_source(self) -> bool:
        """Whether it finds or reads the splits of a source."""
        return self.feeds or self.begins_with is not None


def compile_computation(
    topology: TopologyGraph, name: str, *, verify: bool = True, full_names: bool = False
) -> CompiledComputation:
    """Compile one computation.

    Args:
        topology: The topology that has the computation.
        name: The computation's name.
        verify: Whether the encodings of productions and changed states are decoded as a check. An encoding that cannot
            be decoded again is then a ValueEncodeError of the hook that made the value.
        full_names: Whether deliveries have the full names of the input streams, as in a cluster.

    Raises:
        TopologyError: The topology has mistakes.
        UsageError: The topology has no computation of that name.
    """
    plan = topology.plan()
    declared = plan.computations.get(name)
    if declared is None or declared.computation is None:
        hint = did_you_mean(name, list(plan.computations))
        raise UsageError(f"topology {topology.name!r} has no computation {name!r}{hint}")
    computation, growing = declared.computation, is_growing(declared.state_type)
    state = any_state_codec(
        declared.state_type, declared.where, computation.state_codec, computation.state_version, computation.migrate
    )
    if not verify:
        state = replace(state, check=None)
    readings = declared.readings
    names = {full_name(topology.name, stream) if full_names else stream: stream for stream in declared.inputs}
    windows = _by_columns(name, computation, declared.options, readings, plan.streams, verify)
    by_many = isinstance(computation, BatchComputation)
    batches = _batches(plan, declared, names) if by_many else None
    columns = column_plan(declared, list(names.values()), plan)
    return CompiledComputation(
        name=name,
        computation=computation,
        inputs={stream: _codec(plan.streams[called]).decode for stream, called in names.items()},
        input_names=names,
        hook_names={stream: hook_name(called, readings.get(called, ())) for stream, called in names.items()},
        one_reading={
            stream: one_reading(_codec(plan.streams[called]).decode, readings.get(called, ()))
            for stream, called in names.items()
        },
        process_record={
            stream: reading_hook(
                batches.process_record if batches else computation.process_record, readings.get(called, ())
            )
            for stream, called in names.items()
        },
        process_timer=computation.process_timer,
        never_late=frozenset(stream for stream, called in names.items() if called in declared.never_late),
        diverted={stream: values_read(readings.get(called, ())) for stream, called in names.items()},
        outputs={
            stream.name: _encoder(name, stream, verify) for stream in plan.streams.values() if name in stream.producers
        },
        derived={stream: plan.derived[stream] for stream in declared.outputs if stream in plan.derived},
        state=state,
        options=declared.options,
        record_is_async=inspect.iscoroutinefunction(computation.process_record),
        timer_is_async=inspect.iscoroutinefunction(computation.process_timer),
        handles_timers=overrides_timer_hook(computation),
        growing=growing,
        begins_with=None if computation._begins_with is None else encode_key(computation._begins_with),
        feeds=computation._feeds,
        writes=computation._writes,
        collects_for=computation._collects_for,
        windows=windows,
        columns=ColumnPlan(
            columns.by_hooks,
            {stream: columns.by_values[called] for stream, called in names.items() if called in columns.by_values},
        ),
        column_readings={
            stream: found
            for stream, called in names.items()
            if (windows is not None or (_takes_columns(computation) and len(readings.get(called, ())) <= 1))
            and isinstance(found := column_reading(plan.streams[called], readings.get(called, ())), ColumnReading)
        },
        encode_all={
            stream: _codec_of(name, plan.streams[stream]).verify_all
            for stream in declared.outputs
            if computation._feeds and verify
        },
        tables=frozenset(
            stream
            for stream in declared.outputs
            if computation._feeds and _codec_of(name, plan.streams[stream]).format is ValueFormat.MSGPACK
        ),
        remedy=computation._remedy,
        topology=topology.name,
        batches=batches,
    )


def _takes_columns(computation: Computation[Any, Any]) -> bool:
    return isinstance(computation, BatchComputation) and computation._takes_columns


def _batches(plan: Plan, declared: ComputationDeclaration, names: Mapping[str, str]) -> BatchProgram:
    """How the hook gets many records. ``names``: by input stream, the name by which the topology's code knows it."""
    called: dict[str, RecordForm] = {}
    forms: dict[str, RecordForm] = {}
    for stream, name in names.items():
        planned, readings = plan.streams[name], declared.readings.get(name, ())
        own = planned.declaration.codec if planned.declaration is not None else None
        plain = _codec(planned).format is ValueFormat.MSGPACK
        as_they_are = all(one.convert is as_it_is for one in readings)
        for reading in readings if not as_they_are else ():
            # All readings of a stream may have one name. What one of them drops only, another one may change.
            same = plain and reading.drops_only and len(readings) == 1
            kind = Any if reading.type is UNKNOWN else reading.type
            called[reading.called] = RecordForm(reading.called, kind, same_encoding=same)
        if as_they_are:
            fields = column_fields(planned.type) if plain else None
            for known in [one.called for one in readings] or [name]:
                decode = _codec(planned).decode
                called[known] = RecordForm(known, planned.type, own, decode, fields, same_encoding=plain)
        if len(readings) <= 1:
            forms[stream] = called[hook_name(name, readings)]
    assert isinstance(declared.computation, BatchComputation)
    return BatchProgram(
        declared.computation, called, forms, {name: plan.streams[name].type for name in declared.outputs}
    )


def _by_columns(
    name: str,
    computation: Computation[Any, Any],
    options: ComputationOptions,
    readings: Mapping[str, Sequence[Reading]],
    streams: Mapping[str, PlannedStream],
    verify: bool,
) -> ColumnWindows | None:
    """How windows are kept by columns. A record that is read in several ways takes the way of hooks.

    ``verify``: whether values are checked when they are encoded.
    """
    if why_hooks(computation, options, readings):
        return None
    windows = computation._by_columns()
    if windows is None:
        return None
    stream = streams[windows.output]
    codec = _codec_of(name, stream)
    plain = codec.format is ValueFormat.MSGPACK and stream.type == windows.result_type
    windows = windows if plain else replace(windows, encode_columns=None, pack_columns=None)
    return replace(windows, encode=codec.verify_all if verify else None)


def consumers_of(topology: TopologyGraph, stream: str) -> list[tuple[str, Callable[[Any], bytes]]]:
    """The computations of ``topology`` that consume ``stream``, sorted by name, with their compiled key extractors.

    ``stream`` may be its full name, or the name by which the topology's code calls it. An extractor whose function may
    change its argument gets a copy. So no consumer's function changes what another one gets.
    """
    plan: Plan = topology.plan()
    stream = local_name(topology.name, stream)
    if stream not in plan.streams:
        return []
    planned = plan.streams[stream]
    extractors = {name: plan.computations[name].inputs[stream] for name in sorted(planned.consumers)}
    return [(name, _bind(extractor, planned, name)) for name, extractor in extractors.items()]


def key_columns_of(topology: TopologyGraph, stream: str) -> dict[str, KeySource] | None:
    """The computations of ``topology`` that consume ``stream``, each with the column of its keys, or with its one key.

    None: one of them finds its keys in values alone. See ``consumers_of``.
    """
    planned = topology.plan().streams[stream]
    found: dict[str, KeySource] = {}
    for name in sorted(planned.consumers):
        extractor = topology.plan().computations[name].inputs[stream]
        key = key_source(extractor.to_proto(planned.type))
        if key is None:
            return None
        found[name] = key
    return found


def _bind(extractor: KeyExtractor, stream: PlannedStream, consumer: str) -> Callable[[Any], bytes]:
    extract = extractor.bind(stream.type, stream.name, consumer)
    if not extractor.needs_copy:
        return extract
    copy = _codec(stream).copy
    return lambda value: extract(copy(value))


def _codec(stream: PlannedStream) -> ValueCodec:
    # A plan without problems has a codec for every stream.
    assert stream.codec is not None
    return stream.codec


def _encoder(computation: str, stream: PlannedStream, verify: bool) -> Callable[[Any], bytes]:
    codec = _codec_of(computation, stream)
    return codec.verify if verify else codec.checked


def _codec_of(computation: str, stream: PlannedStream) -> ValueCodec:
    """The codec of a computation's output. Its errors name both."""
    own = stream.declaration.codec if stream.declaration is not None else None
    return codec_for(stream.type, f"computation {computation!r}, {stream.where}", own)
