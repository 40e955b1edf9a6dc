"""Odd values that no client sends on purpose. The caller's ``random.Random`` determines all of them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

ODD_WORDS: Final = (
    "", " ", "\0", "a\0b", "/", "//", "..", "../../etc/passwd", "%", "%2F", "%00", "-", ".", "a b", "a.b", "a.1",
    "a.1.j1", "ä", "\u202eabc", "\U0001f600", "x" * 200, "x" * 5_000, "'; --", "{}", "${x}", "\\", "\n", "\r\n", "None",
    "null", "0", "-1", "nan", "count", "injector/", "injector/x/", "log", ".log.", "authority.0", "packages",
    "sequencer", "workers/w",
)  # fmt: skip
"""Odd names. There is a fixed number of them, so the state that they leave behind is bounded."""

_NUMBERS: Final = (0, 1, -1, 2, 7, 63, 64, 255, 256, 1_000, *(1 << bits for bits in (20, 31, 32, 53, 62, 63, 64)))
_FLOATS: Final = (0.0, -0.0, 1.0, -1.5, float("inf"), float("-inf"), float("nan"), 1e308, 5e-324)
_DEEPEST: Final = 6

_BITS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
}


def odd_word(random: Random, words: Sequence[str]) -> str:
    """One of ``words``, which are valid names, or an odd name."""
    return random.choice(words if words and random.random() < 0.7 else ODD_WORDS)


def odd_bytes(random: Random, words: Sequence[str]) -> bytes:
    """Bytes that are a valid name, nearly one, or arbitrary."""
    how = random.random()
    if how < 0.5:
        return odd_word(random, words).encode()
    if how < 0.7:
        return damaged(random, odd_word(random, words).encode())
    return random.randbytes(random.choice((0, 1, 2, 15, 16, 17, 31, 32, 100, 4_096, 4_097)))


def damaged(random: Random, value: bytes) -> bytes:
    """``value`` cut off, with a bit flipped, or with other bytes in it. Now and then it is replaced."""
    if not value or random.random() < 0.05:
        return random.randbytes(random.randrange(64))
    how, at = random.randrange(5), random.randrange(len(value))
    if how == 0:
        return value[:at]
    if how == 1:
        return value[:at] + value[at + 1 :]
    if how == 2:
        return value[:at] + random.randbytes(random.randrange(1, 9)) + value[at:]
    if how == 3:
        return value[:at] + random.randbytes(min(8, len(value) - at)) + value[at + 8 :]
    return value[:at] + bytes((value[at] ^ (1 << random.randrange(8)),)) + value[at + 1 :]


def odd_message(random: Random, message: Message, words: Sequence[str], fill: float = 0.7, depth: int = 0) -> Message:
    """``message`` with odd values in a part ``fill`` of its fields."""
    for field in message.DESCRIPTOR.fields:
        if random.random() > fill or depth > _DEEPEST:
            continue
        into: Any = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(random, into, field.message_type, words, fill, depth)
        elif field.is_repeated:
            for _ in range(random.choice((0, 1, 1, 2, 3, 9))):
                if field.message_type is not None:
                    odd_message(random, into.add(), words, fill, depth + 1)
                else:
                    into.append(_scalar(random, field, words))
        elif field.message_type is not None:
            into.SetInParent()
            odd_message(random, into, words, fill, depth + 1)
        else:
            setattr(message, field.name, _scalar(random, field, words))
    return message


def _fill_map(random: Random, entries: Any, entry: Any, words: Sequence[str], fill: float, depth: int) -> None:
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for _ in range(random.randrange(3)):
        name = _scalar(random, key, words)
        if value.message_type is not None:
            odd_message(random, entries[name], words, fill, depth + 1)
        else:
            entries[name] = _scalar(random, value, words)


def _scalar(random: Random, field: Any, words: Sequence[str]) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return odd_bytes(random, words) if field.type == FieldDescriptor.TYPE_BYTES else odd_word(random, words)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return random.choice(_FLOATS)
    if kind == FieldDescriptor.CPPTYPE_ENUM and random.random() < 0.7:
        return random.choice([one.number for one in field.enum_type.values])
    low, high = _BITS[kind]
    number = random.choice(_NUMBERS) + random.choice((0, 0, -1, 1))
    return max(low, min(high, -number if random.random() < 0.2 else number))
