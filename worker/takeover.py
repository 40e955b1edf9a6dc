"""What the takeovers of an interval and of a log share: numbered journal entries, and the ids of a base (6.2; G12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millwheel.model.keys import KeyInterval
from millwheel.store.contract import CorruptValueError, JournalHead, PartId
from millwheel.worker.dedup import Dedup
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.journal_base import DEDUP_PART, FIRST_BATCH_PART

__all__ = ["numbered_entries", "restored_ids"]


def numbered_entries(where: str, head: JournalHead, entries: Sequence[bytes]) -> list[tuple[int, str, bytes]]:
    """The entries above the truncation point, each with its number and where it is.

    Raises:
        CorruptValueError: Some are missing.
    """
    if len(entries) != head.commit - head.truncation_point:
        needed = f"entries {head.truncation_point + 1} to {head.commit} are needed"
        raise CorruptValueError(where, f"{needed} and {len(entries)} were found")
    return [
        (number, f"{where}, entry {number}", blob) for number, blob in enumerate(entries, head.truncation_point + 1)
    ]


def restored_ids(
    keys: KeyInterval, journal: str, parts: Mapping[PartId, bytes]
) -> tuple[Dedup | None, dict[str, tuple[PartId, ...]]]:
    """The duplicate check that a base has, and the parts of its stored id segments. None if it has no ids."""
    ids: dict[int, bytes] = {}
    batch_ids: dict[PartId, bytes] = {}
    filters: dict[str, bytes] = {}
    segments: dict[str, tuple[PartId, ...]] = {}
    for part, blob in parts.items():
        kind, _, name = part.name.partition("/")
        if kind == DEDUP_PART:
            if int(name) >= FIRST_BATCH_PART:
                batch_ids[part] = blob
            else:
                ids[int(name)] = blob
        elif kind == SEGMENT_PART:
            what, _, segment = name.partition("/")
            # The part of ids comes first, then the part of the filter.
            found = segments.get(segment, ())
            segments[segment] = (*found, part) if what == "filter" else (part, *found)
            if what == "filter":
                filters[segment] = blob
    if not ids:
        return None, segments
    # The parts form one list of rows in the order of their numbers. A head lists part 10 before part 2.
    return Dedup.restore(keys, journal, [ids[number] for number in sorted(ids)], filters, batch_ids), segments
