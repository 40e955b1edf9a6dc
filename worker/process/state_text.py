"""A state for people: as JSON, and with its times as texts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from millwheel.model.time import Timestamp, format_timestamp
from millwheel.sdk.growing.codec import sizes
from millwheel.sdk.growing.fields import GrowingState
from millwheel.sdk.typeinfo import members

__all__ = ["MAX_SHOWN", "shown_state", "state_text"]

MAX_SHOWN: Final = 1 << 16
"""The bytes of the largest encoded state that is shown so. It takes some milliseconds of the event loop."""


def state_text(value: Any) -> str:
    """A state as JSON if possible, otherwise its Python ``repr``. Of a collection in pages, its size."""
    if isinstance(value, GrowingState):
        value = sizes(value)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, NotImplementedError):
        return repr(value)


def shown_state(value: Any, kind: Any) -> str:
    """A state as JSON with its times in ISO 8601, for people. A key of two times is written ``start/end``.
    An object that is stored without the names of its fields has them here.

    Args:
        value: The state.
        kind: Its type. What is a Timestamp there is a time, and so is a ``TimeInt``. None: it is not known.

    Returns:
        The text. Empty: that of :func:`state_text` says as much.
    """
    try:
        plain = msgspec.to_builtins(value)
        shown = _shown(plain, kind)
        return "" if shown == plain else json.dumps(shown, ensure_ascii=False, separators=(",", ":"), default=str)
    except Exception:  # of annotations in user code; the plain text is shown
        return ""


def _shown(plain: Any, kind: Any) -> Any:
    """Return a value of ``kind``, in the form of msgspec's builtins, with its times as texts."""
    if kind is Timestamp or (get_origin(kind) is Annotated and Timestamp in kind.__metadata__):
        return format_timestamp(Timestamp(plain)) if type(plain) is int else plain
    if get_origin(kind) is Annotated:
        return _shown(plain, get_args(kind)[0])
    others = [one for one in members(kind) if one is not NoneType]
    if len(others) == 1 and others[0] is not kind:
        return _shown(plain, others[0])
    if isinstance(plain, dict):
        return _shown_dict(plain, kind)
    if isinstance(plain, list | tuple):
        return _shown_list(plain, kind)
    return plain


def _shown_dict(plain: Mapping[Any, Any], kind: Any) -> dict[str, Any]:
    fields = dict(_fields(kind))
    if fields:
        return {name: _shown(one, fields.get(name)) for name, one in plain.items()}
    of_key, of_value = get_args(kind) if len(get_args(kind)) == 2 else (None, None)
    return {_key(key, _shown(key, of_key)): _shown(one, of_value) for key, one in plain.items()}


def _key(key: Any, shown: Any) -> str:
    """Return a key of a dict as text. ``key``: the same without texts of times."""
    if isinstance(shown, str):
        return shown
    if isinstance(key, tuple):
        parts = list(shown.values()) if isinstance(shown, dict) else shown
        if all(isinstance(one, str) for one in parts) and not any(isinstance(one, str) for one in key):
            return "/".join(parts)
    return json.dumps(shown, ensure_ascii=False, default=str)


def _shown_list(plain: Sequence[Any], kind: Any) -> Any:
    """Return a list, or an object that is stored without names, with them. A tag before its fields has none."""
    given, fields = get_args(kind), dict(_fields(kind))
    if len(fields) == len(plain) and fields:
        return {name: _shown(one, fields[name]) for name, one in zip(fields, plain, strict=True)}
    if get_origin(kind) is tuple and len(given) == len(plain) and Ellipsis not in given:
        return [_shown(one, its) for one, its in zip(plain, given, strict=True)]
    of_item = given[0] if given and not fields and (get_origin(kind) is not tuple or Ellipsis in given) else None
    return [_shown(one, of_item) for one in plain]


def _fields(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the encoded names and the types of an object's fields. None if ``kind`` is no class with fields."""
    plain = get_origin(kind) or kind
    if not isinstance(plain, type):
        return
    if issubclass(plain, msgspec.Struct):
        yield from ((one.encode_name, one.type) for one in msgspec.structs.fields(kind))
    elif hasattr(plain, "_fields") or dataclasses.is_dataclass(plain) or hasattr(plain, "__total__"):
        yield from get_type_hints(plain, include_extras=True).items()
