"""The settings, the configuration and the program of one interval core. They do not change while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.model.limits import MAX_ENTRY_BYTES
from millwheel.model.units import any_timestamp_default
from millwheel.rpc.columns import has_columns
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.errors import UsageError
from millwheel.sdk.scope import OutputBinding, Scope
from millwheel.worker.interval.hook_meter import HookMeter
from millwheel.worker.messages import Parent

__all__ = ["COLLECTS_FOR_US", "IntervalConfig", "IntervalSettings", "IntervalSetup", "columns_from"]

COLLECTS_FOR_US: Final = 50_000
"""How long a server's commits of a computation that collects wait for more records, under load."""
_MANY_RECORDS: Final = 16
"""Adding as many records by columns takes as long as their hooks do."""


def columns_from(wanted: bool) -> int:
    """``IntervalSettings.columns_from`` of a worker, which wants windows by columns or not.

    Raises:
        UsageError: NumPy cannot be loaded here.
    """
    if not wanted:
        return 0
    try:
        # At the start: both take some tenths of a second, in which the worker would do nothing else.
        import_module("numpy")
        has_columns()  # tables come in columns of pyarrow, if it is there
    except Exception as error:  # also what a wheel for another processor raises
        raise UsageError(
            f"windows by columns need NumPy, and it cannot be loaded ({error}): install a NumPy that fits this "
            "machine, or turn them off by worker.columns = false (start-dev: --no-columns)"
        ) from error
    return _MANY_RECORDS


@dataclass(frozen=True, slots=True)
class IntervalSettings:
    """Limits and delays of an interval core. Times are microseconds, sizes are bytes.

    It has many attributes: each is one setting.
    """

    batch_records: int = 65_536
    """Maximum records in one commit. They come in several deliveries, and each of these is a step of the core."""
    gathered_from: int = 128
    """The number of records from which on a batch waits for the next delivery, if that is the next event. Fewer have
    hardly a key in common, and their senders wait for each of them."""
    gathered_keys: int = 4_096
    """A batch with so many keys waits no longer if hardly one of them has several records. Their contexts, cells and
    states take about a megabyte. More of them would leave the processor's cache before the commit needs them."""
    gathered_for: int = 100_000
    """The longest time that a batch waits for deliveries that are there (G8)."""
    collects_for: int = 0
    """The longest time that a commit of a computation which collects waits for more records, if there are
    ``gathered_from`` (``CompiledComputation.collects_for``). Servers set it to ``COLLECTS_FOR_US``. Where a test moves
    the clock by hand, no commit waits for it."""
    batch_bytes: int = 2 << 20
    """Approximate maximum of timers, productions and states, as these were before the commit. It is far below what any
    store accepts in one write. The records themselves are not in the entry."""
    consumed_bytes: int = MAX_ENTRY_BYTES
    """Approximate maximum of the records that one commit consumes. States may keep what they get, so an entry may grow
    by as much. And the queue has room for further records meanwhile."""
    entry_bytes: int = MAX_ENTRY_BYTES
    """Maximum size of one append to the journal. A larger entry is written in parts before its append."""
    queue_records: int = 200_000
    queue_bytes: int = 64 << 20
    """Maximum of received, uncommitted records. Beyond it, records ahead of the watermark are refused (G13)."""
    outbox_records: int = 200_000
    outbox_bytes: int = 128 << 20
    """Limit of productions without an ACK. Beyond it, only records and timers that hold the watermark are run (G13)."""
    cache_bytes: int = 256 << 20
    """Limit of states and panes by columns together. States may have a quarter of it in any case (G13)."""
    flush_interval: int = 1_000_000
    """Maximum delay of state rows behind the journal while nothing waits for them. Many commits share one row write.
    Servers set it: a cluster to a minute, a development server to five seconds."""
    flush_rows: int = 10_000
    """Number of rows behind the journal from which ``flush_apart`` counts, if it is shorter than ``flush_interval``.
    So many are half a second of work for Cassandra."""
    flush_apart: int = 5_000_000
    """Maximum delay of so many rows."""
    flush_slice: int = 4_096
    """Maximum rows that are captured in one step: about two milliseconds."""
    checkpoint_entries: int = 5_000
    checkpoint_bytes: int = 32 << 20
    """Journal above the truncation point from which on a new base is written, or up to a quarter fewer entries. A
    takeover replays about so much: what is appended while the base is written comes on top."""
    timer_part: int = 20_000
    """Maximum timers in one base part."""
    timers_kept: int = 100_000
    """Approximate number of timers of one time domain in memory, at about 900 bytes each. At twice as many, the
    farthest timers are spilled to the store."""
    timer_lead: int = 10_000_000
    """How long before their time spilled timers are read from the store, if memory has room for them."""
    columns_from: int = 0
    """The number of records from which on a delivery begins panes by columns, where a computation may have them. 0: no
    delivery does."""
    columns_bytes: int = 256 << 20
    """Approximate maximum of panes by columns, at 110 to 220 bytes each and the key's length. Further panes are states.
    So are all that would exceed ``cache_bytes`` together with these. A base has all panes by columns, and is made in
    one step: so many take a third of a second, or three quarters if some panes have left their window."""
    packed_from: int = 128
    """The number of results from which on those of a window are packed, if logs or no consumers get them. Fewer are
    quicker to encode one by one than in NumPy."""
    async_hooks: int = 256
    """Maximum asynchronous hooks that run at once."""
    any_timestamp: bool = field(default_factory=any_timestamp_default)
    """Whether hooks may state timestamps that are plausible only in another unit than microseconds."""
    real_clock: bool = True
    """Whether the clock says what time it is. That of a test need not: records of a source may be far ahead of it."""


@dataclass(frozen=True, slots=True)
class IntervalConfig:
    """The identity of an interval.

    ``groups`` are the computations and injectors that the input watermark follows.
    """

    incarnation: IncarnationId
    journal: str
    keys: KeyInterval
    sequencer: int
    groups: frozenset[str]
    slack: Mapping[str, int] = field(default_factory=dict)
    """For each sending injector: how far behind its watermark the ids of late records are kept (6.1.1)."""
    feedback: frozenset[str] = frozenset()
    """Input streams that close a cycle. Their records are always admitted and run."""
    settings: IntervalSettings = field(default_factory=IntervalSettings)
    parents: tuple[Parent, ...] = ()
    """The journals from which a split or merge made this interval, until it no longer needs them."""
    code: str = ""
    """The digest of the code package that it runs. Empty outside a cluster."""
    result_columns: bool = True
    """Whether entries may have runs of productions, and deliveries complete positions: by the cluster's format when the
    interval was opened."""
    deflates: bool = True
    """Whether the store may deflate entries: by the same format."""


class IntervalSetup:
    """What all parts of an interval core read."""

    def __init__(
        self,
        config: IntervalConfig,
        program: CompiledComputation,
        outputs: dict[str, OutputBinding],
        meter: HookMeter | None = None,
    ) -> None:
        self.config = config
        self.settings = config.settings
        self.program = program
        self.meter = HookMeter() if meter is None else meter
        for base, streams in program.derived.items():
            outputs[base].derived = tuple((outputs[one.name], one.expand) for one in streams)
        self.scope = Scope(
            program.name,
            outputs,
            program.state.new,
            program.state.decode,
            program.handles_timers,
            self.settings.any_timestamp,
            "" if program.state.takes_none else program.state.type_name,
            program.topology,
            self.meter.measures.connector,
            real_clock=self.settings.real_clock,
        )
