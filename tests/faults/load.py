"""A steady load that verifies itself: sources send what can be known, subscribers write down what they get."""

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
from tests.faults.program import STREAMS, WINDOW, Event, faults

__all__ = ["Lag", "Load", "names", "wall_micros"]

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
    """This process's clock, which nobody shifts."""
    return time.time_ns() // 1_000


class Lag:
    """What was sent and has not come out yet."""

    def __init__(self) -> None:
        self._records: dict[str, dict[tuple[str, int], int]] = {"totals": {}, "passed": {}}
        """By the stream in which they have to come."""
        self._windows: dict[tuple[str, int], None] = {}
        self._promised: dict[str, int] = {}
        self._due: dict[int, int] = {}
        """By a window's end, when it could have been closed."""

    def sent(self, event: Sent) -> None:
        """These are on their way."""
        rows = zip(event.keys, event.timestamps, strict=True)
        for position, (key, timestamp) in enumerate(rows, event.first):
            for records in self._records.values():
                records[event.source, position] = event.at
            self._windows[key, timestamp - timestamp % WINDOW + WINDOW] = None

    def promised(self, source: str, watermark: int) -> None:
        """Nothing older comes from this source."""
        self._promised[source] = watermark
        if len(self._promised) == len(_SOURCES):
            low = min(self._promised.values())
            for _, end in self._windows:
                if end <= low:
                    self._due.setdefault(end, wall_micros())

    def received(self, event: Received) -> None:
        """These came."""
        for value in event.values:
            if event.stream == "windows":
                self._windows.pop((value[0], value[1]), None)
            elif event.stream in self._records:
                self._records[event.stream].pop((value[-2], value[-1]), None)

    def as_text(self) -> str:
        """What is waited for."""
        due = [end for _, end in self._windows if end in self._due]
        records = {name: len(waiting) for name, waiting in self._records.items()}
        return f"{records} records and {len(due)} windows are under way, for {self.seconds():.0f} s"

    def seconds(self) -> float:
        """For how long what is waited for longest has been under way."""
        records = [at for waiting in self._records.values() for at in waiting.values()]
        since = [*records, *(self._due[end] for _, end in self._windows if end in self._due)]
        return (wall_micros() - min(since)) / 1e6 if since else 0.0


class Load:
    """Sources and subscribers, each a task of :meth:`run`, which ends when all streams have."""

    def __init__(self, address: str, history: History, seed: int) -> None:
        self.lag = Lag()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._address = address
        self._history = history
        self._seed = seed
        self._enough = asyncio.Event()

    def stop(self) -> None:
        """Send nothing any more, and end when everything has come."""
        self._enough.set()

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
            self._history.add(Advanced(wall_micros(), source, None))
            await injector.finish()

    async def _send_chunk(self, injector: Injector, events: list[Event], stamps: list[int], now: int) -> None:
        source, first = events[0].source, events[0].position
        sent = Sent(now, source, first, [one.key for one in events], [one.group for one in events], stamps)
        self._history.add(sent)
        self.lag.sent(sent)
        positions = range(first, first + len(events))
        await injector.send_many(events, stamps, positions=positions)
        self.sent[source] += len(events)
        low = now - _LATENESS
        # Written down before it is said, so that nothing can follow from it before it is in the history.
        self._history.add(Advanced(wall_micros(), source, low))
        await injector.advance(low)
        self.lag.promised(source, low)

    async def _read(self, stream: str) -> None:
        """By one durable cursor, and one subscriber after another."""
        durable = 0
        while True:
            self._history.add(Subscribed(wall_micros(), stream, durable))
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
                    self._received(stream, batch.first_offset, batch.values)
                    if time.monotonic() > end:
                        break
                else:
                    return
                durable = subscription.durable

    def _received(self, stream: str, first: int, values: list[object]) -> None:
        received = Received(wall_micros(), stream, first, [msgspec.to_builtins(value) for value in values])
        self._history.add(received)
        self.lag.received(received)
        self.received[stream] += len(values)


def _event(source: str, position: int, chance: random.Random) -> Event:
    return Event(_name(chance.randrange(_KEYS)), _name(chance.randrange(_GROUPS)), source, position)


def names() -> list[str]:
    """Of all keys; those of groups begin likewise."""
    return sorted(_name(number) for number in range(_KEYS))


def _name(number: int) -> str:
    return f"{_INITIALS[number % len(_INITIALS)]}-{number:02}"
