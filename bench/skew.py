"""What a source that is hours ahead costs, without and with ``allowed_skew`` (8.4; G13): `python -m bench.skew`.

A topology counts by key and minute what is in two files. One has all hours from the beginning on. The other one has
only its first line, until the first is not read any further. Then it gets all its lines, too. Each run has a fresh
development server. A run fails if a window is missing, or is there twice.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import loop
from bench.server import ServerProcess, submit
from bench.skew_program import SKEW
from millwheel.client.arrow import read_state, read_stream
from millwheel.client.kept_log import KeptLog

__all__ = ["FORMS", "SkewFigures", "main"]

FORMS: Final = ("free", "held")
_BEGIN: Final = 1_767_225_600_000_000
_MINUTE: Final = 60_000_000
_PATIENCE: Final = 300.0
_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True)
class SkewFigures:
    """One run. ``waiting``: windows that wait while the slow file has one line. Memory is the server's, in MiB."""

    waiting: int
    began_mib: float
    waiting_mib: float
    peak_mib: float
    disk_mib: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.waiting:>9,} windows wait; memory {self.began_mib:.0f} MiB at first, {self.waiting_mib:.0f} while "
            f"they wait, {self.peak_mib:.0f} at most; {self.disk_mib:.0f} MiB on disk; {self.seconds:.0f} s in all"
        )


def lines(key: str, keys: int, minutes: range) -> Iterator[str]:
    """The lines of a file: one for each key and minute."""
    for minute in minutes:
        for number in range(keys):
            yield f'{{"key": "{key}-{number}", "number": {number}, "at": {_BEGIN + minute * _MINUTE}}}\n'


def measure(form: str, keys: int, hours: int) -> SkewFigures:
    """Run a form.

    Raises:
        RuntimeError: Results are missing or wrong, or do not come in time.
    """
    minutes = hours * 60
    with tempfile.TemporaryDirectory(prefix="millwheel-skew-") as name:
        folder, inputs = Path(name), Path(name) / "in"
        inputs.mkdir()
        os.environ["SKEW_FOLDER"] = str(inputs)
        (inputs / "fast.jsonl").write_text("".join(lines("fast", keys, range(minutes))))
        (inputs / "slow.jsonl").write_text("".join(lines("slow", 1, range(1))))
        server = ServerProcess(folder)
        try:
            began, began_mib = time.monotonic(), memory_mib(server.pid)
            submit(server.address, form, "bench.skew_program")
            _until_still(lambda: _positions(server.address, form))
            waiting = sum(len(row["state"]) for row in _rows(server.address, f"{form}/minutes"))
            waiting_mib, disk = memory_mib(server.pid), _disk_mib(folder / "db")
            with (inputs / "slow.jsonl").open("a") as slow:
                slow.writelines(lines("slow", 1, range(1, minutes)))
            _until_complete(server.address, form, keys, minutes - 1)
            return SkewFigures(
                waiting, began_mib, waiting_mib, memory_mib(server.pid, "VmHWM"), disk, time.monotonic() - began
            )
        finally:
            server.stop()


def _rows(address: str, computation: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_state(computation, address=address).to_pylist()
    return found


def _positions(address: str, form: str) -> dict[str, str]:
    return {row["key"]: str(row["state"]) for row in _rows(address, f"{form}/readings-reader")}


def _until_still(look: Callable[[], dict[str, str]]) -> None:
    """Wait until what is seen has not changed for five looks."""
    seen: list[dict[str, str]] = []
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        seen.append(look())
        if len(seen) > 5 and seen[-1] and all(one == seen[-1] for one in seen[-5:]):
            return
        time.sleep(_POLL_SECONDS)
    raise RuntimeError("the source does not come to rest")


def _until_complete(address: str, form: str, keys: int, complete: int) -> None:
    """Wait for all windows before the last minute, of all keys. Each must be there once."""
    wanted, end = complete * (keys + 1), time.monotonic() + _PATIENCE
    while loop.run(_results(address, form)) < wanted:
        if time.monotonic() > end:
            raise RuntimeError("results are missing")
        time.sleep(_POLL_SECONDS)
    found = read_stream(f"{form}/minutes", address=address)
    windows = set(zip(found.column("key").to_pylist(), found.column("start").to_pylist(), strict=True))
    if not len(windows) == found.num_rows == wanted:
        raise RuntimeError(f"{found.num_rows} results of {len(windows)} windows, and {wanted} are right")


async def _results(address: str, form: str) -> int:
    async with KeptLog(f"{form}/minutes", address=address) as kept:
        return await kept.end()


def memory_mib(pid: int, what: str = "VmRSS") -> float:
    """The memory of a process. ``VmHWM``: the most that it ever had."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def _disk_mib(folder: Path) -> float:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) / (1 << 20)


def main(keys: int, hours: int) -> None:
    """Measure each form once."""
    print(f"{keys} keys, {hours} hours, a window each minute; allowed skew {SKEW // 3_600_000_000} hours")
    for form in FORMS:
        print(f"{form}: {measure(form, keys, hours)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.skew", description=__doc__)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--hours", type=int, default=10)
    given = parser.parse_args()
    main(given.keys, given.hours)
