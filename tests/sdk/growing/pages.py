"""The pages of a growing state and the tree of a collection. A state's public names are its user's fields."""

from __future__ import annotations

from typing import Any

from millwheel.model.page_keys import page_key
from millwheel.sdk.growing.pages import Pages
from millwheel.sdk.growing.tree import PageTree


def pages_of(state: Any) -> Pages:
    pages: Pages = state._pages  # noqa: SLF001  # see above: in one place
    return pages


def tree_of(collection: Any) -> PageTree:
    tree: PageTree = collection._tree  # noqa: SLF001  # see above: in one place
    return tree


def page_rows_of(key: str, state: Any) -> set[bytes]:
    """The rows of all pages of a key's state. At rest, all discarded pages are deleted."""
    assert pages_of(state).garbage == []
    source, found = pages_of(state).source, set()
    read = source.node

    def node(number: int) -> Any:
        found.add(page_key(key.encode(), number))
        return read(number)

    setattr(source, "node", node)  # noqa: B010
    for collection in state._collections.values():  # noqa: SLF001  # see above: in one place
        list(tree_of(collection).items())
    return found
