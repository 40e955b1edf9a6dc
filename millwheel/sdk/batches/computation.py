"""The base class of users' computations whose hook gets many records at once (section 4.1)."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic

from millwheel.sdk.batches.context import BatchContext
from millwheel.sdk.batches.records import RecordBatch, RecordForm
from millwheel.sdk.batches.rows import BatchRows
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.growing.fields import is_growing
from millwheel.sdk.options import ComputationOptions
from millwheel.sdk.records import Record

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    In = TypeVar("In")
    State = TypeVar("State", default=None)
else:
    from typing import TypeVar

    In = TypeVar("In")
    State = TypeVar("State")

__all__ = ["MAX_RECORDS", "BatchComputation", "BatchProgram", "batch_problems"]

MAX_RECORDS: Final = 8_192
"""The most records of a call. A call's records run again if one of them fails."""
_MAX_SECONDS: Final = 2
"""A worker that is busy for five seconds may lose its lease."""


class BatchComputation(Computation[In, State], Generic[In, State]):
    """A computation whose hook gets many records at once, of several keys, as columns: for models and vectorised code.

    ``BatchComputation[Query, Counts]`` has a ``Counts`` for each key, as ``Computation[Query, Counts]`` has. The hook
    is not ``async``. Timers are hooks of their keys, in ``process_timer``.

    How records are grouped into batches has no promise: a batch may have one record, and a record may come again in
    another batch after a failure or a crash. *So what the hook does for a key depends on the records and the state of
    this key alone.* Then the effects are those of the same computation with ``process_record``.

    >>> class Doubled(BatchComputation[float]):
    ...     def process_batch(self, ctx: BatchContext[None], batch: RecordBatch[float]) -> None:
    ...         ctx.produce("doubled", batch.column() * 2)
    """

    _takes_columns = False
    """Whether the hook takes columns where it can. Then filters before it are run on columns, too."""

    max_records: int = 1_024
    """The most records of a batch, from 1 to 8,192. Deliveries with fewer records make smaller batches, and so do
    filters before the hook: what they drop counts.

    A batch also has no more than what its records usually produce lets into one commit (2 MiB).
    """

    call_seconds: float = 0.1
    """How many seconds a call should take, at most 2. Batches grow until a call takes over half of it.

    If a call takes longer, the next one gets half as many records, but 32 in any case, or fewer after a whole second.
    So set it to several times what your model takes by itself. Other work of the process waits for each call.
    Filters and functions before the hook may take as long for what they read for a call.
    """

    @abstractmethod
    def process_batch(self, ctx: BatchContext[State], batch: RecordBatch[In]) -> None:
        """Process some records of one input.

        All effects of a key take effect together, exactly once (G1). If the hook raises, none does. It is called again
        for fewer records, down to single ones. So only the record that fails is tried again or given up, by
        ``on_failure``.

        Args:
            ctx: The context of all keys of the batch. It is valid until the hook returns.
            batch: The records, at least one. The records of a key are in their order.
        """

    def process_record(self, ctx: Context[State], record: Record[In]) -> Awaitable[None] | None:
        """Process a batch of one record. MillWheel calls it; define ``process_batch`` instead."""
        result: None = BatchProgram(self, {}, {}, {}).process_record(ctx, record)
        return result

    if not TYPE_CHECKING:

        def __class_getitem__(cls, arguments: Any) -> Any:
            # BatchComputation[Query] means BatchComputation[Query, None].
            if cls is BatchComputation and (not isinstance(arguments, tuple) or len(arguments) == 1):
                arguments = (*(arguments if isinstance(arguments, tuple) else (arguments,)), None)
            return super().__class_getitem__(arguments)


@dataclass(frozen=True, slots=True)
class BatchProgram:
    """A computation whose hook gets many records, prepared to run."""

    computation: BatchComputation[Any, Any]
    called: Mapping[str, RecordForm]
    """By the name by which the hook knows an input: its records."""
    forms: Mapping[str, RecordForm]
    """By input stream: its records. A stream that is read in several ways has none: its records come one by one."""
    outputs: Mapping[str, Any]
    """By output stream: the type of its values."""

    def process_record(self, ctx: Context[Any], record: Record[Any]) -> Any:
        """Call the hook for one record. Returns what the hook returns, which should be None."""
        form = self.called.get(record.stream) or RecordForm(record.stream, type(record.value))
        rows = BatchRows((record._encoded,))
        rows.add(0, record._key, record.timestamp, record.late)
        if form.decode is None:
            rows.values.append(record.value)
        return self.call(BatchContext({record._key: ctx}, rows, lambda row: ctx, self.outputs), RecordBatch(form, rows))

    def call(self, context: BatchContext[Any], batch: RecordBatch[Any]) -> Any:
        """Call the hook. Returns what the hook returns, which should be None."""
        process: Callable[[Any, Any], Any] = self.computation.process_batch
        return process(context, batch)


def batch_problems(computation: Any, state_type: Any, options: ComputationOptions) -> Iterator[str]:
    """Mistakes in a computation whose hook gets many records."""
    if not isinstance(computation, BatchComputation):
        if hasattr(computation, "process_batch"):
            yield "process_batch is called in a millwheel.BatchComputation: derive the class from it"
        return
    if type(computation).process_record is not BatchComputation.process_record:
        yield "it defines process_batch and process_record, and only one of them would run: keep process_batch"
    if inspect.iscoroutinefunction(inspect.unwrap(computation.process_batch)):
        yield "process_batch is `async def`, and all its keys would wait: await services in a computation before it"
    most: Any = computation.max_records
    if type(most) is not int or not 1 <= most <= MAX_RECORDS:
        yield f"max_records is a whole number from 1 to {MAX_RECORDS:,}, not {most!r:.80}"
    seconds: Any = computation.call_seconds
    if type(seconds) not in (int, float) or not 0 < seconds <= _MAX_SECONDS:
        yield f"call_seconds is a number of seconds over 0, and at most {_MAX_SECONDS}, not {seconds!r:.80}"
    if not options.strong:
        yield (
            "strong=False is for productions that depend on one record alone, and a batch has others: leave it out, or "
            "define process_record in a millwheel.Computation"
        )
    if is_growing(state_type):
        yield (
            "process_batch has no growing states, whose pages are read key by key: define process_record in a "
            "millwheel.Computation, or keep a plain state"
        )
