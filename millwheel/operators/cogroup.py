"""Functions of all records of a key and window, from several streams; the window join is one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from millwheel.model.time import Timestamp
from millwheel.operators.results import each_of
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer
from millwheel.windows.assigners import Assigner, SessionWindows, Window
from millwheel.windows.computation import result_time

__all__ = ["CoGroup", "GroupInput", "pairs"]

G = TypeVar("G")


class GroupInput(NamedTuple):
    """An input of a :class:`CoGroup`: its name, the type of its records, and the name of its list in the state."""

    name: str
    type: Any
    stored: str


class CoGroup(Computation[Any, dict[tuple[int, int], G]], Generic[G]):
    """Calls a function with the records of a key and window, when the low watermark has passed the window's end.

    The function gets one list for each input, in the order of the records' encodings. The results have the window's end
    as timestamp. A late record whose windows have ended is counted and dropped.

    Args:
        windows: Assigns timestamps to windows.
        function: Returns the results of a window. At least one of its lists is not empty.
        output: The stream of the results.
        inputs: The inputs, in the order of the function's arguments.
        result: The type of the results.

    Raises:
        UsageError: ``windows`` are session windows.
    """

    def __init__(
        self,
        windows: Assigner | SessionWindows,
        function: Callable[..., Iterable[Any]],
        output: str,
        inputs: Sequence[GroupInput],
        result: Any,
    ) -> None:
        if isinstance(windows, SessionWindows):
            raise UsageError(
                "streams are joined in tumbling or sliding windows: sessions have bounds of their own on each side"
            )
        self.windows = windows
        self.function = function
        self.output = output
        self._list_of = {one.name: attrgetter(f"of_{place}") for place, one in enumerate(inputs)}
        self._windows_of = windows.windows_of
        self.result = result
        self._new = _groups_type(inputs)
        # The type argument for G. It defines the type of the state.
        self.__orig_class__ = CoGroup[self._new]  # type: ignore[name-defined]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[dict[tuple[int, int], G]], record: Record[Any]) -> None:
        """Keep the record in its windows that have not ended."""
        kept: dict[tuple[int, int], Any] = ctx.state
        taken, late = False, record.late
        for window in self._windows_of(record.timestamp):
            if late and window.end <= ctx.watermark:  # only a late record is in a window that has ended
                if window in kept:
                    # Its timer is due, or was given up while the state could not be read. Set again, it fires at once.
                    ctx.set_timer(Timestamp(window.end), window.tag)
                continue
            taken = True
            groups = kept.get(window)
            if groups is None:
                groups = kept[window.bounds] = self._new()
                ctx.set_timer(Timestamp(window.end), window.tag)
            self._list_of[record.stream](groups).append(record.value)
        if not taken and record.late:
            ctx.count_dropped()

    def process_timer(self, ctx: Context[dict[tuple[int, int], G]], timer: Timer) -> None:
        """Produce the results of a window."""
        window = Window.from_tag(timer.tag)
        groups: Any = ctx.state.pop(window)
        lists = [sorted(group, key=rank_bytes) if len(group) > 1 else group for group in astuple(groups)]
        output, at = self.output, result_time(window)
        for result in each_of(self.function(*lists), self.function):
            ctx.produce(output, result, timestamp=at)
        if not ctx.state:
            del ctx.state

    def _given_up(self, ctx: Context[dict[tuple[int, int], G]], timer: Timer) -> None:
        ctx.state.pop(Window.from_tag(timer.tag), None)
        if not ctx.state:
            del ctx.state


def _groups_type(inputs: Sequence[GroupInput]) -> Any:
    """A struct with the list of each input. It is stored by the inputs' streams: an update may exchange them."""
    empty: Any = msgspec.field(default_factory=list)
    fields: list[Any] = [(f"of_{place}", list[one.type], empty) for place, one in enumerate(inputs)]  # type: ignore[name-defined]
    return msgspec.defstruct("Groups", fields, rename={f"of_{place}": one.stored for place, one in enumerate(inputs)})


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
