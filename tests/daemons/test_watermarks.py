"""Watermarks of a cluster with several authority shards, asked for from outside (7.2)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.daemons.together import together
from tests.faults import program
from tests.patience import patience
from tests.submitting import submit_copy
from tests.system.server import run_cli


@pytest.mark.guarantee("G8")
async def test_watermarks_of_all_shards_are_shown_on_every_process(tmp_path: Path) -> None:
    async with together(tmp_path) as cluster, asyncio.timeout(patience(50)):
        record = await submit_copy(cluster.address, program.__file__, "faults", tmp_path)
        await cluster.until(lambda known: len(known.authorities) == 2)
        for authority in cluster.authorities:
            shown = await run_cli(cluster.masters[0].address, "watermark", "show", "-o", "json")
            assert shown.code == 0, shown.err
            assert {row["name"] for row in json.loads(shown.out)} == {"faults/events", *record.incarnations}
            if authority is cluster.authorities[0]:
                await authority.stop()
                await cluster.until(
                    lambda known: (
                        {one.endpoint.address for one in known.authorities.values()} == {cluster.authorities[1].address}
                        and len(known.authorities) == 2
                    )
                )
