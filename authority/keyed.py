"""A group's watermark by key intervals (7.2).

Invariant: the map covers every key at all times. Keys that never had an owner are members with sequencer 0 at minus
infinity. An incomplete group therefore needs no special case: its minimum is minus infinity.

Invariant: every member's watermark is at or above the decided value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from millwheel.authority.group import Group
from millwheel.authority.members import Explanation, MemberState, Refusal
from millwheel.authority.percentiles import Work, work_of
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.range_map import RangeMap
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.report_columns import ReportColumns
from millwheel.rpc.watermarks import AcceptRefusedError, WatermarkReport

__all__ = ["MAX_MEMBERS", "KeyedGroup"]

MAX_MEMBERS: Final = 100_000
"""The most members of a group. A computation has thousands of intervals at most. Only a caller that invents intervals
would have more, and each member is in memory and in the journal (G13)."""

_MOST_COMPARED: Final = 100
"""The most members that a refused report is compared with (G13). Beyond them it counts as never accepted. Its owner
announces itself then, and :meth:`KeyedGroup.accept` looks at all of them. An owner's successors are among the first."""


class KeyedGroup(Group[KeyInterval]):
    """The members of one group by interval, and the minimum of their watermarks."""

    __slots__ = ("_map",)

    def __init__(self, name: str, value: int = MIN_TIMESTAMP, states: Iterable[MemberState[KeyInterval]] = ()) -> None:
        """``states`` are disjoint. The keys without a state get one with sequencer 0."""
        super().__init__(name, value)
        self._map = RangeMap.from_items((state.member, state) for state in states)
        for gap in self._map.gaps(ALL_KEYS):
            self._map.assign(gap, MemberState(gap, 0, MIN_TIMESTAMP))
        for state in self._map.values():
            self._put(state)

    def report_columns(self, columns: ReportColumns, now: int) -> list[Refusal]:
        """Apply the reports of many intervals, each as :meth:`report` does it. Return the refused ones.

        Invariant: a report counts only if exactly its interval is accepted for exactly its sequencer (G4).
        The value does not rise between two of them. A report that goes back counts as the value before all of them,
        so it may count as less than singly, and never as more.
        """
        refused: list[Refusal] = []
        states, value = self._states, self.value
        for place, row in enumerate(columns.rows()):
            start, end, sequencer, number, watermark, input_watermark, hold, subject = row
            state = states.get(start)
            if state is None or state.sequencer != sequencer or (state.member.end or b"") != end:
                report = columns.report(place)
                refused.append(Refusal(report, self._is_superseded(report)))
            elif state.note(number, input_watermark, hold, subject, now):
                if watermark < value:
                    watermark = value
                if watermark != state.watermark:
                    self._set(state, watermark)
                    self.changed_states[state] = None
        return refused

    def accept(self, keys: KeyInterval, sequencer: int) -> MemberState[KeyInterval]:
        """Accept ``sequencer`` as the owner of ``keys`` (G4).

        It starts from the smallest known value of its keys, so the children of a split inherit their parent's.
        What remains of members that it cuts is journaled again with its newest values.
        Raises AcceptRefusedError if a larger sequencer owns any of the keys, or the group would have too many members.
        Idempotent.
        """
        over = list(self._map.overlapping_values(keys))
        largest = max(over, key=lambda state: state.sequencer)
        if largest.sequencer == sequencer and largest.member == keys and len(over) == 1:
            return largest
        if largest.sequencer >= sequencer:
            raise AcceptRefusedError(
                f"sequencer {sequencer} for {keys} of {self.name}: sequencer {largest.sequencer} holds {largest.member}"
            )
        count = len(self._states) - len(over) + 1 + sum(len(_outside(state.member, keys)) for state in over)
        if count > max(MAX_MEMBERS, len(self._states)):
            raise AcceptRefusedError(f"{keys} of {self.name}: the group has {len(self._states):,} members already")
        made = MemberState(keys, sequencer, min(state.watermark for state in over))
        self.changed_states.update(dict.fromkeys(self.put(made)))
        return made

    def put(self, made: MemberState[KeyInterval]) -> list[MemberState[KeyInterval]]:
        """Assign the keys of ``made`` to it, and return what remains of the members that it cuts.

        A cut member keeps its values outside those keys. Both acceptance and its replay use this method.
        """
        remains = []
        keys = made.member
        over = self._map.overlapping(keys)
        self._map.assign(keys, made)
        for piece, state in over:
            self._drop(state)
            for rest in _outside(piece, keys):
                remains.append(state.copy_for(rest))
                self._map.assign(rest, remains[-1])
                self._put(remains[-1])
        self._put(made)
        return remains

    def _is_superseded(self, report: WatermarkReport) -> bool:
        keys = report.member
        assert isinstance(keys, KeyInterval)
        over = islice(self._map.overlapping_values(keys), _MOST_COMPARED)
        return any(state.sequencer > report.sequencer for state in over)

    def restore(self, keys: KeyInterval, sequencer: int, watermark: int) -> None:
        """Replay a journaled value."""
        state = self._states.get(keys.start)
        if state is None or state.sequencer != sequencer or state.member != keys:
            self.put(MemberState(keys, sequencer, watermark))
            return
        self._set(state, watermark)

    def states(self) -> Sequence[MemberState[KeyInterval]]:
        """Return all members in key order, as of now."""
        return self._map.values()

    def work(self, since: int) -> Work:
        """Return the pending work that the intervals published since ``since``.

        Its bound is the newest record that any interval has seen.
        """
        return work_of(self._map.values(), since, max)

    def explain(self, watermark: int, now: int, limit: int) -> Explanation:
        """Explain ``watermark``. A member says SILENT if it has no owner, or if its owner has stopped reporting."""
        smallest = self.smallest()
        states = self._map.values()
        holding = [state for state in states if state.watermark == smallest]
        return Explanation(
            self.name,
            watermark,
            [state.view(now) for state in holding[:limit]],
            [state.view(now) for state in states[:limit]],
            len(holding),
            len(states),
        )


def _outside(piece: KeyInterval, keys: KeyInterval) -> list[KeyInterval]:
    """Return the parts of ``piece`` outside ``keys``, which it overlaps."""
    rest = []
    if piece.start < keys.start:
        rest.append(KeyInterval(piece.start, keys.start))
    if keys.end is not None and (piece.end is None or keys.end < piece.end):
        rest.append(KeyInterval(keys.end, piece.end))
    return rest
