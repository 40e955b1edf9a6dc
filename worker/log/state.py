"""The data of a log's core: the cached state that a takeover would read (G12), and uncommitted records."""

from __future__ import annotations

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import InputWatermark
from millwheel.worker.dedup import Dedup
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.journal import CommitCounts, OwnedJournal
from millwheel.worker.log.cursors import Cursors
from millwheel.worker.log.intake import LogIntake
from millwheel.worker.log.segments import LogClock, Records
from millwheel.worker.log.settings import LogConfig

__all__ = ["LogState"]


class LogState:
    """The owners of a log's data, and the facts that have no other owner."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.settings = config.settings
        self.inputs = InputWatermark(config.senders)
        self.intake = LogIntake()
        self.records = Records()
        self.cursors = Cursors()
        self.clock = LogClock()
        self.journal = OwnedJournal(config.journal, config.sequencer)
        self.ids = AdmissionState(config.keys, self.journal, config.slack)
        self.watermark: int = MIN_TIMESTAMP
        """Input and output watermark in one. Uncommitted records hold it. Monotone."""
        self.assured: int = MIN_TIMESTAMP
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
