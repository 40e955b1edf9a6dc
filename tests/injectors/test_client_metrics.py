"""The metrics of a program that injects and subscribes, against a real server (5.2, 4.3)."""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.child import free_ports
from millwheel.client.injector import Injector, InjectorSettings, Limits
from millwheel.client.metrics import register_metrics
from millwheel.client.subscription import Subscription
from millwheel.server.dev_server import DevServer
from tests.injectors import injected_shop as sample
from tests.injectors.conftest import Submit
from tests.injectors.injected_shop import Order
from tests.injectors.inside import admission_of, session_of
from tests.injectors.test_files import command, line
from tests.patience import patience, until

ORDERS = [Order(f"user-{number % 7}", number) for number in range(100)]
TIMES = [1_000_000 + number for number in range(100)]
SMALL = InjectorSettings(patience=patience(10), limits=Limits(window_records=10))


async def test_metrics_show_what_was_sent_received_and_acked(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    registry = CollectorRegistry()
    register_metrics(registry)

    def sent(name: str, **more: str) -> float | None:
        labels = {"stream": "shop/orders", "process": "measured", **more}
        return registry.get_sample_value(f"millwheel_injector_{name}", labels)

    def received(name: str) -> float | None:
        labels = {"stream": "shop/echo", "cursor": "measured"}
        return registry.get_sample_value(f"millwheel_subscription_{name}", labels)

    injector = Injector("orders", address=server.address, process="measured", topology=sample.shop, settings=SMALL)
    async with Subscription("echo", cursor="measured", address=server.address) as reader:
        async with injector:
            await injector.send_many(ORDERS, TIMES)
            await injector.advance(2_000_000)
            await injector.flush()
            consumers = len(session_of(injector).routing.consumers)
            assert sent("sent_records_total") == 100
            assert sent("table_records_total", form="columns") == sent("table_records_total", form="rows") == 0
            assert sent("acks_total") == 100 * consumers
            assert sent("unacked_records") == sent("unacked_bytes") == sent("failed") == 0
            assert sent("watermark_timestamp_seconds") == 2.0
            assert (sent("data_lag_seconds") or 0) > 1_000_000_000
            assert (sent("blocked_seconds_total", cause="window") or 0) > 0, "100 records do not fit into the window"
            assert sent("blocked_seconds_total", cause="skew") == 0
        assert sent("sent_records_total") == 100, "the counts of a closed injector stay"
        assert sent("unacked_records") is None
        while reader.received < 100:
            await anext(reader)
        assert received("received_records_total") == 100
        assert received("acked_records_total") == 0
        assert received("unacked_records") == 100
        assert received("lag_records") == 0
        await reader.ack(60)
        await reader.flush()
        assert received("acked_records_total") == 60
        assert received("unacked_records") == 40
    async with Subscription("echo", cursor="measured", address=server.address):
        assert received("received_records_total") == 100, "the second one has returned none"
        assert received("acked_records_total") == 60
        assert received("unacked_records") == 0
        assert received("lag_records") == 40


async def test_metrics_show_how_tables_were_sent(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    registry = CollectorRegistry()
    register_metrics(registry)
    columns = {"user": [one.customer for one in ORDERS], "number": [one.number for one in ORDERS], "at": TIMES}
    async with Injector("orders", address=server.address, process="tables") as injector:
        await injector.send_table(pa.table(columns), timestamp="at")
        await injector.send_table(pa.table({**columns, "more": [None] * 100}).slice(0, 30), timestamp="at")
    labels = {"stream": "shop/orders", "process": "tables"}
    name = "millwheel_injector_table_records_total"
    counts = [registry.get_sample_value(name, {**labels, "form": form}) for form in ("columns", "rows")]
    assert counts == [100, 30]


async def test_a_throttled_injector_counts_the_time_of_its_wait(server: DevServer, submit: Submit) -> None:
    await submit("throttled")
    fast = Injector("orders", address=server.address, process="fast", topology=sample.throttled)
    slow = Injector("orders", address=server.address, process="slow", topology=sample.throttled)
    async with fast, slow:
        for each in (fast, slow):
            await each.send(ORDERS[0], timestamp=1_000_000)
            await each.advance(1_000_000)
        await fast.advance(60_000_000)
        waits = admission_of(fast).waits
        waiting = asyncio.create_task(fast.send(ORDERS[1], timestamp=60_000_000))
        await until(lambda: sum(waits.seconds().values()) > 0.01)
        assert not waiting.done()
        await slow.advance(60_000_000)
        await waiting
        window, skew = (waits.seconds()[cause] for cause in waits.seconds())
        assert window == 0
        assert skew > 0.01


def scraped(port: int) -> dict[str, float]:
    """The metrics of the injector at a port. Empty while there is no page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience(10)) as response:
            text = response.read().decode()
    except OSError:
        return {}
    labels = {"stream": "shop/orders", "process": "cli"}
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples if sample.labels == labels}


async def test_a_command_that_tails_files_serves_its_metrics(server: DevServer, submit: Submit, tmp_path: Path) -> None:
    await submit("shop")
    (tmp_path / "a.jsonl").write_text(line(1) + line(2))
    (port,) = free_ports(1)
    page = ["--metrics-port", str(port), "--address", server.address]
    options = ["inject", "file", "orders", str(tmp_path / "a.jsonl"), "--process", "cli", "--tail", *page]
    program = [sys.executable, "-c", "from millwheel.cli.main import main; main()", *options]
    quiet = asyncio.subprocess.DEVNULL
    tail = await asyncio.create_subprocess_exec(*program, stdout=quiet, stderr=quiet)
    try:
        sent = "millwheel_injector_sent_records_total"
        found = await until(lambda: scraped(port), patience(60), holds=lambda found: found.get(sent) == 2)
        assert found["millwheel_injector_failed"] == 0
        code, _, errors = await command(server, *options[:6], "--metrics-port", str(port))
        assert code != 0
        assert f"cannot serve metrics on 127.0.0.1:{port}" in errors
    finally:
        tail.terminate()
        await tail.wait()
