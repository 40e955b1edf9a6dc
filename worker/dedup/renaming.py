"""Stored ids under other names: a restored topology has fresh incarnations and journals.

What names a sequence or a sending group is renamed. The ids themselves stay (docs/decisions/0034-snapshots.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from millwheel.worker.dedup.results import FORMAT, DedupError

__all__ = ["renamed_delta", "renamed_snapshot"]

_NAMED: Final = frozenset({"sequencer", "sequence", "seen", "horizon", "ids", "segment"})
"""The kinds of rows in a snapshot whose first value is the name of a sequence or a group."""


def renamed_delta(wire: Sequence[Any], name: Callable[[str], str], query: Callable[[str], str]) -> list[Any]:
    """What ``IdDelta.to_wire`` returned, with other names. ``query`` translates the queries of batches.

    Raises:
        DedupError: The facts have another format.
    """
    if not wire:
        return []
    if wire[0] != FORMAT:
        raise DedupError(f"ids of format {wire[0]}; this version renames format {FORMAT}")
    _, positions, opaque, batches, admitted, marks, retired, sequencers, horizons = wire
    named = [[[name(row[0]), *row[1:]] for row in rows] for rows in (positions, opaque, admitted, marks)]
    return [
        FORMAT,
        named[0],
        named[1],
        [[query(row[0]), *row[1:]] for row in batches],
        named[2],
        named[3],
        [name(sequence) for sequence in retired],
        [[name(row[0]), *row[1:]] for row in sequencers],
        [[name(row[0]), *row[1:]] for row in horizons],
    ]


def renamed_snapshot(blob: bytes, name: Callable[[str], str], query: Callable[[str], str]) -> bytes:
    """One blob of a ``DedupSnapshot``, with other names.

    Raises:
        DedupError: A row is of an unknown kind, or the blob has another format.
    """
    number, rows = msgspec.msgpack.decode(blob)
    if number != FORMAT:
        raise DedupError(f"ids of format {number}; this version renames format {FORMAT}")
    for row in rows:
        kind = row[0]
        if kind in _NAMED:
            row[1] = name(row[1])
        elif kind == "batch":
            row[1] = query(row[1])
        elif kind != "counter":
            raise DedupError(f"row {kind!r} of a snapshot is unknown")
    return msgspec.msgpack.encode((FORMAT, rows))
