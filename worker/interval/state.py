"""What one interval's core knows: its configuration, and the soft state that equals a takeover's scan (G12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millwheel.core.keys import KeyInterval
from millwheel.core.limits import MAX_ENTRY_BYTES
from millwheel.core.time import CLOCKS_DIFFER, MIN_TIMESTAMP
from millwheel.core.units import any_timestamp_default
from millwheel.core.watermarks import InputWatermark
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.context import OutputBinding, Scope, TimerSetting
from millwheel.store.contract import PartId
from millwheel.worker.dedup import Dedup
from millwheel.worker.interval.cells import CellCache
from millwheel.worker.interval.failing_keys import FailingKeys
from millwheel.worker.interval.far import FarTimers
from millwheel.worker.interval.floors import KeyFloors
from millwheel.worker.interval.hold_times import HoldTimes
from millwheel.worker.interval.hook_times import HookMeter
from millwheel.worker.interval.intake import Intake
from millwheel.worker.interval.outbox import Outbox
from millwheel.worker.interval.sampling import KeySample
from millwheel.worker.interval.shipments import INDEX_BITS
from millwheel.worker.interval.timers import TimerTable
from millwheel.worker.messages import Parent

__all__ = ["INDEX_BITS", "Counts", "IntervalConfig", "IntervalState", "Settings", "effective_hold"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds and delays of an interval core. Times are microseconds, sizes bytes."""

    batch_records: int = 8_192
    """Records in one commit, at most: some tens of milliseconds of hooks."""
    batch_bytes: int = 2 << 20
    """States and productions in one commit, about: far below what any store takes in one write."""
    entry_bytes: int = MAX_ENTRY_BYTES
    """One append to the journal, at most. A larger entry is written in parts before its append."""
    queue_records: int = 200_000
    queue_bytes: int = 64 << 20
    """Received and uncommitted, at most; beyond it, records ahead of the watermark are refused (G13)."""
    outbox_records: int = 200_000
    outbox_bytes: int = 128 << 20
    """Unacknowledged productions beyond which only those records are run, and those timers fired, that hold the
    watermark (G13)."""
    cache_bytes: int = 256 << 20
    flush_interval: int = 1_000_000
    """How long state rows may be behind the journal if nothing waits for them; many commits coalesce into one row."""
    flush_rows: int = 10_000
    """Rows behind the journal that are many, and are written sooner: half a second of work for Cassandra."""
    flush_apart: int = 5_000_000
    """How far apart they are written then, at least."""
    checkpoint_entries: int = 5_000
    checkpoint_bytes: int = 32 << 20
    """Journal beyond the floor after which the base parts are written anew: the most that a takeover replays."""
    timer_part: int = 20_000
    """Timers in one base part, at most."""
    timers_kept: int = 100_000
    """Timers of one time domain in memory, about (of the order of 900 bytes each): from twice as many on the farthest
    go to the store."""
    timer_lead: int = 10_000_000
    """How long before they are due timers are read from the store, if there is room for them."""
    async_hooks: int = 256
    """Asynchronous hooks that run at once, at most."""
    any_timestamp: bool = field(default_factory=any_timestamp_default)
    """Hooks may state times that only another unit than microseconds explains."""


@dataclass(frozen=True, slots=True)
class IntervalConfig:
    """Who the interval is. ``senders`` are the computations (and injectors) that its input watermark follows."""

    computation: str
    journal: str
    keys: KeyInterval
    sequencer: int
    senders: frozenset[str]
    slack: Mapping[str, int] = field(default_factory=dict)
    """By sending injector: how far behind its watermark the ids of late records are kept (6.1.1)."""
    dead_letters: str = ""
    """The stream that dead letters go to."""
    feedback: frozenset[str] = frozenset()
    """Input streams that close a cycle: what comes over them is always admitted and run."""
    settings: Settings = field(default_factory=Settings)
    parents: tuple[Parent, ...] = ()
    """The journals that a split or merge made it a child of, until it has let go of them."""


@dataclass(slots=True)
class Counts:
    """Totals since the computation began; they are journaled with the commits that they count."""

    records: int = 0
    duplicates: int = 0
    late: int = 0
    dead_letters: int = 0

    @property
    def row(self) -> tuple[int, int, int, int]:
        """As the journal has them."""
        return self.records, self.duplicates, self.late, self.dead_letters

    def add(self, more: Counts) -> None:
        """Count what another has counted, too."""
        self.records += more.records
        self.duplicates += more.duplicates
        self.late += more.late
        self.dead_letters += more.dead_letters

    def since(self, before: Counts) -> Counts:
        """What has come to it since it stood there."""
        return Counts(*(now - then for now, then in zip(self.row, before.row, strict=True)))


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
        self.intake = Intake()
        self.dedup = Dedup(config.keys, config.journal)
        self.cells = CellCache(self.settings.cache_bytes, evicted=False)
        self.timers = {False: TimerTable(), True: TimerTable()}
        self.far = FarTimers()
        """Timers that are in the store alone."""
        self.holds: dict[bytes, int] = {}
        self.hold_times = HoldTimes()
        self.outbox = Outbox(locate)
        self.counts = Counts()
        self.inherited = Counts()
        """What it had come to when this owner took over."""
        self.sample = KeySample()
        self.failing = FailingKeys()
        """Which keys are blocked by a hook that raises, for operators."""
        self.meter = HookMeter() if meter is None else meter
        self.watermark: int = MIN_TIMESTAMP
        """The input watermark acted upon: monotone."""
        self.wall = 0
        """The wall time acted upon: monotone, across owners too."""
        self.elapsed = 0
        """What delays count by: goes on as the wall clock does, whatever it was set to, here or at an earlier owner."""
        self._clock = 0
        self.output: int = MIN_TIMESTAMP
        """The output watermark last reported: monotone."""
        self.heard: int = MIN_TIMESTAMP
        """The highest watermark that a delivery has stated: senders whose records cause ours may have got there."""
        self.sealed = 0
        """The newest commit number given to a batch."""
        self.committed = 0
        self.floor = 0
        self.parts: tuple[PartId, ...] = ()
        """Of the base that the head names; none before the first base."""
        self.entry_parts: dict[int, tuple[PartId, ...]] = {}
        """Of divided entries, by commit: those above the floor, and the one whose append is in flight."""
        self.segments: dict[str, tuple[PartId, ...]] = {}
        """Stored id segments of the dedup, by name."""
        self.foreign: dict[str, str] = {}
        """Those of them whose parts are in a parent's journal still, which this names."""
        self.floors = KeyFloors(())
        self.ahead: dict[bytes, None] = {}
        """Keys that may have timers that are due by their floors, and not yet by the watermark."""
        self.slack: Mapping[str, int] = config.slack
        """By sending injector: how far behind its watermark the ids of late records are kept (6.1.1)."""

    def look_at_clock(self, now: int) -> None:
        """The wall clock shows ``now``. Where it was set back a little, ``wall`` stands still until it is there again:
        a timer may have fired by it. Where it was set back by more than clocks differ, it had been wrong, and ``wall``
        goes back too: delays of a second would last for as long as it was ahead. ``elapsed`` goes on."""
        if now > self.wall or self.wall - now > CLOCKS_DIFFER:
            self.wall = self.scope.now = now
        self.elapsed += max(0, now - self._clock)
        self._clock = now

    def inherit_wall(self, wall: int) -> None:
        """An owner before acted on ``wall``: what hooks are shown goes on from there, unless that is far ahead of the
        clock here. Then that owner's was wrong, and delays of a second would last for as long as it was ahead."""
        if wall - self._clock <= CLOCKS_DIFFER:
            self.wall = self.scope.now = max(self.wall, wall)

    def wall_at(self, elapsed: int) -> int:
        """What the wall clock shows at that time of ``elapsed``, unless it is set meanwhile."""
        return self._clock + elapsed - self.elapsed

    @property
    def counted(self) -> Counts:
        """What this owner has counted."""
        return self.counts.since(self.inherited)

    def watermark_of(self, key: bytes) -> int:
        """The input watermark as ``key`` is shown it: it stands where it stood before a merge, if that was higher."""
        return max(self.watermark, self.floors.of(key)) if self.floors else self.watermark

    @property
    def outbox_full(self) -> bool:
        """Whether so much is produced and not ACKed that only what holds the watermark may run (G13)."""
        outbox, settings = self.outbox, self.settings
        return outbox.records >= settings.outbox_records or outbox.bytes >= settings.outbox_bytes

    @property
    def has_holder(self) -> bool:
        """Whether a record is here that holds the watermark of a sender, or that may close a cycle."""
        return self.intake.pending.min() <= self.inputs.value or bool(self.config.feedback and self.intake.records)

    @property
    def timer_count(self) -> int:
        """How many timers are set, those in the store included: some of these may have been set anew."""
        return sum(map(len, self.timers.values())) + self.far.count

    def due_until(self, wall: bool, key: bytes | None = None) -> int:
        """Up to which time timers (``key``'s) may fire: none before one that is in the store still (G5).

        What is due by a key's floor is never in the store.
        """
        limit = self.wall if wall else self.watermark
        if self.far and (first := self.far.first(wall)) is not None:
            limit = min(first, limit)
        return max(limit, self.floors.of(key)) if key is not None and self.floors and not wall else limit

    def note_due(self, key: bytes, at: int) -> None:
        """A watermark timer of ``key`` stands at ``at``: by the key's floor it may be due."""
        if self.floors and at <= self.floors.of(key):
            self.ahead[key] = None

    @property
    def behind(self) -> bool:
        """Whether watermark timers are due that are in the store still: they fire before any more records."""
        first = self.far.first(False)
        return first is not None and first <= self.watermark

    def set_floors(self, floors: KeyFloors) -> None:
        """What keys had been shown before a merge, as far as the watermark has not passed it."""
        self.floors = floors
        self.scope.floor_of = floors.of if floors else None
        if not floors:
            # The watermark has reached whatever was due by them.
            self.ahead.clear()

    def next_timer(self, key: bytes) -> int | None:
        """When the key's first watermark timer is due, for the cache."""
        return self.timers[False].next_of_key(key)


def effective_hold(setting: TimerSetting, wall: bool) -> int | None:
    """The timestamp at which a timer that is not due holds the output watermark.

    None for a watermark timer that states none: it holds at its own time, which lies above the
    input watermark until it is due.
    """
    if setting.hold is not None:
        return setting.hold
    return setting.cause if wall else None
