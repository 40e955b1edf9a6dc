"""A log's journal under other names: only the ids of its senders have names (docs/decisions/0034-snapshots.md)."""

from __future__ import annotations

from msgspec.structs import replace

from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import DEDUP_PART
from millwheel.worker.dedup.renaming import renamed_delta, renamed_snapshot
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.log.checkpoint import META_PART
from millwheel.worker.log.entry import LogEntry, LogMeta, decode, encode
from millwheel.worker.names import RestoredNames

__all__ = ["renamed_log_entry", "renamed_log_part"]


def renamed_log_entry(blob: bytes, names: RestoredNames, where: str) -> tuple[bytes, int]:
    """An entry with other names, and where the log ends after it.

    Raises:
        CorruptValueError: A takeover could not read the entry.
    """
    entry = decode(blob, LogEntry, where)
    return encode(replace(entry, ids=renamed_delta(entry.ids, names))), entry.first + len(entry.values)


def renamed_log_part(part: PartId, blob: bytes, names: RestoredNames, where: str) -> tuple[bytes, int]:
    """A base part with other names, and where the log ends. 0: this part does not say it.

    Raises:
        CorruptValueError: A takeover could not read the part.
    """
    kind = part.name.partition("/")[0]
    if kind == DEDUP_PART:
        return renamed_snapshot(blob, names), 0
    if kind == META_PART:
        return blob, decode(blob, LogMeta, where).end
    if kind != SEGMENT_PART:
        raise CorruptValueError(where, "a part of a kind that this version does not know")
    return blob, 0
