"""What the child of a split or merge still needs of its parents' journals (section 7.1; G11).

It needs them until its own committed head names a base. It still sends under the parents' sequences while that base has
productions of theirs (part ``inherited``).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from millwheel.store.contract import PartId
from millwheel.worker.interval.commits.base_parts import INHERITED_PART
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import CopyParts, IntervalEffect

__all__ = ["ParentDependency", "ParentNeed"]

_FIRST_COPY_NUMBER: Final = 1 << 41
"""PartsWritten numbers of copies start here, to be distinct from those of checkpoints and id segments."""


class ParentNeed(Enum):
    """What the child of a split or merge still needs of its parents, by its committed head."""

    DATA = "their base and entries"
    SEQUENCES = "their journals as sequences of productions"
    NOTHING = "nothing"


class ParentDependency:
    """What one interval needs of its parents. It needs nothing if it has none."""

    def __init__(self, state: IntervalState) -> None:
        self._setup: IntervalSetup = state
        self._journal = state.journal
        self.need = ParentNeed.NOTHING
        self._copies: dict[int, dict[str, tuple[PartId, ...]]] = {}
        """Id segments that are being copied from parents' journals into this one."""

    def recovered(self) -> None:
        """The head has been read. Derive the needs from the committed head, because a successor finds that head."""
        if not self._setup.config.parents:
            self.need = ParentNeed.NOTHING
        elif not self._journal.parts:
            self.need = ParentNeed.DATA
        else:
            kinds = {part.name.partition("/")[0] for part in self._journal.parts}
            self.need = ParentNeed.SEQUENCES if INHERITED_PART in kinds else ParentNeed.NOTHING

    def base_named(self) -> None:
        """The head names another base."""
        if self.need is not ParentNeed.NOTHING:
            self.recovered()

    def copy_segments(self) -> list[IntervalEffect]:
        """Copy id segments from parents' journals into this one. A base may name parts of its own journal only."""
        config = self._setup.config
        copies: list[tuple[str, PartId, PartId]] = []
        copied: dict[str, tuple[PartId, ...]] = {}
        for name, journal in self._journal.foreign.items():
            parts = self._journal.segments[name]
            copied[name] = tuple(PartId(part.name, config.sequencer, self._journal.committed) for part in parts)
            copies.extend((journal, part, copy) for part, copy in zip(parts, copied[name], strict=True))
        if not copies:
            return []
        self._copies[_FIRST_COPY_NUMBER] = copied
        return [CopyParts(config.journal, _FIRST_COPY_NUMBER, copies)]

    def copied(self, number: int) -> None:
        """Parts are acknowledged. If they are copies, no segment is in another journal any more."""
        if number not in self._copies:
            return
        journal = self._journal
        journal.foreign.clear()
        for name, parts in self._copies.pop(number).items():
            if name in journal.segments:
                journal.segments[name] = parts
            else:
                journal.collect(parts)
