"""Repeated requests for the keys of records that wait for them (section 4.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from itertools import takewhile
from typing import Final

from millwheel.client.injector.messages import KeysFound, within
from millwheel.client.injector.record_keys import RecordKeys
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.unkeyed import UnkeyedHead
from millwheel.model.incarnation import IncarnationId
from millwheel.model.wording import counted
from millwheel.rpc.key_failures import KEY_RETRY_SECONDS

__all__ = ["KeyRetries"]

log = logging.getLogger("millwheel.client")

_MAX_RECORDS: Final = 1_000
_MAX_BYTES: Final = 1 << 20
_MAX_QUESTIONS: Final = 32
"""Maximum requests in progress. Each has up to 1 MiB of records, and a consumer has at most one. A round takes longer
than workers assume (``KEY_ROUND``) only if the workers of more consumers than this hang."""


class _Outcome(Enum):
    RELEASED = auto()
    WAITS = auto()
    UNANSWERED = auto()


class KeyRetries:
    """Repeats requests for the keys of waiting records until no record waits.

    Each consumer has its own task, so a consumer whose workers hang does not delay the others. The task handles the
    consumer's queues one after the other. Invariant: records leave each queue in their order.
    """

    def __init__(self, session: InjectorSession, keying: RecordKeys, named: Callable[[IncarnationId], str]) -> None:
        self._session = session
        self._keying = keying
        self._named = named
        self._task: asyncio.Task[None] | None = None
        self._consumers: dict[IncarnationId, asyncio.Task[None]] = {}
        self._questions = asyncio.Semaphore(_MAX_QUESTIONS)

    def start(self) -> None:
        """Start the requests if records wait and no requests are running."""
        if self._session.core.unkeyed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name=f"keys of {self._session.core.stream}")

    async def close(self) -> None:
        """Stop all requests."""
        tasks = list(self._consumers.values())
        tasks += [] if self._task is None else [self._task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _goes_on(self) -> bool:
        core = self._session.core
        return bool(core.unkeyed) and self._session.is_open and core.failed is None

    async def _run(self) -> None:
        """Start a task for each consumer that has waiting records and no task."""
        while self._goes_on():
            self._consumers = {name: task for name, task in self._consumers.items() if not task.done()}
            for name in self._session.core.unkeyed.consumers().keys() - self._consumers.keys():
                self._consumers[name] = asyncio.create_task(self._serve(name), name=f"keys of {name}")
            await asyncio.sleep(KEY_RETRY_SECONDS)

    async def _serve(self, consumer: IncarnationId) -> None:
        """Request the keys of one consumer's records until none waits."""
        unkeyed = self._session.core.unkeyed
        logged: str | None = None
        while self._goes_on() and (found := unkeyed.consumers().get(consumer)):
            count, why = found
            if logged != why:
                wait = "waits for its key" if count == 1 else "wait for their keys"
                log.warning("%s: %s %s: %s", self._named(consumer), counted(count, "record"), wait, why)
                logged = why
            if not await self._round(consumer):
                await asyncio.sleep(KEY_RETRY_SECONDS)

    async def _round(self, consumer: IncarnationId) -> bool:
        """Try each queue of a consumer once. Returns whether any record got its key.

        After a request without an answer, the round sends no more requests. It then uses only keys that the injector
        finds itself. So workers that hang delay a round once.
        """
        released, ask = False, True
        for head in self._session.core.unkeyed.heads(_MAX_RECORDS, consumer):
            async with self._questions:
                outcome = await self._retry(head, ask=ask)
            ask = ask and outcome is not _Outcome.UNANSWERED
            released |= outcome is _Outcome.RELEASED
        return released

    async def _retry(self, head: UnkeyedHead, *, ask: bool) -> _Outcome:
        """Find the keys of the first records of a queue. ``ask``: whether a request to a worker is allowed."""
        routing, unkeyed = self._session.routing, self._session.core.unkeyed
        consumer = routing.consumers.get(head.consumer)
        if consumer is None or not unkeyed.is_current(head):
            return _Outcome.WAITS
        known = [row.key for row in takewhile(lambda row: row.key is not None, head.records)]
        values = [row.value for row in takewhile(lambda row: row.key is None, head.records[len(known) :])]
        keys, why, unanswered = [key for key in known if key is not None], "", False
        if values:
            waiting = unkeyed.summary(head.consumer) if ask else None
            column = await self._keying.of_waiting(consumer, within(values, _MAX_BYTES), waiting, routing)
            keys += column.keys
            why, unanswered = column.why, column.unknown
        self._session.step(KeysFound(head, keys, why))
        if unanswered:
            return _Outcome.UNANSWERED
        return _Outcome.RELEASED if keys else _Outcome.WAITS
