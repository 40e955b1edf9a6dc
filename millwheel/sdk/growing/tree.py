"""A B+tree of pages: an ordered map from bytes to bytes, of any size.

The root is part of the key's state, so a small tree has no pages. All leaves are ``depth`` levels below the root.
Only pages on the path to a changed element change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final

from millwheel.sdk.growing.nodes import ITEM_BYTES, PAGE_BYTES, Node
from millwheel.sdk.growing.pages import Pages

__all__ = ["PageTree"]

ROOT_BYTES: Final = 512
"""The largest root. It is written with each change of the state."""
BLOB_BYTES: Final = PAGE_BYTES // 4
"""A value from this size on has a page of its own, so a leaf has room for several elements."""
SMALL_BYTES: Final = PAGE_BYTES // 4
"""A page below this size is merged with a neighbour if both fit into three quarters of a page."""

_MIN_DIVIDED: Final = 8
"""The least number of children of an inner node that is divided. With long keys, it is larger than a page."""

_Path = list[tuple[Node, int, int]]
"""From the root to the parent of a node: the inner node, its page (-1: the root), and the index of the child."""


class PageTree:
    """An ordered map from bytes to bytes.

    Invariant: each page except the root has an item. An inner node's key is not above the keys below its child, and
    above those of the child before. The first key of an inner node is not used, and is empty.

    Invariant: an inner node is divided from eight children on, and merged with a neighbour if both have fewer. So the
    depth is logarithmic however long the keys are. Who may break it: a division by size alone, when two keys fill a
    page.
    """

    def __init__(self, pages: Pages, root: Node | None = None, depth: int = 0, count: int = 0, blobs: int = 0) -> None:
        self._pages = pages
        self.root = Node([], []) if root is None else root
        self.depth = depth
        self.count = count
        self.blobs = blobs
        """How many values have pages of their own."""
        self._changes = 0

    # Reading.

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        leaf = self.root
        for _ in range(self.depth):
            leaf = self._pages.node(leaf.values[_child_of(leaf, key)])
        at = bisect_left(leaf.keys, key)
        if at == len(leaf.keys) or leaf.keys[at] != key:
            return None
        return self._value(leaf.values[at])

    def first(self) -> tuple[bytes, bytes] | None:
        """The element with the least key."""
        return self._edge(0)

    def last(self) -> tuple[bytes, bytes] | None:
        """The element with the largest key."""
        return self._edge(-1)

    def _edge(self, at: int) -> tuple[bytes, bytes] | None:
        if not self.count:
            return None
        leaf = self.root
        for _ in range(self.depth):
            leaf = self._pages.node(leaf.values[at])
        return leaf.keys[at], self._value(leaf.values[at])

    def items(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """The elements with keys from ``start`` to below ``end``, in order.

        Raises:
            RuntimeError: The tree was changed meanwhile.
        """
        changes = self._changes
        for leaf in self._leaves(self.root, self.depth, start, end, reverse):
            low = 0 if start is None else bisect_left(leaf.keys, start)
            high = len(leaf.keys) if end is None else bisect_left(leaf.keys, end)
            order = range(high - 1, low - 1, -1) if reverse else range(low, high)
            blobs = [leaf.values[at] for at in order if leaf.values[at].__class__ is int] if self.blobs else []
            seen = 0
            for at in order:
                if leaf.values[at].__class__ is int:
                    self._pages.read_ahead(blobs, seen, least=1)
                    seen += 1
                yield leaf.keys[at], self._value(leaf.values[at])
                if changes != self._changes:
                    raise RuntimeError("the collection was changed while it was iterated over")

    def _leaves(self, node: Node, below: int, start: bytes | None, end: bytes | None, reverse: bool) -> Iterator[Node]:
        if not below:
            yield node
            return
        low = 0 if start is None else _child_of(node, start)
        high = len(node.keys) if end is None else bisect_left(node.keys, end, 1)
        children = node.values[low:high]
        if reverse:
            children.reverse()
        for index, child in enumerate(children):
            if below == 1:
                self._pages.read_ahead(children, index)
            yield from self._leaves(self._pages.node(child), below - 1, start, end, reverse)

    def _value(self, stored: Any) -> bytes:
        value: bytes = self._pages.node(stored).values[0] if stored.__class__ is int else stored
        return value

    # Changing.

    def put(self, key: bytes, value: bytes) -> bool:
        """Set the value of a key. Returns whether the key is new."""
        self._changes += 1
        path, leaf, page = self._descend(key)
        leaf = self._edit(leaf, page)
        at = bisect_left(leaf.keys, key)
        if at < len(leaf.keys) and leaf.keys[at] == key:
            self._release(leaf.values[at])
            leaf.replace(at, self._stored(value))
            new = False
        else:
            leaf.insert(at, key, self._stored(value))
            self.count += 1
            new = True
        self._divide(path, leaf, page, at)
        return new

    def delete(self, key: bytes) -> bytes | None:
        """Remove a key. Returns its value, or None if there was no such key."""
        value = self.get(key)
        if value is not None:
            self._changes += 1
            path, leaf, page = self._descend(key)
            at = bisect_left(leaf.keys, key)
            self._remove(path, self._edit(leaf, page), page, at, at + 1)
        return value

    def delete_below(self, end: bytes | None) -> int:
        """Remove all keys below ``end`` (None: all). Returns their number. Leaves are removed as a whole."""
        before = self.count
        while self.count:
            path, leaf, page = self._descend(b"")
            high = len(leaf.keys) if end is None else bisect_left(leaf.keys, end)
            if not high:
                break
            self._changes += 1
            self._remove(path, self._edit(leaf, page), page, 0, high)
        return before - self.count

    def clear(self) -> None:
        """Remove everything. The pages are deleted in later commits (``Pages.collect``)."""
        self._changes += 1
        for value in self.root.values:
            if self.depth:
                self._pages.discard(value, self.depth - 1, self.blobs > 0)
            else:
                self._release(value)
        self.root, self.depth, self.count, self.blobs = Node([], []), 0, 0, 0

    def _descend(self, key: bytes) -> tuple[_Path, Node, int]:
        """The way to the leaf of a key, the leaf, and its page."""
        path: _Path = []
        node, page = self.root, -1
        for _ in range(self.depth):
            at = _child_of(node, key)
            path.append((node, page, at))
            page = node.values[at]
            node = self._pages.node(page)
        return path, node, page

    def _edit(self, node: Node, page: int) -> Node:
        return self._pages.edit(page) if page >= 0 else node

    def _stored(self, value: bytes) -> Any:
        if len(value) < BLOB_BYTES:
            return value
        self.blobs += 1
        return self._pages.add(Node([], [value]))

    def _release(self, stored: Any) -> None:
        if stored.__class__ is int:
            self.blobs -= 1
            self._pages.free(stored)

    def _divide(self, path: _Path, node: Node, page: int, at: int, inner: bool = False) -> None:
        """Divide a node whose item ``at`` is new, if it is too large, and then its parents.

        A leaf that grows at an end keeps all but the new item, so that lists have full pages.
        """
        while page >= 0 and node.size > PAGE_BYTES and len(node.keys) >= (_MIN_DIVIDED if inner else 2):
            rest = node.cut(len(node.keys) // 2 if inner else _division(node, at))
            if inner:
                key = rest.keys[0]
                rest.blank_first_key()
            else:
                key = _separator(node.keys[-1], rest.keys[0])
            parent, page, index = path.pop()
            node = self._edit(parent, page)
            node.insert(index + 1, key, self._pages.add(rest))
            at, inner = index + 1, True
        if page < 0 and node.size > ROOT_BYTES and len(node.keys) > 1:
            # The new child of the root may be too large, too.
            inner = self.depth > 0
            child = self._pages.add(node)
            self.root, self.depth = Node([b""], [child]), self.depth + 1
            self._divide([(self.root, -1, 0)], node, child, at, inner)

    def _remove(self, path: _Path, leaf: Node, page: int, low: int, high: int) -> None:
        """Remove the items from ``low`` to below ``high`` of a leaf, and what is empty or small afterwards."""
        for value in leaf.values[low:high]:
            self._release(value)
        rest = leaf.cut(high)
        leaf.cut(low)
        leaf.extend(rest)
        self.count -= high - low
        node, inner = leaf, False
        while page >= 0 and (node.size < SMALL_BYTES or (inner and len(node.keys) < _MIN_DIVIDED // 2)):
            parent, above, index = path.pop()
            if not node.keys:
                self._pages.free(page)
                node = self._edit(parent, above)
                node.remove(index)
                if node.keys:
                    node.blank_first_key()
            elif (left := self._mergeable(parent, index, node, inner)) is not None:
                node = self._edit(parent, above)
                self._merge(node, left, inner)
            else:
                break
            page, inner = above, True
        self._shorten()

    def _mergeable(self, parent: Node, index: int, node: Node, inner: bool) -> int | None:
        """The index of the left one of two neighbours that fit into a page together, one of them ``node``.

        Inner nodes of a few children, whose keys are long, are merged too: they do not stay as a chain.
        """
        for other, left in ((index + 1, index), (index - 1, index - 1)):
            if 0 <= other < len(parent.keys):
                neighbour = self._pages.node(parent.values[other])
                few = inner and len(neighbour.keys) + len(node.keys) < _MIN_DIVIDED
                if few or neighbour.size + node.size <= PAGE_BYTES * 3 // 4:
                    return left
        return None

    def _merge(self, parent: Node, left: int, inner: bool) -> None:
        """Move the items of child ``left + 1`` to child ``left``. ``parent`` may be changed."""
        page, key = parent.values[left + 1], parent.keys[left + 1]
        right = self._pages.node(page)
        # The first key of an inner node is empty there. The parent's is the bound between the two.
        keys = [key, *right.keys[1:]] if inner else right.keys
        self._pages.edit(parent.values[left]).extend(Node(keys, right.values))
        self._pages.free(page)
        parent.remove(left + 1)

    def _shorten(self) -> None:
        """Move the content of the root's only child into the root, if it fits well."""
        while self.depth and len(self.root.keys) <= 1:
            if not self.root.keys:
                self.depth = 0
                return
            page = self.root.values[0]
            child = self._pages.node(page)
            if child.size > ROOT_BYTES // 2:
                return
            self.root, self.depth = child.copy(), self.depth - 1
            self._pages.free(page)


def _child_of(node: Node, key: bytes) -> int:
    """The index of the child that has a key."""
    return bisect_right(node.keys, key, 1) - 1


def _separator(below: bytes, above: bytes) -> bytes:
    """The shortest key that is above ``below``, and not above ``above``."""
    same = 0
    while same < len(below) and below[same] == above[same]:
        same += 1
    return above[: same + 1]


def _division(leaf: Node, at: int) -> int:
    """The index that divides a leaf whose item ``at`` is new."""
    last = len(leaf.keys) - 1
    return last if at == last else 1 if at == 0 else _middle(leaf)


def _middle(node: Node) -> int:
    """The index that divides a node into two of the most equal sizes.

    With items of several KiB, a half may still be larger than a page. The next new item there divides it again.
    """
    best, least, size = 1, node.size, 0
    for at, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
        larger = max(size, node.size - size)
        if at and larger < least:
            best, least = at, larger
        size += len(key) + ITEM_BYTES + (len(value) if value.__class__ is bytes else 0)
    return best
