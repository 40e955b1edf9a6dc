"""Ready-made windows and aggregates, written with the same public API as any computation (sections 2, 4.6, 5).

A window gathers the records of a key whose timestamps lie in it; its result is produced when the low
watermark has passed its end, with the end as timestamp::

    import millwheel as mw
    from millwheel import windows  # or write mw.windows

    topology.add(
        windows.Aggregate(windows.tumbling(mw.seconds(1)), windows.count()),
        name="window-counter",
        inputs={"queries": mw.key("text")},
    )

The computation declares its output: the stream ``windows``, which carries ``windows.Result[int]``.
"""

from millwheel.windows.aggregates import Aggregator, collect, count, largest, mean, smallest, total
from millwheel.windows.assigners import Assigner, SessionWindows, Window, session, sliding, tumbling
from millwheel.windows.computation import Aggregate
from millwheel.windows.result import Result
from millwheel.windows.sessions import SessionAggregate
from millwheel.windows.two_phase import two_phase

__all__ = [
    "Aggregate",
    "Aggregator",
    "Assigner",
    "Result",
    "SessionAggregate",
    "SessionWindows",
    "Window",
    "collect",
    "count",
    "largest",
    "mean",
    "session",
    "sliding",
    "smallest",
    "total",
    "tumbling",
    "two_phase",
]
