"""Durable named cursors: the ACKed offset of each, and the changes for the next commit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millwheel.model.core_protocol import require
from millwheel.worker.log.messages import Start

__all__ = ["Cursor", "CursorChanges", "CursorFacts", "Cursors"]

CursorFacts = tuple[str, int, int]
"""(name, ACKed offset, life): a durable cursor in the base."""


@dataclass(slots=True, eq=False)
class Cursor:
    """One life of a named cursor: from its creation to its deletion.

    Invariant: a deletion and a new creation under the same name make a different object. So an append, ACK or response
    in flight for the deleted life does not change the new life.
    """

    name: str
    start: Start = Start.OLDEST
    """Where it starts. The commit that creates it turns this into an offset."""
    life: int = 0
    """The commit that created it. No other life of the name has the same number. 0 until that commit is durable."""
    acked: int | None = None
    """The ACKed offset in the journal. None until the creation is durable."""
    sealed: int | None = None
    """The ACKed offset in the commit in flight. None if that commit does not include the cursor."""
    received: int = 0
    """The largest ACK received that is not part of any commit yet."""
    newest: int = 0
    """The largest ACKed offset, durable or not: the maximum of the three above."""

    @property
    def is_durable(self) -> bool:
        """Whether it is in the journal. Only then may its subscriber receive anything."""
        return self.acked is not None


@dataclass(slots=True)
class CursorChanges:
    """The changes of cursors in one commit: first ``deleted``, then the new values of ``moved``."""

    moved: dict[str, int] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    askers: list[Any] = field(default_factory=list)
    """The operators' requests that wait for the deletions."""
    lives: list[Cursor] = field(default_factory=list)
    """The lives that ``moved`` refers to."""


class Cursors:
    """The cursors of one log.

    ``_current`` has the present life of each name. ``_durable`` has the lives that are in the journal. Changes wait in
    ``unsealed`` and ``deleted`` for the next commit, and in ``_sealed`` for its acknowledgement. One commit is in
    flight at a time.
    """

    def __init__(self) -> None:
        self._current: dict[str, Cursor] = {}
        self._durable: dict[str, Cursor] = {}
        self.durable: dict[str, int] = {}
        """The cursors in the journal, with their ACKed offsets."""
        self.unsealed: dict[str, Cursor] = {}
        """Lives that the next commit creates or moves."""
        self.deleted: dict[str, list[Any]] = {}
        """Names that the next commit deletes, with the requests that wait for it."""
        self.urgent = False
        """Whether to commit at once, because the creation or deletion of a cursor is waiting."""
        self._sealed = CursorChanges()
        self.ack_since: int | None = None
        """When the first ACK was received that is not part of any commit yet."""

    # The journal.

    def facts(self) -> list[CursorFacts]:
        """The durable cursors, for the base."""
        return [(name, cursor.acked or 0, cursor.life) for name, cursor in self._durable.items()]

    def restore(self, facts: Iterable[CursorFacts]) -> None:
        """Load the cursors of a base."""
        self._durable = {name: Cursor(name, life=life, acked=acked, newest=acked) for name, acked, life in facts}
        self._restored()

    def replay(self, commit: int, deleted: Iterable[str], moved: Iterable[tuple[str, int]]) -> None:
        """Apply the changes of journal entry ``commit``."""
        for name in deleted:
            self._durable.pop(name, None)
        for name, acked in moved:
            cursor = self._durable.setdefault(name, Cursor(name, life=commit))
            cursor.acked = cursor.newest = acked
        self._restored()

    def _restored(self) -> None:
        self._current = dict(self._durable)
        self.durable = {name: cursor.newest for name, cursor in self._durable.items()}

    # Requests of subscribers and operators.

    def find(self, name: str) -> Cursor | None:
        """The present life of the name, durable or not. None if there is no such cursor."""
        return self._current.get(name)

    def create(self, name: str, start: Start) -> Cursor:
        """Add the creation of a cursor to the next commit."""
        cursor = self._current[name] = self.unsealed[name] = Cursor(name, start)
        self.urgent = True
        return cursor

    def delete(self, name: str, asker: Any) -> None:
        """Add the deletion of a cursor to the next commit, which then answers ``asker``."""
        self._current.pop(name, None)
        self.unsealed.pop(name, None)
        self.deleted.setdefault(name, []).append(asker)
        self.urgent = True

    def ack(self, cursor: Cursor, below: int, now: int) -> None:
        """ACK everything below the offset. No effect on a deleted life."""
        if below <= cursor.newest or self._current.get(cursor.name) is not cursor:
            return
        cursor.received = cursor.newest = below
        self.unsealed[cursor.name] = cursor
        if self.ack_since is None:
            self.ack_since = now

    def slowest(self) -> tuple[str, int] | None:
        """The durable cursor with the smallest offset, which keeps the most records, and that offset."""
        return min(self.durable.items(), key=lambda item: item[1], default=None)

    def askers(self) -> list[Any]:
        """All requests that wait for a deletion."""
        return self._sealed.askers + [asker for waiting in self.deleted.values() for asker in waiting]

    @staticmethod
    def _is_new(cursor: Cursor) -> bool:
        return cursor.acked is None and cursor.sealed is None

    # Commits.

    def seal(self, start: int, end: int) -> CursorChanges:
        """The changes for the commit that is being sealed. ``start`` and ``end`` are the log's before it."""
        for cursor in self.unsealed.values():
            begin = (start if cursor.start is Start.OLDEST else end) if self._is_new(cursor) else 0
            cursor.sealed = max(cursor.received, begin)
            cursor.newest = max(cursor.newest, cursor.sealed)
        moved = {name: cursor.sealed or 0 for name, cursor in self.unsealed.items()}
        askers = [asker for waiting in self.deleted.values() for asker in waiting]
        self._sealed = CursorChanges(moved, list(self.deleted), askers, list(self.unsealed.values()))
        self.unsealed, self.deleted = {}, {}
        self.ack_since, self.urgent = None, False
        return self._sealed

    def after(self, changes: CursorChanges) -> dict[str, int]:
        """The cursors as they will be after ``changes``."""
        kept = {name: acked for name, acked in self.durable.items() if name not in changes.deleted}
        return {**kept, **changes.moved}

    def committed(self, commit: int) -> CursorChanges:
        """The sealed changes are in the journal, as entry ``commit``."""
        changes, self._sealed = self._sealed, CursorChanges()
        for name in changes.deleted:
            self._durable.pop(name, None)
            self.durable.pop(name, None)
        for cursor in changes.lives:
            if cursor.acked is None:
                cursor.life = commit
            cursor.acked, cursor.sealed = cursor.sealed, None
            self._durable[cursor.name] = cursor
            self.durable[cursor.name] = cursor.acked or 0
        return changes

    # Invariants.

    def check(self) -> None:
        """Raise InvariantError if what is kept of the cursors contradicts them."""
        lives = [*self._current.values(), *self._durable.values(), *self.unsealed.values()]
        newest = all(one.newest == max(one.received, one.sealed or 0, one.acked or 0) for one in lives)
        require(newest, "the newest offset of a cursor is its largest one")
        durable = {name: cursor.acked or 0 for name, cursor in self._durable.items()}
        require(durable == self.durable, "the offsets of durable cursors are known")
        urgent = bool(self.deleted) or any(map(self._is_new, self.unsealed.values()))
        require(urgent == self.urgent, "what must be committed at once is known (G8)")
