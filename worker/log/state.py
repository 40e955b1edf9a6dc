"""The data of a log's core: the cached state that a takeover would read (G12), and uncommitted records."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import InputWatermark
from millwheel.worker.dedup import Dedup
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.journal import CommitCounts, OwnedJournal
from millwheel.worker.log.cursors import Cursors
from millwheel.worker.log.intake import LogIntake
from millwheel.worker.log.letters import LetterMarks
from millwheel.worker.log.settings import LogConfig
from millwheel.worker.log.stored_segments import StoredRecords
from millwheel.worker.log.traces import LogTraces, TracedLogIntake

__all__ = ["LogClock", "LogState"]


@dataclass(slots=True)
class LogClock:
    """The owner's steady clock, and the log's age. Times are in microseconds."""

    now: int = 0
    """The time at the last event. Delays are measured with it."""
    appended_at: int = 0
    """When the last entry was committed."""
    age: int = 0
    """How long the log has been served by all its owners, from an arbitrary start. Records age by it, not by wall
    clocks, which can be reset. It is journaled and monotone."""
    journaled_age: int = 0
    """The ``age`` in the last committed entry. A successor continues from it."""

    def at(self, age: int) -> int:
        """The time on the steady clock at the given ``age``."""
        return self.now + age - self.age


class LogState:
    """The owners of a log's data, and the facts that have no other owner."""

    def __init__(self, config: LogConfig, traces: LogTraces | None = None) -> None:
        """``traces``: the spans of sampled records. None: there are none."""
        self.config = config
        self.settings = config.settings
        self.retention = config.retention
        """What the log keeps beside its cursors. An update of the topology may change it."""
        self.inputs = InputWatermark(config.groups)
        self.records = records = StoredRecords()
        self.intake = LogIntake() if traces is None else TracedLogIntake(traces, lambda: records.end)
        self.cursors = Cursors()
        self.letters = LetterMarks()
        """Of a dead-letter stream. Other streams have none."""
        self.clock = LogClock()
        self.journal = OwnedJournal(config.journal, config.sequencer, config.deflates)
        self.ids = AdmissionState(config.keys, self.journal, self.inputs, config.slack)
        self.watermark: int = MIN_TIMESTAMP
        """Input and output watermark in one. Uncommitted records hold it. Monotone."""
        self.journaled_watermark: int = MIN_TIMESTAMP
        """The watermark of the last committed entry. At its acknowledgement, no other owner had the journal."""

    @property
    def committed(self) -> int:
        """The newest commit in the journal."""
        return self.journal.committed

    @property
    def counts(self) -> CommitCounts:
        """The totals since the log was created."""
        return self.journal.counts

    @property
    def dedup(self) -> Dedup:
        """The ids that the log knows."""
        return self.ids.dedup
