"""A steady load that checks its results. Sources write down what they send, and subscribers what they get.

``python -m tests.faults.load ADDRESS SEED PLACE`` runs a source as a process, which may be killed and run again. It
sends until the file ``PLACE/stop`` exists. A later run reads from ``PLACE/source.jsonl`` which records lack an ACK.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final

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

_KEYS: Final = 24
_GROUPS: Final = 6
_INITIALS: Final = "Ak\u00e9"
"""The first letters of names. Three intervals of equal size have one letter each."""
_LATENESS: Final = 400_000
"""The most microseconds by which records are out of order."""
_PATIENCE: Final = patience(75)


def wall_micros() -> int:
    """This process's wall clock. No fault changes it."""
    return time.time_ns() // 1_000


@dataclass
class Load:
    """Sources and subscribers: see :meth:`flowing`."""

    address: str
    history: History
    seed: int
    sources: Collection[str] = ("left", "right")
    streams: Collection[str] = tuple(STREAMS)
    _: KW_ONLY
    chunk: int = 8
    """Records that a source sends at once."""
    pause: float = 0.25
    """Mean seconds from one chunk of a source to the next."""
    lives: float = 20.0
    """Seconds until a new subscriber replaces the current one."""
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    _progress: Progress = field(default_factory=Progress)
    _enough: asyncio.Event = field(default_factory=asyncio.Event)

    def lag(self) -> float:
        """The age of the oldest outstanding result, in seconds."""
        since = self._progress.since()
        return 0.0 if since is None else (wall_micros() - since) / 1e6

    def lag_as_text(self) -> str:
        """The outstanding results and their age."""
        return f"{self._progress.as_text()}, for {self.lag():.0f} s"

    @asynccontextmanager
    async def flowing(self, within: float, before: Sequence[Happened] = ()) -> AsyncIterator[list[str]]:
        """Send during the block. Then wait up to ``within`` seconds until all streams end. The yielded list gets a text
        if they do not end in time. ``before``: the history of sources that were killed."""
        missed: list[str] = []
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self._run(before))
            yield missed
            self._enough.set()
            if not (await asyncio.wait([running], timeout=within))[0]:
                running.cancel()
                missed.append(f"the streams have not ended after {within:.0f} s: {self.lag_as_text()}")

    async def _run(self, before: Sequence[Happened]) -> None:
        async with ControlClient(self.address, patience=_PATIENCE) as client:
            for stream in STREAMS:
                await client.ensure_stream_log(stream)
        async with asyncio.TaskGroup() as group:
            for stream in self.streams:
                group.create_task(self._read(stream))
            for number, source in enumerate(self.sources):
                group.create_task(self._send(source, random.Random(self.seed + number), before))

    async def _send(self, source: str, chance: random.Random, before: Sequence[Happened]) -> None:
        position = 0
        acked = max((one.position for one in before if isinstance(one, Acked)), default=0)
        how: dict[str, Any] = {"topology": faults, "settings": InjectorSettings(patience=_PATIENCE)}
        async with Injector("events", address=self.address, process=source, **how) as injector:
            for sent in before:
                if isinstance(sent, Sent):
                    position = sent.first + len(sent.keys)
                    if position > acked:
                        await self._inject(injector, sent)
            while not self._enough.is_set():
                now = wall_micros()
                keys, groups = ([_name(chance.randrange(most)) for _ in range(self.chunk)] for most in (_KEYS, _GROUPS))
                stamps = [now - chance.randrange(_LATENESS) for _ in range(self.chunk)]
                sent = Sent(now, source, position, keys, groups, stamps)
                self._note(sent)
                await self._inject(injector, sent)
                # The history has the watermark before the injector does, so no effect precedes its cause.
                self._note(Advanced(wall_micros(), source, now - _LATENESS))
                await injector.advance(now - _LATENESS)
                self._note(Acked(wall_micros(), source, injector.acknowledged() or 0))
                position += self.chunk
                await asyncio.sleep(self.pause * chance.uniform(0.5, 1.5))
            self._note(Advanced(wall_micros(), source, None))
            await injector.finish()

    async def _inject(self, injector: Injector, sent: Sent) -> None:
        positions = range(sent.first, sent.first + len(sent.keys))
        rows = zip(sent.keys, sent.groups, positions, strict=True)
        events = [Event(key, group, sent.source, position) for key, group, position in rows]
        await injector.send_many(events, sent.timestamps, positions=positions)
        self.sent[sent.source] += len(events)

    async def _read(self, stream: str) -> None:
        """Read a stream by one durable cursor, with one subscriber after another."""
        durable = 0
        while True:
            self._note(Subscribed(wall_micros(), stream, durable))
            how: dict[str, Any] = {"address": self.address, "record_type": STREAMS[stream], "patience": _PATIENCE}
            async with Subscription(
                stream, cursor="verifier", start=From.OLDEST, until_end=True, auto_ack=True, **how
            ) as subscription:
                end = time.monotonic() + self.lives
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
        self.history.add(event)
        self._progress.take(event)


@asynccontextmanager
async def verified(
    address: str, place: Path, seed: int, sources: Collection[str] = ("left", "right")
) -> AsyncIterator[Load]:
    """Run a load during the block, with new subscribers often. AssertionError at its end if a guarantee was broken.

    If ``sources`` is empty, the caller's own source has written its history to ``place``.
    """
    path, source = place / "history.jsonl", place / "source.jsonl"
    with closing(History(path)) as written:
        load = Load(address, written, seed, sources, chunk=20, pause=0.05, lives=1.0)
        async with load.flowing(patience(60)) as missed:
            yield load
    events = [*read(path), *(read(source) if source.exists() else ())]
    missed += map(str, check(sorted(events, key=lambda event: event.at))[:5])
    assert not missed, (missed, load.received)
    assert all(load.received[stream] for stream in STREAMS), load.received


def _name(number: int) -> str:
    return f"{_INITIALS[number % len(_INITIALS)]}-{number:02}"


CUTS: Final = dict.fromkeys(("numberer", "adder", "passer"), sorted(map(_name, range(_KEYS))))
"""All keys, by computation. Names of groups begin with the same letters."""


async def _one_source(address: str, seed: int, place: Path) -> None:
    path = place / "source.jsonl"
    before = list(read(path)) if path.exists() else []
    load = Load(address, History(path), seed + len(before), ["source"], (), chunk=20, pause=0.03)
    async with load.flowing(_PATIENCE, before):
        await until((place / "stop").exists, _PATIENCE, every=0.05)


if __name__ == "__main__":
    asyncio.run(_one_source(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
