"""How many of the records that sources have read of late could not be read: for the health of the cluster. Pure.

The counts of a source only grow. So what it has read of late is the difference to a look at them some time ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from millwheel.model.time import minutes, seconds
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.worker.interval.measures import ConnectorMeasures, IntervalMeasures
from millwheel.worker.process.tallies import ComputationName

__all__ = ["SourceReadings"]

_WINDOW: Final = minutes(15)
"""How much of a source's time of reading counts."""
_LEAST_RECORDS: Final = 100
"""So many records count, also if they took longer. So a source with few records is named, too."""
_LOOK_EVERY: Final = seconds(30)


@dataclass(frozen=True, slots=True)
class _ReadCounts:
    """The counts of a source at a time, in microseconds of wall time."""

    at: int
    records: int
    bad: int


@dataclass(slots=True)
class _Reading:
    """The looks at one source, the oldest one first, and what it had read by the last report.

    Each look but the first has more records than the one before. So there are no more than ``_LEAST_RECORDS`` beside
    those of the window (G13).
    """

    looks: list[_ReadCounts]
    records: int = 0
    last: int = 0
    """When it was last seen that something was read."""


@dataclass(slots=True)
class SourceReadings:
    """The sources of one process, as its load reports look at them."""

    looked_at: int
    """When the process began, or the last report: what a new source has read came after it."""
    _readings: dict[ComputationName, _Reading] = field(default_factory=dict)

    def with_bad_records(
        self, now: int, measures: Mapping[ComputationName, IntervalMeasures]
    ) -> Iterator[wire.SourceReads]:
        """Yield the sources of which some of the last records could not be read.

        Args:
            now: The wall time, in microseconds.
            measures: What the intervals of each computation have measured since the process began.
        """
        sources = {place: one.connector for place, one in measures.items() if one.connector.stream}
        before, self.looked_at = self.looked_at, now
        self._readings = {
            place: self._readings.get(place) or _Reading([_ReadCounts(before, 0, 0)]) for place in sources
        }
        for place, counts in sources.items():
            reading = self._readings[place]
            _look(reading, counts, now)
            first = reading.looks[0]
            if counts.bad_records > first.bad:
                yield wire.SourceReads(
                    topology=place[0],
                    computation=place[1],
                    stream=counts.stream,
                    bad_stream=counts.bad_stream,
                    records=counts.read_records - first.records,
                    bad=counts.bad_records - first.bad,
                    since_us=first.at,
                    last_us=reading.last,
                    last_error=counts.last_error,
                )


def _look(reading: _Reading, counts: ConnectorMeasures, now: int) -> None:
    """Add a look if something was read, and forget those that no longer count."""
    records, looks = counts.read_records, reading.looks
    if records > reading.records:
        reading.records, reading.last = records, now
        if now - looks[-1].at >= _LOOK_EVERY:
            looks.append(_ReadCounts(now, records, counts.bad_records))
    while len(looks) > 1 and looks[1].at <= reading.last - _WINDOW and records - looks[1].records >= _LEAST_RECORDS:
        del looks[0]
