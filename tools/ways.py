"""Count the files that a record goes through, and those that a watermark goes through: ``make ways``.

One process runs a development server, an injector and a subscriber. A profile hook notes each function that begins
while one record, or one watermark, is on its way. Each way is walked several times, and a function counts if every
walk enters it. This excludes heartbeats, and what only some records enter, such as a checkpoint.

A *room* is a file of the product that contains at least one of these functions. Some functions also run while nothing
is sent: the steps of cores, and the store. Rooms with only such functions are counted apart.
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
from typing import Any, NamedTuple

from bench.server import submit
from bench.topologies import Ping, stages
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.model.time import Timestamp
from millwheel.server.dev_server import DevSettings, running

ROOT = Path(__file__).resolve().parents[1]
ROLES = ("authority", "injectors", "master", "millwheel", "worker")
STUBS = ("millwheel/rpc/v1/", "millwheel/coordination/etcd/v3/")
_IDLE_SECONDS = 45.0
"""Invariant: it exceeds the period of each periodic task, lease renewal included."""
_WARM_UP = 20
_WALKS = 10
"""A walk takes some milliseconds. So something that runs once a second is hardly ever in all of them."""
_SETTLING_SECONDS = 5.0
"""What the last ACK started has ended before the idle time begins."""
_PAUSE_SECONDS = 0.35
"""What one walk started has ended before the next. No period is a multiple of it, so heartbeats fall anywhere."""
_BEGIN_US = 1_700_000_000_000_000


def _at(number: int) -> Timestamp:
    return Timestamp(_BEGIN_US + number * 1_000_000)


Rooms = dict[str, set[int]]
"""By file: the line numbers of the functions that run."""


class Way(NamedTuple):
    """The rooms of a way in the order of their first call. ``shared``: those that also run while nothing is sent."""

    own: Rooms
    shared: Rooms


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


def rooms(codes: Iterable[CodeType]) -> Rooms:
    """The product's files that contain the functions, in the order of their first occurrence."""
    found: Rooms = {}
    for code in codes:
        path = Path(code.co_filename).resolve()
        if path.is_relative_to(ROOT):
            name = str(path.relative_to(ROOT))
            if name.startswith(ROLES) and not name.startswith(STUBS):
                lines = [line for _, _, line in code.co_lines() if line]
                found.setdefault(name, set()).update(range(min(lines), max(lines) + 1))
    return found


async def follow() -> list[Way]:
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
            reached = 0

            async def ack() -> None:
                await received.ack(reached)

            async def record(number: int) -> None:
                nonlocal reached
                await injector.send(Ping("user", "page", number), timestamp=_at(number))
                await injector.flush()
                async for batch in batches:
                    reached = batch.next_offset
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
                await ack()
            return await _walk(ack, record, watermark)


async def _walk(ack: Callable[[], Awaitable[None]], *ways: Callable[[int], Awaitable[None]]) -> list[Way]:
    """What all walks of a way enter. The walks of both ways alternate. ``ack`` runs between two walks."""
    await asyncio.sleep(_SETTLING_SECONDS)
    with Trace() as idle:
        await asyncio.sleep(_IDLE_SECONDS)
    walks: list[list[Trace]] = [[] for _ in ways]
    for number in range(_WARM_UP, _WARM_UP + _WALKS):
        for way, traces in zip(ways, walks, strict=True):
            with Trace() as trace:
                await way(number)
            traces.append(trace)
            await ack()
            await asyncio.sleep(_PAUSE_SECONDS)
    found = []
    for first, *rest in walks:
        common = [code for code in first.codes if all(code in one.codes for one in rest)]
        own, all_rooms = rooms(code for code in common if code not in idle.codes), rooms(common)
        shared = {room: run for room, run in all_rooms.items() if room not in own}
        found.append(Way({room: all_rooms[room] for room in own}, shared))
    return found


def picture(found: Rooms) -> str:
    """The rooms of a way in their order, with their lines, grouped by folder as far as they follow each other."""
    groups = [(folder, list(files)) for folder, files in groupby(found, lambda room: str(Path(room).parent))]
    return "\n".join(
        f"- `{folder}/`: " + ", ".join(f"{Path(file).name} ({len(found[file])} of {lines_of(file)})" for file in files)
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
    for name, way in zip(("record", "watermark"), asyncio.run(follow()), strict=True):
        heading = f"A {name}: {_counted(way.own)}"
        also = f"{_counted(way.shared)}, also run while nothing is sent"
        print(f"{heading}; {also}")
        if arguments.order:
            print(*_listed(way.own), f"  {also}:", *_listed(way.shared), sep="\n")
        if arguments.write:
            begin, end = f"<!-- way of a {name}: begin -->\n", f"<!-- way of a {name}: end -->\n"
            before, rest = page.read_text().split(begin)
            body = f"<details><summary>{heading}</summary>\n\n{picture(way.own)}\n\n{also}:\n\n"
            page.write_text(f"{before}{begin}{body}{picture(way.shared)}\n\n</details>\n{end}{rest.split(end)[1]}")


def _listed(found: Rooms) -> list[str]:
    return [f"  {len(run):4} of {lines_of(room):4}  {room}" for room, run in found.items()]


def _counted(found: Rooms) -> str:
    run = sum(map(len, found.values()))
    return f"{len(found)} files with {sum(map(lines_of, found)):,} lines, {run:,} of them in functions that run"


if __name__ == "__main__":
    main()
