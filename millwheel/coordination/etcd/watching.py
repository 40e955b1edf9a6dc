"""Watches that survive lost connections and members. Each continues after the last revision that it reported."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from itertools import groupby
from typing import Final

import grpc

from millwheel.coordination.contract import CompactedError, CoordinatorUnavailableError, KeyChange
from millwheel.coordination.etcd import failures
from millwheel.coordination.etcd.failures import RetryDecision
from millwheel.coordination.etcd.keyspace import Keyspace, opened
from millwheel.coordination.etcd.link import BACKOFF, EtcdConnection, Stream
from millwheel.coordination.etcd.v3 import etcd_pb2 as etcd

__all__ = ["Watching"]

_WATCH: Final = "/etcdserverpb.Watch/Watch"
_REFUSED: Final = ("permission denied", "user name is empty")
log = logging.getLogger("millwheel.coordination")


class _AwayError(Exception):
    """The stream has ended. A new stream can continue from the last revision."""


class Watching:
    """One watch below one prefix, on one stream after another."""

    def __init__(self, link: EtcdConnection, keyspace: Keyspace, prefix: str, after: int) -> None:
        self._link = link
        self._keyspace = keyspace
        self._prefix = prefix
        self._after = after
        self._cluster = 0
        self._failures = 0
        self._silent = False

    async def changes(self) -> AsyncGenerator[tuple[KeyChange, ...], None]:
        """Yield one tuple per revision, until the connection is closed.

        CompactedError if a revision is no longer kept; CoordinatorUnavailableError if etcd refuses the watch.
        """
        while not self._link.is_closed():
            address = ""
            try:
                opened = await self._link.unless_closed(self._link.open(_WATCH, etcd.WatchRequest, etcd.WatchResponse))
                if opened is None:
                    return
                stream, address = opened
                try:
                    async with aclosing(self._of_stream(stream)) as groups:
                        async for group in groups:
                            yield group
                finally:
                    stream.cancel()
            except (_AwayError, grpc.aio.AioRpcError, CoordinatorUnavailableError) as error:
                if self._link.is_closed():
                    return
                self._judge(error)
                self._link.failed(address)
                self._failures += 1
                await self._link.pause(BACKOFF.delay(self._failures, random.random()))

    def _judge(self, error: Exception) -> None:
        """Return if the watch can go on with a new stream, else raise the contract's error."""
        if isinstance(error, failures.RefusedError):
            raise error
        text = str(error)
        if isinstance(error, grpc.aio.AioRpcError):
            text = error.details() or error.code().name
            if self._link.judge(error.code(), text) is RetryDecision.FINAL:
                raise failures.refusal(self._link.settings, text) from error
        if not self._silent:
            self._silent = True
            log.warning("a watch of etcd broke off, and goes on after revision %d: %s", self._after, text)

    async def _of_stream(self, stream: Stream) -> AsyncGenerator[tuple[KeyChange, ...], None]:
        key, end = self._keyspace.span(self._prefix)
        create = etcd.WatchCreateRequest(key=key, range_end=end, start_revision=self._after + 1, fragment=True)
        request: etcd.WatchRequest | None = etcd.WatchRequest(create_request=create)
        events: list[etcd.Event] = []
        while True:
            response = await self._link.exchange(stream, request)
            request = None
            if not isinstance(response, etcd.WatchResponse):
                raise _AwayError("the stream has ended")
            self._check(response)
            if response.events:
                self._failures = 0
                self._silent = False
            # A large answer arrives in several fragments. A revision is complete only after the last fragment.
            events += response.events
            if response.fragment:
                continue
            whole, events = events, []
            for revision, group in groupby(whole, key=lambda event: event.kv.mod_revision):
                if revision > self._after:
                    changes = self._changes(revision, group)
                    self._after = revision
                    yield changes

    def _check(self, response: etcd.WatchResponse) -> None:
        if self._cluster not in (0, response.header.cluster_id):
            # The cluster was created again, or restored from a copy. Its revisions differ from those seen so far.
            raise CompactedError("another etcd cluster answers than before: list again, and watch from there")
        self._cluster = response.header.cluster_id
        if response.compact_revision:
            raise CompactedError(
                f"revision {self._after + 1} is no longer kept, the oldest is {response.compact_revision}: list again"
            )
        if response.canceled:
            verdict = self._link.judge(grpc.StatusCode.PERMISSION_DENIED, response.cancel_reason)
            if verdict is RetryDecision.FINAL and any(text in response.cancel_reason for text in _REFUSED):
                raise failures.refusal(self._link.settings, response.cancel_reason)
            raise _AwayError(response.cancel_reason or "the watch was cancelled")

    def _changes(self, revision: int, events: Iterable[etcd.Event]) -> tuple[KeyChange, ...]:
        return tuple(self._change(revision, event) for event in events)

    def _change(self, revision: int, event: etcd.Event) -> KeyChange:
        name = self._keyspace.name(event.kv.key)
        if event.type == etcd.Event.EventType.EVENT_TYPE_DELETE:
            return KeyChange(name, None, revision)
        value, damage = opened(event.kv.value)
        return KeyChange(name, value, revision, damage)
