"""Windows of keys with too many records for one machine, in two phases (section 8.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from millwheel.agg import Aggregator
from millwheel.sdk.keys import key, key_text
from millwheel.sdk.spreading import bytes_of
from millwheel.streams.declaring import Input, StepOptions, declare_step
from millwheel.streams.steps import Branch
from millwheel.windows.assigners import Assigner
from millwheel.windows.result import Row
from millwheel.windows.two_phase import MergePartials, key_without_shard, partial_aggregate

__all__ = ["declare_phases"]


def declare_phases(
    given: Input,
    name: str,
    windows: Assigner,
    aggregator: Aggregator[Any, Any],
    row: Row | None,
    shards: int,
    too_late: str | None,
    options: StepOptions,
) -> MergePartials[Any]:
    """Declare both computations of an aggregation. Returns the second one, whose name is ``name``."""
    extractor, partials = given.extractor, f"{name}-partials"
    bound: dict[type, Callable[[Any], str]] = {}

    def shard_of(value: Any) -> str:
        key_of = bound.get(type(value)) or bound.setdefault(type(value), key_text(extractor, type(value)))
        return f"{crc32(bytes_of(value)) % shards}|{key_of(value)}"

    first = partial_aggregate(windows, aggregator, partials, too_late)
    declare_step(f"{name}-partial", first, [given._replace(extractor=key(shard_of))], {}, options)
    merge: MergePartials[Any] = MergePartials(aggregator, name, row)
    of_parts = Input(given.topology, (Branch(partials),), first.outputs[partials], key(key_without_shard))
    later = options.copy()
    later.pop("late", None)
    declare_step(name, merge, [of_parts], {}, later)
    return merge
