"""Events and effects of an injector's core (section 5.2). Times are microseconds of any steady clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millwheel.client.injector.errors import InjectorError
from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.routing import StreamRouting
from millwheel.client.injector.unkeyed import UnkeyedHead
from millwheel.model.core_protocol import Tick
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.errors import UsageError

__all__ = [
    "Connect",
    "ConnectionLost",
    "ConnectionOpened",
    "DeliveryAnswered",
    "Disconnect",
    "EffectlessEvent",
    "EndDeclared",
    "IdleDeclared",
    "IdleEnded",
    "InjectorEffect",
    "InjectorEvent",
    "KeyedRecords",
    "KeysFound",
    "Limits",
    "ProcessSuperseded",
    "PublicationStarted",
    "PublishWatermark",
    "Published",
    "RoutingArrived",
    "SendBatch",
    "SessionFailed",
    "Tick",
    "WatermarkDeclared",
    "WatermarkReached",
    "WatermarksBroadcast",
    "WritesPending",
    "within",
]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an injector. Durations are in microseconds."""

    batch_records: int = 4_000
    batch_bytes: int = 256 << 10
    """A batch is sealed when it has this many records, or this many bytes of values. Even with the longest keys it then
    stays below a third of what one message may have. Only a sender with much to send fills one: see ``linger``."""
    window_records: int = 50_000
    """The most un-ACKed records. A record that goes to two consumers counts twice. With more than 25 consumers, each
    has room for a 25th of this number, as far as ``window_bytes`` has room."""
    window_bytes: int = 64 << 20
    """The most bytes of un-ACKed values. A value that goes to two consumers counts twice. The records of one call may
    exceed it."""
    linger: int = 2_000
    """The least time from one batch to the next one of the same interval, while earlier ones are in flight.

    Records that come meanwhile share a batch. A record that comes later goes at once. With more than four batches in
    flight it is a quarter of this for each. So a receiver that can't keep up gets fewer batches, with more records."""
    retry_first: int = 20_000
    retry_last: int = 1_000_000
    """The first and the longest back-off before refused records are sent again. It doubles with each refusal."""
    resend_after: int = 30_000_000
    """A batch without an answer is sent again after this time. So a receiver that does not answer loses no record.
    The wait doubles with each copy, up to 16 times."""
    max_in_flight: int = 64
    """The most batches in flight to one interval."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < (0 if name == "linger" else 1):
                raise UsageError(f"injector limit {name} must be positive, not {getattr(self, name)}")


# Events.


@dataclass(slots=True)
class KeyedRecords:
    """Records to send, as columns of equal length.

    The driver first checks that there is room for them (:meth:`InjectorCore.room`, :meth:`InjectorCore.throttled`).
    The core raises UsageError or InjectorError for records that it does not accept. It is then as it was before.

    Record i has the timestamp ``timestamps[i]`` in microseconds and the id ``ids[i]``, which is unique in ``scope``.
    Its key at the consumer with incarnation c is ``keys[c][i]``. A column of keys may end early: ``unkeyed[c]`` then
    says why the next record has no key."""

    values: Sequence[bytes]
    timestamps: Sequence[int]
    keys: Mapping[IncarnationId, Sequence[bytes]]
    scope: IdScope
    ids: Sequence[int] | Sequence[bytes]
    unkeyed: Mapping[IncarnationId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeysFound:
    """The first records of ``head`` have these keys. ``why``: why the record after those has none.

    No effect if the records of ``head`` do not wait any more.
    """

    head: UnkeyedHead
    keys: Sequence[bytes]
    why: str


@dataclass(frozen=True, slots=True)
class RoutingArrived:
    """The stream's routing. A routing that is older than the current one is ignored."""

    routing: StreamRouting


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """A Deliver stream to ``address`` is open."""

    address: str


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The stream to ``address`` broke. Un-ACKed batches are sent again after it reconnects."""

    address: str


@dataclass(frozen=True, slots=True)
class DeliveryAnswered:
    """A receiver's answer to delivery attempts. An answer to an unknown attempt is ignored."""

    tokens: Sequence[int]
    outcome: DeliveryOutcome.ValueType
    indexes: Sequence[int] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProcessSuperseded:
    """The authority or the master reports that a newer process has this name. The core stops."""

    why: str


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """The driver cannot continue. The core stops."""

    error: InjectorError


@dataclass(frozen=True, slots=True)
class WatermarksBroadcast:
    """Broadcast low watermarks, by computation, in microseconds."""

    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PublicationStarted:
    """The process takes part in the low watermark from ``watermark`` on. Nothing was sent before."""

    watermark: int


@dataclass(frozen=True, slots=True)
class WatermarkDeclared:
    """The user promises that no later record is older than ``watermark``. A lower value than before is ignored."""

    watermark: int


@dataclass(frozen=True, slots=True)
class IdleDeclared:
    """The user has nothing to send for now."""


@dataclass(frozen=True, slots=True)
class IdleEnded:
    """The process takes part in the low watermark again. Nothing is sent before ``WatermarkReached``."""


@dataclass(frozen=True, slots=True)
class WatermarkReached:
    """The authority has journaled that the process takes part. Records older than ``watermark`` are late."""

    watermark: int


@dataclass(frozen=True, slots=True)
class EndDeclared:
    """The user declares that no record follows."""


@dataclass(frozen=True, slots=True)
class WritesPending:
    """By address: the token of the first attempt that its connection has not written yet. Holds for the next ``Tick``.

    An address is left out if its connection has written every attempt."""

    tokens: Mapping[str, int]


EffectlessEvent = ConnectionLost | WritesPending | WatermarksBroadcast | ProcessSuperseded | SessionFailed
"""Events without effects."""
InjectorEvent = (
    KeyedRecords
    | KeysFound
    | RoutingArrived
    | ConnectionOpened
    | ConnectionLost
    | DeliveryAnswered
    | ProcessSuperseded
    | SessionFailed
    | WatermarksBroadcast
    | PublicationStarted
    | WatermarkDeclared
    | IdleDeclared
    | IdleEnded
    | WatermarkReached
    | EndDeclared
    | WritesPending
    | Tick
)


# Effects.


@dataclass(frozen=True, slots=True)
class Connect:
    """Keep a Deliver stream to this worker open, and reopen it after failures, until ``Disconnect``."""

    address: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to this worker. No more records go to it."""

    address: str


@dataclass(slots=True, eq=False)
class SendBatch:
    """One delivery attempt of a batch to one interval. The answer carries ``token``. The lists must not be modified.

    ``waited``: how long its oldest record has waited so far, in microseconds. ``span``: how much later the newest one
    was accepted; 0 for a part of a batch. ``complete``: as in
    :class:`PositionIds <millwheel.model.deliveries.PositionIds>`.
    """

    address: str
    token: int
    consumer: IncarnationId
    journal: str
    scope: IdScope
    keys: list[bytes]
    values: list[bytes]
    timestamps: list[int]
    ids: list[Any]
    watermark: int
    mark: int = 0
    unacked: Sequence[int] = ()
    waited: int = 0
    span: int = 0
    complete: bool = False


class Published(NamedTuple):
    """A watermark to report, in microseconds. ``idle``: leave this process out of the minimum."""

    watermark: int
    idle: bool


@dataclass(frozen=True, slots=True)
class PublishWatermark:
    """Report this watermark to the authority. It differs from the last one."""

    published: Published


InjectorEffect = Connect | Disconnect | SendBatch | PublishWatermark


def within(data: list[bytes], most: int) -> list[bytes]:
    """The first items of ``data`` that have at most ``most`` bytes in total. At least one item if there is any."""
    while len(data) > 1 and sum(map(len, data)) > most:
        data = data[: len(data) // 2]
    return data
