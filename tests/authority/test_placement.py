"""Which candidate competes for which authority shard, and which gives one up (7.2). The time is a parameter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.authority.placement import ElectionView, PlacementDelays, PlacementPolicy

DELAYS = PlacementDelays(patience=0.5, settle=10.0, pause=1.0, backing_off=30.0)
NAMES = ("a", "b", "c")


def view(*candidates: str, **leaders: str) -> ElectionView:
    """``s0="a"``: a was elected for shard 0."""
    return ElectionView(frozenset(candidates), {int(shard[1:]): name for shard, name in leaders.items()})


def test_two_candidates_that_start_together_take_one_shard_each() -> None:
    both = view("a", "b")
    chosen = {name: PlacementPolicy(name, 2, DELAYS).decide(both, (), 0.0).compete for name in ("a", "b")}
    assert sorted(shard for shards in chosen.values() for shard in shards) == [0, 1]
    assert all(len(shards) == 1 for shards in chosen.values())


def test_a_lone_candidate_takes_all_after_waiting_for_others() -> None:
    alone = PlacementPolicy("a", 2, DELAYS)
    assert alone.decide(view("a"), (), 0.0).compete == (0,)
    assert alone.decide(view("a", s0="a"), (0,), 0.1).compete == ()
    assert alone.decide(view("a", s0="a"), (0,), 0.5).compete == (1,)


def test_a_dead_but_listed_processes_shard_is_taken_in_time() -> None:
    left = PlacementPolicy("b", 2, DELAYS)
    assert left.decide(view("a", "b", s0="a", s1="b"), (1,), 0.0).compete == ()
    assert left.decide(view("a", "b", s1="b"), (1,), 3.0).compete == (), "the one with fewer goes first"
    assert left.decide(view("a", "b", s1="b"), (1,), 3.5).compete == (0,)


def test_shards_are_returned_to_one_that_is_back_and_stays() -> None:
    both = view("a", "b", s0="a", s1="a")
    full = PlacementPolicy("a", 2, DELAYS)
    assert full.decide(both, (0, 1), 0.0).give_up == ()
    assert full.decide(both, (0, 1), 9.9).give_up == ()
    assert full.decide(both, (0, 1), 10.0).give_up == (1,)
    free = view("a", "b", s0="a")
    assert full.decide(free, (0,), 10.1).compete == (), "not by the one that gave it up"
    assert PlacementPolicy("b", 2, DELAYS).decide(free, (), 10.1).compete == (1,)


def test_one_shard_more_than_others_is_not_uneven() -> None:
    """Moving the one shard would only make another server uneven. Candidates wait for a difference of two."""
    full = PlacementPolicy("a", 3, DELAYS)
    assert full.decide(view("a", "b", s0="a", s1="a", s2="b"), (0, 1), 0.0).give_up == ()
    assert full.decide(view("a", "b", s0="a", s1="a", s2="b"), (0, 1), 5.0).give_up == ()
    assert full.decide(view("a", "b", s0="a", s1="a", s2="a"), (0, 1, 2), 11.0).give_up == ()


def test_unevenness_that_passes_gives_nothing_up() -> None:
    full = PlacementPolicy("a", 2, DELAYS)
    full.decide(view("a", "b", s0="a", s1="a"), (0, 1), 0.0)
    full.decide(view("a", s0="a", s1="a"), (0, 1), 5.0)
    assert full.decide(view("a", "b", s0="a", s1="a"), (0, 1), 11.0).give_up == ()


def test_one_that_failed_to_open_a_shard_retries_only_if_alone() -> None:
    backing_off = PlacementPolicy("a", 1, DELAYS)
    backing_off.decide(view("a", "b"), (), 0.0)
    backing_off.failed(0, 0.0)
    with_other = backing_off.decide(view("b"), (), 0.4)
    assert with_other.compete == ()
    assert not with_other.present, "no candidate waits for it, or gives anything up to it"
    assert backing_off.decide(view(), (), 0.9).compete == ()
    assert backing_off.decide(view(), (), 1.0).compete == (0,)
    assert backing_off.decide(view(), (), 30.0).present


@pytest.mark.guarantee("G8", section="7.2")
@given(
    shards=st.integers(1, 7),
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    taken=st.dictionaries(st.integers(0, 6), st.sampled_from([*NAMES, "dead"]), max_size=7),
)
@settings(max_examples=200)
def test_every_shard_gets_a_server_and_loads_end_within_one(
    shards: int, names: list[str], taken: dict[int, str]
) -> None:
    """Elections may be in any state. Candidates look at them in turn, and the first that competes is elected."""
    policies = {name: PlacementPolicy(name, shards, DELAYS) for name in names}
    leaders = {shard: name for shard, name in taken.items() if shard < shards and name in names}
    now = 0.0
    for _ in range(400):
        for name in names:
            serving = tuple(shard for shard, leader in leaders.items() if leader == name)
            decision = policies[name].decide(ElectionView(frozenset(names), dict(leaders)), serving, now)
            for shard in decision.give_up:
                assert leaders.pop(shard) == name
            for shard in decision.compete:
                assert leaders.setdefault(shard, name) == name, "no candidate stands for what another has"
        now += 0.25
        if now > 3.0 + 0.5 * len(names):
            assert len([shard for shard in range(shards) if shard not in leaders]) <= shards // 2, "most are served"
    loads = [list(leaders.values()).count(name) for name in names]
    assert sum(loads) == shards
    assert max(loads) - min(loads) <= 1
