"""The effects of hooks that become rows of a journal entry.

They are Structs, because many are made: a NamedTuple takes ten times as long to make, and a dataclass, too. No mypyc
compiles them, so they are apart from what does the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import msgspec

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.column_keys import KeySource

__all__ = [
    "KeyColumns",
    "ProducedColumns",
    "ProducedRead",
    "ProducedTable",
    "Production",
    "Targets",
    "TimerSetting",
    "each_target",
]

Targets = tuple[tuple[IncarnationId, bytes | list[bytes]], ...]
"""The consumers of many records: each with the key of each record there, or with the one key that all of them have."""


KeyColumns = tuple[tuple[IncarnationId, KeySource], ...]
"""The consumers of a table's rows: each with the column that has their keys there, or with the one key of all rows."""


class TimerSetting(msgspec.Struct, frozen=True, gc=False):
    """A timer that a hook set. ``cause`` is the timestamp of the record or timer that the hook ran for.

    ``set_at_position`` is what the commit assigns when it journals the timer. A replaced timer gets a new one.
    """

    at: int
    hold: int | None
    cause: int
    set_at_position: int = 0


class Production(msgspec.Struct, frozen=True, gc=False):
    """A record that a hook produced. ``targets`` are its consumers (incarnation ids), each with the record's key there.

    ``cause_id`` identifies the input of the hook. It is used for deterministic production ids (weak productions).
    """

    stream: str
    value: bytes
    timestamp: int
    targets: tuple[tuple[IncarnationId, bytes], ...]
    cause_id: Any = None


class ProducedColumns(msgspec.Struct, frozen=True):
    """Records of one stream and time, one of each key: columns of equal length."""

    stream: str
    timestamp: int
    keys: Sequence[bytes]
    values: Sequence[bytes]
    targets: Targets


class ProducedRead(msgspec.Struct, frozen=True):
    """Records of one stream that a hook of a source has produced at once: columns of equal length."""

    stream: str
    values: list[bytes]
    timestamps: Sequence[int]
    targets: Targets
    cause_id: Any = None

    def sizes(self) -> list[int]:
        """The bytes of each record."""
        return list(map(len, self.values))

    def productions(self) -> list[Production]:
        """The records one by one."""
        count = len(self.values)
        targets = each_target(self.targets, count)
        columns = repeat(self.stream, count), self.values, self.timestamps, targets, repeat(self.cause_id, count)
        return list(map(Production, *columns))


class ProducedTable(msgspec.Struct, frozen=True):
    """Records of one stream that a hook of a source has produced as columns of Arrow."""

    stream: str
    records: Any
    """``RecordColumns``, without keys."""
    targets: KeyColumns
    cause_id: Any = None

    @property
    def values(self) -> Sequence[bytes]:
        """Their encoded values. To read one of them makes it."""
        values: Sequence[bytes] = self.records
        return values

    def sizes(self) -> list[int]:
        """The bytes of each record. All count alike."""
        return [self.records.average] * len(self.records)

    def productions(self) -> list[Production]:
        """The records one by one."""
        keyed = [(name, self.records.keyed(key)) for name, key in self.targets]
        keys = tuple((name, one.keys().tolist() if one.same is None else one.same) for name, one in keyed)
        rows = ProducedRead(self.stream, self.records[:], self.records.timestamps, keys, self.cause_id)
        return rows.productions()


def each_target(targets: Targets, count: int) -> Iterable[tuple[tuple[IncarnationId, bytes], ...]]:
    """The consumers of each of so many records, with its keys there."""
    if not any(isinstance(keys, list) for _, keys in targets):
        return repeat(targets, count)  # type: ignore[arg-type]
    columns = [zip(repeat(name), keys if isinstance(keys, list) else repeat(keys, count)) for name, keys in targets]
    return zip(*columns, strict=True)
