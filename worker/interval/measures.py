"""What the intervals of a computation measure in one process: latencies, sizes, run times, and records by stream."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

__all__ = ["ConnectorMeasures", "Distribution", "IntervalMeasures"]

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_CALL_SECONDS: Final = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
_BYTES: Final = (256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0)
_RECORDS: Final = (1.0, 2.0, 5.0, 10.0, 25.0, 100.0, 250.0, 1_000.0, 2_500.0, 8_192.0, 16_384.0, 65_536.0)


class Distribution:
    """How many values are up to each of some bounds. One thread adds, others may read."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The values up to each bound and above the one before it. The last ones are above all bounds."""
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Add a value, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class ConnectorMeasures:
    """What the hooks of a source or of a sink have done in this process. One thread adds, others may read.

    They count each read and each write that has ended, also one whose commit does not take effect.
    """

    def __init__(self) -> None:
        self.stream = ""
        """The stream that a source is read into. Empty: nothing was read."""
        self.read_records = 0
        self.read_bytes = 0
        self.lost_records = 0
        self.bad_records = 0
        self.bad_stream = ""
        """The stream for records that could not be read."""
        self.last_error = ""
        """Why the last one of them could not be read."""
        self.behind: dict[str, int | None] = {}
        """By split that has not ended: how many records waited in it after its last read here, if that is known. Some
        of these splits may be elsewhere by now."""
        self.written_records = 0
        self.written_bytes = 0
        self.write_seconds = Distribution(_SECONDS)
        """Of each batch."""

    def has_read(
        self,
        stream: str,
        split: str,
        sizes: Sequence[int],
        behind: int | None,
        *,
        ended: bool,
        lost: int = 0,
        bad: int = 0,
        bad_stream: str = "",
        last_error: str = "",
    ) -> None:
        """See :class:`millwheel.sdk.scope.ConnectorCounts`."""
        self.stream = stream
        self.read_records += len(sizes)
        self.read_bytes += sum(sizes)
        self.lost_records += lost
        self.bad_records += bad
        if bad:
            self.bad_stream, self.last_error = bad_stream, last_error
        if ended:
            self.behind.pop(split, None)
        else:
            self.behind[split] = behind

    def has_written(self, records: int, size: int, seconds: float) -> None:
        """See :class:`millwheel.sdk.scope.ConnectorCounts`."""
        self.written_records += records
        self.written_bytes += size
        self.write_seconds.add(seconds)


class IntervalMeasures:
    """The measures of the intervals of one computation in this process. They go on when intervals come and go."""

    def __init__(self) -> None:
        self.commit_latency = Distribution(_SECONDS)
        """From the receipt of a record to its commit, in seconds."""
        self.ack_latency = Distribution(_SECONDS)
        """From the commit of a production to the ACK of its consumer, in seconds."""
        self.append_seconds = Distribution(_SECONDS)
        """From the sending of a commit to the store until it is known to be there."""
        self.entry_bytes = Distribution(_BYTES)
        self.entry_records = Distribution(_RECORDS)
        self.hook_seconds: defaultdict[str, Distribution] = defaultdict(lambda: Distribution(_CALL_SECONDS))
        """By hook: the mean time of a call, for each batch of calls."""
        self.received: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """By stream: the fresh records that were received, and the bytes of their values. Then both of those among them
        that their senders had before the owner began to serve: the owner before had perhaps received them, too."""
        self.connector = ConnectorMeasures()
