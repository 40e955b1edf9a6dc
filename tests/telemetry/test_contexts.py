"""Contexts on the wire, and which records an injector samples."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.client.tracing import RecordSampler, client_tracing, stop_tracing, trace_records
from millwheel.model.deliveries import Delivery, PositionIds, Sender
from millwheel.model.incarnation import IncarnationId
from millwheel.model.traced_records import TracedRecords
from millwheel.model.traces import Operation, TraceContext, checked_context
from millwheel.rpc.deliveries import decode_delivery, encode_delivery
from millwheel.rpc.v1.common_pb2 import RecordTrace
from millwheel.rpc.v1.delivery_pb2 import DeliverRequest
from millwheel.sdk.errors import UsageError
from tests.telemetry.traced_driver import MemorySpans

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _delivery(traces: dict[int, TraceContext] | None) -> Delivery:
    ids = PositionIds("s", 0, [4, 5])
    sender = Sender("injector/in/p", 3, None, "injector/in", 7)
    return Delivery(
        IncarnationId("c.1"), "c.1.j1", "in", sender, ids, [b"k", b"l"], [b"v", b"w"], [1, 2], 9, traces=traces
    )


def test_contexts_travel_beside_the_records() -> None:
    traces = {1: TraceContext(GOOD, "vendor=1")}
    request = encode_delivery(_delivery(traces), 9)
    assert decode_delivery(request, None).traces == traces
    plain = encode_delivery(_delivery(None), 9)
    assert decode_delivery(plain, None).traces is None
    request.ClearField("traces")
    assert request == plain, "an older process, which skips the field, receives the same"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "garbage",
        GOOD.upper(),
        GOOD + "-more",
        GOOD[:-1],
        GOOD.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        GOOD.replace("b7ad6b7169203331", "0" * 16),
        "ff" + GOOD[2:],
    ],
)
def test_a_context_that_is_not_valid_is_ignored(bad: str) -> None:
    assert checked_context(bad) is None
    request = encode_delivery(_delivery(None), 9)
    request.traces.append(RecordTrace(index=0, traceparent=bad))
    request.traces.append(RecordTrace(index=99, traceparent=GOOD))
    decoded = decode_delivery(DeliverRequest.FromString(request.SerializeToString()), None)
    assert list(decoded.traces or ()) == [99]
    assert decoded.keys == [b"k", b"l"]


def test_a_long_tracestate_is_dropped() -> None:
    context = checked_context(GOOD, "x" * 513)
    assert context == TraceContext(GOOD)


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(0, 1_000))
def test_records_are_sampled_alike_however_they_are_batched(sizes: list[int], seed: int) -> None:
    batched, one_by_one = (RecordSampler(0.05, random.Random(seed).random) for _ in range(2))
    chosen, first = [], 0
    for size in sizes:
        chosen += [first + index for index in batched.picks(size)]
        first += size
    assert chosen == [index for index in range(first) if one_by_one.picks(1)]


def test_the_ratio_is_the_fraction_of_sampled_records() -> None:
    sampler = RecordSampler(0.01, random.Random(1).random)
    assert 900 < len(sampler.picks(100_000)) < 1_100
    assert RecordSampler(0, random.random).picks(1_000_000) == []
    assert RecordSampler(1, random.random).picks(3) == [0, 1, 2]


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        trace_records(ratio)
    assert client_tracing() is None


def test_a_refused_part_is_not_an_ack_of_the_rest() -> None:
    spans, records = MemorySpans(), TracedRecords()
    for id_ in (1, 2):
        records.add("s", id_, spans.source.start(Operation.SEND, "in"), ["c.1"])
    assert sorted(records.sending(5, "s", "c.1", [1, 2]) or ()) == [0, 1]
    records.refused(5, "full", [1])
    records.acked(5)
    assert spans.names() == ["send in (acked)"]
    assert list(records.sending(6, "s", "c.1", [2]) or ()) == [0]
    records.acked(6)
    assert spans.names()[1] == "send in (refused, sent again, acked)"
    assert not len(records)


def test_without_tracing_nothing_of_opentelemetry_is_imported() -> None:
    stop_tracing()
    modules = "millwheel.server.daemon, millwheel.server.dev_server, millwheel.server.worker, millwheel.client.injector"
    code = f"import sys, {modules}, millwheel.client.subscription, millwheel.cli.main\n"
    code += "print([name for name in sys.modules if name.startswith(('opentelemetry', 'millwheel.telemetry'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
