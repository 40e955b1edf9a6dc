"""Windows whose panes are kept by columns: what a worker needs to know of a computation that has them.

The accumulators of all panes of a window are NumPy columns, with a row for each key. So many records are added at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]
    Rows = NDArray[Any]
    """The row of each record. A row may occur many times."""

__all__ = ["ColumnWindows", "Fold"]


class Fold(ABC):
    """The accumulators of one aggregate, by columns. No method changes a column before everything that may fail."""

    form: Any
    """What the columns are, as it is stored with them: a name, or the forms by the names of several aggregates."""
    width: int
    """The number of columns."""
    reads: bool
    """Whether it reads the values of records."""

    @abstractmethod
    def begin(self, rows: int) -> list[Column]:
        """Columns for so many panes without records."""

    @abstractmethod
    def read(self, values: Sequence[Any]) -> list[Column]:
        """What it takes of records, by columns.

        Raises:
            Exception: A value is not what the aggregate takes.
        """

    @abstractmethod
    def add(self, columns: list[Column], rows: Rows, given: Sequence[Column]) -> None:
        """Add records to panes, in their order. A column may be replaced by one that holds larger numbers.

        Args:
            columns: The columns of the accumulators.
            rows: The row of each record.
            given: What ``read`` has returned.
        """

    @abstractmethod
    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """The accumulators, as the aggregator itself makes them."""

    @abstractmethod
    def columns(self, accumulators: Sequence[Any]) -> list[Column]:
        """The reverse of ``accumulators``."""


@dataclass(frozen=True, slots=True)
class ColumnWindows:
    """A computation with tumbling windows whose records are added many at a time.

    Windows begin every ``size`` microseconds from ``offset`` on. ``make`` returns a result of a key, a start, an end,
    an accumulator and a revision. ``output`` is the stream of the results.
    """

    size: int
    offset: int
    fold: Fold
    make: Callable[[str, int, int, Any, int], Any]
    output: str
