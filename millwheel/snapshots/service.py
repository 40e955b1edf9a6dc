"""SnapshotService: the leading master takes and restores snapshots."""

from __future__ import annotations

from functools import partial
from importlib import metadata
from typing import Any, Final

import grpc

from millwheel.master.replica import MasterReplica
from millwheel.model.snapshot_names import snapshot_name
from millwheel.rpc.clock import wall_now
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1.snapshot_pb2_grpc import SnapshotServiceServicer, add_SnapshotServiceServicer_to_server
from millwheel.snapshots.allowed import ANYWHERE, AllowedPlaces
from millwheel.snapshots.joined_calls import JoinedCalls

__all__ = ["SNAPSHOT_SERVICE", "SnapshotServicer", "add_snapshots"]

SNAPSHOT_SERVICE: Final = "millwheel.v1.SnapshotService"
"""The service's full name, for health and reflection."""


def add_snapshots(server: grpc.aio.Server, replica: MasterReplica, allowed: AllowedPlaces = ANYWHERE) -> None:
    """Add the service to a master's ``server``. Snapshots are in the ``allowed`` places only."""
    add_SnapshotServiceServicer_to_server(SnapshotServicer(replica, allowed), server)


class SnapshotServicer(SnapshotServiceServicer):
    """Answers for one master replica. Of one topology, one snapshot is taken at a time."""

    def __init__(self, replica: MasterReplica, allowed: AllowedPlaces) -> None:
        self._replica = replica
        self._allowed = allowed
        self._version = metadata.version("openmillwheel")
        self._taking: set[str] = set()
        self._snapshots: JoinedCalls[wire.CreateSnapshotResponse] = JoinedCalls()
        self._restores: JoinedCalls[catalog.TopologyRecord] = JoinedCalls()

    async def CreateSnapshot(self, request: wire.CreateSnapshotRequest, context: Any) -> wire.CreateSnapshotResponse:
        """Take a snapshot of a topology while it runs."""
        return await answering(context, lambda: self._snapshots.call(_same(request), lambda: self._create(request)))

    async def RestoreSnapshot(self, request: wire.RestoreSnapshotRequest, context: Any) -> wire.RestoreSnapshotResponse:
        """Make the topology of a snapshot."""
        return await answering(context, lambda: self._restore_original(request))

    async def RestoreFork(self, request: wire.RestoreSnapshotRequest, context: Any) -> wire.RestoreSnapshotResponse:
        """Make a topology of a snapshot, under the name of the request."""
        return await answering(context, lambda: self._restore(request))

    async def _create(self, request: wire.CreateSnapshotRequest) -> wire.CreateSnapshotResponse:
        # It loads obstore, which is of no use before the first snapshot.
        from millwheel.snapshots.creating import create_snapshot
        from millwheel.snapshots.location import SnapshotLocation

        topology = request.topology
        if topology in self._taking:
            raise RequestError(
                FailureCode.ABORTED,
                f"a snapshot of topology {topology!r} is being taken",
                "try again when it is complete",
            )
        named = wire.CreateSnapshotRequest()
        named.CopyFrom(request)
        named.name = request.name or snapshot_name(topology, wall_now())
        folder = SnapshotLocation(request.location, self._allowed).folder(named.name)
        self._taking.add(topology)
        try:
            return await create_snapshot(self._replica, self._version, folder, named)
        finally:
            self._taking.discard(topology)

    async def _restore_original(self, request: wire.RestoreSnapshotRequest) -> wire.RestoreSnapshotResponse:
        if request.topology:
            raise RequestError(
                FailureCode.INVALID_ARGUMENT,
                f"RestoreSnapshot makes the original, and not {request.topology!r}",
                "call RestoreFork",
                reason="FORK_REFUSED",
            )
        return await self._restore(request)

    async def _restore(self, request: wire.RestoreSnapshotRequest) -> wire.RestoreSnapshotResponse:
        from millwheel.snapshots.location import SnapshotLocation
        from millwheel.snapshots.restoring import restore_snapshot

        folder = SnapshotLocation(request.location, self._allowed).folder(request.name)
        record = await self._restores.call(
            _same(request),
            partial(restore_snapshot, self._replica, folder, request.paused, request.request_id, request.topology),
        )
        return wire.RestoreSnapshotResponse(topology=record)


def _same(request: wire.CreateSnapshotRequest | wire.RestoreSnapshotRequest) -> str:
    """What a repetition of a request has in common with it. Empty: it is never repeated.

    The whole request: another one with its id must not get its outcome.
    """
    return request.SerializeToString(deterministic=True).hex() if request.request_id else ""
