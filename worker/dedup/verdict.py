"""What the duplicate check says about one delivery (6.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

__all__ = ["DedupError", "Outcome", "Resolution", "Verdict"]


class DedupError(Exception):
    """The caller broke the protocol of check, take and committed; state would be wrong, so nothing goes on."""


class Outcome(Enum):
    """What becomes of a delivery as a whole."""

    JUDGED = 1
    """Each record has its own answer, in the verdict's lists."""
    UNKNOWN_SEQUENCE = 2
    """This receiver has no marks for the sequence. Read (linearizably) whether it lives; then ``admit`` it and
    check again, or ``retire`` it, and answer REFUSED_SEQUENCER."""
    REFUSED_SEQUENCER = 3
    """From an owner that has been succeeded, or of a retired sequence: not ACKed, never to be sent again."""
    SEND_AGAIN = 4
    """An opaque copy that is so old that its ids may have been collected: not ACKed. A sender that still has
    the records un-ACKed sends them again with its present watermark; a stray copy has no one to do so."""


class Verdict:
    """The answer to one ``check``, and the handle by which its fresh records are taken, resolved or abandoned.

    Indexes are those of the delivery's records; each is in exactly one of the lists (while ``all_fresh``
    the lists stay empty, and every record is fresh).
    """

    __slots__ = ("_collect_from", "_ids", "_source", "all_fresh", "duplicates", "fresh", "outcome", "size", "unsure",
                 "waiting")  # fmt: skip

    def __init__(self, outcome: Outcome, size: int) -> None:
        self.outcome = outcome
        self.size = size
        self.all_fresh = False
        """Every record is fresh: the common case, told without a list."""
        self.fresh: Sequence[int] = ()
        """Never seen: now pending, to be taken or abandoned."""
        self.duplicates: Sequence[int] = ()
        """Copies of committed records: ACK now."""
        self.waiting: Sequence[int] = ()
        """Copies of records not yet committed: answer REFUSED_FULL, the next copy is judged anew. Nothing is kept of
        them: a record may wait for long, and its sender repeats it as long."""
        self.unsure: dict[int, tuple[str, ...]] = {}
        """Index → the id segments that must be read before ``resolve`` can tell."""
        self._ids: Sequence[Any] = ()
        self._source: Any = None
        self._collect_from = 0

    @property
    def fresh_indexes(self) -> Sequence[int]:
        """The fresh records, as indexes, also where ``all_fresh`` says it shorter."""
        return range(self.size) if self.all_fresh else self.fresh

    @property
    def segments(self) -> frozenset[str]:
        """Every segment to be read."""
        return frozenset(name for names in self.unsure.values() for name in names)

    def __repr__(self) -> str:
        if self.all_fresh:
            return f"Verdict({self.outcome.name}, all {self.size} fresh)"
        return (
            f"Verdict({self.outcome.name}, fresh={list(self.fresh)}, duplicates={list(self.duplicates)}, "
            f"waiting={list(self.waiting)}, unsure={self.unsure})"
        )


class Resolution(NamedTuple):
    """How a verdict's unsure records came out."""

    fresh: list[int]
    """Now pending: to be taken or abandoned."""
    duplicates: list[int]
    """ACK now."""
    again: list[int]
    """Their segment was collected meanwhile: answer REFUSED_FULL for them, the next copy is judged anew."""
