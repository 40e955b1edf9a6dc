"""Streams by windows of a number of records."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, overload

from millwheel.agg import Aggregator
from millwheel.model.time import Duration
from millwheel.operators import CountWindow
from millwheel.sdk.computation import Computation
from millwheel.streams.checked import checked
from millwheel.streams.declaring import Keyed, StepOptions
from millwheel.streams.missing_steps import MissingSteps
from millwheel.streams.rows import aggregates_by_name, note_objection
from millwheel.streams.stream import Stream

__all__ = ["CountWindowedStream"]

T = TypeVar("T")
U = TypeVar("U")


class Steps(Keyed, Protocol):
    """A stream with a key, for a step that keeps state."""

    def step(self, name: str, computation: Computation[Any, Any], to: Any, options: StepOptions) -> Stream[Any]:
        """A step of the library, whose results are in the stream of its name."""


class CountWindowedStream(MissingSteps, Generic[T]):
    """The records of a key in windows of a number of records: what ``count_window`` returns."""

    def __init__(self, steps: Steps, size: int, within: Duration | None) -> None:
        self.steps = steps
        self.size = size
        self.within = within

    @overload
    def aggregate(
        self, name: str, into: type[U], /, *, options: StepOptions | None = ..., **aggregates: Aggregator[Any, Any]
    ) -> Stream[U]: ...
    @overload
    def aggregate(
        self, name: str, /, *, options: StepOptions | None = ..., **aggregates: Aggregator[Any, Any]
    ) -> Stream[Any]: ...
    @checked()
    def aggregate(
        self,
        name: str,
        into: Any = None,
        /,
        *,
        options: StepOptions | None = None,
        **aggregates: Aggregator[Any, Any],
    ) -> Stream[Any]:
        """One result for each window. It has the largest timestamp of the window's records.

        Its fields are filled by their names: from the aggregates, from the fields that are the key, and from ``key``.

        Args:
            name: The name of the computation and of the stream of results.
            into: The class of the results. By default one with all of these fields is generated.
            options: The options of the computation.
            aggregates: The aggregates by name.

        Raises:
            UsageError: There is no aggregate. Or an aggregate reads a field that the records do not have. Or nothing
                fills a field of the class.
        """
        aggregator, row = aggregates_by_name(name, into, aggregates, self.steps.input, windowed=False)
        step: CountWindow[Any] = CountWindow(self.size, aggregator, name, row, self.within)
        found = self.steps.step(name, step, row.type, options or {})
        note_objection(name, aggregator, self.steps.input)
        return found
