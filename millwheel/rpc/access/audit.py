"""The audit log: a line for each call that changes something, and for each refusal. Logger: ``millwheel.audit``.

A line has who, from where, what, on which topologies, the outcome, and what was there before and after. It never has
keys, values, records, code or credentials: :func:`summary` lists the kinds of fields that it shows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from millwheel.rpc.principal import Principal

__all__ = ["audit", "summary"]

log = logging.getLogger("millwheel.audit")

_SCALARS: Final = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
        FieldDescriptor.CPPTYPE_BOOL,
    }
)
_INNER: Final = frozenset({"spec", "topology", "quota", "interval", "owner", "code", "start"})
"""The messages within a request or a response that a line shows."""
_NUMBERS: Final = frozenset({"ids", "replayed", "discarded", "elsewhere", "in_replay", "unconfirmed", "left"})
"""The lists that a line shows: ids of dead letters."""
_PACKAGE: Final = "/millwheel.v1."
_MAX_TEXT: Final = 200
_MAX_NUMBERS: Final = 1_000
"""The most numbers of a list that a line shows. A request to replay or discard dead letters has no more."""
_MAX_DEPTH: Final = 4
_USER: Final = re.compile("//[^/]*@")


def audit(
    principal: Principal,
    peer: str,
    method: str,
    outcome: str,
    *,
    topologies: tuple[str, ...] = (),
    **values: object,
) -> None:
    """Write one line. ``outcome``: OK, OPENED for a stream, or the name of the status."""
    method = method.removeprefix(_PACKAGE)
    shown = {name: value for name, value in values.items() if value not in (None, "", {})}
    line = {
        "principal": principal.name,
        "credential": principal.credential,
        "peer": peer,
        "method": method,
        "topologies": list(topologies),
        "outcome": outcome,
        **shown,
    }
    level = logging.INFO if outcome in ("OK", "OPENED") else logging.WARNING
    log.log(level, "%s by %s: %s", method, principal.name, outcome, extra={"fields": line})


def summary(message: Message, depth: int = _MAX_DEPTH) -> dict[str, object]:
    """Return the names and numbers of a message.

    Bytes, other messages within it, and lists are left out, except the ids of dead letters.
    """
    found: dict[str, object] = {}
    for field, value in message.ListFields():
        if field.is_repeated:
            if field.name in _NUMBERS and field.cpp_type in _SCALARS:
                found[field.name] = _runs(value)
            continue
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if field.name in _INNER and depth and (inner := summary(value, depth - 1)):
                found[field.name] = inner
        elif field.type == FieldDescriptor.TYPE_STRING:
            found[field.name] = _cut(value)
        elif field.type == FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            named = field.enum_type.values_by_number.get(value)
            found[field.name] = named.name if named is not None else value
        elif field.cpp_type in _SCALARS:
            found[field.name] = value
    return found


def _runs(numbers: Sequence[int]) -> str:
    """Return a list of numbers as a text such as ``3-5, 9``."""
    shown = enumerate(sorted(set(numbers[:_MAX_NUMBERS])))
    runs = [[number for _, number in run] for _, run in groupby(shown, lambda one: one[1] - one[0])]
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    left_out = len(numbers) - _MAX_NUMBERS
    return f"{text} and {left_out:,} more" if left_out > 0 else text


def _cut(text: object) -> str:
    text = _without_secrets(str(text))
    shown = "".join(one if one.isprintable() else "?" for one in text[:_MAX_TEXT])
    return shown if len(text) <= _MAX_TEXT else f"{shown}…"


def _without_secrets(text: str) -> str:
    """Return a URL without its user, password and query. Other texts stay as they are."""
    if "://" not in text:
        return text
    return _USER.sub("//…@", text.partition("?")[0])
