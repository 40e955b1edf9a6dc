"""Stored ids under other names: a restored topology has fresh incarnations and journals, and a fork has another name.

What names a sequence, a sending group or an injector process is renamed. The ids themselves stay
(docs/decisions/0034-snapshots.md).

The horizons of injector groups do not: a restored group begins without a watermark, below all of them, and a delivery
below its group's horizon is sent again for ever. The ids above them are here, and the group's next watermark forgets
them. A delivery from before the restore names another incarnation, so none comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from millwheel.model.incarnation import is_injector
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.store.contract import TERMINAL_SEQUENCER
from millwheel.worker.dedup.known_sequencers import life_span
from millwheel.worker.dedup.results import FORMAT, RANGES_FORMAT, DedupError
from millwheel.worker.names import RestoredNames

__all__ = ["renamed_delta", "renamed_snapshot"]

_FORMATS: Final = (FORMAT, RANGES_FORMAT)
_SEQUENCES: Final = frozenset({"sequence", "seen", "ranges"})
"""The kinds of rows in a snapshot whose first value names a sequence. The first kind also names the process that sends
it."""
_GROUPS: Final = frozenset({"horizon", "ids", "segment"})
"""Those whose first value names a group."""


def renamed_delta(wire: Sequence[Any], names: RestoredNames) -> list[Any]:
    """What ``IdDelta.to_wire`` returned, with other names.

    Raises:
        DedupError: The facts have another format.
    """
    if not wire:
        return []
    if wire[0] not in _FORMATS:
        raise DedupError(f"ids of format {wire[0]}; this version renames formats {FORMAT} and {RANGES_FORMAT}")
    number, positions, opaque, batches, admitted, marks, retired, sequencers, horizons, *more = wire
    return [
        number,
        _renamed(positions, names),
        _renamed(opaque, names.group),
        _renamed(batches, names.query),
        [[names(sequence), names.group(process)] for sequence, process in admitted],
        _renamed(marks, names),
        [names(sequence) for sequence in retired],
        [renamed for row in sequencers for renamed in _sequencers(row, names)],
        [[names.group(row[0]), *row[1:]] for row in horizons if not is_injector(row[0])],
        *(_renamed(ranges, names) for ranges in more),
    ]


def _renamed(rows: Sequence[Sequence[Any]], name: Callable[[str], str]) -> list[list[Any]]:
    """Rows that begin with a name."""
    return [[name(row[0]), *row[1:]] for row in rows]


def _sequencers(row: Sequence[Any], names: RestoredNames) -> list[list[Any]]:
    """A row of the sequencer map. Its span names an injector process or a life, or has producing keys.

    A fork's streams begin a life under a number of its own, so the floor of the present life gets this number. A
    journal of an earlier version may have no such floor. It gets one before the first sequencer of the present life:
    the ids of that life come with this sequencer or later (``Dedup.begin_life``).
    """
    group, span, sequencer = row
    if not isinstance(span, str):
        return [[names.group(group), span, sequencer]]
    span = names.group(span)
    for injectors, since in names.lives.items():
        floor = life_span(injectors)
        if span.startswith(floor) and since <= sequencer < TERMINAL_SEQUENCER:
            own = [[group, span, sequencer]] if span != floor else []
            if own and injectors in names.floors:
                return own
            names.floors.add(injectors)
            return [["", floor, names.life], *own]
    return [[names.group(group), span, sequencer]]


def renamed_snapshot(blob: bytes, names: RestoredNames) -> bytes:
    """One blob of a ``DedupSnapshot``, with other names.

    Raises:
        DedupError: A row is of an unknown kind, or the blob has another format.
    """
    number, rows = msgspec.msgpack.decode(blob)
    if number not in _FORMATS:
        raise DedupError(f"ids of format {number}; this version renames formats {FORMAT} and {RANGES_FORMAT}")
    found: list[Any] = []
    for row in rows:
        kind = row[0]
        if kind == "sequencer":
            found += [[kind, *renamed] for renamed in _sequencers(row[1:], names)]
            continue
        if kind == "horizon" and is_injector(row[1]):
            row[1:] = [names.group(row[1]), MIN_TIMESTAMP, MIN_TIMESTAMP]
        elif kind in _SEQUENCES:
            row[1] = names(row[1])
            if kind == "sequence":
                row[2] = names.group(row[2])
        elif kind in _GROUPS:
            row[1] = names.group(row[1])
        elif kind == "batch":
            row[1] = names.query(row[1])
        elif kind != "counter":
            raise DedupError(f"row {kind!r} of a snapshot is unknown")
        found.append(row)
    return msgspec.msgpack.encode((number, found))
