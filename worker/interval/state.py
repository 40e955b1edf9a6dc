"""The owners of one interval's data (soft state). A takeover rebuilds equal soft state (G12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import InputWatermark
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.scope import OutputBinding
from millwheel.worker.dedup import Dedup
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.interval.blocked_key_table import BlockedKeyTable
from millwheel.worker.interval.cache.cells import CellCache
from millwheel.worker.interval.cache.pages import PageTable, undoable
from millwheel.worker.interval.clocks import IntervalClocks, OutputWatermark
from millwheel.worker.interval.holds import Holds
from millwheel.worker.interval.hook_meter import HookMeter
from millwheel.worker.interval.intake import IntervalIntake
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.interval.panes.table import PaneTable
from millwheel.worker.interval.setup import IntervalConfig, IntervalSettings, IntervalSetup
from millwheel.worker.interval.timers import IntervalTimers
from millwheel.worker.journal import CommitCounts, OwnedJournal

__all__ = ["IntervalConfig", "IntervalSettings", "IntervalState"]

_SAMPLED_KEYS: Final = 1_000
"""With so many keys, an estimate of their share is wrong by about three percent."""


class IntervalState(IntervalSetup):
    """One owner for each piece of an interval's data. No attribute is assigned after this.

    Only code that looks at the whole interval takes this object: the core, the takeover, bases, explanations and
    inspection. Every other part takes the owners that it uses.
    """

    def __init__(
        self,
        config: IntervalConfig,
        program: CompiledComputation,
        outputs: dict[str, OutputBinding],
        locate: Callable[[IncarnationId, bytes], str],
        meter: HookMeter | None = None,
    ) -> None:
        if program.growing:
            program = undoable(program, lambda: self.pages)
        super().__init__(config, program, outputs, meter)
        inputs = InputWatermark(config.groups)
        if program.begins_with is not None:
            inputs.finish()
        self.clocks = IntervalClocks(self.scope, inputs)
        # Only a source follows its own broadcasts (``Built.beside``).
        self.scope.own_low_watermark = lambda: inputs.latest.get(config.incarnation, MIN_TIMESTAMP)
        self.journal = OwnedJournal(config.journal, config.sequencer, config.deflates)
        self.ids = AdmissionState(config.keys, self.journal, inputs, config.slack, program.options.exactly_once)
        self.intake = IntervalIntake()
        self.blocked = BlockedKeyTable(self.intake)
        self.cells = CellCache(self.settings.cache_bytes, evicted=False, beside=lambda: self.panes.bytes)
        self.outbox = Outbox(locate)
        self.holds = Holds()
        self.output = OutputWatermark(self.intake.pending, self.outbox.unacked.held, self.holds)
        self.timers = IntervalTimers(self.holds, self.clocks)
        self.pages = PageTable(self, self.cells, self.timers.processing_time)
        self.column_windows = program.windows if self.settings.columns_from else None
        """How records are added to windows by columns. None: all run in hooks."""
        self.panes = PaneTable(None if self.column_windows is None else self.column_windows.fold)

    # What a worker reads of each owner, whether of an interval or of a log.

    @property
    def committed(self) -> int:
        """The newest commit in the journal."""
        return self.journal.committed

    @property
    def counts(self) -> CommitCounts:
        """The totals since the computation began."""
        return self.journal.counts

    @property
    def dedup(self) -> Dedup:
        """The ids that the interval knows."""
        return self.ids.dedup

    @property
    def inputs(self) -> InputWatermark:
        """The broadcast watermarks of the groups."""
        return self.clocks.inputs

    @property
    def cached_keys(self) -> int:
        """About how many keys have a state or panes in memory.

        Some keys of the largest window show how many have both. Any thread may ask.
        """
        states, window = len(self.cells) - self.cells.pages, self.panes.largest
        if window is None:
            return states
        # The event loop's thread may fire the window meanwhile. This is one step of the interpreter.
        some = window.first_keys(0, _SAMPLED_KEYS)
        return states + window.count * sum(key not in self.cells for key in some) // max(1, len(some))

    @property
    def watermark(self) -> int:
        """The input watermark in use."""
        return self.clocks.watermark
