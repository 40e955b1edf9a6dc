"""Keys and type checks for senders without a consumer's code (section 4.2).

An injector may call any worker that has loaded the consumer's code. So no code of a topology runs in the injector's
process, and the topology's imports need not be installed there. A stream's log has no code. The topology that declares
the stream has the type of the log's records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from millwheel.model.catalog import Catalog, Consumer
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as topology
from millwheel.sdk.error_texts import bare_message, error_message
from millwheel.sdk.errors import MillwheelError
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS
from millwheel.worker.process.programs import Programs

__all__ = ["KeyFailed", "KeysFound", "RecordPreparer"]

_Problem: TypeAlias = tuple[wire.RecordFault.ValueType, str]

KeyFailed: TypeAlias = Callable[[Consumer, str, BaseException, common.WaitingRecords | None], None]
"""Called with a consumer, a stream, the exception of the decoder or key extractor, and the waiting records of an
injector process. The last argument is None if the record may still be refused."""

KeysFound: TypeAlias = Callable[[Consumer, str, str], None]
"""Called with a consumer, a stream and an injector process, when no record of the process waits for a key there."""


class RecordPreparer:
    """Decodes records as their consumer does, and extracts their keys."""

    def __init__(self, catalog: Catalog, programs: Programs, key_failed: KeyFailed, keys_found: KeysFound) -> None:
        self._catalog = catalog
        self._programs = programs
        self._key_failed = key_failed
        self._keys_found = keys_found

    async def prepare(self, request: wire.PrepareRecordsRequest) -> wire.PrepareRecordsResponse:
        """The keys of the request's values, and the problems of the values without a key.

        If the records wait, those behind the first one without a key must wait for it. So they are not examined.

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
            decode = self._programs.compile(code, consumer.topology, consumer.computation).inputs.get(request.stream)
            extract = self._programs.extractor(consumer, request.stream)
        if decode is None:
            raise _not_consumed(request.consumer, request.stream)
        waiting = request.waiting if request.HasField("waiting") else None
        response = wire.PrepareRecordsResponse()
        for index, encoded in enumerate(request.values):
            key = b""
            problem: _Problem | None = None
            try:
                value = decode(encoded)
            except HOOK_ERRORS as error:
                problem = wire.RECORD_FAULT_TYPE, _text(error)
                if waiting is not None:
                    # Another consumer has accepted the record, so the consumers' types differ. This failure is reported
                    # to operators. The sender gets the error of a record that may still be refused.
                    self._key_failed(consumer, request.stream, error, waiting)
            else:
                try:
                    key = extract(value)
                except HOOK_ERRORS as error:
                    problem = wire.RECORD_FAULT_KEY, _text(error)
                    self._key_failed(consumer, request.stream, error, waiting)
            response.keys.append(key)
            if problem is not None:
                response.problems.add(index=index, fault=problem[0], message=problem[1])
                if waiting is not None:
                    response.keys.extend([b""] * (len(request.values) - index - 1))
                    break
        if waiting is not None and request.last_waiting and not response.problems:
            self._keys_found(consumer, request.stream, waiting.process)
        return response

    def _find(self, incarnation: IncarnationId, stream: str) -> Consumer:
        for consumer in self._catalog.consumers(stream):
            if consumer.incarnation == incarnation:
                return consumer
        raise _not_consumed(incarnation, stream)

    async def _load(self, code: topology.CodeReference, consumer: Consumer, stream: str) -> None:
        """Ensure that a package is loaded, and wait for it if necessary."""
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


def _no_key(value: object) -> bytes:
    """The key of every record in a log."""
    return b""


def _text(error: BaseException) -> str:
    return bare_message(error) if isinstance(error, MillwheelError) else error_message(error)


def _not_consumed(incarnation: IncarnationId, stream: str) -> RequestError:
    return RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"no consumer {incarnation!r} of stream {stream!r} is known here",
        "read the stream's routing again",
        reason="NOT_CONSUMED",
    )
