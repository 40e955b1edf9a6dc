"""Looking again for the keys of records that wait for them (section 4.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Final

from millwheel.client.injector.keying import RecordKeys
from millwheel.client.injector.messages import within
from millwheel.client.injector.session import Session
from millwheel.client.injector.unkeyed import UnkeyedHead
from millwheel.core.wording import counted

__all__ = ["KeyRetries"]

log = logging.getLogger("millwheel.client")

_RETRY_SECONDS: Final = 1.0
_MAX_RECORDS: Final = 1_000
_MAX_BYTES: Final = 1 << 20


class KeyRetries:
    """Asks for the keys of waiting records again and again, for as long as some wait."""

    def __init__(self, session: Session, keying: RecordKeys, named: Callable[[str], str]) -> None:
        self._session = session
        self._keying = keying
        self._named = named
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if records wait."""
        if self._session.core.unkeyed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name=f"keys of {self._session.core.stream}")

    async def close(self) -> None:
        """Look for no more keys."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        session, unkeyed = self._session, self._session.core.unkeyed
        logged: dict[str, str] = {}
        while unkeyed and session.is_open and session.core.failed is None:
            for name, (count, why) in unkeyed.consumers().items():
                if logged.get(name) != why:
                    wait = "waits for its key" if count == 1 else "wait for their keys"
                    log.warning("%s: %s %s: %s", self._named(name), counted(count, "record"), wait, why)
                    logged[name] = why
            released = [await self._retry(head) for head in unkeyed.heads(_MAX_RECORDS)]
            if not any(released):
                await asyncio.sleep(_RETRY_SECONDS)

    async def _retry(self, head: UnkeyedHead) -> bool:
        """Ask for the keys of the first records of a queue; whether any goes on."""
        routing = self._session.routing
        consumer = routing.consumers.get(head.consumer)
        if consumer is None:
            return False
        known = [row.key for row in takewhile(lambda row: row.key is not None, head.records)]
        values = [row.value for row in takewhile(lambda row: row.key is None, head.records[len(known) :])]
        keys, why = [key for key in known if key is not None], ""
        if values:
            column = await self._keying.column(consumer, None, within(values, _MAX_BYTES), None, routing)
            keys += column.keys
            why = column.why
        self._session.keyed(head, keys, why)
        return bool(keys)
