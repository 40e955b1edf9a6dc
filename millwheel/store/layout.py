"""The keys of the embedded database, and the encoding of heads, part lists and rows.

There are two column families. The default family holds the journals and the coordinator's keys. The second family holds
the state rows. So short-lived entries and long-lived rows are compacted separately.

The keys of the default family, by first byte. ``J`` is the journal id, which contains no NUL. Integers are big endian,
so that byte order is numeric order::

    h J                          head: sequencer, commit, truncation point
    p J                          the part ids that the head names
    e J 00 commit                entry
    b J 00 sequencer commit name base part
    g J 00 commit C 00 key       mark of an emptied row of incarnation C, which is deleted with the mark once the
                                 truncation point has passed commit
    c ...                        the coordinator's keys (millwheel.embedded.coordinator)

State family: ``C 00 key`` → commit, blob.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

import msgspec

from millwheel.model.envelope import FORMAT_VERSION, HEADER_BYTES, pack_header, unwrap, wrap
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import past
from millwheel.store.contract import CorruptValueError, JournalHead, PartId, StateRow

__all__ = [
    "CLEARED",
    "COORDINATOR",
    "HEAD",
    "PARTS",
    "cleared_key",
    "cleared_prefix",
    "commit_bytes",
    "decode_head",
    "decode_parts",
    "decode_row",
    "encode_head",
    "encode_parts",
    "entry_key",
    "head_key",
    "intact_row",
    "journal_of",
    "journal_ranges",
    "name_cleared",
    "part_key",
    "part_of",
    "part_prefix",
    "parts_key",
    "past",
    "state_prefix",
]

HEAD: Final = b"h"
PARTS: Final = b"p"
_ENTRY: Final = b"e"
_BASE: Final = b"b"
CLEARED: Final = b"g"
COORDINATOR: Final = b"c"

_HEAD: Final = struct.Struct(">QQQ")
_PAIR: Final = struct.Struct(">QQ")
_U64: Final = struct.Struct(">Q")

commit_bytes = _U64.pack
"""A commit number as eight bytes. Byte order is numeric order."""

_parts_encoder = msgspec.msgpack.Encoder()
_parts_decoder = msgspec.msgpack.Decoder(list[tuple[str, int, int]])


def head_key(journal: str) -> bytes:
    """Return the key of the head of ``journal``."""
    return HEAD + journal.encode()


def parts_key(journal: str) -> bytes:
    """Return the key of the head's part list. The key is absent if the head names no parts."""
    return PARTS + journal.encode()


def journal_of(key: bytes) -> str:
    """Return the journal of the key of a head or part list."""
    return key[1:].decode()


def entry_key(journal: str, commit: int) -> bytes:
    """Return the key of entry ``commit``."""
    return b"%b%b\0%b" % (_ENTRY, journal.encode(), commit_bytes(commit))


def part_prefix(journal: str) -> bytes:
    """Return the prefix of the keys of all base parts of ``journal``."""
    return b"%b%b\0" % (_BASE, journal.encode())


def part_key(journal: str, part: PartId) -> bytes:
    """Return the key of a base part."""
    return part_prefix(journal) + _PAIR.pack(part.sequencer, part.commit) + part.name.encode()


def part_of(journal: str, key: bytes) -> PartId:
    """Return the id of the part with this key."""
    rest = key[len(part_prefix(journal)) :]
    sequencer, commit = _PAIR.unpack_from(rest)
    return PartId(rest[_PAIR.size :].decode(), sequencer, commit)


def cleared_prefix(journal: str) -> bytes:
    """Return the prefix of the marks of all rows that ``journal`` emptied."""
    return b"%b%b\0" % (CLEARED, journal.encode())


def cleared_key(journal: str, commit: int, state_key: bytes) -> bytes:
    """Return the key of the mark that ``journal`` emptied the row at ``state_key`` with ``commit``."""
    return cleared_prefix(journal) + commit_bytes(commit) + state_key


def name_cleared(journal: str, key: bytes) -> tuple[int, bytes]:
    """Return the commit number and the state key of an emptied row's mark."""
    rest = key[len(cleared_prefix(journal)) :]
    return _U64.unpack_from(rest)[0], rest[_U64.size :]


def journal_ranges(journal: str) -> list[tuple[bytes, bytes]]:
    """Return the key ranges of all entries and all parts of ``journal``."""
    prefixes = (entry_key(journal, 0)[: -_U64.size], part_prefix(journal))
    return [(prefix, past(prefix)) for prefix in prefixes]


def encode_head(head: JournalHead) -> bytes:
    """Return the stored value of a head, without its part list."""
    return wrap(_HEAD.pack(head.sequencer, head.commit, head.truncation_point))


def encode_parts(parts: tuple[PartId, ...]) -> bytes:
    """Return the stored value of a head's part list."""
    return wrap(_parts_encoder.encode([(part.name, part.sequencer, part.commit) for part in parts]))


def decode_parts(value: bytes, where: str) -> tuple[PartId, ...]:
    """Decode a part list; CorruptValueError names ``where``."""
    try:
        return tuple(PartId(*fields) for fields in _parts_decoder.decode(unwrap(value, where)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"no list of parts: {error}") from error


def decode_head(value: bytes, parts: tuple[PartId, ...], where: str) -> JournalHead:
    """Decode a head; CorruptValueError names ``where``."""
    payload = unwrap(value, where)
    if len(payload) != _HEAD.size:
        raise CorruptValueError(where, f"a head has {_HEAD.size} bytes, not {len(payload)}")
    sequencer, commit, truncation_point = _HEAD.unpack(payload)
    return JournalHead(sequencer, commit, truncation_point, parts)


def state_prefix(incarnation: IncarnationId) -> bytes:
    """Return the prefix of the keys of all rows of ``incarnation``."""
    if not incarnation or "\0" in incarnation:
        raise ValueError(f"an incarnation id is not empty and holds no NUL: {incarnation!r}")
    return incarnation.encode() + b"\0"


def intact_row(key: bytes, value: bytes) -> StateRow | None:
    """Decode a row as ``decode_row`` does, but faster. None: it is not valid, and ``decode_row`` says why."""
    payload = value[HEADER_BYTES:]
    if len(payload) < _U64.size or value[:HEADER_BYTES] != pack_header(FORMAT_VERSION, crc32(payload)):
        return None
    return StateRow(key, _U64.unpack_from(payload)[0], payload[_U64.size :])


def decode_row(incarnation: IncarnationId, key: bytes, value: bytes) -> StateRow:
    """Decode a row, which may be empty; CorruptValueError names the key."""
    where = f"state of key {key.decode('utf-8', 'backslashreplace')!r} of incarnation {incarnation}"
    payload = unwrap(value, where)
    if len(payload) < _U64.size:
        raise CorruptValueError(where, f"a row has at least {_U64.size} bytes, not {len(payload)}")
    return StateRow(key, _U64.unpack_from(payload)[0], payload[_U64.size :])
