"""Streams whose next step gets the records of each key in the order of event time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from millwheel.agg.reading import Of
from millwheel.operators import in_order
from millwheel.sdk.computation import Computation
from millwheel.sdk.keys import KeyExtractor
from millwheel.sdk.options import Late
from millwheel.streams.declaring import StepOptions, refuse_dead_letters
from millwheel.streams.stateful import StatefulSteps
from millwheel.streams.stream import Stream

__all__ = ["OrderedStream"]

T = TypeVar("T")


class OrderedStream(StatefulSteps[T]):
    """The records of each key in the order of their timestamps: what :meth:`KeyedStream.ordered_by_time` returns.

    The hooks of the step that follows get the records of a key in the order of their timestamps, and their event-time
    timers at their places among the records. ``ctx.watermark`` is the time that they have come to. So the results do
    not depend on the order in which records arrive. For example::

        >>> import msgspec
        >>> import millwheel as mw
        >>> from millwheel.testing import TopologyHarness
        >>> class Step(msgspec.Struct):
        ...     cart: str
        ...     name: str
        >>> carts = mw.Topology("carts")
        >>> steps = carts.source("steps", Step).key_by("cart").ordered_by_time()
        >>> paths = steps.update("paths", "", lambda path, step: (path + step.name, [path + step.name]), str)
        >>> harness = TopologyHarness(carts)
        >>> noon = 1_700_000_000_000_000
        >>> for second, name in [(3, "c"), (1, "a"), (2, "b")]:
        ...     harness.send("steps", Step("7", name), timestamp=mw.Timestamp(noon + mw.seconds(second)))
        >>> harness.values("paths")
        []
        >>> harness.advance(mw.Timestamp(noon + mw.seconds(3)))
        >>> harness.values("paths")
        ['a', 'ab']
        >>> harness.finish()
        >>> harness.values("paths")
        ['a', 'ab', 'abc']

    The results of a key leave the step in this order, and arrive in it where the next step has the same key. A step
    with another key gets them from several keys, so it is ordered itself if order matters there.

    A late record is dropped, unless ``late=`` of the step says otherwise. With ``late=mw.Late.PROCESS`` the hook gets
    it at once, out of order, with ``record.late`` set. A step cannot have ``on_failure=mw.dead_letter()``: what fails
    is the call for all records that are due, and not a single one.
    """

    def __init__(self, stream: Stream[T], extractor: KeyExtractor, ties: Of, limit: int) -> None:
        super().__init__(stream, extractor)
        self.ties = ties
        self.limit = limit

    def declare(
        self,
        name: str,
        computation: Computation[Any, Any] | type[Computation[Any, Any]],
        outputs: Mapping[str, Any],
        options: StepOptions,
    ) -> None:
        refuse_dead_letters(
            name, options, "gets its records in order, so a dead letter would be the timer that passes them"
        )
        options.setdefault("late", Late.DROP)
        inner = computation() if isinstance(computation, type) else computation
        ordered = in_order(inner, self.input.known_type, ties=self.ties, limit=self.limit)
        super().declare(name, ordered, outputs, options)
