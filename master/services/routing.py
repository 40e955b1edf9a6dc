"""RoutingService: the consumers and the log of a stream, for senders outside the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import grpc

from millwheel.master.injection_plans import refuse_old_hashes
from millwheel.master.messages import DeleteLog, EnsureLog
from millwheel.master.replica import MasterReplica
from millwheel.master.services.log_cursors import incarnation_without_cursors
from millwheel.master.services.routing_diff import RoutingDiff
from millwheel.master.stream_resolution import refuse_unknown_stream, resolve_stream
from millwheel.model.catalog import Catalog
from millwheel.model.formats import POSITION_RANGES
from millwheel.model.incarnation import injector_group
from millwheel.rpc.errors import abort, answering, as_request_error
from millwheel.rpc.failures import NOT_LEADING, FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import control_pb2_grpc

__all__ = ["RoutingServicer", "routing_of"]

Context = grpc.aio.ServicerContext[Any, Any]


def routing_of(known: Catalog, stream: str) -> control.WatchRoutingResponse:
    """Return a stream's routing without revision and intervals; RequestError (NOT_FOUND) for an unknown stream."""
    spec = known.stream(stream)
    if spec is None:
        refuse_unknown_stream(stream, known)
    reports_to = known.authority_of(injector_group(stream))
    response = control.WatchRoutingResponse(
        stream=spec,
        draining=known.is_draining(stream),
        authority=reports_to,
        position_ranges=known.format >= POSITION_RANGES,
        column_batches=known.format >= POSITION_RANGES,
    )
    if (id_stream := known.id_stream(stream)) != stream:
        response.id_stream = id_stream
    response.stream.ClearField("schema")  # the schema is among the schemas below
    if spec.HasField("schema"):
        response.schemas.append(spec.schema)
    consumers = known.consumers(stream)
    topologies = sorted({consumer.topology for consumer in consumers if not consumer.log})
    paused = catalog.TOPOLOGY_STATE_PAUSED
    response.paused.extend(name for name in topologies if known.topologies[name].state == paused)
    for consumer in consumers:
        response.consumers.add(
            incarnation=consumer.incarnation,
            topology=consumer.topology,
            computation=consumer.computation,
            key=consumer.key,
            code=consumer.code,
            exactly_once=consumer.exactly_once,
            log=consumer.log,
            authority=known.authority_of(consumer.incarnation),
        )
    return response


class RoutingServicer(control_pb2_grpc.RoutingServiceServicer):
    """Answers from the catalog of the leading master."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def WatchRouting(
        self, request: control.WatchRoutingRequest, context: Context
    ) -> AsyncIterator[control.WatchRoutingResponse]:
        try:
            async for response in self._watch(request.stream, request.knows_id_stream):
                yield response
        except Exception as error:
            await abort(context, as_request_error(error))

    async def _watch(self, stream: str, knows_id_stream: bool) -> AsyncIterator[control.WatchRoutingResponse]:
        """Yield routing updates. Changes that come faster than they are sent are combined."""
        term = await self._replica.term()
        stream = resolve_stream(stream, term.catalog)
        diff = RoutingDiff()
        shape = -1
        while not term.is_over:
            if shape != term.catalog.shape_version:
                shape = term.catalog.shape_version
                refuse_old_hashes(term.catalog, stream, knows_id_stream)
                for answer in diff.news(term.catalog, routing_of(term.catalog, stream)):
                    yield answer
                continue
            await term.changed()
        raise RequestError(
            FailureCode.UNAVAILABLE,
            "this master no longer leads",
            "watch again: the client finds the leader",
            reason=NOT_LEADING,
        )

    async def ListAuthorities(
        self, request: control.ListAuthoritiesRequest, context: Context
    ) -> control.ListAuthoritiesResponse:
        """Return the authority's shards, from the leading master's catalog."""

        async def work() -> control.ListAuthoritiesResponse:
            known = (await self._replica.term()).catalog
            records = [record for _, record in sorted(known.authorities.items())]
            return control.ListAuthoritiesResponse(shards=known.authority_shards, authorities=records)

        return await answering(context, work)

    async def EnsureStreamLog(
        self, request: control.EnsureStreamLogRequest, context: Context
    ) -> control.EnsureStreamLogResponse:
        return await answering(context, lambda: self._ensure_log(request.stream))

    async def DeleteStreamLog(
        self, request: control.DeleteStreamLogRequest, context: Context
    ) -> control.DeleteStreamLogResponse:
        return await answering(context, lambda: self._delete_log(request))

    async def _delete_log(self, request: control.DeleteStreamLogRequest) -> control.DeleteStreamLogResponse:
        known = (await self._replica.term()).catalog
        stream = resolve_stream(request.stream, known)
        incarnation = None if request.force else await incarnation_without_cursors(self._replica, known, stream)
        answer = await self._replica.ask(DeleteLog(stream, incarnation))
        return cast("control.DeleteStreamLogResponse", answer)

    async def _ensure_log(self, stream: str) -> control.EnsureStreamLogResponse:
        known = (await self._replica.term()).catalog
        return cast(
            "control.EnsureStreamLogResponse", await self._replica.ask(EnsureLog(resolve_stream(stream, known)))
        )
