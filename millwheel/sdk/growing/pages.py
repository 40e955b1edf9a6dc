"""The pages of one key's growing state: where they come from, and which of them changed since the last commit.

A hook changes copies of nodes. The nodes of the last commit stay as they are, so a hook is undone by dropping the
copies. After a commit the copies are the nodes of the last commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from millwheel.sdk.growing.nodes import Node, decode_node

__all__ = ["Garbage", "PageSource", "Pages", "PagesNeededError", "ReadPages"]

_READ_AHEAD: Final = 16
"""The least number of pages that a scan asks for together."""
_MAX_READ_AHEAD: Final = 1_024
"""The most pages that one request reads: about 4 MiB."""


class PagesNeededError(BaseException):
    """A hook needs pages that are not in memory. It is undone, and runs again when they have been read.

    It is no Exception, so that a hook does not catch it with its own errors.
    """

    def __init__(self, numbers: list[int]) -> None:
        super().__init__("pages of the state must be read first; MillWheel runs the hook again")
        self.numbers = numbers


class PageSource(Protocol):
    """The pages of one key as of the last commit."""

    def node(self, number: int) -> Node:
        """The node of a page. It is never changed. PagesNeededError if it is not in memory."""

    def missing(self, numbers: Iterable[int]) -> list[int]:
        """Those of the pages that are not in memory."""

    def need(self, numbers: list[int]) -> PagesNeededError:
        """The error that asks for these pages."""

    def grew(self, size: int) -> None:
        """A page of about ``size`` bytes changes for the first time since the last commit."""


class ReadPages:
    """Pages that can be read at once: for tools, and for a state that belongs to no key, all of whose pages are new."""

    def __init__(self, read: Callable[[int], bytes] = lambda number: b"") -> None:
        """``read`` returns the stored bytes of a page."""
        self._read = read

    def node(self, number: int) -> Node:
        """See :meth:`PageSource.node`."""
        return decode_node(self._read(number), f"page {number}")

    def missing(self, numbers: Iterable[int]) -> list[int]:
        """See :meth:`PageSource.missing`."""
        return []

    def need(self, numbers: list[int]) -> PagesNeededError:
        """See :meth:`PageSource.need`."""
        return PagesNeededError(numbers)

    def grew(self, size: int) -> None:
        """See :meth:`PageSource.grew`."""


Garbage = tuple[int, int, bool]
"""A subtree that nothing refers to: its top page, the levels below that, and whether it may have blobs."""


class Pages:
    """The pages of one key's state, with the changes since the last commit.

    Invariant: a page's number is used again only when the state has been empty in between. So a page that was freed
    and the page that replaced it are never mixed up.
    """

    def __init__(self, following: int = 0, garbage: Iterable[Garbage] = (), source: PageSource | None = None) -> None:
        self.source: PageSource = ReadPages() if source is None else source
        self.following = following
        """The number of the next page."""
        self.garbage: list[Garbage] = list(garbage)
        self.changed: dict[int, Node | None] = {}
        """The pages that changed since the last commit. None: the page is deleted."""
        self._committed = following
        self._read = 0

    def node(self, number: int) -> Node:
        """The node of a page, for reading."""
        node = self.changed.get(number)
        if node is None:
            self._read += 1
            node = self.source.node(number)
        return node

    def edit(self, number: int) -> Node:
        """The node of a page, for changing."""
        node = self.changed.get(number)
        if node is None:
            clean = self.source.node(number)
            node = self.changed[number] = clean.copy()
            self.source.grew(node.size)
        return node

    def add(self, node: Node) -> int:
        """A new page. Returns its number."""
        number = self.following
        self.following += 1
        self.changed[number] = node
        self.source.grew(node.size)
        return number

    def free(self, number: int) -> None:
        """Delete a page that nothing refers to any more."""
        if number < self._committed:
            self.changed[number] = None
        else:
            del self.changed[number]

    def discard(self, top: int, below: int, has_blobs: bool) -> None:
        """Delete a subtree, a few pages in each of the next commits (``collect``)."""
        if below or has_blobs:
            self.garbage.append((top, below, has_blobs))
        else:
            self.free(top)

    def read_ahead(self, numbers: list[int], at: int, least: int = _READ_AHEAD) -> None:
        """A scan is about to read page ``numbers[at]``. If it is not in memory, ask for it and for some that follow.

        A hook starts again after each request. So it asks for as many pages as it has read: a scan reads each page
        twice on average, however long it is.
        """
        if not self._has(numbers[at]):
            many = min(max(least, self._read), _MAX_READ_AHEAD)
            wanted = [number for number in numbers[at : at + many] if number not in self.changed]
            raise self.source.need(self.source.missing(wanted))

    def collect(self, most: int) -> None:
        """Delete up to about ``most`` pages of discarded subtrees."""
        left = most
        while self.garbage and left > 0:
            top, below, has_blobs = self.garbage[-1]
            if not self._has(top) and left < most:
                return  # What is done is committed first. The next call asks for the page.
            node = self.node(top)
            self.garbage.pop()
            self.free(top)
            left -= 1
            if not below:
                left -= self._free_all(value for value in node.values if value.__class__ is int)
            elif below == 1 and not has_blobs:
                left -= self._free_all(node.values)
            else:
                self.garbage += [(child, below - 1, has_blobs) for child in reversed(node.values)]

    def settled(self) -> None:
        """The changes are part of a commit."""
        self.changed.clear()
        self._committed = self.following
        self._read = 0

    def _has(self, number: int) -> bool:
        return number in self.changed or not self.source.missing((number,))

    def _free_all(self, numbers: Iterable[int]) -> int:
        count = 0
        for number in numbers:
            self.free(number)
            count += 1
        return count
