"""A replica's registration, by which people see that it is there: ``masters/{address}`` under a lease of its own."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from millwheel.coordination.contract import Coordinator, CoordinatorError, Put
from millwheel.core.catalog_keys import master_key
from millwheel.core.time import Timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["keep_present"]

_RENEWALS: Final = 3
"""Renewals in one time to live: two may fail before the lease ends."""

_log = logging.getLogger(__name__)


async def keep_present(coordinator: Coordinator, address: str, ttl: float, now: Timestamp) -> None:
    """Be registered until cancelled; what fails is tried again, for nothing but what people see depends on it."""
    record = catalog.MasterRecord(address=address, started_at_us=now)
    put = (master_key(address), record.SerializeToString())
    while True:
        lease = 0
        try:
            lease = await coordinator.grant_lease(ttl)
            await coordinator.transact((), [Put(*put, lease)])
            while True:
                await asyncio.sleep(ttl / _RENEWALS)
                await coordinator.keep_alive(lease)
        except CoordinatorError as error:
            _log.info("this master is not registered for a while: %s", error)
            await asyncio.sleep(ttl / _RENEWALS)
        finally:
            if lease:
                # Where it cannot be ended now it ends by itself.
                with suppress(CoordinatorError):
                    await coordinator.revoke_lease(lease)
