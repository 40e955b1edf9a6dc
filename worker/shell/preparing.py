"""Keys and type checks for senders that do not have a consumer's code (section 4.2).

An injector asks any worker that has loaded the consumer's code. So no code of a topology runs where records are
injected, and nothing that a topology imports must be installed there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from millwheel.core.catalog import Catalog, Consumer
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import delivery_pb2 as wire
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

    def prepare(self, request: wire.PrepareRecordsRequest) -> wire.PrepareRecordsResponse:
        """The keys of the request's values, and what is wrong with those that have none.

        Raises:
            RequestError: This worker does not know the consumer, or has not loaded its code.
        """
        consumer = self._find(request.consumer, request.stream)
        decode = self._programs.compile(consumer.code, consumer.computation).inputs.get(request.stream)
        if decode is None:
            raise _not_consumed(request.consumer, request.stream)
        extract = self._programs.extractor(consumer, request.stream)
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
            if consumer.incarnation == incarnation and not consumer.log:
                if self._programs.has(consumer.code):
                    return consumer
                why = self._programs.failure(consumer.code) or "its code is not loaded here yet"
                raise RequestError(
                    FailureCode.UNAVAILABLE,
                    f"the keys of stream {stream!r} for computation {consumer.computation!r} of topology "
                    f"{consumer.topology!r} cannot be extracted: {why}",
                    "ask again later, or ask another worker",
                    reason="CODE_NOT_LOADED",
                )
        raise _not_consumed(incarnation, stream)


def _extracted(extract: Callable[[object], bytes], value: object) -> tuple[bytes, _Problem | None]:
    try:
        return extract(value), None
    except HOOK_ERRORS as error:
        return b"", (wire.RECORD_FAULT_KEY, _text(error))


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, MillwheelError) else f"{type(error).__name__}: {error}"


def _not_consumed(incarnation: str, stream: str) -> RequestError:
    return RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"no consumer {incarnation!r} of stream {stream!r} is known here",
        "read the stream's routing again",
        reason="NOT_CONSUMED",
    )
