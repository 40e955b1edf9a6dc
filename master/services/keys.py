"""KeyService: the keys and timers of a computation by name. The workers that own them answer, and the master asks."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import grpc

from millwheel.client.listings import ComputationListings
from millwheel.client.owned_intervals import incarnation_of, owned_interval
from millwheel.client.step_keys import own_keys
from millwheel.master.replica import MasterReplica
from millwheel.master.services.pages import page_rows
from millwheel.master.topology_plans import refuse_unknown_topology
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.rpc.clock import wall_now
from millwheel.rpc.errors import answering, calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.hook_failures import failure_text
from millwheel.rpc.page_tokens import foreign_page_token
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import key_pb2 as wire
from millwheel.rpc.v1 import key_pb2_grpc
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceStub

__all__ = ["KeyServicer"]

_OWNER_SECONDS: Final = 4.0
"""How long an owner may take to answer."""
_INTERVALS_PER_PAGE: Final = 50
"""The owners of so many intervals are asked for a page of keys, one after the other."""

Context = grpc.aio.ServicerContext[Any, Any]


class KeyServicer(key_pb2_grpc.KeyServiceServicer):
    """Finds the owners in the catalog, and asks them."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def GetKey(self, request: wire.GetKeyRequest, context: Context) -> wire.GetKeyResponse:
        """Return one key: its state, timers, pending work and failure."""
        return await answering(context, lambda: self._get(request))

    async def _get(self, request: wire.GetKeyRequest) -> wire.GetKeyResponse:
        if len(request.key) > MAX_KEY_BYTES:
            raise RequestError(
                FailureCode.INVALID_ARGUMENT,
                f"the key has {len(request.key):,} bytes",
                f"the limit is {MAX_KEY_BYTES:,}",
                reason="KEY_TOO_LONG",
            )
        found = await self._found(request.topology, request.computation)
        interval = owned_interval(found, request.computation, request.key)
        incarnation = incarnation_of(found.topology, request.computation)
        address = interval.owner.address
        stub = InspectionServiceStub(self._replica.observer.channel(address))
        async with calling(address):
            key = await stub.InspectKey(
                inspection.InspectKeyRequest(incarnation=incarnation, key=request.key), timeout=_OWNER_SECONDS
            )
        response = wire.GetKeyResponse(interval=interval, key=key)
        for spec in found.topology.spec.computations:
            if spec.name == request.computation:
                response.own_keys = own_keys(spec, request.key.decode("utf-8", "backslashreplace")) or ""
        if key.HasField("failure"):
            response.failure_text = failure_text(key.failure, wall_now(), stopped=bool(key.stopped))
        return response

    async def ListComputationKeys(
        self, request: wire.ListComputationKeysRequest, context: Context
    ) -> wire.ListComputationKeysResponse:
        """Return a page of keys."""
        return await answering(context, lambda: self._keys(request))

    async def _keys(self, request: wire.ListComputationKeysRequest) -> wire.ListComputationKeysResponse:
        within = _bounds(request)
        listings = await self._listings(request.topology, request.computation)
        page = await listings.keys(within, page_rows(request.page_size), _INTERVALS_PER_PAGE, states=request.states)
        return wire.ListComputationKeysResponse(
            keys=[
                wire.OwnedKey(listed=listed, worker_id=interval.owner.worker_id, journal=interval.journal)
                for interval, listed in page.keys
            ],
            next_page_token="" if page.following is None else base64.urlsafe_b64encode(page.following).decode(),
            spilled_timers=page.spilled_timers,
        )

    async def ListComputationTimers(
        self, request: wire.ListComputationTimersRequest, context: Context
    ) -> wire.ListComputationTimersResponse:
        """Return the first timers, of one key or of all."""
        return await answering(context, lambda: self._timers(request))

    async def _timers(self, request: wire.ListComputationTimersRequest) -> wire.ListComputationTimersResponse:
        listings = await self._listings(request.topology, request.computation)
        key = request.key if request.HasField("key") else None
        timers, more = await listings.timers(key, page_rows(request.page_size))
        return wire.ListComputationTimersResponse(
            timers=[
                wire.PlacedTimer(
                    listed=one.listed,
                    worker_id=one.interval.owner.worker_id,
                    journal=one.interval.journal,
                    input_watermark_us=one.input_watermark,
                )
                for one in timers
            ],
            more=more,
        )

    async def _listings(self, topology: str, computation: str) -> ComputationListings:
        return ComputationListings(await self._found(topology, computation), computation, _OWNER_SECONDS)

    async def _found(self, topology: str, computation: str) -> control.GetTopologyResponse:
        """Return the topology with the intervals of one computation alone."""
        known = (await self._replica.term()).catalog
        record = known.topologies.get(topology)
        if record is None:
            refuse_unknown_topology(topology, known)
        intervals = known.interval_map(incarnation_of(record, computation))
        return control.GetTopologyResponse(topology=record, interval_maps=[] if intervals is None else [intervals])


def _bounds(request: wire.ListComputationKeysRequest) -> KeyInterval:
    """Return the keys of the request, from its page on."""
    try:
        within = interval_from_proto(request.keys) if request.HasField("keys") else ALL_KEYS
        if request.page_token:
            return KeyInterval(max(within.start, _from_token(request.page_token)), within.end)
        return within
    except ValueError as error:
        remedy = "use the page_token of an answer with the same keys, and a start below the end"
        raise RequestError(FailureCode.INVALID_ARGUMENT, str(error), remedy, reason="KEYS_INVALID") from error


def _from_token(token: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(token)
    except (binascii.Error, ValueError) as error:
        raise foreign_page_token() from error
