"""Count the files that a record goes through, and those that a watermark goes through: ``make ways``.

One process runs a development server, an injector and a subscriber. A profile hook notes each function that begins.
Functions that also run while nothing is sent are ignored, so heartbeats do not count. A *room* is a file of the product
that contains at least one of the remaining functions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench.server import submit
from bench.topologies import Ping, stages
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.model.time import Timestamp
from millwheel.server.dev_server import DevSettings, running

ROOT = Path(__file__).resolve().parents[1]
ROLES = ("authority", "injectors", "master", "millwheel", "worker")
STUBS = ("millwheel/rpc/v1/", "millwheel/coordination/etcd/v3/")
IDLE_SECONDS = 12.0
"""How long functions are noted while nothing is sent. Invariant: it exceeds the period of every periodic task of the
server that may run during a way of some milliseconds, lease renewal included."""
_WARM_UP = 20
_BEGIN_US = 1_700_000_000_000_000


def _at(number: int) -> Timestamp:
    return Timestamp(_BEGIN_US + number * 1_000_000)


class Trace:
    """The functions that began while the trace was active, in the order of their first calls."""

    def __init__(self) -> None:
        self.codes: dict[CodeType, None] = {}

    def __enter__(self) -> Trace:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.codes.setdefault(frame.f_code)


def rooms(codes: Iterable[CodeType]) -> list[str]:
    """The product's files that contain the functions, in the order of their first occurrence."""
    found: dict[str, None] = {}
    for code in codes:
        path = Path(code.co_filename).resolve()
        if path.is_relative_to(ROOT):
            name = str(path.relative_to(ROOT))
            if name.startswith(ROLES) and not name.startswith(STUBS):
                found.setdefault(name)
    return list(found)


async def follow() -> tuple[list[str], list[str]]:
    """The rooms from ``send`` to a record's receipt, and those from ``advance`` to the watermark's receipt."""
    async with running(DevSettings(port=0)) as server:
        await asyncio.to_thread(submit, server.address, "stages")
        async with (
            Injector("pings", address=server.address, process="ways", topology=stages) as injector,
            Subscription(
                "by-page", cursor="ways", record_type=Ping, address=server.address, watermarks=True
            ) as received,
        ):
            batches = aiter(received)

            async def record(number: int) -> None:
                await injector.send(Ping("user", "page", number), timestamp=_at(number))
                await injector.flush()
                async for batch in batches:
                    await received.ack(batch.next_offset)
                    if len(batch):
                        return

            async def watermark(number: int) -> None:
                at = _at(number)
                await injector.advance(at)
                async for batch in batches:
                    if batch.watermark >= at:
                        return

            for number in range(_WARM_UP):
                await record(number)
                await watermark(number)
            return await _alone(record, watermark)


async def _alone(*ways: Callable[[int], Awaitable[None]]) -> tuple[list[str], list[str]]:
    with Trace() as idle:
        await asyncio.sleep(IDLE_SECONDS)
    found = []
    for number, way in enumerate(ways, _WARM_UP):
        with Trace() as trace:
            await way(number)
        await asyncio.sleep(1)
        found.append(rooms(code for code in trace.codes if code not in idle.codes))
    return found[0], found[1]


def main() -> None:
    """Print the rooms of both ways, and how many lines they have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", action="store_true", help="print each room, where it is first entered")
    arguments = parser.parse_args()
    for name, found in zip(("record", "watermark"), asyncio.run(follow()), strict=True):
        lines = {room: len((ROOT / room).read_text().splitlines()) for room in found}
        print(f"a {name}: {len(lines)} files, {sum(lines.values()):,} lines")
        if arguments.order:
            for room, count in lines.items():
                print(f"  {count:4}  {room}")


if __name__ == "__main__":
    main()
