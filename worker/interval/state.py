"""The settings, the configuration and the soft state of one interval core.

A takeover rebuilds equal soft state (G12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millwheel.model.keys import KeyInterval
from millwheel.model.limits import MAX_ENTRY_BYTES
from millwheel.model.time import MAX_CLOCK_SKEW_US, MIN_TIMESTAMP
from millwheel.model.units import any_timestamp_default
from millwheel.model.watermarks import InputWatermark
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.context import OutputBinding, Scope
from millwheel.store.contract import PartId
from millwheel.worker.dedup import Dedup
from millwheel.worker.interval.cells import CellCache
from millwheel.worker.interval.failing_keys import FailingKeys
from millwheel.worker.interval.flows import INDEX_BITS
from millwheel.worker.interval.holds import Holds
from millwheel.worker.interval.hook_times import HookMeter
from millwheel.worker.interval.intake import IntervalIntake
from millwheel.worker.interval.key_watermark_bounds import KeyWatermarkBounds
from millwheel.worker.interval.outbox import Outbox
from millwheel.worker.interval.sampling import KeySample
from millwheel.worker.interval.spilled_timers import SpilledTimers
from millwheel.worker.interval.timers import TimerTable
from millwheel.worker.messages import Parent

__all__ = ["INDEX_BITS", "IntervalConfig", "IntervalCounts", "IntervalSettings", "IntervalState"]


@dataclass(frozen=True, slots=True)
class IntervalSettings:
    """Limits and delays of an interval core. Times are microseconds, sizes are bytes."""

    batch_records: int = 8_192
    """Maximum records in one commit: some tens of milliseconds of hooks."""
    batch_bytes: int = 2 << 20
    """Approximate maximum of states and productions in one commit, far below what any store accepts in one write."""
    entry_bytes: int = MAX_ENTRY_BYTES
    """Maximum size of one append to the journal. A larger entry is written in parts before its append."""
    queue_records: int = 200_000
    queue_bytes: int = 64 << 20
    """Maximum of received, uncommitted records. Beyond it, records ahead of the watermark are refused (G13)."""
    outbox_records: int = 200_000
    outbox_bytes: int = 128 << 20
    """Limit of productions without an ACK. Beyond it, only records and timers that hold the watermark are run (G13)."""
    cache_bytes: int = 256 << 20
    flush_interval: int = 1_000_000
    """Maximum delay of state rows behind the journal while nothing waits for them. Many commits share one row write."""
    flush_rows: int = 10_000
    """Number of rows behind the journal from which they are written sooner: half a second of work for Cassandra."""
    flush_apart: int = 5_000_000
    """Minimum time between two such earlier writes."""
    checkpoint_entries: int = 5_000
    checkpoint_bytes: int = 32 << 20
    """Journal above the truncation point after which a new base is written: the maximum that a takeover replays."""
    timer_part: int = 20_000
    """Maximum timers in one base part."""
    timers_kept: int = 100_000
    """Approximate number of timers of one time domain in memory, at about 900 bytes each. At twice as many, the
    farthest timers are spilled to the store."""
    timer_lead: int = 10_000_000
    """How long before their time spilled timers are read from the store, if memory has room for them."""
    async_hooks: int = 256
    """Maximum asynchronous hooks that run at once."""
    any_timestamp: bool = field(default_factory=any_timestamp_default)
    """Whether hooks may state timestamps that are plausible only in another unit than microseconds."""


@dataclass(frozen=True, slots=True)
class IntervalConfig:
    """The identity of an interval.

    ``senders`` are the computations and injectors that the input watermark follows.
    """

    computation: str
    journal: str
    keys: KeyInterval
    sequencer: int
    senders: frozenset[str]
    slack: Mapping[str, int] = field(default_factory=dict)
    """For each sending injector: how far behind its watermark the ids of late records are kept (6.1.1)."""
    feedback: frozenset[str] = frozenset()
    """Input streams that close a cycle. Their records are always admitted and run."""
    settings: IntervalSettings = field(default_factory=IntervalSettings)
    parents: tuple[Parent, ...] = ()
    """The journals from which a split or merge made this interval, until it no longer needs them."""


@dataclass(slots=True)
class IntervalCounts:
    """Totals since the computation began. They are journaled with the commits that they count."""

    records: int = 0
    duplicates: int = 0
    late: int = 0
    dead_letters: int = 0

    @property
    def row(self) -> tuple[int, int, int, int]:
        """The totals as the journal stores them."""
        return self.records, self.duplicates, self.late, self.dead_letters

    def add(self, more: IntervalCounts) -> None:
        """Add the totals ``more``."""
        self.records += more.records
        self.duplicates += more.duplicates
        self.late += more.late
        self.dead_letters += more.dead_letters

    def since(self, before: IntervalCounts) -> IntervalCounts:
        """The difference from the earlier totals ``before``."""
        return IntervalCounts(*(now - then for now, then in zip(self.row, before.row, strict=True)))


class IntervalState:
    """The data that the parts of an interval core share."""

    def __init__(
        self,
        config: IntervalConfig,
        program: CompiledComputation,
        outputs: dict[str, OutputBinding],
        locate: Callable[[str, bytes], str],
        meter: HookMeter | None = None,
    ) -> None:
        self.config = config
        self.settings = config.settings
        self.program = program
        self.scope = Scope(
            program.name,
            outputs,
            program.state.new,
            program.state.decode,
            program.handles_timers,
            self.settings.any_timestamp,
            "" if program.state.takes_none else program.state.type_name,
        )
        self.inputs = InputWatermark(config.senders)
        self.intake = IntervalIntake()
        self.dedup = Dedup(config.keys, config.journal)
        self.cells = CellCache(self.settings.cache_bytes, evicted=False)
        self.outbox = Outbox(locate)
        self.holds = Holds(self.intake.pending, self.outbox.unacked.held)
        self.timers = {wall: TimerTable(self.holds, wall) for wall in (False, True)}
        self.spilled = SpilledTimers(self.holds)
        """Spilled timers: those that only the store holds."""
        self.counts = IntervalCounts()
        self.inherited = IntervalCounts()
        """The totals when this owner took over."""
        self.sample = KeySample()
        self.failing = FailingKeys()
        """Keys that are blocked by a raising hook, for operators."""
        self.meter = HookMeter() if meter is None else meter
        self.watermark: int = MIN_TIMESTAMP
        """The input watermark in use. It is monotone."""
        self.wall = 0
        """The wall-clock time in use. It is monotone, also across owners, unless a clock is corrected by much."""
        self.elapsed = 0
        """The clock of delays. It advances with the wall clock and never goes back, whatever an earlier owner's clock
        showed."""
        self._clock = 0
        self.heard: int = MIN_TIMESTAMP
        """The highest watermark stated by any delivery. A sender whose records cause this interval's may have reached
        it."""
        self.sealed = 0
        """The newest commit number assigned to a batch."""
        self.committed = 0
        self.floor = 0
        self.parts: tuple[PartId, ...] = ()
        """The parts of the base that the head names. Empty before the first base."""
        self.entry_parts: dict[int, tuple[PartId, ...]] = {}
        """The parts of divided entries, by commit: entries above the truncation point, and the entry in flight."""
        self.segments: dict[str, tuple[PartId, ...]] = {}
        """Stored id segments of the duplicate check, by name."""
        self.foreign: dict[str, str] = {}
        """The segments whose parts are still in a parent's journal, each with that journal."""
        self.floors = KeyWatermarkBounds(())
        self.ahead: dict[bytes, None] = {}
        """Keys that may have timers that are due by their watermark bounds, and not yet by the interval's watermark."""
        self.slack: Mapping[str, int] = config.slack
        """For each sending injector: how far behind its watermark the ids of late records are kept (6.1.1)."""

    def look_at_clock(self, now: int) -> None:
        """Set the wall-clock time to ``now``.

        - If the clock was set back a little, ``wall`` keeps its value until the clock reaches it again. A
          processing-time timer may have fired by it.
        - If the clock was set back by more than ``MAX_CLOCK_SKEW_US``, the old value was wrong. ``wall`` follows the
          clock. Otherwise a delay of one second would last as long as the error.

        ``elapsed`` never goes back.
        """
        if now > self.wall or self.wall - now > MAX_CLOCK_SKEW_US:
            self.wall = self.scope.now = now
        self.elapsed += max(0, now - self._clock)
        self._clock = now

    def inherit_wall(self, wall: int) -> None:
        """Continue from ``wall``, the wall-clock time that the earlier owner used.

        A value far ahead of this clock is ignored. The earlier owner's clock was wrong, and a delay of one second would
        last as long as the error.
        """
        if wall - self._clock <= MAX_CLOCK_SKEW_US:
            self.wall = self.scope.now = max(self.wall, wall)

    def wall_at(self, elapsed: int) -> int:
        """The wall-clock time that corresponds to ``elapsed``, unless the clock is set in between."""
        return self._clock + elapsed - self.elapsed

    @property
    def counted(self) -> IntervalCounts:
        """The totals since this owner took over."""
        return self.counts.since(self.inherited)

    def watermark_of(self, key: bytes) -> int:
        """The input watermark that ``key`` sees: the interval's, or the key's bound from a merge if it is higher."""
        return max(self.watermark, self.floors.of(key)) if self.floors else self.watermark

    @property
    def outbox_full(self) -> bool:
        """Whether productions without an ACK are at the limit. Then only what holds the watermark may run (G13)."""
        outbox, settings = self.outbox, self.settings
        return outbox.unacked.records >= settings.outbox_records or outbox.unacked.bytes >= settings.outbox_bytes

    @property
    def has_holder(self) -> bool:
        """Whether a record here holds a sender's watermark, or may close a cycle."""
        return self.intake.pending.min() <= self.inputs.value or bool(self.config.feedback and self.intake.records)

    @property
    def timer_count(self) -> int:
        """The number of timers, with spilled ones. A spilled timer that was set again counts twice."""
        return sum(map(len, self.timers.values())) + self.spilled.count

    def due_until(self, wall: bool, key: bytes | None = None) -> int:
        """The latest time for which timers may fire. No timer fires before an earlier spilled one (G5).

        With ``key``, the time is for this key. A timer that is due by its key's watermark bound is never spilled.
        """
        limit = self.wall if wall else self.watermark
        if self.spilled and (first := self.spilled.first(wall)) is not None:
            limit = min(first, limit)
        return max(limit, self.floors.of(key)) if key is not None and self.floors and not wall else limit

    def note_due(self, key: bytes, at: int) -> None:
        """Register that ``key`` has an event-time timer at ``at`` if it may be due by the key's watermark bound."""
        if self.floors and at <= self.floors.of(key):
            self.ahead[key] = None

    @property
    def behind(self) -> bool:
        """Whether spilled event-time timers are due. They fire before any more records run."""
        first = self.spilled.first(False)
        return first is not None and first <= self.watermark

    def set_floors(self, floors: KeyWatermarkBounds) -> None:
        """Set the key watermark bounds from before a merge that the interval's watermark has not passed."""
        self.floors = floors
        self.scope.floor_of = floors.of if floors else None
        if not floors:
            # The watermark has reached every timer that was due by a bound.
            self.ahead.clear()

    def next_timer(self, key: bytes) -> int | None:
        """The time of the key's first event-time timer, for cache eviction."""
        return self.timers[False].next_of_key(key)
