"""Changes of a pane table as journal entries and bases have them (section 6.2; G2, G12).

A change has new accumulators and not differences. So to apply it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from millwheel.store.contract import CorruptValueError
from millwheel.worker.interval.panes.key_index import distinct
from millwheel.worker.interval.panes.plain import check_form
from millwheel.worker.interval.panes.table import PaneTable, WindowPanes

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = ["PaneChange", "apply_changes", "change_bytes", "seal_changes", "whole_table"]

_ROW: Final = "<u4"
_PART_BYTES: Final = 1 << 20
"""Approximate keys and columns of one change of a base."""


class PaneChange(msgspec.Struct, array_like=True, frozen=True):
    """What one commit changed in one window, or a part of the window in a base."""

    start: int
    end: int
    form: bytes
    """The form of the columns, encoded: see ``Fold.form``."""
    rows: bytes
    """The rows with new accumulators, in increasing order."""
    keys: list[bytes]
    """The keys of the last of these rows, which are new. In a base all rows are new."""
    columns: list[tuple[str, bytes]]
    """The accumulators of these rows: NumPy type and content of each column."""
    closed: bytes
    """The rows whose panes leave the table after that."""


def seal_changes(table: PaneTable) -> list[PaneChange]:
    """Apply what the batch did to its windows. Returns that for the entry of its commit."""
    changes = [_seal(table, window) for window in table.changed.values()]
    table.settle()
    return [change for change in changes if change.rows or change.closed]


def _seal(table: PaneTable, window: WindowPanes) -> PaneChange:
    import numpy as np

    rows: Rows = np.zeros(0, np.int64)
    if window.added:
        fold = table.fold
        assert fold is not None, "only records of the present form are added"
        for added, given in window.added:
            fold.add(window.columns, added, given)
        rows = distinct(np.concatenate([added for added, _ in window.added]), len(window.keys))
    new, closed = window.keys[window.sealed :], window.closed_rows()
    window.added, window.closing, window.leaving, window.sealed = [], {}, range(0), len(window.keys)
    return _change(window, rows, new, closed)


def whole_table(table: PaneTable) -> Iterator[PaneChange]:
    """All panes as of the last sealed commit, for a base, in changes of bounded size."""
    for window in table.windows.values():
        rows, keys = _settled(window)
        if not keys:
            continue
        average = sum(map(len, keys)) // len(keys) + 8 * len(window.columns)
        step = max(1, _PART_BYTES // (average + 1))
        for first in range(0, len(rows), step):
            yield _change(window, rows[first : first + step], keys[first : first + step], rows[:0])


def _settled(window: WindowPanes) -> tuple[Rows, list[bytes]]:
    """The rows of all panes as of the last sealed commit, in increasing order, and their keys."""
    import numpy as np  # here, because each computation has bases, and few have windows

    if window.first >= 0 and not window.closing:  # most windows: panes leave it in the order of their rows
        start = window.leaving.start if window.leaving else window.first
        return np.arange(start, window.sealed), window.keys[start : window.sealed]
    settled = window.settled()
    rows = np.sort(np.fromiter(settled.values(), np.int64, len(settled)))
    return rows, [window.keys[row] for row in rows.tolist()]


def _change(window: WindowPanes, rows: Rows, keys: list[bytes], closed: Rows) -> PaneChange:
    columns = [(column.dtype.str, column[rows].tobytes()) for column in window.columns]
    packed = rows.astype(_ROW).tobytes()
    return PaneChange(window.start, window.end, window.form, packed, keys, columns, closed.astype(_ROW).tobytes())


def change_bytes(change: PaneChange) -> int:
    """Approximate size of a change."""
    return len(change.rows) + sum(map(len, change.keys)) + sum(len(content) for _, content in change.columns)


def apply_changes(table: PaneTable, changes: Sequence[PaneChange], where: str) -> None:
    """Apply changes in the order in which they were made, as a takeover does.

    Raises:
        CorruptValueError: A change contradicts those before it; the error names ``where``.
    """
    for change in changes:
        try:
            _apply(table, change)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise CorruptValueError(where, f"a change of windows that cannot be applied: {error!r}") from error
    table.settle()


def _apply(table: PaneTable, change: PaneChange) -> None:
    import numpy as np

    name, kinds = (change.start, change.end, change.form), [kind for kind, _ in change.columns]
    if name not in table.windows:
        check_form(change.form, kinds)
    window = table.changing(name, kinds)
    by_key = window.rows  # it follows each change from here on
    rows, keys = np.frombuffer(change.rows, _ROW).astype(np.int64), change.keys
    if len(rows):
        known = window.keys
        known.extend([b""] * (int(rows[-1]) + 1 - len(known)))
        for row, key in zip(rows[len(rows) - len(keys) :].tolist(), keys, strict=True):
            window.key_bytes += len(key) - len(known[row])
            known[row] = key
            by_key[key] = row
        window.grow()
        window.put(rows, [_unpacked(kind, content) for kind, content in change.columns])
    for row in np.frombuffer(change.closed, _ROW).tolist():
        del by_key[window.keys[row]]
    window.sealed, window.reach, window.numbered, window.first = len(window.keys), None, None, -1


def _unpacked(kind: str, content: bytes) -> Column:
    import numpy as np

    return np.frombuffer(content, kind)
