"""A steady load that verifies itself: sources send what can be known, subscribers write down what they get.

``python -m tests.faults.load ADDRESS SEED PLACE`` is a source of its own process, which may be killed and run again. It
sends until there is ``PLACE/stop``. Its history, ``PLACE/source.jsonl``, tells its next life what was not ACKed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

import msgspec

from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.subscription import From, Subscription
from tests.faults.checking import check
from tests.faults.history import Acked, Advanced, History, Received, Sent, Subscribed, read
from tests.faults.history import Event as Happened
from tests.faults.program import STREAMS, Event, faults
from tests.faults.progress import Progress
from tests.patience import patience, until

__all__ = ["CUTS", "Load", "verified", "wall_micros"]

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


class Load:
    """Sources and subscribers, each a task of :meth:`run`, which ends when all streams have."""

    def __init__(
        self,
        address: str,
        history: History,
        seed: int,
        sources: Collection[str] = _SOURCES,
        streams: Collection[str] = tuple(STREAMS),
        *,
        chunk: int = _CHUNK,
        pause: float = _PAUSE,
        lives: float = _LIVES,
    ) -> None:
        """``chunk``: records of a source at once, ``pause`` seconds after those before. ``lives``: see there."""
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._progress = Progress()
        self._address = address
        self._history = history
        self._seed = seed
        self._sources = sources
        self._streams = streams
        self._rhythm = chunk, pause, lives
        self._enough = asyncio.Event()

    def stop(self) -> None:
        """Send nothing any more, and end when everything has come."""
        self._enough.set()

    def lag(self) -> float:
        """For how many seconds what is waited for longest has been under way."""
        since = self._progress.since()
        return 0.0 if since is None else (wall_micros() - since) / 1e6

    def lag_as_text(self) -> str:
        """What is waited for."""
        return f"{self._progress.as_text()}, for {self.lag():.0f} s"

    async def run(self, before: Sequence[Happened] = ()) -> None:
        """Send and receive. ``before``: the history of sources whose earlier lives were cut off."""
        async with ControlClient(self._address, patience=_PATIENCE) as client:
            for stream in STREAMS:
                await client.ensure_stream_log(stream)
        async with asyncio.TaskGroup() as group:
            for stream in self._streams:
                group.create_task(self._read(stream))
            for number, source in enumerate(self._sources):
                group.create_task(self._send(source, random.Random(self._seed + number), before))

    async def _send(self, source: str, chance: random.Random, before: Sequence[Happened]) -> None:
        chunk, pause, _ = self._rhythm
        position = 0
        acked = max((one.position for one in before if isinstance(one, Acked)), default=0)
        settings = InjectorSettings(patience=_PATIENCE)
        async with Injector(
            "events", address=self._address, process=source, topology=faults, settings=settings
        ) as injector:
            for sent in before:
                if isinstance(sent, Sent):
                    position = sent.first + len(sent.keys)
                    if position > acked:
                        await self._inject(injector, sent)
            while not self._enough.is_set():
                now = wall_micros()
                keys, groups = ([_name(chance.randrange(most)) for _ in range(chunk)] for most in (_KEYS, _GROUPS))
                stamps = [now - chance.randrange(_LATENESS) for _ in range(chunk)]
                sent = Sent(now, source, position, keys, groups, stamps)
                self._note(sent)
                await self._inject(injector, sent)
                # Written down before it is said, so that nothing can follow from it before it is in the history.
                self._note(Advanced(wall_micros(), source, now - _LATENESS))
                await injector.advance(now - _LATENESS)
                self._note(Acked(wall_micros(), source, injector.acknowledged() or 0))
                position += chunk
                await asyncio.sleep(pause * chance.uniform(0.5, 1.5))
            self._note(Advanced(wall_micros(), source, None))
            await injector.finish()

    async def _inject(self, injector: Injector, sent: Sent) -> None:
        positions = range(sent.first, sent.first + len(sent.keys))
        events = [
            Event(*row) for row in zip(sent.keys, sent.groups, [sent.source] * len(positions), positions, strict=True)
        ]
        await injector.send_many(events, sent.timestamps, positions=positions)
        self.sent[sent.source] += len(events)

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
                end = time.monotonic() + self._rhythm[2]
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


@asynccontextmanager
async def verified(
    address: str, place: Path, seed: int, sources: Collection[str] = _SOURCES, *, chunk: int = 20, pause: float = 0.05
) -> AsyncIterator[Load]:
    """A load of short lives while the block lasts. AssertionError after it, unless all came as it has to.

    The caller's own source, if ``sources`` is empty, has written its history to ``place``, too.
    """
    path, source = place / "history.jsonl", place / "source.jsonl"
    with closing(History(path)) as written:
        load = Load(address, written, seed, sources, chunk=chunk, pause=pause, lives=1.0)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(load.run())
            yield load
            load.stop()
            done, _ = await asyncio.wait([running], timeout=patience(60))
            assert done, f"the streams have not ended: {load.lag_as_text()}; received {load.received}"
    events = [*read(path), *(read(source) if source.exists() else ())]
    violations = check(sorted(events, key=lambda event: event.at))
    assert not violations, violations[:5]
    assert all(load.received[stream] for stream in STREAMS), load.received


def _name(number: int) -> str:
    return f"{_INITIALS[number % len(_INITIALS)]}-{number:02}"


CUTS: Final = dict.fromkeys(("numberer", "adder", "passer"), sorted(map(_name, range(_KEYS))))
"""By computation, all keys. Those of groups begin as others do."""


async def _one_source(address: str, seed: int, place: Path) -> None:
    path = place / "source.jsonl"
    before = list(read(path)) if path.exists() else []
    load = Load(address, History(path), seed + len(before), ["source"], (), chunk=20, pause=0.03)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(before))
        await until((place / "stop").exists, _PATIENCE, every=0.05)
        load.stop()


if __name__ == "__main__":
    asyncio.run(_one_source(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
