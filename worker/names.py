"""The names of a restored topology: its fresh incarnations and journals, by those in the snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.sdk.dead_letters import LETTER_QUERY_PREFIX, letter_query

__all__ = ["RestoredNames"]


class RestoredNames:
    """Translates names. A name that is not restored stays: an injector's group, or a sequence that has ended."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.queries: set[str] = set()
        """The queries of batches whose ids were seen."""

    def __call__(self, name: str) -> str:
        return self._names.get(name, name)

    def query(self, query: str) -> str:
        """Translate the query of a batch, and note it.

        The query of replayed letters has the name of their log. With its former name a receiver would take a letter
        that is sent again for a new record (G1).
        """
        self.queries.add(query)
        if query.startswith(LETTER_QUERY_PREFIX):
            return letter_query(self(query.removeprefix(LETTER_QUERY_PREFIX)))
        return query

    def has(self, name: str) -> bool:
        """Whether the name is one of those that are restored."""
        return name in self._names
