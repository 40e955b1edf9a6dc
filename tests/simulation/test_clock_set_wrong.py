"""A scenario that shows a mutation: its final state. The file of the scenario has its history."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.scenarios.all import SCENARIOS
from simulation.scenarios.play import play_all


@pytest.mark.guarantee("G1", section="4.3")
def test_unread_records_are_kept_though_a_clock_is_set_ahead(tmp_path: Path) -> None:
    """By the wrong wall clock, the record was two hours old. A stream without readers keeps records for an hour."""
    (played,) = play_all([one for one in SCENARIOS if one.name == "clock-set-wrong"], tmp_path)
    assert played.problems == []
    assert played.text.endswith("what was read of meals: pear #1, pear #2, pear #3\n")
