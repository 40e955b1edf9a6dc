"""The pages of a growing state and the tree of a collection. A state's public names are its user's fields."""

from __future__ import annotations

from typing import Any

from millwheel.sdk.growing.pages import Pages
from millwheel.sdk.growing.tree import PageTree


def pages_of(state: Any) -> Pages:
    pages: Pages = state._pages  # noqa: SLF001  # see above: in one place
    return pages


def tree_of(collection: Any) -> PageTree:
    tree: PageTree = collection._tree  # noqa: SLF001  # see above: in one place
    return tree
