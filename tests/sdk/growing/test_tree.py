"""The page tree against a dict, with pages that come and go, and with commits that are undone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from math import log2
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millwheel.errors import CorruptValueError
from millwheel.sdk.growing.nodes import PAGE_BYTES, Node, decode_node
from millwheel.sdk.growing.pages import Garbage, Pages, PagesNeededError
from millwheel.sdk.growing.tree import PageTree

KEYS = st.integers(0, 400).map(lambda number: b"%03d" % number)
LENGTHS = st.sampled_from([300, 1_000, 2_000, 4_090, 4_096])
LONG_KEYS = st.tuples(st.integers(0, 99), LENGTHS).map(lambda drawn: (b"%02d" % drawn[0]).rjust(drawn[1], b"k"))
SIZES = st.sampled_from([0, 3, 60, 700, 1_500, 9_000])
VALUES = st.tuples(st.integers(0, 255), SIZES).map(lambda drawn: bytes([drawn[0]]) * drawn[1])


class StoredPages:
    """Pages as a store has them. Those that are not in ``memory`` must be asked for."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.memory: set[int] = set()

    def node(self, number: int) -> Node:
        if number not in self.memory:
            raise self.need([number])
        return decode_node(self.stored[number], f"page {number}")

    def missing(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if number not in self.memory]

    def need(self, numbers: list[int]) -> PagesNeededError:
        assert numbers
        assert len(set(numbers)) == len(numbers)
        return PagesNeededError(numbers)

    def grew(self, size: int) -> None:
        pass

    def read(self, numbers: list[int]) -> None:
        assert self.missing(numbers) == numbers
        self.memory.update(numbers)

    def commit(self, pages: Pages) -> None:
        for number, node in pages.changed.items():
            if node is None:
                del self.stored[number]
                self.memory.discard(number)
            else:
                self.stored[number] = node.encode()
                self.memory.add(number)
        pages.settled()


class Saved:
    """A tree as of a commit."""

    def __init__(self, pages: Pages, tree: PageTree) -> None:
        self.following, self.garbage = pages.following, list(pages.garbage)
        self.head = tree.root.encode(), tree.depth, tree.count, tree.blobs

    def load(self, source: StoredPages) -> tuple[Pages, PageTree]:
        pages = Pages(self.following, self.garbage, source)
        root, *rest = self.head
        return pages, PageTree(pages, decode_node(root, "root"), *rest)


def reachable(source: StoredPages, root: Node, depth: int, garbage: list[Garbage]) -> Iterator[int]:
    """All pages of a tree, checked on the way, and those of the garbage."""

    def below(node: Node, level: int) -> Iterator[int]:
        assert len(node.keys) == len(node.values)
        assert node.keys[bool(level) :] == sorted(set(node.keys[bool(level) :]))
        assert node.size == Node(node.keys, node.values).size
        for value in node.values:
            if level or isinstance(value, int):
                yield value
            if level:
                assert node.keys[0] == b""
                child = decode_node(source.stored[value], "child")
                assert child.keys, "no page but the root is empty"
                # An inner node of a few children is not divided, however long their keys are.
                few = level > 1 and len(child.keys) < 8
                assert child.size <= PAGE_BYTES or few or any(len(key) > 1_000 for key in child.keys)
                yield from below(child, level - 1)

    yield from below(root, depth)
    for top, levels, _ in garbage:
        yield top
        yield from below(decode_node(source.stored[top], "garbage"), levels)


class TreeMachine(RuleBasedStateMachine):
    """Each rule is a hook: it may need pages, and is then undone and run again; some hooks fail at their end."""

    keys = KEYS

    def __init__(self) -> None:
        super().__init__()
        self.source = StoredPages()
        self.model: dict[bytes, bytes] = {}
        self.most = 0
        pages = Pages(0, (), self.source)
        self.saved = Saved(pages, PageTree(pages))

    def hook(self, run: Callable[[PageTree], Any], fails: bool = False) -> Any:
        while True:
            self.pages, tree = self.saved.load(self.source)
            try:
                result = run(tree)
                break
            except PagesNeededError as needed:
                self.source.read(needed.numbers)
        if not fails:
            self.source.commit(self.pages)
            self.saved = Saved(self.pages, tree)
        return result

    @rule(pairs=st.data(), many=st.integers(1, 60), fails=st.booleans())
    def puts(self, pairs, many, fails):  # type: ignore[no-untyped-def]
        drawn = pairs.draw(st.lists(st.tuples(self.keys, VALUES), max_size=many))
        expected = dict(self.model)

        def run(tree: PageTree) -> None:
            known = dict(self.model)
            for key, value in drawn:
                assert tree.put(key, value) is (key not in known)
                known[key] = value

        self.hook(run, fails)
        if not fails:
            expected.update(drawn)
            self.model = expected

    @rule(start=st.integers(0, 400), count=st.integers(1, 200), up=st.booleans())
    def appends(self, start, count, up):  # type: ignore[no-untyped-def]
        keys = [b"%03d" % number for number in range(start, start + count)]
        drawn = [(key, key * 15) for key in (keys if up else reversed(keys))]
        self.hook(lambda tree: [tree.put(*one) for one in drawn])
        self.model.update(drawn)

    @rule(data=st.data(), many=st.integers(1, 60))
    def deletes(self, data, many):  # type: ignore[no-untyped-def]
        known = st.sampled_from(sorted(self.model)) if self.model else self.keys
        drawn = data.draw(st.lists(known | self.keys, max_size=many))
        model = dict(self.model)
        expected = [model.pop(key, None) for key in drawn]
        assert self.hook(lambda tree: [tree.delete(key) for key in drawn]) == expected
        self.model = model

    @rule(end=st.none() | KEYS)
    def deletes_below(self, end):  # type: ignore[no-untyped-def]
        kept = {key: value for key, value in self.model.items() if end is not None and key >= end}
        assert self.hook(lambda tree: tree.delete_below(end)) == len(self.model) - len(kept)
        self.model = kept

    @rule()
    def clears(self):  # type: ignore[no-untyped-def]
        self.hook(lambda tree: tree.clear())
        self.model = {}

    @precondition(lambda self: self.saved.garbage)
    @rule(most=st.integers(1, 40))
    def collects(self, most):  # type: ignore[no-untyped-def]
        stored = len(self.source.stored)
        self.hook(lambda tree: self.pages.collect(most))
        assert 0 < stored - len(self.source.stored) <= most + PAGE_BYTES // 6

    @rule(data=st.data())
    def evicts(self, data):  # type: ignore[no-untyped-def]
        self.source.memory = {number for number in self.source.memory if data.draw(st.booleans())}

    @rule()
    def evicts_all(self):  # type: ignore[no-untyped-def]
        self.source.memory = set()

    @rule(start=st.none() | KEYS, end=st.none() | KEYS, reverse=st.booleans())
    def scans(self, start, end, reverse):  # type: ignore[no-untyped-def]
        within = [key for key in self.model if (start is None or key >= start) and (end is None or key < end)]
        expected = [(key, self.model[key]) for key in sorted(within, reverse=reverse)]
        assert self.hook(lambda tree: list(tree.items(start, end, reverse=reverse))) == expected

    @rule(keys=st.lists(KEYS, max_size=20))
    def looks(self, keys):  # type: ignore[no-untyped-def]
        assert self.hook(lambda tree: [tree.get(key) for key in keys]) == [self.model.get(key) for key in keys]
        items = sorted(self.model.items())
        ends = (items[0], items[-1]) if items else (None, None)
        assert self.hook(lambda tree: (tree.first(), tree.last())) == ends

    @invariant()
    def no_page_leaks(self):  # type: ignore[no-untyped-def]
        root, depth, count, blobs = self.saved.head
        found = list(reachable(self.source, decode_node(root, "root"), depth, self.saved.garbage))
        assert len(found) == len(set(found)), "a page is referred to twice"
        assert set(found) == set(self.source.stored)
        assert count == len(self.model)
        self.most = max(self.most, count)
        assert depth <= 2 + log2(self.most + 1) / 2, "the tree is flat however long its keys are"
        assert blobs == sum(len(value) >= PAGE_BYTES // 4 for value in self.model.values())


class LongKeysMachine(TreeMachine):
    """Keys up to the largest, which begin alike: less than two may fit into a page."""

    keys = LONG_KEYS


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLongKeys = LongKeysMachine.TestCase
TestLongKeys.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def filled(count: int, size: int = 40) -> tuple[Pages, PageTree, StoredPages]:
    source = StoredPages()
    pages = Pages(0, (), source)
    tree = PageTree(pages)
    for number in range(count):
        tree.put(number.to_bytes(8, "big"), bytes(size))
    source.commit(pages)
    return pages, tree, source


def test_an_append_changes_one_page_however_many_there_are() -> None:
    for count in (1_000, 100_000):
        pages, tree, source = filled(count)
        changed = []
        for number in range(count, count + 200):
            tree.put(number.to_bytes(8, "big"), bytes(40))
            changed.append(len(pages.changed))
            source.commit(pages)
        assert sorted(changed)[190] <= 1
        assert max(changed) <= 4


def test_pages_of_a_list_are_full() -> None:
    _, tree, source = filled(20_000)
    assert len(source.stored) * PAGE_BYTES * 0.8 < 20_000 * (40 + 8 + 6)
    assert tree.depth <= 3


def test_pages_do_not_stay_when_elements_go() -> None:
    pages, tree, source = filled(20_000)
    keys = [number.to_bytes(8, "big") for number in range(20_000)]
    random.Random(1).shuffle(keys)
    for key in keys[:19_900]:
        tree.delete(key)
    assert tree.count == 100
    source.commit(pages)
    assert len(source.stored) < 40


@pytest.mark.parametrize(("count", "size"), [(100_000, 40), (1_000, 1_500)], ids=["small elements", "large elements"])
def test_a_scan_of_pages_in_the_store_asks_few_times(count: int, size: int) -> None:
    pages, tree, source = filled(count, size)
    saved = Saved(pages, tree)
    source.memory, rounds, read = set(), 0, 0
    while True:
        _, tree = saved.load(source)
        try:
            assert sum(1 for _ in tree.items()) == count
            break
        except PagesNeededError as needed:
            rounds, read = rounds + 1, read + len(needed.numbers)
            source.read(needed.numbers)
    assert read == len(source.stored)
    assert rounds < 40


@pytest.mark.parametrize("length", [1_300, 2_100, 4_090, 4_096])
@pytest.mark.parametrize("order", ["up", "down", "any"])
def test_long_keys_make_no_deep_tree(length: int, order: str) -> None:
    keys = [b"k" * (length - 3) + b"%03d" % number for number in range(600)]
    if order == "down":
        keys.reverse()
    elif order == "any":
        random.Random(1).shuffle(keys)
    source = StoredPages()
    pages = Pages(0, (), source)
    tree = PageTree(pages)
    for key in keys:
        tree.put(key, key[-3:])
        assert tree.root.size <= 512 or not tree.depth
    assert tree.depth <= 6
    assert [value for _, value in tree.items()] == sorted(key[-3:] for key in keys)
    source.commit(pages)
    assert len(source.stored) < 900
    for key in keys[:-1]:
        tree.delete(key)
    source.commit(pages)
    assert len(source.stored) <= 2


def test_inner_pages_have_only_what_tells_long_keys_apart() -> None:
    pages, tree, _ = filled(0)
    for number in range(300):
        tree.put(b"%03d" % number * 1_000, b"")
    assert tree.depth == 2
    assert sum(len(key) for key in pages.node(tree.root.values[0]).keys) < 3 * 300


def test_a_change_during_iteration_is_an_error() -> None:
    _, tree, _ = filled(10)
    items = tree.items()
    key, _ = next(items)
    tree.delete(key)
    with pytest.raises(RuntimeError, match="changed while"):
        next(items)


@pytest.mark.parametrize("stored", [b"", b"\x93\x02\x90\x90", b"\x93\x01\xa1a\x90", b"junk"])
def test_a_page_that_is_none_is_refused(stored: bytes) -> None:
    with pytest.raises(CorruptValueError, match="page 7"):
        decode_node(stored, "page 7")
