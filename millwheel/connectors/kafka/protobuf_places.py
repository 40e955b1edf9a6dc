"""Which message of a file of Protobuf a record has: a list of numbers before the message, and what these mean.

The numbers are the place of the message among those of its file, and of each message around it. They are varints in
zigzag form, behind their count. A single 0 stands for the first message of the file.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError

__all__ = ["Place", "Places", "place_bytes", "places_in", "places_of", "read_place"]

Place = tuple[int, ...]
Places = dict[Place, str]
"""By their places: the full names of a file's messages."""

_DEEPEST: Final = 100
"""So many messages may be within each other. Compilers allow fewer."""
_MOST: Final = 10_000
"""So many messages of a file are looked at. A file has some tens."""
_LONGEST_NAME: Final = 1_000
"""The characters of a message's name, with those of the messages around it."""
_LONGEST_NUMBER: Final = 5
"""The bytes of a number. It has 32 bits."""
_WORDS: Final = re.compile(
    r"""\s+ | //[^\n]* | /\* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | [^\W\d][\w.]* | .""", re.VERBOSE | re.DOTALL
)
"""The words of a text. A quote alone is an error, and no more is tried. So a text is read once, however long it is."""


def place_bytes(place: Place) -> bytes:
    """How a place stands before a message.

    For example, ``place_bytes((0,))`` is ``b"\\0"``, and ``place_bytes((1,))`` is ``b"\\2\\2"``.
    """
    if place == (0,):
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(place), *place))


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def read_place(data: bytes) -> tuple[Place, int]:
    """The place at the begin of some bytes, and how many bytes it has.

    Raises:
        ValueError: There is none.
    """
    count, at = _number(data, 0)
    if count == 0:
        return (0,), at
    if count > _DEEPEST:
        raise ValueError(f"its message would be within {count - 1} others: it was not written by this format")
    place = []
    for _ in range(count):
        number, at = _number(data, at)
        place.append(number)
    return tuple(place), at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next one begins."""
    value = 0
    for place, byte in enumerate(data[at : at + _LONGEST_NUMBER]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value & 1 or value >> 32:
                raise ValueError("the numbers before its message are no place in a file: it was written by an old form")
            return value >> 1, at + place + 1
    raise ValueError("it ends within the numbers before its message, or these are none")


def places_of(file: FileDescriptorProto) -> Places:
    """The messages of a file. As in the text, entries of maps and groups are none of them.

    Raises:
        ValueError: It has too many.
    """
    places: Places = {}
    _add_all(places, file.message_type, (), "")
    return _in_package(places, file.package)


def _add_all(places: Places, messages: Iterable[DescriptorProto], around: Place, within: str) -> None:
    for number, message in enumerate(messages):
        place = (*around, number)
        _add(places, place, within, message.name)
        groups = {
            field.type_name.rpartition(".")[2]
            for field in [*message.field, *message.extension]
            if field.type == FieldDescriptorProto.TYPE_GROUP
        }
        nested = (one for one in message.nested_type if not one.options.map_entry and one.name not in groups)
        _add_all(places, nested, place, places[place])


def _add(places: Places, place: Place, within: str, name: str) -> None:
    """Add a message. What a registry answers must not fill the memory."""
    if len(place) > _DEEPEST or len(places) >= _MOST or len(within) + len(name) > _LONGEST_NAME:
        raise ValueError(
            f"it has over {_MOST:,} messages, or over {_DEEPEST} within each other, or names of over {_LONGEST_NAME:,} "
            "characters"
        )
    places[place] = f"{within}.{name}" if within else name


def _in_package(places: Places, package: str) -> Places:
    if len(package) > _LONGEST_NAME:
        raise ValueError(f"its package has a name of over {_LONGEST_NAME:,} characters")
    return {place: f"{package}.{name}" for place, name in places.items()} if package else places


def places_in(schema: str) -> Places:
    """The messages of a schema as a registry has it: as text, or as a descriptor in base64.

    No compiler is needed for the names alone, nor what the file imports.

    Raises:
        ValueError: It is neither.
    """
    try:
        file = FileDescriptorProto.FromString(b64decode(schema.strip(), validate=True))
    except (ValueError, DecodeError):  # a text has characters that base64 does not have
        return _ProtoScan(schema).places()
    return places_of(file)


class _ProtoScan:
    """Finds the messages in a text. What else is in it is passed over, with the braces that it has."""

    def __init__(self, text: str) -> None:
        self._places: Places = {}
        self._words = _words(text)
        self._package = ""
        self._read((), "")

    def places(self) -> Places:
        """The messages, by their full names: the package may stand behind them."""
        return _in_package(self._places, self._package)

    def _read(self, around: Place, within: str) -> None:
        """Read a file or the body of a message, up to its end.

        Args:
            around: The place of the message. Empty: it is a file.
            within: The name of the message, without the package.
        """
        count = 0
        for word in self._words:
            if word == "}":
                if not around:
                    raise ValueError("it has a brace too many")
                return
            if word in ("export", "local"):
                word = next(self._words, "")
            if word == "package" and not around:
                self._package = next(self._words, "")
                self._pass("")
            elif word != "message":
                self._pass(word)
            else:
                name = next(self._words, "")
                if next(self._words, "") != "{":
                    raise ValueError(f"message {name:.80} has no body")
                place = (*around, count)
                _add(self._places, place, within, name)
                self._read(place, self._places[place])
                count += 1
        if around:
            raise ValueError(f"message {within:.200} has no end")

    def _pass(self, word: str) -> None:
        """Go behind a statement: a semicolon, or the block that ends it."""
        depth = 0
        while True:
            if word == "{":
                depth += 1
            elif word == "}":
                depth -= 1
                if depth < 0:
                    raise ValueError("it has a brace too many")
            if depth == 0 and word in ("}", ";"):
                return
            following = next(self._words, None)
            if following is None:
                raise ValueError("it ends within a statement")
            word = following


def _words(text: str) -> Iterator[str]:
    """The words and signs of a text, without spaces and comments. A string stands as it is."""
    at = 0
    while at < len(text):
        found = _WORDS.match(text, at)
        assert found is not None  # one of its forms always fits
        word, at = found.group(), found.end()
        if word == "/*":
            at = text.find("*/", at) + 2
            if at == 1:
                raise ValueError("it ends within a comment")
        elif word in ('"', "'"):
            raise ValueError("it has a string without an end")
        elif not word.isspace() and not word.startswith("//"):
            yield word
