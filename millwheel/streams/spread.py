"""Windows of keys with too many records for one machine, in two phases (section 8.4)."""

from __future__ import annotations

from typing import Any, TypedDict
from zlib import crc32

from millwheel.agg import Aggregator
from millwheel.model.time import Duration
from millwheel.sdk.keys import key
from millwheel.sdk.spreading import bytes_reader
from millwheel.streams.declaring import Input, StepOptions, declare_step
from millwheel.streams.derivations import derived_key, text_key_reader
from millwheel.streams.steps import Branch
from millwheel.windows.assigners import Assigner, SessionWindows
from millwheel.windows.computation import Aggregate
from millwheel.windows.early import Early
from millwheel.windows.result import Row
from millwheel.windows.spread_sessions import MergeSessions, SessionParts
from millwheel.windows.two_phase import MergePartials, check_spread, key_without_shard, partial_aggregate

__all__ = ["declare_phases"]


Merge = MergePartials[Any] | MergeSessions[Any]


class _Kept(TypedDict):
    """What both phases do before and after the end of a window."""

    early: Early | None
    allowed_lateness: Duration


def declare_phases(
    given: Input,
    name: str,
    windows: Assigner | SessionWindows,
    aggregator: Aggregator[Any, Any],
    row: Row | None,
    shards: int,
    options: StepOptions,
    *,
    early: Early | None,
    allowed_lateness: Duration,
    too_late: str | None,
) -> Merge:
    """Declare both computations of an aggregation. Returns the second one, whose name is ``name``.

    Raises:
        UsageError: ``shards`` is not positive. Or each record would have a result. Or both streams have one name.
    """
    check_spread(f"aggregate({name!r}, spread={shards})", shards, early, name, too_late)
    kept = _Kept(early=early, allowed_lateness=allowed_lateness)
    partials, read = f"{name}-partials", text_key_reader(given.extractor)
    encode = bytes_reader(given.topology, [branch.stream for branch in given.branches])

    def shard_of(value: Any) -> str:
        return f"{crc32(encode(value)) % shards}|{read(value)}"

    first: Aggregate[Any]
    merge: Merge
    if isinstance(windows, SessionWindows):
        first = SessionParts(windows, aggregator, partials, too_late=too_late, **kept)
        merge = MergeSessions(windows, aggregator, output=name, row=row, **kept)
    else:
        first = partial_aggregate(windows, aggregator, partials, too_late=too_late, **kept)
        merge = MergePartials(windows, aggregator, output=name, row=row, **kept)
    sharded = derived_key(shard_of, given.extractor, given.record_type, f"in {shards} shards")
    declare_step(f"{name}-partial", first, [given._replace(extractor=sharded)], {}, options)
    of_parts = Input(given.topology, (Branch(partials),), first.outputs[partials], key(key_without_shard))
    later = options.copy()
    later.pop("late", None)
    declare_step(name, merge, [of_parts], {}, later)
    return merge
