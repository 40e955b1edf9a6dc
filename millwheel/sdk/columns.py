"""Windows whose panes are kept by columns: what a worker needs to know of a computation that has them.

The accumulators of all panes of a window are NumPy columns, with a row for each key. So many records are added at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from millwheel.model.time import Timestamp
from millwheel.rpc.packed_values import PackedValues

if TYPE_CHECKING:
    from numpy.typing import NDArray

    # Builds have no NumPy. Without TypeAlias, mypy takes such names for variables there.
    Column: TypeAlias = NDArray[Any]
    Rows: TypeAlias = NDArray[Any]
    """The row of each record. A row may occur many times."""

__all__ = ["ColumnWindows", "Fold", "NotFoldedError"]


class NotFoldedError(Exception):
    """A value is none that a column takes. The record is left to the hook, which may take it or fail."""


class Fold(ABC):
    """The accumulators of one aggregate, by columns. In a pane without records each column has zero."""

    form: Any
    """What the columns are, as it is stored with them: a name, or a list with the name and the form of each of several
    aggregates, in the order of their columns."""
    kinds: Sequence[str]
    """The NumPy type of each column."""
    reads: int
    """How many columns ``read`` returns. 0: it does not read the values of records."""
    fields: Sequence[tuple[str, type]] | None = None
    """The fields of values that it reads, each with its type: ``take`` makes the same of columns that have these.

    None: what it reads is in values alone.
    """
    why_values = "an aggregate calls a function, or reads what is no plain field"
    """Why ``fields`` is None."""

    @abstractmethod
    def read(self, values: Sequence[Any]) -> list[Column]:
        """What it takes of records, by columns.

        Raises:
            Exception: A value cannot be read, or is none that a column takes.
        """

    def take(self, columns: Mapping[str, Any]) -> list[Column]:
        """What ``read`` returns for records whose fields are in columns.

        Args:
            columns: By field: a NumPy array, or texts as Arrow has them. There is a record.

        Raises:
            NotFoldedError: Only the values of the records say it.
        """
        raise NotFoldedError("it reads values alone")

    @abstractmethod
    def add(self, columns: Sequence[Column], rows: Rows, given: Sequence[Column]) -> None:
        """Add records to panes, in their order. It never fails.

        Args:
            columns: The columns of the accumulators, which it changes.
            rows: The row of each record.
            given: What ``read`` has returned.
        """

    @abstractmethod
    def accumulators(self, columns: Sequence[Column]) -> list[Any]:
        """The accumulators of all rows, as the aggregator itself makes them."""

    def steps(self, given: Sequence[Column]) -> Column | None:
        """For each record, the most by which it changes an integer of its pane. None: there are no sums of integers."""
        return None

    def reach(self, columns: Sequence[Column]) -> Column | None:
        """For each row, the most by which its integers differ from zero. None: there are no sums of integers."""
        return None


@dataclass(frozen=True, slots=True)
class ColumnWindows:
    """A computation with tumbling windows whose records are added many at a time.

    Windows begin every ``size`` microseconds from ``offset`` on. ``make`` returns the results of some keys in the
    window from a start to an end, with the accumulator of each. ``output`` is the stream of the results.
    ``encode`` encodes them, each as the output's own encoder does. None: that encoder does. ``result_type`` is the type
    of the results.
    """

    size: int
    offset: int
    fold: Fold
    make: Callable[[Sequence[str], Timestamp, Timestamp, Sequence[Any]], list[Any]]
    output: str
    encode: Callable[[Sequence[Any]], list[bytes]] | None = None
    result_type: Any = None
    encode_columns: Callable[[Sequence[bytes], Timestamp, Timestamp, Sequence[Any]], list[bytes] | None] | None = None
    """Encodes results of ``result_type`` without making them. It returns None where that is not possible."""
    pack_columns: Callable[[Sequence[bytes], Timestamp, Timestamp, Sequence[Any]], PackedValues | None] | None = None
    """As ``encode_columns``, into one buffer."""
