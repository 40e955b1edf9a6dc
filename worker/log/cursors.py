"""Durable named cursors: what each has ACKed, and what of that the next commit has to say (design §9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millwheel.worker.log.messages import Start

__all__ = ["Cursor", "CursorChanges", "CursorFacts", "Cursors"]

CursorFacts = tuple[str, int, int]
"""name, ACKed offset, life: a durable cursor as the base lists it."""


@dataclass(slots=True, eq=False)
class Cursor:
    """One life of a named cursor: from its creation to its deletion.

    Invariant: a deletion and a creation under the same name make another object. So what is still in flight for a
    life that was deleted (an append, an ACK, a response) changes nothing of the life that has come after it.
    """

    name: str
    start: Start = Start.OLDEST
    """Where it begins, once its creation is sealed."""
    life: int = 0
    """The commit that created it: a number that no other life of the name has. 0 until that commit is durable."""
    acked: int | None = None
    """The ACKed offset as the journal has it; None until the creation is durable."""
    sealed: int | None = None
    """The ACKed offset in the commit in flight; None if that commit does not name it."""
    heard: int = 0
    """The largest ACK that has come and that no commit has taken."""

    @property
    def is_durable(self) -> bool:
        """Whether the journal has it: only then may its subscriber be shown anything."""
        return self.acked is not None

    @property
    def newest(self) -> int:
        """The largest ACKed offset, durable or not."""
        return max(self.heard, self.sealed or 0, self.acked or 0)


@dataclass(slots=True)
class CursorChanges:
    """What one commit says about cursors: ``deleted`` first, then the new values of ``moved``."""

    moved: dict[str, int] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    askers: list[Any] = field(default_factory=list)
    """Who asked for the deletions."""
    lives: list[Cursor] = field(default_factory=list)
    """The lives that ``moved`` is about."""


class Cursors:
    """The cursors of one log.

    ``_current`` has the life that each name stands for now, ``_durable`` those that the journal has. News waits in
    ``_news`` and ``_deleted`` for the next commit, and in ``_sealed`` for its acknowledgement; one commit is in flight
    at a time.
    """

    def __init__(self) -> None:
        self._current: dict[str, Cursor] = {}
        self._durable: dict[str, Cursor] = {}
        self._news: dict[str, Cursor] = {}
        """Lives that the next commit creates or moves."""
        self._deleted: dict[str, list[Any]] = {}
        self._sealed = CursorChanges()
        self.ack_since: int | None = None
        """When the first ACK came that no commit has taken."""

    # The journal's side.

    @property
    def durable(self) -> dict[str, int]:
        """Each cursor that the journal has, and its ACKed offset."""
        return {name: cursor.acked or 0 for name, cursor in self._durable.items()}

    def facts(self) -> list[CursorFacts]:
        """The durable cursors, for the base."""
        return [(name, cursor.acked or 0, cursor.life) for name, cursor in self._durable.items()]

    def restore(self, facts: Iterable[CursorFacts]) -> None:
        """Take over the cursors of a base."""
        self._durable = {name: Cursor(name, life=life, acked=acked) for name, acked, life in facts}
        self._current = dict(self._durable)

    def replay(self, commit: int, deleted: Iterable[str], moved: Iterable[tuple[str, int]]) -> None:
        """Apply what entry ``commit`` of the journal says."""
        for name in deleted:
            self._durable.pop(name, None)
        for name, acked in moved:
            cursor = self._durable.setdefault(name, Cursor(name, life=commit))
            cursor.acked = acked
        self._current = dict(self._durable)

    # What subscribers and operators ask for.

    def find(self, name: str) -> Cursor | None:
        """The life that the name stands for now, durable or on its way; None if there is no such cursor."""
        return self._current.get(name)

    def create(self, name: str, start: Start) -> Cursor:
        """Have the next commit create a cursor."""
        cursor = self._current[name] = self._news[name] = Cursor(name, start)
        return cursor

    def delete(self, name: str, asker: Any) -> None:
        """Have the next commit delete a cursor, and ``asker`` be told."""
        self._current.pop(name, None)
        self._news.pop(name, None)
        self._deleted.setdefault(name, []).append(asker)

    def ack(self, cursor: Cursor, below: int, now: int) -> None:
        """Everything below the offset is ACKed; a life that was deleted is not moved any more."""
        if below <= cursor.newest or self._current.get(cursor.name) is not cursor:
            return
        cursor.heard = below
        self._news[cursor.name] = cursor
        if self.ack_since is None:
            self.ack_since = now

    def slowest(self) -> tuple[str, int] | None:
        """The durable cursor that keeps the most, and its offset."""
        return min(self.durable.items(), key=lambda item: item[1], default=None)

    def urgent(self) -> bool:
        """Whether a commit is wanted at once: somebody waits for a cursor to be created or deleted."""
        return bool(self._deleted) or any(self._is_new(cursor) for cursor in self._news.values())

    def askers(self) -> list[Any]:
        """Everybody who waits for a deletion."""
        return self._sealed.askers + [asker for waiting in self._deleted.values() for asker in waiting]

    @staticmethod
    def _is_new(cursor: Cursor) -> bool:
        return cursor.acked is None and cursor.sealed is None

    # Commits.

    def seal(self, start: int, end: int) -> CursorChanges:
        """What the commit now being sealed says; ``start`` and ``end`` are the log's before it."""
        for cursor in self._news.values():
            begin = (start if cursor.start is Start.OLDEST else end) if self._is_new(cursor) else 0
            cursor.sealed = max(cursor.heard, begin)
        moved = {name: cursor.sealed or 0 for name, cursor in self._news.items()}
        askers = [asker for waiting in self._deleted.values() for asker in waiting]
        self._sealed = CursorChanges(moved, list(self._deleted), askers, list(self._news.values()))
        self._news, self._deleted = {}, {}
        self.ack_since = None
        return self._sealed

    def after(self, changes: CursorChanges) -> dict[str, int]:
        """The cursors as ``changes`` will leave them."""
        kept = {name: acked for name, acked in self.durable.items() if name not in changes.deleted}
        return {**kept, **changes.moved}

    def committed(self, commit: int) -> CursorChanges:
        """What was sealed is in the journal, as entry ``commit``."""
        changes, self._sealed = self._sealed, CursorChanges()
        for name in changes.deleted:
            self._durable.pop(name, None)
        for cursor in changes.lives:
            if cursor.acked is None:
                cursor.life = commit
            cursor.acked, cursor.sealed = cursor.sealed, None
            self._durable[cursor.name] = cursor
        return changes
