"""Code packages that no topology names any more, found and dropped now and then (section 7.1; G13)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millwheel.coordination.contract import DamagedValueError
from millwheel.core.catalog import Catalog, code_of
from millwheel.master.packages import Packages
from millwheel.master.term import Term
from millwheel.rpc.failures import RequestError
from millwheel.store.contract import StoreError

__all__ = ["collect_packages", "named_packages"]

_EVERY: Final = 600.0
_IDLE: Final = 3_600.0
"""Seconds that a package is kept after it was last asked for: whoever submits a topology has just uploaded it."""

_log = logging.getLogger(__name__)


def named_packages(known: Catalog) -> frozenset[str]:
    """The digests of all code that live topologies run. DamagedValueError if that is not known."""
    return frozenset(
        code.digest
        for _, record in known.live_topologies()
        for code in (record.spec.code, *(code_of(record.spec, one) for one in record.spec.computations))
    )


async def collect_packages(term: Term, packages: Packages, every: float = _EVERY, idle: float = _IDLE) -> None:
    """Drop what nobody names, until this task is cancelled; seconds."""
    await term.ready()
    while True:
        await asyncio.sleep(every)
        try:
            for digest in await packages.collect(named_packages(term.catalog), idle):
                _log.info("code package %s is dropped: no topology names it", digest)
        except (DamagedValueError, StoreError, RequestError) as error:
            _log.warning("code packages could not be gone through, trying again later: %s", error)
