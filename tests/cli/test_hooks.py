"""What commands show of hooks."""

from __future__ import annotations

import pytest

from millwheel.cli.hooks import HOOK_COLUMNS, hook_cells
from millwheel.rpc.v1.inspection_pb2 import HookTime


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(4e-6, "2.0 us"), (0.0019, "950.0 us"), (0.09, "45 ms"), (2.0001, "1.0 s"), (150.0, "1 min 15 s")],
)
def test_a_mean_is_shown_as_people_read_it(seconds: float, shown: str) -> None:
    cells = hook_cells(HookTime(hook="process_record", calls=2, seconds=seconds))
    assert cells[HOOK_COLUMNS.index("mean")] == shown
