"""Key extraction: each consumer of a stream defines the key of each record (section 4.2).

A key extractor is a list of field paths, or a function. An injector without the user's code can evaluate field paths
too. The extractor runs in the process that sends the record.

A key is the UTF-8 text of a str or int field. The parts of a compound key are joined by ``|``. A ``|`` or ``\\`` within
a part is escaped by ``\\``, so different parts never give the same key. Keys are stored, so this format is stable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, overload

import msgspec

from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.rpc.column_keys import KeySource
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.apart import own_name
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import KeyExtractionError, TooLargeError, UsageError
from millwheel.sdk.expressions import expression_of, plain_function
from millwheel.sdk.function_code import code_digest, may_change_its_argument
from millwheel.sdk.records import key_extractor, text_extractor
from millwheel.sdk.typeinfo import Field, field_of, is_key_type, members, supertype, type_name

__all__ = [
    "KeyExtractor",
    "encode_key",
    "everything",
    "join_key",
    "key",
    "key_source",
    "mapping_extractor",
    "may_be_without_key",
    "split_key",
]

Extract = Callable[[Any], bytes]
_FIELD_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class KeyExtractor:
    """The key extractor of one input, made by :func:`key`. Either ``fields`` or ``function`` is set."""

    fields: tuple[str, ...] = ()
    function: Callable[[Any], str | int] | None = None
    feedback: bool = False
    name: str = field(default="", compare=False)
    """What results call the key of a function. It has no effect on the key."""

    def extract(self, value: Any) -> bytes:
        """The key of one value. For many values, call :meth:`bind` once."""
        return self.bind(type(value))(value)

    def bind(self, record_type: Any, stream: str = "", consumer: str = "") -> Extract:
        """A compiled extractor for values of ``record_type``.

        Args:
            record_type: The type of the values.
            stream: The stream's name, for errors.
            consumer: The consumer's name, for errors.

        Returns:
            A function from a value to its key. It raises KeyExtractionError if the value has no such field, or the
            field is no str or int. It raises TooLargeError for a key of more than 4,096 bytes.
        """
        describe = _KeyDescription(stream, consumer, type_name(record_type), str(self))
        return key_extractor(self._part_of(record_type), _text, describe.failed, describe.too_large)

    def _bind_text(self, record_type: Any) -> Callable[[Any], str]:
        """The same for the key as text, where it becomes a part of something else."""
        describe = _KeyDescription("", "", type_name(record_type), str(self))
        return text_extractor(self._part_of(record_type), _text, describe.failed, describe.too_large)

    def _part_of(self, record_type: Any) -> Callable[[Any], Any]:
        """A function from a value to the str or int that is its key."""
        if self.function is not None:
            return self.function
        getters = [_getter(record_type, path) for path in self.fields]
        if len(getters) == 1:
            return getters[0]
        if all(isinstance(get, attrgetter) for get in getters):
            read: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.fields)  # all parts in one call
        else:
            read = _read_all(getters)
        return lambda value: join_key(*read(value))

    @property
    def _for_all(self) -> str | None:
        """The key of all records, if they have one key without a look at their values. Else None."""
        return everything(None) if self.function is everything else None

    @property
    def _rows_by_function(self) -> bool:
        """Whether that key is for senders of columns alone: the function gives others to records that steps drop."""
        return False

    @property
    def needs_copy(self) -> bool:
        """Whether the function may change the value that it gets. MillWheel's own functions change nothing."""
        if self.function is None or (getattr(self.function, "__module__", None) or "").partition(".")[0] == "millwheel":
            return False
        return may_change_its_argument(self.function)

    def problems(self, record_type: Any) -> list[str]:
        """The mistakes of this extractor for values of ``record_type``, as far as the type shows them."""
        found = []
        for path in self.fields:
            problem = _walk(record_type, path)
            if isinstance(problem, str):
                found.append(problem)
        return found

    def to_proto(self, record_type: Any) -> topology_pb2.KeySpec:
        """The extractor for the spec: fields by their encoded names, so that no user code is needed to evaluate them.

        An extractor that needs user code (a function or a property) is represented by its name.
        """
        steps = [_walk(record_type, path) for path in self.fields]
        wire = [".".join(step.wire_name for step in path) for path in steps if not isinstance(path, str)]
        if self.function is None and all(all(name.split(".")) for name in wire):
            return topology_pb2.KeySpec(fields=wire)
        spec = topology_pb2.KeySpec(function=self._code_name(record_type), code=self._code_digest())
        if (same := self._for_all) is not None:
            spec.same_key, spec.rows_by_function = same, self._rows_by_function
        return spec

    def _code_digest(self) -> str:
        return "" if self.function is None else code_digest([self.function])

    def _code_name(self, record_type: Any) -> str:
        if self.function is None:
            return f"{type_name(record_type)}: {', '.join(self.fields)}"
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"{own_name(getattr(self.function, '__module__', None) or 'builtins')}:{name}"

    def __str__(self) -> str:
        if self.function is not None:
            return f"key({getattr(self.function, '__qualname__', repr(self.function))})"
        return f"key({', '.join(repr(path) for path in self.fields)})"


def key_source(spec: topology_pb2.KeySpec) -> KeySource | None:
    """Where the keys are, if records are columns. None: only a record's value says its key.

    >>> key_source(topology_pb2.KeySpec(fields=["item"])), key_source(topology_pb2.KeySpec(fields=["user.age"]))
    ('item', None)
    >>> key_source(topology_pb2.KeySpec(function="a sink of one shard", same_key="0"))
    b'0'
    """
    if spec.HasField("same_key"):
        return spec.same_key.encode()
    single = len(spec.fields) == 1 and not spec.function and "." not in spec.fields[0]
    return spec.fields[0] if single else None


def may_be_without_key(extractor: KeyExtractor, record_type: Any) -> bool:
    """Whether a value of ``record_type`` may have no key, as far as the type shows."""
    if extractor.function is not None:
        return True
    at = [record_type]
    for path in extractor.fields:
        steps = _walk(record_type, path)
        if not isinstance(steps, str):  # a mistake, which is reported
            at += [Any if step.item is not False or not step.wire_name else step.type for step in steps]
    return any(member is Any or member is type(None) for one in at for member in map(supertype, members(one)))


@overload
def key(field: str, /, *fields: str, feedback: bool = False) -> KeyExtractor: ...
@overload
def key(function: Callable[[Any], str | int], /, *, feedback: bool = False) -> KeyExtractor: ...
def key(*parts: Any, feedback: bool = False) -> KeyExtractor:
    """Define the key of an input: ``key("text")``, ``key("user.id")``, ``key("origin", "hour")`` or ``key(function)``.

    Args:
        parts: Field paths, or one function. A path follows attributes of structs, dataclasses and protobuf messages,
            and items of dicts. The field must be a str or an int. Several paths make a compound key (see
            :func:`join_key`). A function takes the value and returns a str or an int.
        feedback: Whether this input closes a cycle deliberately. The consumer's input watermark then ignores this
            input, so its records may be late. If the cycle has several computations, no watermark waits for a record
            inside it. Records that result from it may be late too, even after the end of the stream.

    Raises:
        UsageError: The arguments are neither field paths nor one function.
    """
    if len(parts) == 1 and callable(parts[0]):
        read = expression_of(parts[0])
        if read is None or read.operator != "col":
            return KeyExtractor(function=plain_function(parts[0]), feedback=feedback)
        parts = read.parts  # a path is better than a function: see millwheel/streams/fields.py
    if not parts:
        raise UsageError("key() takes one or more field names, or a function")
    for part in parts:
        if not isinstance(part, str) or not _FIELD_PATH.fullmatch(part):
            raise UsageError(f"key() takes field names such as 'text' or 'user.id', or one function, not {part!r}")
    return KeyExtractor(fields=parts, feedback=feedback)


def everything(value: Any) -> str:
    """One key for all records: ``key_by(millwheel.everything)``. All of them then run in one interval, one by one.

    Args:
        value: Any value.
    """
    return ""


def encode_key(key: str | int) -> bytes:
    """Encode a key of one part as an extractor does. UsageError if it is neither a str nor an int."""
    try:
        return _text(key).encode()
    except _NotAKeyError as error:
        raise UsageError(f"no key: {error}") from None


def join_key(*parts: str | int) -> str:
    """Join the parts of a compound key, as ``key("origin", "hour")`` does: ``join_key("a|b", 7) == "a\\\\|b|7"``.

    Args:
        parts: The parts, each a str or an int.

    Returns:
        The compound key.
    """
    texts = [part if part.__class__ is str else _text(part) for part in parts]
    joined = "|".join(texts)
    if "\\" not in joined and joined.count("|") == len(texts) - 1:  # the common case: nothing to escape
        return joined
    return "|".join(text.replace("\\", "\\\\").replace("|", "\\|") for text in texts)


def split_key(compound: str) -> tuple[str, ...]:
    """Split a compound key into its parts, all as text. This is the inverse of :func:`join_key`.

    Args:
        compound: A compound key.

    Returns:
        The parts.

    Raises:
        UsageError: ``join_key`` never returns such a text.
    """
    if "\\" not in compound:  # the common case: nothing is escaped
        return tuple(compound.split("|"))
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
    """An extractor for the field paths of a spec, for processes without the consumer's code.

    It accepts plain mappings, which injectors have, and also structs, messages and other objects.
    """
    return KeyExtractor(fields=tuple(fields)).bind(Any, stream, consumer)


# The compiled forms.


@dataclass(frozen=True, slots=True)
class _KeyDescription:
    stream: str
    consumer: str
    type_name: str
    extractor: str

    def __str__(self) -> str:
        where = f"stream {self.stream!r}" if self.stream else "a record"
        return f"{where}, keyed for computation {self.consumer!r} by {self.extractor}" if self.consumer else where

    def failed(self, value: Any, error: Exception) -> KeyExtractionError:
        no_key = isinstance(error, _NotAKeyError)
        why = str(error) if no_key else error_message(error)
        where = f"{self}: no key in a value of {type_name(type(value))}"
        return KeyExtractionError(f"{where}: {why}", computation=self.consumer, extractor_raised=not no_key)

    def too_large(self, size: int) -> TooLargeError:
        return TooLargeError(f"a key of {self}", size, MAX_KEY_BYTES)


class _NotAKeyError(Exception):
    """A part of a key is neither str nor int."""


def _text(part: Any) -> str:
    # In Python a bool is an int, but its text differs between languages. The same holds for dates.
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, int) and not isinstance(part, bool):
        return int.__repr__(part)
    raise _NotAKeyError(f"got {type_name(type(part))} ({part!r:.80}), and a key is made of str and int only")


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
    """An attribute by its own name or, in a struct with renamed fields, by its encoded name."""
    if isinstance(value, msgspec.Struct) and name not in value.__struct_fields__:
        renamed = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        name = renamed.get(name, name)
    return getattr(value, name)


def _walk(record_type: Any, path: str) -> list[Field] | str:
    """The fields along ``path``. If the type does not determine a field, it is an unknown one.

    Returns:
        The fields, or a text that says what is wrong with the path.
    """
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
