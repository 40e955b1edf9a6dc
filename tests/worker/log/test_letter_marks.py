"""The states of dead letters, against a model that keeps one state for each letter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.letters import LetterAction, LetterState
from millwheel.worker.log.letters import LetterChange, LetterFacts, LetterMarks

LETTERS = 12
WAITING, IN_REPLAY, REPLAYED, DISCARDED = LetterState

CHANGES = st.tuples(st.sampled_from(list(LetterAction)), st.integers(0, LETTERS - 1), st.integers(1, 4)).map(
    lambda drawn: (int(drawn[0]), drawn[1], min(drawn[1] + drawn[2], LETTERS))
)
ENTRIES = st.lists(st.tuples(st.lists(CHANGES, max_size=3), st.integers(0, 1)), max_size=12)


class Model:
    """One state for each letter, and the batch in which each has begun."""

    def __init__(self) -> None:
        self.states = [WAITING] * LETTERS
        self.start = 0
        self.batch = 0
        self.begun: dict[int, int] = {}

    def apply(self, change: LetterChange) -> None:
        action, first, end = change
        idle = IN_REPLAY not in self.states[self.start :]
        for at in range(max(first, self.start), end):
            state = self.states[at]
            if action == LetterAction.BEGIN and state is WAITING:
                if idle:
                    self.batch, idle = self.batch + 1, False
                assert at not in self.begun, "a letter begins once"
                self.states[at], self.begun[at] = IN_REPLAY, self.batch
            elif action == LetterAction.CONFIRM and state is IN_REPLAY:
                assert self.begun[at] == self.batch, "a letter in replay is of the last batch"
                self.states[at] = REPLAYED
            elif (action == LetterAction.DISCARD and state is WAITING) or (
                action == LetterAction.DISCARD_ALSO_IN_REPLAY and state in (WAITING, IN_REPLAY)
            ):
                self.states[at] = DISCARDED

    def kept(self) -> dict[int, LetterState]:
        return {at: state for at, state in enumerate(self.states) if at >= self.start and state is not WAITING}


def states(marks: LetterMarks, start: int) -> dict[int, LetterState]:
    return {at: state for state, first, end in marks.runs() for at in range(first, end) if at >= start}


@given(ENTRIES)
def test_marks_are_those_of_each_letter(entries: list[tuple[list[LetterChange], int]]) -> None:
    marks, model = LetterMarks(), Model()
    for changes, dropped in entries:
        for change in changes:
            model.apply(change)
        model.start = min(model.start + dropped, LETTERS)
        marks.apply(changes, model.start)
        marks.check()
        assert (states(marks, model.start), marks.batch) == (model.kept(), model.batch)
        assert marks.begun == list(model.begun.values()).count(model.batch)
        kept = list(model.kept().values())
        assert marks.handled() == kept.count(REPLAYED) + kept.count(DISCARDED)
        handled = {at for at, state in model.kept().items() if state is not IN_REPLAY}
        first = next(at for at in range(model.start, LETTERS + 1) if at not in handled)
        assert marks.unhandled_from == first


@given(ENTRIES, st.integers(0, 12))
def test_a_base_and_its_entries_give_the_same_marks(entries: list[tuple[list[LetterChange], int]], cut: int) -> None:
    marks, start, after = LetterMarks(), 0, list[tuple[list[LetterChange], int]]()
    facts: LetterFacts = (0, [])
    begun = 0
    for number, (changes, dropped) in enumerate(entries):
        start = min(start + dropped, LETTERS)
        marks.apply(changes, start)
        if number < cut:
            facts, begun = marks.facts(), marks.begun
        else:
            after.append((changes, start))
    restored = LetterMarks()
    restored.restore(facts, begun)
    for changes, kept_from in after:
        restored.apply(changes, kept_from)
    restored.check()
    assert (restored.facts(), restored.begun) == (marks.facts(), marks.begun)


def test_an_answer_waits_for_the_commit_of_its_change() -> None:
    marks = LetterMarks()
    marks.change([(LetterAction.BEGIN, 2, 5)], "first")
    sealed = marks.seal()
    marks.change([(LetterAction.CONFIRM, 2, 4)], "second")
    assert marks.askers() == ["first", "second"]
    assert marks.runs() == []
    assert marks.committed(sealed, 0) == ["first"]
    assert marks.runs() == [(IN_REPLAY, 2, 5)]
    assert marks.committed(marks.seal(), 0) == ["second"]
    assert marks.runs() == [(REPLAYED, 2, 4), (IN_REPLAY, 4, 5)]
