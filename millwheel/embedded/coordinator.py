"""The coordinator of one process, on the RocksDB of the embedded store.

Keys and the revision are durable. Leases and the history for watches are in memory. A restart ends every lease, so keys
with a lease are deleted when the database is opened.

Rows (below the store's prefix ``c``, each in the usual envelope): ``ck`` + key → created, modified, lease, value;
``cr`` → revision, epoch. The epoch is the number of times that the database was opened.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from millwheel.coordination.contract import CoordinatorUnavailableError, KeyValue
from millwheel.coordination.local import LocalCoordinator
from millwheel.coordination.state import CoordinatorState, Transition
from millwheel.model.catalog_keys import LEASED
from millwheel.model.envelope import unwrap, wrap
from millwheel.store.contract import CorruptValueError, StoreUnavailableError
from millwheel.store.layout import COORDINATOR, past
from millwheel.store.rocks import Rocks, RowBatch
from millwheel.store.writer import StoreThread

__all__ = ["EmbeddedCoordinator"]

log = logging.getLogger("millwheel.coordination")

_KEYS: Final = COORDINATOR + b"k"
_COUNTERS: Final = COORDINATOR + b"r"
_ENTRY: Final = struct.Struct(">QQQ")
_PAIR: Final = struct.Struct(">QQ")


class EmbeddedCoordinator(LocalCoordinator):
    """A :class:`~millwheel.coordination.contract.Coordinator` whose keys survive the process."""

    def __init__(self, rocks: Rocks, thread: StoreThread) -> None:
        """Load the stored keys. Call :meth:`start` before any other method.

        A damaged value is loaded with its ``damage`` set. CorruptValueError: the revision is damaged, so the whole
        coordinator is unusable.
        """
        self._rocks = rocks
        self._thread = thread
        revision, epoch = self._read_counters()
        self._epoch = epoch + 1
        self._unsettled: Transition | None = None
        pairs = rocks.scan(_KEYS, past(_KEYS))
        entries = [_decode(key, value, revision) for key, value in pairs]
        for entry in entries:
            if entry.damage:
                log.error("the coordinator's value %s is damaged: %s", entry.key, entry.damage)
        super().__init__(CoordinatorState(entries, revision=revision, epoch=self._epoch))

    async def start(self) -> None:
        """Begin a new epoch: the last epoch's leases have ended, so the keys bound to them are deleted.

        A damaged value does not show its lease. So a damaged key is also deleted if keys of its kind always have one.
        """
        entries = self._state.list("").entries
        transition = self._state.decide_end([entry.lease for entry in entries if entry.lease])
        lost = tuple(entry.key for entry in entries if entry.damage and entry.key.startswith(LEASED))
        deletes = transition.deletes + lost
        transition = Transition(self._state.revision + bool(deletes), (), deletes)
        await self._thread.call(lambda batch: self._stage(transition, batch))
        self._state.apply(transition)

    async def _persist(self, transition: Transition) -> None:
        try:
            await self._thread.call(lambda batch: self._stage(transition, batch))
        except StoreUnavailableError as error:
            self._unsettled = transition
            raise CoordinatorUnavailableError(str(error)) from error

    async def _settle(self) -> None:
        """After a failed write, read from the database whether its transition took effect."""
        self._check_open()
        transition = self._unsettled
        if transition is None:
            return
        try:
            revision = await self._thread.call(lambda _: self._read_counters()[0])
        except StoreUnavailableError as error:
            raise CoordinatorUnavailableError(str(error)) from error
        # A concurrent call may have settled the transition while this call waited.
        if self._unsettled is transition:
            self._unsettled = None
            if revision == transition.revision:
                self._publish(transition)

    def _stage(self, transition: Transition, batch: RowBatch) -> None:
        for entry in transition.puts:
            value = wrap(_ENTRY.pack(entry.created, entry.modified, entry.lease) + entry.value)
            batch.put(_KEYS + entry.key.encode(), value)
        for key in transition.deletes:
            batch.delete(_KEYS + key.encode())
        batch.put(_COUNTERS, wrap(_PAIR.pack(transition.revision, self._epoch)))

    def _read_counters(self) -> tuple[int, int]:
        value = self._rocks.get([_COUNTERS])[0]
        if value is None:
            return 0, 0
        revision, epoch = _PAIR.unpack(unwrap(value, "revision of the coordinator"))
        return int(revision), int(epoch)


def _decode(key: bytes, value: bytes, revision: int) -> KeyValue:
    """Decode an entry. A damaged one gets ``revision``, so a transaction that expects its earlier revision fails."""
    name = key[len(_KEYS) :].decode("utf-8", "backslashreplace")
    try:
        payload = unwrap(value, name)
    except CorruptValueError as error:
        return KeyValue(name, b"", revision, revision, damage=error.why)
    if len(payload) < _ENTRY.size:
        why = f"at least {_ENTRY.size} bytes are needed, not {len(payload)}"
        return KeyValue(name, b"", revision, revision, damage=why)
    created, modified, lease = _ENTRY.unpack_from(payload)
    return KeyValue(name, payload[_ENTRY.size :], created, modified, lease)
