"""The coordinator's contract on etcd (section 7.1). Its invariants are in docs/decisions/0011-coordination.md."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final

import grpc

from millwheel.coordination.contract import (
    Change,
    CompactedError,
    Compare,
    CoordinatorError,
    CoordinatorUnavailableError,
    DamagedValueError,
    Entry,
    LeaseExpiredError,
    Outcome,
    Put,
    Snapshot,
)
from millwheel.coordination.etcd import failures
from millwheel.coordination.etcd.keyspace import Keyspace, opened
from millwheel.coordination.etcd.leases import HeldLeases, seconds_since_boot
from millwheel.coordination.etcd.link import FIRST_ATTEMPT, Link
from millwheel.coordination.etcd.settings import EtcdSettings
from millwheel.coordination.etcd.v3 import etcd_pb2 as etcd
from millwheel.coordination.etcd.watching import Watching
from millwheel.store.envelope import wrap

__all__ = ["EtcdCoordinator"]

_RANGE: Final = "/etcdserverpb.KV/Range"
_TXN: Final = "/etcdserverpb.KV/Txn"
_COMPACT: Final = "/etcdserverpb.KV/Compact"
_GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
_REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"

_PAGE: Final = 256
"""Keys in one answer: chunks of interval maps are up to 192 KiB, and mostly some 15."""
_COMPACTED: Final = "compacted"
"""The key by which clients agree on who compacts: it holds the revision up to which somebody last did."""

log = logging.getLogger("millwheel.coordination")


class EtcdCoordinator:
    """A :class:`~millwheel.coordination.contract.Coordinator` whose state is in etcd 3.4 or newer.

    It connects at the first call, and again whenever it has to. A call that reads, or that may be repeated, is made
    again at the other members until the timeout has passed; a transaction is made once.
    """

    def __init__(self, settings: EtcdSettings, clock: Callable[[], float] = seconds_since_boot) -> None:
        """ValueError if a TLS file cannot be read. ``clock``: what leases are judged by."""
        self.settings = settings
        self._link = Link(settings)
        self._keyspace = Keyspace(settings.prefix)
        self._leases = HeldLeases(clock)
        self._compacting: asyncio.Task[None] | None = None

    # Keys.

    async def get(self, key: str) -> Entry | None:
        """See :meth:`Coordinator.get`."""
        answer = await self._range(etcd.RangeRequest(key=self._keyspace.key(key)))
        entry = self._entry(answer.kvs[0]) if answer.kvs else None
        if entry is not None and entry.damage:
            raise DamagedValueError(key, entry.damage)
        return entry

    async def list(self, prefix: str) -> Snapshot:
        """See :meth:`Coordinator.list`. Read page by page, all of them as of the first one's revision."""
        while True:
            try:
                return await self._list(prefix)
            except CompactedError:
                log.info("a listing took longer than revisions are kept, and begins anew")

    async def _list(self, prefix: str) -> Snapshot:
        key, end = self._keyspace.span(prefix)
        entries: list[Entry] = []
        revision = 0
        while True:
            answer = await self._range(etcd.RangeRequest(key=key, range_end=end, limit=_PAGE, revision=revision))
            revision = revision or answer.header.revision
            entries += [self._entry(pair) for pair in answer.kvs]
            if not answer.more:
                return Snapshot(revision, tuple(entries))
            key = answer.kvs[-1].key + b"\0"

    async def _range(self, request: etcd.RangeRequest) -> etcd.RangeResponse:
        self._begin()
        return await self._link.call(_RANGE, request, etcd.RangeResponse, repeatable=True)

    def _entry(self, pair: etcd.KeyValue) -> Entry:
        name = self._keyspace.name(pair.key)
        value, damage = opened(pair.value)
        return Entry(name, value, pair.create_revision, pair.mod_revision, pair.lease, damage)

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> Outcome:
        """See :meth:`Coordinator.transact`. TransactionTooLargeError if it is more than etcd takes at a time."""
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
        return Outcome(answer.succeeded, answer.header.revision)

    def watch(self, prefix: str, after: int) -> AsyncIterator[tuple[Change, ...]]:
        """See :meth:`Coordinator.watch`. While etcd is away it waits, and then goes on where it was."""
        return Watching(self._link, self._keyspace, prefix, after).changes()

    # Leases.

    async def grant_lease(self, ttl: float) -> int:
        """See :meth:`Coordinator.grant_lease`. etcd counts in whole seconds, and takes none below about two."""
        self._begin()
        asked = self._leases.now()
        request = etcd.LeaseGrantRequest(ttl=max(1, math.ceil(ttl)))
        # Repeated, it may grant two: one that nobody knows of, and that ends by itself.
        answer = await self._link.call(_GRANT, request, etcd.LeaseGrantResponse, repeatable=True)
        self._leases.renewed(answer.id, answer.ttl, asked)
        return answer.id

    async def keep_alive(self, lease: int) -> None:
        """See :meth:`Coordinator.keep_alive`. A lease that was not renewed for its time by this machine's own clock is
        not renewed any more, but revoked: its holder may have been taken for gone."""
        if not self._leases.is_over(lease):
            asked = self._leases.now()
            ttl = await self._renew(lease)
            if ttl <= 0:
                self._leases.forget(lease)
                raise LeaseExpiredError(f"lease {lease:x} has ended, and what was bound to it is gone")
            self._leases.renewed(lease, ttl, asked)
        if self._leases.is_over(lease):
            with suppress(CoordinatorUnavailableError):
                await self.revoke_lease(lease)
            raise LeaseExpiredError(f"lease {lease:x} was not renewed in time, and has ended")

    async def _renew(self, lease: int) -> int:
        """The seconds that etcd gives, 0 for a lease that has ended. etcd renews by streams alone: one a call."""
        self._begin()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.timeout
        why, attempts = "no connection", 0
        while not self._link.is_closed() and loop.time() < end:
            address = ""
            # A member that stands still must not cost the lease: the next one is asked while there is time.
            patience = FIRST_ATTEMPT * 2 ** (attempts // 2)
            attempts += 1
            try:
                async with asyncio.timeout(min(patience, max(0.5, end - loop.time()))):
                    stream, address = await self._link.open(
                        _KEEP_ALIVE, etcd.LeaseKeepAliveRequest, etcd.LeaseKeepAliveResponse
                    )
                    try:
                        answer = await self._link.exchange(stream, etcd.LeaseKeepAliveRequest(id=lease))
                    finally:
                        stream.cancel()
                if isinstance(answer, etcd.LeaseKeepAliveResponse):
                    return answer.ttl
            except grpc.aio.AioRpcError as error:
                why = f"{address}: {error.details() or error.code().name}"
                if self._link.judge(error.code(), error.details() or "") is failures.Verdict.FINAL:
                    raise failures.refusal(self.settings, error.details() or error.code().name) from error
            except (TimeoutError, CoordinatorUnavailableError) as error:
                why = f"{address}: no answer" if isinstance(error, TimeoutError) else str(error)
            self._link.failed(address)
            await self._link.pause(0.05)
        raise failures.closed() if self._link.is_closed() else failures.unavailable(self.settings, why)

    async def revoke_lease(self, lease: int) -> None:
        """See :meth:`Coordinator.revoke_lease`."""
        self._begin()
        with suppress(LeaseExpiredError):
            request = etcd.LeaseRevokeRequest(id=lease)
            await self._link.call(_REVOKE, request, etcd.LeaseRevokeResponse, repeatable=True)
        self._leases.forget(lease)

    # Life.

    async def close(self) -> None:
        """See :meth:`Coordinator.close`."""
        if self._compacting is not None:
            self._compacting.cancel()
            await asyncio.gather(self._compacting, return_exceptions=True)
        await self._link.close()

    async def compact(self, revision: int) -> None:
        """Forget what was changed at ``revision`` and before, but for what is still there."""
        request = etcd.CompactionRequest(revision=revision)
        with suppress(CompactedError):
            await self._link.call(_COMPACT, request, etcd.CompactionResponse, repeatable=True)

    def _begin(self) -> None:
        if self._compacting is None and self.settings.history > 0 and not self._link.is_closed():
            self._compacting = asyncio.get_running_loop().create_task(self._compact_again_and_again())

    async def _compact_again_and_again(self) -> None:
        """Of all clients one at a time compacts, up to the revision that it saw one period ago.

        Each tries to change one key that it saw last time; who does not succeed knows that another has compacted since.
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
