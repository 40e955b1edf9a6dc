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
from itertools import groupby
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


def picture(found: Iterable[str]) -> str:
    """The rooms of a way in their order, with their lines, grouped by folder as far as they follow each other."""
    groups = [(folder, list(files)) for folder, files in groupby(found, lambda room: str(Path(room).parent))]
    return "\n".join(
        f"- `{folder}/`: " + ", ".join(f"{Path(file).name} ({lines_of(file)})" for file in files)
        for folder, files in groups
    )


def lines_of(room: str) -> int:
    """How many lines a file has."""
    return len((ROOT / room).read_text().splitlines())


def main() -> None:
    """Print the rooms of both ways, and how many lines they have; with ``--write`` also into ARCHITECTURE.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", action="store_true", help="print each room, where it is first entered")
    parser.add_argument("--write", action="store_true", help="bring ARCHITECTURE.md up to date")
    arguments = parser.parse_args()
    page = ROOT / "ARCHITECTURE.md"
    for name, found in zip(("record", "watermark"), asyncio.run(follow()), strict=True):
        heading = f"a {name}: {len(found)} files, {sum(map(lines_of, found)):,} lines"
        print(heading)
        if arguments.order:
            for room in found:
                print(f"  {lines_of(room):4}  {room}")
        if arguments.write:
            begin, end = f"<!-- way of a {name}: begin -->\n", f"<!-- way of a {name}: end -->\n"
            before, rest = page.read_text().split(begin)
            body = f"<details><summary>{heading.capitalize()}</summary>\n\n{picture(found)}\n\n</details>\n"
            page.write_text(before + begin + body + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
