"""What the consumers of a stream say of records before they are accepted: keys, and what is wrong (section 4.2).

The consumer names the key extractor. An injector follows field paths itself. For an extractor that is code it asks a
worker, which has that code; so nothing that is submitted runs here, or must be installed here.

What is wrong with a record at one consumer is that consumer's matter: the record waits for it, and the others get
it. A record that no consumer takes is refused to its sender. So no topology that is submitted ends an injector whose
records another topology takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millwheel.client.injector.encoding import GivenKeys, RecordEncoder
from millwheel.client.injector.routing import ConsumerRouting, Routing
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import KeyExtractionError, MillwheelError, ValueEncodeError

__all__ = ["Ask", "KeyColumn", "RecordKeys", "first_refused"]

Ask = Callable[[ConsumerRouting, Sequence[bytes]], Awaitable[wire.PrepareRecordsResponse | str]]
"""Asks a worker about encoded records of a consumer: its answer, or why there is none."""


@dataclass(slots=True)
class KeyColumn:
    """One consumer's view of some records.

    ``keys``: those of the records before the first one without a key. ``problems``: by index, what is wrong with
    records that the consumer cannot take. ``why``: why the first record without a key has none. ``unknown``: the keys
    are not to be had now, which is no record's fault.
    """

    keys: list[bytes]
    problems: dict[int, MillwheelError] = field(default_factory=dict)
    why: str = ""
    unknown: bool = False

    def cut(self, count: int) -> None:
        """Forget the records from ``count`` on."""
        del self.keys[count:]
        self.problems = {at: error for at, error in self.problems.items() if at < count}


def first_refused(columns: Iterable[KeyColumn], *, strict: bool = False) -> tuple[int, MillwheelError] | None:
    """The first record that no consumer takes (``strict``: that one does not), and why; None if there is none.

    A consumer whose keys are unknown says nothing, nor does one behind its first record without a key: the rest waits
    for it anyway.
    """
    voters = [column for column in columns if not column.unknown]
    for at in sorted({index for column in voters for index in column.problems}):
        live = [column for column in voters if len(column.keys) >= at]
        against = [column.problems[at] for column in live if at in column.problems]
        if against and (strict or len(against) == len(live)):
            return at, against[0]
    return None


class RecordKeys:
    """Finds the keys of one stream's records. ``check``: also have each consumer's worker check the records' types."""

    def __init__(self, encoder: RecordEncoder, ask: Ask, *, check: bool = False) -> None:
        self._encoder = encoder
        self._ask = ask
        self._check = check
        self._seen: Routing | None = None
        self._local = False

    def local(self, routing: Routing) -> bool:
        """Whether nothing has to be asked for the records of this routing."""
        if routing is not self._seen:
            self._seen = routing
            self._local = not any(
                self._checks(consumer, routing) or not self._encoder.keys_locally(consumer)
                for consumer in routing.consumers.values()
            )
        return self._local

    def _checks(self, consumer: ConsumerRouting, routing: Routing) -> bool:
        """Whether a worker checks types. A log is asked where no computation reads its stream."""
        return self._check and (routing.log_only or not consumer.log)

    async def column(
        self,
        consumer: ConsumerRouting,
        values: Sequence[Any] | None,
        encoded: Sequence[bytes],
        given: GivenKeys | None,
        routing: Routing,
    ) -> KeyColumn:
        """What ``consumer`` says of records. ``given``: the keys that their sender knows.

        Raises:
            UsageError: The given keys are no keys of these records.
        """
        has_keys = self._encoder.keys_locally(consumer) or self._encoder.has_column(consumer, given)
        if has_keys and not self._checks(consumer, routing):
            return self._extract(consumer, values, encoded, given, routing.format)
        answer = await self._ask(consumer, encoded)
        if isinstance(answer, str):
            if has_keys:
                return self._extract(consumer, values, encoded, given, routing.format)
            return KeyColumn([], why=answer, unknown=True)
        problems = _problems(consumer, answer)
        if has_keys:
            column = self._extract(consumer, values, encoded, given, routing.format)
            # A record of another type may have no key for that reason.
            column.problems |= problems
            return column
        first = min(problems, default=len(encoded))
        why = str(problems[first]) if problems else ""
        return KeyColumn(list(answer.keys[:first]), problems, why)

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
            pass  # which record is at fault is found below
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
        why = str(problems[len(found)]) if problems else ""
        return KeyColumn(found, problems, why)


def _problems(consumer: ConsumerRouting, answer: wire.PrepareRecordsResponse) -> dict[int, MillwheelError]:
    found: dict[int, MillwheelError] = {}
    for problem in answer.problems:
        text = problem.message if consumer.log else f"topology {consumer.topology!r}: {problem.message}"
        is_key = problem.fault == wire.RECORD_FAULT_KEY
        found[problem.index] = KeyExtractionError(text) if is_key else ValueEncodeError(text)
    return found
