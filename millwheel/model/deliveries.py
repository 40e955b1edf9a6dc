"""Deliveries: a batch of records, and how it identifies its records and its sender (6.1.1). delivery.proto without
protobuf.

Three kinds of ids, for three kinds of senders:

* :class:`PositionIds`: positions in the sender's own sequence. Collected exactly, by the sender's mark.
* :class:`OpaqueIds`: 16 bytes, compared only for equality. Collected by the sending computation's low watermark.
* :class:`BatchIds`: 16 bytes within one numbered batch of one query. Collected when a later batch begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from millwheel.model.incarnation import GroupId, IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.model.traces import RecordTraces

__all__ = [
    "ID_BYTES",
    "MAX_POSITION_SPAN",
    "BatchIds",
    "Delivery",
    "DeliveryIds",
    "DeliveryOrder",
    "OpaqueIds",
    "PositionIds",
    "Sender",
    "split_ids",
]

ID_BYTES = 16
"""The length of an opaque or batch id."""
_each_id: Final = Struct(f"{ID_BYTES}s").iter_unpack
MAX_POSITION_SPAN: Final = 1 << 32
"""The positions of one complete delivery are less than this apart. Receivers could not store what larger ranges are
joined to. A sender gives the positions of such a delivery singly."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a delivery, its sequencer, and its watermark.

    ``name`` is an interval's journal, or "injector/{stream}/{process}". ``keys`` are the producing keys that the
    sender owns, None for an injector. Only the check of opaque ids uses ``watermark`` and ``received_watermark``.

    ``watermark`` is the output watermark, in microseconds, that the sender had last reported when it sent this copy.
    None: the sender does not state it. It identifies copies that are older than the collection of their ids
    (:attr:`CheckOutcome.SEND_AGAIN`).

    ``received_watermark`` is the highest ``watermark`` in any delivery that the sender has itself received. While a
    record that caused these records is not ACKed, the watermark of that record's sender does not advance. So the
    sending computation's watermark cannot pass ``received_watermark`` before these records are ACKed. Their ids are
    kept at least until it does.
    """

    name: str
    sequencer: int
    keys: KeyInterval | None
    group: GroupId
    watermark: int | None = None
    received_watermark: int | None = None


@dataclass(slots=True)
class PositionIds:
    """Ids that increase along ``sequence`` and are never reused.

    ``mark`` states: every record of the sequence below it for the receiving interval is ACKed, except those in
    ``unacked``. Zero states nothing. With ``unacked``, a sender whose oldest record is stuck can still raise its mark.
    So the senders' outstanding records bound the number of ids that receivers must remember.

    ``complete`` states: the positions rise, and each record of the sequence from the first one to the last one that is
    due to the receiving interval is among them, or ACKed. So the receiver can remember them as one range. Invariant:
    the sender has accepted a record at each position of the range, for this interval or another one. So no record can
    come later between them. Who may break it: a sender that filters or reorders what it has accepted.
    """

    sequence: str
    mark: int
    positions: Sequence[int]
    unacked: Sequence[int] = ()
    complete: bool = False


@dataclass(slots=True)
class OpaqueIds:
    """Ids that are compared only for equality, :data:`ID_BYTES` each: uniformly distributed hashes."""

    ids: Sequence[bytes]


@dataclass(slots=True)
class BatchIds:
    """Ids unique within ``batch`` of ``query``. Batch b + 1 begins only when all of batch b is ACKed."""

    query: str
    batch: int
    ids: Sequence[bytes]


DeliveryIds = PositionIds | OpaqueIds | BatchIds


@dataclass(frozen=True, slots=True)
class DeliveryOrder:
    """The place of a delivery in the order of everything that its sender sends to the journal (G15).

    ``number`` is the delivery's own number. It rises with every delivery that is sent under one sequencer. ``after`` is
    the number of the delivery that the receiver must have accepted before this one. It is 0 if this delivery is the
    sender's oldest one that is not ACKed, which needs no predecessor.

    ``pending`` is the smallest timestamp of this delivery and of all that wait behind it at the sender. ``streams`` are
    the other streams of the waiting ones. ``asks``: the sender requests an immediate answer when the delivery is
    accepted.
    """

    number: int
    after: int
    pending: int
    streams: tuple[str, ...] = ()
    asks: bool = False


@dataclass(slots=True, eq=False, weakref_slot=True)
class Delivery:
    """One batch of records of one stream for one interval. The lists are columns of equal length.

    ``channel`` is chosen by the driver, to return the acknowledgement. ``token`` is the sender's number for the batch.
    ``order`` is None if the sender keeps no order, as injectors do. ``traces`` is None if it has no sampled record.
    ``waited`` is how long the oldest record had waited with its sender when this copy was sent, in microseconds.
    ``span`` is how much later the newest one came to the sender; 0 if it does not say. ``followed``: the driver brings
    the receiving core another delivery next, as its next event.
    """

    consumer: IncarnationId
    journal: str
    stream: str
    sender: Sender
    ids: DeliveryIds
    keys: Sequence[bytes]
    values: Sequence[bytes]
    timestamps: Sequence[int]
    token: int = 0
    channel: Any = None
    order: DeliveryOrder | None = None
    traces: RecordTraces | None = None
    waited: int = 0
    span: int = 0
    followed: bool = False


def split_ids(blob: bytes) -> list[bytes]:
    """Split a wire blob into its ids.

    Raises:
        ValueError: The blob's length is not a multiple of :data:`ID_BYTES`.
    """
    if len(blob) % ID_BYTES:
        raise ValueError(f"{len(blob)} bytes are no whole number of {ID_BYTES}-byte ids")
    return [id_ for (id_,) in _each_id(blob)]
