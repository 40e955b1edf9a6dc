"""Writes batches, and dies at each step of that: ``python -m tests.connectors.files.killed FOLDER FORMAT``.

A child of this process writes the batches, and is gone at its first call of the system, at the next time at its second,
and so on. Another child goes on, as the next owner of the shard does. Then each record is in the folder once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

from millwheel.connectors import SinkBatch, SinkShard, write_files
from tests.connectors.files.given import Sale, records_in
from tests.connectors.given import at

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "fcntl.flock"}
"""The calls, as Python's audit names them."""
PLACE = SinkShard("shop/sales-lake", 0, 1, 5)
HOUR = 3_600
BATCHES = [
    SinkBatch(number, [(Sale("tea", 2 * number + n), at(n * HOUR)) for n in range(2)], f"id {number}", after)
    for number, after in ((1, ""), (2, "id 1"), (3, "id 2"))
]


def write(folder: Path, form: Any, first: int, done: int) -> None:
    """Write the batches from a number on, and note each."""

    async def run() -> None:
        writer = await write_files(folder, Sale, format=form, by_time="hour").open_writer(PLACE)
        for batch in BATCHES[first - 1 :]:
            await writer.write(batch)
            os.write(done, b"x")

    asyncio.run(run())


def child(folder: Path, form: Any, first: int, killed_at: int | None) -> int:
    """Run a child. Returns how many batches it has written."""
    ours, its = os.pipe()
    if (process := os.fork()) == 0:
        steps = count(1)

        def die(event: str, arguments: object) -> None:
            if event in STEPS and str(folder) in str(arguments) and next(steps) == killed_at:
                os._exit(9)

        sys.addaudithook(die)
        write(folder, form, first, its)
        os._exit(0)
    os.close(its)
    _, status = os.waitpid(process, 0)
    with os.fdopen(ours, "rb") as notes:
        written = len(notes.read())
    assert os.waitstatus_to_exitcode(status) == (0 if written == len(BATCHES) - first + 1 else 9)
    return written


def main() -> None:
    base, form = Path(sys.argv[1]), sys.argv[2]
    expected = sorted(value.cents for batch in BATCHES for value, _ in batch.records)
    for step in count(1):
        folder = base / str(step)
        written = child(folder, form, 1, step)
        # What is there is whole, and nothing of a batch that was not begun.
        begun = sorted(row["cents"] for row in records_in(folder))
        assert set(begun) <= set(expected[: 2 * written + 2]), (step, begun)
        assert len(set(begun)) == len(begun), (step, begun)
        if written == len(BATCHES):
            print(f"{step - 1} steps")
            return
        assert child(folder, form, written + 1, None) == len(BATCHES) - written
        assert sorted(row["cents"] for row in records_in(folder)) == expected, step


if __name__ == "__main__":
    main()
