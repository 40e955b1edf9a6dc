"""The coordinator of one process, on the RocksDB of the embedded store.

Keys and the revision are durable; leases and the watches' history live in memory. A restart is the
loss of every lease, so the keys bound to one are removed when the database is opened.

Rows (below the store's prefix ``c``, each in the usual envelope): ``ck`` + key → created, modified, lease, value;
``cr`` → revision, epoch. The epoch counts how often the database was opened.
"""

from __future__ import annotations

import logging
import struct
from typing import Final

from millwheel.coordination.contract import CoordinatorUnavailableError, Entry
from millwheel.coordination.local import LocalCoordinator
from millwheel.coordination.state import CoordinatorState, Transition
from millwheel.core.catalog_keys import LEASED
from millwheel.store.contract import CorruptValueError, StoreUnavailableError
from millwheel.store.envelope import unwrap, wrap
from millwheel.store.layout import COORDINATOR, past
from millwheel.store.rocks import Batch, Rocks
from millwheel.store.writer import StoreThread

__all__ = ["EmbeddedCoordinator"]

log = logging.getLogger("millwheel.coordination")

_KEYS: Final = COORDINATOR + b"k"
_COUNTERS: Final = COORDINATOR + b"r"
_ENTRY: Final = struct.Struct(">QQQ")
_PAIR: Final = struct.Struct(">QQ")


class EmbeddedCoordinator(LocalCoordinator):
    """A :class:`~millwheel.coordination.contract.Coordinator` that survives the process."""

    def __init__(self, rocks: Rocks, thread: StoreThread) -> None:
        """Load what is stored; :meth:`start` before any other call.

        A damaged value is there, and says so. CorruptValueError: the revision is damaged, and with it everything.
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
        """Begin a new epoch: the leases of the last one have ended, and so have the keys bound to them.

        A damaged key does not tell its lease; of a kind that always has one, it goes with the others.
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
        """After a failed write: what does the database say of the transition whose outcome was unknown?"""
        self._check_open()
        transition = self._unsettled
        if transition is None:
            return
        try:
            revision = await self._thread.call(lambda _: self._read_counters()[0])
        except StoreUnavailableError as error:
            raise CoordinatorUnavailableError(str(error)) from error
        # A concurrent call may have settled it while this one waited.
        if self._unsettled is transition:
            self._unsettled = None
            if revision == transition.revision:
                self._publish(transition)

    def _stage(self, transition: Transition, batch: Batch) -> None:
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


def _decode(key: bytes, value: bytes, revision: int) -> Entry:
    """The stored entry. What is damaged counts as made at ``revision``: whoever knew it before does not any more."""
    name = key[len(_KEYS) :].decode("utf-8", "backslashreplace")
    try:
        payload = unwrap(value, name)
    except CorruptValueError as error:
        return Entry(name, b"", revision, revision, damage=error.why)
    if len(payload) < _ENTRY.size:
        why = f"at least {_ENTRY.size} bytes are needed, not {len(payload)}"
        return Entry(name, b"", revision, revision, damage=why)
    created, modified, lease = _ENTRY.unpack_from(payload)
    return Entry(name, payload[_ENTRY.size :], created, modified, lease)
