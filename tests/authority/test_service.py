"""The watermark service and its client over loopback gRPC (5.2, 7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable

import grpc
import pytest

from millwheel.client.shards import ShardedWatermarks
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.backoff import Backoff
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import common_pb2
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub
from millwheel.rpc.watermarks import AcceptRefusedError, BroadcastUpdate, Member, WatermarkReport, report_to_wire
from tests.authority.conftest import Served
from tests.authority.shard import GROUP, INJECTOR, STREAM, cut
from tests.kept import kept
from tests.patience import patience, until

LEFT, RIGHT = cut(b"m")
QUICK = Backoff(first=0.01, largest=0.05)


def client(served: Served, refused: list[WatermarkReport] | None = None, refresh: float = 10.0) -> WatermarkClient:
    received = refused if refused is not None else []
    return WatermarkClient(served.where, on_refused=received.append, refresh=refresh, backoff=QUICK)


def said(watermark: int, sequencer: int = 1, member: Member = ALL_KEYS, group: str = GROUP) -> WatermarkReport:
    return WatermarkReport(group, member, sequencer, watermark, 99, pb.HOLD_KIND_TIMER, "britney")


async def reaches(updates: AsyncIterator[dict[str, BroadcastUpdate]], watermark: int, name: str = GROUP) -> None:
    before = MIN_TIMESTAMP
    async with asyncio.timeout(patience(10)):
        async for news in updates:
            if name in news:
                assert news[name].watermark >= before, "the watch went back"
                before = news[name].watermark  # type: ignore[assignment]
                if before == watermark:
                    return


@pytest.mark.guarantee("G4", section="7.2")
async def test_accept_report_watch_over_the_wire(served: Served) -> None:
    async with client(served) as owner:
        assert await owner.accept(GROUP, LEFT, 1) == MIN_TIMESTAMP
        assert await owner.accept(GROUP, RIGHT, 2) == MIN_TIMESTAMP
        updates = owner.watch([GROUP, "other.3"])
        first = await anext(updates)
        assert first == {
            GROUP: BroadcastUpdate(MIN_TIMESTAMP, ((LEFT, 1), (RIGHT, 2))),
            "other.3": BroadcastUpdate(MIN_TIMESTAMP),
        }
        owner.report(said(10, 1, LEFT))
        owner.report(said(20, 2, RIGHT))
        await reaches(updates, 10)
        assert await owner.accept(GROUP, KeyInterval(b"m", b"t"), 3) == 20
        assert await anext(updates) == {GROUP: BroadcastUpdate(10, ((KeyInterval(b"m", b"t"), 3),))}
        with pytest.raises(AcceptRefusedError, match="sequencer 3 holds"):
            await owner.accept(GROUP, RIGHT, 2)


@pytest.mark.guarantee("G4", section="6.2")
async def test_a_refused_zombie_is_notified_and_stops_reporting(served: Served) -> None:
    refused: list[WatermarkReport] = []
    async with client(served, refused) as zombie, client(served) as successor:
        await zombie.accept(GROUP, ALL_KEYS, 1)
        updates = successor.watch([GROUP])
        zombie.report(said(5))
        await reaches(updates, 5)
        await successor.accept(GROUP, ALL_KEYS, 2)
        zombie.report(said(1_000))
        await until(lambda: len(refused) == 1)
        assert (refused[0].group, refused[0].member, refused[0].sequencer) == (GROUP, ALL_KEYS, 1)
        assert kept(zombie.reports, WatermarkReport) == refused, "nothing else is kept"
        successor.report(said(6, 2))
        await reaches(updates, 6)
    assert served.registry.get_sample_value("millwheel_authority_refused_total", {"reason": "superseded"}) == 1


@pytest.mark.guarantee("G7", section="7.2")
async def test_reports_and_watches_survive_a_restart_of_the_authority(served: Served) -> None:
    async with client(served) as owner:
        await owner.accept(GROUP, LEFT, 1)
        await owner.accept(GROUP, RIGHT, 2)
        updates = owner.watch([GROUP])
        owner.report(said(10, 1, LEFT))
        owner.report(said(20, 2, RIGHT))
        await reaches(updates, 10)
        await served.kill()
        owner.report(said(30, 1, LEFT))
        await asyncio.sleep(0.05)
        await served.start()
        await reaches(updates, 20)
        owner.report(said(40, 2, RIGHT))
        await reaches(updates, 30)


@pytest.mark.guarantee("G8", section="7.2")
async def test_a_client_leaves_a_deposed_shard_for_its_successor(served: Served) -> None:
    async with client(served) as owner:
        await owner.accept(GROUP, ALL_KEYS, 1)
        updates = owner.watch([GROUP])
        owner.report(said(10))
        await reaches(updates, 10)
        await served.start()  # the first process is still there, and does not know
        owner.report(said(20))
        await reaches(updates, 20)
        assert served.open_shards[0].stopped is not None
        assert await owner.accept(GROUP, ALL_KEYS, 2) == 20


@pytest.mark.guarantee("G7", section="4.5")
async def test_a_watch_falling_back_on_a_deposed_shard_never_goes_back(served: Served) -> None:
    zombie = served.address
    async with client(served) as owner:
        await owner.accept(GROUP, ALL_KEYS, 1)
        owner.report(said(10))
        await reaches(owner.watch([GROUP]), 10)
    await served.start()  # the first process is still there, and will not know for a while
    async with client(served) as owner:
        owner.report(said(20))
        updates = owner.watch([GROUP])
        await reaches(updates, 20)
        owner.reports.forget(GROUP, ALL_KEYS)
        served.address = zombie
        await served.kill()
        received = await asyncio.wait_for(anext(updates), patience(5))
        assert received == {GROUP: BroadcastUpdate(20, ((ALL_KEYS, 1),))}
    assert served.open_shards[0].stopped is None


@pytest.mark.guarantee("G4")
async def test_a_refusal_of_an_old_sequencer_spares_the_present_one() -> None:
    refused: list[WatermarkReport] = []
    owner = WatermarkClient("127.0.0.1:1", on_refused=refused.append)
    owner.report(said(10, 3))
    owner.reports.received(pb.ReportResponse(refused=[report_to_wire(said(5, 1))]))
    assert refused == []
    owner.reports.received(pb.ReportResponse(refused=[report_to_wire(said(10, 3))]))
    assert [report.sequencer for report in refused] == [3]
    await owner.close()


@pytest.mark.guarantee("G8", section="7.2")
async def test_a_reporter_without_a_watch_leaves_a_deposed_shard(served: Served) -> None:
    async with client(served) as owner:
        await owner.accept(GROUP, ALL_KEYS, 1)
        owner.report(said(10))
        await reaches(served.open_shard.broadcasts.watch([GROUP]), 10)
        await served.start()
        owner.report(said(20))  # the old process receives this one, cannot journal it, and stops
        async with asyncio.timeout(patience(3)):
            await reaches(served.open_shard.broadcasts.watch([GROUP]), 20)


@pytest.mark.guarantee("G8", section="7.2")
async def test_a_watch_leaves_a_deposed_shard_for_the_known_successor(served: Served) -> None:
    async with client(served) as owner:
        updates = owner.watch([GROUP])
        await anext(updates)
        await served.start()
        assert await owner.accept(GROUP, ALL_KEYS, 1) == MIN_TIMESTAMP
        owner.report(said(20))
        async with asyncio.timeout(patience(3)):
            await reaches(updates, 20)
    assert served.open_shards[0].stopped is None


@pytest.mark.paper(section="7.2")
async def test_nearby_reports_share_a_message_a_lone_one_does_not_wait(served: Served) -> None:
    owner = WatermarkClient(served.address, on_refused=print, coalesce=0.3)
    async with owner:
        await owner.accept(GROUP, ALL_KEYS, 1)
        updates = owner.watch([GROUP])
        owner.report(said(1))
        await reaches(updates, 1)
        for watermark in range(2, 50):
            owner.report(said(watermark))
            await asyncio.sleep(0.001)
        await reaches(updates, 49)
    assert served.registry.get_sample_value("millwheel_authority_reports_total") == 2


@pytest.mark.guarantee("G8")
async def test_a_report_never_accepted_is_accepted_when_sent_again(served: Served) -> None:
    refused: list[WatermarkReport] = []
    async with client(served, refused) as owner:
        updates = owner.watch([GROUP])
        owner.report(said(10))
        await reaches(updates, 10)
        await owner.accept(GROUP, ALL_KEYS, 5)
        owner.report(said(20, 3))
        await until(lambda: len(refused) == 1)
        owner.report(said(30, 5))
        await reaches(updates, 30)


@pytest.mark.guarantee("G8")
async def test_unchanged_values_are_repeated_so_that_silence_is_a_sign(served: Served) -> None:
    async with client(served, refresh=0.05) as owner:
        await owner.accept(GROUP, LEFT, 1)
        await owner.accept(GROUP, RIGHT, 2)
        owner.report(said(10, 1, LEFT))
        for watermark in range(60):
            owner.report(said(watermark, 2, RIGHT))
            await asyncio.sleep(0.005)
        answer = await owner.explain(GROUP)
    assert [row.watermark_us for row in answer.holding] == [10]
    assert answer.holding[0].silence_us < 200_000


@pytest.mark.guarantee("G8")
async def test_explain_over_the_wire(served: Served) -> None:
    async with client(served) as owner:
        await owner.accept(GROUP, LEFT, 1)
        await owner.accept(GROUP, RIGHT, 2)
        owner.report(said(10, 1, LEFT))
        updates = owner.watch([GROUP])
        owner.report(said(30, 2, RIGHT))
        await reaches(updates, 10)
        answer = await owner.explain(GROUP, limit=1)
        assert (answer.watermark_us, answer.interval_count, answer.holding_count, len(answer.intervals)) == (
            10,
            2,
            1,
            1,
        )
        (row,) = answer.holding
        assert (row.keys, row.sequencer) == (common_pb2.KeyInterval(start=b"", end=b"m"), 1)
        assert (row.hold.kind, row.hold.subject, row.input_watermark_us) == (pb.HOLD_KIND_TIMER, "britney", 99)
        assert row.HasField("silence_us")
        owner.reports.forget(GROUP, LEFT)
        await owner.accept(GROUP, LEFT, 3)
        (row,) = (await owner.explain(GROUP)).holding
        assert (row.hold.kind, row.HasField("silence_us")) == (pb.HOLD_KIND_SILENT, False)
        with pytest.raises(RequestError, match=r"nothing was ever accepted for group 'nobody\.1'") as caught:
            await owner.explain("nobody.1")
        assert caught.value.code is FailureCode.NOT_FOUND


@pytest.mark.paper(section="5.2")
async def test_many_groups_are_explained_in_one_call(served: Served) -> None:
    async with client(served) as worker:
        await worker.accept(GROUP, ALL_KEYS, 1)
        worker.report(said(30))
        await worker.accept(INJECTOR, "p", 2)
        worker.report(said(20, 2, "p", INJECTOR))
        async with grpc.aio.insecure_channel(served.address) as channel:
            request = pb.ExplainWatermarksRequest(groups=[GROUP, "unknown.1", INJECTOR])
            stub = WatermarkServiceStub(channel)

            async def found() -> dict[str, tuple[int, int]]:
                answer = await stub.ExplainWatermarks(request)
                return {one.group: (one.watermark_us, one.holding.watermark_us) for one in answer.groups}

            expected = {GROUP: (30, 30), INJECTOR: (20, 20)}
            await until(found, patience(10), holds=lambda found: found == expected)
            with pytest.raises(grpc.aio.AioRpcError, match="has 10001 names"):
                await stub.ExplainWatermarks(pb.ExplainWatermarksRequest(groups=[GROUP] * 10_001))


async def test_injector_processes_over_the_wire(served: Served) -> None:
    async with client(served) as master, client(served) as process:
        await master.expect_injectors(STREAM, ["a", "b"])
        await process.accept(INJECTOR, "a", 1)
        process.report(said(10, 1, "a", INJECTOR))
        updates = master.watch([INJECTOR])
        assert (await anext(updates))[INJECTOR].sequencers == (("a", 1),)
        await until(lambda: served.registry.get_sample_value("millwheel_authority_reports_total") == 1)
        answer = await master.explain(INJECTOR)
        assert [(row.process, row.hold.kind) for row in answer.holding] == [("b", pb.HOLD_KIND_INJECTOR)]
        await process.accept(INJECTOR, "b", 2)
        process.report(WatermarkReport(INJECTOR, "b", 2, 5, idle=True))
        await reaches(updates, 10, INJECTOR)
        process.report(said(MAX_TIMESTAMP, 1, "a", INJECTOR))
        process.report(said(MAX_TIMESTAMP, 2, "b", INJECTOR))
        await reaches(updates, MAX_TIMESTAMP, INJECTOR)
        await master.remove(INJECTOR)
        with pytest.raises(RequestError):
            await master.explain(INJECTOR)


@pytest.mark.guarantee("G7", section="5.2")
async def test_what_an_earlier_connection_delivers_late_is_ignored(served: Served) -> None:
    async with client(served) as process:
        await process.accept(INJECTOR, "a", 1)
        process.report(said(10, 1, "a", INJECTOR))
        await reaches(served.open_shard.broadcasts.watch([INJECTOR]), 10, INJECTOR)
        await served.kill()
        await served.start()
        process.report(said(20, 1, "a", INJECTOR))
        await reaches(served.open_shard.broadcasts.watch([INJECTOR]), 20, INJECTOR)
        late = report_to_wire(WatermarkReport(INJECTOR, "a", 1, 15, idle=True, number=1))
        async with grpc.aio.insecure_channel(served.address) as channel:
            call = WatermarkServiceStub(channel).Report()  # type: ignore[call-arg]
            before = served.registry.get_sample_value("millwheel_authority_reports_total") or 0
            await call.write(pb.ReportRequest(intervals=[late]))
            await until(lambda: (served.registry.get_sample_value("millwheel_authority_reports_total") or 0) > before)
            call.cancel()
        (row,) = (await process.explain(INJECTOR)).intervals
    assert (row.watermark_us, row.idle) == (20, False)


@pytest.mark.guarantee("G8")
async def test_an_unsendable_report_is_logged_and_retried(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    async with client(served) as owner:
        await owner.accept(GROUP, ALL_KEYS, 1)
        owner.report(said(1 << 63))
        await until(lambda: "watermarks cannot be reported" in caplog.text)
        owner.report(said(20))
        await reaches(served.open_shard.broadcasts.watch([GROUP]), 20)


async def test_a_watch_of_many_sequencers_gets_bounded_messages(served: Served) -> None:
    pieces = cut(*(b"%05d" % n for n in range(1, 12_000)))
    accepted = await asyncio.gather(
        *(served.open_shard.accept(GROUP, keys, n) for n, keys in enumerate(pieces, start=1))
    )
    assert set(accepted) == {MIN_TIMESTAMP}
    await served.open_shard.report([WatermarkReport(GROUP, keys, n, 7) for n, keys in enumerate(pieces, start=1)])
    await reaches(served.open_shard.broadcasts.watch([GROUP]), 7)
    async with grpc.aio.insecure_channel(served.address) as channel:
        call = WatermarkServiceStub(channel).WatchWatermarks(pb.WatchWatermarksRequest(groups=[GROUP]))
        seen: dict[bytes, int] = {}
        sizes, values = [], []
        async for response in call:
            (update,) = response.watermarks
            sizes.append(len(update.sequencers))
            values.append(update.watermark_us)
            seen.update({found.keys.start: found.sequencer for found in update.sequencers})
            if len(seen) == len(pieces):
                break
        call.cancel()
    assert max(sizes) <= 5_000
    assert values == [MIN_TIMESTAMP, MIN_TIMESTAMP, 7], "a value comes after the sequencers behind it"
    assert seen == {keys.start: n for n, keys in enumerate(pieces, start=1)}


def keyed(**fields: object) -> pb.IntervalWatermark:
    values: dict[str, object] = {"group": GROUP, "keys": common_pb2.KeyInterval(), "sequencer": 1}
    return pb.IntervalWatermark(**(values | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "where", "why"),
    [
        (keyed(group=""), "group", "name an incarnation"),
        (keyed(group="injector/"), "group", "name an incarnation"),
        (keyed(group="x" * 2_000), "group", "1024 are the most"),
        (keyed(sequencer=0), "sequencer", "is 0"),
        (keyed(keys=None), "keys", "is missing"),
        (keyed(keys=common_pb2.KeyInterval(start=b"b", end=b"a")), "keys", "empty key interval"),
        (keyed(process="p"), "process", "is no injector"),
        (keyed(group=INJECTOR, process="p"), "keys", "has processes, no keys"),
        (keyed(group=INJECTOR, keys=None), "process", "name the process"),
    ],
)
async def test_a_malformed_report_is_refused_with_the_field_named(
    served: Served, message: pb.IntervalWatermark, where: str, why: str
) -> None:
    await served.check_refused(pb.ReportRequest(intervals=[keyed(), message]), f"intervals[1].{where}", why)


async def test_malformed_requests_are_refused_with_the_field_named(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        stub = WatermarkServiceStub(channel)
        calls = [
            (stub.AcceptSequencer(pb.AcceptSequencerRequest(group=GROUP, sequencer=1)), "keys"),
            (stub.ExplainWatermark(pb.ExplainWatermarkRequest(group="x", limit=1_000_000)), "limit"),
            (stub.ExpectInjectors(pb.ExpectInjectorsRequest()), "stream"),
            (stub.ExpectInjectors(pb.ExpectInjectorsRequest(stream="s", processes=["a", ""])), "processes[1]"),
            (stub.RemoveGroup(pb.RemoveGroupRequest()), "group"),
            (stub.WatchWatermarks(pb.WatchWatermarksRequest()).read(), "groups"),
            (stub.WatchWatermarks(pb.WatchWatermarksRequest(groups=["a", ""])).read(), "groups[1]"),
        ]
        for call, where in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call  # type: ignore[misc]
            error = from_rpc_error(caught.value)
            assert (error.code, [problem.where for problem in error.problems]) == (
                FailureCode.INVALID_ARGUMENT,
                [where],
            )


@pytest.mark.guarantee("G13")
async def test_a_client_closes_connections_to_shards_it_stopped_using() -> None:
    """Regression: an injector kept a connection for each former consumer of its stream."""

    class Apart:
        def shard_of(self, group: str) -> Hashable:
            return group

        async def address_of(self, shard: Hashable) -> str:
            return "127.0.0.1:1"

    async with ShardedWatermarks(Apart(), on_refused=lambda _: None) as sharded:
        for number in range(5):
            lasting = sharded.client_for("injector/s")
            sharded.client_for(f"c.{number}")
            sharded.keep(["injector/s", f"c.{number}"])
            await until(lambda: len(kept(sharded, WatermarkClient)) == 2)
        assert sharded.client_for("injector/s") is lasting
