"""Topics of MQTT as a source: a split is a session of the broker."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload
from weakref import finalize

from millwheel.connectors.mqtt.brokers import MqttAccess, MqttError, MqttLink
from millwheel.connectors.mqtt.deliveries import SentMessage, SessionDeliveries, SessionPosition, digest_of
from millwheel.connectors.mqtt.messages import MqttMessage, reads_as
from millwheel.connectors.source import BadRecord, Read, Source, SplitReader, Splits, UnreadRecord
from millwheel.connectors.threads import CallThread
from millwheel.model.time import Duration, hours
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["MAX_UNSURE", "source"]

T = TypeVar("T")

_MAX_RECORDS: Final = 1_000
_MAX_BYTES: Final = 4 << 20
"""The most of one read, as the broker has it. The last message may exceed it. If ``decode`` makes more of it,
``most_records`` is lower."""
MAX_UNSURE: Final = 10_000
"""How many messages wait for a read when one of QoS 0 is lost."""
_LOG_SECONDS: Final = 60.0
"""How often a reader says in the log what was lost, at most."""
_PROBE_SECONDS: Final = 1.0
"""How long a read waits for the answer of a broker that has nothing. One that is slower is never idle."""
_OPENING_SECONDS: Final = 2.0
"""How long the end of a reader waits for a call that was cancelled. A connection that it opens later than the next
reader takes the session from that one."""
_EXPIRY: Final = hours(24 * 7)
_LARGEST_WINDOW: Final = 5_000
_LONGEST_EXPIRY: Final = (1 << 32) - 2
_MAX_RAW: Final = 256 << 10
"""The most bytes of a message that cannot be read. A record of a stream has up to 1 MiB."""

log = logging.getLogger("millwheel.mqtt")


@overload
def source(
    topics: str | Sequence[str],
    kind: type[T],
    *,
    server: str,
    client: str,
    window: int = 256,
    session_expiry: Duration = ...,
    skip_lost: bool = False,
) -> Source[T, SessionPosition]: ...
@overload
def source(
    topics: str | Sequence[str],
    kind: TypeForm[T],
    *,
    server: str,
    client: str,
    window: int = 256,
    session_expiry: Duration = ...,
    skip_lost: bool = False,
) -> Source[T, SessionPosition]: ...
@overload
def source(
    topics: str | Sequence[str],
    *,
    decode: Callable[[MqttMessage], T],
    server: str,
    client: str,
    window: int = 256,
    session_expiry: Duration = ...,
    skip_lost: bool = False,
) -> Source[T, SessionPosition]: ...
def source(
    topics: str | Sequence[str],
    kind: Any = MqttMessage,
    *,
    decode: Callable[[MqttMessage], Any] | None = None,
    server: str,
    client: str,
    window: int = 256,
    session_expiry: Duration = _EXPIRY,
    skip_lost: bool = False,
) -> Source[Any, SessionPosition]:
    """A source that subscribes to topics of MQTT. What the broker has for its session comes once.

    It needs MQTT 5, and a broker that keeps sessions. A message is acknowledged after it was committed. The event time
    is when it was read, if the stream has no ``timestamp=``.

    For example::

        MEASURED = mqtt.source("plant/+/temperature", Measured, server="mqtt://broker:1883", client="plant-topology")
        measured = topology.source("measured", Measured, MEASURED, timestamp="at")

    Args:
        topics: A topic filter, or several, which do not overlap. Each of them is a split, and a session of the broker.
        kind: The type of the values, in JSON. ``bytes`` is the payload, and ``MqttMessage`` also has the topic.
        decode: Makes the value of a message instead. What it raises says that the message cannot be read.
        server: ``mqtt://HOST:PORT``, or ``mqtts://`` for TLS. ``${NAME}`` is an environment variable of the worker,
            such as a password.
        client: What the names of the sessions begin with. No other client and no other deployment uses it.
        window: How many messages come without an acknowledgement. The broker may have a lower limit.
        session_expiry: How long the broker keeps a session without a connection, and its messages.
        skip_lost: Begin another session if the broker has lost one. By default the split stops there, with an error.

    Raises:
        UsageError: An argument cannot be used.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(isinstance(one, str) and one for one in names):
        raise UsageError(f"a source of MQTT reads a topic filter, or a list of them, not {topics!r:.80}")
    if not isinstance(client, str) or not client:
        raise UsageError(f"a source of MQTT needs a name for its sessions as client=, not {client!r:.80}")
    if not isinstance(window, int) or not 0 < window <= _LARGEST_WINDOW:
        raise UsageError(f"window= is 1 to {_LARGEST_WINDOW:,} messages, not {window!r:.80}")
    expiry = int(session_expiry) // 1_000_000
    if not 0 < expiry <= _LONGEST_EXPIRY:
        raise UsageError(f"session_expiry= is a Duration of at least a second, not {session_expiry!r:.80}")
    return _SessionSource(tuple(names), reads_as(kind, decode), MqttAccess(server), client, window, expiry, skip_lost)


@dataclass(frozen=True, slots=True)
class _SessionSource(Source[T, SessionPosition], Generic[T]):
    topics: tuple[str, ...]
    read_as: Callable[[MqttMessage], T]
    access: MqttAccess
    client: str
    window: int
    expiry: int
    skip_lost: bool

    def identity(self) -> str:
        return f"sessions of MQTT for {self.client}"

    async def splits(self) -> Splits:
        return Splits(self.topics)

    async def open_reader(self, split: str, position: SessionPosition | None) -> SplitReader[T, SessionPosition]:
        reader = _SessionReader(self, split, position)
        try:
            await reader.begin()
        except BaseException:
            with suppress(Exception):
                await reader.close()
            raise
        return reader


class _SessionReader(SplitReader[T, SessionPosition]):
    """Reads the messages of one session.

    *Invariant (G1): a message is acknowledged only after its commit.* A computation with strong productions has one
    commit in flight at most, and a position is read from only after its commit was sealed. So what the read before the
    last one returned is in the journal. *Who may break it:* a pipeline with two commits in flight, or a reader that is
    used at another position than that of its last read. A process that was deposed acknowledges only what was
    committed, and the broker ends its connection when another process opens the session.
    """

    def __init__(self, source: _SessionSource[T], topics: str, position: SessionPosition | None) -> None:
        self._source = source
        self._topics = topics
        self._is_first = position is None
        self._deliveries = SessionDeliveries(position or SessionPosition(), source.window)
        self._id = f"{source.client}-{blake2b(topics.encode(), digest_size=4).hexdigest()}"
        self._inbox = inbox = _Inbox()
        self._link = MqttLink(
            source.access,
            self._id,
            expiry=source.expiry,
            window=source.window,
            on_message=inbox.put,
        )
        self._returned: list[int] = []
        """Packets of the last read, and of what came again meanwhile."""
        self._committed: list[int] = []
        """Packets of the read before it."""
        self._lost = 0
        """How many messages were lost by now."""
        self._logged = 0
        """How many of them the log has."""
        self._log_after = 0.0
        self._thread = CallThread("millwheel-mqtt")
        finalize(self, self._link.close).atexit = False  # one that was never closed, as in a test, leaves nothing open

    async def begin(self) -> None:
        """Open the session. Raises an MqttError if the broker has lost it."""
        await self._thread.call(self._begin)

    def _begin(self) -> None:
        if not self._link.open() and not self._is_first:
            lost = (
                f"{self._source.access.name} has lost the session {self._id!r} of {self._topics!r}: it was away for "
                "longer than session_expiry=, or the broker does not keep sessions when it restarts. Messages since "
                "then may be lost"
            )
            if not self._source.skip_lost:
                # The next attempt must not take the session that has just begun for the former one.
                self._link.close(forget=True)
                raise MqttError(f"{lost}. skip_lost=True in an update begins another session")
            log.warning("%s; another one begins, as skip_lost=True says", lost)
            self._deliveries = SessionDeliveries(SessionPosition(), self._source.window)
        self._link.subscribe(self._topics)

    async def read(self) -> Read[T, SessionPosition]:
        read, before = await self._read(), self._lost
        self._lost = self._inbox.lost
        if time.monotonic() >= self._log_after:
            self._log_lost()
        return replace(read, lost=self._lost - before)

    def _log_lost(self) -> None:
        by_now = self._inbox.lost  # the library's thread goes on
        if by_now > self._logged:
            log.warning(
                "%d messages of %r at QoS 0 were lost: %s messages waited for a read, because consumers of the stream "
                "are slow. Messages of QoS 1 wait at the broker",
                by_now - self._logged, self._topics, f"{MAX_UNSURE:,}",
            )  # fmt: skip
            self._logged, self._log_after = by_now, time.monotonic() + _LOG_SECONDS

    async def _read(self) -> Read[T, SessionPosition]:
        self._link.check()
        for packet in self._committed:
            self._link.acknowledge(packet)
        self._committed, self._returned = self._returned, []
        if not self._inbox.messages and not await self._thread.call(self._is_reached):
            return Read([], self._deliveries.position, behind=1)
        if not self._inbox.messages and not self._committed:
            return Read([], self._deliveries.position, behind=0)
        records, topics = self._take()
        # What the broker keeps back until there are acknowledgements is not known.
        behind = max(len(self._inbox.messages), 1)
        return Read(records, self._deliveries.position, behind=behind, places=lambda index: _place(topics[index]))

    def _is_reached(self) -> bool:
        return self._link.is_reached(self._topics, _PROBE_SECONDS)

    def _take(self) -> tuple[list[tuple[T | BadRecord, None]], list[str]]:
        """Return the records of messages that wait, and the topic of each."""
        records: list[tuple[T | BadRecord, None]] = []
        topics: list[str] = []
        size = 0
        most = min(self.most_records, _MAX_RECORDS)
        while self._inbox.messages and len(records) < most and size < _MAX_BYTES:
            message = self._inbox.messages.popleft()
            own = list(getattr(message.properties, "UserProperty", []))
            # An MqttMessage has all of this. UTF-8 has at most four bytes for a character, and mostly one.
            size += len(message.payload) + len(message.topic) + sum(len(name) + len(value) for name, value in own)
            content = digest_of(message.topic.encode(), message.payload, repr(own).encode())
            if message.qos:
                self._returned.append(message.mid)
                if not self._deliveries.take(SentMessage(message.mid, message.dup, content)):
                    continue
            records.append((self._value(MqttMessage(message.topic, message.payload, own, message.qos)), None))
            topics.append(message.topic)
        return records, topics

    def _value(self, message: MqttMessage) -> T | BadRecord:
        try:
            return self._source.read_as(message)
        except Exception as error:
            return UnreadRecord(self._topics, _place(message.topic), error_message(error), message.payload[:_MAX_RAW])

    async def close(self) -> None:
        try:
            await self._thread.end(self._link.close, unfinished_seconds=_OPENING_SECONDS)
        finally:
            self._log_lost()
            if unread := sum(not message.qos for message in list(self._inbox.messages)):
                log.warning(
                    "%d messages of %r at QoS 0 were lost: they waited for a read, and the reader was closed after an "
                    "error or a move. Messages of QoS 1 wait at the broker",
                    unread, self._topics,
                )  # fmt: skip


def _place(topic: str) -> str:
    """Where a message came from, for people. A message has no number that stays."""
    return f"a message of the topic {topic}"


class _Inbox:
    """The messages that wait for the next read. The library's thread puts them there, and the reader takes them."""

    def __init__(self) -> None:
        self.messages = deque[Any]()
        self.lost = 0

    def put(self, message: Any) -> None:
        """Keep a message. Their number is bounded by the window, but that of QoS 0 is not."""
        if message.qos or len(self.messages) < MAX_UNSURE:
            self.messages.append(message)
        else:
            self.lost += 1
