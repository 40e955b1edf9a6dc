"""States that grow: pages in the cache, hooks that wait for pages, and pages that nothing refers to (4.4; G2, G12)."""

from __future__ import annotations

from millwheel.master import migrating
from millwheel.sdk.growing import codec, migrated
from millwheel.sdk.growing.migrated import in_forms
from millwheel.sdk.growing.pages import Pages
from millwheel.sdk.growing.tree import PageTree
from millwheel.worker.interval import recovery
from millwheel.worker.interval.cache.pages import PageTable, undoable
from millwheel.worker.interval.cache.pages_in_use import PagesInUse
from millwheel.worker.interval.hooks.blocked_keys import BlockedKeys
from millwheel.worker.interval.hooks.firing import Firing
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []

_MODEL = "tests/worker/interval/test_growing_model.py::test_growing_states_equal_pythons_collections"
_HOOKS = "its hooks do no such thing"
_RARE = "one seed of ten has such a state, and few of its hooks meet this"
_UPDATES = "tests/worker/interval/test_growing_updates.py::test_updates_convert_each_element_once"
_FEW = "one seed of thirty updates a growing state"


@mutation(
    "G8",
    "pages that an undone hook has used stay in memory until it has run again",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_a_hook_advances_however_small_the_cache_is",
    why=_RARE,
)
def evicted_in_use() -> None:
    """The cache may evict a page before the hook that asked for it runs."""
    replace(PagesInUse, "__contains__", lambda _: lambda self, row: False)


@mutation(
    "G13",
    "no value of a state leads to the cells, which the garbage collector does not know",
    seeds=0,
    test="tests/worker/interval/test_uncollected_cells.py::test_no_growing_state_leads_to_cells",
    why="it measures no memory",
)
def states_with_their_cells() -> None:
    """A growing state refers to the cells of its interval."""
    rewrite(PageTable.bind, "ref(self)", "lambda: self")


@mutation("G2", "a hook that catches the request for a page is undone too", seeds=0, test=_MODEL, why=_RARE)
def swallowed_requests() -> None:
    """A hook that goes on without its page is committed."""
    rewrite(undoable, "if ended is not None:", "if False:")


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
    rewrite(PageTree, "self._pages.free(stored)", "pass")


@mutation(
    "G2",
    "two fields never have one collection, whose pages each would delete",
    seeds=0,
    test="tests/sdk/growing/test_collections.py::test_no_two_fields_ever_share_their_pages",
    why=_HOOKS,
)
def shared_collections() -> None:
    """A hook may assign a collection to another field."""
    rewrite(codec, "is not collection:", "is None:")


@mutation(
    "G13",
    "an inner page has several children however long its keys are",
    seeds=0,
    test=_MODEL,
    why="its keys are short",
)
def thin_pages() -> None:
    """An inner page is divided by its size alone."""
    rewrite(PageTree, "(_MIN_DIVIDED if inner else 2)", "2")


@mutation(
    "G11",
    "a page belongs to the child that has its key",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_children_of_a_split_have_the_pages_of_their_keys[False]",
    why=_RARE,
)
def pages_by_their_own_keys() -> None:
    """A child of a split takes over the pages whose rows sort into its interval."""
    rewrite(recovery, "if row_owner(row[0]) in keys", "if row[0] in keys")


@mutation(
    "G6",
    "a damaged page fails the hook that needs it, and no other work of its key",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_a_damaged_page_fails_no_timer_that_does_not_need_it",
    why="the stored rows of the simulator's growing states are not damaged",
)
def damage_blamed_on_the_next() -> None:
    """A key's next work fails for a page that other work asked for."""
    rewrite(BlockedKeys.row_damaged, "if owner != key:", "key = owner\n    if False:")


@mutation(
    "G13",
    "keys that read pages share a budget",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_keys_that_read_pages_share_a_budget",
    why="the simulator does not measure memory",
)
def pages_without_a_budget() -> None:
    """Every key of a batch reads at once what it needs."""
    rewrite(PagesInUse.admit, "held + more > self._budget", "False")


@mutation(
    "G8",
    "the first key that reads pages never waits for another",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_keys_that_read_pages_share_a_budget",
    why=_RARE,
)
def first_reader_waits() -> None:
    """Keys that have pages wait for each other's."""
    rewrite(PagesInUse.admit, "*islice(self._admitted, 1), ", "")


@mutation(
    "G13",
    "a request for large values is bounded by their bytes",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_large_values_are_read_ahead_by_their_bytes",
    why="the simulator's values are small",
)
def pages_of_one_size() -> None:
    """Each page counts as one of a tree."""
    rewrite(Pages.add, "((node.size - 1) // PAGE_BYTES).bit_length()", "0")


@mutation(
    "G8",
    "a key's records run between the commits that delete its discarded pages",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_records_run_while_pages_are_deleted",
    why="the simulator's collections are small",
)
def garbage_first() -> None:
    """The next discarded pages are deleted at once."""
    rewrite(PageTable.changed, "self._scope.now + _COLLECT_DELAY_US", "self._scope.now")


@mutation(
    "G5",
    "timers that were undone for a page fire again behind those that they set",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_newly_due_timers_wait_for_what_undone_ones_set",
    why="the simulator's growing states have no timers",
)
def undone_timers_overtake() -> None:
    """They fire in one commit, with any times."""
    rewrite(BlockedKeys, "not self.firing.may_fire(key, due)", "False")


@mutation(
    "G6",
    "a timer that has fired in the batch of a blocked key does not fire again",
    seeds=0,
    test="tests/worker/interval/test_growing.py::test_timers_before_a_miss_fire_once_and_in_order",
    why="the simulator's growing states have no timers",
)
def undone_timers_fire_twice() -> None:
    """The timers of the table are due, also if they have fired."""
    rewrite(Firing.next_due, "if (at, domain, tag) not in fired:", "if True:")


@mutation("G1", "an element is stored with its form, and converted once", seeds=0, test=_UPDATES, why=_FEW)
def converted_twice() -> None:
    """A converted element is stored as one of the first form."""
    rewrite(in_forms, "head + encoded if newest or encoded[:1] == MARK else encoded", "encoded")


@mutation("G1", "each function from an element's form on converts it", seeds=0, test=_UPDATES, why=_FEW)
def converted_by_the_last_alone() -> None:
    """An element that two updates have passed by gets the second function alone."""
    rewrite(in_forms, "for one in conversions[form:]:", "for one in conversions[-1:]:")


@mutation(
    "G1",
    "an element that a function fails for is not a missing one",
    seeds=0,
    test="tests/sdk/growing/test_migrated.py::test_an_element_that_a_function_fails_for_is_not_missing",
    why=_FEW,
)
def failures_as_missing_elements() -> None:
    """A KeyError of a function is that of a map without such a key."""
    rewrite(migrated, 'raise ValueDecodeError(f"{what}: {bare_message(error)}") from error', "raise")


@mutation("G2", "the pages of a dropped collection are deleted", seeds=0, test=_UPDATES, why=_FEW)
def dropped_collections_stay() -> None:
    """A dropped collection leaves the head, and its pages stay in the store."""
    rewrite(codec, "for name in sorted(dropped):", "for name in ():")


@mutation(
    "G1",
    "an update keeps the functions that older elements need",
    seeds=0,
    test="tests/sdk/growing/test_migrated.py::test_an_update_reads_all_stored_pages_or_is_refused",
    why=_FEW,
)
def functions_forgotten() -> None:
    """A later version may leave out the functions of an earlier one."""
    rewrite(migrating, "names[: len(was)] != was", "False")
