"""Every view for operators shows a key function that raises, in every process that runs it (section 4.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millwheel.client.injector import Injector
from millwheel.sdk.errors import KeyExtractionError
from millwheel.streams import Topology
from tests.system import regions as program
from tests.system.speaking import submit_source
from tests.system.test_failing_hooks import Watched, has, running, seen, update

SOURCE = Path(program.__file__).read_text()
MENDED = SOURCE.replace("[order.customer[:2]]", '.get(order.customer[:2], "elsewhere")')
OTHER = (
    MENDED.replace(
        "amount: int = 1",
        """amount: int = 1

    def __post_init__(self) -> None:
        raise ValueError("no amount")""",
    )
    .replace('refusing.source("orders", Order)', 'refusing.external("regions/orders", Order)')
    .replace(
        'refusing.add(Total, name="by-region", inputs={"orders"',
        'refusing.add(Total, name="by-region", inputs={"regions/orders"',
    )
)
"""Another topology that reads ``regions``. Its type refuses all records, and its schema does not say so."""
RAISES = "the key function of stream 'regions/orders' raises KeyError: 'zz' (regions.py:16 in region), since 20"
WAITS = "records of injector process 'p' wait for their keys and are not ACKed: fix the computation's code"

LOOKS = {
    "watermark of the one that fails": ("watermark", "explain", "regions/by-region"),
    "watermark of another": ("watermark", "explain", "regions/by-customer"),
    "topology": ("topology", "describe", "regions"),
    "health": ("cluster", "health"),
}


@asynccontextmanager
async def ordered(watched: Watched, topology: Topology | None = None) -> AsyncIterator[Injector]:
    """Send an order without a region, without waiting for its ACK."""
    async with Injector("orders", address=watched.server.address, process="p", topology=topology) as injector:
        order = program.Order("zz1") if topology is not None else {"customer": "zz1", "amount": 1}
        await injector.send(order, timestamp=1_000_000)
        await injector.advance(2_000_000)
        yield injector


@pytest.mark.guarantee("G8", section="4.2")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("where", ["a worker", "the injector"])
async def test_a_failing_key_function_is_seen_wherever_one_looks(tmp_path: Path, where: str) -> None:
    topology = program.regions if where == "the injector" else None
    async with running(tmp_path, SOURCE, "regions") as watched, ordered(watched, topology) as injector:
        for name, arguments in LOOKS.items():
            shown = await seen(lambda arguments=arguments: watched.cli(*arguments), has(RAISES, WAITS))  # type: ignore[misc]
            assert shown.code == (1 if name == "health" else 0), name
            if name.startswith("watermark"):
                assert "held by source regions/orders: the key function for computation regions/by-region" in shown.out
        cause = (await watched.json("watermark", "explain", "regions/by-customer"))["cause"]
        assert (cause["kind"], cause["process"], cause["subject"]) == ("key", "p", "regions/by-region")
        await seen(lambda: asyncio.sleep(0, injector.stall), lambda found: "KeyError: 'zz'" in found)
        assert "regions/by-region has not ACKed 1 record: there is no key for the first of them" in injector.stall
        assert "fix the computation's code" in injector.stall
        failures = await watched.metric("millwheel_key_failures_total")
        assert failures['{computation="by-region",stream="regions/orders",topology="regions"}'] >= 1
        log = watched.server.log.read_text()
        assert log.count("key function of stream 'regions/orders': KeyError: 'zz'\nTraceback") == 1
        await update(watched, MENDED)
        await injector.flush()
        for arguments in LOOKS.values():
            await seen(lambda arguments=arguments: watched.cli(*arguments), lambda found: "raise" not in found.out)  # type: ignore[misc]
        assert (await watched.cli("cluster", "health")).code == 0


@pytest.mark.timeout(120)
async def test_a_sole_consumers_failing_key_function_refuses_records(tmp_path: Path) -> None:
    lines = tmp_path / "orders.jsonl"
    lines.write_text('{"customer": "zz1"}\n')
    async with running(tmp_path, SOURCE, "refusing") as watched:
        with pytest.raises(KeyExtractionError, match="KeyError: 'zz'"):
            async with ordered(watched):
                pass
        refused = await watched.cli("inject", "file", "orders", str(lines))
        assert refused.code == 5
        assert "keyed for computation 'by-region' by key(region)" in refused.err
        health = await seen(lambda: watched.cli("cluster", "health"), has("computation refusing/by-region: the key"))
        assert health.code == 1
        assert "key function of stream 'refusing/orders' raised KeyError: 'zz' (refusing.py:16 in region)" in health.out
        assert "and no record waits for its key now" in health.out
        explained = await watched.cli("watermark", "explain", "refusing/by-region")
        assert "source refusing/orders: injector process" in explained.out, "which has nothing that it waits for"
        assert "raised KeyError: 'zz'" in explained.out


@pytest.mark.timeout(120)
async def test_a_key_function_failing_on_a_production_fails_the_hook(tmp_path: Path) -> None:
    async with running(tmp_path, SOURCE, "relaying") as watched, ordered(watched):
        for arguments in (("cluster", "health"), ("watermark", "explain", "relaying/by-region")):
            await seen(
                lambda arguments=arguments: watched.cli(*arguments),  # type: ignore[misc]
                has(
                    "computation relaying/relay: 1 key is blocked",
                    "process_record of key 'zz1' raises KeyExtractionError: stream 'relayed', keyed for computation "
                    "'by-region' by key(region): no key in a value of Order: KeyError: 'zz'",
                ),
            )
        await update(watched, MENDED)


@pytest.mark.timeout(120)
async def test_a_consumer_whose_type_refuses_a_record_is_seen(tmp_path: Path) -> None:
    async with running(tmp_path, MENDED, "regions") as watched:
        await submit_source(watched.server, "other", OTHER, "refusing")
        async with ordered(watched):
            held = "held by source regions/orders: the decoder for computation refusing/by-region raises"
            shown = await seen(lambda: watched.cli("watermark", "explain", "regions/by-customer"), has(held))
            assert (
                "the decoder of stream 'regions/orders' raises ValueDecodeError: stream 'regions/orders': {"
                in shown.out
            )
            assert "is no Order: no amount" in shown.out
            done = await watched.cli("topology", "cancel", "refusing", "--yes")
            assert done.code == 0, done.err
