"""The coordinator's contract on etcd (section 7.1). docs/decisions/0011-coordination.md has its invariants."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final

from millwheel.coordination.contract import (
    CompactedError,
    Compare,
    CoordinatorError,
    CoordinatorUnavailableError,
    DamagedValueError,
    KeyChange,
    KeyValue,
    LeaseExpiredError,
    PrefixSnapshot,
    Put,
    TransactionResult,
)
from millwheel.coordination.etcd.keyspace import Keyspace, opened
from millwheel.coordination.etcd.leases import HeldLeases, seconds_since_boot
from millwheel.coordination.etcd.link import EtcdConnection
from millwheel.coordination.etcd.renewal_calls import RenewalCalls
from millwheel.coordination.etcd.renewing import LeaseRenewals
from millwheel.coordination.etcd.settings import EtcdSettings
from millwheel.coordination.etcd.v3 import etcd_pb2 as etcd
from millwheel.coordination.etcd.watching import Watching
from millwheel.model.envelope import wrap

__all__ = ["EtcdCoordinator"]

_RANGE: Final = "/etcdserverpb.KV/Range"
_TXN: Final = "/etcdserverpb.KV/Txn"
_COMPACT: Final = "/etcdserverpb.KV/Compact"
_GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
_REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"

_PAGE_KEYS: Final = 256
"""Keys in one answer. The chunks of interval maps have up to 192 KiB, and mostly about 15 KiB."""
_COMPACTED: Final = "compacted"
"""The key by which clients agree which of them compacts. Its value is the last compacted revision."""

log = logging.getLogger("millwheel.coordination")


class EtcdCoordinator:
    """A :class:`~millwheel.coordination.contract.Coordinator` whose state is in etcd 3.4 or newer.

    It connects at the first call, and reconnects when needed. A read or another repeatable call is retried at the other
    members until the timeout. A transaction is sent once.
    """

    def __init__(self, settings: EtcdSettings, clock: Callable[[], float] = seconds_since_boot) -> None:
        """ValueError if a TLS file cannot be read. ``clock``: seconds, which decide when a lease is over."""
        self.settings = settings
        self._link = EtcdConnection(settings)
        self._keyspace = Keyspace(settings.prefix)
        self._leases = HeldLeases(clock)
        calls = RenewalCalls(settings, self._link.credentials, self._link.members())
        self._renewals = LeaseRenewals(settings, self._leases, calls)
        self._compacting: asyncio.Task[None] | None = None

    # Keys.

    async def get(self, key: str) -> KeyValue | None:
        """See :meth:`Coordinator.get`."""
        answer = await self._range(etcd.RangeRequest(key=self._keyspace.key(key)))
        entry = self._entry(answer.kvs[0]) if answer.kvs else None
        if entry is not None and entry.damage:
            raise DamagedValueError(key, entry.damage)
        return entry

    async def list(self, prefix: str) -> PrefixSnapshot:
        """See :meth:`Coordinator.list`. Reads page by page, all pages as of the first page's revision."""
        while True:
            try:
                return await self._list(prefix)
            except CompactedError:
                log.info("a listing took longer than revisions are kept; it starts again")

    async def _list(self, prefix: str) -> PrefixSnapshot:
        key, end = self._keyspace.span(prefix)
        entries: list[KeyValue] = []
        revision = 0
        while True:
            answer = await self._range(etcd.RangeRequest(key=key, range_end=end, limit=_PAGE_KEYS, revision=revision))
            revision = revision or answer.header.revision
            entries += [self._entry(pair) for pair in answer.kvs]
            if not answer.more:
                return PrefixSnapshot(revision, tuple(entries))
            key = answer.kvs[-1].key + b"\0"

    async def _range(self, request: etcd.RangeRequest) -> etcd.RangeResponse:
        self._begin()
        return await self._link.call(_RANGE, request, etcd.RangeResponse, repeatable=True)

    def _entry(self, pair: etcd.KeyValue) -> KeyValue:
        name = self._keyspace.name(pair.key)
        value, damage = opened(pair.value)
        return KeyValue(name, value, pair.create_revision, pair.mod_revision, pair.lease, damage)

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TransactionResult:
        """See :meth:`Coordinator.transact`. TransactionTooLargeError if it is larger than etcd's limits."""
        changed = [*(put.key for put in puts), *deletes]
        if len(set(changed)) != len(changed):
            raise ValueError(f"a transaction names a key twice: {sorted(changed)}")
        for put in puts:
            self._leases.check(put.lease)
        request = etcd.TxnRequest()
        for compare in compares:
            target = etcd.Compare.CompareTarget.COMPARE_TARGET_MOD
            request.compare.add(key=self._keyspace.key(compare.key), target=target, mod_revision=compare.modified)
        for put in puts:
            pair = etcd.PutRequest(key=self._keyspace.key(put.key), value=wrap(put.value), lease=put.lease)
            request.success.add(request_put=pair)
        for key in deletes:
            request.success.add(request_delete_range=etcd.DeleteRangeRequest(key=self._keyspace.key(key)))
        self._begin()
        answer = await self._link.call(_TXN, request, etcd.TxnResponse, repeatable=False)
        return TransactionResult(answer.succeeded, answer.header.revision)

    def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[KeyChange, ...]]:
        """See :meth:`Coordinator.watch`. While etcd is unavailable it waits, then continues after the last revision."""
        return Watching(self._link, self._keyspace, prefix, after).changes()

    # Leases.

    async def grant_lease(self, ttl: float) -> int:
        """See :meth:`Coordinator.grant_lease`. etcd uses whole seconds, and raises a ttl below about two."""
        self._begin()
        asked = self._leases.now()
        request = etcd.LeaseGrantRequest(ttl=max(1, math.ceil(ttl)))
        # A repeated call may grant two leases. The unused one ends by itself.
        answer = await self._link.call(_GRANT, request, etcd.LeaseGrantResponse, repeatable=True)
        self._leases.renewed(answer.id, answer.ttl, asked)
        self._renewals.granted(answer.id, asked)
        return answer.id

    async def keep_alive(self, lease: int) -> None:
        """See :meth:`Coordinator.keep_alive`. A thread renews, now and for one time to live from now on.

        Invariant: the holder learns that a lease is over before any call to etcd, so also while etcd does not answer.
        If this machine's clock shows that the lease was not renewed in time, the lease is not renewed: other processes
        may already treat its holder as gone. A renewal ends with the lease, and not with the limit for calls.
        """
        self._leases.check(lease)
        self._begin()
        try:
            await self._renew(lease)
        except CoordinatorUnavailableError:
            self._leases.check(lease)
            raise
        # The process may have been paused before the answer.
        self._leases.check(lease)
        self._renewals.ran(lease)

    async def _renew(self, lease: int) -> None:
        """Renew a lease by the thread, and record the answer. CoordinatorError if it is not renewed."""
        await asyncio.wrap_future(self._renewals.renew(lease))

    async def revoke_lease(self, lease: int) -> None:
        """See :meth:`Coordinator.revoke_lease`. If etcd does not answer, the lease ends by itself."""
        self._renewals.drop(lease)
        self._begin()
        with suppress(LeaseExpiredError):
            request = etcd.LeaseRevokeRequest(id=lease)
            await self._link.call(_REVOKE, request, etcd.LeaseRevokeResponse, repeatable=True)
        self._leases.forget(lease)

    # Lifetime.

    async def close(self) -> None:
        """See :meth:`Coordinator.close`."""
        if self._compacting is not None:
            self._compacting.cancel()
            await asyncio.gather(self._compacting, return_exceptions=True)
        self._renewals.close()
        await self._link.close()
        await asyncio.to_thread(self._renewals.join)

    async def compact(self, revision: int) -> None:
        """Delete the history up to ``revision``. Current values stay."""
        request = etcd.CompactionRequest(revision=revision)
        with suppress(CompactedError):
            await self._link.call(_COMPACT, request, etcd.CompactionResponse, repeatable=True)

    def _begin(self) -> None:
        if self._compacting is None and self.settings.history > 0 and not self._link.is_closed():
            self._compacting = asyncio.get_running_loop().create_task(self._compact_again_and_again())

    async def _compact_again_and_again(self) -> None:
        """Compact at intervals, up to the revision that this client saw one period ago.

        Of all clients, one at a time compacts. Each tries to change one key at the revision that it saw last. If this
        fails, another client has compacted since.
        """
        seen = revision = 0
        while True:
            await asyncio.sleep(self.settings.history)
            try:
                outcome = await self.transact([Compare(_COMPACTED, seen)], [Put(_COMPACTED, b"%d" % revision)])
                if outcome.committed:
                    if revision:
                        await self.compact(revision)
                    seen = outcome.revision
                else:
                    entry = await self.get(_COMPACTED)
                    seen = 0 if entry is None else entry.modified
                revision = outcome.revision
            except CoordinatorError as error:
                log.warning("old revisions could not be compacted, trying again: %s", error)
