"""The interval core: one owned key interval as a pure state machine. Start reading in ``core.py``.

``state.py`` names the owners of its data. Five folders have what works on it:

- ``hooks/``: which key runs next, and how.
- ``commits/``: from a batch of hooks to the journal, and the checkpoints that keep the journal short.
- ``outbox/``: productions until their ACKs.
- ``cache/``: key states in memory, and the pages of growing states.
- ``panes/``: windows whose panes are kept by columns. Start reading in ``hooks/pane_gate.py``.
"""

from millwheel.worker.interval.core import IntervalCore
from millwheel.worker.interval.draining import DrainingCore
from millwheel.worker.interval.hook_meter import HookMeter, HookTime
from millwheel.worker.interval.setup import COLLECTS_FOR_US, columns_from
from millwheel.worker.interval.state import IntervalConfig, IntervalSettings

__all__ = [
    "COLLECTS_FOR_US",
    "DrainingCore",
    "HookMeter",
    "HookTime",
    "IntervalConfig",
    "IntervalCore",
    "IntervalSettings",
    "columns_from",
]
