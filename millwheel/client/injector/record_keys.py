"""The keys of records at each consumer, and the records' problems, found before records are accepted (section 4.2).

The consumer's definition names the key extractor. The injector evaluates field paths itself. For an extractor that is
code, it sends a request to a worker, which has that code. So no submitted code runs or must be installed here.

If one consumer cannot take a record, the record waits for that consumer, and the others get it. If no consumer can
take it, the record is refused to its sender. So a submitted topology cannot stop an injector while another topology
takes the records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millwheel.client.injector.encoding import GivenKeys, RecordEncoder
from millwheel.client.injector.routing import ConsumerRouting, StreamRouting
from millwheel.client.injector.unkeyed import WaitingSummary
from millwheel.rpc.key_failures import KEY_REMEDY
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import KeyExtractionError, MillwheelError, ValueEncodeError

__all__ = ["Ask", "KeyColumn", "RecordKeys", "first_refused"]

Ask = Callable[[ConsumerRouting, Sequence[bytes], WaitingSummary | None], Awaitable[wire.PrepareRecordsResponse | str]]
"""Requests the keys and problems of encoded records from a worker of the consumer. Returns the answer, or a text that
says why there is none. The third argument summarizes the records that wait for the consumer. It is None if these
records do not wait."""


@dataclass(slots=True)
class KeyColumn:
    """One consumer's keys and problems for some records.

    ``keys``: the keys of the records before the first one without a key. ``problems``: by index, what is wrong with
    records that the consumer cannot take. ``why``: why the first record without a key has none. ``unknown``: no
    worker answers, so the keys are unknown. This is no fault of the records.
    """

    keys: list[bytes]
    problems: dict[int, MillwheelError] = field(default_factory=dict)
    why: str = ""
    unknown: bool = False

    def cut(self, count: int) -> None:
        """Drop the records from ``count`` on."""
        del self.keys[count:]
        self.problems = {at: error for at, error in self.problems.items() if at < count}


def first_refused(columns: Iterable[KeyColumn], *, strict: bool = False) -> tuple[int, MillwheelError] | None:
    """The index of the first record that no consumer takes, and why. None if there is none.

    Two kinds of consumer have no vote on a record, because the record waits for them anyway. One is a consumer whose
    keys are unknown. The other is a consumer that has no key for an earlier record.

    Args:
        columns: The consumers' keys and problems.
        strict: Find the first record that at least one consumer cannot take, instead.
    """
    voters = [column for column in columns if not column.unknown]
    for at in sorted({index for column in voters for index in column.problems}):
        live = [column for column in voters if len(column.keys) >= at]
        against = [column.problems[at] for column in live if at in column.problems]
        if against and (strict or len(against) == len(live)):
            return at, against[0]
    return None


class RecordKeys:
    """Finds the keys of one stream's records. ``check``: whether a worker of each consumer also checks the types."""

    def __init__(self, encoder: RecordEncoder, ask: Ask, *, check: bool = False) -> None:
        self._encoder = encoder
        self.ask = ask
        self._check = check
        self._seen: StreamRouting | None = None
        self._local = False

    def local(self, routing: StreamRouting) -> bool:
        """Whether no request to a worker is needed for the records of this routing."""
        if routing is not self._seen:
            self._seen = routing
            self._local = not any(
                self._checks(consumer, routing) or not self._encoder.keys_locally(consumer)
                for consumer in routing.consumers.values()
            )
        return self._local

    def by_fields(self, consumer: ConsumerRouting, routing: StreamRouting) -> tuple[str, ...]:
        """The fields that alone decide a record's key at the consumer. Empty: code or a request decides, too."""
        return () if consumer.log or consumer.function or self._checks(consumer, routing) else consumer.fields

    def _checks(self, consumer: ConsumerRouting, routing: StreamRouting) -> bool:
        """Whether a worker checks types. A log's worker does so only if no computation reads the stream."""
        return self._check and (routing.log_only or not consumer.log)

    async def column(
        self,
        consumer: ConsumerRouting,
        values: Sequence[Any] | None,
        encoded: Sequence[bytes],
        given: GivenKeys | None,
        routing: StreamRouting,
    ) -> KeyColumn:
        """Find the keys and problems of records at ``consumer``.

        Args:
            consumer: The consumer.
            values: The records. None if only the encoded records are known.
            encoded: The encoded records.
            given: The keys that the sender knows.
            routing: The current routing.

        Raises:
            UsageError: The given keys do not fit the records.
        """
        has_keys = self._encoder.keys_locally(consumer) or self._encoder.has_column(consumer, given)
        if has_keys and not self._checks(consumer, routing):
            return self._extract(consumer, values, encoded, given, routing.format)
        answer = await self.ask(consumer, encoded, None)
        if isinstance(answer, str):
            if has_keys:
                return self._extract(consumer, values, encoded, given, routing.format)
            return KeyColumn([], why=answer, unknown=True)
        if has_keys:
            column = self._extract(consumer, values, encoded, given, routing.format)
            # A record may have no key because it has the wrong type. The worker's problem is then the better reason.
            column.problems |= _problems(consumer, answer)
            return column
        return _answered(consumer, answer)

    async def of_waiting(
        self,
        consumer: ConsumerRouting,
        encoded: Sequence[bytes],
        waiting: WaitingSummary | None,
        routing: StreamRouting,
    ) -> KeyColumn:
        """Find the keys and problems of the first records that wait for their keys at ``consumer``.

        If the injector evaluates field paths, but the first record has no key by them, a worker gets a request for that
        record. The consumer's code on the worker decides, because it may be newer. The worker also reports to operators
        that records wait.

        Args:
            consumer: The consumer.
            encoded: The first waiting records, encoded.
            waiting: A summary of all records that wait for the consumer. None: send no request, because the preceding
                request got no answer.
            routing: The current routing.

        Returns:
            The keys and problems. ``unknown`` is True if no worker answered.
        """
        column = KeyColumn([], unknown=True)
        if self._encoder.keys_locally(consumer):
            column = self._extract(consumer, None, encoded, None, routing.format)
            if column.keys:
                return column
            encoded = encoded[:1]
        answer: wire.PrepareRecordsResponse | str = "no worker answers"
        if waiting is not None:
            answer = await self.ask(consumer, encoded, waiting)
        if not isinstance(answer, str):
            return _answered(consumer, answer)
        column.why, column.unknown = column.why or answer, True
        return column

    def _extract(
        self,
        consumer: ConsumerRouting,
        values: Sequence[Any] | None,
        encoded: Sequence[bytes],
        given: GivenKeys | None,
        form: specs.ValueFormat.ValueType,
    ) -> KeyColumn:
        encoder = self._encoder
        if encoder.has_column(consumer, given):
            return KeyColumn(encoder.keys(consumer, values, encoded, given, form))
        try:
            return KeyColumn(encoder.keys(consumer, values, encoded, None, form))
        except MillwheelError:
            pass  # the loop below finds the faulty records
        found: list[bytes] = []
        problems: dict[int, MillwheelError] = {}
        for at in range(len(encoded)):
            value = None if values is None else values[at : at + 1]
            try:
                keys = encoder.keys(consumer, value, encoded[at : at + 1], None, form)
                if not problems:
                    found += keys
            except MillwheelError as error:
                problems[at] = error
        return KeyColumn(found, problems, _why(problems, len(found)))


def _answered(consumer: ConsumerRouting, answer: wire.PrepareRecordsResponse) -> KeyColumn:
    """Convert a worker's answer."""
    problems = _problems(consumer, answer)
    first = min(problems, default=len(answer.keys))
    return KeyColumn(list(answer.keys[:first]), problems, _why(problems, first))


def _why(problems: dict[int, MillwheelError], first: int) -> str:
    """Why the first record without a key has none, and what to do. Empty if all have keys."""
    if not problems:
        return ""
    error = problems[first]
    return f"{error}: {KEY_REMEDY}" if isinstance(error, KeyExtractionError) else str(error)


def _problems(consumer: ConsumerRouting, answer: wire.PrepareRecordsResponse) -> dict[int, MillwheelError]:
    found: dict[int, MillwheelError] = {}
    for problem in answer.problems:
        text = problem.message if consumer.log else f"topology {consumer.topology!r}: {problem.message}"
        is_key = problem.fault == wire.RECORD_FAULT_KEY
        found[problem.index] = KeyExtractionError(text) if is_key else ValueEncodeError(text)
    return found
