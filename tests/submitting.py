"""Submits a topology from a test module to a cluster."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from millwheel.cli.loading import load
from millwheel.client.control import ControlClient
from millwheel.rpc.v1.catalog_pb2 import TopologyRecord
from tests.patience import patience


async def submit_copy(
    address: str, source: str | Path, name: str, place: Path, within: float = patience(20)
) -> TopologyRecord:
    """Submit the topology ``name`` of the module in file ``source``, by a copy of it in ``place``.

    The copy is outside the tests' package, so that the topology's code has only this module.
    """
    packaged = await asyncio.to_thread(load, f"{shutil.copy(source, place)}:{name}")
    async with ControlClient(address, patience=within) as client:
        await client.upload_package(packaged.package.digest, packaged.package.data)
        return await client.submit(packaged.spec())
