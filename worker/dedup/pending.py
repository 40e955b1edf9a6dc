"""Ids received and not yet committed, and the copies that wait for them (design §8)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from millwheel.worker.dedup.verdict import DedupError, Verdict, Waiter

__all__ = ["PendingIds"]

Id = TypeVar("Id", int, bytes)


class PendingIds(Generic[Id]):
    """The pending ids of one source of ids.

    Invariant: an id is here from the verdict that called it fresh (or unsure) until it is committed,
    abandoned or resolved as a duplicate. So at most one copy of a record is ever called fresh.
    """

    __slots__ = ("ids", "waiters")

    def __init__(self) -> None:
        self.ids: set[Id] = set()
        self.waiters: dict[Id, list[Waiter]] = {}

    def wait(self, id_: Id, verdict: Verdict, index: int) -> None:
        """Record ``index`` is a copy of the pending ``id_``."""
        self.waiters.setdefault(id_, []).append(Waiter(verdict, index))

    def settle(self, ids: Sequence[Id]) -> list[Waiter]:
        """The ids are pending no more; returns the copies that waited. DedupError if one was not pending."""
        pending = self.ids
        before = len(pending)
        pending.difference_update(ids)
        if before - len(pending) != len(ids):
            raise DedupError(
                f"{len(ids)} ids were settled, {before - len(pending)} of them pending: one was taken twice"
            )
        if not self.waiters:
            return []
        return self._release(ids)

    def _release(self, ids: Collection[Id]) -> list[Waiter]:
        released: list[Waiter] = []
        for id_ in ids:
            released += self.waiters.pop(id_, ())
        return released
