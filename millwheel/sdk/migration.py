"""States that were stored by an earlier version of the code (section 4.4).

A stored state of version 1 is exactly the output of its codec. A state of a later version has an envelope
(``envelopes.py``). A computation that never changes its state type therefore stores no extra bytes. The head of a
growing state has the version of its plain fields, and no envelope (``growing/codec.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec

from millwheel.sdk.codecs import Codec, StateCodec, ValueFormat, codec_for
from millwheel.sdk.envelopes import MARK, envelope, opened
from millwheel.sdk.errors import ValueDecodeError
from millwheel.sdk.round_trip import Check

__all__ = ["MAX_STATE_VERSION", "StoredState", "versioned"]

T = TypeVar("T")

MAX_STATE_VERSION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class StoredState:
    """A key's state that an earlier version of the code stored. It is the argument of ``migrate``."""

    version: int
    """The ``state_version`` of the code that stored the state."""
    data: bytes
    """The state as that version's codec encoded it."""

    def read(self, state_type: type[T], codec: Codec[T] | None = None) -> T:
        """Decode the state as a given type.

        Args:
            state_type: A class with the fields that the state had in its version. Of a growing state, only the plain
                fields are read: a class with these, or the growing state's own class of that version.
            codec: The codec of that version, if the user defined one.

        Returns:
            The state as a ``state_type``.

        Raises:
            ValueDecodeError: The bytes do not decode as ``state_type``.
        """
        where = f"a stored state of version {self.version}"
        # A growing state is read by its class, because this module is below those of growing states.
        read_plain = getattr(state_type, "_read_plain", None)
        made: T = codec_for(state_type, where, codec).decode(self.data) if read_plain is None else read_plain(self.data)
        return made

    def plain(self) -> Any:
        """Decode a state that is stored as MessagePack, without a type.

        Returns:
            Plain dicts, lists and scalars.

        Raises:
            ValueDecodeError: The bytes are not MessagePack.
        """
        try:
            return msgspec.msgpack.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueDecodeError(f"a stored state of version {self.version} is no MessagePack: {error}") from error


def versioned(
    codec: StateCodec, value_format: ValueFormat, version: int, migrate: Callable[[StoredState], Any], where: str
) -> StateCodec:
    """``codec`` for states of ``version``. It converts states of earlier versions by ``migrate``."""
    encode, decode = codec.encode, codec.decode
    head = envelope(version)

    def marked(encoded: bytes) -> bytes:
        return head + encoded if encoded and (version > 1 or encoded[:1] == MARK) else encoded

    def encode_marked(value: Any) -> bytes:
        return marked(encode(value))

    def decode_any(data: bytes) -> Any:
        if version == 1 and data[:1] != MARK:  # the usual state, without an object for it
            return decode(data)
        found = _stored(data, where)
        if found.version == version:
            return decode(found.data)
        if found.version > version:
            raise ValueDecodeError(
                f"{where}: its state is of version {found.version}, and this code knows {version}: run newer code"
            )
        state = migrate(found)
        if state is None and not codec.takes_none:
            raise ValueDecodeError(
                f"{where}: migrate returned None for a state of version {found.version}, and not {codec.type_name}: "
                "return the state that it becomes"
            )
        return state

    def present(data: bytes) -> bytes:
        found = _stored(data, where)
        return found.data if found.version == version else bytes(memoryview(encode(decode_any(data))))

    if version == 1 and value_format is ValueFormat.MSGPACK:
        return replace(codec, decode=decode_any, present=present)
    default = None if codec.default is None else marked(codec.default)
    check = None if codec.check is None else _unmarked(codec.check, head)
    return replace(
        codec, encode=encode_marked, check=check, default=default, decode=decode_any, present=present, plain=None
    )


def _unmarked(check: Check, head: bytes) -> Check:
    """``check`` for encodings with or without an envelope."""

    def check_inside(value: Any, encoded: bytes) -> None:
        check(value, encoded[len(head) :] if encoded[:1] == MARK else encoded)

    return check_inside


def _stored(data: bytes, where: str) -> StoredState:
    """A stored state with its version."""
    return StoredState(*opened(data, f"{where}: its stored state")) if data[:1] == MARK else StoredState(1, data)
