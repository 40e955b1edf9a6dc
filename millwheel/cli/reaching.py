"""Clients of commands that wait for a server which is still starting, and say on stderr that they wait."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.rpc.waiting import wait_notices

__all__ = ["patient_client"]

_FIRST_NOTICE_SECONDS: Final = 1.0
_NEXT_NOTICE_SECONDS: Final = 10.0


@asynccontextmanager
async def patient_client(address: str, timeout: float, patience: float) -> AsyncIterator[ControlClient]:
    """A client that tries again while the server cannot be reached.

    Args:
        address: the masters' addresses.
        timeout: the most seconds that one call may take.
        patience: seconds for which a call that fails in passing is tried again; 0 fails at once.
    """
    async with ControlClient(address, deadline=timeout, patience=patience) as client:

        def describe(seconds: float) -> str:
            return f"waiting for {seconds:.0f} s by now, {patience:g} s at most (--patience), for {client.awaited()}"

        def say(notice: str) -> None:
            # A call that is merely slow has not failed: no notice.
            if client.failure is not None:
                print(notice, file=sys.stderr, flush=True)

        with wait_notices(describe, say, first=_FIRST_NOTICE_SECONDS, again=_NEXT_NOTICE_SECONDS):
            yield client
