"""Elements that an earlier version of the code stored, and collections that the code has dropped (section 4.4).

The *form* of an element is the number of its field's functions when the element was stored. It is stored with the
element: an element of form 0 is the output of its codec, one of a later form has an envelope (``sdk/envelopes.py``).

Invariant: an element and its form are one value. Only :func:`in_forms` makes and reads such values, and it writes the
newest form alone. So each function runs once between what is stored and what a hook reads: those from the form on.
Nothing rewrites an element but the hook that sets it. Who may break it: code that copies an encoding to another field.

Invariant: the functions of a version begin with those of the version before it, and a dropped name is never used again.
The master compares both (``master/migrating.py``). Who may break it: a function that is replaced under its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millwheel.sdk.envelopes import MARK, envelope, opened
from millwheel.sdk.error_texts import bare_message
from millwheel.sdk.errors import UnsupportedTypeError, UsageError, ValueDecodeError, ValueEncodeError
from millwheel.sdk.growing.elements import Elements, element_codec
from millwheel.sdk.typeinfo import can_be_read_as, first_type, returned_type, type_name

__all__ = ["Conversion", "Dropped", "Migrated", "conversions_of", "in_forms", "migrated"]


class Dropped:
    """Annotate a field of a growing state with this when its collection is dropped. The field is gone.

    A key's elements are deleted when its state is next used. Keep the line: its name is never used again, because keys
    that nothing has used since then still have their elements.

    Example:
        >>> import millwheel as mw
        >>> class Account(mw.GrowingState):
        ...     payments: mw.ListState[int]
        ...     rates: mw.Dropped
        >>> Account()
        Account(payments=ListState())
    """


@dataclass(frozen=True, slots=True)
class Migrated:
    """What :func:`migrated` returns: the default of a field in the class of a growing state."""

    functions: tuple[Callable[[Any], Any], ...]


def migrated(*functions: Callable[[Any], Any]) -> Any:
    """Convert the elements of a collection that earlier versions of the code stored. Use it as the field's default.

    An element is converted when it is read, and is stored as converted when a hook sets it. So nothing reads a large
    collection as a whole. A function may run several times for a stored element: its result depends on its argument
    alone. For another change later, add a function at the end, and keep those before it, with their names.

    Args:
        functions: Each takes an element of one form and returns it in the next; the last one's is the type of the
            field's elements. Each states the type of its argument: elements are decoded as this.

    Returns:
        The default of the field.

    Raises:
        UsageError: There is no function, or one of them is no named function.

    Example:
        >>> import msgspec
        >>> import millwheel as mw
        >>> class Payment(msgspec.Struct):
        ...     cents: int
        >>> def in_cents(euros: int) -> Payment:
        ...     return Payment(100 * euros)
        >>> class Account(mw.GrowingState):
        ...     payments: mw.ListState[Payment] = mw.migrated(in_cents)
    """
    for function in functions:
        if not callable(function) or not hasattr(function, "__name__") or inspect.iscoroutinefunction(function):
            raise UsageError(f"migrated(...) takes functions that have a name and are not async, not {function!r:.80}")
    if not functions:
        raise UsageError("migrated(...) takes the functions that convert stored elements, and got none")
    return Migrated(functions)


@dataclass(frozen=True, slots=True)
class Conversion:
    """A function of the user's that converts elements to their next form."""

    name: str
    taken: Any
    """The type of the elements that the function takes."""
    decode: Callable[[bytes], Any]
    """Decodes the elements that the function takes."""
    convert: Callable[[Any], Any]


def conversions_of(given: Migrated, element: Any, where: str) -> tuple[Conversion, ...]:
    """The conversions of a field whose elements are of type ``element``.

    Raises:
        UnsupportedTypeError: A function does not state what it takes, or returns what the next one does not take.
    """
    functions = given.functions
    taken = [first_type(function) for function in functions]
    found = []
    for function, before, after in zip(functions, taken, [*taken, element][1:], strict=True):
        name, made = function.__name__, returned_type(function)
        if before is None:
            raise UnsupportedTypeError(
                f"{where}: migrated({name}) does not say which elements it takes: annotate the argument of {name} with "
                "the type that they had, which is defined at the top level of a module"
            )
        if after is not None and made is not None and not can_be_read_as(after, made):
            raise UnsupportedTypeError(f"{where}: {name} returns {type_name(made)}, and not {type_name(after)}")
        found.append(Conversion(name, before, element_codec(before, f"{where}, as {name} takes it").decode, function))
    return tuple(found)


def in_forms(elements: Elements[Any], conversions: tuple[Conversion, ...], where: str) -> Elements[Any]:
    """``elements`` whose encodings also tell their form. Those of earlier forms are converted when they are read."""
    if elements.is_msgpack and not conversions:
        return elements  # No such encoding begins like an envelope.
    encode, decode, newest = elements.encode, elements.decode, len(conversions)
    head = envelope(newest)
    size = len(head)

    def encode_marked(value: Any) -> bytes:
        encoded = encode(value)
        return head + encoded if newest or encoded[:1] == MARK else encoded

    def decode_any(data: bytes) -> Any:
        if data[:size] == head:
            return decode(data[size:])
        form, encoded = opened(data, f"{where}, an element") if data[:1] == MARK else (0, data)
        if form == newest:
            return decode(encoded)
        if form > newest:
            raise ValueDecodeError(f"{where}: an element has form {form}, and this code knows {newest}: run newer code")
        value = conversions[form].decode(encoded)
        for one in conversions[form:]:
            value = _converted(one, value, where)
        try:
            encode(value)
        except ValueEncodeError as error:
            raise ValueDecodeError(f"{where}: {conversions[-1].name} made no element of one: {error}") from error
        return value

    def decode_first(data: bytes) -> Any:
        return decode(data) if data[:1] != MARK else decode_any(data)

    return Elements(encode_marked, decode_any if newest else decode_first, elements.type, elements.is_msgpack)


def _converted(one: Conversion, value: Any, where: str) -> Any:
    try:
        return one.convert(value)
    except Exception as error:
        # A KeyError or IndexError would say that there is no such element, and a hook would set another one.
        what = f"{where}: {one.name} raised {type(error).__name__} for a stored element"
        raise ValueDecodeError(f"{what}: {bare_message(error)}") from error
