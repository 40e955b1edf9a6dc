"""Two owners compete for journals, and a naive model says what each call must answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import (
    TERMINAL_SEQUENCER,
    Append,
    JournalHead,
    SequencerRefusedError,
    StateRow,
    StateStore,
)
from tests.contracts.conftest import STORES, params

Run = Callable[[Coroutine[Any, Any, Any]], Any]

_numbers = itertools.count()
OWNERS = st.sampled_from([0, 1])
KEYS = st.sampled_from([b"", b"a", b"b", b"c"])


@dataclass
class Model:
    """A journal as a list; the rows as a dictionary from key to the row of the largest commit."""

    sequencer: int = 0
    commit: int = 0
    truncation_point: int = 0
    deleted: int = 1
    entries: list[bytes] = field(default_factory=list)
    rows: dict[bytes, StateRow] = field(default_factory=dict)


class Competition(RuleBasedStateMachine):
    """Owners act on what they know: their own sequencer, and the last commit that they read."""

    store: StateStore
    run: Run

    def __init__(self) -> None:
        super().__init__()
        self.name = f"model.j{next(_numbers)}"
        self.incarnation = f"incarnation.{self.name}"
        self.model = Model()
        self.next_sequencer = 1
        self.believed = {0: (0, 0), 1: (0, 0)}
        type(self).run(self.store.create_journal(self.name))

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return type(self).run(work)
        except SequencerRefusedError as refused:
            assert (refused.sequencer, refused.commit) == (self.model.sequencer, self.model.commit)  # noqa: PT017
            return refused

    @rule(owner=OWNERS, old=st.booleans())
    def fence(self, owner: int, old: bool) -> None:
        model = self.model
        if old:
            sequencer = max(1, self.next_sequencer - 2)
        else:
            sequencer = self.next_sequencer
            self.next_sequencer += 1
        result = self.call(self.store.fence(self.name, sequencer))
        if sequencer > model.sequencer:
            model.sequencer = sequencer
            assert result == JournalHead(sequencer, model.commit, model.truncation_point, ())
            self.believed[owner] = (sequencer, model.commit)
        else:
            assert isinstance(result, SequencerRefusedError)

    @rule(
        owner=OWNERS, skew=st.sampled_from([0, 0, 0, 0, -1, 1]), advance=st.integers(0, 2), blob=st.binary(max_size=20)
    )
    def append(self, owner: int, skew: int, advance: int, blob: bytes) -> None:
        model = self.model
        sequencer, commit = self.believed[owner]
        commit += 1 + skew
        truncation_point = max(0, min(model.truncation_point + advance, commit))
        holds = (sequencer, commit) == (model.sequencer, model.commit + 1) and sequencer != TERMINAL_SEQUENCER
        if holds:
            truncation_point = max(truncation_point, model.truncation_point)
        result = self.call(self.store.append(self.name, Append(sequencer, commit, truncation_point, (), blob)))
        if holds:
            assert result is None
            model.commit, model.truncation_point = commit, truncation_point
            model.entries.append(blob)
            self.believed[owner] = (sequencer, commit)
        else:
            assert isinstance(result, SequencerRefusedError)

    @rule(owner=OWNERS, child=st.booleans())
    @precondition(lambda self: self.model.commit > 6)
    def seal(self, owner: int, child: bool) -> None:
        """An owner seals with its own sequencer, or a child with the sequencer that it was given."""
        model = self.model
        sequencer, _ = self.believed[owner]
        if child:
            sequencer = self.next_sequencer
            self.next_sequencer += 1
        result = self.call(self.store.seal(self.name, sequencer))
        if model.sequencer <= sequencer or model.sequencer == TERMINAL_SEQUENCER:
            model.sequencer = TERMINAL_SEQUENCER
            assert result == JournalHead(TERMINAL_SEQUENCER, model.commit, model.truncation_point, ())
        else:
            assert isinstance(result, SequencerRefusedError)

    @rule()
    def delete_entries(self) -> None:
        self.model.deleted = self.model.truncation_point + 1
        self.call(self.store.delete_entries(self.name, self.model.truncation_point + 1))

    @rule(owner=OWNERS, changes=st.lists(st.tuples(KEYS, st.integers(0, 5), st.booleans()), max_size=5))
    def write_states(self, owner: int, changes: list[tuple[bytes, int, bool]]) -> None:
        """Rows of any commit that was made and that the truncation_point has not passed."""
        model = self.model
        commits = [(key, model.commit - back, kept) for key, back, kept in changes]
        rows = [
            StateRow(key, commit, b"%d of %s" % (commit, key) if kept else b"")
            for key, commit, kept in commits
            if commit > model.truncation_point
        ]
        # A row's content is what its commit left: one commit leaves one state of a key.
        unique = {(row.key, row.commit): row for row in rows}
        rows = [row for row in rows if unique[row.key, row.commit] is row and self._agrees(row)]
        sequencer, _ = self.believed[owner]
        deposed = sequencer != model.sequencer
        if deposed:
            # That an emptied row was not taken could not be seen.
            rows = [row for row in rows if row.blob]
        self.call(self.store.write_states(IncarnationId(self.incarnation), self.name, sequencer, rows))
        if deposed:
            rows = self._taken(rows)
        for row in rows:
            if row.key not in model.rows or model.rows[row.key].commit <= row.commit:
                model.rows[row.key] = row

    def _taken(self, rows: list[StateRow]) -> list[StateRow]:
        """What the store took of a deposed owner's rows: it may, as they are true or older."""
        stored = self.call(self.store.read_states(IncarnationId(self.incarnation), [row.key for row in rows]))
        return [row for row, found in zip(rows, stored, strict=True) if found == row]

    def _agrees(self, row: StateRow) -> bool:
        known = self.model.rows.get(row.key)
        return known is None or known.commit != row.commit or known == row

    @invariant()
    def head_and_entries_agree(self) -> None:
        model = self.model
        assert self.call(self.store.read_head(self.name)) == JournalHead(
            model.sequencer, model.commit, model.truncation_point, ()
        )
        first = max(model.deleted, 1)
        assert self.call(self.store.read_entries(self.name, first, model.commit)) == model.entries[first - 1 :]

    @invariant()
    def rows_agree(self) -> None:
        kept = [row for _, row in sorted(self.model.rows.items()) if row.blob]
        found = self.call(self.store.read_states(IncarnationId(self.incarnation), sorted(self.model.rows)))
        assert [row for row in found if row is not None] == kept


SLOW = {"cassandra": 12, "cassandra-3": 4}
"""Examples where a call is a matter of milliseconds."""


@pytest.fixture(params=params(name for name in STORES if name != "embedded-reopened"))
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[type[Competition]]:
    with asyncio.Runner() as runner:
        manager = STORES[request.param](tmp_path)

        class Bound(Competition):
            store = runner.run(manager.__aenter__())
            run = staticmethod(runner.run)

        yield Bound
        runner.run(manager.__aexit__(None, None, None))


@pytest.mark.guarantee("G3", section="6.2")
def test_two_owners_see_what_one_journal_allows(machine: type[Competition], request: pytest.FixtureRequest) -> None:
    examples = SLOW.get(request.node.callspec.params["machine"], 60)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))
