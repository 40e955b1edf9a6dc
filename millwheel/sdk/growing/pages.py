"""The pages of one key's growing state: where they come from, and which of them changed since the last commit.

A hook changes copies of nodes. The nodes of the last commit stay as they are, so a hook is undone by dropping the
copies. After a commit the copies are the nodes of the last commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from millwheel.sdk.growing.nodes import PAGE_BYTES, Node, decode_node

__all__ = ["Garbage", "PageSource", "Pages", "PagesNeededError", "ReadPages", "page_bytes"]

_READ_AHEAD: Final = 16
"""The least number of pages that a scan asks for together."""
_MAX_READ_AHEAD_BYTES: Final = 4 << 20
"""The most that one request reads, if it is for more than one page."""
_TOPS: Final = 64
"""The most tops of discarded subtrees that are read together. Each leads to many pages that are deleted unread."""
_SIZE_BITS: Final = 4
"""The bits of a page's number that tell its size. A request for large values is bounded without reading them."""


def page_bytes(number: int) -> int:
    """About the bytes of a page: hardly more, and perhaps half as much. A page of a tree may shrink."""
    return PAGE_BYTES << (number & (1 << _SIZE_BITS) - 1)


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
        """The next page's number, without its size."""
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
        number = self.following << _SIZE_BITS | ((node.size - 1) // PAGE_BYTES).bit_length()
        self.following += 1
        self.changed[number] = node
        self.source.grew(node.size)
        return number

    def free(self, number: int) -> None:
        """Delete a page that nothing refers to any more."""
        if number >> _SIZE_BITS < self._committed:
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
            following = numbers[at : at + max(least, self._read)]
            wanted: list[int] = []
            size = 0
            for number in self.source.missing(number for number in following if number not in self.changed):
                size += page_bytes(number)
                if wanted and size > _MAX_READ_AHEAD_BYTES:
                    break
                wanted.append(number)
            raise self.source.need(wanted)

    def collect(self, most: int) -> None:
        """Delete up to about ``most`` pages of discarded subtrees."""
        left = most
        while self.garbage and left > 0:
            top, below, has_blobs = self.garbage[-1]
            if not self._has(top):
                if left < most:
                    return  # What is done is committed first. The next call asks for the page.
                tops = [one for one, _, _ in reversed(self.garbage[-_TOPS:])]
                self.read_ahead(tops, 0, least=_TOPS)
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
