"""Making the results of a window, many at a time or one by one (section 4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from millwheel.model.time import LAST_TIMESTAMP, Timestamp
from millwheel.rpc.packed_values import PackedValues
from millwheel.sdk.columns import ColumnWindows
from millwheel.sdk.context import has_fixed_route, production_of, productions_of
from millwheel.sdk.effects import ProducedColumns, Production
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.interval.panes.table import WindowPanes
from millwheel.worker.interval.setup import IntervalSetup

__all__ = ["ResultMaker"]


class ResultMaker:
    """Makes and encodes the results of one window."""

    def __init__(self, setup: IntervalSetup, windows: ColumnWindows, window: WindowPanes) -> None:
        self._windows = windows
        self._start, self._end = Timestamp(window.start), Timestamp(window.end)
        named = setup.scope, windows.output, Timestamp(min(window.end, LAST_TIMESTAMP))
        self._one, self._several = production_of(*named), productions_of(*named, windows.encode)
        self._unread = has_fixed_route(setup.scope, windows.output)
        """Whether no consumer finds its key in a result."""
        self._traces = setup.meter.traces
        self._packed_from = setup.settings.packed_from

    def together(self, keys: Sequence[bytes], accumulators: Sequence[Any], room: int) -> ProducedColumns | None:
        """The results of these keys. None: some must be made one by one, which says why.

        ``room``: with so many bytes the batch is full.
        """
        traces, windows = self._traces, self._windows
        if self._several is None or (traces is not None and not traces.causes.keys().isdisjoint(keys)):
            return None
        with suppress(*HOOK_ERRORS):  # one by one, it is found which of them fails
            encoded = self._encoded(keys, accumulators)
            values: Sequence[Any] = ()
            if encoded is None or not self._unread:
                values = windows.make(list(map(bytes.decode, keys)), self._start, self._end, accumulators)
            return self._several(keys, values, encoded, room)
        return None

    def _encoded(self, keys: Sequence[bytes], accumulators: Sequence[Any]) -> list[bytes] | PackedValues | None:
        """The encoded results, if they need not be made for that.

        They are packed for logs, which read none of them by itself, and where there is no consumer.
        """
        windows, of = self._windows, (keys, self._start, self._end, accumulators)
        if self._unread and windows.pack_columns is not None and len(keys) >= self._packed_from:
            packed = windows.pack_columns(*of)
            if packed is not None:
                return packed
        return None if windows.encode_columns is None else windows.encode_columns(*of)

    def one(self, key: bytes, accumulator: Sequence[Any]) -> list[Production]:
        """The result of one key.

        Args:
            key: The key.
            accumulator: Its accumulator, as the only one in a column.

        Raises:
            Exception: It cannot be made or encoded.
        """
        return self._one(key, self._windows.make([key.decode()], self._start, self._end, accumulator)[0])
