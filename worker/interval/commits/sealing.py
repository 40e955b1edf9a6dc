"""Sealing: turns a batch into one journal entry with new states, timers, holds, productions and ids (G2)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, repeat
from typing import Any, Final

from msgspec.structs import replace

from millwheel.model.limits import MAX_STATE_BYTES
from millwheel.sdk.codecs import StateCodec
from millwheel.sdk.context import Context
from millwheel.sdk.effects import ProducedColumns, each_target
from millwheel.sdk.errors import TooLargeError, ValueEncodeError
from millwheel.sdk.options import LateAction
from millwheel.sdk.scope import UNSET
from millwheel.worker.dedup import IdDelta
from millwheel.worker.interval.column_run import UnsentTable
from millwheel.worker.interval.commits.production_ids import deterministic_id
from millwheel.worker.interval.commits.read_runs import reads_in, rows_behind, runs_of_reads, tables_in
from millwheel.worker.interval.commits.result_runs import Produced, runs_of
from millwheel.worker.interval.commits.timer_changes import TimerChanges
from millwheel.worker.interval.entry import (
    FORMAT,
    PANES_FORMAT,
    RUNS_FORMAT,
    TABLES_FORMAT,
    IntervalEntry,
    ProductionRow,
    ProductionRun,
    TimerRow,
)
from millwheel.worker.interval.holds import Hold, joined
from millwheel.worker.interval.hooks.runner import HookBatch
from millwheel.worker.interval.intake import DeliveryReceipt
from millwheel.worker.interval.outbox.flows import INDEX_BITS, ProductionBatch
from millwheel.worker.interval.panes.changes import seal_changes
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

__all__ = ["Sealed", "Sealer"]

_ENCODED_AT_ONCE: Final = 256
"""So many states are encoded, and then checked while the processor's caches still have them."""
_SMALLER_STATES: Final = """keep what grows in collections of a millwheel.GrowingState.
Or keep one key's data under several keys, for example under 16 for each user:
    spread = mw.key(lambda value: f"{value.user}/{value.number % 16}")
    topology.add(Totals, inputs={"events": spread}, ...)"""


class Sealed:
    """A sealed batch that is not committed yet.

    Its effects are already in the soft state. Invariant: until its entry is committed, no effect is visible outside. It
    is not ACKed, and nothing except weak productions is sent. ``hold`` covers everything whose hold the commit ends
    (None: nothing).
    """

    def __init__(self, commit: int, stored_first: bool) -> None:
        self.commit = commit
        self.hold: Hold | None = None
        self.stored_first = stored_first
        """Whether productions are sent after the append: strong ones, and those beside fired timers or dead letters."""
        self.entry: IntervalEntry | None = None
        self.consumed: list[tuple[DeliveryReceipt, list[int]]] = []
        self.ids: IdDelta | None = None
        self.outbound: list[ProductionBatch] = []
        self.unacked: set[int] = set()
        """Tokens of the weak productions that the commit waits for (6.1.3)."""
        self.size = 0
        """Maximum bytes of its entry with all productions stored. Counted only if batches may join the commit."""
        self.spared = 0
        """About how many bytes more its entry would have as rows, which a takeover makes of its runs and tables."""
        self.timers = 0
        """The number of timers that it has set."""
        self.joined: dict[tuple[bytes, bool, str], TimerRow] | None = None
        """The timers that it leaves set, by key, domain and tag. None until a batch with timers has joined."""
        self.repeats = False
        """Whether its entry may have several states of a key: a batch has joined it. The last one counts."""

    @property
    def timers_set(self) -> list[TimerRow]:
        """The timers that the commit leaves set. A replay applies ``timers_cleared`` before these."""
        assert self.entry is not None
        return self.entry.timers_set if self.joined is None else list(self.joined.values())


def _described(codec: StateCodec, value: Any, error: Exception) -> Exception:
    """The error that the codec gives for a state whose plain encoding has failed with ``error``."""
    if not isinstance(error, ValueEncodeError):
        try:
            codec.encode(value)
        except Exception as described:
            return described
    return error


def _bytes_of(encoded: Any) -> bytes:
    """An encoding as bytes. The user's codec may return another bytes-like type."""
    return encoded if type(encoded) is bytes else bytes(memoryview(encoded))


def _checked(
    codec: StateCodec,
    unchecked: list[Any],
    changed: list[tuple[bytes, bytes]],
    cells: list[Any],
    broken: list[tuple[bytes, Exception]],
) -> tuple[list[tuple[bytes, bytes]], list[Any]]:
    """The changed states that pass the check of the codec, with their cells. ``broken`` takes the others.

    ``unchecked`` has those that were not checked when they were encoded. Usually one exact test of all of them passes.
    """
    if not unchecked or codec.plain is None or codec.plain.exact_all(unchecked):
        return changed, cells
    kept: list[tuple[bytes, bytes]] = []
    of_kept: list[Any] = []
    for (key, encoded), cell in zip(changed, cells, strict=True):
        try:
            if encoded and codec.check is not None:
                codec.check(cell.value, encoded)
        except Exception as error:
            broken.append((key, _described(codec, cell.value, error)))
        else:
            kept.append((key, encoded))
            of_kept.append(cell)
    return kept, of_kept


class Sealer:
    """Seals batches in the order of their commit numbers."""

    def __init__(self, state: IntervalState, failed: Callable[[bytes, Exception], None]) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._timer_changes = TimerChanges(state.timers, state.holds, state.output, state.program.feeds)
        self._cells = state.cells
        self._pages = state.pages
        self._panes = state.panes
        self._outbox = state.outbox
        self._holds = state.holds
        self._journal = state.journal
        self._ids = state.ids
        self._failed = failed

    def encode_states(self, batch: HookBatch) -> list[tuple[bytes, bytes]]:
        """Encode the batch's changed states and pages. A state equal to its type's default becomes empty: no state.

        A key whose state cannot be stored fails and is removed from the batch.
        """
        changed: list[tuple[bytes, bytes]] = []
        cells: list[Any] = []
        broken: list[tuple[bytes, Exception]] = []
        contexts = iter(batch.contexts.values())
        while part := list(islice(contexts, _ENCODED_AT_ONCE)):
            self._encode_part(part, changed, cells, broken)
        for key, reason in broken:
            self._failed(key, reason)
        batch.changed = cells
        if self._setup.program.growing:
            changed += self._pages.changed(batch.contexts, batch.fired)
        return changed

    def _encode_part(
        self,
        contexts: list[Context[Any]],
        changed: list[tuple[bytes, bytes]],
        cells: list[Any],
        broken: list[tuple[bytes, Exception]],
    ) -> None:
        """Encode the states of some contexts. ``changed`` takes those that have changed, and ``cells`` their cells."""
        codec = self._setup.program.state
        encode, check, default, plain = codec.encode, codec.check, codec.default, codec.plain
        cls = None if plain is None else plain.cls
        bare = encode if plain is None else plain.encode
        found: list[tuple[bytes, bytes]] = []
        of_found: list[Any] = []
        unchecked: list[Any] = []
        for context in contexts:
            cell = context._cell
            value = cell.value
            if value is UNSET:
                continue
            key = context._key
            try:
                encoded = _bytes_of(bare(value) if type(value) is cls else encode(value) if value is not None else b"")
                if encoded == cell.encoded:
                    continue
                if encoded == default:
                    encoded = b""
                elif check is not None and encoded:
                    if plain is None:
                        check(value, encoded)
                    else:
                        unchecked.append(value)
            except Exception as error:
                broken.append((key, _described(codec, value, error)))
                continue
            if len(encoded) > MAX_STATE_BYTES:
                what = f"the state of key {context.key!r}"
                broken.append((key, TooLargeError(what, len(encoded), MAX_STATE_BYTES, _SMALLER_STATES)))
            elif encoded or cell.encoded:
                found.append((key, encoded))
                of_found.append(cell)
        found, of_found = _checked(codec, unchecked, found, of_found, broken)
        changed += found
        cells += of_found

    def seal(self, batch: HookBatch, changed: list[tuple[bytes, bytes]], *, stored_first: bool) -> Sealed:
        """Apply the batch to the soft state as the next commit, and build its entry.

        ``stored_first`` False: its productions are weak and are sent before the entry is appended.
        """
        self._journal.sealed += 1
        sealed = Sealed(self._journal.sealed, stored_first)
        sealed.entry, sealed.outbound = self.apply(sealed, batch, changed)
        if self._setup.program.options.strong:
            sealed.entry = replace(sealed.entry, ids=self.take_ids(sealed))
        return sealed

    def take_ids(self, sealed: Sealed) -> list[Any]:
        """The ids of the consumed records, for the entry. Ids consumed after this call go into a later entry."""
        if not (self._setup.program.options.exactly_once and sealed.consumed):
            return []
        sealed.ids = self._ids.dedup.take([(receipt.verdict, indexes) for receipt, indexes in sealed.consumed])
        return sealed.ids.to_wire()

    def apply(
        self, sealed: Sealed, batch: HookBatch, changed: list[tuple[bytes, bytes]]
    ) -> tuple[IntervalEntry, list[ProductionBatch]]:
        """Apply the batch to the soft state as part of the commit.

        Returns its entry without ids, and its outbound batches.
        """
        consumed = [one for one in (*batch.added, *batch.consumed) if one[1]]
        if batch.hold is not None:
            sealed.hold = joined(sealed.hold, batch.hold)
        sealed.consumed += consumed
        self._cells.changed(changed, sealed.commit, batch.changed)
        if self._setup.program.growing:
            self._pages.settle(batch.contexts)
        changes, first = self._timer_changes, sealed.commit << INDEX_BITS
        cleared = changes.clear_fired(batch.fired, self._ending(sealed)) if batch.fired else []
        timers: list[TimerRow] = []
        holds: list[tuple[bytes, int | None]] = []
        # A key with a context in the batch gets no result of a pane. So its results come before what its hooks produce.
        made = 0 if sealed.entry is None else len(sealed.entry.productions)
        runs, tables, producing = list[ProductionRun](), list[UnsentTable](), list[Produced](batch.results)
        reads_in_runs = self._reads_in_runs(batch)
        if reads_in_runs:
            runs = runs_of_reads(reads_in(batch.contexts), first | made)
            tables = tables_in(batch.contexts, runs[-1].positions.stop if runs else first | made)
        elif producing and self._setup.config.result_columns:
            runs, producing = runs_of(producing, first | made)
        made += sum(len(run.values) for run in runs)
        made += sum(len(one.table.values) for one in tables)
        dropped = 0
        for key, context in batch.contexts.items():
            dropped += context._dropped
            if not context._cell.encoded:
                self._cells.forget_empty(key)
            if context._timers is not None:
                ending = self._ending(sealed)
                changes.apply(key, context._timers, first, first | sealed.timers, ending, timers, cleared)
            if (context._productions is not None or context._read is not None) and (
                others := rows_behind(context, reads_in_runs)
            ):
                producing.append((key, others))
            if context._hold is not UNSET:
                holds.append((key, changes.apply_hold(key, context._hold, self._ending(sealed))))
        sealed.timers += len(timers)
        productions = self._productions(producing, first | made)
        records = sum(len(indexes) for _, indexes in consumed)
        late, drops = 0, self._setup.program.options.late.action is LateAction.DROP
        for receipt, indexes in consumed:
            found = self._late(receipt, indexes)
            late += found
            if drops and receipt.delivery.stream not in self._setup.program.never_late:
                dropped += found
        duplicates, self._ids.duplicates = self._ids.duplicates, 0
        panes = seal_changes(self._panes) if self._panes.changed else []
        entry = IntervalEntry(
            TABLES_FORMAT if tables else RUNS_FORMAT if runs else PANES_FORMAT if panes else FORMAT,
            self._clocks.watermark,
            self._clocks.wall,
            changed,
            holds,
            timers,
            cleared,
            productions,
            [],
            [],
            (records, duplicates, late, len(batch.given_up), dropped),
            [],
            panes,
            runs,
            [one.stored() for one in tables],
        )
        sealed.spared += sum(run.spared for run in runs) + sum(one.spared for one in tables)
        committed, now = not sealed.stored_first, self._clocks.elapsed
        return entry, self._outbox.add(productions, runs=runs, tables=tables, committed=committed, now=now)

    def _reads_in_runs(self, batch: HookBatch) -> bool:
        """Whether what sources have read in the batch is stored as runs, and not as rows.

        Invariant (G1): it is one of both. Runs of a batch with results of panes have those alone. And a weak production
        has an id of its own, which rows have.
        """
        program = self._setup.program
        return program.feeds and self._setup.config.result_columns and program.options.strong and not batch.results

    def _ending(self, sealed: Sealed) -> Hold:
        """The hold for what the commit ends."""
        if sealed.hold is None:
            sealed.hold = self._holds.open()
        return sealed.hold

    def _late(self, receipt: DeliveryReceipt, indexes: list[int]) -> int:
        """The number of late records.

        A record that was on time when it ran is still on time, because it has held the watermark since.
        """
        watermark, stamps = self._clocks.watermark, receipt.delivery.timestamps
        if self._clocks.bounded:
            watermark_of, keys = self._clocks.watermark_of, receipt.delivery.keys
            return sum(stamps[index] < watermark_of(keys[index]) for index in indexes)
        return sum(stamps[index] < watermark for index in indexes) if receipt.held < watermark else 0

    def _productions(self, producing: list[Produced], position: int) -> list[ProductionRow]:
        """The rows of the productions, from a position on.

        A weak production has an opaque id: it may be made again by a later owner, at another position.
        """
        rows: list[ProductionRow] = []
        weak = not self._setup.program.options.strong
        incarnation = self._setup.config.incarnation
        append = rows.append
        for each in producing:
            if isinstance(each, ProducedColumns):  # strong: windows by columns have no others
                stream, stamp, after = repeat(each.stream), repeat(each.timestamp), position + len(each.keys)
                targets = each_target(each.targets, len(each.keys))
                rows += zip(range(position, after), each.keys, stream, each.values, stamp, targets, repeat(b""))
                position = after
                continue
            key, produced = each
            ordinal, cause_id = 0, None
            for one in produced:
                opaque = b""
                if weak:
                    ordinal = ordinal + 1 if one.cause_id is cause_id else 0
                    cause_id = one.cause_id
                    opaque = deterministic_id(incarnation, key, cause_id, one.stream, ordinal)
                append((position, key, one.stream, one.value, one.timestamp, one.targets, opaque))
                position += 1
        return rows
