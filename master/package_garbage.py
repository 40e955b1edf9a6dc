"""Garbage collection of code packages that no topology names any more (section 7.1; G13)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millwheel.coordination.contract import DamagedValueError
from millwheel.master.packages import Packages
from millwheel.master.term import Term
from millwheel.model.catalog import Catalog, code_of
from millwheel.rpc.failures import RequestError
from millwheel.store.contract import StoreError

__all__ = ["collect_packages", "named_packages"]

_COLLECT_EVERY_SECONDS: Final = 600.0
_KEEP_IDLE_SECONDS: Final = 3_600.0
"""Seconds that a package is kept after its last request: a client uploads it shortly before it submits a topology."""

_log = logging.getLogger(__name__)


def named_packages(known: Catalog) -> frozenset[str]:
    """Return the digests of all code that live topologies run, or ran before their last update.

    DamagedValueError if they cannot be read.
    """
    return frozenset(
        code.digest
        for _, record in known.live_topologies()
        for spec in (record.spec, record.previous.spec)
        for code in (spec.code, *(code_of(spec, one) for one in spec.computations))
    )


async def collect_packages(term: Term, packages: Packages) -> None:
    """Drop unnamed packages until cancelled."""
    await term.ready()
    while True:
        await asyncio.sleep(_COLLECT_EVERY_SECONDS)
        try:
            for digest in await packages.collect(named_packages(term.catalog), _KEEP_IDLE_SECONDS):
                _log.info("code package %s is dropped: no topology names it", digest)
        except (DamagedValueError, StoreError, RequestError) as error:
            _log.warning("code packages could not be checked, trying again later: %s", error)
