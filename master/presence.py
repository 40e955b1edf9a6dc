"""A replica's registration, visible to operators: ``masters/{address}`` under its own lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millwheel.coordination.contract import Coordinator, CoordinatorError
from millwheel.coordination.leased_key import RENEWALS, LeasedKey
from millwheel.model.catalog_keys import master_key
from millwheel.model.time import Timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["keep_present"]

_log = logging.getLogger(__name__)


async def keep_present(
    coordinator: Coordinator,
    address: str,
    ttl: float,
    clock: Callable[[], Timestamp],
    console: str = "",
    longest_stall: Callable[[], float] = lambda: 0.0,
) -> None:
    """Stay registered until cancelled. Failures are retried, because only the display to operators depends on it.

    Args:
        coordinator: Where to register.
        address: This master's address.
        ttl: The time to live of the registration, in seconds.
        clock: The wall clock.
        console: The URL of this master's web console.
        longest_stall: For how many seconds this process did not get to run at a time, within the last minute.
    """
    record = catalog.MasterRecord(address=address, started_at_us=clock(), console=console)
    key = LeasedKey(coordinator, master_key(address), ttl)
    try:
        while True:
            try:
                await key.write(record.SerializeToString())
                while True:
                    await asyncio.sleep(ttl / RENEWALS)
                    await key.renew()
            except CoordinatorError as error:
                _log.info("this master is not registered for a while: %s", error)
                record.interrupted_at_us = clock()
                await asyncio.sleep(ttl / RENEWALS)
                # Only now: a process that has just been resumed has not measured its stall yet.
                stall = longest_stall()
                stood = f"its process did not get to run for {stall:.1f} s" if stall > ttl / 2 else ""
                record.interruption = stood or str(error)
    finally:
        await key.end()
