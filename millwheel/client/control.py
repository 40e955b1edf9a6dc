"""The control plane from outside: packages, topologies, intervals, routing, injection, as calls that a program awaits.

Every failure is a :class:`~millwheel.rpc.failures.RequestError` that says what is wrong and what to do. A replica of
the master that only stands by names the leader, and the client goes on there.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Final, TypeVar
from uuid import uuid4

import grpc

from millwheel.client.routing_view import RoutingView
from millwheel.rpc.addresses import DEFAULT_PORT, server_addresses
from millwheel.rpc.channel import DEFAULT_DEADLINE, RETRYABLE, Backoff, open_channel, retrying
from millwheel.rpc.errors import calling, ended_unheard
from millwheel.rpc.failures import NOT_LEADING, FailureCode, RequestError
from millwheel.rpc.hook_failures import moment
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    control_pb2_grpc,
    injection_pb2_grpc,
    interval_pb2,
    interval_pb2_grpc,
)
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import injection_pb2 as injection
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import Problem

__all__ = ["DEFAULT_ADDRESS", "ControlClient"]

DEFAULT_ADDRESS: Final = f"127.0.0.1:{DEFAULT_PORT}"
"""Where ``millwheel server start-dev`` listens unless it is told otherwise."""

_CHUNK_BYTES: Final = 512 << 10
_UPLOAD_DEADLINE: Final = 120.0

Answer = TypeVar("Answer")


class ControlClient:
    """A client of the master; use it as ``async with``.

    ``address``: host or host:port of a replica, or of several with commas between them. One of them has to be there;
    a replica that stands by names the leader. Without a port it is 7433. RequestError if it is no address.

    ``patience``: for how many seconds a call that fails in passing (no leader, no connection) is tried again;
    0 fails at once. What changes topologies or intervals carries a request id, so that trying again repeats nothing;
    all else may be done twice.
    """

    def __init__(
        self, address: str = DEFAULT_ADDRESS, *, deadline: float = DEFAULT_DEADLINE, patience: float = 0.0
    ) -> None:
        self._homes = server_addresses(address) or [DEFAULT_ADDRESS]
        self.address = self._homes[0]
        self.failure: RequestError | None = None
        """Why the last call failed; None if it did not. A caller that waits shows it."""
        self._failing_since = 0.0
        """When the first of the calls failed that have failed since the last answer, in seconds since 1970."""
        self._deadline = deadline
        self._patience = patience
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> ControlClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def awaited(self) -> str:
        """What a program waits for that calls this client, in words: the cluster, and why the last call failed."""
        why = "" if self.failure is None else f": {self.failure.message}"
        return f"the cluster at {', '.join(self._homes)}{why}"

    def unreachable(self) -> str:
        """That the cluster cannot be reached, why, and since when; empty if the last call was answered."""
        if self.failure is None or self.failure.code not in RETRYABLE:
            return ""
        return f"{self.failure.message}, since {moment(int(self._failing_since * 1e6))}"

    def _note(self, failure: RequestError | None) -> None:
        """Remember how a call ended."""
        if failure is not None and self.failure is None:
            self._failing_since = time.time()
        self.failure = failure

    async def close(self) -> None:
        """Close the connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close(None)

    # Packages and topologies.

    async def upload_package(self, digest: str, content: bytes) -> bool:
        """Store a code package under its SHA-256 in hex; False if it was known already."""

        async def chunks() -> AsyncIterator[control.UploadPackageRequest]:
            yield control.UploadPackageRequest(digest=digest)
            for start in range(0, len(content), _CHUNK_BYTES):
                yield control.UploadPackageRequest(chunk=content[start : start + _CHUNK_BYTES])

        async def upload() -> control.UploadPackageResponse:
            try:
                return await self._topologies().UploadPackage(chunks(), timeout=_UPLOAD_DEADLINE)
            except grpc.aio.AioRpcError as error:
                if ended_unheard(error):
                    # Perhaps another replica leads: a call that writes nothing more is told which.
                    await self._topologies().ListTopologies(control.ListTopologiesRequest(), timeout=DEFAULT_DEADLINE)
                raise

        return not (await self._call(upload)).already_known

    async def download_package(self, digest: str) -> bytes:
        """The code package of that digest."""

        async def whole() -> bytes:
            request = control.DownloadPackageRequest(digest=digest)
            call = self._topologies().DownloadPackage(request, timeout=_UPLOAD_DEADLINE)
            return b"".join([response.chunk async for response in call])

        return await self._call(whole)

    async def submit(self, spec: specs.TopologySpec, request_id: str = "") -> catalog.TopologyRecord:
        """Run a topology whose package is uploaded; everything wrong with it is in the error's ``problems``."""
        request = control.SubmitTopologyRequest(spec=spec, request_id=request_id or uuid4().hex)
        answer = await self._call(lambda: self._topologies().SubmitTopology(request, timeout=self._deadline))
        return answer.topology

    async def validate(self, spec: specs.TopologySpec, *, update: bool = False) -> list[Problem]:
        """Everything wrong with a topology, beside those that run, or with an update of one; changes nothing."""
        request = control.ValidateTopologyRequest(spec=spec, update=update)
        answer = await self._call(lambda: self._topologies().ValidateTopology(request, timeout=self._deadline))
        return [Problem(problem.where, problem.message) for problem in answer.problems]

    async def list_topologies(self, page_size: int = 0) -> list[catalog.TopologyRecord]:
        """Every topology, in the order of their names."""
        found: list[catalog.TopologyRecord] = []
        request = control.ListTopologiesRequest(page_size=page_size)
        while True:
            answer = await self._call(lambda: self._topologies().ListTopologies(request, timeout=self._deadline))
            found += answer.topologies
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token

    async def get_topology(self, name: str) -> control.GetTopologyResponse:
        """A topology with its interval maps and logs; while it drains, what it waits for."""
        request = control.GetTopologyRequest(name=name)
        return await self._call(lambda: self._topologies().GetTopology(request, timeout=self._deadline))

    async def drain(self, name: str) -> catalog.TopologyRecord:
        """Have a topology take no more injections and run out; returns as soon as that has begun."""
        request = control.DrainTopologyRequest(name=name, request_id=uuid4().hex)
        return (await self._call(lambda: self._topologies().DrainTopology(request, timeout=self._deadline))).topology

    async def update(
        self, spec: specs.TopologySpec, request_id: str = "", expected_version: int = 0
    ) -> catalog.TopologyRecord:
        """Make a new version of a running or paused topology; its packages are uploaded.

        Returns as soon as it is decided; :meth:`get_topology` tells what it waits for. RequestError (ABORTED) unless
        it has ``expected_version`` (0: whatever it has); everything wrong with it is in the error's ``problems``.
        """
        request = control.UpdateTopologyRequest(
            spec=spec, request_id=request_id or uuid4().hex, expected_version=expected_version
        )
        return (await self._call(lambda: self._topologies().UpdateTopology(request, timeout=self._deadline))).topology

    async def pause(self, name: str) -> catalog.TopologyRecord:
        """Take the owners from a topology's intervals; state, timers and everything pending are kept."""
        request = control.PauseTopologyRequest(name=name, request_id=uuid4().hex)
        return (await self._call(lambda: self._topologies().PauseTopology(request, timeout=self._deadline))).topology

    async def resume(self, name: str) -> catalog.TopologyRecord:
        """Let a paused topology go on."""
        request = control.ResumeTopologyRequest(name=name, request_id=uuid4().hex)
        return (await self._call(lambda: self._topologies().ResumeTopology(request, timeout=self._deadline))).topology

    async def cancel(self, name: str, request_id: str = "") -> catalog.TopologyRecord:
        """Stop a topology at once, and give up its state."""
        request = control.CancelTopologyRequest(name=name, request_id=request_id or uuid4().hex)
        return (await self._call(lambda: self._topologies().CancelTopology(request, timeout=self._deadline))).topology

    # Intervals.

    async def list_intervals(
        self, topology: str = "", computation: str = "", page_size: int = 0
    ) -> list[interval_pb2.IntervalStatus]:
        """The intervals of a computation, of a topology, or all, with what their owners last told of their load."""
        found: list[interval_pb2.IntervalStatus] = []
        request = interval_pb2.ListIntervalsRequest(topology=topology, computation=computation, page_size=page_size)
        while True:
            answer = await self._call(lambda: self._intervals().ListIntervals(request, timeout=self._deadline))
            found += answer.intervals
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token

    async def move_interval(
        self, interval: interval_pb2.IntervalName, worker: str = "", request_id: str = ""
    ) -> catalog.IntervalRecord:
        """Give an interval to ``worker``; empty: to the least loaded other one that may run it."""
        request = interval_pb2.MoveIntervalRequest(
            interval=interval, worker_id=worker, request_id=request_id or uuid4().hex
        )
        answer = await self._call(lambda: self._intervals().MoveInterval(request, timeout=self._deadline))
        return answer.interval

    async def split_interval(
        self, interval: interval_pb2.IntervalName, at: bytes | None = None, worker: str = "", request_id: str = ""
    ) -> list[catalog.IntervalRecord]:
        """Cut an interval in two: below ``at`` and from there on; None: where its load is halved.

        ``worker`` is to own the upper half; empty: whoever owns the whole.
        """
        request = interval_pb2.SplitIntervalRequest(
            interval=interval, at=at, worker_id=worker, request_id=request_id or uuid4().hex
        )
        answer = await self._call(lambda: self._intervals().SplitInterval(request, timeout=self._deadline))
        return list(answer.intervals)

    async def merge_intervals(
        self, interval: interval_pb2.IntervalName, worker: str = "", request_id: str = ""
    ) -> catalog.IntervalRecord:
        """Make one of an interval and the next; ``worker`` is to own it, empty: whoever owns the one that is named."""
        request = interval_pb2.MergeIntervalsRequest(
            interval=interval, worker_id=worker, request_id=request_id or uuid4().hex
        )
        answer = await self._call(lambda: self._intervals().MergeIntervals(request, timeout=self._deadline))
        return answer.interval

    async def cluster_health(self) -> cluster_pb2.GetClusterHealthResponse:
        """Masters, workers, authority, store and intervals, and everything that is wrong with them."""
        request = cluster_pb2.GetClusterHealthRequest()
        return await self._call(lambda: self._cluster().GetClusterHealth(request, timeout=self._deadline))

    # Routing.

    async def hook_failures(
        self, topology: str = "", computation: str = "", stream: str = ""
    ) -> list[cluster_pb2.ComputationFailures]:
        """The computations whose hooks raise, as workers reported within the last seconds.

        Args:
            topology: only computations of this topology; empty: all.
            computation: only those of this name; empty: all.
            stream: only consumers of this stream, say to learn why its records are not ACKed; empty: all.

        Returns:
            Each has a ``text`` that says everything, and ``blocks``: whether its senders wait for ACKs because of it.
        """
        request = cluster_pb2.ListHookFailuresRequest(topology=topology, computation=computation, stream=stream)
        answer = await self._call(lambda: self._cluster().ListHookFailures(request, timeout=self._deadline))
        return list(answer.computations)

    async def ensure_stream_log(self, stream: str) -> control.EnsureStreamLogResponse:
        """Where the log of a stream is; one is made where there is none."""
        request = control.EnsureStreamLogRequest(stream=stream)
        return await self._call(lambda: self._routing().EnsureStreamLog(request, timeout=self._deadline))

    async def routing(self, stream: str) -> control.WatchRoutingResponse:
        """Where the records of a stream go just now, its log included if it has one. A look: it changes nothing."""

        async def first() -> control.WatchRoutingResponse:
            call = self._routing().WatchRouting(control.WatchRoutingRequest(stream=stream), timeout=self._deadline)
            view = RoutingView()
            try:
                async for response in call:
                    whole = view.take(response)
                    if whole is not None:
                        return whole
            finally:
                call.cancel()
            raise RequestError(FailureCode.UNAVAILABLE, f"{self.address} told no routing of stream {stream!r}")

        return await self._call(first)

    async def watch_routing(self, stream: str) -> AsyncIterator[control.WatchRoutingResponse]:
        """The routing of a stream, then again after each change, for as long as it is iterated.

        A broken watch is taken up again until ``patience`` seconds have passed without an answer. Yields only
        what differs from the routing before.
        """
        request = control.WatchRoutingRequest(stream=stream)
        backoff, failures, failing_since = Backoff(), 0, 0.0
        loop = asyncio.get_running_loop()
        last = b""
        while True:
            try:
                view = RoutingView()
                async with calling(self.address):
                    async for response in self._routing().WatchRouting(request):
                        failures = 0
                        self._note(None)
                        whole = view.take(response)
                        if whole is None:
                            continue
                        content = _without_revision(whole)
                        if content != last:
                            last = content
                            yield whole
                return
            except RequestError as error:
                self._note(error)
                failing_since = loop.time() if failures == 0 else failing_since
                failures += 1
                remaining = failing_since + self._patience - loop.time()
                if error.code not in RETRYABLE or remaining <= 0:
                    raise
                delay = min(remaining, backoff.delay(failures, random.random()))
                self._follow(error)
            await asyncio.sleep(delay)

    # Injection.

    async def open_injector(self, stream: str, process: str) -> injection.OpenInjectorResponse:
        """Draw a sequencer for an injector process; older ones of that name are dead from now on."""
        request = injection.OpenInjectorRequest(stream=stream, process=process)
        return await self._call(lambda: self._injection().OpenInjector(request, timeout=self._deadline))

    async def list_injectors(self, stream: str = "") -> list[injection.InjectorStatus]:
        """The injector processes of a stream, or of all."""
        request = injection.ListInjectorsRequest(stream=stream)
        answer = await self._call(lambda: self._injection().ListInjectors(request, timeout=self._deadline))
        return list(answer.injectors)

    async def batch_cursor(self, query: str) -> int:
        """The last batch of a batch source that is wholly in; -1: none."""
        request = injection.GetBatchCursorRequest(query=query)
        answer = await self._call(lambda: self._injection().GetBatchCursor(request, timeout=self._deadline))
        return answer.committed_batch

    async def commit_batch(self, query: str, batch: int) -> None:
        """Say that every batch up to ``batch`` is in; a smaller one than before changes nothing."""
        request = injection.CommitBatchRequest(query=query, batch=batch)
        await self._call(lambda: self._injection().CommitBatch(request, timeout=self._deadline))

    async def batch_cursors(self) -> list[injection.BatchCursor]:
        """The cursors of all batch sources, by query."""
        found: list[injection.BatchCursor] = []
        request = injection.ListBatchCursorsRequest()
        while True:
            answer = await self._call(partial(self._list_cursors, request))
            found += answer.cursors
            if not answer.next_page_token:
                return found
            request = injection.ListBatchCursorsRequest(page_token=answer.next_page_token)

    async def _list_cursors(self, request: injection.ListBatchCursorsRequest) -> injection.ListBatchCursorsResponse:
        return await self._injection().ListBatchCursors(request, timeout=self._deadline)

    async def retire_injector(self, stream: str, process: str) -> None:
        """Have all that is known of a finished process's records forgotten, for good. RequestError if it has not."""
        request = injection.RetireInjectorRequest(stream=stream, process=process)
        await self._call(lambda: self._injection().RetireInjector(request, timeout=self._deadline))

    async def retire_query(self, query: str) -> None:
        """Have a batch source forgotten, for good: a batch of it that came again would be taken for a new one."""
        request = injection.RetireQueryRequest(query=query)
        await self._call(lambda: self._injection().RetireQuery(request, timeout=self._deadline))

    # Calls.

    def _channel(self) -> grpc.aio.Channel:
        if self.address not in self._channels:
            self._channels[self.address] = open_channel(self.address)
        return self._channels[self.address]

    def _topologies(self) -> control_pb2_grpc.TopologyServiceAsyncStub:
        return control_pb2_grpc.TopologyServiceStub(self._channel())

    def _routing(self) -> control_pb2_grpc.RoutingServiceAsyncStub:
        return control_pb2_grpc.RoutingServiceStub(self._channel())

    def _intervals(self) -> interval_pb2_grpc.IntervalServiceAsyncStub:
        return interval_pb2_grpc.IntervalServiceStub(self._channel())

    def _cluster(self) -> cluster_pb2_grpc.ClusterServiceAsyncStub:
        return cluster_pb2_grpc.ClusterServiceStub(self._channel())

    def _injection(self) -> injection_pb2_grpc.InjectionServiceAsyncStub:
        return injection_pb2_grpc.InjectionServiceStub(self._channel())

    async def _call(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Call; where another replica leads, call there."""

        async def once() -> Answer:
            try:
                async with calling(self.address):
                    answer = await call()
            except RequestError as error:
                self._note(error)
                raise
            self._note(None)
            return answer

        async def following() -> Answer:
            # Every replica that is known, and the leader that one of them names.
            for _ in range(len(self._homes) + 1):
                try:
                    return await once()
                except RequestError as error:
                    if not self._follow(error):
                        raise
            return await once()

        return await retrying(following, patience=self._patience)

    def _follow(self, error: RequestError) -> bool:
        """Go where the leader is, or from where none is to the next; whether calling again at once makes sense."""
        if error.reason == NOT_LEADING and error.leader and error.leader != self.address:
            self.address = error.leader
            return True
        if error.code not in (FailureCode.UNAVAILABLE, FailureCode.DEADLINE_EXCEEDED):
            return False
        before, homes = self.address, self._homes
        self.address = homes[(homes.index(before) + 1) % len(homes)] if before in homes else homes[0]
        # A call that was not answered has used up its time.
        return error.code is FailureCode.UNAVAILABLE and self.address != before


def _without_revision(response: control.WatchRoutingResponse) -> bytes:
    plain = control.WatchRoutingResponse()
    plain.CopyFrom(response)
    plain.revision = 0
    return plain.SerializeToString(deterministic=True)
