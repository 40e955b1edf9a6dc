"""When a shard appends: soon for a call, seldom on a slow store, and now and then to find out that it was deposed."""

from __future__ import annotations

import pytest

from millwheel.authority.pace import AppendPace, PaceSettings

SETTINGS = PaceSettings(coalesce=20, rest=2.0, longest_rest=500, idle=100, verify=5_000)


def pace() -> AppendPace:
    """A core that has appended for 50 microseconds, from the time 1,000 on."""
    made = AppendPace(SETTINGS)
    assert made.due_at is None
    made.want(1_000, urgent=True, dirty=True)
    made.begin(1_000)
    made.end(1_050)
    return made


def test_urgent_changes_are_due_at_once_others_after_a_delay() -> None:
    made = AppendPace(SETTINGS)
    made.want(10, urgent=False, dirty=True)
    made.want(50, urgent=False, dirty=True)
    assert (made.due_at, made.verifies) == (110, False)
    made.want(60, urgent=True, dirty=True)
    assert made.due_at == 60


def test_a_broadcast_waits_until_the_rest_ends_a_call_does_not() -> None:
    made = pace()
    made.want(1_060, urgent=True, dirty=True)
    assert made.due_at == 1_150, "twice as long as the append took"
    made.ask()
    assert made.due_at == 1_060


def test_an_append_starts_late_enough_for_changes_to_share_it() -> None:
    made = AppendPace(SETTINGS)
    made.want(1_000, urgent=True, dirty=True)
    made.begin(1_000)
    made.end(1_001)
    made.ask()
    made.want(1_002, urgent=True, dirty=True)
    assert made.due_at == 1_020


def test_no_rest_is_longer_than_the_longest() -> None:
    made = AppendPace(SETTINGS)
    made.want(0, urgent=True, dirty=True)
    made.begin(0)
    made.end(10_000)
    made.want(10_000, urgent=True, dirty=True)
    assert made.due_at == 10_500


@pytest.mark.guarantee("G3")
def test_a_shard_without_changes_appends_now_and_then() -> None:
    made = pace()
    made.want(1_060, urgent=False, dirty=False)
    assert (made.due_at, made.verifies) == (6_050, True)
    made.begin(6_050)
    assert made.due_at == 11_050
