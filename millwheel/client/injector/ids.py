"""The ids of injected records: what makes a record sent twice the same record (section 6.1.1). Pure.

========  ==========================================  =======================================================
kind      the record is known by                      for how long
========  ==========================================  =======================================================
position  (stream, source, partition), position       for ever: receivers keep a mark per partition
opaque    a hash of (stream, source, the user's id)   until the low watermark has passed the record's time,
                                                      and the stream's id slack is over
batch     the same hash, within (query, batch)        until the query's next batch begins; replays of earlier
                                                      batches are duplicates for ever
drawn     (stream, process, sequencer), a count       as long as the process that drew it lives
========  ==========================================  =======================================================

``source`` names what hands out the ids: by default the process, so that the ids of two processes
never meet. Processes that may send each other's records (the members of a consumer group, after a
rebalance) name the same source, and a record stays itself whoever sends it. The narrow default is the safe one: two
records taken for one is a loss, one record taken for two is a duplicate.

A drawn position dies with its process: what was un-ACKed then is uncertain, and sent again it is a new
record. Sources that can name their records should.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from operator import index
from typing import Final

from millwheel.sdk.errors import UsageError

__all__ = ["ID_BYTES", "IdHasher", "IdKind", "IdScope", "UserId", "checked_position", "drawn_scope", "partition_scope"]

ID_BYTES: Final = 16
_LARGEST_POSITION: Final = (1 << 64) - 1

UserId = str | bytes | int
"""An id of the user's own: text and numbers count by their UTF-8 text, so that 7, "7" and b"7" are one id."""


class IdKind(Enum):
    """How receivers know duplicates."""

    POSITION = 1
    OPAQUE = 2
    BATCH = 3


@dataclass(frozen=True, slots=True)
class IdScope:
    """Within what the ids of a batch are unique. ``name`` is the sequence of positions, or the query of a batch."""

    kind: IdKind
    name: str = ""
    batch: int = 0


def partition_scope(stream: str, source: str, partition: str) -> IdScope:
    """Positions of one partition of a source; UsageError for a name that no message can hold."""
    if not partition.isascii():
        try:
            partition.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"partition {partition!r} is not text: {error.reason}") from error
    return IdScope(IdKind.POSITION, f"{stream}/{source}/p:{partition}")


def checked_position(given: int) -> int:
    """A position as the int that it is; UsageError for what is none."""
    try:
        position = index(given)
    except TypeError:
        raise UsageError(f"a position is a whole number, not {given!r}") from None
    if not 0 <= position <= _LARGEST_POSITION:
        raise UsageError(f"position {given} is not among 0 to 2^64 - 1")
    return position


def drawn_scope(stream: str, process: str, sequencer: int) -> IdScope:
    """Positions that a process counts for itself."""
    return IdScope(IdKind.POSITION, f"{stream}/{process}/s{sequencer}")


class IdHasher:
    """Makes 16-byte ids of users' own, for one stream and source."""

    def __init__(self, stream: str, source: str) -> None:
        scope = b"".join(len(part).to_bytes(4, "big") + part for part in (stream.encode(), source.encode()))
        self._base = blake2b(scope, digest_size=ID_BYTES, person=b"millwheel.id")

    def hash_all(self, ids: Iterable[UserId]) -> list[bytes]:
        """The id of each; UsageError names one that is empty or no str, bytes or int."""
        return [self._hash(_text(id_)) for id_ in ids]

    def _hash(self, text: bytes) -> bytes:
        hasher = self._base.copy()
        hasher.update(text)
        return hasher.digest()


def _text(id_: UserId) -> bytes:
    if isinstance(id_, str):
        text = id_.encode()
    elif isinstance(id_, bytes):
        text = id_
    elif isinstance(id_, int) and not isinstance(id_, bool):
        text = b"%d" % id_
    else:
        raise UsageError(f"a record's id is a str, bytes or int, not {type(id_).__name__}: {id_!r:.80}")
    if not text:
        raise UsageError("a record's id is empty: give it one that is its own, or none")
    return text
