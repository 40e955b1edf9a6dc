"""Watermark reports and broadcasts between owners, injectors and the authority, and their wire form (section 7.2).

Pure: this module opens no connection. Watermarks are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from millwheel.errors import Problem
from millwheel.model.incarnation import INJECTOR_PREFIX, is_injector
from millwheel.model.keys import KeyInterval
from millwheel.model.sketch import MAX_BUCKETS, TimestampSketch
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import common_pb2, watermark_pb2
from millwheel.rpc.v1.watermark_pb2 import HoldKind

__all__ = [
    "MAX_NAME_BYTES",
    "MEMBER_UNKNOWN",
    "REPORT_NOT_RECEIVED",
    "SEQUENCER_REFUSED",
    "AcceptRefusedError",
    "BroadcastUpdate",
    "Member",
    "MemberUnknownError",
    "PendingWork",
    "ReportNotReceivedError",
    "WatermarkReport",
    "check_names",
    "interval_from_wire",
    "interval_to_wire",
    "invalid",
    "member_from_wire",
    "report_from_wire",
    "report_to_wire",
    "sequencers_from_wire",
    "sequencers_to_wire",
]

Member: TypeAlias = KeyInterval | str
"""A member of a group: an interval of a computation, or a process of a stream's injector."""

MAX_NAME_BYTES: Final = 1024
"""The maximum length of a group, stream or process name, in bytes."""

SEQUENCER_REFUSED: Final = "SEQUENCER_REFUSED"
"""The reason of an :class:`AcceptRefusedError`."""

MEMBER_UNKNOWN: Final = "MEMBER_UNKNOWN"
"""The reason of a :class:`MemberUnknownError`."""

REPORT_NOT_RECEIVED: Final = "REPORT_NOT_RECEIVED"
"""The reason of a :class:`ReportNotReceivedError`."""


class AcceptRefusedError(RequestError):
    """The authority refuses a sequencer: the requester does not own these keys, or this process name, any more."""

    def __init__(self, message: str) -> None:
        super().__init__(
            FailureCode.FAILED_PRECONDITION,
            message,
            "stop work on it; the process that holds the larger sequencer goes on",
            reason=SEQUENCER_REFUSED,
        )


class MemberUnknownError(RequestError):
    """The catalog has no such member of a group. Either it was never there, or it is gone."""

    def __init__(self, message: str) -> None:
        super().__init__(
            FailureCode.NOT_FOUND,
            message,
            "see whether the names are right, and whether the topology was cancelled",
            reason=MEMBER_UNKNOWN,
        )


class ReportNotReceivedError(RequestError):
    """The authority has not received a report: it is in flight, or went to the previous server of the shard."""

    def __init__(self, process: str, number: int) -> None:
        super().__init__(
            FailureCode.FAILED_PRECONDITION,
            f"report {number} of process {process!r} was not received here",
            "ask again: it is sent until it arrives",
            reason=REPORT_NOT_RECEIVED,
        )


class PendingWork(NamedTuple):
    """The timestamps of the pending work of an interval or process, and the largest record timestamp seen so far."""

    sketch: TimestampSketch
    newest: int


class WatermarkReport(msgspec.Struct):
    """An owner's report about its interval, or an injector process's report about itself (section 7.2).

    Attributes:
        group: the group of the member: the incarnation, or ``injector/{stream}``.
        member: the interval or the injector process.
        sequencer: the owner's sequencer.
        watermark: the output watermark, in microseconds.
        input_watermark: the input watermark, in microseconds.
        hold: what holds the output watermark back.
        subject: the key, sending group, stream or process that causes the hold; empty if there is none.
        idle: whether an injector process has nothing to send.
        number: grows with each report of the owner. A report with a smaller number than an earlier one is ignored.
        pending: the pending work. It is sent on request only.
    """

    group: str
    member: Member
    sequencer: int
    watermark: int
    input_watermark: int = MIN_TIMESTAMP
    hold: HoldKind.ValueType = HoldKind.HOLD_KIND_UNSPECIFIED
    subject: str = ""
    idle: bool = False
    number: int = 0
    pending: PendingWork | None = None


class BroadcastUpdate(NamedTuple):
    """A group's broadcast watermark, and those of its sequencers that the receiver does not have yet."""

    watermark: int
    sequencers: tuple[tuple[Member, int], ...] = ()


def interval_to_wire(keys: KeyInterval) -> common_pb2.KeyInterval:
    """Return ``keys`` as a message. An interval without an end has no ``end`` field."""
    return common_pb2.KeyInterval(start=keys.start, end=keys.end)


def interval_from_wire(message: common_pb2.KeyInterval) -> KeyInterval:
    """Return the interval of a message; ValueError if it is empty."""
    return KeyInterval(message.start, message.end if message.HasField("end") else None)


def member_from_wire(
    message: watermark_pb2.IntervalWatermark | watermark_pb2.AcceptSequencerRequest, where: str = ""
) -> Member:
    """Return the member of a message; RequestError (INVALID_ARGUMENT) names a wrong field, below ``where``."""
    group = message.group
    if not group or group == INJECTOR_PREFIX:
        raise invalid(f"{where}group", 'is empty: name an incarnation, or "injector/{stream}"')
    if message.sequencer == 0:
        raise invalid(f"{where}sequencer", "is 0: use the one that the assignment drew, 1 or larger")
    if is_injector(group):
        if not message.process:
            raise invalid(f"{where}process", f"is empty, but {group!r} is an injector: name the process")
        if message.HasField("keys"):
            raise invalid(f"{where}keys", f"is set, but {group!r} is an injector: it has processes, no keys")
        return message.process
    if message.process:
        raise invalid(f"{where}process", f"is set, but {group!r} is no injector: give its keys instead")
    if not message.HasField("keys"):
        raise invalid(f"{where}keys", f"is missing: say which interval of {group!r} is meant")
    try:
        return interval_from_wire(message.keys)
    except ValueError as error:
        raise invalid(f"{where}keys", str(error)) from error


def report_to_wire(report: WatermarkReport) -> watermark_pb2.IntervalWatermark:
    """Return ``report`` as a message."""
    member = report.member
    is_process = isinstance(member, str)
    return watermark_pb2.IntervalWatermark(
        group=report.group,
        keys=None if isinstance(member, str) else interval_to_wire(member),
        process=member if is_process else "",  # type: ignore[arg-type]
        sequencer=report.sequencer,
        watermark_us=report.watermark,
        hold=watermark_pb2.WatermarkHold(kind=report.hold, subject=report.subject),
        input_watermark_us=report.input_watermark,
        idle=report.idle,
        number=report.number,
        pending=None if report.pending is None else _pending_to_wire(report.pending),
    )


def report_from_wire(message: watermark_pb2.IntervalWatermark, where: str = "") -> WatermarkReport:
    """Return the report of a message; RequestError (INVALID_ARGUMENT) names a wrong field, below ``where``."""
    member = member_from_wire(message, where)
    hold = message.hold
    return WatermarkReport(
        message.group,
        member,
        message.sequencer,
        message.watermark_us,
        message.input_watermark_us,
        hold.kind,
        hold.subject,
        message.idle,
        message.number,
        _pending_from_wire(message.pending, f"{where}pending") if message.HasField("pending") else None,
    )


def _pending_to_wire(pending: PendingWork) -> watermark_pb2.PendingTimestamps:
    counts = pending.sketch.counts
    return watermark_pb2.PendingTimestamps(
        shift=pending.sketch.shift, buckets=counts.keys(), counts=counts.values(), newest_us=pending.newest
    )


def _pending_from_wire(message: watermark_pb2.PendingTimestamps, where: str) -> PendingWork:
    if len(message.buckets) != len(message.counts):
        raise invalid(where, f"has {len(message.buckets)} buckets, and {len(message.counts)} counts: one of each")
    if len(message.buckets) > MAX_BUCKETS:
        raise invalid(where, f"has {len(message.buckets)} buckets: {MAX_BUCKETS} are the most")
    try:
        sketch = TimestampSketch(message.shift, dict(zip(message.buckets, message.counts, strict=True)))
    except ValueError as error:
        raise invalid(where, str(error)) from error
    return PendingWork(sketch, message.newest_us)


def sequencers_to_wire(sequencers: Iterable[tuple[Member, int]]) -> list[watermark_pb2.IntervalSequencer]:
    """Return members with their sequencers as messages."""
    return [
        watermark_pb2.IntervalSequencer(process=member, sequencer=sequencer)
        if isinstance(member, str)
        else watermark_pb2.IntervalSequencer(keys=interval_to_wire(member), sequencer=sequencer)
        for member, sequencer in sequencers
    ]


def sequencers_from_wire(messages: Iterable[watermark_pb2.IntervalSequencer]) -> tuple[tuple[Member, int], ...]:
    """Return the members and sequencers of messages."""
    return tuple((message.process or interval_from_wire(message.keys), message.sequencer) for message in messages)


def check_names(**names: str) -> None:
    """Raise RequestError (INVALID_ARGUMENT) for a name that is too long. ``names``: by the field that has it."""
    for where, name in names.items():
        if len(name.encode()) > MAX_NAME_BYTES:
            raise invalid(where, f"has {len(name.encode())} bytes: {MAX_NAME_BYTES} are the most")


def invalid(where: str, why: str) -> RequestError:
    """The error for a field of a message that has no valid value."""
    return RequestError(
        FailureCode.INVALID_ARGUMENT, f"{where} {why}", reason="INVALID_FIELD", problems=[Problem(where, why)]
    )
