"""What decides in the comparison with other systems: the best run, and what the table says of failed and wrong ones."""

from __future__ import annotations

import pytest

from bench.peers.reporting import Measured, table
from bench.peers.running import PeerRun

SLOW = PeerRun(records_per_s=1_000, first_result_s=2.0, peak_mb=900, cpu_s=3.0)
FAST = PeerRun(records_per_s=2_500, first_result_s=4.0, peak_mb=1_200, cpu_s=2.5)
FAILED = PeerRun(records_per_s=9_000, error="it has ended | here")


def cells(measured: Measured) -> list[str]:
    """What the table has of the only system in it."""
    last = table([measured], 1_000_000).splitlines()[-1]
    return [cell.strip() for cell in last.strip("|").split("|")]


def test_the_best_run_is_the_fastest_without_an_error() -> None:
    assert Measured("a", "", runs=[SLOW, FAST, FAILED]).best is FAST
    assert Measured("a", "", runs=[FAILED]).best is Measured("a", "").best is None


def test_a_line_has_the_best_run_beside_all_rates() -> None:
    found = cells(Measured("a", "exactly once", {"a": "1.2"}, runs=[SLOW, FAST]))
    assert found == ["a", "exactly once", "2,500", "1,000 · 2,500", "4.0 s", "2.5 µs", "1,200 MB", "right", "a 1.2"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (PeerRun(records_per_s=1, lost=3), "3 lost"),
        (PeerRun(records_per_s=9_999, twice=1, results_twice=2), "1 twice, 2 results twice"),
        (FAILED, "it has ended / here"),
    ],
)
def test_a_line_says_what_is_wrong_with_any_run(more: PeerRun, said: str) -> None:
    assert not more.right
    assert cells(Measured("a", "", runs=[SLOW, more]))[7] == said


def test_a_line_says_why_a_system_cannot_be_run() -> None:
    found = cells(Measured("a", "exactly once", missing="it needs Python 3.12"))
    assert found[2:8] == ["–", "–", "–", "–", "–", "it needs Python 3.12"]


def test_settings_of_default_runs_are_not_shared() -> None:
    one, other = Measured("a", ""), Measured("b", "")
    one.runs.append(SLOW)
    assert other.runs == []
