"""Changes of a pane table as journal entries and bases have them (section 6.2; G2, G12).

A change has new accumulators and not differences. So to apply it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from millwheel.worker.interval.panes.table import PaneTable, WindowPanes

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = ["PaneChange", "apply_changes", "seal_changes", "whole_table"]

PaneChange = tuple[
    int, int, Any, int, list[bytes], bytes, list[tuple[str, bytes | list[str]]], int, list[int], list[int]
]
"""Start and end of a window, the form of its columns, the first new row, the keys of the new rows, the rows that have
changed, their columns (kind and content), the first row that has not fired, the rows before it that have not, and the
rows that were moved. A window that has ended has only its bounds, and -1 as the first row that has not fired."""

_ENDED: Final = -1
_ROW: Final = "<u4"
_OBJECTS: Final = "O"
_PART_BYTES: Final = 1 << 20
"""Approximate keys and columns of one change of a base."""


def seal_changes(table: PaneTable) -> list[PaneChange]:
    """The changes since the last call, which become part of a commit."""
    changes: list[PaneChange] = [
        (one.start, one.end, table.form, 0, [], b"", [], _ENDED, [], []) for one in table.ended if one.sealed.count
    ]
    for window in table.changed.values():
        first = window.sealed.count
        rows = window.seal()
        changes.append(_change(table, window, first, window.keys[first:], rows))
    table.changed, table.ended = {}, []
    return changes


def whole_table(table: PaneTable) -> Iterator[PaneChange]:
    """All sealed panes, for a base, in changes of bounded size."""
    import numpy as np

    for window in table.sealed():
        count, first = window.sealed.count, 0
        while first < count:
            last, size = first, 0
            while last < count and size < _PART_BYTES:
                size += len(window.keys[last]) + 8 * len(window.sealed.columns)
                last += 1
            yield _change(table, window, first, window.keys[first:last], np.arange(first, last))
            first = last


def _change(table: PaneTable, window: WindowPanes, first: int, keys: list[bytes], rows: Rows) -> PaneChange:
    sealed = window.sealed
    columns = [_packed(column[rows]) for column in sealed.columns]
    packed = rows.astype(_ROW).tobytes()
    left, moved = sorted(sealed.left), sorted(sealed.moved)
    return window.start, window.end, table.form, first, keys, packed, columns, sealed.fired, left, moved


def apply_changes(table: PaneTable, changes: Sequence[PaneChange]) -> None:
    """Apply changes in the order in which they were made. ``PaneTable.settle`` follows the last of them."""
    import numpy as np

    for start, end, form, first, keys, packed, contents, fired, left, moved in changes:
        if fired == _ENDED:
            table.windows.pop(start, None)
            continue
        table.form = form
        columns = [_unpacked(*content) for content in contents]
        window = table.window(start, end, [column[:0] for column in columns])
        assert first <= len(window.keys), "new rows follow those that are known"
        if keys:
            window.rows_of(keys)
        window.now.put(np.frombuffer(packed, _ROW).astype(np.int64), columns)
        window.now.fired, window.now.left, window.now.moved = fired, set(left), set(moved)


def _packed(column: Column) -> tuple[str, bytes | list[str]]:
    """A column's kind and content. Integers that the machine cannot hold become texts."""
    if column.dtype == object:
        return _OBJECTS, [str(number) for number in column.tolist()]
    kind = column.dtype.newbyteorder("<").str
    return kind, column.astype(kind).tobytes()


def _unpacked(kind: str, content: bytes | list[str]) -> Column:
    import numpy as np

    if kind == _OBJECTS:
        return np.array([int(number) for number in content], object)
    assert isinstance(content, bytes), "only Python's integers are texts"
    return np.frombuffer(content, kind).astype(np.dtype(kind).newbyteorder("="))
