"""The authority against a naive model over single keys, through splits, merges, zombies and crashes (G4, G7, G8)."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millwheel.authority.core import CoreSettings
from millwheel.authority.members import Refusal
from millwheel.authority.messages import ReportsReceived
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.watermarks import AcceptRefusedError, WatermarkReport
from tests.authority.shard import GROUP, Shard, by_columns

CELLS = [b"", *(bytes([97 + n]) for n in range(7))]
"""The bounds of intervals. All keys between two bounds behave alike."""


@st.composite
def intervals(draw: st.DrawFn) -> KeyInterval:
    start, end = sorted(draw(st.lists(st.integers(0, len(CELLS)), min_size=2, max_size=2, unique=True)))
    return KeyInterval(CELLS[start], None if end == len(CELLS) else CELLS[end])


class AuthorityModel(RuleBasedStateMachine):
    """Owners report true values, and zombies report anything.

    ``owner[c]``: interval and sequencer accepted last for cell c. ``bound[c]``: the largest value that an
    owner of cell c, while it was the owner, has claimed: nothing older than it can still come from there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard(CoreSettings(entry_bytes=120, part_bytes=100, snapshot_bytes=900))
        self.owner: dict[bytes, tuple[KeyInterval, int] | None] = dict.fromkeys(CELLS)
        self.bound: dict[bytes, int] = dict.fromkeys(CELLS, MIN_TIMESTAMP)
        self.unanswered: list[tuple[KeyInterval, int]] = []
        self.sequencer = 0
        self.dead: list[tuple[KeyInterval, int]] = []

    def cells(self, keys: KeyInterval) -> list[bytes]:
        return [cell for cell in CELLS if cell in keys]

    def owners(self) -> list[tuple[KeyInterval, int]]:
        """Owners that still have all of their interval."""
        whole = []
        for owner in dict.fromkeys(self.owner.values()):
            if owner is not None and all(self.owner[cell] == owner for cell in self.cells(owner[0])):
                whole.append(owner)
        return whole

    def announce(self, keys: KeyInterval) -> int:
        """Accept the newest sequencer for ``keys``. It is not journaled yet."""
        token = self.shard.begin_accept(keys, self.sequencer)
        self.unanswered.append((keys, self.sequencer))
        for cell in self.cells(keys):
            self.owner[cell] = (keys, self.sequencer)
        return token

    @initialize(at=st.sampled_from(CELLS[1:]))
    def first_owners(self, at: bytes) -> None:
        for keys in KeyInterval().split(at):
            self.accept(keys, journal=True)

    @rule(keys=intervals(), journal=st.booleans())
    def accept(self, keys: KeyInterval, journal: bool) -> None:
        """A move, split or merge: a new owner of some interval."""
        self.sequencer += 1
        self.dead += [owner for owner in self.owners() if owner[0].overlaps(keys)]
        token = self.announce(keys)
        if journal:
            self.flush()
            assert self.shard.answers[token] <= max(
                min(self.bound[cell] for cell in self.cells(keys)), self.shard.known()
            ), "an owner is sent more than anybody claimed"

    def say(self, keys: KeyInterval, sequencer: int, value: int, columns: bool) -> list[Refusal]:
        """Report. Both forms of a report mean the same."""
        report = WatermarkReport(GROUP, keys, sequencer, value)
        return self.shard.receive(by_columns([report]) if columns else ReportsReceived([report]))

    @rule(choice=st.integers(0, 50), value=st.integers(0, 30), flush=st.booleans(), columns=st.booleans())
    def report(self, choice: int, value: int, flush: bool, columns: bool) -> None:
        owners = self.owners()
        if not owners:
            return
        keys, sequencer = owners[choice % len(owners)]
        refused = self.say(keys, sequencer, value, columns)
        assert not refused, "a live owner's report was refused"
        for cell in self.cells(keys):
            self.bound[cell] = max(self.bound[cell], value)
        if flush:
            self.flush()

    @precondition(lambda self: self.dead)
    @rule(choice=st.integers(0, 50), columns=st.booleans())
    def zombie(self, choice: int, columns: bool) -> None:
        """G4: a replaced owner reports. It does not know the records that its successor accepted."""
        keys, sequencer = self.dead[choice % len(self.dead)]
        (refusal,) = self.say(keys, sequencer, 1_000_000, columns)
        assert refusal.superseded

    @rule(keys=intervals(), behind=st.integers(1, 3))
    def late_claim(self, keys: KeyInterval, behind: int) -> None:
        """A delayed acceptance with an old sequencer takes no keys from a newer one."""
        sequencer = self.sequencer - behind
        newest = max((owner[1] for cell in self.cells(keys) if (owner := self.owner[cell])), default=0)
        if sequencer < 1 or newest < sequencer or (keys, sequencer) in self.owners():
            return
        try:
            self.shard.begin_accept(keys, sequencer, GROUP)
        except AcceptRefusedError:
            return
        # An owner may ask again for the rest of its interval after a cut. Nothing changes then.
        assert newest == sequencer

    @rule()
    def flush(self) -> None:
        self.shard.flush()
        self.unanswered.clear()

    @rule(journaled=st.booleans())
    def crash(self, journaled: bool) -> None:
        """The shard ends: before an append, or after it and before the broadcast. Who got no answer asks again."""
        if journaled:
            self.shard.append()
        self.shard.restart()
        for keys, sequencer in self.unanswered:
            with suppress(AcceptRefusedError):  # a journaled acceptance has cut it since
                self.shard.begin_accept(keys, sequencer)

    @rule()
    def move_on(self) -> None:
        """G8: once all owners are present and beyond W, the broadcast reaches W."""
        for cell, owner in self.owner.items():
            if owner is None or owner not in self.owners():
                self.sequencer += 1
                keys = next(keys for keys in self.shard_pieces() if cell in keys)
                if owner is not None:
                    self.dead += [other for other in self.owners() if other[0].overlaps(keys)]
                self.announce(keys)
        self.flush()
        target = max(self.shard.known(), 0) + 5
        for keys, sequencer in self.owners():
            assert self.shard.say(keys, sequencer, target) == []
            for cell in self.cells(keys):
                self.bound[cell] = max(self.bound[cell], target)
        self.flush()
        assert self.shard.known() == target

    def shard_pieces(self) -> list[KeyInterval]:
        answer = self.shard.core.explain(GROUP, 0)
        assert answer is not None
        return [row.member for row in answer.rows if isinstance(row.member, KeyInterval)]

    @invariant()
    def never_leads(self) -> None:
        """G7: no broadcast exceeds the claim of any live owner. (Shard asserts that no broadcast goes back.)"""
        assert self.shard.known() <= min(self.bound.values())
        answer = self.shard.core.explain(GROUP, 0)
        assert answer is None or min(row.watermark for row in answer.rows) >= self.shard.known()

    @invariant()
    def every_key_has_exactly_one_share(self) -> None:
        """G11"""
        pieces = self.shard_pieces() if self.sequencer else [KeyInterval()]
        assert pieces[0].start == b""
        assert pieces[-1].end is None
        assert all(left.end == right.start for left, right in itertools.pairwise(pieces))


AuthorityModel.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestAuthorityModel = pytest.mark.guarantee("G7")(AuthorityModel.TestCase)
