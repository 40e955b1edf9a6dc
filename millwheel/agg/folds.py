"""How an aggregate adds many records at once: its accumulators are NumPy columns, with one row for each pane.

A fold does what ``add`` of the aggregator does for one record after another, and comes to equal accumulators. Records
keep their order, so sums of floats are the same, too. It takes values of exactly its type, which the machine can hold.
All others are left to the aggregator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from millwheel.agg.reading import Reader
from millwheel.rpc.nullable_column import NullableColumn, items_at
from millwheel.sdk.columns import Fold, NotFoldedError
from millwheel.sdk.exact_types import unless_none
from millwheel.sdk.expression_columns import columns_for, columns_for_truth, computed, truths
from millwheel.sdk.expressions import Expression, col, expression_of, plain_function

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = [
    "ChosenFold",
    "CountFold",
    "ExtremeFold",
    "MeanFold",
    "SeveralFold",
    "SumFold",
    "foldable",
    "plain_number",
    "present",
]

_KINDS: Final = {int: "<i8", float: "<f8"}
"""The types of numbers of which there are columns."""
_COUNT: Final = "<i8"
_FLAG: Final = "|b1"


def foldable(kind: Any) -> bool:
    """Whether there are columns of numbers of that type."""
    return isinstance(kind, type) and kind in _KINDS


def plain_number(kind: Any) -> Any:
    """The type of the numbers of a field that may be None, and any other type itself."""
    present = unless_none(kind)
    return present if foldable(present) else kind


class CountFold(Fold):
    """``agg.count``."""

    form = "count"
    kinds = (_COUNT,)
    reads = 0
    fields = ()

    def read(self, values: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return []

    def take(self, columns: Mapping[str, Any]) -> list[Column]:
        """See Fold."""
        return []

    def add(self, columns: Sequence[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        import numpy as np

        np.add.at(columns[0], rows, 1)

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        return _listed(columns[0])


class _NumberFold(Fold):
    """An aggregate of what ``reader`` reads from a value of ``record_type``, which is of ``kind``: int or float."""

    reads = 1

    def __init__(self, kind: type, reader: Reader, record_type: Any) -> None:
        self._kind = kind
        self._of = reader.of
        self._get = plain_function(reader.get, record_type)
        self.fields = _fields(kind, reader, record_type)

    def read(self, values: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return [_numbers(self._get, values, self._kind)]

    def take(self, columns: Mapping[str, Any]) -> list[Column]:
        """See Fold."""
        of = self._of
        found = computed(of, columns) if isinstance(of, Expression) else columns[str(of)]
        if isinstance(found, NullableColumn):
            raise NotFoldedError("a record has None")
        return [found]


class SumFold(_NumberFold):
    """``agg.sum``."""

    def __init__(self, kind: type, reader: Reader, record_type: Any) -> None:
        super().__init__(kind, reader, record_type)
        self.form = f"sum {kind.__name__}"
        self.kinds = (_KINDS[kind],)

    def add(self, columns: Sequence[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        _add(columns[0], rows, given[0])

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        return _listed(columns[0])

    def steps(self, given: Sequence[Column]) -> Column | None:
        """See Fold."""
        return _sizes(given[0])

    def reach(self, columns: Sequence[Column]) -> Column | None:
        """See Fold."""
        return _sizes(columns[-1])


class MeanFold(SumFold):
    """``agg.mean``: the number of records, and the sum."""

    def __init__(self, kind: type, reader: Reader, record_type: Any) -> None:
        super().__init__(kind, reader, record_type)
        self.form = f"mean {kind.__name__}"
        self.kinds = (_COUNT, _KINDS[kind])

    def add(self, columns: Sequence[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        import numpy as np

        np.add.at(columns[0], rows, 1)
        _add(columns[1], rows, given[0])

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        found = zip(_listed(columns[0]), _listed(columns[1]), strict=True)
        return [(count, total if count else 0) for count, total in found]


class ExtremeFold(_NumberFold):
    """``agg.min`` and ``agg.max``. The second column says whether a pane has a number yet."""

    def __init__(self, kind: type, reader: Reader, record_type: Any, *, smallest: bool) -> None:
        super().__init__(kind, reader, record_type)
        self._smallest = smallest
        self.form = f"extreme {kind.__name__}"
        self.kinds = (_KINDS[kind], _FLAG)

    def add(self, columns: Sequence[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        import numpy as np

        best, has = columns
        numbers = given[0]
        if self._kind is float and not _ordered(numbers, best[rows]):
            self._one_by_one(best, has, rows, numbers)
            return
        new = np.flatnonzero(~has[rows])
        # Of several records of a pane without a number, the last assignment counts: any of them is a right beginning.
        best[rows[new]] = numbers[new]
        has[rows] = True
        (np.minimum if self._smallest else np.maximum).at(best, rows, numbers)

    def _one_by_one(self, best: Column, has: Column, rows: Rows, numbers: Column) -> None:
        """Of numbers that are equal, or that have no order, the first stays. So the order of the records matters."""
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            kept = best[row]
            if not (has[row] and (kept <= number if self._smallest else kept >= number)):
                best[row] = number
            has[row] = True

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        found = zip(_listed(columns[0]), columns[1].tolist(), strict=True)
        return [number if has else None for number, has in found]


class ChosenFold(Fold):
    """An aggregate with ``where=``: ``fold`` adds the records that count. The others only begin their panes.

    The last column that it reads says which records count. The columns of the panes, and their form, are those of
    ``fold``: as with hooks, an update may change which records count from then on.
    """

    def __init__(self, fold: Fold, where: Callable[[Any], Any], record_type: Any) -> None:
        self._fold = fold
        self._counts = plain_function(where, record_type)
        self._condition = expression_of(where)
        self.form, self.kinds, self.reads = fold.form, fold.kinds, fold.reads + 1
        if (one := self._condition) is not None and fold.fields is not None:
            read = columns_for_truth(one, record_type)
            self.fields = None if read is None else [*fold.fields, *read]

    def read(self, values: Sequence[Any]) -> list[Column]:
        """See Fold. Of a record that does not count, nothing else is read."""
        import numpy as np

        counts = np.array([bool(self._counts(value)) for value in values], bool)
        read = self._fold.read([value for value, one in zip(values, counts.tolist(), strict=True) if one])
        return [*_spread(read, counts), counts]

    def take(self, columns: Mapping[str, Any]) -> list[Column]:
        """See Fold."""
        assert self._condition is not None, "a function needs values"
        counts = truths(self._condition, columns)
        own = {name: columns[name] for name, _ in self._fold.fields or ()}
        if not any(isinstance(column, NullableColumn) for column in own.values()):
            return [*self._fold.take(own), counts]
        chosen = _places_of(counts)
        some = {name: items_at(column, chosen) for name, column in own.items()}
        return [*_spread(self._fold.take(some) if len(chosen) else self._fold.read([]), counts), counts]

    def add(self, columns: Sequence[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        *read, counts = given
        self._fold.add(columns, rows[counts], [column[counts] for column in read])

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        return self._fold.accumulators(columns)

    def steps(self, given: Sequence[Column]) -> Column | None:
        """See Fold."""
        steps = self._fold.steps(given[:-1])
        return None if steps is None else steps * given[-1]

    def reach(self, columns: Sequence[Column]) -> Column | None:
        """See Fold."""
        return self._fold.reach(columns)


class SeveralFold(Fold):
    """Several aggregates of the same records. ``make`` is the class of the accumulators."""

    def __init__(self, folds: Mapping[str, Fold], make: Callable[..., Any]) -> None:
        self._folds = dict(folds)
        self._make = make
        self.form = [[name, fold.form] for name, fold in folds.items()]
        self.kinds = [kind for fold in folds.values() for kind in fold.kinds]
        self.reads = sum(fold.reads for fold in folds.values())
        fields = [fold.fields for fold in folds.values()]
        self.fields = None if None in fields else [one for each in fields for one in each or ()]
        unread = [name for name, fold in folds.items() if fold.fields is None]
        self.why_values = f"{Fold.why_values}: {', '.join(map(repr, unread))}"

    def read(self, values: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return [column for fold in self._folds.values() for column in fold.read(values)]

    def take(self, columns: Mapping[str, Any]) -> list[Column]:
        """See Fold."""
        return [column for fold in self._folds.values() for column in fold.take(columns)]

    def add(self, columns: Sequence[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        for fold, own, read in self._parts(columns, given):
            fold.add(own, rows, read)

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        fields = [fold.accumulators(own) for fold, own, _ in self._parts(columns, ())]
        return [self._make(*row) for row in zip(*fields, strict=True)]

    def steps(self, given: Sequence[Column]) -> Column | None:
        """See Fold."""
        return _largest(fold.steps(read) for fold, _, read in self._parts((), given))

    def reach(self, columns: Sequence[Column]) -> Column | None:
        """See Fold."""
        return _largest(fold.reach(own) for fold, own, _ in self._parts(columns, ()))

    def _parts(
        self, columns: Sequence[Column], given: Sequence[Column]
    ) -> list[tuple[Fold, Sequence[Column], Sequence[Column]]]:
        """Each aggregate, with its columns and what it reads."""
        parts: list[tuple[Fold, Sequence[Column], Sequence[Column]]] = []
        at, reading = 0, iter(given)
        for fold in self._folds.values():
            last = at + len(fold.kinds)
            parts.append((fold, columns[at:last], list(islice(reading, fold.reads))))
            at = last
        return parts


def present(fold: Fold, reader: Reader, record_type: Any) -> Fold | None:
    """The fold of the records whose field is not None. None: what is read is no field."""
    return ChosenFold(fold, col(reader.of) != None, record_type) if isinstance(reader.of, str) else None  # noqa: E711


def _places_of(counts: Column) -> Rows:
    import numpy as np

    return np.flatnonzero(counts)


def _spread(read: Sequence[Column], counts: Column) -> list[Column]:
    """Columns for all records, from those of the records that count."""
    import numpy as np

    given = [np.zeros(len(counts), column.dtype) for column in read]
    for whole, column in zip(given, read, strict=True):
        whole[counts] = column
    return given


def _fields(kind: type, reader: Reader, record_type: Any) -> list[tuple[str, type]] | None:
    """The fields that are read, if they are those of the value itself."""
    if isinstance(reader.of, Expression):
        # ``item=`` may state another type. Then the values show what it is.
        return columns_for(reader.of, record_type) if reader.of.type_in(record_type) is kind else None
    return [(reader.of, kind)] if isinstance(reader.of, str) and "." not in reader.of else None


def _numbers(get: Callable[[Any], Any], values: Sequence[Any], kind: type) -> Column:
    import numpy as np

    read = [get(value) for value in values]  # map() would take a user's StopIteration for the end
    if set(map(type, read)) - {kind}:
        raise NotFoldedError(f"a column has {kind.__name__} alone")
    try:
        return np.array(read, _KINDS[kind])
    except OverflowError as error:
        raise NotFoldedError("a column has the machine's integers alone") from error


def _add(sums: Column, rows: Rows, numbers: Column) -> None:
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):  # such a sum is infinite, or not a number, as in Python
        np.add.at(sums, rows, numbers)


def _sizes(numbers: Column) -> Column | None:
    """Absolute values of integers. Floats have no range to leave."""
    import numpy as np

    return np.abs(numbers.astype(np.float64)) if numbers.dtype.kind == "i" else None


def _largest(sizes: Iterable[Column | None]) -> Column | None:
    """The largest of several sizes in each place."""
    import numpy as np

    known = [one for one in sizes if one is not None]
    return np.maximum.reduce(known) if known else None


def _ordered(numbers: Column, kept: Column) -> bool:
    """Whether no two floats are equal and yet different, such as zeros with signs, or have no order: NaN."""
    return bool(((numbers < 0) | (numbers > 0)).all()) and not bool((kept != kept).any())


def _listed(column: Column) -> list[Any]:
    """The column as Python's numbers."""
    numbers: list[Any] = column.tolist()
    return numbers
