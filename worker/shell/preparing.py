"""Keys and type checks for senders that do not have a consumer's code (section 4.2).

An injector asks any worker that has loaded the consumer's code. So no code of a topology runs where records are
injected, and nothing that a topology imports must be installed there. A stream's log has no code. The topology that
declares the stream has the type of the log's records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from millwheel.core.catalog import Catalog, Consumer
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as topology
from millwheel.sdk.errors import MillwheelError
from millwheel.worker.interval.failures import HOOK_ERRORS
from millwheel.worker.shell.programs import Programs

__all__ = ["RecordPreparer"]

_Problem: TypeAlias = tuple[wire.RecordFault.ValueType, str]


class RecordPreparer:
    """Decodes records as their consumer does, and extracts their keys."""

    def __init__(self, catalog: Catalog, programs: Programs) -> None:
        self._catalog = catalog
        self._programs = programs

    async def prepare(self, request: wire.PrepareRecordsRequest) -> wire.PrepareRecordsResponse:
        """The keys of the request's values, and what is wrong with those that have none.

        Raises:
            RequestError: This worker does not know the consumer, or cannot load its code.
        """
        consumer = self._find(request.consumer, request.stream)
        code = self._catalog.injected_code(request.stream) if consumer.log else consumer.code
        await self._load(code, consumer, request.stream)
        extract: Callable[[object], bytes] = _no_key
        if consumer.log:
            decode = self._programs.decoder(code, request.stream)
        else:
            decode = self._programs.compile(code, consumer.computation).inputs.get(request.stream)
            extract = self._programs.extractor(consumer, request.stream)
        if decode is None:
            raise _not_consumed(request.consumer, request.stream)
        response = wire.PrepareRecordsResponse()
        for index, encoded in enumerate(request.values):
            key, problem = b"", None
            try:
                value = decode(encoded)
            except HOOK_ERRORS as error:
                problem = wire.RECORD_FAULT_TYPE, _text(error)
            else:
                key, problem = _extracted(extract, value)
            response.keys.append(key)
            if problem is not None:
                response.problems.add(index=index, fault=problem[0], message=problem[1])
        return response

    def _find(self, incarnation: str, stream: str) -> Consumer:
        for consumer in self._catalog.consumers(stream):
            if consumer.incarnation == incarnation:
                return consumer
        raise _not_consumed(incarnation, stream)

    async def _load(self, code: topology.CodeReference, consumer: Consumer, stream: str) -> None:
        """See that a package is loaded; one that has not come yet is waited for."""
        if self._programs.has(code):
            return
        why = self._programs.failure(code)
        if not why:
            try:
                await self._programs.load(code)
                return
            except (MillwheelError, OSError) as error:
                why = str(error)
        name = "its log" if consumer.log else f"computation {consumer.computation!r} of topology {consumer.topology!r}"
        raise RequestError(
            FailureCode.UNAVAILABLE,
            f"the records of stream {stream!r} for {name} cannot be checked, nor their keys extracted: {why}",
            "ask again later, or ask another worker",
            reason="CODE_NOT_LOADED",
        )


def _extracted(extract: Callable[[object], bytes], value: object) -> tuple[bytes, _Problem | None]:
    try:
        return extract(value), None
    except HOOK_ERRORS as error:
        return b"", (wire.RECORD_FAULT_KEY, _text(error))


def _no_key(value: object) -> bytes:
    """The key of every record in a log."""
    return b""


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, MillwheelError) else f"{type(error).__name__}: {error}"


def _not_consumed(incarnation: str, stream: str) -> RequestError:
    return RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"no consumer {incarnation!r} of stream {stream!r} is known here",
        "read the stream's routing again",
        reason="NOT_CONSUMED",
    )
