"""The programs of the benchmark of filters count the same records, by expressions and by a function."""

from __future__ import annotations

from bench.filtered import PROGRAMS, measure


def test_each_program_is_measured_once_a_run() -> None:
    """The benchmark raises an error if two programs count other records."""
    found = measure(records=2_000, rows=500, runs=2)
    assert found.keys() == PROGRAMS.keys()
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())
