"""Base parts: a snapshot of a shard, encoded part by part while the shard continues to work (7.2).

The structure of the snapshot (which members there are, under which sequencers) is that of one commit. The member
and the sequencer of a ``MemberState`` never change.

Watermarks in a part may be newer than that commit, because they are read when the part is encoded. This is sound. A
reported value stays true once it is reported. Replay of the later entries only brings values that were reported too.
No process reads a part before an append names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from millwheel.authority.group import journal_row, row_size
from millwheel.authority.injected import InjectorGroup
from millwheel.authority.journal import REMOVED_PART, KeysRow, Part, ProcessRow, encode
from millwheel.authority.members import AnyMemberState
from millwheel.authority.registry import Registry
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.store.contract import PartId

__all__ = ["BaseSnapshot", "freeze"]


@dataclass(frozen=True, slots=True)
class _Frozen:
    name: str
    value: int
    expected: Sequence[str]
    expected_as_of: int
    states: Sequence[AnyMemberState]
    percentiles: Mapping[int, int]


@dataclass(slots=True)
class BaseSnapshot:
    """The base as of entry ``commit``. Commit becomes the truncation point once an append has named the parts."""

    sequencer: int
    commit: int
    removed: Sequence[str]
    ended: Mapping[str, int]
    groups: Sequence[_Frozen]
    size_limit: int
    written: list[PartId] = field(default_factory=list)
    size: int = 0

    def parts(self) -> Iterator[tuple[PartId, bytes]]:
        """Yield the encoded parts, each of about ``size_limit`` bytes. Write each part before requesting the next."""
        if self.removed or self.ended:
            gone = Part("", MIN_TIMESTAMP, [], [], [], list(self.removed), ended=dict(self.ended))
            yield self._part(REMOVED_PART, gone)
        for frozen in self.groups:
            for number, rows in enumerate(self._pieces(frozen.states)):
                keys = [row for row in rows if isinstance(row, KeysRow)]
                processes = [row for row in rows if isinstance(row, ProcessRow)]
                part = Part(
                    frozen.name,
                    frozen.value,
                    keys,
                    processes,
                    list(frozen.expected),
                    [],
                    dict(frozen.percentiles),
                    frozen.expected_as_of,
                )
                yield self._part(f"{frozen.name}#{number}", part)

    def _part(self, name: str, part: Part) -> tuple[PartId, bytes]:
        made, blob = PartId(name, self.sequencer, self.commit), encode(part)
        self.written.append(made)
        self.size += len(blob)
        return made, blob

    def _pieces(self, states: Sequence[AnyMemberState]) -> Iterator[list[KeysRow | ProcessRow]]:
        """Return the rows of ``states``, cut into groups at the size limit. There is at least one group."""
        piece: list[KeysRow | ProcessRow] = []
        size = 0
        for state in states:
            row = journal_row(state)
            piece.append(row)
            size += row_size(row)
            if size >= self.size_limit:
                yield piece
                piece, size = [], 0
        if piece or not states:
            yield piece


def freeze(registry: Registry, sequencer: int, commit: int, size_limit: int) -> BaseSnapshot:
    """Return the snapshot of ``registry`` as of ``commit``.

    The cost does not depend on the number of intervals. Only a group whose intervals change meanwhile is copied.
    """
    return BaseSnapshot(
        sequencer,
        commit,
        list(registry.removed),
        dict(registry.ended),
        [
            _Frozen(
                group.name,
                group.value,
                sorted(group.expected) if isinstance(group, InjectorGroup) else (),
                group.expected_as_of if isinstance(group, InjectorGroup) else 0,
                group.states(),
                dict(group.percentiles),
            )
            for group in registry
        ],
        size_limit,
    )
