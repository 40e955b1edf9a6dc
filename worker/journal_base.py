"""The base of an owner's journal on its way into the head (6.1.2; G12)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millwheel.store.contract import PartId
from millwheel.worker.dedup import DEDUP_PART, DedupSnapshot, encode_batch_ids
from millwheel.worker.messages import WriteParts

__all__ = ["FIRST_BATCH_PART", "JournalBase"]

FIRST_BATCH_PART: Final = 1 << 20
"""The parts of the kind ``DEDUP_PART`` with ids of batches, which are written once, are numbered from here."""


class JournalBase:
    """The parts that a journal's head names, and the base that the next append may name.

    A base is on its way from ``write_base`` until ``appended`` of the append that names it. One is on its way at a
    time. Bases are captured only while no sealed commit is in flight, so they show committed state only.
    """

    def __init__(self, name: str, sequencer: int) -> None:
        self.name = name
        self.sequencer = sequencer
        self.committed = 0
        self.parts: tuple[PartId, ...] = ()
        """The parts of the base that the head names. Empty before the first base."""
        self.segments: dict[str, tuple[PartId, ...]] = {}
        """Stored id segments of the duplicate check, by name."""
        self.foreign: dict[str, str] = {}
        """The segments whose parts are still in a parent's journal, each with that journal."""
        self.bytes = 0
        """Approximate size of the entries above the newest base."""
        self._number = 0
        """The number of the last base."""
        self._writing: tuple[int, tuple[PartId, ...]] | None = None
        """The base whose parts are being written: the commit that it shows, and its parts."""
        self._written: tuple[int, tuple[PartId, ...]] | None = None
        """The newest acknowledged base that no append has named."""
        self._named: tuple[int, tuple[PartId, ...]] | None = None
        """The base that the append in flight names."""
        self.pinned = ""
        """The snapshot that reads the journal, by its token: no base is captured or named. Empty: none."""
        self.frozen = ""
        """The snapshot for which no commit begins, by its token. Empty: none."""
        self._collected: list[PartId] = []
        """Parts of collected id segments. They are deleted with the next base."""

    def write_base(
        self, blobs: dict[str, bytes], ids: DedupSnapshot, more: dict[PartId, bytes], kept: Iterable[PartId]
    ) -> WriteParts:
        """Write a base that shows the last commit.

        Args:
            blobs: Its parts by name.
            ids: The ids, as of the same commit. Stored segments that it does not name are collected.
            more: Further parts of it, which have ids already.
            kept: Parts of earlier bases that stay valid.
        """
        blobs = blobs | {f"{DEDUP_PART}/{number}": blob for number, blob in enumerate(ids.blobs)}
        parts = {PartId(name, self.sequencer, self.committed): blob for name, blob in blobs.items()} | more
        batch_parts = self._write_batch_ids(ids, parts)
        relied = set(ids.segments)
        for name in [name for name in self.segments if name not in relied]:
            self._collected += self.segments.pop(name)
        segments = [part for name in ids.segments for part in self.segments[name]]
        self._number += 1
        self._writing = self.committed, tuple(sorted({*parts, *kept, *segments, *batch_parts}))
        self.bytes = 0
        return WriteParts(self.name, self._number, parts)

    def _write_batch_ids(self, ids: DedupSnapshot, parts: dict[PartId, bytes]) -> list[PartId]:
        """The parts with ids of batches. Those that have no part yet are added to ``parts``.

        Invariant (G1): each of them is in the present base, or is written with this one. So the head names it until its
        batch is completed. Who could break it: a second base that is captured before the first one is named.
        Each number is used by one part of a base: a takeover of an earlier version knows parts by their numbers.
        """
        found = [one.part for _, _, one in ids.batch_ids if one.part is not None]
        number = max((int(part.name.partition("/")[2]) for part in found), default=FIRST_BATCH_PART - 1)
        for query, batch, one in ids.batch_ids:
            if one.part is None:
                number += 1
                one.part = PartId(f"{DEDUP_PART}/{number}", self.sequencer, self.committed)
                parts[one.part], one.ids = encode_batch_ids(query, batch, one.ids), b""
                found.append(one.part)
        return found

    def parts_written(self, number: int) -> None:
        """Parts are acknowledged. If they are those of the base, an append may name it."""
        if self._writing is not None and number == self._number:
            self._written, self._writing = self._writing, None

    def base_waits(self, rows_upto: int) -> bool:
        """Whether a captured base waits for rows that changed before it."""
        base = self._written if self._writing is None else self._writing
        return base is not None and rows_upto < base[0]

    def wants_append(self, rows_upto: int) -> bool:
        """Whether the next append names a base."""
        return self._written is not None and self._written[0] <= rows_upto and not self.pinned

    def _name_base(self, rows_upto: int) -> None:
        """Let the next append name the base that is written, if its rows are."""
        if self.wants_append(rows_upto):
            self._named, self._written = self._written, None

    @property
    def base_named(self) -> bool:
        """Whether the append in flight names a base, so that the truncation point is about to move."""
        return self._named is not None

    def collect(self, parts: Iterable[PartId]) -> None:
        """Delete these parts with the next base."""
        self._collected += parts
