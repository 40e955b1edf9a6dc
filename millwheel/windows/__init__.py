"""Ready-made windows, written with the public API alone (sections 2, 4.6, 5).

A window contains the records of one key whose timestamps lie within its bounds. When the low watermark has passed the
end of a window, the window produces a result, with the end as its timestamp::

    import millwheel as mw
    from millwheel import agg, windows  # or write mw.agg, mw.windows

    topology.add(
        windows.Aggregate(windows.tumbling(mw.seconds(1)), agg.count()),
        name="window-counter",
        inputs={"queries": mw.key("text")},
    )

The computation declares its output: the stream ``windows``, which carries ``windows.Result[int]``.
"""

from millwheel.windows.assigners import Assigner, SessionWindows, Window, session, sliding, tumbling
from millwheel.windows.computation import Aggregate
from millwheel.windows.early import Early, each_change, every
from millwheel.windows.result import Result
from millwheel.windows.sessions import SessionAggregate
from millwheel.windows.two_phase import two_phase

__all__ = [
    "Aggregate",
    "Assigner",
    "Early",
    "Result",
    "SessionAggregate",
    "SessionWindows",
    "Window",
    "each_change",
    "every",
    "session",
    "sliding",
    "tumbling",
    "two_phase",
]
