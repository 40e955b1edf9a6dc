"""The low watermark authority, without its I/O: who may speak for which keys, and what may be said of all (7.2).

Events in: sequencers to accept, reports, expected injectors, removals. Out: one append at a time
(:meth:`AuthorityCore.next_append`), and once it is journaled its :class:`Effects`: answers to give
and values to broadcast. A shard that was deposed cannot append, and so never broadcasts.

Invariants (argued in docs/decisions/0003-watermarks.md):
  * a value is broadcast, and an acceptance answered, only from a journaled entry;
  * a decided value is at most the minimum over the last reports of all members' accepted owners,
    unless it was decided before: values never go back (G7);
  * no report counts unless its member and sequencer are exactly the accepted ones (G4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millwheel.authority.base import Snapshot, freeze
from millwheel.authority.injected import InjectorComputation
from millwheel.authority.journal import Expect, Percentile, Remove, decode_entry, decode_part, encode
from millwheel.authority.pending import Pending
from millwheel.authority.percentiles import Work, percentile_value
from millwheel.authority.registry import AnyComputation, Registry
from millwheel.authority.shares import Explanation, Refusal
from millwheel.core.time import MIN_TIMESTAMP, seconds
from millwheel.rpc.watermarks import AcceptRefusedError, Member, WatermarkReport, injector_computation
from millwheel.store.contract import Append, JournalHead, PartId

__all__ = ["AuthorityCore", "CoreSettings", "Effects"]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """``entry_bytes``, ``part_bytes``: about the largest blob of a kind. ``snapshot_bytes``: how much journal may
    stand before a base is written, if the base is smaller than half of it. ``silent_after``: when explain
    calls a member silent, microseconds."""

    entry_bytes: int = 1 << 20
    part_bytes: int = 1 << 20
    snapshot_bytes: int = 256 << 10
    silent_after: int = seconds(30)


_ENTRY_COST: Final = 256
"""What reading one entry costs at a restart, whatever its size, in bytes' worth."""


@dataclass(slots=True)
class Effects:
    """What a journaled append allows: perform all of it.

    ``answers``: tokens of acceptances and changes with the value to answer. ``values``: to broadcast.
    ``sequencers``: accepted since the last append. ``snapshot``: write its parts, then tell the core.
    ``delete_below``, ``delete_parts``: what the store may forget.
    """

    answers: Sequence[tuple[int, int]] = ()
    values: dict[str, int] = field(default_factory=dict)
    sequencers: Sequence[tuple[str, Member, int]] = ()
    removed: Sequence[str] = ()
    snapshot: Snapshot | None = None
    delete_below: int | None = None
    delete_parts: Sequence[PartId] = ()


class AuthorityCore:
    """One shard. Single-threaded; times are microseconds on any clock that does not go back."""

    def __init__(self, journal: str, sequencer: int, head: JournalHead, settings: CoreSettings | None = None) -> None:
        """``head`` is the journal's as ``sequencer`` fenced it; :meth:`restore` before anything else."""
        self.journal = journal
        self.sequencer = sequencer
        self._settings = settings or CoreSettings()
        self._commit, self._floor, self._parts = head.commit, head.floor, head.parts
        self._registry = Registry()
        self._pending = Pending()
        self._broadcast: dict[str, int] = {}
        self._in_flight: tuple[Append, Effects] | None = None
        self._named: Snapshot | None = None
        self._snapshotting = False
        self._journal_cost = 0
        self._base_size = 0

    # -- restart ---------------------------------------------------------------------------------

    def restore(self, parts: Iterable[bytes], entries: Iterable[bytes]) -> None:
        """Read the base parts that the head names, and the entries after its floor, in order.

        Afterwards the broadcast values are those of before, or newer. CorruptValueError for what cannot be read.
        """
        read = []
        for number, blob in enumerate(parts):
            read.append(decode_part(blob, f"{self.journal}: {self._parts[number]}"))
            self._base_size += len(blob)
        self._registry.load(read)
        for commit, blob in enumerate(entries, start=self._floor + 1):
            self._registry.replay(decode_entry(blob, f"{self.journal}: entry {commit}"))
            self._journal_cost += len(blob) + _ENTRY_COST
        for computation in self._registry:
            self._broadcast[computation.name] = computation.value
            self._raise(computation)

    # -- events ----------------------------------------------------------------------------------

    def accept_sequencer(
        self, token: int, computation: str, member: Member, sequencer: int, report_number: int = 0
    ) -> None:
        """Let ``sequencer`` speak for ``member``, from now on (G4); its token is answered once that is journaled, and
        so is what a process has reported up to ``report_number``.

        AcceptRefusedError if a larger one holds any of it, or the computation (an injector: that life) was removed.
        ReportNotHeardError if neither that report was taken nor a later one.
        """
        if self._registry.is_over(computation, sequencer):
            raise AcceptRefusedError(f"sequencer {sequencer}: {computation} was removed since it was drawn")
        if isinstance(member, str):
            accepted = self._registry.injector(computation).accept(member, sequencer, report_number)
            self._pending.accepted(token, computation, accepted)
        else:
            self._pending.accepted(token, computation, self._registry.keyed(computation).accept(member, sequencer))
        # Replacing shares never raises the minimum, for a share starts from what it replaces.

    def report(self, reports: Iterable[WatermarkReport], now: int) -> list[Refusal]:
        """Take the owners' reports, in their order (7.2). Returns those that count for nothing, and why."""
        refused: list[Refusal] = []
        registry, pending = self._registry, self._pending
        for report in reports:
            computation = registry.get(report.computation)
            if computation is None:
                refused.append(Refusal(report, superseded=registry.is_over(report.computation, report.sequencer)))
                continue
            changed = computation.report(report, now)
            if changed is None:
                continue
            if isinstance(changed, Refusal):
                refused.append(changed)
                continue
            pending.moved(report.computation, changed)
            if computation.smallest() > computation.value:
                self._raise(computation)
        return refused

    def expect_injectors(self, token: int, stream: str, processes: Iterable[str], as_of: int = 0) -> None:
        """Have ``stream``'s watermark wait for exactly ``processes`` (5.2); for all that announce themselves if empty.

        Processes that are not among them are forgotten. The token is answered once it is journaled. ``as_of``: the
        coordinator's revision at which they were read; nothing changes if a newer one is known.
        """
        name, names = injector_computation(stream), sorted(set(processes))
        injector = self._registry.injector(name)
        dropped = injector.expect(names, as_of)
        self._pending.change(token, Expect(name, names, as_of), name, dropped)
        self._raise(injector)

    def outlives(self, computation: str, sequencer: int) -> bool:
        """Whether ``computation`` has come back since ``sequencer`` was drawn: a larger one was accepted for it."""
        return any(accepted > sequencer for _, accepted in self.sequencers(computation))

    def remove(self, token: int, computation: str, up_to: int = 0) -> None:
        """Forget a computation that was cancelled. The token is answered once it is journaled.

        ``up_to``: of an injector, the largest sequencer of its life that is over. Said again, it leaves the next life
        alone: that one's expected set may be known, and none of its sequencers yet.
        """
        found = self._registry.get(computation)
        if isinstance(found, InjectorComputation) and 0 < up_to <= self._registry.ended.get(computation, 0):
            # Changes nothing; the answer is to wait for whatever is not in the journal yet.
            self._pending.change(token, Expect(computation, sorted(found.expected), found.expected_as_of), computation)
            return
        self._registry.remove(computation, up_to)
        self._pending.change(token, Remove(computation, up_to), computation, found.shares() if found else ())
        self._pending.forget_value(computation)

    def decide_percentile(self, token: int, computation: str, basis_points: int, since: int) -> None:
        """Decide the watermark of ``computation`` alone without the smallest timestamps at work in it (7.2).

        ``basis_points``: 9900 leaves out one in a hundred. From what was told since ``since``, a time as of
        :meth:`report`. The token is answered with the value once it is journaled. KeyError if it is unknown.
        """
        found = self._registry.get(computation)
        if found is None:
            raise KeyError(computation)
        value = percentile_value(found.work(since), basis_points, self.broadcast(computation), found.percentiles)
        found.percentiles[basis_points] = value
        self._pending.change(token, Percentile(computation, basis_points, value), computation)

    # -- appends ---------------------------------------------------------------------------------

    @property
    def urgent(self) -> bool:
        """Whether somebody waits for the next append: an answer or a broadcast."""
        return self._pending.urgent

    @property
    def dirty(self) -> bool:
        """Whether there is anything to append."""
        return self._pending.dirty or self._named is not None

    def next_append(self, *, even_if_empty: bool = False) -> Append | None:
        """The append to make now: only what changed. None if nothing did, or one is in flight.

        ``even_if_empty``: make one in any case, to find out whether this shard still holds its journal.
        Repeat it, byte for byte, until its outcome is known; then :meth:`appended`, or stop if it was refused.
        """
        if self._in_flight is not None or not (self.dirty or even_if_empty):
            return None
        taken = self._pending.take(self._value_of, self._settings.entry_bytes)
        effects = Effects(taken.answers, dict(taken.entry.values), taken.sequencers, taken.removed)
        self._commit += 1
        if self._named is not None:
            self._name_parts(self._named, effects)
        append = Append(self.sequencer, self._commit, self._floor, self._parts, encode(taken.entry))
        self._journal_cost += len(append.entry) + _ENTRY_COST
        if self._snapshot_due() and not self._pending.changes:
            effects.snapshot = freeze(self._registry, self.sequencer, self._commit, self._settings.part_bytes)
            self._snapshotting = True
        self._in_flight = (append, effects)
        return append

    def appended(self) -> Effects:
        """The append in flight is journaled: what to do now."""
        assert self._in_flight is not None
        _, effects = self._in_flight
        self._in_flight = None
        for name in effects.removed:
            self._broadcast.pop(name, None)
        self._broadcast.update(effects.values)
        return effects

    def snapshot_written(self, snapshot: Snapshot) -> None:
        """All parts of ``snapshot`` are acknowledged: the next append names them."""
        self._named = snapshot

    # -- questions -------------------------------------------------------------------------------

    def broadcast(self, computation: str) -> int:
        """What was last broadcast for ``computation``; MIN_TIMESTAMP if it is unknown."""
        return self._broadcast.get(computation, MIN_TIMESTAMP)

    def computations(self) -> dict[str, int]:
        """All computations with their broadcast values."""
        return {computation.name: self.broadcast(computation.name) for computation in self._registry}

    def sequencers(self, computation: str) -> list[tuple[Member, int]]:
        """Every member of ``computation`` that has a sequencer, with it."""
        found = self._registry.get(computation)
        return [] if found is None else [(share.member, share.sequencer) for share in found.shares() if share.sequencer]

    def work(self, computation: str, since: int) -> Work | None:
        """What the members of ``computation`` have told since ``since`` of what they have at work; None if unknown."""
        found = self._registry.get(computation)
        return None if found is None else found.work(since)

    def explain(self, computation: str, now: int, limit: int = 100) -> Explanation | None:
        """Which members hold the watermark of ``computation``, and by what (G8); None if it is unknown."""
        found = self._registry.get(computation)
        if found is None:
            return None
        return found.explain(self.broadcast(computation), now, self._settings.silent_after, limit)

    # -- inside ----------------------------------------------------------------------------------

    def _raise(self, computation: AnyComputation) -> None:
        """Decide a larger value where the members allow one; it is broadcast when it is journaled."""
        smallest = computation.smallest()
        if smallest > computation.value:
            computation.value = smallest
            self._pending.raised(computation.name)

    def _value_of(self, name: str) -> int:
        found = self._registry.get(name)
        return MIN_TIMESTAMP if found is None else found.value

    def _snapshot_due(self) -> bool:
        allowed = max(self._settings.snapshot_bytes, 2 * self._base_size)
        return not self._snapshotting and self._journal_cost > allowed

    def _name_parts(self, snapshot: Snapshot, effects: Effects) -> None:
        """Have the append rely on ``snapshot`` instead of the entries up to its commit."""
        effects.delete_below = snapshot.commit + 1
        effects.delete_parts = tuple(set(self._parts) - set(snapshot.written))
        self._floor, self._parts = snapshot.commit, tuple(snapshot.written)
        self._base_size, self._journal_cost = snapshot.size, 0
        self._named, self._snapshotting = None, False
