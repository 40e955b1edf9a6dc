"""Functions of all records of a key and window, from several streams. The window join builds on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from millwheel.model.time import Duration, TimeInt, Timestamp
from millwheel.operators.results import check_too_late, each_of
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer
from millwheel.windows.assigners import Assigner, SessionWindows, Window
from millwheel.windows.computation import PURGE, drop_record, purge_time, result_time

__all__ = ["CoGroup", "GroupInput"]

G = TypeVar("G")
_NO_LATENESS: Final = Duration(0)
_PRODUCED: Final = "/produced"
"""The name in the state of whether a window has had its results. No stream has this name."""


class GroupInput(NamedTuple):
    """An input of a :class:`CoGroup`: its name, the type of its records, and the name of its list in the state."""

    name: str
    type: Any
    stored: str


class CoGroup(Computation[Any, dict[tuple[TimeInt, TimeInt], G]], Generic[G]):
    """Calls a function with the records of a key and window, when the low watermark has passed the window's end.

    The function gets one list for each input, in the order of the records' encodings. The results have the window's end
    as timestamp.

    After its end, a window is kept for ``allowed_lateness``. A late record then produces the results that the function
    has because of it: those of a call with the record which a call without it has not. So no result is produced again.
    A late record for which no window is kept is produced unchanged to ``too_late``. If there is no such stream, it is
    counted and dropped.

    Invariant: a window that has had its results has a timer of deletion. Another one has a timer at its end, unless
    this timer was given up. A form of the step with another ``allowed_lateness`` may have set either.

    Args:
        windows: Assigns timestamps to windows.
        function: Returns the results of a window. At least one of its lists is not empty.
        output: The stream of the results.
        inputs: The inputs, in the order of the function's arguments.
        result: The type of the results.
        allowed_lateness: How long a window is kept after its end, in microseconds of event time.
        too_late: The stream of records for which no window is kept.

    Raises:
        UsageError: ``windows`` are session windows, ``allowed_lateness`` is negative or probably in another unit, or
            both streams have the same name.
    """

    def __init__(
        self,
        windows: Assigner | SessionWindows,
        function: Callable[..., Any],
        output: str,
        inputs: Sequence[GroupInput],
        result: Any,
        *,
        allowed_lateness: Duration = _NO_LATENESS,
        too_late: str | None = None,
    ) -> None:
        if isinstance(windows, SessionWindows):
            raise UsageError(
                "streams are joined in tumbling or sliding windows: sessions have bounds of their own on each side"
            )
        check_duration("allowed_lateness", allowed_lateness, least=0)
        check_too_late(output, too_late)
        self.windows = windows
        self.function = function
        self.output = output
        self.allowed_lateness = allowed_lateness
        self.too_late = too_late
        self._list_of = {one.name: attrgetter(f"of_{place}") for place, one in enumerate(inputs)}
        self._windows_of = windows.windows_of
        self.result = result
        self._new = _groups_type(inputs)
        # The type argument for G. It defines the type of the state.
        self.__orig_class__ = CoGroup[self._new]  # type: ignore[name-defined]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        outputs = {self.output: self.result}
        return outputs if self.too_late is None else {**outputs, self.too_late: SAME_AS_INPUT}

    def process_record(self, ctx: Context[dict[tuple[TimeInt, TimeInt], G]], record: Record[Any]) -> None:
        """Keep the record in its windows that have not ended. Those that are kept have results at once."""
        kept: dict[tuple[TimeInt, TimeInt], Any] = ctx.state
        taken, late = False, record.late
        for window in self._windows_of(record.timestamp):
            if late and window.end <= ctx.watermark:  # only a late record is in a window that has ended
                taken = self._take_late(ctx, record, window) or taken
                continue
            taken = True
            groups = kept.get(window)
            if groups is None:
                groups = kept[window.bounds] = self._new()
                ctx.set_timer(Timestamp(window.end), window.tag)
            self._list_of[record.stream](groups).append(record.value)
        if not taken:
            drop_record(ctx, record, self.too_late)

    def _take_late(self, ctx: Context[Any], record: Record[Any], window: Window) -> bool:
        """Add a late record to a window that has ended. Returns whether the window is kept."""
        groups = ctx.state.get(window)
        if groups is not None and not groups.produced:
            # Its timer is due, or was given up. Set again, it fires at once.
            ctx.set_timer(Timestamp(window.end), window.tag)
            if self.allowed_lateness:
                self._list_of[record.stream](groups).append(record.value)
            return bool(self.allowed_lateness)
        if groups is None:
            if ctx.watermark >= self._purge_at(window):
                return False
            groups = ctx.state[window.bounds] = self._new()
            groups.produced = True  # all that it had at its end
        self._produce(ctx, window, self._missing(groups, self._list_of[record.stream](groups), record.value))
        self._keep(ctx, window, groups)
        return True

    def process_timer(self, ctx: Context[dict[tuple[TimeInt, TimeInt], G]], timer: Timer) -> None:
        """Produce the results of a window at its end, or delete a window that is no longer kept."""
        kept: dict[tuple[TimeInt, TimeInt], Any] = ctx.state
        if timer.tag.startswith(PURGE):
            window = Window.from_tag(timer.tag.removeprefix(PURGE))
            groups = kept.pop(window, None)
            if groups is not None and groups.produced:  # otherwise its results were given up
                self._produce(ctx, window, self._last(self._lists(groups)))
            return
        window = Window.from_tag(timer.tag)
        groups = kept[window]
        lists = self._lists(groups)
        self._produce(ctx, window, self._results(lists))
        if self.allowed_lateness:
            groups.produced = True
            self._keep(ctx, window, groups)
        else:
            self._produce(ctx, window, self._last(lists))
            del kept[window]

    def _given_up(self, ctx: Context[dict[tuple[TimeInt, TimeInt], G]], timer: Timer) -> None:
        """Forget the window, or keep it: then it has its results with the next late record."""
        window = Window.from_tag(timer.tag.removeprefix(PURGE))
        if self.allowed_lateness and not timer.tag.startswith(PURGE) and window in ctx.state:
            self._keep(ctx, window, ctx.state[window])
        else:
            ctx.state.pop(window, None)

    def _keep(self, ctx: Context[Any], window: Window, groups: Any) -> None:
        """Set the timer that deletes a window. What is produced then holds the output watermark."""
        hold = result_time(window) if self._has_last(groups) else None
        ctx.set_timer(self._purge_at(window), PURGE + window.tag, hold=hold)

    def _purge_at(self, window: Window) -> Timestamp:
        return purge_time(window, self.allowed_lateness)

    def _lists(self, groups: Any) -> list[list[Any]]:
        # They are copies: a function may take the records out of them.
        return [sorted(group, key=rank_bytes) if len(group) > 1 else [*group] for group in astuple(groups)[:-1]]

    def _produce(self, ctx: Context[Any], window: Window, results: Iterable[Any]) -> None:
        # Only a timer that another form of the step has set is later: it held no watermark back.
        output, at = self.output, Timestamp(max(result_time(window), ctx._earliest))
        for result in results:
            ctx.produce(output, result, timestamp=at)

    def _results(self, lists: list[list[Any]]) -> Iterable[Any]:
        """The results of a window at its end."""
        return each_of(self.function(*lists), self.function)

    def _missing(self, groups: Any, group: list[Any], value: Any) -> Iterable[Any]:
        """Add a late record to one of a window's lists. Returns the results that the window has because of it."""
        lists = self._lists(groups)
        before = Counter(map(rank_bytes, self._results(lists))) if any(lists) else Counter[bytes]()
        group.append(value)
        for result in self._results(self._lists(groups)):
            encoded = rank_bytes(result)
            if before[encoded]:
                before[encoded] -= 1
            else:
                yield result

    def _last(self, lists: list[list[Any]]) -> Iterable[Any]:
        """The results that a window has when no more records can come."""
        return ()

    def _has_last(self, groups: Any) -> bool:
        """Whether a window that is kept has such results, if no record comes."""
        return False


def _groups_type(inputs: Sequence[GroupInput]) -> Any:
    """A struct with the list of each input. It is stored by the inputs' streams: an update may exchange them."""
    empty: Any = msgspec.field(default_factory=list)
    fields: list[Any] = [(f"of_{place}", list[one.type], empty) for place, one in enumerate(inputs)]  # type: ignore[name-defined]
    stored = {f"of_{place}": one.stored for place, one in enumerate(inputs)} | {"produced": _PRODUCED}
    return msgspec.defstruct("Groups", [*fields, ("produced", bool, False)], rename=stored, omit_defaults=True)
