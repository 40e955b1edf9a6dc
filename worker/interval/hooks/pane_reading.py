"""Reading the records of a delivery for windows by columns: what filters drop, and what aggregates take (4.2; G1).

Columns of Arrow are read without a value for a record, where that is sure to have the same effect for each of them.
Otherwise the values are read, all at once, and one by one if a record fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.column_reading import ColumnRows
from millwheel.sdk.columns import Fold, NotFoldedError
from millwheel.sdk.declarations import DROPPED
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.interval.intake import DeliveryReceipt
from millwheel.worker.interval.panes.key_index import selector
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.messages import Delivery

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = ["Divided", "PaneReader", "picked"]

Item = TypeVar("Item")


def picked(column: Sequence[Item], places: Column | Sequence[int]) -> Sequence[Item]:
    """The items at increasing places. If these are all, the column itself: the usual case costs no copy."""
    if len(places) == len(column):
        return column
    if isinstance(column, range) and not isinstance(places, Sequence):
        found: list[Any] = (places * column.step + column.start).tolist()
        return found
    return [column[place] for place in (places if isinstance(places, Sequence) else places.tolist())]


class Divided:
    """Records of one delivery, by their places: those that are added, those that are dropped, and those for hooks."""

    __slots__ = ("dropped", "for_hooks", "given", "moving", "places", "starts", "waiting")

    def __init__(self, places: Column, starts: Column) -> None:
        self.places = places
        """The records that are added to panes."""
        self.starts = starts
        """The starts of their windows."""
        self.given: list[Column] = []
        """What the fold has read of them."""
        self.dropped: list[int] = []
        """Records that a filter has dropped."""
        self.moving: dict[bytes, None] = {}
        """The keys whose panes must move before their records run in hooks."""
        self.for_hooks: list[int] = []
        """Records that run in hooks."""
        self.waiting: list[int] = []
        """Records that wait for the commit of an earlier hook of their key."""

    def keep(self, kept: Sequence[bool] | Column) -> None:
        """Leave all records that are not kept to hooks."""
        import numpy as np

        chosen = np.flatnonzero(kept)
        self.places, self.starts = self.places[chosen], self.starts[chosen]
        self.given = [column[chosen] for column in self.given]

    def drop_others(self, passed: Rows, given: list[Column]) -> None:
        """Drop all records but some, of which the fold has read ``given``. ``passed``: which of the places they are."""
        import numpy as np

        if len(passed) < len(self.places):
            kept = np.zeros(len(self.places), bool)
            kept[passed] = True
            self.dropped = self.places[np.flatnonzero(~kept)].tolist()
            self.keep(kept)
        self.given = given


class PaneReader:
    """Reads records for a fold."""

    def __init__(self, setup: IntervalSetup, fold: Fold) -> None:
        self._setup = setup
        self._fold = fold

    def read(self, receipt: DeliveryReceipt, indexes: Sequence[int], found: Divided) -> None:
        """Read the records that may be added, by their places among ``indexes``.

        Those that cannot be read, or have numbers that no column takes, are not added any more, and their keys move.
        """
        delivery, program, fold = receipt.delivery, self._setup.program, self._fold
        may_drop = program.one_reading[delivery.stream]
        if not (fold.reads or may_drop is not None) or not len(found.places):
            return
        if self._read_columns(delivery, indexes, found):
            return
        read = may_drop or program.inputs[delivery.stream]
        places = found.places.tolist()
        encoded = [delivery.values[indexes[place]] for place in places]
        try:
            values = [read(one) for one in encoded]  # map() would take a user's StopIteration for the end
            kept = [value is not DROPPED for value in values] if may_drop is not None else []
            given = fold.read(values if all(kept) else [value for value in values if value is not DROPPED])
            found.dropped = [place for place, keep in zip(places, kept, strict=False) if not keep]
        except HOOK_ERRORS:
            values, kept = [], []
            for place, one in zip(places, encoded, strict=True):
                try:
                    value = read(one)
                    if value is DROPPED:
                        found.dropped.append(place)
                    else:
                        fold.read([value])
                except HOOK_ERRORS:
                    found.moving[delivery.keys[indexes[place]]] = None
                    value = DROPPED
                values.append(value)
                kept.append(value is not DROPPED)
            given = fold.read([value for value in values if value is not DROPPED])
        if not all(kept):
            found.keep(kept)
        found.given = given

    def _read_columns(self, delivery: Delivery, indexes: Sequence[int], found: Divided) -> bool:
        """Read the records from columns, and drop what the filters do not pass. False: their values must be read.

        True only if each value can be read, and has the very fields that are in the columns: see ``ColumnFields``.
        """
        import numpy as np

        records, reading = delivery.values, self._setup.program.column_readings.get(delivery.stream)
        fold, wanted = self._fold, self._fold.fields
        if reading is None or wanted is None or not isinstance(records, RecordColumns):
            return False
        if (names := reading.columns_of(wanted, records.kinds(), records.with_nulls())) is None:
            return False
        rows: Any = selector(indexes)
        if len(found.places) < len(indexes):
            rows = np.arange(len(records))[rows][found.places]

        def column(field: str, places: slice | Rows) -> Any:
            return records.column(names[field], rows if isinstance(places, slice) else _rows_at(rows, places))

        try:
            passed = reading.passed(ColumnRows(len(found.places), column))
            some = len(passed.places) > 0
            given = fold.take(passed.fields(field for field, _ in wanted)) if some else fold.read([])
        except NotFoldedError:
            return False
        found.drop_others(passed.places, given)
        return True


def _rows_at(rows: Any, places: Rows) -> Rows:
    """The indexes of the records at some places among ``rows``, which are a slice or indexes themselves."""
    if isinstance(rows, slice):
        return places + rows.start if rows.start else places
    chosen: Rows = rows[places]
    return chosen
