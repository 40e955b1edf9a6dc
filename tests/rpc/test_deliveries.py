"""Deliveries keep their content on the wire, and an error names malformed ones (delivery.proto)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.deliveries import decode_delivery, encode_delivery
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.worker.dedup import BatchIds, DeliveryIds, OpaqueIds, PositionIds, Sender
from millwheel.worker.messages import Delivery, DeliveryOrder

NAMES = st.text(max_size=8)
TIMES = st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP)
POSITIONS = st.integers(0, 2**64 - 1)
IDS = st.binary(min_size=16, max_size=16)


@st.composite
def intervals(draw: st.DrawFn) -> KeyInterval:
    start, end = draw(st.binary(max_size=4)), draw(st.none() | st.binary(min_size=1, max_size=4))
    return KeyInterval(start, end if end is None or start < end else None)


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    count = draw(st.integers(0, 5))

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=count, max_size=count))

    def blobs(values: st.SearchStrategy[bytes]) -> list[bytes]:
        return draw(st.lists(values, min_size=count, max_size=count))

    kinds: list[DeliveryIds] = [
        PositionIds(draw(NAMES), draw(POSITIONS), column(POSITIONS), draw(st.lists(POSITIONS, max_size=3))),
        OpaqueIds(blobs(IDS)),
        BatchIds(draw(NAMES), draw(st.integers(0, 2**63 - 1)), blobs(IDS)),
    ]
    ids = draw(st.sampled_from(kinds))
    keys = draw(st.none() | intervals())
    marks = st.none() | TIMES
    sender = Sender(draw(NAMES), draw(st.integers(0, 2**64 - 1)), keys, draw(NAMES), draw(marks), draw(marks))
    binary = st.binary(max_size=6)
    after = draw(st.integers(0, 2**64 - 2))
    streams = tuple(draw(st.lists(NAMES, max_size=2)))
    order = DeliveryOrder(after + 1, after, draw(TIMES), streams, draw(st.booleans()))
    columns = blobs(binary), blobs(binary), column(TIMES)
    consumer, journal, stream = IncarnationId(draw(NAMES)), draw(NAMES), draw(NAMES)
    chosen, waited = draw(st.none() | st.just(order)), draw(st.integers(0, 10**14))
    delivery = Delivery(consumer, journal, stream, sender, ids, *columns, token=5, order=chosen, waited=waited)
    delivery.span = waited // 3
    return delivery


@given(deliveries())
def test_a_delivery_is_the_same_after_the_wire(sent: Delivery) -> None:
    request = wire.DeliverRequest.FromString(encode_delivery(sent, 9).SerializeToString())
    got = decode_delivery(request, "channel")
    assert (got.token, got.channel) == (9, "channel")
    for name in ("consumer", "journal", "stream", "sender", "ids", "keys", "values", "timestamps", "order"):
        assert getattr(got, name) == getattr(sent, name), name


def well_formed() -> wire.DeliverRequest:
    request = wire.DeliverRequest(token=1, keys=[b"a"], values=[b"v"], timestamps_us=[1])
    request.positions.positions.append(1)
    return request


def test_what_is_malformed_is_named() -> None:
    spoilt: list[tuple[Callable[[wire.DeliverRequest], None], str]] = [
        (lambda one: one.keys.append(b"b"), "2 keys, 1 values"),
        (lambda one: one.timestamps_us.append(5), "2 timestamps"),
        (lambda one: one.positions.positions.append(5), "2 ids"),
        (lambda one: one.ClearField("positions"), "set positions, opaque or batch"),
        (lambda one: one.opaque.MergeFrom(wire.OpaqueIds(ids=b"short")), "16-byte ids"),
    ]
    for spoil, part in spoilt:
        request = well_formed()
        spoil(request)
        with pytest.raises(ValueError, match=part):
            decode_delivery(request, None)
    request = well_formed()
    request.sender.keys.start, request.sender.keys.end = b"z", b"a"
    with pytest.raises(ValueError, match="z"):
        decode_delivery(request, None)


def test_a_wait_of_ages_is_cut() -> None:
    """A sender whose clock has jumped: its batch would hide all that really waits."""
    ids = OpaqueIds([bytes(16)])
    sender = Sender("a", 1, None, "a")
    sent = Delivery(IncarnationId("c.1"), "c.1.j1", "s", sender, ids, [b"k"], [b"v"], [1], waited=2**64 - 1)
    sent.span = 2**64 - 1
    read = decode_delivery(encode_delivery(sent, 1), None)
    assert read.waited == read.span == 10 * 365 * 86_400 * 1_000_000
