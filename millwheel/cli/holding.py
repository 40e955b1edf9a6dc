"""What holds low watermarks back, followed upstream to the root and put into words (section 4.5; G8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import grpc

from millwheel.cli.hooks import wall_now
from millwheel.cli.records import state_name
from millwheel.client.control import ControlClient
from millwheel.client.shards import ShardedWatermarks
from millwheel.core.catalog import ACTIVE_STATES
from millwheel.core.interval_table import interval_from_proto
from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, format_duration, format_timestamp
from millwheel.rpc.channel import open_channel
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

__all__ = ["Cause", "Link", "Names", "Watermark", "explain_chain", "held_by", "read_watermark"]

_OWNER: Final = "its owner"
_TOPOLOGY: Final = "its topology is"
_MEND: Final = "mend the computation's code, or what it is sent, then `millwheel topology update`"
_LONGEST: Final = 100
"""Links of one chain; a longer one goes in a circle."""


@dataclass(frozen=True, slots=True)
class Names:
    """Whose incarnation is whose, over all topologies."""

    computations: dict[str, tuple[str, str]]
    """Topology and computation by incarnation."""

    @classmethod
    def of(cls, records: Iterable[catalog.TopologyRecord]) -> Names:
        """From what ``list_topologies`` answers."""
        found = {}
        for record in records:
            for name, incarnation in record.incarnations.items():
                found[incarnation] = (record.spec.name, name)
        return cls(found)

    def in_words(self, subject: str) -> str:
        """What holds a watermark, with computations by their names."""
        for incarnation, place in self.computations.items():
            subject = subject.replace(repr(incarnation), "/".join(place))
        return subject

    def show(self, sender: str) -> str:
        """A sender as people know it: ``topology/computation``, or ``source stream``."""
        if sender.startswith(INJECTOR_PREFIX):
            return f"source {sender.removeprefix(INJECTOR_PREFIX)}"
        return "/".join(self.computations.get(sender, ("", sender))).removeprefix("/")


@dataclass(frozen=True, slots=True)
class Watermark:
    """A computation's or source's broadcast value, and the row that holds it most, if anything is known of it."""

    sender: str
    value: int = MIN_TIMESTAMP
    row: watermarks.IntervalWatermark | None = None
    holding: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """One step upstream: ``name`` waits for what follows."""

    name: str
    value: int
    text: str


@dataclass(frozen=True, slots=True)
class Cause:
    """Where the chain ends. ``kind`` is a constant for programs: input, record, production, timer, state, silent,
    injector, unknown or none."""

    kind: str
    name: str
    text: str
    remedy: str = ""
    interval: str = ""
    process: str = ""
    subject: str = ""
    chain: list[Link] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences that say more of the cause: which hook raises what, since when."""
    failing: list[cluster_pb2.ComputationFailures] = field(default_factory=list)
    """Computations on the way whose hooks raise, whether or not the watermark is held by that now."""


async def read_watermark(client: ShardedWatermarks, sender: str) -> Watermark:
    """What the authority says of a sender; a value of minus infinity without a row if it knows nothing of it."""
    try:
        told = await client.explain(sender, 1)
    except RequestError as error:
        if error.code is not FailureCode.NOT_FOUND:
            raise
        return Watermark(sender)
    return Watermark(sender, told.watermark_us, told.holding[0] if told.holding else None, told.holding_count)


def kind_name(kind: HoldKind.ValueType) -> str:
    """``input``, ``record``, …"""
    return HoldKind.Name(kind).removeprefix("HOLD_KIND_").lower()


def held_by(found: Watermark, names: Names) -> str:
    """One cell: what a watermark is held by."""
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
    """Follow what holds ``start`` upstream, to what waits for nobody else."""
    first = found = await read_watermark(client, start)
    chain: list[Link] = []
    seen = {start}
    while len(chain) < _LONGEST:
        row = found.row
        follows = row is not None and not row.process and row.hold.kind == HoldKind.HOLD_KIND_INPUT
        upstream = [one for one in _senders(row) if one not in seen] if row is not None and follows else []
        if not upstream or found.value == MAX_TIMESTAMP:
            break
        name = names.show(found.sender)
        chain.append(Link(name, found.value, f"{name} waits for {names.show(upstream[0])}"))
        seen.add(upstream[0])
        found = await read_watermark(client, upstream[0])
    cause = await _cause(found, control_client, names)
    failing = await _failing(seen, control_client, names)
    return first, replace(cause, chain=chain, failing=failing)


async def _failing(
    senders: Iterable[str], client: ControlClient, names: Names
) -> list[cluster_pb2.ComputationFailures]:
    """What the hooks of these computations raise, and those of the consumers of these sources."""
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
        return _and_paused(_injector(found, name), await _paused_readers(found.sender, client))
    owner = await _ask_owner(found, client, names)
    if row is None or row.hold.kind in (HoldKind.HOLD_KIND_SILENT, HoldKind.HOLD_KIND_UNSPECIFIED):
        return _silent(found, name, owner)
    interval = str(interval_from_proto(row.keys))
    # The report was made when the watermark last changed: the owner says how it is now.
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
    """The cause, with what the consumer raises that a production waits for."""
    consumers = [place for one, place in names.computations.items() if f"for consumer {one!r}" in subject]
    found = [one for place in consumers for one in await client.hook_failures(*place) if one.blocks]
    open_ended = [one for one in found if not names_remedy(one.failures, one.stopped)]
    remedy = _MEND if open_ended else cause.remedy
    return replace(cause, notes=[*cause.notes, *(one.text for one in found)], remedy=remedy)


async def _paused_readers(sender: str, client: ControlClient) -> list[str]:
    """The paused topologies that take the records of an injected stream: these are not ACKed meanwhile."""
    stream = sender.removeprefix(INJECTOR_PREFIX)
    return [
        record.spec.name
        for record in await client.list_topologies()
        if record.state == catalog.TOPOLOGY_STATE_PAUSED
        and any(edge.stream == stream for one in record.spec.computations for edge in one.inputs)
    ]


async def _paused_consumer(subject: str, client: ControlClient) -> list[str]:
    """The paused topology of the consumer that a production waits for, as its report names it."""
    return [
        record.spec.name
        for record in await client.list_topologies()
        if record.state == catalog.TOPOLOGY_STATE_PAUSED
        and any(f"for consumer {incarnation!r}" in subject for incarnation in record.incarnations.values())
    ]


def _and_paused(cause: Cause, paused: list[str]) -> Cause:
    """The cause, with the paused topologies that are the reason."""
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
    ago = "" if silence is None else f", {format_duration(Duration(silence))} ago"
    return Cause("injector", name, f"{who} last published {at}{ago}: it promises no more yet", "", "", process)


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
    """What the owner of the holding interval says of it, or why nobody does."""
    topology, _ = names.computations.get(found.sender, ("", ""))
    if not topology:
        return "no topology that is known has it"
    told = await client.get_topology(topology)
    if told.topology.state not in ACTIVE_STATES:
        how = f"{_TOPOLOGY} {state_name(told.topology.state)}"
        paused = told.topology.state == catalog.TOPOLOGY_STATE_PAUSED
        return f"{how}; `millwheel topology resume {topology}` lets it go on" if paused else how
    interval = interval_at(told, found)
    if interval is None or not interval.owner.address:
        return "no worker owns it"
    try:
        async with open_channel(interval.owner.address) as channel:
            request = inspection.GetIntervalStatusRequest(journal=interval.journal)
            return await InspectionServiceStub(channel).GetIntervalStatus(request, timeout=5.0)
    except grpc.aio.AioRpcError as error:
        return f"{_OWNER}, worker {interval.owner.worker_id!r} at {interval.owner.address}, says: {error.details()}"


def interval_at(found: control.GetTopologyResponse, watermark: Watermark) -> catalog.IntervalRecord | None:
    """The interval whose row holds a watermark; the first where there is no row."""
    name = next((name for name, one in found.topology.incarnations.items() if one == watermark.sender), "")
    for record in found.interval_maps:
        if record.computation == name and record.topology:
            for interval in record.intervals:
                if watermark.row is None or interval.keys == watermark.row.keys:
                    return interval
    return None
