"""InjectionService: injector processes, and the cursors of batch sources (section 5.2)."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import grpc

from millwheel.master.injection_plans import not_finished, refuse_retired
from millwheel.master.messages import CommitBatch, FinishInjector, OpenInjector, RetireInjector, RetireQuery
from millwheel.master.observer import MAX_ROWS
from millwheel.master.replica import MasterReplica
from millwheel.master.services.pages import page_rows
from millwheel.master.stream_resolution import refuse_unknown_stream, resolve_stream
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import batch_key
from millwheel.model.incarnation import injector_group
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError, authority_is_away
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import injection_pb2 as injection
from millwheel.rpc.v1 import injection_pb2_grpc
from millwheel.rpc.v1 import watermark_pb2 as watermarks
from millwheel.rpc.watermarks import SEQUENCER_REFUSED

__all__ = ["InjectionServicer", "list_injectors"]

_CALLS_AT_ONCE: Final = 16

Context = grpc.aio.ServicerContext[Any, Any]


class InjectionServicer(injection_pb2_grpc.InjectionServiceServicer):
    """Answers from the catalog, and from the authority, which has the injectors' reports."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def OpenInjector(
        self, request: injection.OpenInjectorRequest, context: Context
    ) -> injection.OpenInjectorResponse:
        return await answering(context, lambda: self._open(request))

    async def _open(self, request: injection.OpenInjectorRequest) -> injection.OpenInjectorResponse:
        """Open an injector. Before the process starts, the authority accepts its sequencer and refuses older ones."""
        known = (await self._replica.term()).catalog
        group = injector_group(request.stream)
        authority = known.authority_of(group)
        asked = OpenInjector(request.stream, request.process, request.knows_id_stream)
        record = cast("catalog.InjectorRecord", await self._replica.ask(asked))
        if authority is None:
            raise RequestError(
                FailureCode.UNAVAILABLE,
                f"no watermark authority is registered for stream {request.stream!r}",
                "see that one runs, and try again",
                reason="NO_AUTHORITY",
            )
        # The expected set comes before the first acceptance, or the stream's watermark could follow this process
        # alone.
        await self._replica.observer.expect(known, request.stream)
        watermark = await self._replica.observer.accept(authority, group, request.process, record.sequencer)
        if watermark >= MAX_TIMESTAMP:
            await self._replica.ask(FinishInjector(request.stream, request.process, record.sequencer))
            raise await self._finished(known, request)
        return injection.OpenInjectorResponse(sequencer=record.sequencer, watermark_us=watermark, authority=authority)

    async def _finished(self, known: Catalog, request: injection.OpenInjectorRequest) -> RequestError:
        """Return why the process may not start: it has finished, or all processes of the stream have."""
        answer = await self._replica.observer.explain(known, injector_group(request.stream))
        what, remedy = f"injector process {request.process!r} of stream {request.stream!r}", "use another process name"
        if answer is not None and answer.watermark_us >= MAX_TIMESTAMP:
            what = f"stream {request.stream!r}, with every injector process of it,"
            remedy = "inject into another stream, or cancel the topologies that read this one and submit them again"
        return RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"{what} has finished, and that is final",
            remedy,
            reason="INJECTOR_FINISHED",
        )

    async def ListInjectors(
        self, request: injection.ListInjectorsRequest, context: Context
    ) -> injection.ListInjectorsResponse:
        return await answering(context, lambda: self._list(request))

    async def _list(self, request: injection.ListInjectorsRequest) -> injection.ListInjectorsResponse:
        known = (await self._replica.term()).catalog
        wanted = resolve_stream(request.stream, known) if request.stream else ""
        if wanted and known.stream(wanted) is None:
            refuse_unknown_stream(wanted, known)
        return injection.ListInjectorsResponse(injectors=await list_injectors(self._replica, known, wanted))

    async def GetBatchCursor(
        self, request: injection.GetBatchCursorRequest, context: Context
    ) -> injection.GetBatchCursorResponse:
        return await answering(context, lambda: self._cursor(request))

    async def _cursor(self, request: injection.GetBatchCursorRequest) -> injection.GetBatchCursorResponse:
        """Read the cursor from the coordinator itself: a replay must see a batch that was committed a moment ago."""
        await self._replica.term()
        entry = await self._replica.coordinator.get(batch_key(request.query))
        if entry is None:
            return injection.GetBatchCursorResponse(committed_batch=-1)
        record = catalog.BatchCursorRecord.FromString(entry.value)
        if record.retired_at_us:
            refuse_retired(request.query)
        return injection.GetBatchCursorResponse(committed_batch=record.committed_batch)

    async def CommitBatch(
        self, request: injection.CommitBatchRequest, context: Context
    ) -> injection.CommitBatchResponse:
        await answering(context, lambda: self._replica.ask(CommitBatch(request.query, request.batch)))
        return injection.CommitBatchResponse()

    async def ListBatchCursors(
        self, request: injection.ListBatchCursorsRequest, context: Context
    ) -> injection.ListBatchCursorsResponse:
        return await answering(context, lambda: self._cursors(request))

    async def _cursors(self, request: injection.ListBatchCursorsRequest) -> injection.ListBatchCursorsResponse:
        known = (await self._replica.term()).catalog
        size = page_rows(request.page_size)
        names = [name for name in sorted(known.batches) if name > request.page_token]
        return injection.ListBatchCursorsResponse(
            cursors=[
                injection.BatchCursor(
                    query=name, committed_batch=known.batches[name], retired=name in known.retired_queries
                )
                for name in names[:size]
            ],
            next_page_token=names[size - 1] if len(names) > size else "",
        )

    async def RetireQuery(
        self, request: injection.RetireQueryRequest, context: Context
    ) -> injection.RetireQueryResponse:
        await answering(context, lambda: self._replica.ask(RetireQuery(request.query)))
        return injection.RetireQueryResponse()

    async def RetireInjector(
        self, request: injection.RetireInjectorRequest, context: Context
    ) -> injection.RetireInjectorResponse:
        return await answering(context, lambda: self._retire(request))

    async def _retire(self, request: injection.RetireInjectorRequest) -> injection.RetireInjectorResponse:
        """Retire a process. It must have finished, because the watermark would wait for ever for a refused process."""
        known = (await self._replica.term()).catalog
        request.stream = resolve_stream(request.stream, known)
        record = known.injectors.get((request.stream, request.process))
        if record is not None and not record.finished and not await self._is_over(known, request):
            raise not_finished(request.stream, request.process)
        # The process may have started in the meantime. The sequencer detects that.
        seen = 0 if record is None else record.sequencer
        await self._replica.ask(RetireInjector(request.stream, request.process, seen))
        return injection.RetireInjectorResponse()

    async def _is_over(self, known: Catalog, request: injection.RetireInjectorRequest) -> bool:
        """Whether no watermark waits for the process: it has finished, or it is no longer expected."""
        answer = await self._replica.observer.explain(known, injector_group(request.stream), MAX_ROWS)
        if answer is None:
            raise _end_is_unknown(request)
        row = next((row for row in answer.intervals if row.process == request.process), None)
        if row is not None:
            return row.watermark_us >= MAX_TIMESTAMP and await self._end_is_journaled(known, request, row.sequencer)
        spec = known.stream(request.stream)
        return spec is not None and bool(spec.expected_injectors) and request.process not in spec.expected_injectors

    async def _end_is_journaled(self, known: Catalog, request: injection.RetireInjectorRequest, sequencer: int) -> bool:
        """Whether the end of the process is in the authority's journal (G7).

        The authority shows reports that may not be journaled yet, and its shard may restart before they are. A
        retired process never repeats its report, so the watermark would wait for ever. An acceptance is answered from
        the journal, and repeating it changes nothing.
        """
        group = injector_group(request.stream)
        authority = known.authority_of(group)
        if authority is None:
            raise _end_is_unknown(request)
        try:
            watermark = await self._replica.observer.accept(authority, group, request.process, sequencer)
        except RequestError as error:
            if error.reason == SEQUENCER_REFUSED:
                return False  # the process has started again
            raise
        return watermark >= MAX_TIMESTAMP


def _end_is_unknown(request: injection.RetireInjectorRequest) -> RequestError:
    consequence = f", and nothing else says whether injector process {request.process!r} has finished"
    return authority_is_away(f"stream {request.stream!r}", consequence)


async def list_injectors(replica: MasterReplica, known: Catalog, wanted: str = "") -> list[injection.InjectorStatus]:
    """Return the injector processes of all streams, or of the ``wanted`` one, in the order of their names."""
    streams = sorted({stream for stream, _ in known.injectors if wanted in ("", stream)})
    gate = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def ask(stream: str) -> list[injection.InjectorStatus]:
        async with gate:
            return _statuses(known, stream, await replica.observer.explain(known, injector_group(stream), MAX_ROWS))

    return [status for some in await asyncio.gather(*map(ask, streams)) for status in some]


def _statuses(
    known: Catalog, stream: str, explained: watermarks.ExplainWatermarkResponse | None
) -> list[injection.InjectorStatus]:
    """Return the injector processes of a stream. ``explained``: the authority's answer, if there is one."""
    reports = {report.process: report for report in (explained.intervals if explained else ())}
    found = []
    for process in sorted(process for name, process in known.injectors if name == stream):
        record, report = known.injectors[stream, process], reports.get(process)
        watermark = MIN_TIMESTAMP if report is None else report.watermark_us
        status = injection.InjectorStatus(
            stream=stream,
            process=process,
            sequencer=record.sequencer,
            watermark_us=watermark,
            idle=report is not None and report.idle,
            finished=record.finished or watermark >= MAX_TIMESTAMP,
            retired=record.retired,
        )
        if report is not None and report.HasField("silence_us"):
            status.silence_us = report.silence_us
        found.append(status)
    return found
