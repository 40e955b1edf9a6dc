"""Conversion of values and states to bytes. The type selects the encoding (sections 4.3, 4.4).

===========================================================  ==============================================
structs, dataclasses, typed dicts, containers, scalars, …    MessagePack, structs as maps from field names
NumPy's arrays and scalars                                   MessagePack: [dtype, shape, bytes], and numbers
protobuf messages                                            their own encoding, deterministic
bytes                                                        unchanged
any type with a :class:`Codec`                               the user's own
===========================================================  ==============================================

Each stream has one type. A consumer of several types (a union) gets each value as its stream's type.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, Generic, TypeVar, get_args

import msgspec
from msgspec import inspect as msgspec_inspect

from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.arrays import from_plain, is_numpy, plain_of
from millwheel.sdk.column_fields import has_plain_default
from millwheel.sdk.defaults import default_of, makes_the_same
from millwheel.sdk.error_texts import bare_message, error_message
from millwheel.sdk.errors import UnsupportedTypeError, ValueDecodeError, ValueEncodeError
from millwheel.sdk.exact_types import Exact, ExactAll, exact_test, exact_test_of_all
from millwheel.sdk.known_types import known
from millwheel.sdk.records import (
    EncodeAll,
    decoder_of_all,
    described_decoder,
    exact_check,
    typed_encoder,
    verifying_encoder,
    verifying_encoder_of_all,
)
from millwheel.sdk.round_trip import ADVICE, Check, round_trip_check
from millwheel.sdk.typeinfo import (
    accepts,
    cached_by_type,
    describe_type,
    is_protobuf,
    members,
    normalise,
    runtime_classes,
    supertype,
    type_name,
)
from millwheel.sdk.unsafe_types import refuse_unsafe

__all__ = ["Codec", "StateCodec", "ValueCodec", "ValueFormat", "codec_for", "format_of", "state_codec_for"]

T = TypeVar("T")
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class ValueFormat(Enum):
    """The encoding of a stream's values. The enum values are those of the protobuf enum."""

    MSGPACK = topology_pb2.VALUE_FORMAT_MSGPACK
    PROTOBUF = topology_pb2.VALUE_FORMAT_PROTOBUF
    RAW = topology_pb2.VALUE_FORMAT_RAW
    CUSTOM = topology_pb2.VALUE_FORMAT_CUSTOM


@dataclass(frozen=True)  # without slots, so that Codec[T](...) works: Python 3.11 sets __orig_class__ on the instance
class Codec(Generic[T]):
    """A user-defined encoding for the values of a stream or for the state of a computation.

    ``decode(encode(value))`` must equal ``value``. Equal values should have equal encodings, because a state whose
    encoding did not change is not written again. If ``encode`` is called in a hook, ``decode`` gets its result at once:
    an error of ``decode`` is then an error of the hook.

    A state counts as absent if its encoding is empty. It also counts as absent if ``new`` is a built-in type, and the
    encoding equals that of the state which ``new`` returns.

    Args:
        encode: Returns the bytes of a value.
        decode: Returns the value of such bytes.
        new: Returns the state of a key without state. None: the type's default.
    """

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    new: Callable[[], T] | None = None


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """The codec of a stream's values. ``encode`` is the fastest encoder and does not check its argument."""

    format: ValueFormat
    type_name: str
    encode: Encode
    checked: Encode
    """Encodes values of the type. For others, ValueEncodeError names the stream, the type and the type of the value."""
    verify: Encode
    """Encodes values whose encoding can be decoded again, in all parts. ValueEncodeError names the part that cannot."""
    decode: Decode
    """Decodes a value. ValueDecodeError names the stream, the type, and the place of the error in the value."""
    copy: Callable[[Any], Any]
    """Copies a value for a function that may change what it gets."""
    verify_all: EncodeAll
    """Encodes many values, each as ``verify`` does."""
    decode_all: Callable[[Sequence[bytes]], list[Any]]
    """Decodes many values, each as ``decode`` does."""
    repeatable: bool
    """Whether the values are MessagePack, and no user's code runs while one is decoded. So equal bytes make equal
    values, as long as the type stays as it is. False proves nothing."""


@dataclass(frozen=True, slots=True)
class PlainEncoding:
    """What ``encode`` and ``check`` of a ``StateCodec`` come to for the values of one class.

    A commit encodes the state of each of its keys, so each call counts.
    """

    cls: type
    encode: Encode
    """Encodes a value of ``cls`` as the codec does. If it raises, the error of the codec's ``encode`` describes why."""
    exact_all: ExactAll
    """Whether none of many values needs a ``check``. False proves nothing."""


@dataclass(frozen=True, slots=True)
class StateCodec:
    """The codec of a computation's state."""

    type_name: str
    new: Callable[[], Any]
    """Returns the state of a key without state."""
    encode: Encode
    """Encodes only states of the type. A state of another type could not be decoded later."""
    check: Check | None
    """Checks that an encoding can be decoded again, in all parts. None for a type whose encodings always can."""
    default: bytes | None
    """The encoding of the state that ``new`` returns. A key with this state counts as a key without state.

    None if two calls of ``new`` may return different states.
    """
    decode: Decode
    takes_none: bool
    """Whether None is a value of the type. None stands for no state."""
    present: Callable[[bytes], bytes] = bytes
    """Turns what is stored, of any version, into the bytes that the codec of this version encodes."""
    plain: PlainEncoding | None = None
    """How values of one class are encoded and checked with fewer calls. None: by ``encode`` and ``check`` alone."""
    kind: Any = None
    """The type. None: it is not known, or a state of it is no single value."""

    def verify(self, value: Any) -> bytes:
        """Encode a state, and check that the encoding can be decoded again; ValueEncodeError."""
        encoded = _as_bytes(self.encode(value))
        if self.check is not None and encoded:
            self.check(value, encoded)
        return encoded


def codec_for(record_type: Any, where: str, codec: Codec[Any] | None = None) -> ValueCodec:
    """The codec of one stream's values.

    Args:
        record_type: The stream's type.
        where: The stream's name in errors, such as ``stream 'queries'``.
        codec: The user's codec, if there is one.

    Raises:
        UnsupportedTypeError: The type cannot be encoded, and there is no ``codec``.
    """
    name = type_name(record_type)
    value_format, encode, decode = _choose(record_type, codec)
    checked = _checked_encode(record_type, encode, where, name)
    # A value declared as Any always decodes to plain dicts and lists, so it may differ from the original.
    equal = value_format is not ValueFormat.CUSTOM and not _has_any(value_format, record_type)
    verify, exact_all = checked, None
    if value_format is not ValueFormat.RAW:
        check = round_trip_check(decode, where, name, equal=equal)
        exact = exact_test(record_type) if value_format is ValueFormat.MSGPACK else None
        slow = _checking(checked, check)
        verify = verifying_encoder(encode, decode, slow, exact) if equal else slow
        exact_all = exact_test_of_all(record_type) if equal and exact is not None else None
    wrapped = _wrapped_decode(decode, where, name, value_format)
    return ValueCodec(
        value_format,
        name,
        encode,
        checked,
        verify,
        wrapped,
        lambda value: decode(_as_bytes(encode(value))),
        verifying_encoder_of_all(encode, verify, exact_all),
        decoder_of_all(decode, wrapped),
        value_format is ValueFormat.MSGPACK and _is_repeatable(record_type),
    )


def state_codec_for(state_type: Any, where: str, codec: Codec[Any] | None = None) -> StateCodec:
    """The codec of a computation's state.

    Args:
        state_type: The type of the state.
        where: The computation's name in errors.
        codec: The user's codec, if there is one.

    Raises:
        UnsupportedTypeError: The type cannot be encoded, or has no default. The default is the state of a key without
            one, so it must be encodable and decode to an equal value.
    """
    name = type_name(state_type)
    value_format, encode, decode = _choose(state_type, codec)
    new = codec.new if codec is not None and codec.new is not None else default_of(state_type)
    equal = value_format is not ValueFormat.CUSTOM
    check = None if value_format is ValueFormat.RAW else round_trip_check(decode, f"{where}, state", name, equal=equal)
    exact = exact_test(state_type) if check is not None and codec is None else None
    if check is not None and exact is not None:
        check = exact_check(exact, check)
    try:
        first = new()
        encoded = _as_bytes(encode(first))
        decode(encoded)
    except Exception as error:
        raise UnsupportedTypeError(
            f"the state type {name} has no default that can be stored ({error_message(error)}): "
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
    first_class = _first_class(state_type)
    plain = None
    if first_class is not None and exact is not None:
        exact_all = exact_test_of_all(state_type) or _each(exact)
        plain = PlainEncoding(first_class, encode, exact_all)
    return StateCodec(
        name,
        new,
        checked,
        check,
        default,
        _wrapped_decode(decode, where, name, value_format),
        takes_none,
        plain=plain,
        kind=state_type,
    )


def _each(exact: Exact) -> ExactAll:
    """The exact test of many values of a type that is nested too deeply for a function of its own."""
    return lambda values: all(map(exact, values))


def _checking(checked: Encode, check: Check) -> Encode:
    def verify(value: Any) -> bytes:
        encoded = _as_bytes(checked(value))
        check(value, encoded)
        return encoded

    return verify


def _as_bytes(encoded: Any) -> bytes:
    """The result of a user's codec as bytes. It may be any buffer."""
    return encoded if encoded.__class__ is bytes else bytes(memoryview(encoded))


def format_of(annotation: Any, codec: Codec[Any] | None) -> ValueFormat:
    """The encoding that a type's values get."""
    return _choose(annotation, codec)[0]


def _choose(annotation: Any, codec: Codec[Any] | None) -> tuple[ValueFormat, Encode, Decode]:
    if codec is not None:
        return ValueFormat.CUSTOM, codec.encode, codec.decode
    plain = supertype(annotation)
    if plain is bytes:
        return ValueFormat.RAW, bytes, bytes
    if is_protobuf(plain):
        # The unbound method is one C call, and it also rejects values of other classes.
        encode = functools.partial(plain.SerializeToString, deterministic=True)
        return ValueFormat.PROTOBUF, encode, plain.FromString
    return ValueFormat.MSGPACK, *_msgpack(annotation)


# MessagePack.

# Standard containers that msgspec leaves to hooks, with the type that each is encoded as.
_CONTAINERS: dict[type, Any] = {Counter: dict, OrderedDict: dict, deque: list}


@cached_by_type
def _msgpack(annotation: Any) -> tuple[Encode, Decode]:
    if annotation is object:
        annotation = Any
    name = type_name(annotation)
    try:
        refuse_unsafe(annotation)
        decoder = msgspec.msgpack.Decoder(known(annotation), dec_hook=_decode_container)
        culprit = _undecodable(describe_type(annotation))
    except Exception as error:
        raise UnsupportedTypeError(f"{name} cannot be encoded: {bare_message(error)}{_ADVICE}") from error
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
    if is_numpy(value.__class__):
        return plain_of(value)
    raise TypeError(f"objects of type {type_name(type(value))} cannot be encoded as MessagePack")


def _decode_container(annotation: Any, plain: Any) -> Any:
    if annotation is object:
        return plain
    cls: Any = getattr(annotation, "__origin__", annotation)
    if is_numpy(cls):
        return from_plain(annotation, plain)
    return cls(msgspec.convert(plain, _plain_container(annotation), dec_hook=_decode_container))


@cached_by_type
def _plain_container(annotation: Any) -> Any:
    """What such a container is encoded as. msgspec does not look at its items before."""
    cls, arguments = getattr(annotation, "__origin__", annotation), get_args(annotation)
    if cls is Counter:
        return known(dict[arguments[0] if arguments else Any, int])  # type: ignore[misc]
    base = _CONTAINERS[cls]
    return known(base[arguments] if arguments else base)


def _undecodable(info: msgspec_inspect.Type) -> tuple[str, type] | None:
    """The first part of a type that msgspec cannot decode without a hook, with its path; None if there is none."""
    custom = ((path, one.cls) for path, one in _walk(info, "$", set()) if isinstance(one, msgspec_inspect.CustomType))
    known = ((path, cls) for path, cls in custom if cls not in _CONTAINERS and cls is not object)
    return next(((path, cls) for path, cls in known if not is_numpy(cls)), None)


def _has_any(value_format: ValueFormat, annotation: Any) -> bool:
    """Whether some part of a type accepts any value."""
    if value_format is not ValueFormat.MSGPACK or annotation is object:
        return value_format is ValueFormat.MSGPACK
    return _has_loose_part(annotation)


@cached_by_type
def _has_loose_part(annotation: Any) -> bool:
    # msgspec's description of these containers does not include their items.
    loose = msgspec_inspect.AnyType | msgspec_inspect.CustomType
    return any(isinstance(one, loose) for _, one in _walk(describe_type(annotation), "$", set()))


@cached_by_type
def _is_repeatable(annotation: Any) -> bool:
    """Whether no user's code runs while a value is decoded: no factory of a default, and nothing behind the fields."""
    return all(_is_made_of_bytes(one) for _, one in _walk(describe_type(annotation), "$", set()))


def _is_made_of_bytes(part: msgspec_inspect.Type) -> bool:
    # msgspec's description of containers that hooks make does not include their items.
    if isinstance(part, msgspec_inspect.CustomType):
        return False
    if isinstance(part, msgspec_inspect.DataclassType) and not is_dataclass(part.cls):
        return False  # a class of attrs, which may convert and validate
    if hasattr(getattr(part, "cls", None), "__post_init__"):
        return False
    return all(one.required or has_plain_default(one) for one in getattr(part, "fields", ()))


def _walk(info: msgspec_inspect.Type, path: str, seen: set[int]) -> Iterator[tuple[str, msgspec_inspect.Type]]:
    """A type and all its parts, each once, with their paths."""
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


# Errors with the place of the fault.


def _classes(annotation: Any) -> tuple[type, ...] | None:
    """The classes of the type's values. None: of any."""
    classes = runtime_classes(annotation)
    return None if classes is None or Any in members(normalise(annotation)) else tuple(classes)


def _first_class(annotation: Any) -> type | None:
    """A class whose values are of the type without a further test: the first one but None's, if there is any."""
    return next((one for one in _classes(annotation) or () if one is not NoneType), None)


def _checked_encode(annotation: Any, encode: Encode, where: str, name: str) -> Encode:
    classes, only = _classes(annotation), _first_class(annotation)
    no_bool = classes is not None and int in classes and bool not in classes

    def accepts_value(value: Any) -> bool:
        assert classes is not None
        return isinstance(value, classes) and not (no_bool and value.__class__ is bool)

    def fault(value: Any, error: Exception | None) -> ValueEncodeError:
        if error is None:
            return ValueEncodeError(f"{where} carries {name}, not {type_name(type(value))}: {value!r:.200}{ADVICE}")
        return ValueEncodeError(f"{where}: a value of {name} cannot be encoded: {bare_message(error)}: {value!r:.200}")

    return typed_encoder(encode, only, None if classes is None else accepts_value, fault)


def _wrapped_decode(decode: Decode, where: str, name: str, value_format: ValueFormat) -> Decode:
    def fault(data: bytes, error: Exception) -> ValueDecodeError:
        shown = _plain(data) if value_format is ValueFormat.MSGPACK else data
        return ValueDecodeError(f"{where}: {shown!r:.200} is no {name}: {bare_message(error)}")

    return described_decoder(decode, fault)


def _plain(data: bytes) -> Any:
    """The content of MessagePack bytes, decoded without a type; the bytes themselves if they are not valid."""
    try:
        return msgspec.msgpack.decode(data)
    except Exception:
        return data
