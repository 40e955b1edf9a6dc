"""Gathers single records until the next turn of the event loop, and passes them on as columns (5.2). Pure."""

from __future__ import annotations

from operator import index
from typing import Any

from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.messages import Columns
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.sdk.errors import UsageError

__all__ = ["SendBuffer"]


class SendBuffer:
    """Records of one scope, with their keys at the consumers of one routing.

    The buffer makes the checks that the core would make, so that the error reaches the call that sent the record.
    """

    __slots__ = ("_data", "_ids", "_keys", "_timestamps", "scope", "size")

    def __init__(self) -> None:
        self.scope: IdScope | None = None
        self.size = 0
        """The total size of the values, in bytes."""
        self._data: list[bytes] = []
        self._timestamps: list[int] = []
        self._ids: list[Any] = []
        self._keys: dict[str, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._data)

    def add(self, scope: IdScope, id_: int | bytes, data: bytes, timestamp: int, keys: dict[str, bytes]) -> None:
        """Append a record. Buffered records have the same scope and were keyed by the same routing.

        Raises:
            UsageError: A position does not rise, or a timestamp is not an integer or is infinite.
        """
        try:
            timestamp = index(timestamp)
        except TypeError:
            raise UsageError(f"a record's timestamp is a whole number of microseconds, not {timestamp!r}") from None
        if not MIN_TIMESTAMP < timestamp < MAX_TIMESTAMP:
            raise UsageError("a record's timestamp is a time in microseconds, not an infinity")
        if self._data:
            if scope.kind is IdKind.POSITION and id_ <= self._ids[-1]:
                raise UsageError(
                    f"positions of {scope.name!r} must rise from record to record: {id_!r} came after {self._ids[-1]}"
                )
            for name, key in keys.items():
                self._keys[name].append(key)
        else:
            self.scope = scope
            self._keys = {name: [key] for name, key in keys.items()}
        self.size += len(data)
        self._data.append(data)
        self._timestamps.append(timestamp)
        self._ids.append(id_)

    def take(self) -> Columns:
        """Remove and return all records. The buffer must not be empty."""
        assert self.scope is not None
        columns = Columns(self._data, self._timestamps, self._keys, self.scope, self._ids)
        self._data, self._timestamps, self._ids, self._keys, self.size = [], [], [], {}, 0
        return columns
