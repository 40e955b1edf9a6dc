"""The keys of each journal's interval."""

from __future__ import annotations

from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import incarnation_of_journal
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import ALL_KEYS, KeyInterval

__all__ = ["JournalKeys"]


class JournalKeys:
    """Remembers the keys of journals. They never change, also when the catalog has no interval with it any more."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[str, KeyInterval] = {}

    def of(self, journal: str) -> KeyInterval:
        """The keys of a journal. All keys, if the catalog never had an interval with it."""
        known = self._catalog.maps.get(incarnation_of_journal(journal))
        interval = None if known is None else known.of_journal(journal)
        if interval is not None:
            self._known[journal] = interval_from_proto(interval.keys)
        return self._known.get(journal, ALL_KEYS)
