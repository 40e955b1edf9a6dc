"""TopologyService: code packages, and topologies from submission to their end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import grpc

from millwheel.master.messages import (
    CancelTopology,
    DrainTopology,
    PauseTopology,
    ResumeTopology,
    SetTopologyQuota,
    SubmitTopology,
    UpdateTopology,
)
from millwheel.master.packages import EMPTY_DIGEST, MAX_PACKAGE_BYTES
from millwheel.master.replica import MasterReplica
from millwheel.master.services.pages import page_rows
from millwheel.master.topology_plans import refuse_unknown_topology
from millwheel.master.updating import other_specs, same_spec, update_problems
from millwheel.master.validation import validate
from millwheel.model.catalog import LIVE_STATES, Catalog, incarnations_of, outputs_of
from millwheel.model.incarnation import IncarnationId
from millwheel.model.stream_names import dead_letter_stream
from millwheel.rpc.errors import abort, answering, as_request_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import control_pb2_grpc
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["TopologyServicer"]


Context = grpc.aio.ServicerContext[Any, Any]


class TopologyServicer(control_pb2_grpc.TopologyServiceServicer):
    """Answers from the catalog, and passes changes to the core."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def UploadPackage(
        self, request_iterator: AsyncIterator[control.UploadPackageRequest], context: Context
    ) -> control.UploadPackageResponse:
        return await answering(context, lambda: self._upload(request_iterator))

    async def _upload(self, requests: AsyncIterator[control.UploadPackageRequest]) -> control.UploadPackageResponse:
        packages = await self._replica.packages()
        digest, content, size = "", bytearray(), 0
        # All is read before any refusal: a client whose call ends while it writes does not get the reason.
        async for request in requests:
            digest = digest or request.digest
            size += len(request.chunk)
            if size <= MAX_PACKAGE_BYTES:
                content += request.chunk
            elif size > 2 * MAX_PACKAGE_BYTES:
                break
        if size > MAX_PACKAGE_BYTES:
            raise RequestError(
                FailureCode.RESOURCE_EXHAUSTED,
                f"the code package is larger than {MAX_PACKAGE_BYTES >> 20} MiB",
                "leave data and installed libraries out of it",
                reason="PACKAGE_TOO_LARGE",
            )
        if not content and digest != EMPTY_DIGEST:
            return control.UploadPackageResponse(already_known=await packages.has(digest))
        return control.UploadPackageResponse(already_known=not await packages.put(digest, bytes(content)))

    async def DownloadPackage(
        self, request: control.DownloadPackageRequest, context: Context
    ) -> AsyncIterator[control.DownloadPackageResponse]:
        try:
            packages = await self._replica.packages()
            async for chunk in packages.get(request.digest):
                yield control.DownloadPackageResponse(chunk=chunk)
        except Exception as error:
            await abort(context, as_request_error(error))

    async def SubmitTopology(
        self, request: control.SubmitTopologyRequest, context: Context
    ) -> control.SubmitTopologyResponse:
        return await answering(context, lambda: self._submit(request))

    async def _submit(self, request: control.SubmitTopologyRequest) -> control.SubmitTopologyResponse:
        await self._check_packages(request.spec)
        record = await self._replica.ask(SubmitTopology(request.spec, request.request_id))
        return control.SubmitTopologyResponse(topology=cast("catalog.TopologyRecord", record))

    async def _check_packages(self, spec: specs.TopologySpec) -> None:
        """Raise RequestError (FAILED_PRECONDITION) unless all code that a topology names is stored."""
        packages = await self._replica.packages()
        codes = [spec.code, *(one.code for one in spec.computations if one.HasField("code"))]
        for code in codes:
            self._replica.admit_code(code)
        for digest in dict.fromkeys(code.digest for code in codes):
            if not await packages.has(digest):
                raise RequestError(
                    FailureCode.FAILED_PRECONDITION,
                    f"the code package {digest} of topology {spec.name!r} is not here",
                    "upload it by UploadPackage first",
                    reason="PACKAGE_UNKNOWN",
                )

    async def UpdateTopology(
        self, request: control.UpdateTopologyRequest, context: Context
    ) -> control.UpdateTopologyResponse:
        return await answering(context, lambda: self._update(request))

    async def _update(self, request: control.UpdateTopologyRequest) -> control.UpdateTopologyResponse:
        await self._check_packages(request.spec)
        update = UpdateTopology(request.spec, request.request_id, request.expected_version)
        record = await self._replica.ask(update)
        return control.UpdateTopologyResponse(topology=cast("catalog.TopologyRecord", record))

    async def PauseTopology(
        self, request: control.PauseTopologyRequest, context: Context
    ) -> control.PauseTopologyResponse:
        record = await answering(context, lambda: self._replica.ask(PauseTopology(request.name)))
        return control.PauseTopologyResponse(topology=cast("catalog.TopologyRecord", record))

    async def ResumeTopology(
        self, request: control.ResumeTopologyRequest, context: Context
    ) -> control.ResumeTopologyResponse:
        record = await answering(context, lambda: self._replica.ask(ResumeTopology(request.name)))
        return control.ResumeTopologyResponse(topology=cast("catalog.TopologyRecord", record))

    async def SetTopologyQuota(
        self, request: control.SetTopologyQuotaRequest, context: Context
    ) -> control.SetTopologyQuotaResponse:
        change = SetTopologyQuota(request.name, request.quota)
        record = await answering(context, lambda: self._replica.ask(change))
        return control.SetTopologyQuotaResponse(topology=cast("catalog.TopologyRecord", record))

    async def ValidateTopology(
        self, request: control.ValidateTopologyRequest, context: Context
    ) -> control.ValidateTopologyResponse:
        return await answering(context, lambda: self._validate(request))

    async def _validate(self, request: control.ValidateTopologyRequest) -> control.ValidateTopologyResponse:
        known = (await self._replica.term()).catalog
        found = validate(request.spec, known)
        holder = known.topologies.get(request.spec.name)
        if request.update:
            if holder is None or holder.state not in LIVE_STATES:
                refuse_unknown_topology(request.spec.name, known)
            found += update_problems(holder.spec, request.spec, other_specs(holder.spec.name, known))
        problems = [control.Problem(where=one.where, message=one.message) for one in found]
        lives = holder is not None and holder.state in LIVE_STATES
        if not request.update and holder is not None and lives and not same_spec(holder.spec, request.spec):
            text = "another topology of this name runs, or its state is kept: use another name, or cancel that one"
            problems.append(control.Problem(where=f"topology {request.spec.name!r}", message=text))
        return control.ValidateTopologyResponse(problems=problems)

    async def ListTopologies(
        self, request: control.ListTopologiesRequest, context: Context
    ) -> control.ListTopologiesResponse:
        return await answering(context, lambda: self._list(request))

    async def _list(self, request: control.ListTopologiesRequest) -> control.ListTopologiesResponse:
        known = (await self._replica.term()).catalog
        size = page_rows(request.page_size)
        names = [name for name in sorted(known.topologies) if name > request.page_token]
        return control.ListTopologiesResponse(
            topologies=[known.topologies[name] for name in names[:size]],
            next_page_token=names[size - 1] if len(names) > size else "",
        )

    async def GetTopology(self, request: control.GetTopologyRequest, context: Context) -> control.GetTopologyResponse:
        return await answering(context, lambda: self._get(request))

    async def _get(self, request: control.GetTopologyRequest) -> control.GetTopologyResponse:
        term = await self._replica.term()
        record = term.catalog.topologies.get(request.name)
        if record is None:
            refuse_unknown_topology(request.name, term.catalog)
        logs = [term.catalog.logs[stream] for stream in _streams_of(record) if stream in term.catalog.logs]
        return control.GetTopologyResponse(
            topology=record,
            interval_maps=_maps(term.catalog, [*incarnations_of(record), *(log.incarnation for log in logs)]),
            logs=logs,
            waiting_for=term.core.waiting_for(request.name),
            hooks=[
                inspection.ComputationHook(topology=request.name, computation=computation, time=time)
                for computation, times in self._replica.book.hooks(request.name).items()
                for time in times
            ],
            columns=self._replica.book.columns(request.name),
        )

    async def DrainTopology(
        self, request: control.DrainTopologyRequest, context: Context
    ) -> control.DrainTopologyResponse:
        record = await answering(context, lambda: self._replica.ask(DrainTopology(request.name)))
        return control.DrainTopologyResponse(topology=cast("catalog.TopologyRecord", record))

    async def CancelTopology(
        self, request: control.CancelTopologyRequest, context: Context
    ) -> control.CancelTopologyResponse:
        record = await answering(context, lambda: self._replica.ask(CancelTopology(request.name, request.request_id)))
        return control.CancelTopologyResponse(topology=cast("catalog.TopologyRecord", record))


def _streams_of(record: catalog.TopologyRecord) -> list[str]:
    streams = [stream.name for stream in record.spec.streams]
    streams += [output for computation in record.spec.computations for output in outputs_of(computation)]
    return list(dict.fromkeys([*streams, dead_letter_stream(record.spec.name)]))


def _maps(known: Catalog, incarnations: list[IncarnationId]) -> list[catalog.IntervalMapRecord]:
    found = (known.interval_map(incarnation) for incarnation in incarnations)
    return [record for record in found if record is not None]
