"""What the takeovers of an interval and of a log share: numbered journal entries, and the ids of a base (6.2; G12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millwheel.model.keys import KeyInterval
from millwheel.store.contract import CorruptValueError, JournalHead, PartId
from millwheel.worker.dedup import DEDUP_PART, Dedup
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.journal_base import FIRST_BATCH_PART

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
    keys: KeyInterval, journal: str, parts: Mapping[PartId, bytes], *, of_parent: bool = False
) -> tuple[Dedup | None, dict[str, tuple[PartId, ...]]]:
    """The duplicate check that a base has, and the parts of its stored id segments. None if it has no ids.

    ``of_parent``: a child inherits them, and no base names these parts again.

    Raises:
        CorruptValueError: A part is missing or damaged; the error names the journal and the part.
    """
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
    if not ids and not batch_ids:
        return None, segments
    # The parts form one list of rows in the order of their numbers. A head lists part 10 before part 2.
    numbers = range(max(len(ids), 1))
    for number in numbers:
        if number not in ids:
            where = f"journal {journal}, base part {DEDUP_PART}/{number}"
            raise CorruptValueError(where, "it is needed, and the journal's head does not name it")
    blobs = [ids[number] for number in numbers]
    return Dedup.restore(keys, journal, blobs, filters, batch_ids, of_parent=of_parent), segments
