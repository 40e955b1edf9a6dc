"""Deliveries and their answers as messages of delivery.proto, and the two sides of an open Deliver stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from operator import lt
from typing import Any, Final, Generic, TypeVar

from millwheel.model.deliveries import (
    MAX_POSITION_SPAN,
    BatchIds,
    Delivery,
    DeliveryIds,
    DeliveryOrder,
    OpaqueIds,
    PositionIds,
    Sender,
    split_ids,
)
from millwheel.model.keys import KeyInterval
from millwheel.model.time import seconds
from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.traces import read_traces, wire_traces
from millwheel.rpc.v1 import delivery_pb2 as wire

__all__ = [
    "DeliveryQueue",
    "answered_tokens",
    "decode_delivery",
    "encode_delivery",
    "journal_of",
    "record_count",
    "without_columns",
]

_LONGEST_WAIT: Final = seconds(10 * 365 * 86_400)
"""Ten years. A sender whose clock has jumped could state half a million years. Its batch would be the system lag of the
computation, and hide all that really waits. No decision depends on the number, so a batch is not refused for it."""

_POSITIONS: Final = 1 << 64

ItemT = TypeVar("ItemT")


class DeliveryQueue(Generic[ItemT]):
    """Items that wait to be written to a Deliver stream, with the stream's writer and reader."""

    def __init__(
        self,
        encode: Callable[[ItemT], wire.DeliverRequest],
        answered: Callable[[wire.DeliverResponse], None],
    ) -> None:
        """
        Args:
            encode: Makes the message for an item, when it is sent.
            answered: Called with each answer.
        """
        self._encode = encode
        self._answered = answered
        self._queue: deque[ItemT] = deque()
        self._ready = asyncio.Event()

    @property
    def queued(self) -> int:
        """The number of items that are not written to the stream yet."""
        return len(self._queue)

    def send(self, item: ItemT) -> None:
        """Queue an item. If the stream ends before it is written, it is dropped."""
        self._queue.append(item)
        self._ready.set()

    def clear(self) -> None:
        """Drop all items."""
        self._queue.clear()

    async def write(self, call: Any) -> None:
        """Write the items to an open stream, until cancelled."""
        while True:
            while self._queue:
                await call.write(self._encode(self._queue[0]))
                self._queue.popleft()
            self._ready.clear()
            await self._ready.wait()

    async def read(self, call: Any) -> None:
        """Pass on the answers of an open stream, until it ends."""
        while isinstance(response := await call.read(), wire.DeliverResponse):
            self._answered(response)


def answered_tokens(response: wire.DeliverResponse) -> tuple[int, ...]:
    """Return the tokens of all batches that ``response`` answers in the same way, in the order of their answers."""
    return response.token, *response.also


def encode_delivery(delivery: Delivery, token: int) -> wire.DeliverRequest:
    """The request for one batch."""
    sender = delivery.sender
    request = wire.DeliverRequest(
        token=token,
        consumer=delivery.consumer,
        journal=delivery.journal,
        stream=delivery.stream,
        sender=wire.Sender(name=sender.name, sequencer=sender.sequencer, group=sender.group),
        traces=wire_traces(delivery.traces) if delivery.traces else (),
        waited_us=delivery.waited,
        waited_span_us=delivery.span,
    )
    _encode_records(request, delivery)
    if sender.keys is not None:
        request.sender.keys.start = sender.keys.start
        if sender.keys.end is not None:
            request.sender.keys.end = sender.keys.end
    if sender.watermark is not None:
        request.sender.watermark_us = sender.watermark
    if sender.received_watermark is not None:
        request.sender.received_watermark_us = sender.received_watermark
    if (order := delivery.order) is not None:
        request.order.number, request.order.after, request.order.pending_us = order.number, order.after, order.pending
        request.order.streams.extend(order.streams)
        request.order.asks = order.asks
    _encode_ids(request, delivery.ids)
    if request.HasField("columns") or request.positions.HasField("first"):
        # An earlier version would take it for a delivery without records or ids. It must not own it.
        request.newer_journal, request.journal = request.journal, ""
    return request


def without_columns(delivery: Delivery) -> Delivery:
    """The same delivery for a receiver that reads no columns: with a key and a value for each record."""
    if not isinstance(delivery.values, RecordColumns):
        return delivery
    return replace(delivery, keys=list(delivery.keys), values=delivery.values[:])


def _encode_records(request: wire.DeliverRequest, delivery: Delivery) -> None:
    """Add the columns of keys, values and timestamps."""
    if isinstance(delivery.values, RecordColumns):
        request.columns.CopyFrom(delivery.values.to_wire())
    else:
        request.keys.extend(delivery.keys)
        request.values.extend(delivery.values)
        request.timestamps_us.extend(delivery.timestamps)


def _encode_ids(request: wire.DeliverRequest, ids: DeliveryIds) -> None:
    if isinstance(ids, PositionIds):
        request.positions.sequence = ids.sequence
        request.positions.mark = ids.mark
        request.positions.unacked.extend(ids.unacked)
        positions, request.positions.complete = ids.positions, ids.complete
        if ids.complete and positions and positions[-1] - positions[0] == len(positions) - 1:
            request.positions.first = positions[0]
        else:
            request.positions.positions.extend(positions)
    elif isinstance(ids, OpaqueIds):
        request.opaque.ids = b"".join(ids.ids)
    else:
        request.batch.query = ids.query
        request.batch.batch = ids.batch
        request.batch.ids = b"".join(ids.ids)


def decode_delivery(request: wire.DeliverRequest, channel: Any) -> Delivery:
    """The batch of a request.

    Raises:
        ValueError: The request is malformed.
    """
    stated, keys = request.sender, None
    if stated.HasField("keys"):
        keys = KeyInterval(stated.keys.start, stated.keys.end if stated.keys.HasField("end") else None)
    watermark = stated.watermark_us if stated.HasField("watermark_us") else None
    received = stated.received_watermark_us if stated.HasField("received_watermark_us") else None
    sender = Sender(stated.name, stated.sequencer, keys, stated.group, watermark, received)
    ids, count = _decode_ids(request), record_count(request)
    delivery = Delivery(
        request.consumer,
        journal_of(request),
        request.stream,
        sender,
        ids,
        *_decode_records(request),
        request.token,
        channel,
        _decode_order(request),
        read_traces(request.traces) if request.traces else None,
        min(request.waited_us, _LONGEST_WAIT),
        min(request.waited_span_us, request.waited_us, _LONGEST_WAIT),
    )
    given = len(ids.positions) if isinstance(ids, PositionIds) else len(ids.ids)
    if not count == len(delivery.values) == len(delivery.timestamps) == given:
        raise ValueError(
            f"columns of unequal length: {count} keys, {len(delivery.values)} values, "
            f"{len(delivery.timestamps)} timestamps, {given} ids"
        )
    return delivery


def journal_of(request: wire.DeliverRequest) -> str:
    """The journal of the receiving interval."""
    return request.journal or request.newer_journal


def record_count(request: wire.DeliverRequest) -> int:
    """The number of records of a request."""
    if request.HasField("columns"):
        return len(request.columns.timestamps_us) // 8
    return len(request.keys)


def _decode_records(request: wire.DeliverRequest) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[int]]:
    """The columns of keys, values and timestamps."""
    if not request.HasField("columns"):
        # Slices are lists, in two thirds of the time of list().
        return request.keys[:], request.values[:], request.timestamps_us[:]
    if request.keys or request.values or request.timestamps_us:
        raise ValueError("records as columns, and beside them")
    columns = RecordColumns.from_wire(request.columns)
    return columns.keys(), columns, columns.timestamps


def _decode_order(request: wire.DeliverRequest) -> DeliveryOrder | None:
    if not request.HasField("order"):
        return None
    order = request.order
    if not order.after < order.number:
        raise ValueError(f"delivery {order.number} is to follow {order.after}: numbers rise")
    return DeliveryOrder(order.number, order.after, order.pending_us, tuple(order.streams), order.asks)


def _decode_positions(proto: wire.PositionIds, count: int) -> PositionIds:
    positions: Sequence[int] = proto.positions
    if proto.HasField("first"):
        positions = range(proto.first, proto.first + count)
        if proto.positions or not proto.complete or proto.first + count > _POSITIONS:
            raise ValueError(f"positions from {proto.first} on: they are below 2^64, complete, and not given singly")
    else:
        positions = list(positions)
        if proto.complete and not all(map(lt, positions, islice(positions, 1, None))):
            raise ValueError("positions that are complete rise")
        if proto.complete and positions and positions[-1] - positions[0] >= MAX_POSITION_SPAN:
            raise ValueError(f"positions that are complete are not {positions[-1] - positions[0]:,} apart")
    return PositionIds(proto.sequence, proto.mark, positions, list(proto.unacked), proto.complete)


def _decode_ids(request: wire.DeliverRequest) -> DeliveryIds:
    kind = request.WhichOneof("ids")
    if kind == "positions":
        return _decode_positions(request.positions, record_count(request))
    if kind == "opaque":
        return OpaqueIds(split_ids(request.opaque.ids))
    if kind == "batch":
        return BatchIds(request.batch.query, request.batch.batch, split_ids(request.batch.ids))
    raise ValueError("no ids: set positions, opaque or batch")
