"""Calls for many records that grow, as in a worker: other cores of tests have no limit by time."""

from __future__ import annotations

import pytest

from millwheel.worker.interval import hook_meter
from millwheel.worker.interval.hook_meter import BatchTime


def let_calls_grow(patches: pytest.MonkeyPatch) -> None:
    """Measure the calls of the intervals that are made from now on. Each takes no time."""
    patches.setattr(hook_meter, "BatchTime", lambda: BatchTime(0.01))
