"""A file of Parquet as columns and row by row (5.2): `python -m bench.parquet [--records N] [--runs N]`.

Two topologies count one file by key and window, into a log. The first one takes its rows as columns, and the second
one makes a value of each. They take turns, each on a fresh development server. A run fails if a count is wrong.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from bench import loop
from bench.parquet_program import SIZE
from bench.server import ServerProcess, submit
from millwheel.client.arrow import read_stream
from millwheel.client.kept_log import KeptLog

__all__ = ["FORMS", "FileFigures", "main", "measure", "processor_seconds", "write"]

FORMS: Final = ("rows", "tables")
_BEGIN: Final = 1_767_225_600_000_000
_PER_SECOND: Final = 10_000
_PATIENCE: Final = 300.0
_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class FileFigures:
    """One run: the seconds from the submission to the last result, and the server's seconds of processor time."""

    records: int
    seconds: float
    processor: float

    def __str__(self) -> str:
        return (
            f"{self.records / self.seconds:>10,.0f} records/s, {self.processor / self.records * 1e6:.2f} us of the "
            "server's processor time a record"
        )


def write(path: Path, records: int, keys: int) -> int:
    """Write the file. Returns how many results it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = Random(7)
    numbers = [random.randrange(keys) for _ in range(records)]
    times = [_BEGIN + at * 1_000_000 // _PER_SECOND for at in range(records)]
    columns = {
        "key": [f"key-{number:05d}" for number in numbers],
        "price": pa.array([number * 7 % 1_000 for number in numbers], pa.int32()),
        "at": pa.array(times, pa.timestamp("us", "UTC")),
        "text": ["x" * 60] * records,
    }
    pq.write_table(pa.table(columns), path, row_group_size=100_000)
    return len({(number, at // SIZE) for number, at in zip(numbers, times, strict=True)})


def measure(form: str, records: int, results: int) -> FileFigures:
    """Run a form.

    Raises:
        RuntimeError: A count is wrong, or does not come in time.
    """
    with tempfile.TemporaryDirectory(prefix="millwheel-parquet-") as place:
        server = ServerProcess(Path(place))
        try:
            before, began = processor_seconds(server.pid), time.monotonic()
            submit(server.address, form, "bench.parquet_program")
            _until_counted(server.address, form, results)
            seconds, processor = time.monotonic() - began, processor_seconds(server.pid) - before
            counted = sum(read_stream(f"{form}/seconds", address=server.address).column("n").to_pylist())
        finally:
            server.stop()
    if counted != records:
        raise RuntimeError(f"{form}: {counted:,} records are counted, and there are {records:,}")
    return FileFigures(records, seconds, processor)


def _until_counted(address: str, form: str, results: int) -> None:
    """Wait until the log has all results."""
    end = time.monotonic() + _PATIENCE
    while loop.run(_results(address, form)) < results:
        if time.monotonic() > end:
            raise RuntimeError(f"{form}: results are missing")
        time.sleep(_POLL_SECONDS)


async def _results(address: str, form: str) -> int:
    async with KeptLog(f"{form}/seconds", address=address) as kept:
        return await kept.end()


def processor_seconds(pid: int) -> float:
    """The processor time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(records: int, runs: int) -> None:
    """Print the figures of each run."""
    with tempfile.TemporaryDirectory(prefix="millwheel-parquet-") as folder:
        results = write(Path(folder) / "bids.parquet", records, keys=1_000)
        os.environ["PARQUET_FOLDER"] = folder
        for _ in range(runs):
            for form in FORMS:
                print(f"{form:8} {measure(form, records, results)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.parquet", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    main(given.records, given.runs)
