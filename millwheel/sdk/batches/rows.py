"""Which records are in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.rpc.columns import RecordColumns

__all__ = ["BatchRows"]


class BatchRows:
    """Some records of a delivery, each with its row number: parallel lists.

    ``delivered`` has the encoded values of the delivery, and ``indexes`` those of the rows in it.
    """

    __slots__ = ("delivered", "indexes", "keys", "late", "table", "timestamps", "values")

    def __init__(self, delivered: Sequence[bytes]) -> None:
        self.delivered = delivered
        self.indexes: list[int] = []
        self.keys: list[bytes] = []
        self.timestamps: list[int] = []
        self.late: list[bool] = []
        self.values: list[Any] = []
        """What functions made of the values. Empty: the hook gets them as they are."""
        self.table: RecordColumns | None = None
        """What filters and selections made of columns, for all rows. None: ``values`` says it."""

    def keep(self, count: int) -> None:
        """Keep the first rows, with what was made of them. The others have keys and values so far."""
        del self.keys[count:], self.values[count:]
        if self.table is not None:
            self.table = self.table.cut(0, count)

    def add(self, index: int, key: bytes, timestamp: int, late: bool) -> None:
        """Add a record behind the others."""
        self.indexes.append(index)
        self.keys.append(key)
        self.timestamps.append(timestamp)
        self.late.append(late)
