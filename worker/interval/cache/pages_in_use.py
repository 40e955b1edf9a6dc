"""The pages that the hooks of an interval use before their commits, and the keys that wait for pages (8.3; G8, G13).

Pages in use stay in memory until their key's commit. So a hook that is undone for a page finds all earlier ones when it
runs again. The pages of keys that had to be read share a budget. A key beyond it waits until others are committed.
"""

from __future__ import annotations

from itertools import islice

from millwheel.model.page_keys import is_page_key, row_owner

__all__ = ["PagesInUse"]


class _Used:
    """The pages of one key, with their sizes in bytes, and the sum of these."""

    __slots__ = ("rows", "size")

    def __init__(self) -> None:
        self.rows: dict[bytes, int] = {}
        self.size = 0

    def add(self, row: bytes, size: int) -> None:
        """Use a page."""
        self.size += size - self.rows.get(row, 0)
        self.rows[row] = size


class PagesInUse:
    """By key: the pages that its hooks have used, and those that they wait for.

    Invariant (G8): the key that has been admitted first is admitted again whenever it asks. It never waits for another
    key, so it is committed or fails some time, and then the next key is the first.
    """

    def __init__(self, budget: int) -> None:
        """``budget``: the bytes of pages of all admitted keys together. The first key may exceed it."""
        self._budget = budget
        self._used: dict[bytes, _Used] = {}
        self.waiting: dict[bytes, dict[bytes, int]] = {}
        """The keys whose pages are not asked for yet, in order, with these pages."""
        self._admitted: dict[bytes, None] = {}
        """The keys whose pages have been asked for since their last commit, in order."""

    def __contains__(self, row: object) -> bool:
        """Whether a row is a page in use."""
        if not (self._used and isinstance(row, bytes) and is_page_key(row)):
            return False
        used = self._used.get(row_owner(row))
        return used is not None and row in used.rows

    def size(self, key: bytes) -> int:
        """The bytes of the pages that a key uses."""
        used = self._used.get(key)
        return 0 if used is None else used.size

    def use(self, key: bytes, row: bytes, size: int) -> None:
        """A hook uses a page."""
        used = self._used.get(key)
        if used is None:
            used = self._used[key] = _Used()
        used.add(row, size)

    def ask(self, key: bytes, rows: dict[bytes, int]) -> None:
        """A hook was undone, and needs rows of about these sizes."""
        self.waiting[key] = rows

    def admit(self) -> list[bytes]:
        """The rows to read now: those of the first key, and of others in the order of their requests while they fit."""
        found: list[bytes] = []
        held = sum(self._used[key].size for key in self._admitted)
        for key in [*islice(self._admitted, 1), *self.waiting]:
            rows = self.waiting.get(key)
            if rows is None:
                continue
            more = sum(rows.values()) + (0 if key in self._admitted else self.size(key))
            first = next(iter(self._admitted), key)
            if key != first and held + more > self._budget:
                break
            held += more
            del self.waiting[key]
            self._admitted[key] = None
            for row, size in rows.items():
                self.use(key, row, size)
            found += rows
        return found

    def release(self, key: bytes) -> None:
        """The key's hooks are committed or have failed. Its pages may be evicted."""
        self._used.pop(key, None)
        self._admitted.pop(key, None)
