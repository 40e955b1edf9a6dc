"""A data directory of ``start-dev`` that a version wrote and never closed: ``python -m tests.formats.database``.

It has journals of two owners, states with pages, timers, a window, which is by columns from format 3 on, logs with
segments, a durable cursor, an injector process with positions, and the code package. The next version goes on from
there.
"""

from __future__ import annotations

import asyncio
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import millwheel as mw
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.model.formats import NEWEST_FORMAT
from tests.formats import recorded_program
from tests.formats.recorded_program import Seen, Word
from tests.patience import patience
from tests.submitting import submit_copy
from tests.system.server import Server

NOON_US: Final = 1_769_860_800_000_000
"""2026-01-31T12:00:00Z."""
TEXTS: Final = ("cat", "dog", "owl")
FIRST_HALF: Final = 300
READ_BEFORE: Final = 120
"""Records that the cursor has acknowledged."""
_FOLDER: Final = Path(__file__).parent / "golden"


def path_of(number: int) -> Path:
    """The recorded directory of a format."""
    return _FOLDER / f"start-dev-{number}.tar.xz"


def unpack(number: int, into: Path) -> Path:
    """Unpack the recorded directory of a format. Return its path."""
    with tarfile.open(path_of(number)) as archive:
        archive.extractall(into, filter="data")
    return into / "db"


def word(number: int) -> Word:
    """Word ``number`` of all words."""
    return Word(TEXTS[number % len(TEXTS)], number)


def counts_of(upto: int) -> Counter[str]:
    """How often each text is among the first ``upto`` words."""
    return Counter(word(number).text for number in range(upto))


async def feed(address: str, first: int, end: int, promise: int) -> int:
    """Send words by position, and promise a watermark. Return how many ACKs were for words that were known."""
    async with asyncio.timeout(patience(60)), Injector("words", address=address, process="p") as injector:
        for number in range(first, end):
            await injector.send(word(number), timestamp=mw.Timestamp(NOON_US + number), position=number)
            if number == first:
                await injector.flush()  # a worker that has just begun may refuse it, and a second copy is not counted
        await injector.advance(mw.Timestamp(promise))
        await injector.flush()
        return injector.known


async def read(server: Server, stream: str, kind: Any, count: int) -> list[Any]:
    """The next ``count`` records of a stream under its cursor."""
    found: list[Any] = []
    subscription = Subscription(f"recorded/{stream}", cursor="reader", record_type=kind, address=server.address)
    async with asyncio.timeout(patience(60)), subscription:
        async for batch in subscription:
            taken = batch.values[: count - len(found)]
            found += taken
            await subscription.ack(batch.next_offset - (len(batch.values) - len(taken)))
            if len(found) >= count:
                await subscription.flush()
                break
    return found


async def _record(folder: Path) -> None:
    server = Server(folder / "db", folder / "log")
    async with server:
        await submit_copy(server.address, recorded_program.__file__, "recorded", folder)
        await feed(server.address, 0, FIRST_HALF // 2, NOON_US)
        assert await server.stop() == 0
        await server.start()
        await feed(server.address, FIRST_HALF // 2, FIRST_HALF, NOON_US + FIRST_HALF)
        assert len(await read(server, "seen", Seen, READ_BEFORE)) == READ_BEFORE
        await server.kill()


def main() -> None:
    """Record a directory for the newest format, if there is none."""
    path = path_of(NEWEST_FORMAT)
    if path.exists():
        sys.exit(f"{path} is there: a recorded directory is never changed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(_record(folder))
        with tarfile.open(path, "w:xz") as archive:
            archive.add(folder / "db", "db", filter=_plain)
    print(f"{path}: {path.stat().st_size:,} bytes")


def _plain(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without the names of users, and without RocksDB's own log."""
    if Path(one.name).name.startswith("LOG"):
        return None
    one.uid = one.gid = one.mtime = 0
    one.uname = one.gname = ""
    return one


if __name__ == "__main__":
    main()
