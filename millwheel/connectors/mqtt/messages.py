"""A message of MQTT, and how it becomes a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millwheel.sdk.errors import UsageError
from millwheel.sdk.known_types import known

__all__ = ["MqttMessage", "reads_as"]


class MqttMessage(msgspec.Struct, frozen=True):
    """A message as it came.

    Attributes:
        properties: The user properties, in their order.
        qos: 0: it may have been lost on its way. 1: it was not.
    """

    topic: str
    payload: bytes
    properties: list[tuple[str, str]] = []
    qos: int = 1


def reads_as(kind: Any, decode: Callable[[MqttMessage], Any] | None) -> Callable[[MqttMessage], Any]:
    """The function that makes a value of a message. What it raises says that the message cannot be read.

    Raises:
        UsageError: No message can become such a value.
    """
    if decode is not None:
        return decode
    if kind is MqttMessage:
        return lambda message: message
    if kind is bytes:
        return lambda message: message.payload
    try:
        parse = msgspec.json.Decoder(known(kind)).decode
    except TypeError as error:
        raise UsageError(f"no JSON can be read as {kind!r}: {error}. Give decode=FUNCTION") from error
    return lambda message: parse(message.payload)
