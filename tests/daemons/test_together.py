"""A cluster of daemons: records keep being counted once while each role's processes come and go (7.1, 7.2)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from millwheel.client.control import ControlClient
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import injector_group
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.identity import use_tls
from tests.daemons.together import Together, together
from tests.faults import program
from tests.faults.load import Load, verified
from tests.patience import patience, until
from tests.submitting import submit_copy

_HERE = Path(__file__).parents[1] / "rpc" / "certificates"
CERTIFICATES = (_HERE / "one-ca.pem", _HERE / "one.pem", _HERE / "one.key")
CHUNK = 500


async def befall(cluster: Together, accident: str) -> None:
    if accident == "worker":
        await cluster.workers[0].stop()
        await asyncio.sleep(0.5)
        await cluster.workers[0].start()
    elif accident == "master":
        async with ControlClient(cluster.address, patience=patience(20)) as client:
            await client.list_topologies()
            leader = next(one for one in cluster.masters if one.address == client.address)
        await leader.stop()
    elif accident == "authority":
        await cluster.authorities[0].stop()


@pytest.mark.guarantee("G1", "G8", section="7")
async def test_results_are_right_while_daemons_come_and_go(tmp_path: Path) -> None:
    async with together(tmp_path) as cluster:
        await submit_copy(cluster.address, program.__file__, "faults", tmp_path)
        async with verified(cluster.address, tmp_path, seed=5) as load:
            for accident in ("worker", "master", "authority"):
                await _more(load)
                await befall(cluster, accident)
            await _more(load)


async def _more(load: Load) -> None:
    """Wait until it has sent some more, and windows of it are closed."""
    sent, windows = load.sent.total() + CHUNK, load.received["windows"]
    await until(lambda: load.sent.total() > sent and load.received["windows"] > windows, patience(50))


async def test_with_tls_all_show_certificates_and_results_are_the_same(tmp_path: Path) -> None:
    tls = {f"rpc.tls_{name}": str(path) for name, path in zip(("ca", "cert", "key"), CERTIFICATES, strict=True)}
    async with together(tmp_path, tls) as cluster:
        await submit_copy(cluster.address, program.__file__, "faults", tmp_path)
        async with verified(cluster.address, tmp_path, seed=6) as load:
            await _more(load)
        await _explained(cluster)
        use_tls(None)
        async with ControlClient(cluster.address) as stranger:
            with pytest.raises(RequestError, match="cannot reach"):
                await stranger.list_topologies()


async def _explained(cluster: Together) -> None:
    """A master says what the authority's shards know."""
    async with ControlClient(cluster.address, patience=patience(20)) as client:
        record = (await client.get_topology("faults")).topology
        authority = WatermarkClient(client.address, on_refused=lambda report: None)
        computations = (record.incarnations["numberer"], record.incarnations["adder"])
        for sender in (*computations, injector_group("faults/events")):
            ask = partial(authority.explain, sender)
            await until(ask, holds=lambda explained: explained.watermark_us >= MAX_TIMESTAMP)
        await authority.close()


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


async def test_a_worker_daemon_that_stops_is_no_lost_one(tmp_path: Path) -> None:
    async with together(tmp_path) as cluster, ControlClient(cluster.address, patience=patience(20)) as client:

        async def kinds() -> list[str]:
            return [one.kind for one in await client.list_events(kind="worker.")]

        await until(kinds, patience(20), holds=lambda found: found.count("worker.joined") == 2)
        await cluster.workers[0].stop()
        assert (await until(kinds, patience(20), holds=lambda found: len(found) == 3))[0] == "worker.left"


def _servers(known: Catalog) -> list[str]:
    return [record.endpoint.worker_id for record in known.authorities.values()]
