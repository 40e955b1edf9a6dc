"""How values and states become bytes, chosen by their type (sections 4.3, 4.4).

===========================================================  ==============================================
structs, dataclasses, typed dicts, containers, scalars, …    MessagePack, structs as maps from field names
protobuf messages                                            their own encoding, deterministic
bytes                                                        themselves
whatever comes with a :class:`Codec`                         the user's own
===========================================================  ==============================================

Each stream has one type; a consumer of several types (a union) gets each value by its stream's type.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar, get_args

import msgspec
from msgspec import inspect as msgspec_inspect

from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.defaults import default_of, makes_the_same
from millwheel.sdk.errors import UnsupportedTypeError, ValueDecodeError, ValueEncodeError
from millwheel.sdk.round_trip import ADVICE, Check, quick_check, round_trip_check, verified
from millwheel.sdk.typeinfo import (
    accepts,
    describe_type,
    is_protobuf,
    members,
    normalise,
    runtime_classes,
    supertype,
    type_name,
)

__all__ = ["Codec", "StateCodec", "ValueCodec", "ValueFormat", "codec_for", "format_of", "state_codec_for"]

T = TypeVar("T")
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class ValueFormat(Enum):
    """How a stream's values are encoded; the values are those of the wire."""

    MSGPACK = topology_pb2.VALUE_FORMAT_MSGPACK
    PROTOBUF = topology_pb2.VALUE_FORMAT_PROTOBUF
    RAW = topology_pb2.VALUE_FORMAT_RAW
    CUSTOM = topology_pb2.VALUE_FORMAT_CUSTOM


@dataclass(frozen=True)  # without slots, so that Codec[T](...) works: Python 3.11 sets __orig_class__ on the instance
class Codec(Generic[T]):
    """A way of your own to encode the values of a stream, or the state of a computation.

    ``decode(encode(value))`` must equal ``value``, and equal values should encode alike: a state that encodes to
    the same bytes as before is not written again. ``new`` makes the state of a key that has none. A state counts as
    none if it encodes to no bytes at all, or, where ``new`` is a built-in type, to the same bytes as what that makes.
    What ``encode`` makes in a hook is given to ``decode`` at once: an error there is the hook's.
    """

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    new: Callable[[], T] | None = None


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """What a stream's values go through. ``encode`` is as fast as it can be, and takes what it is given."""

    format: ValueFormat
    type_name: str
    encode: Encode
    checked: Encode
    """Encodes only what is of the type: ValueEncodeError names the stream, the type and what came instead."""
    verify: Encode
    """Encodes only what can be read again, in all its parts: ValueEncodeError names the part that cannot."""
    decode: Decode
    """ValueDecodeError names the stream, the type, and where in the value it went wrong."""


@dataclass(frozen=True, slots=True)
class StateCodec:
    """What a computation's state goes through."""

    type_name: str
    new: Callable[[], Any]
    """The state of a key that has none."""
    encode: Encode
    """Encodes only what is of the type: a state stored as something else could never be read again."""
    check: Check | None
    """Whether what was encoded can be read again, in all its parts; None for a type whose encoding always can."""
    default: bytes | None
    """What ``new`` makes, encoded: a key with this state has none. None if ``new`` may make different states."""
    decode: Decode
    takes_none: bool
    """Whether None is of the type. It stands for no state."""

    def verify(self, value: Any) -> bytes:
        """Encode, and check that the encoding can be read again; ValueEncodeError."""
        encoded = _as_bytes(self.encode(value))
        if self.check is not None and encoded:
            self.check(value, encoded)
        return encoded


def codec_for(record_type: Any, where: str, codec: Codec[Any] | None = None) -> ValueCodec:
    """The codec of the values of one stream; ``where`` names it in errors: ``stream 'queries'``.

    UnsupportedTypeError for a type that cannot be encoded, and has no ``codec`` of its own.
    """
    name = type_name(record_type)
    value_format, encode, decode = _choose(record_type, codec)
    checked = _checked_encode(record_type, encode, where, name)
    # What stands where Any is declared reaches every reader as plain dicts and lists, before and after a restart.
    equal = value_format is not ValueFormat.CUSTOM and not _has_any(value_format, record_type)
    verify = checked
    if value_format is not ValueFormat.RAW:
        check = round_trip_check(decode, where, name, equal=equal)
        verify = verified(encode, decode, checked, check) if equal else _checking(checked, check)
    return ValueCodec(value_format, name, encode, checked, verify, _wrapped_decode(decode, where, name, value_format))


def state_codec_for(state_type: Any, where: str, codec: Codec[Any] | None = None) -> StateCodec:
    """The codec of a computation's state; ``where`` names it in errors.

    UnsupportedTypeError for a type that cannot be encoded, or that has no default: what a key without
    state gets must be encodable, and decode to itself.
    """
    name = type_name(state_type)
    value_format, encode, decode = _choose(state_type, codec)
    new = codec.new if codec is not None and codec.new is not None else default_of(state_type)
    equal = value_format is not ValueFormat.CUSTOM
    check = None if value_format is ValueFormat.RAW else round_trip_check(decode, f"{where}, state", name, equal=equal)
    if check is not None and codec is None:
        check = quick_check(state_type, check)
    try:
        first = new()
        encoded = _as_bytes(encode(first))
        decode(encoded)
    except Exception as error:
        raise UnsupportedTypeError(
            f"the state type {name} has no default that can be stored ({type(error).__name__}: {error}): "
            f"make it constructible without arguments, or {name} | None (starting as None), "
            "or set state_codec = millwheel.Codec(encode, decode, new)"
        ) from error
    if check is not None and equal:
        try:
            check(first, encoded)
        except ValueEncodeError as error:
            raise UnsupportedTypeError(f"the default of the state type {name} is not of that type: {error}") from error
    checked = _checked_encode(state_type, encode, f"{where}, state", name)
    takes_none = first is None or accepts(state_type, type(None))
    default = encoded if makes_the_same(new) else None
    return StateCodec(
        name, new, checked, check, default, _wrapped_decode(decode, where, name, value_format), takes_none
    )


def _checking(checked: Encode, check: Check) -> Encode:
    def verify(value: Any) -> bytes:
        encoded = _as_bytes(checked(value))
        check(value, encoded)
        return encoded

    return verify


def _as_bytes(encoded: Any) -> bytes:
    """What a codec of the user's own made: any buffer."""
    return encoded if encoded.__class__ is bytes else bytes(memoryview(encoded))


def format_of(annotation: Any, codec: Codec[Any] | None) -> ValueFormat:
    """How values of a type are encoded."""
    return _choose(annotation, codec)[0]


def _choose(annotation: Any, codec: Codec[Any] | None) -> tuple[ValueFormat, Encode, Decode]:
    if codec is not None:
        return ValueFormat.CUSTOM, codec.encode, codec.decode
    plain = supertype(annotation)
    if plain is bytes:
        return ValueFormat.RAW, bytes, bytes
    if is_protobuf(plain):
        # The unbound method: one C call, in which values of other classes are refused as well.
        encode = functools.partial(plain.SerializeToString, deterministic=True)
        return ValueFormat.PROTOBUF, encode, plain.FromString
    return ValueFormat.MSGPACK, *_msgpack(annotation)


# MessagePack.

# Containers of the standard library that msgspec leaves to its user, and what they are encoded as.
_CONTAINERS: dict[type, Any] = {Counter: dict, OrderedDict: dict, deque: list}


def _msgpack(annotation: Any) -> tuple[Encode, Decode]:
    if annotation is object:
        annotation = Any
    name = type_name(annotation)
    try:
        decoder = msgspec.msgpack.Decoder(annotation, dec_hook=_decode_container)
        culprit = _undecodable(describe_type(annotation))
    except Exception as error:
        raise UnsupportedTypeError(f"{name} cannot be encoded: {error}{_ADVICE}") from error
    if culprit is not None:
        path, cls = culprit
        place = "" if path == "$" else f" (at `{path}`)"
        raise UnsupportedTypeError(f"{name} cannot be encoded: {type_name(cls)}{place} is no type known{_ADVICE}")
    return msgspec.msgpack.Encoder(enc_hook=_encode_container).encode, decoder.decode


_ADVICE = (
    "; use msgspec.Struct, dataclasses, typed dicts, containers and scalars, protobuf messages, bytes, "
    "or give it a codec=millwheel.Codec(encode, decode)"
)


def _encode_container(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    raise TypeError(f"objects of type {type_name(type(value))} cannot be encoded as MessagePack")


def _decode_container(annotation: Any, plain: Any) -> Any:
    if annotation is object:
        return plain
    cls: Any = getattr(annotation, "__origin__", annotation)
    return cls(msgspec.convert(plain, _as_plain_container(cls, get_args(annotation))))


def _as_plain_container(cls: type, arguments: tuple[Any, ...]) -> Any:
    if cls is Counter:
        return dict[arguments[0] if arguments else Any, int]  # type: ignore[misc]
    base = _CONTAINERS[cls]
    return base[arguments] if arguments else base


def _undecodable(info: msgspec_inspect.Type) -> tuple[str, type] | None:
    """The first part of a type that msgspec would leave to hooks, and where it stands."""
    custom = ((path, one.cls) for path, one in _walk(info, "$", set()) if isinstance(one, msgspec_inspect.CustomType))
    return next(((path, cls) for path, cls in custom if cls not in _CONTAINERS and cls is not object), None)


def _has_any(value_format: ValueFormat, annotation: Any) -> bool:
    """Whether some part of a type may be anything."""
    if value_format is not ValueFormat.MSGPACK or annotation is object:
        return value_format is ValueFormat.MSGPACK
    # The items of the containers here are not in what msgspec says of a type.
    loose = msgspec_inspect.AnyType | msgspec_inspect.CustomType
    return any(isinstance(one, loose) for _, one in _walk(describe_type(annotation), "$", set()))


def _walk(info: msgspec_inspect.Type, path: str, seen: set[int]) -> Iterator[tuple[str, msgspec_inspect.Type]]:
    """A type and all its parts, each once, with their places."""
    if id(info) in seen:
        return
    seen.add(id(info))
    yield path, info
    for suffix, part in _parts(info):
        yield from _walk(part, path + suffix, seen)


def _parts(info: msgspec_inspect.Type) -> list[tuple[str, msgspec_inspect.Type]]:
    parts = [(f".{field.name}", field.type) for field in getattr(info, "fields", ())]
    parts += [("", member) for member in getattr(info, "types", ())]
    parts += [(f"[{index}]", item) for index, item in enumerate(getattr(info, "item_types", ()))]
    named = (("item_type", "[]"), ("key_type", " key"), ("value_type", "[]"))
    return parts + [(suffix, getattr(info, name)) for name, suffix in named if hasattr(info, name)]


# Errors that name the place.


def _checked_encode(annotation: Any, encode: Encode, where: str, name: str) -> Encode:
    classes = runtime_classes(annotation)
    if classes is not None and Any in members(normalise(annotation)):
        classes = None
    only = classes[0] if classes is not None and len(classes) == 1 else None
    no_bool = classes is not None and int in classes and bool not in classes

    def checked(value: Any) -> bytes:
        # The first test is all that the common case pays.
        if (
            value.__class__ is not only
            and classes is not None
            and (not isinstance(value, classes) or (no_bool and value.__class__ is bool))
        ):
            raise ValueEncodeError(f"{where} carries {name}, not {type_name(type(value))}: {value!r:.200}{ADVICE}")
        try:
            return encode(value)
        except Exception as error:
            raise ValueEncodeError(f"{where}: a value of {name} cannot be encoded: {error}: {value!r:.200}") from error

    return checked


def _wrapped_decode(decode: Decode, where: str, name: str, value_format: ValueFormat) -> Decode:
    def wrapped(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as error:
            shown = _plain(data) if value_format is ValueFormat.MSGPACK else data
            raise ValueDecodeError(f"{where}: {shown!r:.200} is no {name}: {error}") from error

    return wrapped


def _plain(data: bytes) -> Any:
    """What MessagePack says, of no particular type; the bytes themselves if they say nothing."""
    try:
        return msgspec.msgpack.decode(data)
    except Exception:
        return data
