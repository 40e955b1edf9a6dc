"""A cluster of daemons: records keep being counted once while each role's processes come and go (7.1, 7.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.subscription import From, Subscription
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import injector_group
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.identity import use_tls
from tests.daemons.together import Together, together
from tests.patience import patience
from tests.submitting import submit_copy
from tests.system import counting as counting_module
from tests.system.counting import WINDOW, Load, WindowCount, counting

_HERE = Path(__file__).parents[1] / "rpc" / "certificates"
CERTIFICATES = (_HERE / "one-ca.pem", _HERE / "one.pem", _HERE / "one.key")
RECORDS = 6_000
CHUNK = 500


async def feed(cluster: Together, load: Load, accidents: dict[int, str]) -> None:
    """Send everything, with an accident after some chunks."""
    async with Injector("events", address=cluster.address, process="feeder", topology=counting) as injector:
        records = list(islice(load.records(), RECORDS))
        for start in range(0, RECORDS, CHUNK):
            chunk = records[start : start + CHUNK]
            await injector.send_many([event for event, _ in chunk], [timestamp for _, timestamp in chunk])
            await injector.advance(mw.Timestamp((start + CHUNK) * load.spacing - WINDOW))
            if accident := accidents.get(start // CHUNK):
                await befall(cluster, accident)
        await injector.finish()


async def befall(cluster: Together, accident: str) -> None:
    if accident == "worker":
        await cluster.workers[0].stop()
        await asyncio.sleep(0.5)
        await cluster.workers[0].start()
    elif accident == "master":
        async with ControlClient(cluster.address, patience=20.0) as client:
            await client.list_topologies()
            leader = next(one for one in cluster.masters if one.address == client.address)
        await leader.stop()
    elif accident == "authority":
        await cluster.authorities[0].stop()


@pytest.mark.guarantee("G1", "G8", section="7")
async def test_results_are_right_while_daemons_come_and_go(tmp_path: Path) -> None:
    loaded = Load(seed=5)
    async with together(tmp_path) as cluster:
        await submit_copy(cluster.address, counting_module.__file__, "counting", tmp_path)
        accidents = {2: "worker", 5: "master", 8: "authority"}
        assert await _results(cluster, loaded, accidents) == loaded.expected(RECORDS)


async def test_with_tls_all_show_certificates_and_results_are_the_same(tmp_path: Path) -> None:
    tls = {f"rpc.tls_{name}": str(path) for name, path in zip(("ca", "cert", "key"), CERTIFICATES, strict=True)}
    loaded = Load(seed=6)
    async with together(tmp_path, tls) as cluster:
        await submit_copy(cluster.address, counting_module.__file__, "counting", tmp_path)
        assert await _results(cluster, loaded, {}) == loaded.expected(RECORDS)
        await _explained(cluster)
        use_tls(None)
        async with ControlClient(cluster.address) as stranger:
            with pytest.raises(RequestError, match="cannot reach"):
                await stranger.list_topologies()


async def _explained(cluster: Together) -> None:
    """A master tells what the authority's shards know."""
    async with ControlClient(cluster.address, patience=20.0) as client:
        record = (await client.get_topology("counting")).topology
        authority = WatermarkClient(client.address, on_refused=lambda report: None)
        computations = (record.incarnations["counter"], record.incarnations["adder"])
        for sender in (*computations, injector_group("counting/events")):
            async with asyncio.timeout(patience(20)):
                while (await authority.explain(sender)).watermark_us < MAX_TIMESTAMP:  # noqa: ASYNC110 only asking tells
                    await asyncio.sleep(0.05)
        await authority.close()


async def _results(cluster: Together, loaded: Load, accidents: dict[int, str]) -> Counter[WindowCount]:
    found: Counter[WindowCount] = Counter()
    async with (
        Subscription(
            "windows",
            cursor="test",
            start=From.OLDEST,
            record_type=WindowCount,
            address=cluster.address,
            until_end=True,
        ) as subscription,
        asyncio.timeout(patience(50)),
        asyncio.TaskGroup() as group,
    ):
        group.create_task(feed(cluster, loaded, accidents))
        async for batch in subscription:
            found.update(batch.values)
    assert subscription.watermark == MAX_TIMESTAMP
    return found


async def test_shards_are_spread_and_taken_over(tmp_path: Path) -> None:
    async with together(tmp_path) as cluster:
        async with asyncio.timeout(patience(20)):
            await cluster.until(lambda known: len(known.authorities) == 2)
        known = await cluster.catalog()
        assert known.authority_shards == 2
        assert sorted(_servers(known)) == sorted(one.address for one in cluster.authorities), "one each"
        await cluster.authorities[0].stop()
        async with asyncio.timeout(patience(20)):
            await cluster.until(lambda known: _servers(known) == [cluster.authorities[1].address] * 2)


def _servers(known: Catalog) -> list[str]:
    return [record.endpoint.worker_id for record in known.authorities.values()]
