"""The journal entry of one group commit, and the base parts, as bytes (design: one blob per commit).

Both are MessagePack arrays that begin with their format number. A reader refuses a newer format with an error that
names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from millwheel.errors import NotInstalledError
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.packed_values import stored_form
from millwheel.sdk.effects import Targets, each_target
from millwheel.store.contract import CorruptValueError
from millwheel.worker.interval.column_run import ColumnRun
from millwheel.worker.interval.panes.changes import PaneChange

__all__ = [
    "FORMAT",
    "PANES_FORMAT",
    "RUNS_FORMAT",
    "TABLES_FORMAT",
    "BaseMeta",
    "InheritedRow",
    "IntervalEntry",
    "ProductionRow",
    "ProductionRun",
    "TimerRow",
    "VoidRow",
    "decode_entry",
    "decode_part",
    "decode_rows",
    "encode",
    "encode_part",
]

FORMAT: Final = 1
PANES_FORMAT: Final = 3
"""The format of entries with changes of windows by columns. Versions that do not know them must not read such an entry.
2 is that of divided entries. A cluster has them from format ``COLUMNS`` on (``millwheel/model/formats.py``)."""

RUNS_FORMAT: Final = 4
"""The format of entries with runs of productions. A cluster has them from format ``RESULT_COLUMNS`` on."""

TABLES_FORMAT: Final = 5
"""The format of entries with columns of Arrow. A cluster has them from format ``RESULT_COLUMNS`` on."""

_ROW_BYTES: Final = 24
"""About the size of a production's row without its value, keys and names."""

TimerRow = tuple[bytes, bool, str, int, int | None, int, int]
"""Key, whether it is in processing time, tag, time, hold, timestamp of the cause, position of its setting."""

ProductionRow = tuple[int, bytes, str, bytes, int, tuple[tuple[IncarnationId, bytes], ...], bytes]
"""Position, producing key, stream, value, timestamp, [(consumer, key)], opaque id (empty: the position is the id)."""

VoidRow = tuple[bytes, bool, str, int]
"""A tombstone: key, whether it is in processing time, tag, position. Spilled copies of the timer below the position are
deleted."""

InheritedRow = tuple[str, ProductionRow]
"""A production from before a split or merge: the parent's journal, which is still its sequence, and the row."""


class ProductionRun(msgspec.Struct, array_like=True, frozen=True):
    """Productions of one stream for the same consumers, at positions that follow one another: columns of equal length.

    What a source has read, and the results of windows, may have keys at their consumers, one of each production.
    """

    position: int
    """The position of the first one."""
    stream: str
    targets: Targets
    """[(consumer, key)]: the key there of all productions, or a list with that of each."""
    producers: list[bytes | tuple[int, bytes]]
    """The producing key of one, or (number, key) of so many that follow one another."""
    values: Sequence[bytes]
    """A list, or ``PackedValues``, which are stored alike."""
    times: list[int | tuple[int, int]]
    """The timestamp of one, or (number, timestamp) of so many that follow one another."""

    @property
    def positions(self) -> range:
        """The positions."""
        return range(self.position, self.position + len(self.values))

    @property
    def spared(self) -> int:
        """About how many bytes more its rows have. A takeover makes rows of it."""
        names = len(self.stream) + sum(len(consumer) for consumer, _ in self.targets)
        keys = sum(len(key) for _, key in self.targets if isinstance(key, bytes))
        producers = 0
        if tuple in set(map(type, self.producers)):
            producers = sum(one[0] * len(one[1]) for one in self.producers if isinstance(one, tuple))
        return len(self.values) * (names + keys + _ROW_BYTES) + producers

    def each_producer(self) -> list[bytes]:
        """The producing key of each."""
        return _each(self.producers)

    def timestamps(self) -> list[int]:
        """The timestamp of each."""
        return _each(self.times)

    def rows(self) -> Iterator[ProductionRow]:
        """The productions one by one.

        Raises:
            ValueError: The columns have other lengths.
        """
        count = len(self.values)
        keys = {len(key) for _, key in self.targets if isinstance(key, list)}
        if keys - {count} or not _count(self.producers) == count == _count(self.times):
            raise ValueError("a run of productions whose columns have other lengths")
        stream, ids = repeat(self.stream, count), repeat(b"", count)
        columns = (self.positions, self.each_producer(), stream, self.values, self.timestamps())
        return zip(*columns, each_target(self.targets, count), ids, strict=True)


def _count(column: Sequence[Any]) -> int:
    """The number of items of a column with (number, item) pairs. ValueError: a number is below 1."""
    numbers: list[int] = [one[0] for one in column if isinstance(one, tuple)]
    if any(number < 1 for number in numbers):
        raise ValueError("a run of productions with a number below 1")
    return len(column) - len(numbers) + sum(numbers)


def _each(column: Sequence[Any]) -> list[Any]:
    """The items of a column, where a pair (number, item) stands for so many."""
    if tuple not in set(map(type, column)):
        return list(column)
    found: list[Any] = []
    for one in column:
        if isinstance(one, tuple):
            found += repeat(one[1], one[0])
        else:
            found.append(one)
    return found


class IntervalEntry(msgspec.Struct, array_like=True, frozen=True):
    """What one commit changed. Entries applied in order to a base give the interval's exact state (G2, G12)."""

    format: int
    watermark: int
    """The input watermark in use. A new owner starts from the last one.

    So a record below it stays late, and no hook sees less than a committed one has seen. The former owner may have seen
    a later watermark without a commit. A record that was late by that one alone, and is not committed, may be on time
    for the new owner. Nothing of the former decision remains then.
    """
    wall: int
    """The wall-clock time in use. A new owner starts from it, for processing-time timers."""
    states: list[tuple[bytes, bytes]]
    """(key, encoded state) of the keys whose state changed. Empty bytes: the state is cleared."""
    holds: list[tuple[bytes, int | None]]
    timers_set: list[TimerRow]
    timers_cleared: list[tuple[bytes, bool, str]]
    productions: list[ProductionRow]
    ids: list[Any]
    """The ids of the consumed records, as the duplicate check encodes them."""
    acked: list[tuple[int, str]]
    """(position, consumer) of productions with opaque ids whose ACK this commit journals."""
    counts: tuple[int, ...]
    """The counts of this commit, in the order of ``CommitCounts.row``."""
    acked_inherited: list[tuple[str, int, str]] = []
    """(sequence, position, consumer) of productions inherited from parents whose ACK this commit journals."""
    panes: list[PaneChange] = []
    """The changes of windows by columns."""
    runs: list[ProductionRun] = []
    """Productions before those in ``productions``. ``decode_entry`` adds them to these."""
    tables: list[ColumnRun] = []
    """Productions behind ``runs``, and before those in ``productions``. ``decode_entry`` adds them, too."""


class BaseMeta(msgspec.Struct, array_like=True, frozen=True):
    """The base part of all small values: watermarks and totals."""

    format: int
    watermark: int
    wall: int
    output: int
    counts: tuple[int, ...]
    key_bounds: list[tuple[bytes, bytes | None, int]] = []
    """First key, end, bound: watermark bounds of keys from before a merge that the watermark has not passed."""


_encoder = msgspec.msgpack.Encoder(enc_hook=stored_form)
encode = _encoder.encode
_entry_decoder = msgspec.msgpack.Decoder(IntervalEntry)


def decode_entry(blob: bytes, where: str) -> IntervalEntry:
    """The entry in ``blob``.

    Raises:
        CorruptValueError: ``blob`` is not an entry of this format; the error names ``where``.
        NotInstalledError: It has columns of Arrow, and pyarrow is missing.
    """
    try:
        entry = _entry_decoder.decode(blob)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"not a journal entry: {error}") from error
    if entry.format not in (FORMAT, PANES_FORMAT, RUNS_FORMAT, TABLES_FORMAT):
        known = f"this version reads formats {FORMAT}, {PANES_FORMAT}, {RUNS_FORMAT} and {TABLES_FORMAT}"
        raise CorruptValueError(where, f"journal entry of format {entry.format}; {known}")
    if not entry.runs and not entry.tables:
        return entry
    try:
        rows = [row for run in entry.runs for row in run.rows()]
        rows += [row for table in entry.tables for row in table.rows()]
    except NotInstalledError as error:
        raise NotInstalledError(f"{where}: {error}") from error
    except ValueError as error:
        raise CorruptValueError(where, f"not a journal entry: {error}") from error
    return replace(entry, productions=rows + entry.productions, runs=[], tables=[])


def encode_part(value: Any) -> bytes:
    """Encode a base part."""
    return encode((FORMAT, value))


def decode_part(blob: bytes, type_: Any, where: str) -> Any:
    """Decode a base part as ``type_``.

    Raises:
        CorruptValueError: ``blob`` is not such a part; the error names ``where``.
    """
    try:
        number, value = msgspec.msgpack.decode(blob, type=tuple[int, type_])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"not a base part: {error}") from error
    if number != FORMAT:
        raise CorruptValueError(where, f"base part of format {number}; this version reads format {FORMAT}")
    return value


def decode_rows(rows: Iterable[msgspec.Raw], type_: Any, where: str) -> list[Any]:
    """Decode some rows of a base part that was decoded as ``list[msgspec.Raw]``. A long part takes its time in slices.

    Raises:
        CorruptValueError: One of them is no such row; the error names ``where``.
    """
    decode = msgspec.msgpack.Decoder(type_).decode
    try:
        return [decode(row) for row in rows]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"not a row of a base part: {error}") from error
