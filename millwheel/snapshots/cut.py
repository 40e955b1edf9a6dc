"""The consistent cut: all owners of a topology stand still at one moment (docs/decisions/0034-snapshots.md).

1. Each owner is asked to begin no commit. It answers with its commit when nothing is in flight.
2. When all have answered, each is asked to go on. It answers whether it has stood still until now, and where.
3. When all have done so, the head of each journal is read. It must have the owner's sequencer.

Invariant: there is a moment at which every journal was at the commit of the cut. It is the moment after the last answer
of step 1: an owner that answers both questions with the same commit appended nothing in between. Only a newer owner
could have appended. It would have fenced the journal first, with a larger sequencer, and step 3 would find that one.

Therefore the cut is what a crash of all owners at that moment would leave. What a takeover makes of that is what the
guarantees are about.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.store.contract import JournalHead, StateStore

__all__ = ["Cut", "CutFailedError", "OwnersOfJournals", "Positions", "take_cut"]

Positions = Mapping[str, wire.JournalPosition]
"""The answers of owners, by journal. A journal without an answer is missing."""


class CutFailedError(Exception):
    """Not every owner stood still: one changed, or did not answer in time. The cut can be tried again."""


class OwnersOfJournals(Protocol):
    """The owners of all journals of a topology."""

    @property
    def sequencers(self) -> Mapping[str, int]:
        """The sequencer of each journal's owner."""

    async def freeze(self) -> Positions:
        """Ask all owners to begin no commit."""

    async def thaw(self) -> Positions:
        """Ask all owners to go on."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The head of each journal after the cut, and its commit at the cut, which may be smaller."""

    heads: Mapping[str, JournalHead]
    commits: Mapping[str, int]
    stall_seconds: float
    """For how long owners stood still at most."""


async def take_cut(owners: OwnersOfJournals, store: StateStore) -> Cut:
    """Take the cut.

    Raises:
        CutFailedError: It must be tried again. All owners go on.
        StoreError: A head could not be read.
    """
    began = time.monotonic()
    frozen: Positions = {}
    try:
        frozen = await owners.freeze()
    finally:
        thawed = await owners.thaw()
    stall = time.monotonic() - began
    commits = _commits(owners.sequencers, frozen, thawed)
    heads = {journal: await store.read_head(journal) for journal in owners.sequencers}
    for journal, head in heads.items():
        if head.sequencer != owners.sequencers[journal]:
            raise CutFailedError(f"journal {journal} has a newer owner")
    return Cut(heads, commits, stall)


def _commits(sequencers: Mapping[str, int], frozen: Positions, thawed: Positions) -> dict[str, int]:
    commits: dict[str, int] = {}
    for journal in sequencers:
        before, after = frozen.get(journal), thawed.get(journal)
        if before is None or not before.held or not before.settled:
            raise CutFailedError(f"the owner of journal {journal} did not stand still in time")
        if after is None or not after.held or not after.settled or after.commit != before.commit:
            raise CutFailedError(f"the owner of journal {journal} went on too early")
        commits[journal] = before.commit
    return commits
