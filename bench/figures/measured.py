"""A part's figures as they are kept in docs/figures: with the date, the commit and the machine."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from bench.peers.reporting import Measured
from bench.readings import Readings, readings

__all__ = ["Kept", "Origin", "load", "load_all", "origin_now", "rows_of", "save"]


class Origin(msgspec.Struct, frozen=True):
    """Where figures come from.

    Attributes:
        date: The day, in UTC.
        commit: What was measured. It ends in ``+`` if the checkout had other changes.
        processor: The model, and how many of its cores the machine has.
        python: The version.
        load: The load of the machine in the minute before the command began: what other programs did.
        note: What else a reader must know.
    """

    date: str
    commit: str
    processor: str
    python: str
    load: float
    note: str = ""


class Kept(msgspec.Struct, frozen=True):
    """One file of docs/figures."""

    origin: Origin
    rows: list[dict[str, Any]]

    def readings(self, where: str) -> Readings:
        """Its figures and series by name."""
        return readings(self.rows, where)


def origin_now(note: str = "") -> Origin:
    """The origin of figures that are measured from now on."""
    head = _git("rev-parse", "--short=9", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", ":!docs", ":!build")
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    processor = f"{os.cpu_count()} cores of {model}"
    return Origin(day, head + ("+" if changed else ""), processor, platform.python_version(), _load(), note)


def _load() -> float:
    return round(os.getloadavg()[0], 1)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines() if Path(file).exists() else []


def rows_of(part: str, written: bytes) -> list[dict[str, Any]]:
    """The rows of a benchmark's file. ValueError: it has another form."""
    if part == "peers":
        found = msgspec.json.decode(written, type=_Peers)
        return [row for one in found.systems for row in _peer_rows(one, found.hits.records)]
    return msgspec.json.decode(written, type=list[dict[str, Any]])


class _Hits(msgspec.Struct):
    records: int


class _Peers(msgspec.Struct):
    """What is used of a file of `bench.peers`."""

    hits: _Hits
    systems: list[Measured]


def _peer_rows(one: Measured, records: int) -> list[dict[str, Any]]:
    best = one.best
    if best is None:
        return []
    rates = [run.records_per_s for run in one.runs if not run.error]
    values = {
        "records_per_s": (best.records_per_s, "records/s", rates),
        "first_result_s": (best.first_result_s, "s", [best.first_result_s]),
        "cpu_us": (best.cpu_s / records * 1e6, "µs", [best.cpu_s / records * 1e6]),
        "peak_mb": (best.peak_mb, "MB", [best.peak_mb]),
    }
    return [
        {"name": f"peers.{one.name}.{name}", "value": value, "unit": unit, "runs": runs}
        for name, (value, unit, runs) in values.items()
    ]


def save(kept: Kept, file: Path) -> None:
    """Write a file of docs/figures, with a line for each row."""
    encode = msgspec.json.encode
    rows = b",\n  ".join(encode(row) for row in kept.rows)
    file.write_bytes(b'{"origin": %b,\n "rows": [\n  %b\n]}\n' % (encode(kept.origin), rows))


def load(file: Path) -> Kept:
    """Read a file of docs/figures. ValueError: it has another form."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Kept)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} is no file of figures: {error}") from error


def load_all(folder: Path) -> dict[str, Kept]:
    """All parts that were measured, by name."""
    return {file.stem: load(file) for file in sorted(folder.glob("*.json"))}
