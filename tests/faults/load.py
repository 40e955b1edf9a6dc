"""A steady load that verifies itself: sources send predictable records, and subscribers note what they receive."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Final

import msgspec

from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.subscription import From, Subscription
from tests.faults.history import Advanced, History, Received, Sent, Subscribed
from tests.faults.history import Event as Happened
from tests.faults.program import STREAMS, Event, faults
from tests.faults.progress import Progress

__all__ = ["Load", "names", "wall_micros"]

_SOURCES: Final = ("left", "right")
_CHUNK: Final = 8
_PAUSE: Final = 0.25
_KEYS: Final = 24
_GROUPS: Final = 6
_INITIALS: Final = "Ak\u00e9"
"""What names begin with: of three intervals that share the keys evenly, each has one of these."""
_LATENESS: Final = 400_000
"""Microseconds by which records are out of order, at most."""
_LIVES: Final = 20.0
"""Seconds after which a subscriber gives way to the next."""
_PATIENCE: Final = 600.0


def wall_micros() -> int:
    """This process's wall clock. No fault changes it."""
    return time.time_ns() // 1_000


class Load:
    """Sources and subscribers, each a task of :meth:`run`, which ends when all streams have."""

    def __init__(self, address: str, history: History, seed: int) -> None:
        self._progress = Progress()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._address = address
        self._history = history
        self._seed = seed
        self._enough = asyncio.Event()

    def stop(self) -> None:
        """Send nothing any more, and end when everything has come."""
        self._enough.set()

    def lag(self) -> float:
        """For how many seconds the oldest outstanding result has been under way."""
        since = self._progress.since()
        return 0.0 if since is None else (wall_micros() - since) / 1e6

    def lag_as_text(self) -> str:
        """The outstanding results."""
        return f"{self._progress.as_text()}, for {self.lag():.0f} s"

    async def run(self) -> None:
        """Send and receive."""
        async with asyncio.TaskGroup() as group:
            for stream in STREAMS:
                group.create_task(self._read(stream))
            for number, source in enumerate(_SOURCES):
                group.create_task(self._send(source, random.Random(self._seed + number)))

    async def _send(self, source: str, chance: random.Random) -> None:
        settings = InjectorSettings(patience=_PATIENCE)
        position = 0
        async with Injector(
            "events", address=self._address, process=source, topology=faults, settings=settings
        ) as injector:
            while not self._enough.is_set():
                now = wall_micros()
                events = [_event(source, at, chance) for at in range(position, position + _CHUNK)]
                stamps = [now - chance.randrange(_LATENESS) for _ in events]
                await self._send_chunk(injector, events, stamps, now)
                position += _CHUNK
                await asyncio.sleep(_PAUSE * chance.uniform(0.5, 1.5))
            self._note(Advanced(wall_micros(), source, None))
            await injector.finish()

    async def _send_chunk(self, injector: Injector, events: list[Event], stamps: list[int], now: int) -> None:
        source, first = events[0].source, events[0].position
        self._note(Sent(now, source, first, [one.key for one in events], [one.group for one in events], stamps))
        positions = range(first, first + len(events))
        await injector.send_many(events, stamps, positions=positions)
        self.sent[source] += len(events)
        low = now - _LATENESS
        # Written down before it is said, so that nothing can follow from it before it is in the history.
        self._note(Advanced(wall_micros(), source, low))
        await injector.advance(low)

    async def _read(self, stream: str) -> None:
        """By one durable cursor, and one subscriber after another."""
        durable = 0
        while True:
            self._note(Subscribed(wall_micros(), stream, durable))
            async with Subscription(
                stream,
                cursor="verifier",
                start=From.OLDEST,
                record_type=STREAMS[stream],
                address=self._address,
                until_end=True,
                auto_ack=True,
                patience=_PATIENCE,
            ) as subscription:
                end = time.monotonic() + _LIVES
                async for batch in subscription:
                    values = [msgspec.to_builtins(value) for value in batch.values]
                    self._note(Received(wall_micros(), stream, batch.first_offset, values))
                    self.received[stream] += len(values)
                    if time.monotonic() > end:
                        break
                else:
                    return
                durable = subscription.durable

    def _note(self, event: Happened) -> None:
        self._history.add(event)
        self._progress.take(event)


def _event(source: str, position: int, chance: random.Random) -> Event:
    return Event(_name(chance.randrange(_KEYS)), _name(chance.randrange(_GROUPS)), source, position)


def names() -> list[str]:
    """Of all keys; those of groups begin likewise."""
    return sorted(_name(number) for number in range(_KEYS))


def _name(number: int) -> str:
    return f"{_INITIALS[number % len(_INITIALS)]}-{number:02}"
