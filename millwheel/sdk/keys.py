"""Key extraction: how the consumer of a stream names the key of each of its records (section 4.2).

An extractor is stated by field paths, which an injector without the user's code can follow too, or by a
function. It runs where a record is sent. The key is the text of a str or int field, in UTF-8; the
parts of a compound key are joined by ``|``, with ``|`` and ``\\`` inside a part escaped by a ``\\``, so that
different parts never make the same key. That form is stable: keys are stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, overload

import msgspec

from millwheel.core.limits import MAX_KEY_BYTES
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.apart import own_name
from millwheel.sdk.errors import KeyExtractionError, TooLargeError, UsageError
from millwheel.sdk.typeinfo import Field, field_of, is_key_type, type_name

__all__ = ["KeyExtractor", "encode_key", "join_key", "key", "mapping_extractor", "split_key"]

Extract = Callable[[Any], bytes]
_FIELD_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class KeyExtractor:
    """How one input is keyed; made by :func:`key`. Either ``fields`` or ``function`` is set."""

    fields: tuple[str, ...] = ()
    function: Callable[[Any], str | int] | None = None
    feedback: bool = False

    def extract(self, value: Any) -> bytes:
        """The key of one value; for many of them, :meth:`bind` once."""
        return self.bind(type(value))(value)

    def bind(self, record_type: Any, stream: str = "", consumer: str = "") -> Extract:
        """The extractor for values of ``record_type``, compiled. ``stream`` and ``consumer`` are for its errors.

        It raises KeyExtractionError for a value without that field or with one that is no str or int, and
        TooLargeError for a key beyond 4,096 bytes.
        """
        describe = _Description(stream, consumer, type_name(record_type), str(self))
        if self.function is not None:
            return _one_part(self.function, describe)
        getters = [_getter(record_type, path) for path in self.fields]
        if len(getters) == 1:
            return _one_part(getters[0], describe)
        if all(isinstance(get, attrgetter) for get in getters):
            read: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.fields)  # all parts in one call
        else:
            read = _read_all(getters)
        return _one_part(lambda value: join_key(*read(value)), describe)

    def problems(self, record_type: Any) -> list[str]:
        """What is wrong with it for values of ``record_type``, as far as the type tells."""
        found = []
        for path in self.fields:
            problem = _walk(record_type, path)
            if isinstance(problem, str):
                found.append(problem)
        return found

    def to_proto(self, record_type: Any) -> topology_pb2.KeySpec:
        """The spec's form: the fields by their encoded names, so that it can be followed without user code.

        An extractor that needs user code (a function, or a property) is named as a function.
        """
        steps = [_walk(record_type, path) for path in self.fields]
        wire = [".".join(step.wire_name for step in path) for path in steps if not isinstance(path, str)]
        if self.function is None and all(all(name.split(".")) for name in wire):
            return topology_pb2.KeySpec(fields=wire)
        return topology_pb2.KeySpec(function=self._code_name(record_type))

    def _code_name(self, record_type: Any) -> str:
        if self.function is None:
            return f"{type_name(record_type)}: {', '.join(self.fields)}"
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"{own_name(getattr(self.function, '__module__', None) or 'builtins')}:{name}"

    def __str__(self) -> str:
        if self.function is not None:
            return f"key({getattr(self.function, '__qualname__', repr(self.function))})"
        return f"key({', '.join(repr(path) for path in self.fields)})"


@overload
def key(field: str, /, *fields: str, feedback: bool = False) -> KeyExtractor: ...
@overload
def key(function: Callable[[Any], str | int], /, *, feedback: bool = False) -> KeyExtractor: ...
def key(*parts: Any, feedback: bool = False) -> KeyExtractor:
    """How an input is keyed: ``key("text")``, ``key("user.id")``, ``key("origin", "hour")`` or ``key(function)``.

    A field path follows attributes of structs, dataclasses and protobuf messages, and items of dicts. The
    field must be a str or an int. Several paths make a compound key (see :func:`join_key`). A function
    gets the value, and returns a str or an int.

    ``feedback=True`` declares the edge to close a cycle on purpose: it takes no part in the consumer's
    input watermark, and records that come by it may be late. Where the cycle leads over several computations no
    watermark waits for a record on its way round: what comes of it may be late, too, even behind the stream's end.
    """
    if len(parts) == 1 and callable(parts[0]):
        return KeyExtractor(function=parts[0], feedback=feedback)
    if not parts:
        raise UsageError("key() takes one or more field names, or a function")
    for part in parts:
        if not isinstance(part, str) or not _FIELD_PATH.fullmatch(part):
            raise UsageError(f"key() takes field names such as 'text' or 'user.id', or one function, not {part!r}")
    return KeyExtractor(fields=parts, feedback=feedback)


def encode_key(key: str | int) -> bytes:
    """A key of one part as an extractor makes it; UsageError for what is neither a str nor an int."""
    try:
        return _text(key).encode()
    except _NotAKeyError as error:
        raise UsageError(f"no key: {error}") from None


def join_key(*parts: str | int) -> str:
    """The compound key of ``parts``, as ``key("origin", "hour")`` makes it: ``join_key("a|b", 7) == "a\\\\|b|7"``."""
    texts = [part if part.__class__ is str else _text(part) for part in parts]
    joined = "|".join(texts)
    if "\\" not in joined and joined.count("|") == len(texts) - 1:  # as nearly always: nothing to escape
        return joined
    return "|".join(text.replace("\\", "\\\\").replace("|", "\\|") for text in texts)


def split_key(compound: str) -> tuple[str, ...]:
    """The parts of a compound key, all as text: what undoes :func:`join_key`. UsageError for what it never makes."""
    parts = [""]
    escaped = False
    for character in compound:
        if escaped and character not in "|\\":
            break
        if escaped or character not in "|\\":
            parts[-1] += character
            escaped = False
        elif character == "|":
            parts.append("")
        else:
            escaped = True
    if escaped:
        raise UsageError(f"{compound!r} is no compound key: a \\ stands only before | and \\")
    return tuple(parts)


def mapping_extractor(fields: Sequence[str], stream: str = "", consumer: str = "") -> Extract:
    """The extractor by the field paths of a spec, for whoever has not got the consumer's code.

    It takes plain mappings, as injectors have them, as well as structs, messages and other objects.
    """
    return KeyExtractor(fields=tuple(fields)).bind(Any, stream, consumer)


# The compiled forms.


@dataclass(frozen=True, slots=True)
class _Description:
    stream: str
    consumer: str
    type_name: str
    extractor: str

    def __str__(self) -> str:
        where = f"stream {self.stream!r}" if self.stream else "a record"
        return f"{where}, keyed for computation {self.consumer!r} by {self.extractor}" if self.consumer else where

    def failed(self, value: Any, error: Exception) -> KeyExtractionError:
        why = str(error) if isinstance(error, _NotAKeyError) else f"{type(error).__name__}: {error}"
        return KeyExtractionError(f"{self}: no key in a value of {type_name(type(value))}: {why}")


class _NotAKeyError(Exception):
    """A part of a key is neither str nor int."""


def _text(part: Any) -> str:
    # A bool is an int to Python, but its text differs from language to language; so does that of dates.
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, int) and not isinstance(part, bool):
        return int.__repr__(part)
    raise _NotAKeyError(f"got {type_name(type(part))} ({part!r:.80}), and a key is made of str and int only")


def _one_part(get: Callable[[Any], Any], describe: _Description) -> Extract:
    def extract(value: Any) -> bytes:
        try:
            part = get(value)
            encoded: bytes = part.encode() if part.__class__ is str else _text(part).encode()
        except Exception as error:
            raise describe.failed(value, error) from error
        if len(encoded) > MAX_KEY_BYTES:
            raise TooLargeError(f"a key of {describe}", len(encoded), MAX_KEY_BYTES)
        return encoded

    return extract


def _read_all(getters: list[Callable[[Any], Any]]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: tuple([get(value) for get in getters])


def _getter(record_type: Any, path: str) -> Callable[[Any], Any]:
    steps = _walk(record_type, path)
    if not isinstance(steps, str):
        if all(step.item is False for step in steps):
            return attrgetter(path)
        if len(steps) == 1 and steps[0].item:
            return itemgetter(path)
    names = tuple(path.split("."))

    def follow(value: Any) -> Any:
        for name in names:
            value = value[name] if isinstance(value, Mapping) else _attribute(value, name)
        return value

    return follow


def _attribute(value: Any, name: str) -> Any:
    """An attribute by its own name or, for a struct that renames its fields, by the name that is encoded."""
    if isinstance(value, msgspec.Struct) and name not in value.__struct_fields__:
        renamed = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        name = renamed.get(name, name)
    return getattr(value, name)


def _walk(record_type: Any, path: str) -> list[Field] | str:
    """The fields along ``path``, unknown ones where the type cannot tell; a text that says what is wrong with it."""
    steps: list[Field] = []
    at = record_type
    for name in path.split("."):
        field = field_of(at, name)
        if isinstance(field, str):
            known = f"its fields are {field}" if field else "it has no fields"
            return f"{type_name(at)} has no field {name!r} ({known})"
        steps.append(field or Field(None, Any, name))
        at = steps[-1].type
    if not is_key_type(at):
        return f"the field {path!r} is {type_name(at)}, and a key is made of str and int only"
    return steps
