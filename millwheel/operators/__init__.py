"""Ready-made computations beside the windows: joins, complete groups, running aggregates (sections 2, 4.6)."""

from millwheel.operators.broadcast import COPIES, ROWS, BroadcastAsOfJoin, BroadcastJoin, BroadcastTable
from millwheel.operators.count_windows import CountWindow
from millwheel.operators.enriching import Enrich
from millwheel.operators.groups import Complete, Deduplicate, RunningAggregate
from millwheel.operators.joins import LEFT, RIGHT, IntervalJoin, TemporalJoin
from millwheel.operators.ordered import LIMIT, in_order
from millwheel.operators.tables import Latest, LatestJoin
from millwheel.operators.timeouts import ClockTimeout, Timeout
from millwheel.operators.updating import Update
from millwheel.operators.window_join import WindowJoin

__all__ = [
    "COPIES",
    "LEFT",
    "LIMIT",
    "RIGHT",
    "ROWS",
    "BroadcastAsOfJoin",
    "BroadcastJoin",
    "BroadcastTable",
    "ClockTimeout",
    "Complete",
    "CountWindow",
    "Deduplicate",
    "Enrich",
    "IntervalJoin",
    "Latest",
    "LatestJoin",
    "RunningAggregate",
    "TemporalJoin",
    "Timeout",
    "Update",
    "WindowJoin",
    "in_order",
]
