"""What the store has of a log's segments: a row with the records of each, and its facts in the base."""

from __future__ import annotations

from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, SegmentBlob, SegmentFacts, encode
from millwheel.worker.log.segment_values import SegmentValues
from millwheel.worker.log.segments import LogSegment

__all__ = ["facts_of", "load_row", "row_of", "stored_segment"]


def facts_of(segment: LogSegment) -> SegmentFacts:
    """A segment's facts for the base."""
    return segment.first, segment.end, segment.size, segment.age, segment.watermark, segment.commit


def stored_segment(facts: SegmentFacts) -> LogSegment:
    """A segment whose records are in the store, from its facts in the base."""
    first, end, size, age, watermark, commit = facts
    segment = LogSegment(first)
    segment.end, segment.size, segment.age, segment.watermark, segment.commit = end, size, age, watermark, commit
    segment.loaded, segment.written = False, True
    return segment


def row_of(segment: LogSegment) -> bytes:
    """A loaded segment's row."""
    offsets, marks = segment.mark_offsets, segment.mark_values
    values = segment.values.whole()
    return encode(SegmentBlob(LOG_ENTRY_FORMAT, segment.first, values, segment.timestamps, offsets, marks))


def load_row(segment: LogSegment, blob: SegmentBlob) -> None:
    """Load the row that was read.

    Raises:
        ValueError: The row is not this segment's.
    """
    count = segment.end - segment.first
    if blob.first != segment.first or len(blob.values) != count or len(blob.timestamps) != count:
        raise ValueError(
            f"the row has {len(blob.values)} records from offset {blob.first}; "
            f"the log has {count} from offset {segment.first}"
        )
    segment.values, segment.timestamps = SegmentValues(blob.values), blob.timestamps
    segment.mark_offsets, segment.mark_values = blob.mark_offsets, blob.mark_values
    segment.loaded = True
