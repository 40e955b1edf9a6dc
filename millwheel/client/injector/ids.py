"""The ids of injected records: they decide when two deliveries are the same record (section 6.1.1). Pure.

========  ==========================================  =======================================================
kind      what identifies the record                  for how long
========  ==========================================  =======================================================
position  (stream, source, partition), position       for ever: receivers keep a mark per partition
opaque    a hash of (stream, source, the user's id)   until the low watermark has passed the record's timestamp,
                                                      and the stream's id slack is over
batch     the same hash, within (query, batch)        until the query's next batch begins; replays of earlier
                                                      batches are duplicates for ever
drawn     (stream, process, sequencer), a count       as long as the process that allocated the sequencer exists
========  ==========================================  =======================================================

``source`` is the namespace of the ids. By default it is the process, so the ids of two processes never collide.
Processes that may send each other's records name the same source: for example the members of a consumer group, which
rebalance. Then a record keeps its identity, whichever process sends it. The narrow default is the safe one: if two
records count as one, data is lost. If one record counts as two, it is a duplicate.

In a fork, ``stream`` of a hash is the original's stream, because a hash cannot be renamed. All other names are
the fork's own: a restore renames them (docs/decisions/0034-snapshots.md).

A drawn position is valid only while its process exists. Records that are un-ACKed at the end of the process may or may
not be delivered. Sent again, they count as new records. So a source that can identify its records should do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from operator import index
from typing import Final

from millwheel.client.injector.errors import WrongIdOrKeyError
from millwheel.model.deliveries import ID_BYTES
from millwheel.sdk.errors import UsageError

__all__ = [
    "ID_BYTES",
    "BatchOf",
    "IdHasher",
    "IdKind",
    "IdScope",
    "RecordIds",
    "UserId",
    "checked_position",
    "drawn_scope",
    "falling",
    "first_wrong",
    "partition_scope",
]

_MAX_POSITION: Final = (1 << 64) - 1

UserId = str | bytes | int
"""An id that the user gives. It counts by its bytes, those of a text in UTF-8. So 7, "7" and b"7" are the same id."""


class IdKind(Enum):
    """How receivers recognise duplicates."""

    POSITION = 1
    OPAQUE = 2
    BATCH = 3


@dataclass(frozen=True, slots=True)
class IdScope:
    """The scope within which ids are unique. ``name``: the sequence of positions, or the query of a batch."""

    kind: IdKind
    name: str = ""
    batch: int = 0


@dataclass(frozen=True, slots=True)
class BatchOf:
    """Batch number ``batch`` of ``query``. The ids of its records are unique within it (see CommitBatch)."""

    query: str
    batch: int


_OPAQUE: Final = IdScope(IdKind.OPAQUE)


def partition_scope(stream: str, source: str, partition: str) -> IdScope:
    """The scope for positions of one partition. UsageError if the name cannot be encoded as UTF-8."""
    if not partition.isascii():
        try:
            partition.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"partition {partition!r} is not text: {error.reason}") from error
    return IdScope(IdKind.POSITION, f"{stream}/{source}/p:{partition}")


def checked_position(given: int) -> int:
    """Convert a position to an int. UsageError if it is not an integer of 0 to 2^64 - 1."""
    try:
        position = index(given)
    except TypeError:
        raise UsageError(f"a position is a whole number, not {given!r}") from None
    if not 0 <= position <= _MAX_POSITION:
        raise UsageError(f"position {given} is not among 0 to 2^64 - 1")
    return position


def falling(scope: IdScope, position: object, before: object) -> UsageError:
    """The error of a position that is not above the one before it in the same opened injector."""
    _, found, partition = scope.name.partition("/p:")
    shown = f"in partition {partition!r}" if found else f"of {scope.name!r}"
    return UsageError(
        f"positions {shown} must rise from record to record: {position} came after {before}. To send records again, "
        "open a new injector; other records need positions of their own, or another partition"
    )


def drawn_scope(stream: str, process: str, sequencer: int) -> IdScope:
    """The scope for positions that a process numbers itself."""
    return IdScope(IdKind.POSITION, f"{stream}/{process}/s{sequencer}")


class IdHasher:
    """Hashes users' ids to 16-byte ids, for one stream and source."""

    def __init__(self, stream: str, source: str) -> None:
        scope = b"".join(len(part).to_bytes(4, "big") + part for part in (stream.encode(), source.encode()))
        self._base = blake2b(scope, digest_size=ID_BYTES, person=b"millwheel.id")

    def hash_all(self, ids: Iterable[UserId]) -> list[bytes]:
        """Hash each id. WrongIdOrKeyError names an id that is empty, has no bytes, or is not a str, bytes or int."""
        begun, hashes = self._base.copy, list[bytes]()
        for id_ in ids:
            hasher = begun()
            hasher.update(id_ if id_.__class__ is bytes and id_ else _text(id_))  # bytes are the usual case
            hashes.append(hasher.digest())
        return hashes


def _text(id_: UserId) -> bytes:
    try:
        if isinstance(id_, bytes):
            text = id_
        elif isinstance(id_, str):
            text = id_.encode()
        elif isinstance(id_, int) and not isinstance(id_, bool):
            text = b"%d" % id_
        else:
            raise WrongIdOrKeyError(f"a record's id is a str, bytes or int, not {type(id_).__name__}: {id_!r:.80}")
    except UnicodeEncodeError as error:
        raise WrongIdOrKeyError(
            f"a record's id is no text that UTF-8 has: {id_!a:.80} ({error.reason} at character {error.start}): give "
            "bytes, or a text without halves of surrogate pairs"
        ) from error
    except ValueError as error:
        raise WrongIdOrKeyError(
            f"a record's id is an integer of too many digits ({error}): give bytes or a text"
        ) from error
    if not text:
        raise WrongIdOrKeyError("a record's id is empty: give it one that is its own, or none")
    return text


def first_wrong(ids: Sequence[UserId]) -> int:
    """The index of the first id that is none."""
    for at, id_ in enumerate(ids):
        try:
            _text(id_)
        except WrongIdOrKeyError:
            return at
    raise AssertionError("each of these is an id")


class RecordIds:
    """The ids of one process's records, and the scopes within which they are unique.

    Attributes:
        numbered: The scope of records that the process numbers itself. None if it may not, or is not open.
        next: The number of the next such record.
    """

    def __init__(self, stream: str, process: str, source: str) -> None:
        self.numbered: IdScope | None = None
        self.next = 0
        self._stream = stream
        self._process = process
        self._source = source
        self._hasher = IdHasher(stream, source)
        self._partition = "", partition_scope(stream, source, "")
        """The last partition, and its scope: most calls name the one before."""

    def hash_within(self, stream: str) -> None:
        """Hash users' ids within the name of another stream: that of the original, for the stream of a fork."""
        self._hasher = IdHasher(stream, self._source)

    def open(self, sequencer: int) -> None:
        """Allow records without ids. They are numbered under a sequencer that no other process has."""
        self.numbered = drawn_scope(self._stream, self._process, sequencer)

    def partition(self, name: str) -> IdScope:
        """The scope of positions in a partition of the source."""
        if self._partition[0] != name:
            self._partition = name, partition_scope(self._stream, self._source, name)
        return self._partition[1]

    def scope(
        self,
        ids: Sequence[UserId] | None,
        positions: Sequence[int] | None,
        partition: str,
        batch: BatchOf | None,
    ) -> IdScope:
        """The scope of records with these ids or positions. UsageError if they do not go together.

        Args:
            ids: The user's ids.
            positions: The positions in ``partition``.
            partition: A partition of the source.
            batch: The batch in which ``ids`` are unique.
        """
        if ids is not None and positions is not None:
            raise UsageError("give ids or positions, not both")
        if self.numbered is None and ids is None:
            raise UsageError("an injector that sends on another's behalf needs ids of the records' own")
        if ids is not None:
            return _OPAQUE if batch is None else IdScope(IdKind.BATCH, batch.query, batch.batch)
        if batch is not None:
            raise UsageError("a batch needs ids of the records' own")
        if positions is not None:
            return self.partition(partition)
        assert self.numbered is not None
        return self.numbered

    def delivery_ids(
        self, ids: Sequence[UserId] | None, positions: Sequence[int] | None, part: slice
    ) -> Sequence[int] | Sequence[bytes]:
        """The ids under which the records ``part`` are delivered. WrongIdOrKeyError: one of them is no id."""
        if ids is not None:
            return self._hasher.hash_all(ids[part])
        return range(self.next, self.next + part.stop - part.start) if positions is None else positions[part]
