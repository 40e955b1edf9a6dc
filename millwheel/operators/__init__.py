"""Ready-made computations beside the windows: joins, complete groups, running aggregates (sections 2, 4.6)."""

from millwheel.operators.broadcast import COPIES, ROWS, BroadcastAsOfJoin, BroadcastJoin, BroadcastTable
from millwheel.operators.caching import cached
from millwheel.operators.cogroup import CoGroup, GroupInput
from millwheel.operators.count_windows import CountWindow
from millwheel.operators.enriching import Enrich
from millwheel.operators.groups import Complete, Deduplicate, RunningAggregate
from millwheel.operators.joins import LEFT, RIGHT, IntervalJoin
from millwheel.operators.ordered import LIMIT, in_order
from millwheel.operators.tables import Change, Changes, Latest, LatestJoin, TableJoin
from millwheel.operators.temporal_join import TemporalJoin
from millwheel.operators.throttle import Throttle
from millwheel.operators.timeouts import ClockTimeout, Timeout
from millwheel.operators.until import Until
from millwheel.operators.updating import ExpiringUpdate, Update
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
    "Change",
    "Changes",
    "ClockTimeout",
    "CoGroup",
    "Complete",
    "CountWindow",
    "Deduplicate",
    "Enrich",
    "ExpiringUpdate",
    "GroupInput",
    "IntervalJoin",
    "Latest",
    "LatestJoin",
    "RunningAggregate",
    "TableJoin",
    "TemporalJoin",
    "Throttle",
    "Timeout",
    "Until",
    "Update",
    "WindowJoin",
    "cached",
    "in_order",
]
