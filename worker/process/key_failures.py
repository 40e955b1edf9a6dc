"""Key functions that raise at this worker when injectors request keys (section 4.2). Only operators see these
failures.

A hook's failure belongs to a key of an interval. A record whose key function raises has no key and no interval. So
these failures are kept per process, by consumer and stream. Pure: times are arguments, in microseconds of wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Final

from millwheel.model.catalog import Consumer
from millwheel.model.time import Duration
from millwheel.rpc.key_failures import KEY_ROUND
from millwheel.rpc.raised_errors import is_news
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.sdk.error_texts import bare_message
from millwheel.sdk.errors import KeyExtractionError, ValueDecodeError
from millwheel.worker.interval.failing_keys import ErrorKind, ErrorKinds
from millwheel.worker.messages import HookFailed
from millwheel.worker.process.tallies import ComputationName

__all__ = ["KeyFailures", "KeyPlace"]

KeyPlace = tuple[str, str, str]
"""(topology, computation, stream)."""

_WAITING_FOR: Final = Duration(KEY_ROUND * 3 // 2)
"""How long an injector process counts as waiting after its last request. It repeats the request within one round. Half
a round more is a reserve for slow machines. A process that is silent for longer has ended, or got its keys elsewhere.
"""
_MAX_TEXT: Final = 1_000
_MAX_PROCESSES: Final = 100


@dataclass(slots=True)
class _Failing:
    consumer: Consumer
    extractor: str
    kind: ErrorKind
    text: str
    since: int
    last: int
    attempts: int = 0
    waiting: dict[str, tuple[common.WaitingRecords, int]] = field(default_factory=dict)
    """By injector process: its waiting records, and the time of its last request for which a key was missing."""


class KeyFailures:
    """The key functions that raised recently in this process. Any thread may read ``totals``."""

    def __init__(self) -> None:
        self._failing: dict[tuple[str, str], _Failing] = {}
        """By the consumer's incarnation, and stream."""
        self._kinds = ErrorKinds()
        self._totals: dict[KeyPlace, int] = {}

    def failed(
        self, consumer: Consumer, stream: str, error: BaseException, waiting: common.WaitingRecords | None, now: int
    ) -> HookFailed:
        """Record that a key function, or the decoder before it, raised.

        Args:
            consumer: The computation that has the key function.
            stream: The input stream.
            error: The exception of the decoder or the extractor.
            waiting: The records that wait in an injector process. None if the record may still be refused.
            now: The wall time in microseconds.
        """
        raised = _own_error(error)
        # ``permanent`` adds advice for hooks to the log. The advice for key functions is ``KEY_REMEDY``.
        kind, text = replace(self._kinds.kind_of(raised), permanent=False), bare_message(raised)[:_MAX_TEXT]
        extractor = "decoder" if isinstance(error, ValueDecodeError) else _extractor(consumer)
        one = self._failing.get((consumer.incarnation, stream))
        if one is None or not is_news(one.last, now):
            one = self._failing[consumer.incarnation, stream] = _Failing(consumer, extractor, kind, text, now, now)
        one.consumer, one.extractor, one.kind, one.text, one.last = consumer, extractor, kind, text, now
        one.attempts += 1
        if waiting is not None and (waiting.process in one.waiting or len(one.waiting) < _MAX_PROCESSES):
            one.waiting[waiting.process] = waiting, now
        place = (consumer.topology, consumer.computation, stream)
        self._totals[place] = self._totals.get(place, 0) + 1
        who = f"{extractor} of stream {stream!r}"
        message = f"computation {consumer.computation!r}, {who}: {kind.error}: {text}"
        return HookFailed(message, who, kind, raised, stopped=False, endless=False)

    def got_keys(self, consumer: Consumer, stream: str, process: str) -> None:
        """Note that all records of an injector process have their keys at ``consumer``."""
        one = self._failing.get((consumer.incarnation, stream))
        if one is not None:
            one.waiting.pop(process, None)

    def shown(self, consumers: Callable[[str], Iterable[Consumer]], now: int) -> list[wire.KeyFunctionFailure]:
        """The failures of the last minute, of consumers that still run the code that failed.

        Args:
            consumers: Returns the present consumers of a stream.
            now: The wall time in microseconds.
        """
        self._failing = {
            (incarnation, stream): one
            for (incarnation, stream), one in self._failing.items()
            if is_news(one.last, now) and any(_same(one.consumer, other) for other in consumers(stream))
        }
        for one in self._failing.values():
            one.waiting = {process: last for process, last in one.waiting.items() if now - last[1] < _WAITING_FOR}
        return [_to_wire(stream, one) for (_, stream), one in self._failing.items()]

    def keep(self, places: Set[ComputationName]) -> None:
        """Drop the totals of computations that were removed."""
        self._totals = {name: total for name, total in self._totals.items() if name[:2] in places}

    def totals(self) -> dict[KeyPlace, int]:
        """How often each key function has raised since the process began."""
        return dict(self._totals)


def _own_error(error: BaseException) -> BaseException:
    """The exception of the user's key function. If no key function raised, ``error`` itself, because it says more."""
    return error.__cause__ or error if isinstance(error, KeyExtractionError) and error.extractor_raised else error


def _extractor(consumer: Consumer) -> str:
    fields = ", ".join(map(repr, consumer.key.fields))
    return f"key {fields}" if fields else "key function"


def _same(one: Consumer, other: Consumer) -> bool:
    """Whether both are one incarnation with the same code. An update may have fixed the key function."""
    return one.incarnation == other.incarnation and one.code == other.code


def _to_wire(stream: str, one: _Failing) -> wire.KeyFunctionFailure:
    return wire.KeyFunctionFailure(
        consumer=one.consumer.incarnation,
        stream=stream,
        extractor=one.extractor,
        error=one.kind.error,
        message=one.text,
        place=one.kind.place,
        attempts=one.attempts,
        since_us=one.since,
        last_us=one.last,
        waiting=[one.waiting[process][0] for process in sorted(one.waiting)],
    )
