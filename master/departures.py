"""Workers that were stopped in order: their records said so before they went. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millwheel.coordination.contract import KeyChange
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import WORKERS, split_key

__all__ = ["MOST_LEFT", "Departures"]

MOST_LEFT: Final = 1_000
"""Workers that have left are remembered, so many at most. In some clusters each start of a worker has another name."""


class Departures:
    """The workers that have left since this master follows the catalog, by name, each with its address.

    A record that ends with its lease says nothing of that: its process was killed, or does not reach the coordinator.
    """

    def __init__(self) -> None:
        self.left: dict[str, str] = {}

    def follow(self, known: Catalog, changes: Sequence[KeyChange]) -> bool:
        """Apply changes to the catalog, and note who leaves. Returns whether any of them was new."""
        for change in changes:
            kind, names = split_key(change.key)
            if kind != WORKERS or change.revision <= known.revision:
                continue
            before = known.workers.get(names[0])
            if change.value is None and before is not None and before.leaving:
                self.left[names[0]] = before.endpoint.address
                if len(self.left) > MOST_LEFT:
                    del self.left[next(iter(self.left))]
            else:  # it is back, or it was killed after a return that only a snapshot has shown
                self.left.pop(names[0], None)
        return known.apply(changes)
