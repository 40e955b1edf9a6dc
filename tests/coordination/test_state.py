"""The coordinator's state machine against a naive model that keeps every revision."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millwheel.coordination.contract import CompactedError, Compare, KeyChange, KeyValue, LeaseExpiredError, Put
from millwheel.coordination.state import CoordinatorState

HISTORY = 4
KEYS = st.sampled_from(["a", "a/1", "b"])


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = CoordinatorState(history=HISTORY)
        self.revisions: list[dict[str, KeyValue]] = [{}]
        self.log: list[tuple[KeyChange, ...]] = [()]
        self.leases: dict[int, tuple[float, float]] = {}
        self.ended: set[int] = set()
        self.now = 0.0

    @property
    def entries(self) -> dict[str, KeyValue]:
        return self.revisions[-1]

    def change(self, puts: dict[str, tuple[bytes, int]], deletes: list[str]) -> None:
        deletes = [key for key in deletes if key in self.entries]
        if not puts and not deletes:
            return
        revision = len(self.revisions)
        entries = dict(self.entries)
        log = []
        for key, (value, lease) in puts.items():
            created = entries[key].created if key in entries else revision
            entries[key] = KeyValue(key, value, created, revision, lease)
            log.append(KeyChange(key, value, revision))
        for key in deletes:
            del entries[key]
            log.append(KeyChange(key, None, revision))
        self.revisions.append(entries)
        self.log.append(tuple(log))

    @rule(
        compares=st.lists(st.tuples(KEYS, st.sampled_from(["right", "absent", "old"])), max_size=2),
        puts=st.dictionaries(KEYS, st.binary(max_size=2), max_size=2),
        deletes=st.lists(KEYS, unique=True, max_size=2),
        lease=st.integers(0, 3),
    )
    def transact(self, compares: list[tuple[str, str]], puts: dict[str, bytes], deletes: list[str], lease: int) -> None:
        deletes = [key for key in deletes if key not in puts]
        ids = [0, *self.leases, *self.ended]
        lease = ids[lease % len(ids)]
        made, holds = [], True
        for key, kind in compares:
            modified = self.entries[key].modified if key in self.entries else 0
            wanted = {"right": modified, "absent": 0, "old": modified - 1}[kind]
            made.append(Compare(key, wanted))
            holds = holds and wanted == modified
        asked = [Put(key, value, lease) for key, value in puts.items()]
        dead = lease != 0 and (lease in self.ended or self.leases[lease][1] <= self.now)
        if asked and dead:
            with pytest.raises(LeaseExpiredError):
                self.state.decide(made, asked, deletes, self.now)
            return
        transition = self.state.decide(made, asked, deletes, self.now)
        assert (transition is not None) == holds
        if transition is not None:
            self.state.apply(transition)
            self.change({key: (value, lease) for key, value in puts.items()}, deletes)

    @rule(ttl=st.sampled_from([1.0, 3.0]))
    def grant(self, ttl: float) -> None:
        lease = self.state.grant(ttl, self.now)
        assert lease not in self.leases
        assert lease not in self.ended
        self.leases[lease] = (ttl, self.now + ttl)

    @rule(index=st.integers(0, 5))
    def keep_alive(self, index: int) -> None:
        ids = [*self.leases, *self.ended]
        if not ids:
            return
        lease = ids[index % len(ids)]
        if lease in self.ended or self.leases[lease][1] <= self.now:
            with pytest.raises(LeaseExpiredError):
                self.state.keep_alive(lease, self.now)
        else:
            self.state.keep_alive(lease, self.now)
            ttl, _ = self.leases[lease]
            self.leases[lease] = (ttl, self.now + ttl)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        over = [lease for lease, (_, deadline) in self.leases.items() if deadline <= self.now]
        assert self.state.expired(self.now) == over
        if over:
            self.state.apply(self.state.decide_end(over))
            self.state.forget(over)
        self.change({}, [key for key, entry in self.entries.items() if entry.lease in over])
        self.ended.update(over)
        for lease in over:
            del self.leases[lease]

    @invariant()
    def contents_agree(self) -> None:
        for prefix in ("", "a", "b", "c"):
            snapshot = self.state.list(prefix)
            assert snapshot.revision == len(self.revisions) - 1
            assert snapshot.entries == tuple(
                self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)
            )
        assert self.state.next_deadline() == min((deadline for _, deadline in self.leases.values()), default=None)

    @invariant()
    def history_is_complete_or_refused(self) -> None:
        last = len(self.revisions) - 1
        for after in range(last + 2):
            if after < last - HISTORY:
                with pytest.raises(CompactedError):
                    self.state.changes_after("a", after)
                continue
            below = [tuple(change for change in each if change.key.startswith("a")) for each in self.log[after + 1 :]]
            assert self.state.changes_after("a", after) == [each for each in below if each]


TestCoordinatorState = Model.TestCase
TestCoordinatorState.settings = settings(max_examples=150, stateful_step_count=30)


def test_lease_ids_are_not_reused_after_a_restart() -> None:
    first, second = CoordinatorState(epoch=1), CoordinatorState(epoch=2)
    given = {first.grant(1, 0) for _ in range(100)}
    assert given.isdisjoint(second.grant(1, 0) for _ in range(100))


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan")])
def test_a_lease_lasts_a_positive_time(ttl: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        CoordinatorState().grant(ttl, 0)


def test_a_transition_applies_only_to_the_state_it_was_made_for() -> None:
    state = CoordinatorState()
    first = state.decide([], [Put("a", b"1")], [], 0)
    second = state.decide([], [Put("b", b"2")], [], 0)
    assert first is not None
    assert second is not None
    state.apply(first)
    with pytest.raises(ValueError, match="does not follow"):
        state.apply(second)
