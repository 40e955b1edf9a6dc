"""One connected trace of a record, from its injector through three computations to a subscriber, over real OTLP."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.config import OtlpSection
from millwheel.server.dev_server import DevSettings, running
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import Server, run_cli
from tests.telemetry import stages
from tests.telemetry.receiver import Received, attributes_of, client_traces, receiver, tree_of
from tests.telemetry.stages import Sale, Total

SOURCE = Path(stages.__file__).read_text()
SECRET = "shop-with-a-private-name"
WAY = Counter(
    {
        "send stages/sales": 1,
        "receive stages/sales": 1,
        "process stages/sales": 1,
        "commit check": 1,
        "send stages/checked": 1,
        "receive stages/checked": 1,
        "process stages/checked": 1,
        "commit add": 1,
        "fire add": 1,
        "send stages/totals": 1,
        "receive stages/totals": 1,
        "process stages/totals": 1,
        "commit rank": 1,
        "send stages/ranks": 1,
        # By the log, and by the subscriber.
        "receive stages/ranks": 2,
    }
)


async def first_total(subscription: Subscription) -> None:
    """Wait for the first record of the subscription. Its trace is the one that the program gets."""
    async for batch in subscription:
        if batch.values:
            assert list(batch.traces) == [0], "by offset"
            return


async def send_through(address: str, *sales: Sale) -> None:
    """Send sales, and let time pass, until the last stage's result has reached a subscriber."""
    async with (
        asyncio.timeout(patience(40)),
        Subscription("stages/ranks", cursor="c", record_type=Total, address=address) as subscription,
        Injector("stages/sales", address=address, process="till", topology=stages.stages) as injector,
    ):
        for position, sale in enumerate(sales):
            await injector.send(sale, timestamp=position, position=position)
        await injector.advance(2_000_000)
        await first_total(subscription)
        await injector.flush()


async def complete(received: Received, names: Counter[str]) -> None:
    """Wait until all spans are received."""
    async with asyncio.timeout(patience(20)):
        await until(lambda: names <= received.names(), every=0.05)


async def test_one_trace_leads_from_injector_to_subscriber(tmp_path: Path) -> None:
    async with receiver() as received:
        settings = DevSettings(tmp_path / "db", port=0, otlp=OtlpSection(received.endpoint, delay_seconds=0.05))
        async with running(settings) as server:
            await submit_copy(server.address, stages.__file__, "stages", tmp_path)
            with client_traces(received.endpoint):
                await send_through(server.address, Sale(SECRET, 3))
            await complete(received, WAY)
    assert received.names() == WAY, tree_of(received)
    assert len(received.traces()) == 1
    assert [root.name for root in received.roots()] == ["send stages/sales"]
    assert received.orphans() == []
    assert set(received.services.values()) == {"program", "millwheel-dev"}
    add = attributes_of(received.named("receive stages/checked")[0])
    assert add["millwheel.topology"] == "stages"
    assert add["millwheel.computation"] == "add"
    assert add["millwheel.interval"] == "[, )"
    assert add["messaging.destination.name"] == "stages/checked"
    assert not [one for one in received.spans.values() if SECRET in str(one)], "a key is private"


async def test_a_trace_goes_on_after_a_worker_is_killed(tmp_path: Path) -> None:
    """The record is not ACKed when its worker is killed. Its sender sends it again, with the same trace."""
    gate = tmp_path / "gate"
    gate.touch()
    code = tmp_path / "stages.py"
    code.write_text(SOURCE.replace('Path("no gate")', f"Path({str(gate)!r})"))
    async with receiver() as received:
        options = ["--otlp-endpoint", received.endpoint, "--no-ui"]
        async with Server(tmp_path / "db", tmp_path / "log", options=options) as server:
            submitted = await run_cli(server.address, "topology", "submit", f"{code}:stages")
            assert submitted.code == 0, submitted.err
            with client_traces(received.endpoint):
                sending = asyncio.create_task(send_through(server.address, Sale(SECRET, 3)))
                async with asyncio.timeout(patience(30)):
                    await until(lambda: received.named("process stages/sales"), every=0.05)
                    await server.kill()
                    gate.unlink()
                    await server.start()
                    await sending
            await complete(received, WAY)
            metrics = "millwheel_records_total".removesuffix("_total")
            await until(lambda: metrics in received.metrics, patience(40), every=0.1)
    assert len(received.traces()) == 1, tree_of(received)
    assert [root.name for root in received.roots()] == ["send stages/sales"]
    failed = [one for one in received.named("process stages/sales") if one.status.code == Status.STATUS_CODE_ERROR]
    assert attributes_of(failed[0])["error.type"] == "RuntimeError"
    events = [event.name for event in received.roots()[0].events]
    assert "sent again" in events
    assert events[-1] == "acked"
    assert set(received.orphans()) <= {"process stages/sales"}, "only the killed owner's own spans are lost"
    for one in received.spans.values():
        assert SECRET not in str(one)
        assert "secret text" not in str(one)


async def test_the_programs_own_span_is_the_parent(tmp_path: Path) -> None:
    """Without a ratio, only what is sent within a span is traced: each record by the span of its own caller."""
    async with receiver() as received:
        settings = DevSettings(tmp_path / "db", port=0, otlp=OtlpSection(received.endpoint, delay_seconds=0.05))
        async with running(settings) as server:
            await submit_copy(server.address, stages.__file__, "stages", tmp_path)
            with client_traces(received.endpoint, 0.0) as provider:
                await _send_in_spans(server.address, provider.get_tracer("shop"))
            expected = Counter({"till 0": 1, "till 1": 1, "send stages/sales": 2, "receive stages/sales": 2})
            await complete(received, expected)
    parents = {received.spans[one.parent_span_id].name for one in received.named("send stages/sales")}
    assert parents == {"till 0", "till 1"}
    assert len(received.named("send stages/sales")) == 2, "the sales outside of any span have no trace"


async def _send_in_spans(address: str, tracer: trace.Tracer) -> None:
    """Four sales within one turn of the event loop: two of them within spans."""
    async with (
        asyncio.timeout(patience(40)),
        Injector("stages/sales", address=address, process="till", topology=stages.stages) as injector,
    ):
        for number in range(2):
            with tracer.start_as_current_span(f"till {number}"):
                await injector.send(Sale("s", 1), timestamp=number)
            await injector.send(Sale("s", 1), timestamp=number)
        await injector.flush()
