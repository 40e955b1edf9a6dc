"""Replaces RocksDB: a sorted map with a log. After a loss of power at least the synced data remains.

Of the unsynced batches, a prefix survives. The record at which the log is torn fails its checksum, and counts as not
written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from millwheel.store.contract import StoreUnavailableError

__all__ = ["Change", "SimulatedBatch", "SimulatedRocks"]

_DEFAULT: Final = ""
_STATE: Final = "state"

Change = tuple[str, bytes, bytes | None, bytes | None]
"""Family, key, value (None: deleted), and the end of a range that is deleted."""
Maps = dict[str, dict[bytes, bytes]]


class SimulatedBatch:
    """See :class:`millwheel.store.rocks.RowBatch`. ``events`` are called when the batch survives a loss of power."""

    def __init__(self, rocks: SimulatedRocks) -> None:
        self.changes: list[Change] = []
        self.events: list[Callable[[], object]] = []

    def put(self, key: bytes, value: bytes, family: str = _DEFAULT) -> None:
        """As in RocksDB."""
        self.changes.append((family, key, value, None))

    def delete(self, key: bytes, family: str = _DEFAULT) -> None:
        """As in RocksDB."""
        self.changes.append((family, key, None, None))

    def delete_range(self, start: bytes, end: bytes) -> None:
        """As in RocksDB."""
        self.changes.append((_DEFAULT, start, None, end))

    def delete_state_range(self, start: bytes, end: bytes) -> None:
        """As in RocksDB."""
        self.changes.append((_STATE, start, None, end))

    @property
    def size(self) -> int:
        """As in RocksDB, about."""
        return sum(len(key) + len(value or b"") for _, key, value, _ in self.changes)

    def __bool__(self) -> bool:
        return bool(self.changes)


class SimulatedRocks:
    """See :class:`millwheel.store.rocks.Rocks`."""

    state_family = _STATE

    def __init__(self, disk: Maps | None = None) -> None:
        self._disk: Maps = disk or {_DEFAULT: {}, _STATE: {}}
        self.maps: Maps = {family: dict(kept) for family, kept in self._disk.items()}
        self.log: list[SimulatedBatch] = []
        """The unsynced batches."""
        self.on_disk: Callable[[Sequence[Change]], object] = lambda changes: None
        """Called with the changes of a batch when it survives a loss of power."""
        self.unsynced = False
        self.powered = True
        self.survives = False
        """Whether power is never lost, so that each write is durable as soon as it is made."""
        self.before_sync: Callable[[], None] = lambda: None
        """Called when a sync begins: power may be lost now."""

    def write(self, batch: SimulatedBatch) -> None:
        """See :class:`Rocks`, here and below."""
        self._check()
        self.unsynced = True
        _apply(self.maps, batch)
        self.log.append(batch)
        if self.survives:
            self._keep(1)

    def sync(self) -> None:
        self._check()
        self.before_sync()
        self._check()
        self._keep(len(self.log))
        self.unsynced = False

    def cut(self, chance: Random) -> SimulatedRocks:
        """Lose power, and return the database as it is opened next."""
        self.powered = False
        self._keep(chance.randint(0, len(self.log)))
        return SimulatedRocks(self._disk)

    def recover(self) -> bool:
        self._check()
        return False

    def close(self) -> None:
        self.powered = False

    def get(self, keys: Sequence[bytes], *, state: bool = False) -> list[bytes | None]:
        self._check()
        held = self.maps[_STATE if state else _DEFAULT]
        return [held.get(key) for key in keys]

    def scan(
        self, start: bytes, end: bytes, limit: int | None = None, *, state: bool = False
    ) -> list[tuple[bytes, bytes]]:
        self._check()
        held = self.maps[_STATE if state else _DEFAULT]
        return [(key, held[key]) for key in sorted(key for key in held if start <= key < end)[:limit]]

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        return [key for key, _ in self.scan(start, end)]

    def _keep(self, count: int) -> None:
        """The first ``count`` batches of the log reach the disk."""
        kept, self.log = self.log[:count], self.log[count:]
        for batch in kept:
            _apply(self._disk, batch)
            self.on_disk(batch.changes)
            for event in batch.events:
                event()

    def _check(self) -> None:
        if not self.powered:
            raise StoreUnavailableError("the machine has lost its power")


def _apply(maps: Maps, batch: SimulatedBatch) -> None:
    for family, key, value, end in batch.changes:
        held = maps[family]
        if value is not None:
            held[key] = value
        elif end is None:
            held.pop(key, None)
        else:
            for one in [one for one in held if key <= one < end]:
                del held[one]
