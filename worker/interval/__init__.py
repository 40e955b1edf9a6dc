"""The interval core: one owned key interval as a pure state machine. Start reading in ``core.py``."""

from millwheel.worker.interval.core import IntervalCore
from millwheel.worker.interval.draining import DrainingCore
from millwheel.worker.interval.hook_times import HookMeter, HookTime
from millwheel.worker.interval.state import IntervalConfig, IntervalSettings

__all__ = [
    "DrainingCore",
    "HookMeter",
    "HookTime",
    "IntervalConfig",
    "IntervalCore",
    "IntervalSettings",
]
