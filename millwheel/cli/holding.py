"""Explains what holds a low watermark back: follows the holds upstream to the cause (section 4.5; G8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import grpc

from millwheel.cli.keyless import held_by_key
from millwheel.cli.records import state_name
from millwheel.client.control import ControlClient
from millwheel.client.shards import ShardedWatermarks
from millwheel.model.catalog import ACTIVE_STATES
from millwheel.model.interval_table import interval_from_proto
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, format_duration, format_timestamp
from millwheel.rpc.channel import open_channel
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.hook_failures import blocks, computation_text, names_remedy
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import watermark_pb2 as watermarks
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceStub
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import INJECTOR_PREFIX

__all__ = ["Cause", "HoldStep", "Names", "Watermark", "explain_chain", "held_by", "read_watermark"]

_OWNER: Final = "its owner"
_TOPOLOGY: Final = "its topology is"
_MEND: Final = "mend the computation's code, or what it is sent, then `millwheel topology update`"
_MAX_STEPS: Final = 100
"""The maximum number of steps in one chain. A longer chain counts as a cycle."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of computations by incarnation id, for all topologies."""

    computations: dict[str, tuple[str, str]]
    """Topology and computation name by incarnation id."""

    @classmethod
    def of(cls, records: Iterable[catalog.TopologyRecord]) -> Names:
        """Build the names from the result of ``list_topologies``."""
        found = {}
        for record in records:
            for name, incarnation in record.incarnations.items():
                found[incarnation] = (record.spec.name, name)
        return cls(found)

    def in_words(self, subject: str) -> str:
        """Return ``subject`` with each incarnation id replaced by ``topology/computation``."""
        for incarnation, place in self.computations.items():
            subject = subject.replace(repr(incarnation), "/".join(place))
        return subject

    def show(self, sender: str) -> str:
        """Return the sender's name for people: ``topology/computation``, or ``source stream``."""
        if sender.startswith(INJECTOR_PREFIX):
            return f"source {sender.removeprefix(INJECTOR_PREFIX)}"
        return "/".join(self.computations.get(sender, ("", sender))).removeprefix("/")


@dataclass(frozen=True, slots=True)
class Watermark:
    """The broadcast low watermark of a computation or source.

    ``row`` is the first report with the smallest value, or None if the authority has none. ``holding`` is the number
    of intervals or processes that hold the value.
    """

    sender: str
    value: int = MIN_TIMESTAMP
    row: watermarks.IntervalWatermark | None = None
    holding: int = 0


@dataclass(frozen=True, slots=True)
class HoldStep:
    """One step of the chain upstream: ``name`` waits for the next step."""

    name: str
    value: int
    text: str


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause at the end of the chain.

    ``kind`` is a constant for programs: input, record, production, timer, state, silent, injector, key, unknown or
    none.
    """

    kind: str
    name: str
    text: str
    remedy: str = ""
    interval: str = ""
    process: str = ""
    subject: str = ""
    chain: list[HoldStep] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Further sentences about the cause: which hook raises which error, and since when."""
    failing: list[cluster_pb2.ComputationFailures] = field(default_factory=list)
    """Computations of the chain whose hooks raise, even if the failures do not hold the watermark now."""


async def read_watermark(client: ShardedWatermarks, sender: str) -> Watermark:
    """Return the authority's value for a sender: minus infinity without a row if the authority does not know it."""
    try:
        answer = await client.explain(sender, 1)
    except RequestError as error:
        if error.code is not FailureCode.NOT_FOUND:
            raise
        return Watermark(sender)
    return Watermark(sender, answer.watermark_us, answer.holding[0] if answer.holding else None, answer.holding_count)


def kind_name(kind: HoldKind.ValueType) -> str:
    """Return the kind's name in lower case: ``input``, ``record``, …"""
    return HoldKind.Name(kind).removeprefix("HOLD_KIND_").lower()


def held_by(found: Watermark, names: Names) -> str:
    """Return the text of a table cell: what holds a watermark."""
    row = found.row
    if found.value == MAX_TIMESTAMP:
        return "nothing: it has ended"
    if row is None:
        return "no owner has reported" if found.value == MIN_TIMESTAMP else "nothing"
    if row.process:
        return f"injector process {row.process}" + (" (idle)" if row.idle else "")
    subject = row.hold.subject
    if row.hold.kind == HoldKind.HOLD_KIND_INPUT:
        return f"input: {', '.join(map(names.show, _senders(row)))}"
    return kind_name(row.hold.kind) + (f": {names.in_words(subject)}" if subject else "")


def _senders(row: watermarks.IntervalWatermark) -> list[str]:
    return [one for one in row.hold.subject.split(", ") if one]


async def explain_chain(
    start: str, control_client: ControlClient, client: ShardedWatermarks, names: Names
) -> tuple[Watermark, Cause]:
    """Follow the holds of ``start`` upstream to a sender that waits for no other sender.

    Returns:
        The watermark of ``start``, and the cause at the end of the chain.
    """
    first = found = await read_watermark(client, start)
    chain: list[HoldStep] = []
    seen = {start}
    while len(chain) < _MAX_STEPS:
        row = found.row
        follows = row is not None and not row.process and row.hold.kind == HoldKind.HOLD_KIND_INPUT
        upstream = [one for one in _senders(row) if one not in seen] if row is not None and follows else []
        if not upstream or found.value == MAX_TIMESTAMP:
            break
        name = names.show(found.sender)
        chain.append(HoldStep(name, found.value, f"{name} waits for {names.show(upstream[0])}"))
        seen.add(upstream[0])
        found = await read_watermark(client, upstream[0])
    cause = await _cause(found, control_client, names)
    failing = await _failing(seen, control_client, names)
    return first, replace(cause, chain=chain, failing=failing)


async def _failing(
    senders: Iterable[str], client: ControlClient, names: Names
) -> list[cluster_pb2.ComputationFailures]:
    """Return the hook failures of the computations among ``senders``, and of the consumers of the sources."""
    found: dict[tuple[str, str], cluster_pb2.ComputationFailures] = {}
    for sender in sorted(senders):
        topology, computation = names.computations.get(sender, ("", ""))
        stream = sender.removeprefix(INJECTOR_PREFIX) if sender.startswith(INJECTOR_PREFIX) else ""
        if topology or stream:
            for one in await client.hook_failures(topology, computation, stream):
                found[one.topology, one.computation] = one
    return [found[name] for name in sorted(found)]


async def _cause(found: Watermark, client: ControlClient, names: Names) -> Cause:
    name, row = names.show(found.sender), found.row
    if found.value == MAX_TIMESTAMP:
        return Cause("none", name, f"nothing holds {name}: all of its input has ended")
    if found.sender.startswith(INJECTOR_PREFIX):
        stream = found.sender.removeprefix(INJECTOR_PREFIX)
        cause = _and_unkeyed(_injector(found, name), found, await client.hook_failures(stream=stream))
        return _and_paused(cause, await _paused_readers(stream, client))
    owner = await _ask_owner(found, client, names)
    if row is None or row.hold.kind in (HoldKind.HOLD_KIND_SILENT, HoldKind.HOLD_KIND_UNSPECIFIED):
        return _silent(found, name, owner)
    interval = str(interval_from_proto(row.keys))
    # The row shows the hold at the last change of the watermark. The owner's status shows the hold now.
    hold = owner.hold if isinstance(owner, inspection.GetIntervalStatusResponse) else row.hold
    subject, kind = hold.subject, kind_name(hold.kind)
    shown = names.in_words(subject)
    text = f"{name}, interval {interval}: {_WORDS[hold.kind]}" + (f": {shown}" if shown else "")
    cause = Cause(kind, name, text, "", interval, "", shown)
    if isinstance(owner, inspection.GetIntervalStatusResponse) and blocks(owner.failures, owner.stopped):
        cause.notes.append(computation_text(name, owner.failures, owner.stopped, wall_now()))
        if not names_remedy(owner.failures, owner.stopped):
            cause = replace(cause, remedy=_MEND)
    if isinstance(owner, str) and owner.startswith(_TOPOLOGY):
        return replace(cause, text=f"{text}; {owner}")
    if hold.kind == HoldKind.HOLD_KIND_PRODUCTION:
        cause = await _and_failing(cause, subject, client, names)
        return _and_paused(cause, await _paused_consumer(subject, client))
    return cause


async def _and_failing(cause: Cause, subject: str, client: ControlClient, names: Names) -> Cause:
    """Add to the cause the hook failures of the consumer that has not ACKed the production."""
    consumers = [place for one, place in names.computations.items() if f"for consumer {one!r}" in subject]
    failures = [one for place in consumers for one in await client.hook_failures(*place)]
    # A production already has its key. So a key function that raises cannot delay the production's ACK.
    found = [one for one in failures if blocks(one.failures, one.stopped)]
    open_ended = [one for one in found if not names_remedy(one.failures, one.stopped)]
    remedy = _MEND if open_ended else cause.remedy
    return replace(cause, notes=[*cause.notes, *(one.text for one in found)], remedy=remedy)


async def _paused_readers(stream: str, client: ControlClient) -> list[str]:
    """Return the paused topologies that consume an injected stream. A paused topology does not ACK its records."""
    return [
        record.spec.name
        for record in await client.list_topologies()
        if record.state == catalog.TOPOLOGY_STATE_PAUSED
        and any(edge.stream == stream for one in record.spec.computations for edge in one.inputs)
    ]


async def _paused_consumer(subject: str, client: ControlClient) -> list[str]:
    """Return the paused topology of the consumer that has not ACKed a production. ``subject`` names the consumer."""
    return [
        record.spec.name
        for record in await client.list_topologies()
        if record.state == catalog.TOPOLOGY_STATE_PAUSED
        and any(f"for consumer {incarnation!r}" in subject for incarnation in record.incarnations.values())
    ]


def _and_paused(cause: Cause, paused: list[str]) -> Cause:
    """Add to the cause the paused topologies that explain it."""
    if not paused:
        return cause
    names, verb = ", ".join(map(repr, paused)), "is" if len(paused) == 1 else "are"
    remedy = f"`millwheel topology resume {paused[0]}` lets it go on"
    return replace(cause, text=f"{cause.text}; what is sent to {names} waits, which {verb} paused", remedy=remedy)


_WORDS: Final = {
    HoldKind.HOLD_KIND_INPUT: "it follows its input, which moves on, or has no sender that is known",
    HoldKind.HOLD_KIND_RECORD: "a record that it received is not committed",
    HoldKind.HOLD_KIND_PRODUCTION: "a production is not ACKed by its consumer",
    HoldKind.HOLD_KIND_TIMER: "a timer that is not due holds its output",
    HoldKind.HOLD_KIND_STATE: "a hold on state, or of a timer",
    HoldKind.HOLD_KIND_INJECTOR: "an injector",
}


def _injector(found: Watermark, name: str) -> Cause:
    row = found.row
    if row is None:
        return Cause(
            "injector", name, f"{name}: no injector process has announced itself", "start one, or finish the stream"
        )
    process = row.process
    who = f"{name}: injector process {process!r}"
    end = f"or end it by `millwheel injector finish {found.sender.removeprefix(INJECTOR_PREFIX)} {process}`"
    silence = row.silence_us if row.HasField("silence_us") else None
    if row.sequencer == 0:
        return Cause(
            "injector", name, f"{who} is expected, and has never announced itself", f"start it, {end}", "", process
        )
    if row.idle:
        return Cause("injector", name, f"{who} is idle, and no other is active", f"send something, {end}", "", process)
    at = format_timestamp(Timestamp(row.watermark_us))
    if row.hold.kind == HoldKind.HOLD_KIND_INJECTOR:
        since = "since the server started" if silence is None else f"for {format_duration(Duration(silence))}"
        return Cause(
            "injector",
            name,
            f"{who} has reported nothing {since}; its low watermark is {at}",
            f"see whether it runs; start it again under the same name, {end}",
            "",
            process,
        )
    return Cause("injector", name, f"{who} last published {_published(row)}: it promises no more yet", "", "", process)


def _published(row: watermarks.IntervalWatermark) -> str:
    """Return an injector process's last low watermark, and the time since that report."""
    ago = f", {format_duration(Duration(row.silence_us))} ago" if row.HasField("silence_us") else ""
    return f"{format_timestamp(Timestamp(row.watermark_us))}{ago}"


def _and_unkeyed(cause: Cause, found: Watermark, failing: list[cluster_pb2.ComputationFailures]) -> Cause:
    """Return the cause, or the failing key function if records that wait for their keys hold the watermark."""
    held = None if found.row is None else held_by_key(found.row, failing)
    if found.row is None or held is None:
        return cause
    one, key = held
    place = f"{one.topology}/{one.computation}"
    text = (
        f"{cause.name}: the {key.extractor} for computation {place} raises; records wait for their keys in injector "
        f"process {found.row.process!r}, which last published {_published(found.row)}"
    )
    return replace(cause, kind="key", text=text, notes=[one.text], subject=place)


def _silent(found: Watermark, name: str, owner: inspection.GetIntervalStatusResponse | str) -> Cause:
    where = f", interval {interval_from_proto(found.row.keys)}" if found.row is not None else ""
    interval = str(interval_from_proto(found.row.keys)) if found.row is not None else ""
    if isinstance(owner, str):
        remedy = "look at its worker's log" if owner.startswith(_OWNER) else ""
        return Cause("silent", name, f"{name}{where}: {owner}", remedy, interval)
    text = f"{name}{where}: its owner runs, and has not reported since it took over"
    return Cause("silent", name, text, "ask again in a moment", interval)


async def _ask_owner(
    found: Watermark, client: ControlClient, names: Names
) -> inspection.GetIntervalStatusResponse | str:
    """Return the status of the holding interval from its owner, or a text that says why there is no status."""
    topology, _ = names.computations.get(found.sender, ("", ""))
    if not topology:
        return "no topology that is known has it"
    answer = await client.get_topology(topology)
    if answer.topology.state not in ACTIVE_STATES:
        how = f"{_TOPOLOGY} {state_name(answer.topology.state)}"
        paused = answer.topology.state == catalog.TOPOLOGY_STATE_PAUSED
        return f"{how}; `millwheel topology resume {topology}` lets it go on" if paused else how
    interval = interval_at(answer, found)
    if interval is None or not interval.owner.address:
        return "no worker owns it"
    try:
        async with open_channel(interval.owner.address) as channel:
            request = inspection.GetIntervalStatusRequest(journal=interval.journal)
            return await InspectionServiceStub(channel).GetIntervalStatus(request, timeout=5.0)
    except grpc.aio.AioRpcError as error:
        return f"{_OWNER}, worker {interval.owner.worker_id!r} at {interval.owner.address}, says: {error.details()}"


def interval_at(found: control.GetTopologyResponse, watermark: Watermark) -> catalog.IntervalRecord | None:
    """Return the interval whose row holds a watermark. Without a row, return the computation's first interval."""
    name = next((name for name, one in found.topology.incarnations.items() if one == watermark.sender), "")
    for record in found.interval_maps:
        if record.computation == name and record.topology:
            for interval in record.intervals:
                if watermark.row is None or interval.keys == watermark.row.keys:
                    return interval
    return None
