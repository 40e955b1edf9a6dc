"""The interval core: one owned key interval as a pure state machine (design §4). Start reading at ``core.py``."""

from millwheel.worker.interval.core import IntervalCore, Phase
from millwheel.worker.interval.hook_times import HookMeter, HookTime
from millwheel.worker.interval.leaving import LeavingCore
from millwheel.worker.interval.state import Counts, IntervalConfig, Settings

__all__ = ["Counts", "HookMeter", "HookTime", "IntervalConfig", "IntervalCore", "LeavingCore", "Phase", "Settings"]
