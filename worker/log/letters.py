"""What people have done with the letters of a dead-letter stream: which are replayed, and which discarded. Pure.

Each letter is *waiting* at first. Its replay *begins*, and is *confirmed* when the ACK of its record has come. Or the
letter is discarded. Every change is journaled before it is answered.

Letters that begin between two moments at which none is being replayed are one *batch*. Receivers know a batch's letters
by their offsets until the next batch commits a record (:mod:`millwheel.worker.dedup.batches`).

Invariants, from which the exactly-once replay follows (docs/decisions/0033-dead-letters.md):

- A letter begins once, in one batch.
- A batch begins only when no letter is in replay.
- At most MAX_IN_BATCH letters begin in one batch, so receivers know no more ids of it (G13). While one letter stays in
  replay, its batch goes on.
- Only a letter in replay becomes replayed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final

from millwheel.model.core_protocol import require
from millwheel.model.letters import LetterAction, LetterState

__all__ = ["MAX_IN_BATCH", "MAX_MARKS", "LetterChange", "LetterFacts", "LetterMarks"]

MAX_IN_BATCH: Final = 10_000
"""Most letters of one batch, replayed ones too: receivers remember as many offsets (G13)."""

MAX_MARKS: Final = 50_000
"""Most runs of letters with equal states: well below a megabyte in a base (G13)."""


_CHANGES: Final[dict[LetterAction, tuple[frozenset[LetterState], LetterState]]] = {
    LetterAction.BEGIN: (frozenset({LetterState.WAITING}), LetterState.IN_REPLAY),
    LetterAction.CONFIRM: (frozenset({LetterState.IN_REPLAY}), LetterState.REPLAYED),
    LetterAction.DISCARD: (frozenset({LetterState.WAITING}), LetterState.DISCARDED),
    LetterAction.DISCARD_ALSO_IN_REPLAY: (
        frozenset({LetterState.WAITING, LetterState.IN_REPLAY}),
        LetterState.DISCARDED,
    ),
}

LetterChange = tuple[int, int, int]
"""(action, first offset, offset after the last): what an entry says."""

LetterFacts = tuple[int, list[tuple[int, int]]]
"""(batch, [(offset, state)]): a state holds from its offset to the next one. Letters before the first one wait."""


class LetterMarks:
    """The states of a log's letters. ``changes`` wait for the next commit, with the requests that wait for them."""

    def __init__(self) -> None:
        self.batch = 0
        """The number of the last batch that has begun. 0: none has."""
        self.begun = 0
        """How many letters have begun in that batch. Values of former versions do not say it: then a lower bound."""
        self.unhandled_from = 0
        """The first kept offset whose letter is neither replayed nor discarded. There may be no letter yet."""
        self.changes: list[LetterChange] = []
        self._askers: list[Any] = []
        self._in_flight: list[LetterChange] = []
        self._sealed: list[Any] = []
        """The requests that wait for the commit in flight."""
        self.start = 0
        """The letters below are dropped, and have no state."""
        self._starts = [0]
        self._states = [LetterState.WAITING]
        self._counts = dict.fromkeys(LetterState, 0)
        """How many letters have each state, except WAITING, which has no end."""

    # Requests.

    def change(self, changes: Iterable[LetterChange], asker: Any) -> None:
        """Add changes to the next commit, which then answers ``asker``."""
        self.changes += changes
        self._askers.append(asker)

    def in_batch(self, changes: Iterable[LetterChange]) -> int:
        """At most so many letters have begun in the batch of these ``changes``, with those of commits before them.

        Letters that do not wait do not begin, so a replay that was killed can always go on (G8).
        """
        coming = [*self._in_flight, *self.changes, *changes]
        begin = sum(self._waiting(first, end) for action, first, end in coming if action == LetterAction.BEGIN)
        return begin + (self.begun if self._counts[LetterState.IN_REPLAY] else 0)

    def _waiting(self, first: int, end: int) -> int:
        """How many of the letters ``first .. end - 1`` wait."""
        count, first = 0, max(first, self.start)
        for at in range(bisect_right(self._starts, first) - 1, bisect_left(self._starts, end)):
            if self._states[at] is LetterState.WAITING:
                high = self._starts[at + 1] if at + 1 < self.marks else end
                count += min(end, high) - max(first, self._starts[at])
        return count

    @property
    def marks(self) -> int:
        """How many runs of letters have equal states."""
        return len(self._starts)

    def askers(self) -> list[Any]:
        """All requests that wait for a commit."""
        return self._sealed + self._askers

    # Commits.

    def seal(self) -> list[LetterChange]:
        """The changes for the commit that is being sealed."""
        self._in_flight, self.changes = self.changes, []
        self._sealed, self._askers = self._askers, []
        return self._in_flight

    def committed(self, changes: Sequence[LetterChange], start: int) -> list[Any]:
        """The sealed changes are in the journal, and the log keeps letters from ``start`` on. Returns the requests."""
        self.apply(changes, start)
        answered, self._sealed, self._in_flight = self._sealed, [], []
        return answered

    # The journal.

    def apply(self, changes: Sequence[LetterChange], start: int) -> None:
        """Apply the changes of one entry, which keeps letters from ``start`` on."""
        before = self.start
        for action, first, end in changes:
            self._apply(LetterAction(action), first, end)
        if start > before:
            self._forget_below(start)
        if changes or start > before:
            self.unhandled_from = self._first_unhandled()

    def facts(self) -> LetterFacts:
        """All states, for the base."""
        return self.batch, [(start, int(state)) for start, state in zip(self._starts, self._states, strict=True)]

    def restore(self, facts: LetterFacts, begun: int) -> None:
        """Load the states of a base. ``begun``: how many letters had begun in its batch."""
        self.batch, steps = facts
        if steps:
            self._starts = [start for start, _ in steps]
            self._states = [LetterState(state) for _, state in steps]
            self.start = self._starts[0]
        for state, first, end in self.runs():
            self._counts[state] += end - first
        self.begun = max(begun, self._counts[LetterState.IN_REPLAY])
        self.unhandled_from = self._first_unhandled()

    # States.

    def runs(self) -> list[tuple[LetterState, int, int]]:
        """(state, first offset, offset after the last) of all letters that do not wait, in order."""
        ends = [*self._starts[1:], self._starts[-1]]
        steps = zip(self._states, self._starts, ends, strict=True)
        return [step for step in steps if step[0] is not LetterState.WAITING]

    def handled(self) -> int:
        """How many kept letters are replayed or discarded."""
        return self._counts[LetterState.REPLAYED] + self._counts[LetterState.DISCARDED]

    def _first_unhandled(self) -> int:
        for state, start in zip(self._states, self._starts, strict=True):
            if state not in (LetterState.REPLAYED, LetterState.DISCARDED):
                return start
        return self._starts[-1]

    def check(self) -> None:
        """Raise InvariantError if what is kept contradicts itself."""
        counts = dict.fromkeys(LetterState, 0)
        for state, first, end in self.runs():
            counts[state] += end - first
        require(counts == self._counts, "the counts of letters are those of their states")
        require(self.start == self._starts[0], "no dropped letter has a state")
        require(self._states[-1] is LetterState.WAITING, "letters after the last mark wait")
        require(self.batch > 0 or not counts[LetterState.IN_REPLAY], "a letter in replay is of a batch")
        require(counts[LetterState.IN_REPLAY] <= self.begun, "letters in replay have begun in the last batch")
        require(self.marks <= 2 * MAX_MARKS, "the marks of letters are bounded (G13)")

    def _apply(self, action: LetterAction, first: int, end: int) -> None:
        allowed, target = _CHANGES[action]
        if end <= first or end <= self.start:
            return
        in_replay = self._counts[LetterState.IN_REPLAY]
        idle = not in_replay
        low, high = self._cut(max(first, self.start)), self._cut(end)
        for at in range(low, high):
            state, width = self._states[at], self._starts[at + 1] - self._starts[at]
            if state not in allowed:
                continue
            if state is not LetterState.WAITING:
                self._counts[state] -= width
            self._counts[target] += width
            self._states[at] = target
        if idle and self._counts[LetterState.IN_REPLAY]:
            self.batch += 1
            self.begun = 0
        self.begun += max(0, self._counts[LetterState.IN_REPLAY] - in_replay)
        self._join(low, high)

    def _cut(self, offset: int) -> int:
        """The index of the run that begins at ``offset``. A run that has it in its middle becomes two."""
        at = bisect_left(self._starts, offset)
        if at == len(self._starts) or self._starts[at] != offset:
            self._starts.insert(at, offset)
            self._states.insert(at, self._states[at - 1])
        return at

    def _join(self, low: int, high: int) -> None:
        """Neighbours with equal states, from run ``low`` to run ``high``, become one."""
        low = max(low, 1)
        kept = [at for at in range(low, high + 1) if self._states[at] is not self._states[at - 1]]
        self._starts[low : high + 1] = [self._starts[at] for at in kept]
        self._states[low : high + 1] = [self._states[at] for at in kept]

    def _forget_below(self, start: int) -> None:
        """The log has dropped the letters below ``start``: their states are not needed."""
        first = self._cut(start)
        for at in range(first):
            if (state := self._states[at]) is not LetterState.WAITING:
                self._counts[state] -= self._starts[at + 1] - self._starts[at]
        del self._starts[:first], self._states[:first]
        self.start = start
