"""How an aggregate adds many records at once: its accumulators are NumPy columns, with one row for each pane.

A fold does what ``add`` of the aggregator does for one record after another, and comes to equal accumulators. Records
keep their order, so sums of floats are the same, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millwheel.sdk.columns import Fold

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = ["MACHINE_NUMBERS", "CountFold", "ExtremeFold", "MeanFold", "SeveralFold", "SumFold"]

MACHINE_NUMBERS: Final = (int, float)
"""The types of which a machine computes columns. Other types of numbers are added one after another."""
_LARGEST: Final = 2**63 - 1
"""Beyond it, a column of integers has those of Python instead of the machine's."""


class CountFold(Fold):
    """``agg.count``."""

    form = "count"
    width = 1
    reads = False

    def begin(self, rows: int) -> list[Column]:
        """See Fold."""
        return [_zeros(rows, int)]

    def read(self, values: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return []

    def add(self, columns: list[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        import numpy as np

        np.add.at(columns[0], rows, 1)

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        return _listed(columns[0])

    def columns(self, accumulators: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return [_column(accumulators, int)]


class SumFold(Fold):
    """``agg.sum`` of what ``get`` reads from a value, which is of ``kind``: int or float."""

    _name = "sum"
    width = 1
    reads = True

    def __init__(self, kind: type, get: Callable[[Any], Any]) -> None:
        self._kind = kind
        self._get = get
        self.form = f"{self._name} {kind.__name__}"

    def begin(self, rows: int) -> list[Column]:
        """See Fold."""
        return [_zeros(rows, self._kind)]

    def read(self, values: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return [_numbers(self._get, values, self._kind)]

    def add(self, columns: list[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        _add(columns, 0, rows, given[0])

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        return _listed(columns[0])

    def columns(self, accumulators: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return [_column(accumulators, self._kind)]


class MeanFold(SumFold):
    """``agg.mean``: the number of records, and the sum."""

    _name = "mean"
    width = 2

    def begin(self, rows: int) -> list[Column]:
        """See Fold."""
        return [_zeros(rows, int), _zeros(rows, self._kind)]

    def add(self, columns: list[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        import numpy as np

        _add(columns, 1, rows, given[0])
        np.add.at(columns[0], rows, 1)

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        return list(zip(_listed(columns[0]), _listed(columns[1]), strict=True))

    def columns(self, accumulators: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return [_column([one[0] for one in accumulators], int), _column([one[1] for one in accumulators], self._kind)]


class ExtremeFold(SumFold):
    """``agg.min`` and ``agg.max``. The second column says whether a pane has a number yet."""

    _name = "extreme"
    width = 2

    def __init__(self, kind: type, get: Callable[[Any], Any], *, smallest: bool) -> None:
        super().__init__(kind, get)
        self._smallest = smallest

    def begin(self, rows: int) -> list[Column]:
        """See Fold."""
        return [_zeros(rows, self._kind), _zeros(rows, bool)]

    def add(self, columns: list[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        import numpy as np

        numbers = given[0]
        if numbers.dtype == object and columns[0].dtype != object:
            columns[0] = columns[0].astype(object)
        best, has = columns
        if self._kind is float and (np.isnan(numbers).any() or np.isnan(best[rows]).any()):
            self._one_by_one(columns, rows, numbers)
            return
        new = np.flatnonzero(~has[rows])
        # Of several records of a pane without a number, the last assignment counts: any of them is a right beginning.
        best[rows[new]] = numbers[new]
        has[rows] = True
        (np.minimum if self._smallest else np.maximum).at(best, rows, numbers)

    def _one_by_one(self, columns: list[Column], rows: Rows, numbers: Column) -> None:
        """What is not a number is neither smaller nor larger, so the order of the records matters."""
        best, has = columns
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            kept = best[row]
            if not (has[row] and (kept <= number if self._smallest else kept >= number)):
                best[row] = number
            has[row] = True

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        found = zip(_listed(columns[0]), columns[1].tolist(), strict=True)
        return [number if has else None for number, has in found]

    def columns(self, accumulators: Sequence[Any]) -> list[Column]:
        """See Fold."""
        has = [one is not None for one in accumulators]
        return [_column([one or 0 for one in accumulators], self._kind), _column(has, bool)]


class SeveralFold(Fold):
    """Several aggregates of the same records. ``make`` is the class of the accumulators."""

    def __init__(self, folds: Mapping[str, Fold], make: Callable[..., Any]) -> None:
        self._folds = dict(folds)
        self._make = make
        self.form = {name: fold.form for name, fold in folds.items()}
        self.width = sum(fold.width for fold in folds.values())
        self.reads = any(fold.reads for fold in folds.values())

    def begin(self, rows: int) -> list[Column]:
        """See Fold."""
        return [column for fold in self._folds.values() for column in fold.begin(rows)]

    def read(self, values: Sequence[Any]) -> list[Column]:
        """See Fold."""
        return [column for fold in self._folds.values() for column in fold.read(values)]

    def add(self, columns: list[Column], rows: Rows, given: Sequence[Column]) -> None:
        """See Fold."""
        at = 0
        reading = iter(given)
        for fold in self._folds.values():
            own = columns[at : at + fold.width]
            fold.add(own, rows, [next(reading)] if fold.reads else [])
            columns[at : at + fold.width] = own
            at += fold.width

    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """See Fold."""
        fields, at = [], 0
        for fold in self._folds.values():
            fields.append(fold.accumulators(columns[at : at + fold.width]))
            at += fold.width
        return [self._make(*row) for row in zip(*fields, strict=True)]

    def columns(self, accumulators: Sequence[Any]) -> list[Column]:
        """See Fold."""
        found: list[Column] = []
        for name, fold in self._folds.items():
            found += fold.columns([getattr(one, name) for one in accumulators])
        return found


def _zeros(rows: int, kind: type) -> Column:
    import numpy as np

    return np.zeros(rows, {int: np.int64, float: np.float64, bool: np.bool_}[kind])


def _column(numbers: Sequence[Any], kind: type) -> Column:
    """A column of numbers of the kind. Integers that the machine cannot hold stay Python's."""
    import numpy as np

    if kind is not int:
        return np.array(numbers, np.float64 if kind is float else np.bool_)
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        return np.array(numbers, object)


def _numbers(get: Callable[[Any], Any], values: Sequence[Any], kind: type) -> Column:
    read = list(map(get, values))
    if set(map(type, read)) != {kind}:
        wrong = next(one for one in read if type(one) is not kind)
        raise TypeError(f"an aggregate takes {kind.__name__}, not {wrong!r:.80}")
    return _column(read, kind)


def _add(columns: list[Column], at: int, rows: Rows, numbers: Column) -> None:
    """Add numbers to the rows of a column, in their order. The column is replaced if a sum may not fit into it."""
    import numpy as np

    sums = columns[at]
    if sums.dtype == np.int64 and (numbers.dtype == object or not _fit(sums[rows], numbers)):
        sums = columns[at] = sums.astype(object)
    with np.errstate(over="ignore", invalid="ignore"):  # such a sum is infinite, or not a number, as in Python
        np.add.at(sums, rows, numbers.astype(object) if sums.dtype == object else numbers)


def _fit(sums: Column, numbers: Column) -> bool:
    """Whether integers can be added in any way without leaving the machine's range."""
    reach = max(-int(numbers.min()), int(numbers.max()), 0) * len(numbers)
    return reach + max(-int(sums.min()), int(sums.max())) <= _LARGEST


def _listed(column: Column) -> list[Any]:
    """The column as Python's numbers."""
    numbers: list[Any] = column.tolist()
    return numbers
