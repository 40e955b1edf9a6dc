"""The names of a restored topology: its fresh incarnations and journals, by those in the snapshot."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["RestoredNames"]


class RestoredNames:
    """Translates names. A name that is not restored stays: an injector's group, or a sequence that has ended."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.queries: set[str] = set()
        """The queries of batches whose ids were seen."""

    def __call__(self, name: str) -> str:
        return self._names.get(name, name)

    def has(self, name: str) -> bool:
        """Whether the name is one of those that are restored."""
        return name in self._names
