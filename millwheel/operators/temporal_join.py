"""The join of two streams by key with the value as of a time.

The key of both sides is the same. ``record.stream`` says the side, because a join may read one stream twice.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.model.time import MAX_TIMESTAMP, TimeInt, Timestamp
from millwheel.operators.joins import LEFT
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer

__all__ = ["TemporalJoin"]

L = TypeVar("L")
R = TypeVar("R")


class Versions(msgspec.Struct, Generic[L, R], array_like=True):
    """The left records of a key that wait for their time, and the right values by the time from which they hold."""

    left: list[tuple[TimeInt, L]] = msgspec.field(default_factory=list)
    right: list[tuple[TimeInt, R]] = msgspec.field(default_factory=list)


class TemporalJoin(Computation[Any, Versions[L, R]], Generic[L, R]):
    """Joins each left record with the right value of its key as of its timestamp.

    That is the right record with the largest timestamp up to its own. The result is produced when the low watermark has
    passed the left record. So it depends on the timestamps alone, and not on the order in which records arrive. A right
    value is kept until a newer one holds for all left records to come.

    Args:
        function: Returns the result of a left value and the right one, or None if there is none.
        output: The stream of the results. They have the timestamps of the left records.
        types: The types of the left records, the right records and the results.
        keep_left: Whether a left record without a right value is produced.
    """

    def __init__(
        self,
        function: Callable[[L, R | None], Any],
        output: str,
        types: tuple[Any, Any, Any],
        *,
        keep_left: bool = False,
    ) -> None:
        left, right, self.result = types
        self.function = function
        self.output = output
        self.keep_left = keep_left
        # The type arguments for L and R. They define the type of the state.
        self.__orig_class__ = TemporalJoin[left, right]  # type: ignore[valid-type]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[Versions[L, R]], record: Record[Any]) -> None:
        """Keep a left record until its time, and a right one from its time on."""
        at, versions = record.timestamp, ctx.state
        if record.stream == LEFT:
            new = at, record.value
            versions.left.insert(bisect_left(versions.left, (at + 1,)), new)
            if versions.left[0] is new:
                self._wake(ctx, versions)
            return
        right, new = versions.right, (at, record.value)
        place = bisect_left(right, (at + 1,))
        if place and right[place - 1][0] == at:
            insort(right, new, key=_by_time_and_bytes)
        else:
            right.insert(place, new)
        self._prune(ctx, versions)

    def process_timer(self, ctx: Context[Versions[L, R]], timer: Timer) -> None:
        """Produce the results of the left records whose time has come."""
        versions = ctx.state
        ready = bisect_left(versions.left, (timer.timestamp,))
        for time, value in versions.left[:ready]:
            index = bisect_left(versions.right, (time + 1,))
            if index or self.keep_left:
                result = self.function(value, versions.right[index - 1][1] if index else None)
                ctx.produce(self.output, result, timestamp=Timestamp(time))
        del versions.left[:ready]
        if versions.left:
            self._wake(ctx, versions)
        self._prune(ctx, versions)

    def _wake(self, ctx: Context[Any], versions: Versions[L, R]) -> None:
        time = versions.left[0][0]
        ctx.set_timer(Timestamp(min(time + 1, MAX_TIMESTAMP)), hold=Timestamp(time))

    def _prune(self, ctx: Context[Any], versions: Versions[L, R]) -> None:
        """Drop right values that hold for no left record to come, except late ones."""
        right = versions.right
        if len(right) > 1:
            earliest = min([ctx.watermark, *(time for time, _ in versions.left[:1])])
            del right[: max(0, bisect_left(right, (earliest + 1,)) - 1)]


def _by_time_and_bytes(kept: tuple[int, Any]) -> tuple[int, bytes]:
    return kept[0], rank_bytes(kept[1])
