"""An interval's journal under other names: a restored topology has fresh incarnations and journals.

Entries and base parts are decoded as a takeover decodes them, and encoded again. Commits, positions and ids stay. So a
production that is sent again is recognised (docs/decisions/0034-snapshots.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_ENTRY_BYTES
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import DEDUP_PART
from millwheel.worker.dedup.renaming import renamed_delta, renamed_snapshot
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.interval.commits.base_parts import (
    HOLDS_PART,
    INHERITED_PART,
    META_PART,
    OUTBOX_PART,
    PANES_PART,
    TIMERS_PART,
    VOIDS_PART,
)
from millwheel.worker.interval.commits.divided import divide, joined
from millwheel.worker.interval.commits.parts import PART_BYTES
from millwheel.worker.interval.entry import (
    BaseMeta,
    ProductionRow,
    TimerRow,
    VoidRow,
    decode_entry,
    decode_part,
    encode,
    encode_part,
)
from millwheel.worker.interval.panes.changes import PaneChange
from millwheel.worker.interval.spilled_timers import SPILLED_PART, SpilledPart, is_spilled
from millwheel.worker.names import RestoredNames

__all__ = ["renamed_entry", "renamed_part"]

_TYPES: Final[Mapping[str, object]] = {
    META_PART: BaseMeta,
    HOLDS_PART: list[tuple[bytes, int]],
    TIMERS_PART: list[TimerRow],
    VOIDS_PART: list[VoidRow],
    PANES_PART: list[PaneChange],
}
"""The types of parts without names, by kind. They are only decoded, to see that a takeover can."""


def renamed_entry(
    blob: bytes, commit: int, parts: Mapping[PartId, bytes], names: RestoredNames, where: str, sequencer: int
) -> tuple[bytes, dict[PartId, bytes]]:
    """An entry with other names, and its new parts if it is divided, or must be now.

    Args:
        blob: The entry as it is appended.
        commit: Its number.
        parts: The parts of divided entries.
        names: The other names.
        where: What an error names.
        sequencer: The writer of the new parts.

    Raises:
        CorruptValueError: A takeover could not read the entry.
    """
    whole = joined(blob, commit, parts, where)
    entry = decode_entry(whole, where)
    if entry.acked_inherited:
        raise CorruptValueError(where, "it has productions of parents, and the interval has none")
    renamed = encode(
        replace(
            entry,
            productions=_productions(entry.productions, names),
            acked=[(position, names(consumer)) for position, consumer in entry.acked],
            ids=renamed_delta(entry.ids, names),
        )
    )
    # Runs become rows, which may be more than one append takes.
    if whole is blob and len(renamed) <= MAX_ENTRY_BYTES:
        return renamed, {}
    return divide(renamed, sequencer, commit, PART_BYTES)


def renamed_part(part: PartId, blob: bytes, names: RestoredNames, where: str) -> bytes:
    """A base part with other names.

    Raises:
        CorruptValueError: A takeover could not read the part.
    """
    kind = part.name.partition("/")[0]
    if kind == OUTBOX_PART:
        return encode_part(_productions(decode_part(blob, list[ProductionRow], where), names))
    if kind == DEDUP_PART:
        return renamed_snapshot(blob, names)
    if kind in _TYPES:
        decode_part(blob, _TYPES[kind], where)
    elif kind == SPILLED_PART:
        if is_spilled([part]):
            decode_part(blob, list[TimerRow], where)
        else:
            SpilledPart.decode(part, blob, where)
    elif kind == INHERITED_PART:
        raise CorruptValueError(where, "it has productions of parents, and the interval has none")
    elif kind != SEGMENT_PART:
        raise CorruptValueError(where, "a part of a kind that this version does not know")
    return blob


def _productions(rows: list[ProductionRow], names: RestoredNames) -> list[ProductionRow]:
    """The productions for consumers that are restored, too. Another topology's consumers are not."""
    found: list[ProductionRow] = []
    for position, producer, stream, value, timestamp, targets, opaque in rows:
        kept = tuple((IncarnationId(names(consumer)), key) for consumer, key in targets if names.has(consumer))
        if kept:
            found.append((position, producer, names.stream(stream), value, timestamp, kept, opaque))
    return found
