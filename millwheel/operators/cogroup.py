"""Functions of all records of a key and window, from several streams; the window join is one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from millwheel.model.time import Timestamp
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer
from millwheel.windows.assigners import Assigner, SessionWindows, Window
from millwheel.windows.computation import result_time

__all__ = ["CoGroup", "pairs"]

G = TypeVar("G")


class CoGroup(Computation[Any, dict[tuple[int, int], G]], Generic[G]):
    """Calls a function with the records of a key and window, when the low watermark has passed the window's end.

    The function gets one list for each input, in the order of the records' encodings. The results have the window's end
    as timestamp. A late record whose windows have ended is counted and dropped.

    Args:
        windows: Assigns timestamps to windows.
        function: Returns the results of a window. At least one of its lists is not empty.
        output: The stream of the results.
        inputs: The types of the records by the names of the inputs, in the order of the function's arguments.
        result: The type of the results.

    Raises:
        UsageError: ``windows`` are session windows.
    """

    def __init__(
        self,
        windows: Assigner | SessionWindows,
        function: Callable[..., Iterable[Any]],
        output: str,
        inputs: Mapping[str, Any],
        result: Any,
    ) -> None:
        if isinstance(windows, SessionWindows):
            raise UsageError(
                "streams are joined in tumbling or sliding windows: sessions have bounds of their own on each side"
            )
        self.windows = windows
        self.function = function
        self.output = output
        self.places = {name: place for place, name in enumerate(inputs)}
        self.result = result
        lists = tuple(list[kind] for kind in inputs.values())  # type: ignore[valid-type]
        # The type argument for G, a list of records for each input. It defines the type of the state.
        self.__orig_class__ = CoGroup[tuple[lists]]  # type: ignore[valid-type]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[dict[tuple[int, int], G]], record: Record[Any]) -> None:
        """Keep the record in its windows that have not ended."""
        kept: dict[tuple[int, int], Any] = ctx.state
        taken, late = False, record.late
        for window in self.windows.windows_of(record.timestamp):
            if late and window.end <= ctx.watermark:  # only a late record is in a window that has ended
                if window in kept:
                    # Its timer was given up, or is due. Set again, it produces the results of the records before.
                    ctx.set_timer(Timestamp(window.end), window.tag)
                continue
            taken = True
            groups = kept.get(window)
            if groups is None:
                groups = kept[window.bounds] = tuple([] for _ in self.places)
                ctx.set_timer(Timestamp(window.end), window.tag)
            groups[self.places[record.stream]].append(record.value)
        if not taken and record.late:
            ctx.count_dropped()

    def process_timer(self, ctx: Context[dict[tuple[int, int], G]], timer: Timer) -> None:
        """Produce the results of a window."""
        window = Window.from_tag(timer.tag)
        groups: Any = ctx.state.pop(window)
        for result in self.function(*(sorted(group, key=rank_bytes) for group in groups)):
            ctx.produce(self.output, result, timestamp=result_time(window))
        if not ctx.state:
            del ctx.state


def pairs(
    function: Callable[[Any, Any], Any], *, keep_left: bool = False, keep_right: bool = False
) -> Callable[[list[Any], list[Any]], Iterator[Any]]:
    """The function of a join: it yields the results of all pairs of two lists.

    Each result is produced before the next pair is joined. So the results are never in memory together, and a function
    may change and return its argument.

    Args:
        function: Returns the result of a pair. In an outer join, the missing one is None.
        keep_left: Whether left records without a partner are joined with None.
        keep_right: Whether right records without a partner are joined with None.
    """

    def joined(left: list[Any], right: list[Any]) -> Iterator[Any]:
        if not right and keep_left:
            right = [None]
        if not left and keep_right:
            left = [None]
        return (function(one, other) for one in left for other in right)

    return joined
