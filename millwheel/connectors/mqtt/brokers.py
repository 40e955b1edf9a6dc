"""A connection to a broker of MQTT 5, and errors that say what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from millwheel.connectors.urls import check_url, filled_in, place_in
from millwheel.errors import MillwheelError
from millwheel.sdk.errors import UsageError

__all__ = ["ANSWER_SECONDS", "MqttAccess", "MqttError", "MqttLink", "library"]

ANSWER_SECONDS: Final = 15.0
"""How long a call waits for the broker. It ends before the limit of a connector's call, and says why."""
_KEEPALIVE_SECONDS: Final = 15
"""A connection on which the broker is silent for longer, about, has failed."""
_FILES: Final = ("ca_certs", "certfile", "keyfile")
_LARGEST_PACKET: Final = 8 << 20
"""What the broker may send at once, in bytes. A record has up to 1 MiB."""


class MqttError(MillwheelError):
    """The broker does not do what the topology needs. The text says what, and what helps."""


def library() -> Any:
    """The client library. It is loaded at its first use.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import paho.mqtt.client as client
    except ImportError as error:
        raise UsageError(
            "MQTT needs the library paho-mqtt where the topology runs: install openmillwheel[mqtt] there"
        ) from error
    return client


@dataclass(frozen=True, slots=True)
class MqttAccess:
    """What a program says of the broker."""

    server: str

    def __post_init__(self) -> None:
        check_url(self.server, "MQTT", ("mqtt", "mqtts"))
        if unknown := sorted(parse_qs(urlsplit(self.server).query).keys() - set(_FILES)):
            raise UsageError(f"a URL of MQTT has no {unknown[0]!r}: it takes {', '.join(_FILES)}, which are files")

    @property
    def name(self) -> str:
        """What errors call the broker."""
        return f"the broker at {place_in(self.server)}"

    def prepare(self, client: Any) -> tuple[str, int]:
        """Give a client its user, password and certificates. Returns host and port."""
        parts = urlsplit(filled_in(self.server))
        if parts.username is not None:
            client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
        if parts.scheme == "mqtts":
            client.tls_set(**{name: files[0] for name, files in parse_qs(parts.query).items()})
        return parts.hostname or "localhost", parts.port or (8883 if parts.scheme == "mqtts" else 1883)


class MqttLink:
    """A connection that does not come back by itself. Its calls wait, so they run on a thread of the caller.

    The library receives on a thread of its own, which calls ``on_message``.
    """

    def __init__(
        self,
        access: MqttAccess,
        client_id: str,
        *,
        expiry: int = 0,
        window: int = 65_535,
        on_message: Callable[[Any], None] | None = None,
    ) -> None:
        """Does not connect.

        Args:
            expiry: How many seconds the broker keeps the session without a connection. 0: it begins without one, too.
            window: How many messages the broker sends without an acknowledgement.
        """
        paho = library()
        self._access = access
        self._id = client_id
        self._expiry = expiry
        self._window = window
        self.failure = ""
        """Why the connection has ended. Empty: it has not."""
        self._session_present = False
        self._changed = threading.Condition()
        self._connected = False
        self._answers: dict[int, Sequence[Any]] = {}
        """By packet id: the reason codes of a subscription or a publication that the broker has answered."""
        self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=paho.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        self._client.connect_timeout = ANSWER_SECONDS / 2
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = lambda client, data, packet, codes, properties: self._answer(packet, codes)
        self._client.on_publish = lambda client, data, packet, code, properties: self._answer(packet, [code])
        if on_message is not None:
            self._client.on_message = lambda client, data, message: on_message(message)

    def open(self) -> bool:
        """Connect. Returns whether the broker has a session of this client.

        Raises:
            MqttError: The broker is away, or refuses the client.
        """
        properties = _properties("CONNECT")
        properties.SessionExpiryInterval = self._expiry
        properties.ReceiveMaximum = self._window
        properties.MaximumPacketSize = _LARGEST_PACKET
        host, port = self._access.prepare(self._client)
        try:
            self._client.connect(host, port, _KEEPALIVE_SECONDS, clean_start=self._expiry == 0, properties=properties)
        except (OSError, ValueError) as error:
            raise MqttError(f"{self._access.name} cannot be reached: {error}") from error
        self._client.loop_start()
        self._wait(lambda: self._connected, "does not answer a connection")
        return self._session_present

    def subscribe(self, topics: str) -> None:
        """Subscribe, or do so again, and wait for the answer. Messages that were sent before it have come then.

        Raises:
            MqttError: The broker refuses that, or does not answer.
        """
        packet = self._subscribe(topics)
        self._wait(lambda: packet in self._answers, f"does not answer the subscription to {topics!r}")
        (code,) = self._answers.pop(packet)
        if code.is_failure or code.value == 0:
            raise MqttError(f"{self._access.name} refuses the subscription to {topics!r} at QoS 1: {code}")

    def is_reached(self, topics: str, seconds: float) -> bool:
        """Whether the broker answers within some seconds. Everything that it sent before the answer has come then."""
        packet = self._subscribe(topics)
        with self._changed:
            self._changed.wait_for(lambda: packet in self._answers or self.failure, seconds)
            codes = self._answers.pop(packet, ())
        return not self.failure and any(not code.is_failure for code in codes)

    def _subscribe(self, topics: str) -> int:
        from paho.mqtt.subscribeoptions import SubscribeOptions

        self.check()
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        with self._changed:
            self._answers.clear()  # of calls that waited no longer
        _, packet = self._client.subscribe(topics, options=options)
        return int(packet or 0)

    def acknowledge(self, packet: int) -> None:
        """Say that a message needs not come again."""
        self._client.ack(packet, 1)

    def publish(self, messages: Sequence[tuple[str, bytes, bool, Mapping[str, str]]], seconds: float) -> None:
        """Publish messages at QoS 1, and wait until the broker has all of them.

        Args:
            messages: Of each: its topic, payload, whether the broker retains it, and user properties.

        Raises:
            MqttError: It has not taken all.
        """
        self.check()
        with self._changed:
            self._answers.clear()
        for topic, payload, retain, own in messages:
            properties = _properties("PUBLISH")
            properties.UserProperty = list(own.items())
            self._client.publish(topic, payload, 1, retain, properties)
        self._wait(lambda: len(self._answers) == len(messages), "does not acknowledge what is published", seconds)
        if refused := next((code for (code,) in self._answers.values() if code.is_failure), None):
            raise MqttError(f"{self._access.name} refuses what is published: {refused}")

    def check(self) -> None:
        """Raise an MqttError if the connection has ended."""
        if self.failure:
            raise MqttError(f"client {self._id!r} is not connected to {self._access.name}: {self.failure}")

    def close(self, *, forget: bool = False) -> None:
        """Disconnect. ``forget``: the broker ends the session, too."""
        properties = _properties("DISCONNECT")
        if forget:
            properties.SessionExpiryInterval = 0
        with suppress(Exception):
            self._client.disconnect(properties=properties)
        self._client.loop_stop()
        # Without the cycle over its callbacks, the client ends with this link, and closes its sockets itself. The
        # garbage collector may come to the sockets first, and they say that they were never closed.
        for name in ("on_connect", "on_disconnect", "on_subscribe", "on_publish", "on_message"):
            setattr(self._client, name, None)

    def _wait(self, holds: Callable[[], bool], what: str, seconds: float = ANSWER_SECONDS) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: holds() or self.failure, seconds):
                raise MqttError(f"{self._access.name} {what} within {seconds:.0f} seconds")
        self.check()

    def _on_connect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        with self._changed:
            if code.is_failure:
                hint = ". Check user and password: the URL takes them from the environment of the worker, as ${NAME}"
                self.failure = f"{code}{hint if code.value in (134, 135) else ''}"
            self._connected, self._session_present = True, flags.session_present
            self._changed.notify_all()

    def _on_disconnect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        with self._changed:
            ended = "the connection has ended. If another process has this client id, give each a client= of its own"
            self.failure = self.failure or f"{code}: {ended}"
            self._changed.notify_all()

    def _answer(self, packet: int, codes: Sequence[Any]) -> None:
        with self._changed:
            self._answers[packet] = codes
            self._changed.notify_all()


def _properties(packet: str) -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    made: Any = Properties
    return made(getattr(PacketTypes, packet))
