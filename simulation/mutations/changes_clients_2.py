"""Mutations of comparisons, extrema, conditions and the order of awaits in clients, part 2 (sections 4.3, 5.2)."""

from __future__ import annotations

from millwheel.client.watermark_streams import ReportStream
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "reports-refreshed-never",
    "G8",
    "reports are repeated from time to time",
    ReportStream,
    "if self._now() >= refresh_at:",
    "if False:",
    seeds=0,
    test="tests/authority/test_report_stream.py::test_reports_are_repeated_though_nothing_changes",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
