"""The join of two streams by key and window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.model.time import Timestamp
from millwheel.operators.joins import LEFT
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer
from millwheel.windows.assigners import Assigner, SessionWindows, Window
from millwheel.windows.computation import result_time

__all__ = ["WindowJoin"]

L = TypeVar("L")
R = TypeVar("R")

_encode: Final = msgspec.msgpack.Encoder(enc_hook=str, order="deterministic").encode


class Sides(msgspec.Struct, Generic[L, R], array_like=True):
    """The records of one window of a key."""

    left: list[L] = msgspec.field(default_factory=list)
    right: list[R] = msgspec.field(default_factory=list)


class WindowJoin(Computation[Any, dict[tuple[int, int], Sides[L, R]]], Generic[L, R]):
    """Joins each two records of a key and window, when the low watermark has passed the window's end.

    The results have the window's end as timestamp, and come in the order of the records' encodings. A late record whose
    windows have ended is counted and dropped.

    Args:
        windows: Assigns timestamps to windows.
        function: Returns the result of a pair. In an outer join, the missing one is None.
        output: The stream of the results.
        types: The types of the left records, the right records and the results.
        keep_left: Whether left records without a partner are produced.
        keep_right: Whether right records without a partner are produced.

    Raises:
        UsageError: ``windows`` are session windows.
    """

    def __init__(
        self,
        windows: Assigner | SessionWindows,
        function: Callable[[Any, Any], Any],
        output: str,
        types: tuple[Any, Any, Any],
        *,
        keep_left: bool = False,
        keep_right: bool = False,
    ) -> None:
        if isinstance(windows, SessionWindows):
            raise UsageError(
                "a window join takes tumbling or sliding windows: sessions have bounds of their own on each side"
            )
        left, right, self.result = types
        self.windows = windows
        self.function = function
        self.output = output
        self.keep_left = keep_left
        self.keep_right = keep_right
        # The type arguments for L and R. They define the type of the state.
        self.__orig_class__ = WindowJoin[left, right]  # type: ignore[valid-type]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[dict[tuple[int, int], Sides[L, R]]], record: Record[Any]) -> None:
        """Keep the record in its windows that have not ended."""
        kept, late = ctx.state, record.late
        taken = False
        for window in self.windows.windows_of(record.timestamp):
            if late and window.end <= ctx.watermark:
                continue
            taken = True
            sides = kept.get(window)
            if sides is None:
                sides = kept[window.bounds] = Sides()
                ctx.set_timer(Timestamp(window.end), window.tag)
            (sides.left if record.stream == LEFT else sides.right).append(record.value)
        if not taken and record.late:
            ctx.count_dropped()

    def process_timer(self, ctx: Context[dict[tuple[int, int], Sides[L, R]]], timer: Timer) -> None:
        """Produce the pairs of a window."""
        window = Window.from_tag(timer.tag)
        sides, at = ctx.state.pop(window), result_time(window)
        left: list[Any] = sorted(sides.left, key=_encode)
        right: list[Any] = sorted(sides.right, key=_encode)
        if not right and self.keep_left:
            right = [None]
        if not left and self.keep_right:
            left = [None]
        for one in left:
            for other in right:
                ctx.produce(self.output, self.function(one, other), timestamp=at)
        if not ctx.state:
            del ctx.state
