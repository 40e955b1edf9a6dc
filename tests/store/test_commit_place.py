"""Where small groups are committed, by the times of syncs."""

from __future__ import annotations

import pytest

from millwheel.store.commit_place import CommitPlace


def in_place(sync: float, work: float, groups: int = 2_000) -> float:
    """The share of groups that are committed in place, if a sync takes so long, and the loop works so long between."""
    place, now, count = CommitPlace(), 100.0, 0
    for _ in range(groups):
        now += work
        if place.allows(now):
            count += 1
            now += sync
            place.took(sync)
    return count / groups


def test_fast_syncs_are_always_in_place() -> None:
    assert in_place(0.000_1, 0.0) == 1.0
    assert in_place(0.000_29, 0.000_1) == 1.0


@pytest.mark.parametrize("sync", [0.000_4, 0.000_9])
def test_short_syncs_are_in_place_while_the_loop_has_time(sync: float) -> None:
    assert in_place(sync, 3.1 * sync) == 1.0
    assert in_place(sync, 0.05) == 1.0


@pytest.mark.parametrize("sync", [0.000_4, 0.000_9])
@pytest.mark.parametrize("work", [0.000_1, 0.000_2])
def test_short_syncs_take_a_quarter_of_a_busy_loops_time(sync: float, work: float) -> None:
    share = in_place(sync, work)
    assert 0.03 < share < 1.0
    busy = share * sync / (share * sync + work)
    assert busy < 0.3


@pytest.mark.parametrize("work", [0.000_1, 0.1])
def test_slow_syncs_are_for_the_thread_but_some_that_measure(work: float) -> None:
    assert 0.02 < in_place(0.002, work) < 0.05


def test_a_single_slow_sync_changes_nothing() -> None:
    place = CommitPlace()
    for number in range(100):
        assert place.allows(number * 0.001)
        place.took(0.05 if number % 10 == 0 else 0.000_1)


def test_fast_syncs_leave_no_debt() -> None:
    """Ten minutes of fast syncs took more than the loop's share, and then kept short ones off the loop for longer."""
    place, now = CommitPlace(), 100.0
    allowed = 0
    for sync, work, groups in ((0.000_5, 0.05, 100), (0.000_25, 0.000_3, 100_000), (0.000_5, 0.05, 100)):
        allowed = 0
        for _ in range(groups):
            now += work
            if place.allows(now):
                allowed += 1
                now += sync
                place.took(sync)
    assert allowed == 100


def test_a_disk_that_gets_fast_again_is_noticed() -> None:
    place = CommitPlace()
    for _ in range(9):
        place.took(0.01)
    allowed = 0
    for number in range(32 * 6):
        if place.allows(number * 0.001):
            allowed += 1
            place.took(0.000_1)
    assert place.allows(1.0)
    assert allowed >= 5
