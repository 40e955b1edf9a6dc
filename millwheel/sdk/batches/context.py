"""The context of a hook that gets many records: the states of their keys, and productions row by row (sections 4, 5.1).

It adds no effects of its own: each goes into the context of the key that it is for, as from ``process_record``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, get_origin

from millwheel.model.time import LAST_TIMESTAMP, Timestamp
from millwheel.sdk.arrays import is_numpy
from millwheel.sdk.batches.fields import columns_given, list_of, plain_values, row_numbers
from millwheel.sdk.batches.rows import BatchRows
from millwheel.sdk.context import Context
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import UsageError
from millwheel.sdk.scope import Scope
from millwheel.sdk.typeinfo import supertype, type_name

__all__ = ["BatchContext", "KeyStates"]

State = TypeVar("State")

_CAUSE_ID: Final = attrgetter("cause_id")


class KeyStates(Generic[State]):
    """The states of the keys in a batch, by key. Each is what ``ctx.state`` is for a hook of the key."""

    __slots__ = ("_contexts",)

    def __init__(self, contexts: Mapping[bytes, Context[State]]) -> None:
        self._contexts = contexts

    def __getitem__(self, key: str) -> State:
        return self._of(key).state

    def __setitem__(self, key: str, state: State) -> None:
        self._of(key).state = state

    def __delitem__(self, key: str) -> None:
        context: Any = self._of(key)
        del context.state

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for key in self._contexts)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.encode() in self._contexts

    def __len__(self) -> int:
        return len(self._contexts)

    def _of(self, key: str) -> Context[State]:
        found = self._contexts.get(key.encode())
        if found is None:
            raise UsageError(f"key {key!r} has no record in this batch, so its state is not here: see batch.keys")
        return found


class BatchContext(Generic[State]):
    """Access to the data of all keys of a batch. It is valid only while the hook that received it runs."""

    __slots__ = ("_aim", "_before", "_contexts", "_rows", "_scope", "_types", "_uses")

    def __init__(
        self,
        contexts: Mapping[bytes, Context[State]],
        rows: BatchRows,
        aim: Callable[[int], Context[State]],
        types: Mapping[str, Any],
        scope: Scope | None = None,
    ) -> None:
        """
        Args:
            contexts: Those of the keys of the batch.
            rows: The records.
            aim: Returns the context of a row's key, for what the row's record causes.
            types: By output: the type of its values. An output without: any value.
            scope: That of the contexts, if each takes what a row causes at the row's time. None: ``aim`` says it.
        """
        self._contexts = contexts
        self._rows = rows
        self._aim = aim
        self._types = types
        self._scope = scope
        self._uses = 0
        """How often rows were named. Only once, and with none left out: the productions are in the order of rows."""
        # How many productions of a key are of hooks before. One row of each key needs no order.
        several = len(rows.keys) > len(contexts)
        made = ((key, context._productions) for key, context in contexts.items()) if several else ()
        self._before = {key: len(productions) for key, productions in made if productions}

    def __repr__(self) -> str:
        return f"BatchContext(keys={len(self._contexts)}, records={len(self._rows.keys)})"

    @property
    def states(self) -> KeyStates[State]:
        """The states of the keys in the batch, by key: read, change, assign or ``del`` one as ``ctx.state``."""
        return KeyStates(self._contexts)

    @property
    def now(self) -> Timestamp:
        """The wall-clock time of the owner: see ``Context.now``."""
        return self._first.now

    @property
    def _first(self) -> Context[State]:
        """The context of the first key, for what watches hooks."""
        return next(iter(self._contexts.values()))

    def at(self, row: int) -> Context[State]:
        """The context in which ``process_record`` would get the record of a row, for its timers, holds and productions.

        The rows of a key share one context. So use it before the next call of this method.

        Args:
            row: The row's number in the batch.

        Raises:
            UsageError: There is no such row.
        """
        if not 0 <= row < len(self._rows.keys):
            raise UsageError(f"the batch has rows 0 to {len(self._rows.keys) - 1}, and no row {row!r}")
        self._uses += 2
        return self._aim(row)

    def produce(self, stream: str, values: Any, *, rows: Any = None, timestamps: Any = None) -> None:
        """Produce records to ``stream``. Each is caused by the record of one row, as by ``ctx.produce`` in its hook.

        So it has the key of that record, and by default its timestamp. What a key produces is in the order of its rows.
        What one row produces is in the order of these calls.

        Args:
            stream: One of this computation's outputs.
            values: The values, in a list or a column. Or the fields of the values as columns: a mapping, or a table of
                pyarrow, pandas or Polars. Then each value is made by the stream's type with the fields as arguments.
            rows: The row that causes each value, or a truth value for each row. By default each row causes one value.
            timestamps: Microseconds since the epoch for each value. By default, those of the rows.

        Raises:
            UndeclaredStreamError: The topology does not list the stream among this computation's outputs.
            UsageError: The arguments differ in length, or a row is none of the batch.
            Exception: As by ``Context.produce``.
        """
        self._uses += 1 if rows is None else 2
        made, count = self._values(stream, values), len(self._rows.keys)
        causes = range(count) if rows is None else row_numbers(rows, count, f"produce({stream!r}, rows=)")
        if len(made) != len(causes):
            wanted = "each record of the batch" if rows is None else "each of rows="
            raise UsageError(f"produce({stream!r}) takes a value for {wanted}: {len(causes)}, and not {len(made)}")
        if timestamps is None:
            self._produce(stream, causes, made)
            return
        times = list_of(timestamps, f"produce({stream!r}, timestamps=)")
        if len(times) != len(made):
            raise UsageError(f"produce({stream!r}) takes a timestamp for each of {len(made)} values, not {len(times)}")
        for row, value, at in zip(causes, made, times, strict=True):
            self._produce_at(row, stream, value, at)

    def _produce_at(self, row: int, stream: str, value: Any, at: Timestamp | None) -> None:
        """Produce a value as the record of a row would. A context that ``at`` has returned stays as it is."""
        context = self._contexts[self._rows.keys[row]]
        kept = context._stamp, context._earliest, context._cause, context._cause_id
        try:
            self._aim(row).produce(stream, value, timestamp=at)
        finally:
            context._stamp, context._earliest, context._cause, context._cause_id = kept

    def _order(self) -> None:
        """The hook has returned. What each key has produced gets the order of its rows.

        Invariant: so it is the same for any batches in which the rows come (G15). The cause ids of productions are row
        numbers here, because a commit uses them for weak productions only.
        """
        if self._uses > 1 and len(self._rows.keys) > len(self._contexts):
            for key, context in self._contexts.items():
                if made := context._productions:
                    before = self._before.get(key, 0)
                    made[before:] = sorted(made[before:], key=_CAUSE_ID)

    def _produce(self, stream: str, causes: Sequence[int], made: Sequence[Any]) -> None:
        """Produce values at the times of their rows. No hold allows more, so no context is aimed at a row for it."""
        binding = None if self._scope is None else self._scope.outputs.get(stream)
        if binding is None:
            for row, value in zip(causes, made, strict=True):
                self._produce_at(row, stream, value, None)
            return
        keys, times, contexts = self._rows.keys, self._rows.timestamps, self._contexts
        for row, value in zip(causes, made, strict=True):
            context = contexts[keys[row]]
            kept, context._cause_id = context._cause_id, row
            try:
                context._produce(binding, value, min(times[row], LAST_TIMESTAMP))
            finally:
                context._cause_id = kept

    def _values(self, stream: str, given: Any) -> Sequence[Any]:
        declared = supertype(self._types.get(stream, Any))
        if isinstance(given, list | tuple):
            return given if is_numpy(get_origin(declared) or declared) else plain_values(given)
        if (columns := columns_given(given, f"produce({stream!r})")) is None:
            # A stream of NumPy's scalars or arrays carries them as they are.
            what = f"produce({stream!r})"
            return list(given) if is_numpy(get_origin(declared) or declared) else list_of(given, what)
        make, names = dict if declared is Any else declared, list(columns)
        try:
            return [make(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        except TypeError as error:
            made = f"the columns {', '.join(names)} make no {type_name(declared)}"
            raise UsageError(f"produce({stream!r}): {made}: {error_message(error)}") from error
