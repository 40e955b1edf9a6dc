"""Ids received and not yet committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from millwheel.worker.dedup.verdict import DedupError

__all__ = ["PendingIds"]

Id = TypeVar("Id", int, bytes)


class PendingIds(Generic[Id]):
    """The pending ids of one source of ids.

    Invariant: an id is here from the verdict "fresh" or "unsure" until it is committed, abandoned or resolved as a
    duplicate. So at most one copy of a record is fresh.
    """

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: set[Id] = set()

    def settle(self, ids: Sequence[Id]) -> None:
        """Remove the ids from the pending ones.

        Raises:
            DedupError: An id was not pending.
        """
        pending = self.ids
        before = len(pending)
        pending.difference_update(ids)
        if before - len(pending) != len(ids):
            raise DedupError(
                f"{len(ids)} ids were settled, {before - len(pending)} of them pending: one was taken twice"
            )
