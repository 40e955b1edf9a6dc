"""What grows is seen to grow, and what only swings is not."""

from __future__ import annotations

import math

import pytest

from tests.faults.flatness import FLOORS, judge

TIMES = [5.0 * number for number in range(360)]
"""Half an hour."""


@pytest.mark.parametrize("kind", FLOORS)
def test_what_swings_or_only_warms_up_is_flat(kind: str) -> None:
    swings = [1_000 + 300 * math.sin(at / 40) for at in TIMES]
    warms = [min(1_000.0, 100 + at * 5) for at in TIMES]
    assert judge(f"worker 1 {kind}", TIMES, swings).flat
    assert judge(f"worker 1 {kind}", TIMES, warms).flat


@pytest.mark.parametrize("kind", FLOORS)
def test_what_grows_all_the_time_is_not_flat(kind: str) -> None:
    doubled = [3 * FLOORS[kind] * (1 + at / TIMES[-1]) for at in TIMES]
    verdict = judge(f"worker 1 {kind}", TIMES, doubled)
    assert not verdict.flat
    assert verdict.an_hour == pytest.approx(6 * FLOORS[kind], rel=0.01)


def test_too_few_samples_give_no_verdict() -> None:
    with pytest.raises(ValueError, match="only 3 samples of worker 1 tasks"):
        judge("worker 1 tasks", [0.0, 5.0, 10.0, 15.0], [1.0, 1.0, 1.0, 1.0])
