"""The join of two streams by key and window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from millwheel.model.time import Duration
from millwheel.operators.cogroup import CoGroup, GroupInput
from millwheel.sdk.ranking import rank_bytes
from millwheel.windows.assigners import Assigner, SessionWindows

__all__ = ["WindowJoin"]

G = TypeVar("G")
_NO_LATENESS = Duration(0)


class WindowJoin(CoGroup[G]):
    """Joins each two records of a key and window, when the low watermark has passed the window's end.

    Each result is produced before the next pair is joined. So the results are never in memory together.

    A late record whose window is kept makes its pairs at once. In an outer join, records without a partner are produced
    when no more can come: at the window's end, or when the window is no longer kept. They hold the output watermark at
    the window's end until then.

    Args:
        windows: Assigns timestamps to windows.
        function: Returns the result of a pair. In an outer join, the missing one is None.
        output: The stream of the results.
        inputs: The left input and the right one.
        result: The type of the results.
        keep_left: Whether left records without a partner are produced.
        keep_right: Whether right records without a partner are produced.
        allowed_lateness: As for :class:`CoGroup`.
        too_late: As for :class:`CoGroup`.

    Raises:
        UsageError: As by :class:`CoGroup`.
    """

    def __init__(
        self,
        windows: Assigner | SessionWindows,
        function: Callable[[Any, Any], Any],
        output: str,
        inputs: Sequence[GroupInput],
        result: Any,
        *,
        keep_left: bool = False,
        keep_right: bool = False,
        allowed_lateness: Duration = _NO_LATENESS,
        too_late: str | None = None,
    ) -> None:
        super().__init__(
            windows, function, output, inputs, result, allowed_lateness=allowed_lateness, too_late=too_late
        )
        self.keep_left = keep_left
        self.keep_right = keep_right

    def _results(self, lists: list[list[Any]]) -> Iterable[Any]:
        function, (left, right) = self.function, lists
        return (function(one, other) for one in left for other in right)

    def _missing(self, groups: Any, group: list[Any], value: Any) -> Iterable[Any]:
        group.append(value)
        if group is groups.of_0:
            return (self.function(value, other) for other in sorted(groups.of_1, key=rank_bytes))
        return (self.function(other, value) for other in sorted(groups.of_0, key=rank_bytes))

    def _last(self, lists: list[list[Any]]) -> Iterable[Any]:
        """The records without a partner."""
        left, right = lists
        if self.keep_left and not right:
            return (self.function(one, None) for one in left)
        return (self.function(None, one) for one in right) if self.keep_right and not left else ()

    def _has_last(self, groups: Any) -> bool:
        if groups.of_0 and groups.of_1:
            return False
        return self.keep_left if groups.of_0 else self.keep_right
