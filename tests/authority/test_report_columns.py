"""The reports of many intervals by columns: their form, their fences, and which authority gets them (7.2, G4)."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.authority.keyed import KeyedGroup
from millwheel.authority.members import MemberState, Refusal
from millwheel.authority.messages import RemovalRequested, ReportsReceived
from millwheel.client.watermark_streams import ReportStream
from millwheel.model.backoff import Backoff
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.sketch import TimestampSketch
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.report_columns import (
    MAX_REPORTS,
    check_count,
    columns_from_wire,
    columns_to_wire,
    request_to_wire,
)
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub
from millwheel.rpc.watermarks import AcceptRefusedError, PendingWork, WatermarkReport, report_from_wire
from tests.authority.conftest import Served
from tests.authority.shard import GROUP, INJECTOR, Shard, by_columns, cut
from tests.authority.test_report_stream import Authority
from tests.patience import patience

if TYPE_CHECKING:
    from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceAsyncStub

THREE = cut(b"c", b"m")
times = st.integers(int(MIN_TIMESTAMP), int(MAX_TIMESTAMP))


def said(keys: KeyInterval, sequencer: int, watermark: int, group: str = GROUP, number: int = 0) -> WatermarkReport:
    return WatermarkReport(group, keys, sequencer, watermark, 5, pb.HOLD_KIND_TIMER, "britney", number=number)


@st.composite
def reports(draw: st.DrawFn) -> WatermarkReport:
    start, end = sorted(draw(st.lists(st.binary(max_size=4), min_size=2, max_size=2, unique=True)))
    return WatermarkReport(
        GROUP,
        KeyInterval(start, draw(st.sampled_from([end, None]))),
        draw(st.integers(1, (1 << 64) - 1)),
        draw(times),
        draw(times),
        draw(st.sampled_from(pb.HoldKind.values())),
        draw(st.text(max_size=4)),
        number=draw(st.integers(0, (1 << 64) - 1)),
    )


# The form.


@given(st.lists(reports(), min_size=1, max_size=5))
def test_columns_are_read_as_the_reports_that_they_were(made: list[WatermarkReport]) -> None:
    read = columns_from_wire(pb.IntervalColumns.FromString(columns_to_wire(GROUP, made).SerializeToString()))
    assert read.reports() == made
    assert read.count == len(made)


def test_a_report_without_an_interval_is_no_row() -> None:
    with pytest.raises(AssertionError, match="of no interval"):
        columns_to_wire(INJECTOR, [WatermarkReport(INJECTOR, "a", 4, 40)])


def test_three_reports_of_a_group_go_by_columns_the_rest_singly() -> None:
    many = [said(keys, sequencer, 10 * sequencer) for sequencer, keys in enumerate(THREE, start=1)]
    few = [said(keys, sequencer, 70, "other.3") for sequencer, keys in enumerate(THREE[:2], start=1)]
    pending = said(THREE[2], 3, 30, "other.3")
    pending.pending = PendingWork(TimestampSketch(3, {7: 1}), 60)
    process = WatermarkReport(INJECTOR, "a", 4, 40, idle=True)
    message = request_to_wire([many[0], pending, few[0], process, few[1], *many[1:]], by_columns=True)
    assert [report_from_wire(one) for one in message.intervals] == [pending, process, *few]
    (columns,) = map(columns_from_wire, message.columns)
    assert columns.reports() == many
    older = request_to_wire(many, by_columns=False)
    assert ([report_from_wire(one) for one in older.intervals], len(older.columns)) == (many, 0)


def emptied(field: Literal["starts", "subjects"]) -> Callable[[pb.IntervalColumns], None]:
    return lambda message: message.ClearField(field)


def named(group: str) -> Callable[[pb.IntervalColumns], None]:
    return lambda message: setattr(message, "group", group)


def first(field: str, value: object) -> Callable[[pb.IntervalColumns], None]:
    return lambda message: getattr(message, field).__setitem__(0, value)


@pytest.mark.parametrize(
    ("change", "where", "why"),
    [
        (named(""), "group", "name an incarnation"),
        (named(INJECTOR), "group", "whose members are intervals"),
        (named("x" * 2_000), "group", "1024 are the most"),
        (emptied("subjects"), "subjects", "has 0 elements, and starts has 3"),
        (emptied("starts"), "ends", "has 3 elements, and starts has 0"),
        (first("sequencers", 0), "sequencers[0]", "is 0"),
        (first("starts", b"z"), "ends[0]", "the interval is empty"),
    ],
)
async def test_malformed_columns_are_refused_as_a_whole(
    served: Served, change: Callable[[pb.IntervalColumns], None], where: str, why: str
) -> None:
    await served.open_shard.accept(GROUP, ALL_KEYS, 1)
    wrong = columns_to_wire(GROUP, [said(keys, sequencer, 10) for sequencer, keys in enumerate(THREE, start=1)])
    change(wrong)
    request = pb.ReportRequest(columns=[columns_to_wire(GROUP, [said(ALL_KEYS, 1, 70)]), wrong])
    await served.check_refused(request, f"columns[1].{where}", why)
    answer = served.open_shard.explain(GROUP, 1)
    assert answer is not None
    assert answer.rows[0].watermark == MIN_TIMESTAMP


MANY = MAX_REPORTS + 1


@pytest.mark.guarantee("G13", section="7.2")
@pytest.mark.parametrize(
    "huge",
    [
        pb.ReportRequest(intervals=[pb.IntervalWatermark()] * MANY),
        pb.ReportRequest(columns=[pb.IntervalColumns()] * MANY),
        pb.ReportRequest(columns=[pb.IntervalColumns(group=GROUP, starts=[b""] * 20 * MANY)]),
        pb.ReportRequest(columns=[pb.IntervalColumns(starts=[b""] * (MANY // 2 + 1))] * 2),
        pb.ReportRequest(intervals=[pb.IntervalWatermark()], columns=[pb.IntervalColumns(starts=[b""] * (MANY - 1))]),
    ],
    ids=["intervals", "columns", "rows", "rows of two", "both"],
)
async def test_a_request_of_too_many_reports_is_refused(served: Served, huge: pb.ReportRequest) -> None:
    """It is refused before a report is read: each of these has mistakes, too. The request before it counts."""
    await served.open_shard.accept(GROUP, ALL_KEYS, 1)
    async with grpc.aio.insecure_channel(served.address) as channel:
        call = WatermarkServiceStub(channel).Report()  # type: ignore[call-arg]
        await call.write(pb.ReportRequest(columns=[columns_to_wire(GROUP, [said(ALL_KEYS, 1, 70)])]))
        beside = columns_to_wire(GROUP, [said(ALL_KEYS, 1, 90)])
        await call.write(pb.ReportRequest(intervals=huge.intervals, columns=[beside, *huge.columns]))
        assert await call.read() == pb.ReportResponse(reads_columns=True)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    error = from_rpc_error(caught.value)
    assert error.code is FailureCode.INVALID_ARGUMENT
    assert "10,000 are the most" in error.problems[0].message
    answer = served.open_shard.explain(GROUP, 1)
    assert answer is not None
    assert answer.rows[0].watermark == 70


def test_a_request_of_the_most_reports_is_not_refused() -> None:
    rows = pb.IntervalColumns(starts=[b""] * (MAX_REPORTS - 1))
    check_count(pb.ReportRequest(intervals=[pb.IntervalWatermark()], columns=[rows]))


# Their fences.


@pytest.mark.guarantee("G7", section="7.2")
def test_the_minimum_over_many_reports_is_broadcast() -> None:
    shard = Shard()
    owned = shard.own_all(THREE)
    assert shard.receive(by_columns([said(keys, sequencer, 100 + sequencer) for keys, sequencer in owned])) == []
    assert shard.known() == MIN_TIMESTAMP, "nothing is broadcast before it is journaled"
    shard.flush()
    assert shard.known() == 101
    shard.restart()
    assert shard.known() == 101


@pytest.mark.guarantee("G8", section="7.2")
def test_the_holds_of_many_reports_are_explained() -> None:
    shard = Shard()
    owned = shard.own_all(THREE)
    shard.receive(by_columns([said(keys, sequencer, 100 + sequencer) for keys, sequencer in owned]))
    answer = shard.core.explain(GROUP, shard.now)
    assert answer is not None
    assert {(row.hold, row.subject, row.input_watermark) for row in answer.rows} == {(pb.HOLD_KIND_TIMER, "britney", 5)}


@pytest.mark.guarantee("G4", section="6.2")
def test_a_zombie_among_many_is_refused_alone() -> None:
    shard = Shard()
    owned = shard.own_all(THREE)
    shard.accept(THREE[1], 9)
    (refusal,) = shard.receive(by_columns([said(keys, sequencer, 50) for keys, sequencer in owned]))
    assert refusal.superseded
    assert refusal.report == said(*owned[1], 50)
    shard.flush()
    assert shard.known() == MIN_TIMESTAMP, "the successor has reported nothing"
    assert shard.receive(by_columns([said(THREE[1], 9, 60)])) == []
    shard.flush()
    assert shard.known() == 50


@pytest.mark.guarantee("G4", section="6.2")
def test_an_interval_that_was_cut_is_refused() -> None:
    """What remains of a cut interval keeps its sequencer and its first key. Its owner owns less than it believes."""
    shard = Shard()
    shard.accept(ALL_KEYS, 1)
    shard.accept(KeyInterval(b"m", None), 2)
    (refusal,) = shard.receive(by_columns([said(ALL_KEYS, 1, 50)]))
    assert refusal.superseded
    (refusal,) = shard.receive(by_columns([said(KeyInterval(b"", b"c"), 1, 50)]))
    assert not refusal.superseded
    assert shard.receive(by_columns([said(KeyInterval(b"", b"m"), 1, 50)])) == []


@pytest.mark.guarantee("G4", section="7.2")
def test_reports_of_groups_that_are_unknown_or_gone_are_refused() -> None:
    shard = Shard()
    shard.own_all()
    (refusal,) = shard.receive(by_columns([said(ALL_KEYS, 1, 50, "stranger.3")]))
    assert not refusal.superseded
    shard.call(RemovalRequested(99, GROUP))
    (refusal,) = shard.receive(by_columns([said(ALL_KEYS, 1, 50)]))
    assert refusal.superseded


@pytest.mark.guarantee("G7", section="7.2")
def test_a_report_by_columns_that_was_overtaken_is_ignored() -> None:
    shard = Shard()
    shard.own_all()
    shard.receive(ReportsReceived([said(ALL_KEYS, 1, 50, number=7)]))
    assert shard.receive(by_columns([said(ALL_KEYS, 1, 90, number=6)])) == []
    shard.flush()
    assert shard.known() == 50


@pytest.mark.guarantee("G7", section="7.2")
def test_a_report_below_the_value_counts_as_the_value() -> None:
    shard = Shard()
    (left, one), (right, two) = shard.own_all(cut(b"m"))
    shard.receive(by_columns([said(left, one, 50), said(right, two, 70)]))
    shard.receive(by_columns([said(left, one, 20), said(right, two, 60)]))
    shard.flush()
    assert shard.known() == 50
    shard.core.check_invariants()
    answer = shard.core.explain(GROUP, shard.now)
    assert answer is not None
    assert [row.watermark for row in answer.rows] == [50, 60]


@pytest.mark.guarantee("G13", section="7.2")
def test_a_refused_report_of_all_keys_copies_no_members() -> None:
    bounds = [number.to_bytes(2, "big") for number in range(1, 2_000)]
    pieces = cut(*bounds)
    group = KeyedGroup(GROUP, states=[MemberState(keys, 5, MIN_TIMESTAMP) for keys in pieces])
    (columns,) = by_columns([said(ALL_KEYS, 4, 50), said(ALL_KEYS, 5, 50)]).columns
    group.report_columns(columns, 0)
    tracemalloc.start()
    try:
        refused = group.report_columns(columns, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [refusal.superseded for refusal in refused] == [True, False]
    assert peak < 10 * len(pieces), "less than a reference for each member, and some objects"


@pytest.mark.guarantee("G13", section="7.2")
def test_a_refused_report_of_all_keys_looks_at_few_members() -> None:
    """It counts as never accepted, so its owner announces itself. That looks at all members, and is refused."""
    pieces = cut(*(number.to_bytes(2, "big") for number in range(1, 2_000)))
    states = [MemberState(keys, 5, MIN_TIMESTAMP) for keys in pieces[:-1]]
    group = KeyedGroup(GROUP, states=[*states, MemberState(pieces[-1], 9, MIN_TIMESTAMP)])
    late = said(ALL_KEYS, 7, 50)
    (columns,) = by_columns([late]).columns
    assert [refusal.superseded for refusal in group.report_columns(columns, 0)] == [False]
    singly = group.report(late, 0)
    assert isinstance(singly, Refusal)
    assert not singly.superseded
    with pytest.raises(AcceptRefusedError, match="sequencer 9 holds"):
        group.accept(ALL_KEYS, 7)


# Who gets them.


def report_all(stream: ReportStream, watermark: int) -> None:
    for sequencer, keys in enumerate(THREE, start=1):
        stream.report(said(keys, sequencer, watermark))


@pytest.mark.guarantee("G8", section="7.2")
async def test_an_older_authority_gets_no_columns() -> None:
    """An older one does not state that it reads them, and would see an empty message."""
    newer, older = Authority(), Authority()
    streams = iter([newer, older])

    async def stub() -> tuple[WatermarkServiceAsyncStub, str]:
        return cast("WatermarkServiceAsyncStub", next(streams)), "an address"

    async def accepted(report: WatermarkReport) -> None:
        raise AssertionError("it was accepted before")

    stream = ReportStream(stub, accepted, lambda _: None, coalesce=0.001, refresh=60.0, backoff=Backoff(0.01))
    stream.start()
    try:
        async with asyncio.timeout(patience(10)):
            report_all(stream, 10)
            assert len((await newer.reports.get()).intervals) == 3, "nothing was stated"
            newer.answers.put_nowait(pb.ReportResponse(reads_columns=True))
            newer.answers.put_nowait(pb.ReportResponse(refused=[]))
            await newer.all_read()
            report_all(stream, 20)
            (columns,) = map(columns_from_wire, (await newer.reports.get()).columns)
            assert [report.watermark for report in columns.reports()] == [20, 20, 20]
            newer.answers.put_nowait(RequestError(FailureCode.UNAVAILABLE, "it has ended"))
            report_all(stream, 30)
            message = await older.reports.get()
            assert [report.watermark_us for report in message.intervals] == [30, 30, 30]
            assert not message.columns
    finally:
        await stream.close()


@pytest.mark.guarantee("G8", section="7.2")
async def test_an_older_reporter_is_understood(served: Served) -> None:
    """It does not know what the first response states, and sends each report singly."""
    await served.open_shard.accept(GROUP, ALL_KEYS, 1)
    async with grpc.aio.insecure_channel(served.address) as channel:
        call = WatermarkServiceStub(channel).Report()  # type: ignore[call-arg]
        await call.write(request_to_wire([said(ALL_KEYS, 1, 20)], by_columns=False))
        async with asyncio.timeout(patience(10)):
            async for news in served.open_shard.broadcasts.watch([GROUP]):
                if news[GROUP].watermark == 20:
                    break
        call.cancel()
