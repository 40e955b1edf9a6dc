"""Encoded values of records, as people and JSON can read them."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["show_value"]


def show_value(value: bytes, form: specs.ValueFormat.ValueType) -> Any:
    """Return a value that JSON can represent: decoded MessagePack, text, or other bytes as {"base64": …}."""
    if form in (specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED):
        try:
            return msgspec.json.decode(msgspec.json.encode(msgspec.msgpack.decode(value)))
        except (msgspec.MsgspecError, TypeError, ValueError):
            pass  # The value is not MessagePack, or it has keys that JSON cannot represent.
    if form in (specs.VALUE_FORMAT_RAW, specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {"base64": msgspec.to_builtins(value)}
