"""Durable named cursors: what each has ACKed, and what of that the next commit has to say (design §9)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millwheel.worker.log.messages import Start

__all__ = ["CursorChanges", "Cursors"]


@dataclass(slots=True)
class CursorChanges:
    """What one commit says about cursors: ``deleted`` first, then the new values of ``moved``."""

    moved: dict[str, int] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    askers: list[Any] = field(default_factory=list)
    """Who asked for the deletions."""


class Cursors:
    """The cursors of one log.

    ``durable`` is what the journal says. News waits in ``_created``, ``_acks`` and ``_deleted`` for the next commit,
    and in ``_sealed`` for its acknowledgement; one commit is in flight at a time.
    """

    def __init__(self) -> None:
        self.durable: dict[str, int] = {}
        self._created: dict[str, Start] = {}
        self._acks: dict[str, int] = {}
        self._deleted: dict[str, list[Any]] = {}
        self._sealed = CursorChanges()
        self.ack_since: int | None = None
        """When the first ACK came that no commit has taken."""

    def exists(self, name: str) -> bool:
        """Whether the cursor exists, or will with what is on its way."""
        if name in self._created:
            return True
        if name in self._deleted:
            return False
        if name in self._sealed.moved:
            return True
        return name in self.durable and name not in self._sealed.deleted

    def settled(self, name: str) -> bool:
        """Whether the journal has the cursor: only then may its subscriber be told anything."""
        return name in self.durable and self.exists(name) and name not in self._created

    def create(self, name: str, start: Start) -> None:
        """Have the next commit create a cursor."""
        self._created[name] = start

    def delete(self, name: str, asker: Any) -> None:
        """Have the next commit delete a cursor, and ``asker`` be told."""
        self._created.pop(name, None)
        self._acks.pop(name, None)
        self._deleted.setdefault(name, []).append(asker)

    def ack(self, name: str, below: int, now: int) -> bool:
        """Everything below the offset is ACKed; returns whether that was news."""
        if below <= self.heard(name):
            return False
        self._acks[name] = below
        if self.ack_since is None:
            self.ack_since = now
        return True

    def heard(self, name: str) -> int:
        """The largest ACK heard from the cursor, durable or not."""
        return max(self._acks.get(name, 0), self._sealed.moved.get(name, 0), self.durable.get(name, 0))

    def slowest(self) -> tuple[str, int] | None:
        """The durable cursor that keeps the most, and its offset."""
        return min(self.durable.items(), key=lambda item: item[1], default=None)

    def urgent(self) -> bool:
        """Whether a commit is wanted at once: somebody waits for a cursor to be created or deleted."""
        return bool(self._created or self._deleted)

    def askers(self) -> list[Any]:
        """Everybody who waits for a deletion."""
        return self._sealed.askers + [asker for waiting in self._deleted.values() for asker in waiting]

    def seal(self, start: int, end: int) -> CursorChanges:
        """What the commit now being sealed says; ``start`` and ``end`` are the log's before it."""
        moved = {name: (start if where is Start.OLDEST else end) for name, where in self._created.items()}
        for name, below in self._acks.items():
            moved[name] = max(below, moved.get(name, 0))
        askers = [asker for waiting in self._deleted.values() for asker in waiting]
        self._sealed = CursorChanges(moved, list(self._deleted), askers)
        self._created, self._acks, self._deleted = {}, {}, {}
        self.ack_since = None
        return self._sealed

    def after(self, changes: CursorChanges) -> dict[str, int]:
        """The cursors as ``changes`` will leave them."""
        kept = {name: acked for name, acked in self.durable.items() if name not in changes.deleted}
        return {**kept, **changes.moved}

    def committed(self) -> CursorChanges:
        """What was sealed is in the journal."""
        changes, self._sealed = self._sealed, CursorChanges()
        self.durable = self.after(changes)
        return changes
