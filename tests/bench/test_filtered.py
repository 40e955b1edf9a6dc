"""The programs of the benchmarks of filters and stages do the same, in each of their forms."""

from __future__ import annotations

from bench import filtered, staged


def test_each_program_is_measured_once_a_run() -> None:
    """The benchmark raises an error if two programs count other records."""
    found = filtered.measure(records=2_000, rows=500, runs=2)
    assert found.keys() == filtered.PROGRAMS.keys()
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())


def test_each_pair_of_stages_is_measured_with_rows_and_runs() -> None:
    """The benchmark raises an error if two of them have other numbers of results."""
    found = staged.measure(records=2_000, rows=500, runs=1)
    assert len(found) == 2 * len(staged.PROGRAMS)
    assert all(min(times) > 0 for times in found.values())
