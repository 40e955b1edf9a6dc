"""States that grow: pages in the cache, hooks that wait for pages, and pages that nothing refers to (4.4; G2, G12)."""

from __future__ import annotations

from millwheel.sdk.growing.codec import _GrowingCodec
from millwheel.sdk.growing.pages import Pages
from millwheel.sdk.growing.tree import PageTree
from millwheel.worker.interval.pages import PageTable, undoable
from millwheel.worker.interval.recovery import _cut
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []

_MODEL = "tests/worker/interval/test_growing_model.py"
_HOOKS = "its hooks do no such thing"
_RARE = "one seed of ten has such a state, and few of its hooks meet this"


@mutation(
    "G8",
    "pages that an undone hook has used stay in memory until it has run again",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_a_hook_advances_however_small_the_cache_is",
    why=_RARE,
)
def evicted_in_use() -> None:
    """The cache may evict a page before the hook that asked for it runs."""
    replace(PageTable, "in_use", lambda _: lambda self, row: False)


@mutation("G2", "a hook that catches the request for a page is undone too", seeds=0, test=_MODEL, why=_RARE)
def swallowed_requests() -> None:
    """A hook that goes on without its page is committed."""
    rewrite(undoable, "if needed is not None:", "if False:")


@mutation("G2", "a hook changes copies of pages, so its undoing leaves no trace", seeds=0, test=_MODEL, why=_RARE)
def pages_in_place() -> None:
    """A hook changes the cached page itself."""
    rewrite(Pages.edit, "clean.copy()", "clean")


@mutation("G2", "a page that nothing refers to is deleted", seeds=0, test=_MODEL, why="it reads what is referred to")
def leaked_pages() -> None:
    """Discarded pages stay in the store."""
    rewrite(Pages.discard, "if below or has_blobs:", "if below:\n        return\n    if has_blobs:")


@mutation("G2", "a replaced value's own page is deleted", seeds=0, test=_MODEL, why="it reads what is referred to")
def leaked_blobs() -> None:
    """Pages of replaced large values stay in the store."""
    rewrite(PageTree._release, "self._pages.free(stored)", "pass")


@mutation(
    "G2",
    "two fields never have one collection, whose pages each would delete",
    seeds=0,
    test="tests/sdk/growing/test_collections.py::test_no_two_fields_ever_share_their_pages",
    why=_HOOKS,
)
def shared_collections() -> None:
    """A hook may assign a collection to another field."""
    rewrite(_GrowingCodec._encode, "is not collection:", "is None:")


@mutation(
    "G13",
    "an inner page has several children however long its keys are",
    seeds=0,
    test=_MODEL,
    why="its keys are short",
)
def thin_pages() -> None:
    """An inner page is divided by its size alone."""
    rewrite(PageTree._divide, "(_MIN_DIVIDED if inner else 2)", "2")


@mutation(
    "G11",
    "a page belongs to the child that has its key",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_children_of_a_split_have_the_pages_of_their_keys[False]",
    why=_RARE,
)
def pages_by_their_own_keys() -> None:
    """A child of a split takes over the pages whose rows sort into its interval."""
    rewrite(_cut, "if row_owner(row[0]) in keys", "if row[0] in keys")
