"""The low watermark authority without its I/O: admission of watermark reports and the decision of values (7.2).

Events go in and effects come out (:mod:`millwheel.model.core_protocol`, ``authority/messages.py``). Changes wait for
the next append, and one append is in flight at a time. Once it is journaled, its answers and broadcasts follow.

A member is a key interval of a group, or a process of an injector. ``MemberState`` is what the shard knows of it.

Invariants (argued in docs/decisions/0003-watermarks.md):
  * A broadcast value and the answer to an acceptance come only from a journaled entry.
  * A decided value is at most the minimum over the last reports of all members' accepted owners, unless it
    was decided before. Values never go back (G7).
  * A report counts only if its member and sequencer are exactly the accepted ones (G4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from millwheel.authority.base import BaseSnapshot, freeze
from millwheel.authority.calls import AuthorityCall, AuthorityCalls
from millwheel.authority.journal import AuthorityEntry, decode_entry, decode_part, encode
from millwheel.authority.keyed import KeyedGroup
from millwheel.authority.members import Explanation, Refusal
from millwheel.authority.messages import (
    AnswerCall,
    AppendChanges,
    AppendJournaled,
    AuthorityEffect,
    AuthorityEvent,
    BroadcastValues,
    DeleteJournaled,
    PercentileRequested,
    RefuseCall,
    RefuseReport,
    ReportsReceived,
    SnapshotWritten,
    Tick,
    WriteSnapshot,
)
from millwheel.authority.pace import AppendPace, PaceSettings
from millwheel.authority.percentiles import Work
from millwheel.authority.registry import AnyGroup, Registry
from millwheel.authority.unjournaled import AppendContent, UnjournaledChanges
from millwheel.model.core_protocol import RisingValues, require
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.report_columns import ReportColumns
from millwheel.rpc.watermarks import AcceptRefusedError, Member, ReportNotReceivedError
from millwheel.store.contract import Append, JournalHead

__all__ = ["AuthorityCore", "CoreSettings"]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Settings of one shard's core.

    ``entry_bytes``, ``part_bytes``: approximate size of the largest entry and the largest base part, in bytes. The
    shard's loop stands still while one of them is made: 5,000 rows take some milliseconds.
    ``snapshot_bytes``: journal size in bytes above which a base is written, if the last base is smaller than half of
    it. ``pace``: when appends are made.
    """

    entry_bytes: int = 256 << 10
    part_bytes: int = 256 << 10
    snapshot_bytes: int = 256 << 10
    pace: PaceSettings = field(default_factory=PaceSettings)


_ENTRY_COST_BYTES: Final = 256
"""The fixed cost of reading one entry at a restart, expressed in bytes."""


@dataclass(slots=True)
class _InFlight:
    """What an append in flight allows once it is journaled."""

    content: AppendContent
    effects: list[AuthorityEffect] = field(default_factory=list)


class AuthorityCore:
    """The state of one shard. Driven as :class:`millwheel.model.core_protocol.Core` says, by any steady clock.

    The first event is a ``Tick``. From then on the core says when the next append is due.

    It has many attributes: the head of its journal, the append in flight, and what the next append will hold.
    """

    def __init__(self, journal: str, sequencer: int, head: JournalHead, settings: CoreSettings | None = None) -> None:
        """``head`` is the head of the journal as ``sequencer`` fenced it. Call :meth:`restore` first."""
        self.journal = journal
        self.sequencer = sequencer
        self._settings = settings or CoreSettings()
        self.commit, self._truncation_point, self._parts = head.commit, head.truncation_point, head.parts
        """``commit``: the number of the newest append, in flight or journaled."""
        self.registry = Registry()
        """The groups, and what has ended."""
        self._unjournaled = UnjournaledChanges()
        self._broadcast: dict[str, int] = {}
        self._changed_groups: dict[str, AnyGroup] = {}
        """The groups with members' values that no append has."""
        self._risen: dict[str, AnyGroup] = {}
        """The groups whose value no append has."""
        self._calls = AuthorityCalls(self.registry, self._unjournaled, self.broadcast)
        self._in_flight: _InFlight | None = None
        self._pace = AppendPace(self._settings.pace)
        self._rising = RisingValues()
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
        self.registry.load(read)
        for commit, blob in enumerate(entries, start=self._truncation_point + 1):
            self.registry.replay(decode_entry(blob, f"{self.journal}: entry {commit}"))
            self._journal_cost += len(blob) + _ENTRY_COST_BYTES
        for group in self.registry:
            self._broadcast[group.name] = group.value
            self._changed(group)

    # -- the protocol ----------------------------------------------------------------------------

    def step(self, event: AuthorityEvent, now: int) -> Sequence[AuthorityEffect]:
        """Process ``event`` at ``now``, in microseconds."""
        effects: list[AuthorityEffect] = []
        match event:
            case ReportsReceived():
                effects += self._on_reports(event, now)
            case AppendJournaled():
                effects += self._on_journaled(now)
            case Tick():
                effects += self._on_tick(now)
            case SnapshotWritten():
                self._named = event.snapshot
            case _:
                effects += self._on_call(event)
        self._pace.want(now, urgent=self._urgent, dirty=self._dirty)
        return effects

    def next_deadline(self) -> int | None:
        """The time of the next append. None while one is in flight."""
        return None if self._in_flight is not None else self._pace.due_at

    def check_invariants(self) -> None:
        """Check the shard's invariants. Raises InvariantError."""
        self._rising.check(commit=self.commit, truncation_point=self._truncation_point)
        require(self._truncation_point <= self.commit, "the truncation point is not above the last append")
        for group in self.registry:
            broadcast = self._broadcast.get(group.name, MIN_TIMESTAMP)
            require(broadcast <= group.value, "a broadcast value was decided before (G7)")

    # -- events ----------------------------------------------------------------------------------

    def _on_call(self, call: AuthorityCall) -> list[AuthorityEffect]:
        if isinstance(call, PercentileRequested) and self.registry.get(call.group) is None:
            return [RefuseCall(call.token, KeyError(call.group))]
        try:
            changed = self._calls.apply(call)
        except (AcceptRefusedError, ReportNotReceivedError) as error:
            return [RefuseCall(call.token, error)]
        if changed is not None:
            self._changed(changed)
        self._pace.ask()
        return []

    def _on_reports(self, event: ReportsReceived, now: int) -> list[AuthorityEffect]:
        refused: list[Refusal] = []
        registry = self.registry
        for report in event.reports:
            group = registry.get(report.group)
            if group is None:
                refused.append(Refusal(report, superseded=registry.is_over(report.group, report.sequencer)))
                continue
            changed = group.report(report, now)
            if isinstance(changed, Refusal):
                refused.append(changed)
            elif changed is not None:
                self._changed(group)
        for columns in event.columns:
            refused += self._on_columns(columns, now)
        return [RefuseReport(refusal) for refusal in refused]

    def _on_columns(self, columns: ReportColumns, now: int) -> list[Refusal]:
        """Apply reports of many intervals. Their group's value rises once, after all of them."""
        group = self.registry.get(columns.group)
        if not isinstance(group, KeyedGroup):
            is_over = partial(self.registry.is_over, columns.group)
            return [Refusal(report, is_over(report.sequencer)) for report in columns.reports()]
        refused = group.report_columns(columns, now)
        self._changed(group)
        return refused

    def outlives(self, group: str, sequencer: int) -> bool:
        """Return whether ``group`` was re-created since ``sequencer`` was drawn: it accepted a larger one."""
        return any(accepted > sequencer for _, accepted in self.sequencers(group))

    # -- appends ---------------------------------------------------------------------------------

    def _on_tick(self, now: int) -> list[AuthorityEffect]:
        """Make the append that is due: of what waits, or an empty one to find out whether the shard was deposed."""
        due_at = self.next_deadline()
        if due_at is None or now < due_at:
            return []
        even_if_empty = self._pace.verifies
        self._pace.begin(now)
        if not (even_if_empty or self._dirty):
            return []
        return [AppendChanges(self._next_append())]

    def _next_append(self) -> Append:
        """The append to make now, which holds only what changed."""
        content = self._take(self._settings.entry_bytes)
        if self._unjournaled.changes:
            self._pace.ask()  # calls wait for what did not fit
        effects: list[AuthorityEffect] = [AnswerCall(token, watermark) for token, watermark in content.answers]
        effects.append(BroadcastValues(dict(content.entry.values), content.sequencers))
        self.commit += 1
        if self._named is not None:
            effects.append(self._name_parts(self._named))
        append = Append(self.sequencer, self.commit, self._truncation_point, self._parts, encode(content.entry))
        self._journal_cost += len(append.entry) + _ENTRY_COST_BYTES
        if self._snapshot_due() and not self._unjournaled.changes:
            snapshot = freeze(self.registry, self.sequencer, self.commit, self._settings.part_bytes)
            effects.append(WriteSnapshot(snapshot))
            self._snapshotting = True
        self._in_flight = _InFlight(content, effects)
        return append

    def _on_journaled(self, now: int) -> list[AuthorityEffect]:
        """The append in flight is journaled: its effects follow."""
        done = self._in_flight
        assert done is not None
        self._in_flight = None
        self._pace.end(now)
        for name in done.content.removed:
            self._broadcast.pop(name, None)
        self._broadcast.update(done.content.entry.values)
        return done.effects

    # -- queries ---------------------------------------------------------------------------------

    def broadcast(self, group: str) -> int:
        """Return the value that was last broadcast for ``group``, or MIN_TIMESTAMP if it is unknown."""
        return self._broadcast.get(group, MIN_TIMESTAMP)

    def broadcasts(self) -> dict[str, int]:
        """Return a copy of the values that were last broadcast, by group. Other threads may call this."""
        return self._broadcast.copy()

    def sequencers(self, group: str) -> list[tuple[Member, int]]:
        """Return every member of ``group`` that has a sequencer, with that sequencer."""
        found = self.registry.get(group)
        return [] if found is None else [(state.member, state.sequencer) for state in found.states() if state.sequencer]

    def work(self, group: str, since: int) -> Work | None:
        """Return the pending work that members of ``group`` published since ``since``; None if it is unknown."""
        found = self.registry.get(group)
        return None if found is None else found.work(since)

    def explain(self, group: str, now: int, limit: int = 100) -> Explanation | None:
        """Return which members hold the watermark of ``group``, and why (G8); None if it is unknown."""
        found = self.registry.get(group)
        return None if found is None else found.explain(self.broadcast(group), now, limit)

    # -- internals -------------------------------------------------------------------------------

    @property
    def _urgent(self) -> bool:
        """Whether an answer or a broadcast waits."""
        return bool(self._unjournaled.changes or self._risen)

    @property
    def _dirty(self) -> bool:
        """Whether anything waits: a base that was written, too."""
        return self._urgent or bool(self._changed_groups) or self._named is not None

    def _changed(self, group: AnyGroup) -> None:
        """Members of ``group`` have changed. If its value rises, that is broadcast once it is journaled."""
        if group.changed_states:
            self._changed_groups[group.name] = group
        if group.rise():
            self._risen[group.name] = group

    def _take(self, size: int) -> AppendContent:
        """Take about ``size`` bytes of what waits, changes first.

        Invariant: while changes remain, nothing after them is taken. A changed member may come from a cut that is not
        journaled yet. A value may belong to a group that is not journaled yet. A group that was removed has no values.
        """
        content = AppendContent(AuthorityEntry([], {}, {}, {}))
        if self._unjournaled.changes:
            size -= self._unjournaled.take(content, self._value_of, size)
            if self._unjournaled.changes:
                return content
        get = self.registry.get
        for name, group in list(self._changed_groups.items()):
            if size <= 0:
                break
            if get(name) is group:
                size -= group.take_changed_states(content.entry, size)
            del self._changed_groups[name]
            if get(name) is group and group.changed_states:
                self._changed_groups[name] = group  # behind the others: a busy group would keep them out for ever
        content.entry.values = {name: group.value for name, group in self._risen.items() if get(name) is group}
        self._risen.clear()
        return content

    def _value_of(self, name: str) -> int:
        found = self.registry.get(name)
        return MIN_TIMESTAMP if found is None else found.value

    def _snapshot_due(self) -> bool:
        return not self._snapshotting and self._journal_cost > max(self._settings.snapshot_bytes, 2 * self._base_size)

    def _name_parts(self, snapshot: BaseSnapshot) -> DeleteJournaled:
        """Make the append refer to ``snapshot`` instead of the entries up to its commit."""
        deletion = DeleteJournaled(snapshot.commit + 1, tuple(set(self._parts) - set(snapshot.written)))
        self._truncation_point, self._parts = snapshot.commit, tuple(snapshot.written)
        self._base_size, self._journal_cost = snapshot.size, 0
        self._named, self._snapshotting = None, False
        return deletion
