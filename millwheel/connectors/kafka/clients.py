"""How a worker reaches the brokers: addresses, a file of settings, and errors that say what to do."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from millwheel.errors import MillwheelError
from millwheel.sdk.errors import UsageError

__all__ = ["ANSWER_SECONDS", "Access", "KafkaClient", "KafkaError", "is_moving", "library"]

ANSWER_SECONDS: Final = 15.0
"""How long a call waits for the brokers. It ends before the limit of a connector's call, and says why."""

_RESERVED: Final = frozenset({
    "acks", "auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store", "enable.idempotence",
    "enable.partition.eof", "isolation.level", "partitioner", "transactional.id",
})  # fmt: skip
"""What exactly once, or the place of a key, depends on."""
_COMMON: Final = {
    "client.id": "millwheel",
    # A broker that is away is a line for each attempt. What is wrong is in the error of the call.
    "log_level": 2,
    # A broker that is back is found within a second. By default it takes up to ten.
    "reconnect.backoff.max.ms": 1_000,
}
_CONSUMER: Final = {
    "group.id": "millwheel",  # the library demands one, and no offset is committed to it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    # A partition has a consumer of its own. By default, each of them keeps up to 64 MiB.
    "queued.max.messages.kbytes": 8_192,
}
_MOVES: Final = frozenset({
    "FENCED_LEADER_EPOCH", "KAFKA_STORAGE_ERROR", "LEADER_NOT_AVAILABLE", "LISTENER_NOT_FOUND",
    "NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE", "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_TOPIC_ID", "_NOENT", "_UNKNOWN_PARTITION",
})  # fmt: skip
"""Errors of a partition that another broker takes over. The protocol calls those of brokers retriable."""
_REFUSES: Final = re.compile(r"_AUTHENTICATION\b|SASL_AUTHENTICATION_FAILED|SASL authentication error")
_LOG_IN: Final = (
    "Correct sasl.username, sasl.password and sasl.mechanism in the worker's file of settings, or the user there"
)
_FROM_ENVIRONMENT: Final = re.compile(r"\$\{(\w+)\}")

log = logging.getLogger("millwheel.kafka")


class KafkaError(MillwheelError):
    """Kafka does not do what the topology needs. The text says what, and what helps."""


def library() -> Any:
    """The client library. It is loaded at its first use.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as error:
        raise UsageError(
            "Kafka needs the library confluent-kafka where the topology runs: install openmillwheel[kafka] there"
        ) from error
    return confluent_kafka


@dataclass(frozen=True, slots=True)
class Access:
    """What a program says of the brokers. Passwords are in the file, which the worker reads.

    Attributes:
        brokers: Their addresses, with commas between. None: the file has them.
        settings: The path of a file with properties of the client, ``name=value`` on each line.
    """

    brokers: str | None
    settings: str | None

    def __post_init__(self) -> None:
        if not self.brokers and not self.settings:
            raise UsageError('Kafka needs brokers="HOST:PORT", or a file of settings that has bootstrap.servers')

    def consumer(self, **more: Any) -> KafkaClient:
        """A consumer, which has no partitions yet."""
        properties = self._properties({**_CONSUMER, **more})
        return KafkaClient(lambda errors: library().Consumer({**properties, **errors}, logger=log), properties)

    def producer(self, **own: Any) -> KafkaClient:
        """A producer."""
        properties = self._properties(own)
        return KafkaClient(lambda errors: library().Producer({**properties, **errors}, logger=log), properties)

    def admin(self) -> KafkaClient:
        """A client that can make topics."""
        library()
        from confluent_kafka.admin import AdminClient

        properties = self._properties({})
        return KafkaClient(lambda errors: AdminClient({**properties, **errors}, logger=log), properties)

    def _properties(self, own: Mapping[str, Any]) -> dict[str, Any]:
        given = {} if self.settings is None else read_settings(Path(self.settings))
        if reserved := sorted(_RESERVED & given.keys()):
            raise KafkaError(f"{self.settings} sets {reserved[0]}, which the connector sets itself: leave it out")
        if self.brokers:
            given["bootstrap.servers"] = self.brokers
        if not given.get("bootstrap.servers"):
            raise KafkaError(f"{self.settings} has no bootstrap.servers: add them, or give brokers= in the program")
        return {**_COMMON, **own, **given}


def read_settings(path: Path) -> dict[str, str]:
    """The properties in a file. ``${NAME}`` in a value is the environment variable of that name.

    Raises:
        KafkaError: It cannot be read, a line is no property, or a variable is not set.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise KafkaError(f"the worker cannot read the file of settings: {error}") from error
    except UnicodeDecodeError as error:
        # The error itself has the whole text, with its passwords.
        raise KafkaError(f"the file of settings {path} is no text in UTF-8, at byte {error.start}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            # The line may be a password, so it is not shown.
            raise KafkaError(f"{path}, line {number} is no property: write name=value")
        for variable in _FROM_ENVIRONMENT.findall(value):
            if variable not in os.environ:
                raise KafkaError(f"{path}, line {number}: the worker has no environment variable {variable}")
        found[name.strip()] = _FROM_ENVIRONMENT.sub(lambda match: os.environ[match[1]], value).strip()
    return found


class KafkaClient:
    """A client of the library, with the last error of its connections since the brokers answered.

    The library tries again by itself, and a call that gets no answer raises "timed out". What is wrong is in an event
    of its own. An answer ends it: a later failure has another reason.
    """

    def __init__(self, make: Any, properties: Mapping[str, Any]) -> None:
        self._last = last = deque[tuple[float, str, str]]([(0.0, "", "")], maxlen=1)
        """Time, name and text of the last error of a connection."""
        self._answered = 0.0
        """The time of the last answer."""
        self._brokers = properties["bootstrap.servers"]
        try:
            # The callback does not know this object. So the library's client, with its threads and connections, ends
            # when this object is dropped, and not with the next collection of garbage.
            self.handle: Any = make({"error_cb": partial(_note, last)})
        except library().KafkaException as error:
            raise KafkaError(f"the settings for Kafka cannot be used: {_text(error)}") from error

    def ask(self, what: str, call: Callable[[], Any]) -> Any:
        """The answer to a call. While a partition changes its leader, the call is repeated.

        A consumer asks before it has a partition: events are taken here, and a record would be one.

        Raises:
            KafkaError: The brokers do not answer, or refuse. It begins with ``what``.
        """
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                answer = call()
            except library().KafkaException as error:
                if not is_moving(error.args[0]) or time.monotonic() > end:
                    raise self.failure(what, error) from error
            else:
                self.answered()
                return answer
            time.sleep(0.1)

    def begins(self) -> float:
        """Begin a call beside others. Its ``failure`` has the errors since then, also if another broker answers."""
        self._take_events()
        return time.monotonic()

    def answered(self) -> None:
        """Errors of connections are over, because the brokers have answered. Also those whose events wait."""
        self._take_events()
        self._answered = time.monotonic()

    def failure(self, what: str, error: Exception, since: float | None = None) -> KafkaError:
        """The error to raise for one of the library.

        It has the reason of the connections since the last answer, or since ``since``.
        """
        self._take_events()
        text = _text(error)
        noted, name, last = self._last[-1]
        if noted <= (self._answered if since is None else since):
            name = last = ""
        more = f" ({last})" if last and last not in text else ""
        refused = f". {_LOG_IN}" if _REFUSES.search(f"{name} {last} {text}") else ""
        return KafkaError(f"{what}: {self}: {text}{more}{refused}")

    def _take_events(self) -> None:
        with suppress(Exception):
            self.handle.poll(0)

    def __str__(self) -> str:
        return f"brokers {self._brokers}"


def _note(last: deque[tuple[float, str, str]], error: Any) -> None:
    """Keep an error of a connection. That all brokers are down follows the reason, and says less."""
    if error.name() != "_ALL_BROKERS_DOWN":
        last.append((time.monotonic(), error.name(), error.str()))


def is_moving(error: Any) -> bool:
    """Whether a KafkaError of the library says that another broker takes a partition over, which takes a moment."""
    return bool(error.name() in _MOVES)


def _text(error: Exception) -> str:
    """What the library says, without its codes."""
    given = error.args[0] if error.args else error
    return str(given.str()) if hasattr(given, "str") else str(given)
