"""A client of the master: packages, topologies, intervals, routing and injection, as calls to await.

Every failure is a :class:`~millwheel.rpc.failures.RequestError` that says what is wrong and what to do. A standby
master names the leader, and the client continues there.
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
from google.protobuf.message import Message

from millwheel.client.routing_view import RoutingView
from millwheel.model.backoff import Backoff
from millwheel.model.snapshot_names import snapshot_name
from millwheel.model.stream_names import is_full
from millwheel.rpc.access.delegation import delegation
from millwheel.rpc.addresses import DEFAULT_PORT, server_addresses
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, RETRYABLE, open_channel, retrying
from millwheel.rpc.clock import wall_now
from millwheel.rpc.errors import calling, ended_without_reason
from millwheel.rpc.failures import NOT_LEADING, FailureCode, RequestError
from millwheel.rpc.raised_errors import moment
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    control_pb2_grpc,
    injection_pb2_grpc,
    interval_pb2,
    interval_pb2_grpc,
    snapshot_pb2,
    snapshot_pb2_grpc,
)
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import injection_pb2 as injection
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import Problem

__all__ = ["DEFAULT_ADDRESS", "ControlClient"]

DEFAULT_ADDRESS: Final = f"127.0.0.1:{DEFAULT_PORT}"
"""The default address of ``millwheel server start-dev``."""

_CHUNK_BYTES: Final = 512 << 10
_MAX_PAGE_ROWS: Final = 1_000
_UPLOAD_DEADLINE_SECONDS: Final = 120.0

Answer = TypeVar("Answer")
Response = TypeVar("Response", bound=Message)


class ControlClient:
    """A client of the master. Use it with ``async with``.

    It has many methods: one for each request that a master answers.

    Args:
        address: host or host:port of a master; several with commas between them. One of them must be reachable, since
            a standby master names the leader. The default port is 7433.
        deadline: The timeout of one call, in seconds.
        patience: Seconds to retry a call after a failure that may pass (no leader, no connection). 0 fails at once.
            Calls that change topologies or intervals carry a request id, so a retry does not repeat the change. Any
            other call may take effect twice.

    Raises:
        RequestError: ``address`` is not an address.
    """

    def __init__(
        self, address: str = DEFAULT_ADDRESS, *, deadline: float = DEFAULT_DEADLINE_SECONDS, patience: float = 0.0
    ) -> None:
        self._homes = server_addresses(address) or [DEFAULT_ADDRESS]
        self.address = self._homes[0]
        self.failure: RequestError | None = None
        """Why the last call failed. None if it succeeded. A caller that waits shows it."""
        self._failing_since = 0.0
        """When the first call failed after the last success, in seconds since 1970."""
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
        """What a caller of this client waits for: the cluster, and why the last call failed."""
        why = "" if self.failure is None else f": {self.failure.message}"
        return f"the cluster at {', '.join(self._homes)}{why}"

    def unreachable(self) -> str:
        """Why the cluster cannot be reached, and since when. Empty if the last call was answered."""
        if self.failure is None or self.failure.code not in RETRYABLE:
            return ""
        return f"{self.failure.message}, since {moment(int(self._failing_since * 1e6))}"

    def _note(self, failure: RequestError | None) -> None:
        """Record the result of a call."""
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
        """Store a code package under its SHA-256 in hex. Returns False if the package was stored already."""

        async def chunks(content: bytes) -> AsyncIterator[control.UploadPackageRequest]:
            yield control.UploadPackageRequest(digest=digest)
            for start in range(0, len(content), _CHUNK_BYTES):
                yield control.UploadPackageRequest(chunk=content[start : start + _CHUNK_BYTES])

        async def upload(content: bytes) -> control.UploadPackageResponse:
            try:
                return await self._topologies().UploadPackage(chunks(content), timeout=_UPLOAD_DEADLINE_SECONDS)
            except grpc.aio.AioRpcError as error:
                if ended_without_reason(error):
                    # Another master may lead. The error of a call that writes nothing more names the leader.
                    await self._topologies().ListTopologies(
                        control.ListTopologiesRequest(), timeout=DEFAULT_DEADLINE_SECONDS
                    )
                raise

        # The digest alone asks whether the package is known.
        if content and (await self._call(lambda: upload(b""))).already_known:
            return False
        return not (await self._call(lambda: upload(content))).already_known

    async def download_package(self, digest: str) -> bytes:
        """Fetch the code package with this SHA-256 in hex."""

        async def whole() -> bytes:
            request = control.DownloadPackageRequest(digest=digest)
            call = self._topologies().DownloadPackage(request, timeout=_UPLOAD_DEADLINE_SECONDS)
            return b"".join([response.chunk async for response in call])

        return await self._call(whole)

    async def submit(self, spec: specs.TopologySpec, request_id: str = "") -> catalog.TopologyRecord:
        """Run a topology whose package is uploaded. If it is invalid, the error's ``problems`` list every problem."""
        request = control.SubmitTopologyRequest(spec=spec, request_id=request_id or uuid4().hex)
        answer = await self._call(lambda: self._topologies().SubmitTopology(request, timeout=self._deadline))
        return answer.topology

    async def validate(self, spec: specs.TopologySpec, *, update: bool = False) -> list[Problem]:
        """List every problem that a topology, or an update, would have among the running ones. Changes nothing."""
        request = control.ValidateTopologyRequest(spec=spec, update=update)
        answer = await self._call(lambda: self._topologies().ValidateTopology(request, timeout=self._deadline))
        return [Problem(problem.where, problem.message) for problem in answer.problems]

    async def list_topologies(self, page_size: int = 0) -> list[catalog.TopologyRecord]:
        """Every topology, ordered by name."""
        found: list[catalog.TopologyRecord] = []
        request = control.ListTopologiesRequest(page_size=page_size)
        while True:
            answer = await self._call(lambda: self._topologies().ListTopologies(request, timeout=self._deadline))
            found += answer.topologies
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token

    async def get_topology(self, name: str) -> control.GetTopologyResponse:
        """A topology with its interval maps and logs. While it drains, the answer says what it waits for."""
        request = control.GetTopologyRequest(name=name)
        return await self._call(lambda: self._topologies().GetTopology(request, timeout=self._deadline))

    async def drain(self, name: str) -> catalog.TopologyRecord:
        """Drain a topology: it takes no more injected records and finishes its work.

        Returns when the drain has begun.
        """
        request = control.DrainTopologyRequest(name=name, request_id=uuid4().hex)
        return (await self._call(lambda: self._topologies().DrainTopology(request, timeout=self._deadline))).topology

    async def update(
        self, spec: specs.TopologySpec, request_id: str = "", expected_version: int = 0
    ) -> catalog.TopologyRecord:
        """Make a new version of a running or paused topology whose packages are uploaded.

        Returns as soon as the update is accepted. :meth:`get_topology` says what the update waits for.

        Args:
            spec: The new version.
            request_id: Identifies the request, so that a retry does not repeat it.
            expected_version: The version to replace. 0 means any.

        Raises:
            RequestError: The topology has another version (ABORTED), or the update is invalid. The error's ``problems``
                list every problem.
        """
        request = control.UpdateTopologyRequest(
            spec=spec, request_id=request_id or uuid4().hex, expected_version=expected_version
        )
        return (await self._call(lambda: self._topologies().UpdateTopology(request, timeout=self._deadline))).topology

    async def pause(self, name: str) -> catalog.TopologyRecord:
        """Pause a topology: its intervals have no owners. State, timers and pending work are kept."""
        request = control.PauseTopologyRequest(name=name, request_id=uuid4().hex)
        return (await self._call(lambda: self._topologies().PauseTopology(request, timeout=self._deadline))).topology

    async def resume(self, name: str) -> catalog.TopologyRecord:
        """Resume a paused topology."""
        request = control.ResumeTopologyRequest(name=name, request_id=uuid4().hex)
        return (await self._call(lambda: self._topologies().ResumeTopology(request, timeout=self._deadline))).topology

    async def set_quota(self, name: str, quota: catalog.TopologyQuota) -> catalog.TopologyRecord:
        """Replace what a topology may take of the cluster. What the quota does not set has no limit."""
        request = control.SetTopologyQuotaRequest(name=name, quota=quota, request_id=uuid4().hex)
        return (await self._call(lambda: self._topologies().SetTopologyQuota(request, timeout=self._deadline))).topology

    async def cancel(self, name: str, request_id: str = "") -> catalog.TopologyRecord:
        """Stop a topology at once, and delete its state."""
        request = control.CancelTopologyRequest(name=name, request_id=request_id or uuid4().hex)
        return (await self._call(lambda: self._topologies().CancelTopology(request, timeout=self._deadline))).topology

    # Snapshots.

    async def create_snapshot(
        self, topology: str, location: str, name: str = "", full: bool = False, request_id: str = ""
    ) -> snapshot_pb2.CreateSnapshotResponse:
        """Take a snapshot of a topology while it runs. The master writes it to ``location``.

        Args:
            topology: The topology's name.
            location: A directory or URL, as the master sees it.
            name: The snapshot's name. Default: the topology's, and the time.
            full: Also write what earlier snapshots of the location have.
            request_id: Identifies the request, so that a retry under the same name takes no second snapshot.
        """
        name = name or snapshot_name(topology, wall_now())
        request = snapshot_pb2.CreateSnapshotRequest(
            topology=topology, location=location, name=name, full=full, request_id=request_id or uuid4().hex
        )
        return await self._call(lambda: self._snapshots().CreateSnapshot(request, timeout=self._deadline))

    async def restore_snapshot(
        self, location: str, name: str, paused: bool = False, request_id: str = "", topology: str = ""
    ) -> snapshot_pb2.RestoreSnapshotResponse:
        """Make the topology of a snapshot. The master reads it from ``location``.

        ``request_id`` identifies the request, so that a retry does not restore twice. ``topology`` is the topology's
        name, by default that in the snapshot. With another name it is a fork.

        Raises:
            RequestError: The master refuses it, or is of a version from before forks and shall make one.
        """
        request = snapshot_pb2.RestoreSnapshotRequest(
            location=location, name=name, paused=paused, request_id=request_id or uuid4().hex, topology=topology
        )
        if not topology:
            return await self._call(lambda: self._snapshots().RestoreSnapshot(request, timeout=self._deadline))
        try:
            return await self._call(lambda: self._snapshots().RestoreFork(request, timeout=self._deadline))
        except RequestError as error:
            if error.code is not FailureCode.UNIMPLEMENTED:
                raise
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"there can be no topology {topology!r} of the snapshot: the master is of a version from before forks",
                "let all processes run this version (docs/upgrading.md). Nothing was restored",
                reason="MASTER_TOO_OLD",
            ) from error

    # Intervals.

    async def list_intervals(
        self, topology: str = "", computation: str = "", page_size: int = 0
    ) -> list[interval_pb2.IntervalStatus]:
        """The intervals of a computation, of a topology, or all, with the load that their owners last reported."""
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
        """Move an interval to ``worker``. If empty, to the other eligible worker with the least load."""
        request = interval_pb2.MoveIntervalRequest(
            interval=interval, worker_id=worker, request_id=request_id or uuid4().hex
        )
        answer = await self._call(lambda: self._intervals().MoveInterval(request, timeout=self._deadline))
        return answer.interval

    async def split_interval(
        self, interval: interval_pb2.IntervalName, at: bytes | None = None, worker: str = "", request_id: str = ""
    ) -> list[catalog.IntervalRecord]:
        """Split an interval into two: the keys below ``at``, and the others.

        Args:
            interval: The interval.
            at: The first key of the upper part. None splits where the load is halved.
            worker: The new owner of the upper part. Empty keeps the owner.
            request_id: Identifies the request, so that a retry does not repeat it.
        """
        request = interval_pb2.SplitIntervalRequest(
            interval=interval, at=at, worker_id=worker, request_id=request_id or uuid4().hex
        )
        answer = await self._call(lambda: self._intervals().SplitInterval(request, timeout=self._deadline))
        return list(answer.intervals)

    async def merge_intervals(
        self, interval: interval_pb2.IntervalName, worker: str = "", request_id: str = ""
    ) -> catalog.IntervalRecord:
        """Merge an interval with the next one. ``worker`` becomes the owner; empty means the owner of ``interval``."""
        request = interval_pb2.MergeIntervalsRequest(
            interval=interval, worker_id=worker, request_id=request_id or uuid4().hex
        )
        answer = await self._call(lambda: self._intervals().MergeIntervals(request, timeout=self._deadline))
        return answer.interval

    async def cluster_health(self) -> cluster_pb2.GetClusterHealthResponse:
        """The state of masters, workers, authority, store and intervals, and everything that is wrong with them."""
        request = cluster_pb2.GetClusterHealthRequest()
        return await self._call(lambda: self._cluster().GetClusterHealth(request, timeout=self._deadline))

    async def list_events(
        self, topology: str = "", kind: str = "", since: int = 0, limit: int = 100
    ) -> list[catalog.EventRecord]:
        """What has happened in the cluster, the newest first.

        Args:
            topology: Only events of this topology. Empty means all.
            kind: Only events whose kind begins so. Empty means all.
            since: Only events from this time on, in microseconds since the epoch.
            limit: The most events.
        """
        found: list[catalog.EventRecord] = []
        request = cluster_pb2.ListEventsRequest(topology=topology, kind=kind, since_us=since)
        while True:
            request.page_size = min(limit - len(found), _MAX_PAGE_ROWS)
            answer = await self._call(lambda: self._cluster().ListEvents(request, timeout=self._deadline))
            found += answer.events
            if len(found) >= limit or not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token

    # Routing.

    async def hook_failures(
        self, topology: str = "", computation: str = "", stream: str = ""
    ) -> list[cluster_pb2.ComputationFailures]:
        """The computations whose hooks raise, as reported by workers within the last seconds.

        Args:
            topology: Only computations of this topology. Empty means all.
            computation: Only computations of this name. Empty means all.
            stream: Only consumers of this stream, for example to find why its records are not ACKed. Empty means all.

        Returns:
            The computations. ``text`` describes the failure, and ``blocks`` says whether senders wait for ACKs because
            of it.
        """
        request = cluster_pb2.ListHookFailuresRequest(topology=topology, computation=computation, stream=stream)
        answer = await self._call(lambda: self._cluster().ListHookFailures(request, timeout=self._deadline))
        return list(answer.computations)

    async def delete_stream_log(self, stream: str, *, force: bool = False) -> control.DeleteStreamLogResponse:
        """Delete a stream's log.

        Args:
            stream: The stream.
            force: Also delete a log with cursors, or one whose owner does not answer.

        Raises:
            RequestError: The log has cursors, or no computation reads the stream: its records go nowhere else.
        """
        request = control.DeleteStreamLogRequest(stream=stream, force=force)
        return await self._call(lambda: self._routing().DeleteStreamLog(request, timeout=self._deadline))

    async def ensure_stream_log(self, stream: str) -> control.EnsureStreamLogResponse:
        """The place of a stream's log. The log is created if it does not exist."""
        request = control.EnsureStreamLogRequest(stream=stream)
        return await self._call(lambda: self._routing().EnsureStreamLog(request, timeout=self._deadline))

    async def routing(self, stream: str) -> control.WatchRoutingResponse:
        """The current routing of a stream, with its log if it has one. Changes nothing."""

        async def first() -> control.WatchRoutingResponse:
            request = control.WatchRoutingRequest(stream=stream, knows_id_stream=True)
            call = self._routing().WatchRouting(request, timeout=self._deadline)
            view = RoutingView()
            try:
                async for response in call:
                    whole = view.take(response)
                    if whole is not None:
                        return whole
            finally:
                call.cancel()
            raise RequestError(FailureCode.UNAVAILABLE, f"{self.address} sent no routing of stream {stream!r}")

        return await self._call(first)

    async def full_stream_name(self, name: str) -> str:
        """The full name of a stream. A master resolves a short name.

        Raises:
            RequestError: No topology has a stream of that short name (NOT_FOUND), or several have (INVALID_ARGUMENT).
        """
        return name if is_full(name) else (await self.routing(name)).stream.name

    async def watch_routing(self, stream: str) -> AsyncIterator[control.WatchRoutingResponse]:
        """The routing of a stream, then again after each change, as long as it is iterated.

        A broken watch is restarted until ``patience`` seconds have passed without an answer. Equal routings are yielded
        only once.
        """
        request = control.WatchRoutingRequest(stream=stream, knows_id_stream=True)
        backoff, failures, failing_since = Backoff(), 0, 0.0
        loop = asyncio.get_running_loop()
        last = b""
        while True:
            try:
                view = RoutingView()
                async with calling(self.address, self._homes):
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
        """Allocate a sequencer for an injector process. Older processes of that name are superseded from now on."""
        request = injection.OpenInjectorRequest(stream=stream, process=process, knows_id_stream=True)
        return await self._call(lambda: self._injection().OpenInjector(request, timeout=self._deadline))

    async def list_injectors(self, stream: str = "") -> list[injection.InjectorStatus]:
        """The injector processes of a stream, or of all streams."""
        request = injection.ListInjectorsRequest(stream=stream)
        answer = await self._call(lambda: self._injection().ListInjectors(request, timeout=self._deadline))
        return list(answer.injectors)

    async def batch_cursor(self, query: str) -> int:
        """The last complete batch of a batch source. -1 if there is none."""
        request = injection.GetBatchCursorRequest(query=query)
        answer = await self._call(lambda: self._injection().GetBatchCursor(request, timeout=self._deadline))
        return answer.committed_batch

    async def commit_batch(self, query: str, batch: int) -> None:
        """Declare that every batch up to ``batch`` is complete. A lower number than before changes nothing."""
        request = injection.CommitBatchRequest(query=query, batch=batch)
        await self._call(lambda: self._injection().CommitBatch(request, timeout=self._deadline))

    async def batch_cursors(self) -> list[injection.BatchCursor]:
        """The cursors of all batch sources, ordered by query."""
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
        """Delete everything known of a finished process's records, permanently. RequestError if it has not finished."""
        request = injection.RetireInjectorRequest(stream=stream, process=process)
        await self._call(lambda: self._injection().RetireInjector(request, timeout=self._deadline))

    async def retire_query(self, query: str) -> None:
        """Delete a batch source permanently. If one of its batches is sent again, it counts as new."""
        request = injection.RetireQueryRequest(query=query)
        await self._call(lambda: self._injection().RetireQuery(request, timeout=self._deadline))

    # Calls.

    async def call(self, path: str, request: Message, answer: type[Response]) -> Response:
        """Make a unary call of any of the master's services.

        Args:
            path: The call, as ``/millwheel.v1.ClusterService/GetOverview``.
            request: The request.
            answer: The class of the response.
        """

        async def once() -> Response:
            call = self._channel().unary_unary(
                path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
            )
            answered: Response = await call(request, timeout=self._deadline, metadata=delegation())
            return answered

        return await self._call(once)

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

    def _snapshots(self) -> snapshot_pb2_grpc.SnapshotServiceAsyncStub:
        return snapshot_pb2_grpc.SnapshotServiceStub(self._channel())

    def _injection(self) -> injection_pb2_grpc.InjectionServiceAsyncStub:
        return injection_pb2_grpc.InjectionServiceStub(self._channel())

    async def _call(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make a call, at the leader if another master leads."""

        async def once() -> Answer:
            try:
                async with calling(self.address, self._homes):
                    answer = await call()
            except RequestError as error:
                self._note(error)
                raise
            self._note(None)
            return answer

        async def following() -> Answer:
            # Try every known address, and the leader that one of them names.
            for _ in range(len(self._homes) + 1):
                try:
                    return await once()
                except RequestError as error:
                    if not self._follow(error):
                        raise
            return await once()

        return await retrying(following, patience=self._patience)

    def _follow(self, error: RequestError) -> bool:
        """Choose the next address: the named leader, or the next one of the list.

        Returns whether to call again at once."""
        if error.reason == NOT_LEADING and error.leader and error.leader != self.address:
            self.address = error.leader
            return True
        if error.code not in (FailureCode.UNAVAILABLE, FailureCode.DEADLINE_EXCEEDED):
            return False
        before, homes = self.address, self._homes
        self.address = homes[(homes.index(before) + 1) % len(homes)] if before in homes else homes[0]
        # A call without an answer has used its time, so the caller does not retry at once.
        return error.code is FailureCode.UNAVAILABLE and self.address != before


def _without_revision(response: control.WatchRoutingResponse) -> bytes:
    plain = control.WatchRoutingResponse()
    plain.CopyFrom(response)
    plain.revision = 0
    return plain.SerializeToString(deterministic=True)
