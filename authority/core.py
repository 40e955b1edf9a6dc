"""The low watermark authority without its I/O: admission of watermark reports and the decision of values (7.2).

Input events: sequencers to accept, watermark reports, expected injectors, removals. Output: one append at a time
(:meth:`AuthorityCore.next_append`). Once an append is journaled, its :class:`Effects` follow: answers to send and
values to broadcast. A deposed shard cannot append, so it never broadcasts.

A member is a key interval of a computation, or a process of an injector. A share is the shard's state of one member.

Invariants (argued in docs/decisions/0003-watermarks.md):
  * A broadcast value and the answer to an acceptance come only from a journaled entry.
  * A decided value is at most the minimum over the last reports of all members' accepted owners, unless it
    was decided before. Values never go back (G7).
  * A report counts only if its member and sequencer are exactly the accepted ones (G4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from millwheel.authority.base import BaseSnapshot, freeze
from millwheel.authority.injected import InjectorComputation
from millwheel.authority.journal import Expect, Percentile, Remove, decode_entry, decode_part, encode
from millwheel.authority.pending import Pending
from millwheel.authority.percentiles import Work, percentile_value
from millwheel.authority.registry import AnyComputation, Registry
from millwheel.authority.shares import Explanation, Refusal
from millwheel.model.time import MIN_TIMESTAMP, seconds
from millwheel.rpc.watermarks import AcceptRefusedError, Member, WatermarkReport, injector_computation
from millwheel.store.contract import Append, JournalHead, PartId

__all__ = ["AuthorityCore", "CoreSettings", "Effects"]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Settings of one shard's core.

    ``entry_bytes``, ``part_bytes``: approximate size of the largest entry and the largest base part, in bytes.
    ``snapshot_bytes``: journal size in bytes above which a base is written, if the last base is smaller than half of
    it. ``silent_after``: microseconds without a report after which ``explain`` calls a member silent.
    """

    entry_bytes: int = 1 << 20
    part_bytes: int = 1 << 20
    snapshot_bytes: int = 256 << 10
    silent_after: int = seconds(30)


_ENTRY_COST_BYTES: Final = 256
"""The fixed cost of reading one entry at a restart, expressed in bytes."""


@dataclass(slots=True)
class Effects:
    """What a journaled append allows. The caller performs all of it.

    - ``answers``: tokens of acceptances and changes, each with the value to answer. ``values``: values to broadcast.
    - ``sequencers``: sequencers accepted since the last append. ``removed``: computations that the append removes.
    - ``snapshot``: write its parts, then call :meth:`AuthorityCore.snapshot_written`.
    - ``delete_below``, ``delete_parts``: entries and parts that the store may delete.
    """

    answers: Sequence[tuple[int, int]] = ()
    values: dict[str, int] = field(default_factory=dict)
    sequencers: Sequence[tuple[str, Member, int]] = ()
    removed: Sequence[str] = ()
    snapshot: BaseSnapshot | None = None
    delete_below: int | None = None
    delete_parts: Sequence[PartId] = ()


class AuthorityCore:
    """The state of one shard. Single-threaded. Times are microseconds on any clock that does not go back."""

    def __init__(self, journal: str, sequencer: int, head: JournalHead, settings: CoreSettings | None = None) -> None:
        """``head`` is the head of the journal as ``sequencer`` fenced it. Call :meth:`restore` first."""
        self.journal = journal
        self.sequencer = sequencer
        self._settings = settings or CoreSettings()
        self._commit, self._floor, self._parts = head.commit, head.floor, head.parts
        self._registry = Registry()
        self._pending = Pending()
        self._broadcast: dict[str, int] = {}
        self._in_flight: tuple[Append, Effects] | None = None
        self._named: BaseSnapshot | None = None
        self._snapshotting = False
        self._journal_cost = 0
        self._base_size = 0

    # -- restart ---------------------------------------------------------------------------------

    def restore(self, parts: Iterable[bytes], entries: Iterable[bytes]) -> None:
        """Read the base parts that the head names, then the entries after its truncation point, in order.

        Afterwards the broadcast values are those from before the restart, or newer. Raises CorruptValueError for a
        blob that cannot be decoded.
        """
        read = []
        for number, blob in enumerate(parts):
            read.append(decode_part(blob, f"{self.journal}: {self._parts[number]}"))
            self._base_size += len(blob)
        self._registry.load(read)
        for commit, blob in enumerate(entries, start=self._floor + 1):
            self._registry.replay(decode_entry(blob, f"{self.journal}: entry {commit}"))
            self._journal_cost += len(blob) + _ENTRY_COST_BYTES
        for computation in self._registry:
            self._broadcast[computation.name] = computation.value
            self._raise(computation)

    # -- events ----------------------------------------------------------------------------------

    def accept_sequencer(
        self, token: int, computation: str, member: Member, sequencer: int, report_number: int = 0
    ) -> None:
        """Accept ``sequencer`` as the owner of ``member`` from now on (G4).

        The token is answered once the acceptance is journaled. With ``report_number`` (injector processes only), the
        answer also confirms that the process's reports up to that number are journaled.

        Raises AcceptRefusedError if a larger sequencer owns any part of the member, or if the computation was
        removed. An injector counts as removed only if this sequencer belongs to a removed incarnation. Raises
        ReportNotHeardError if neither that report nor a later one was received.
        """
        if self._registry.is_over(computation, sequencer):
            raise AcceptRefusedError(f"sequencer {sequencer}: {computation} was removed since it was drawn")
        if isinstance(member, str):
            accepted = self._registry.injector(computation).accept(member, sequencer, report_number)
            self._pending.accepted(token, computation, accepted)
        else:
            self._pending.accepted(token, computation, self._registry.keyed(computation).accept(member, sequencer))
        # Replacing shares never raises the minimum, because a share starts from the values that it replaces.

    def report(self, reports: Iterable[WatermarkReport], now: int) -> list[Refusal]:
        """Apply the owners' reports in order (7.2). Return the refused reports, each with the reason."""
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
        """Make ``stream``'s watermark wait for exactly ``processes`` (5.2).

        An empty set means all processes that announce themselves. With a set that is not empty, other processes are
        forgotten. The token is answered once the change is journaled. ``as_of`` is the coordinator's revision at
        which the set was read. Nothing changes if the set of a newer revision is known.
        """
        name, names = injector_computation(stream), sorted(set(processes))
        injector = self._registry.injector(name)
        dropped = injector.expect(names, as_of)
        self._pending.change(token, Expect(name, names, as_of), name, dropped)
        self._raise(injector)

    def outlives(self, computation: str, sequencer: int) -> bool:
        """Return whether ``computation`` was re-created since ``sequencer`` was drawn: it accepted a larger one."""
        return any(accepted > sequencer for _, accepted in self.sequencers(computation))

    def remove(self, token: int, computation: str, up_to: int = 0) -> None:
        """Forget a cancelled computation. The token is answered once the removal is journaled.

        ``up_to``: for an injector, the largest sequencer of the incarnation that is over. Idempotent: a repeated
        removal does not delete a re-created injector, whose expected set may be known before any of its sequencers.
        """
        found = self._registry.get(computation)
        if isinstance(found, InjectorComputation) and 0 < up_to <= self._registry.ended.get(computation, 0):
            # This change alters nothing. It delays the answer until everything before it is journaled.
            self._pending.change(token, Expect(computation, sorted(found.expected), found.expected_as_of), computation)
            return
        self._registry.remove(computation, up_to)
        self._pending.change(token, Remove(computation, up_to), computation, found.shares() if found else ())
        self._pending.forget_value(computation)

    def decide_percentile(self, token: int, computation: str, basis_points: int, since: int) -> None:
        """Decide a percentile watermark of ``computation``, which ignores its smallest timestamps at work (7.2).

        ``basis_points``: 9900 ignores one timestamp in a hundred. Only work published since ``since`` counts;
        ``since`` is a time of the same clock as in :meth:`report`. The token is answered with the value once it is
        journaled. Raises KeyError if the computation is unknown.
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
        """Whether an answer or a broadcast waits for the next append."""
        return self._pending.urgent

    @property
    def dirty(self) -> bool:
        """Whether there is anything to append."""
        return self._pending.dirty or self._named is not None

    def next_append(self, *, even_if_empty: bool = False) -> Append | None:
        """Return the append to make now, which holds only what changed.

        Returns None if nothing changed or if an append is in flight. ``even_if_empty``: return an append in any case,
        to find out whether this shard still owns its journal. Repeat the append byte for byte until its outcome is
        known. Then call :meth:`appended`, or stop the shard if the append was refused.
        """
        if self._in_flight is not None or not (self.dirty or even_if_empty):
            return None
        taken = self._pending.take(self._value_of, self._settings.entry_bytes)
        effects = Effects(taken.answers, dict(taken.entry.values), taken.sequencers, taken.removed)
        self._commit += 1
        if self._named is not None:
            self._name_parts(self._named, effects)
        append = Append(self.sequencer, self._commit, self._floor, self._parts, encode(taken.entry))
        self._journal_cost += len(append.entry) + _ENTRY_COST_BYTES
        if self._snapshot_due() and not self._pending.changes:
            effects.snapshot = freeze(self._registry, self.sequencer, self._commit, self._settings.part_bytes)
            self._snapshotting = True
        self._in_flight = (append, effects)
        return append

    def appended(self) -> Effects:
        """Record that the append in flight is journaled, and return its effects."""
        assert self._in_flight is not None
        _, effects = self._in_flight
        self._in_flight = None
        for name in effects.removed:
            self._broadcast.pop(name, None)
        self._broadcast.update(effects.values)
        return effects

    def snapshot_written(self, snapshot: BaseSnapshot) -> None:
        """Record that all parts of ``snapshot`` are acknowledged. The next append names them."""
        self._named = snapshot

    # -- queries ---------------------------------------------------------------------------------

    def broadcast(self, computation: str) -> int:
        """Return the value that was last broadcast for ``computation``, or MIN_TIMESTAMP if it is unknown."""
        return self._broadcast.get(computation, MIN_TIMESTAMP)

    def computations(self) -> dict[str, int]:
        """Return all computations with their broadcast values."""
        return {computation.name: self.broadcast(computation.name) for computation in self._registry}

    def sequencers(self, computation: str) -> list[tuple[Member, int]]:
        """Return every member of ``computation`` that has a sequencer, with that sequencer."""
        found = self._registry.get(computation)
        return [] if found is None else [(share.member, share.sequencer) for share in found.shares() if share.sequencer]

    def work(self, computation: str, since: int) -> Work | None:
        """Return the pending work that members of ``computation`` published since ``since``; None if it is unknown."""
        found = self._registry.get(computation)
        return None if found is None else found.work(since)

    def explain(self, computation: str, now: int, limit: int = 100) -> Explanation | None:
        """Return which members hold the watermark of ``computation``, and why (G8); None if it is unknown."""
        found = self._registry.get(computation)
        if found is None:
            return None
        return found.explain(self.broadcast(computation), now, self._settings.silent_after, limit)

    # -- internals -------------------------------------------------------------------------------

    def _raise(self, computation: AnyComputation) -> None:
        """Decide a larger value if the members allow one. It is broadcast once it is journaled."""
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

    def _name_parts(self, snapshot: BaseSnapshot, effects: Effects) -> None:
        """Make the append refer to ``snapshot`` instead of the entries up to its commit."""
        effects.delete_below = snapshot.commit + 1
        effects.delete_parts = tuple(set(self._parts) - set(snapshot.written))
        self._floor, self._parts = snapshot.commit, tuple(snapshot.written)
        self._base_size, self._journal_cost = snapshot.size, 0
        self._named, self._snapshotting = None, False
