"""The names of a restored topology: its fresh incarnations and journals, and in a fork its own name."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.model.incarnation import INJECTOR_PREFIX, is_injector
from millwheel.model.stream_names import local_name, query_parts
from millwheel.sdk.dead_letters import LETTER_QUERY_PREFIX, letter_query

__all__ = ["RestoredNames"]


class RestoredNames:
    """Translates names. In a fork, all names that begin with the original's are translated, too.

    Invariant: different names stay different. Names that begin with ``original/`` begin with ``fork/`` afterwards, and
    no other name in the snapshot does: only the topology's own streams have injectors, and only its own logs are in it.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        original: str = "",
        fork: str = "",
        lives: Mapping[str, int] | None = None,
        life: int = 0,
    ) -> None:
        """
        Args:
            names: The fresh incarnations and journals, by those in the snapshot.
            original: The topology's name in the snapshot.
            fork: Its name from now on. The names are the same without a fork.
            lives: The numbers of the present lives of injected streams in the snapshot, by the group's name from now
                on. Empty if they stay.
            life: The number that replaces them.
        """
        self._names = names
        self._original = original
        self._fork = fork
        self.lives = lives or {}
        self.life = life
        self.floors: set[str] = set()
        """The groups whose life has its floor in the journal that is translated."""
        self.queries: set[str] = set()
        """The queries of batches whose ids were seen, by their names in the snapshot."""

    def of_journal(self) -> RestoredNames:
        """The same for one journal, which has no floors yet. The queries that it sees are noted here, too."""
        made = RestoredNames(self._names, self._original, self._fork, self.lives, self.life)
        made.queries = self.queries
        return made

    def __call__(self, name: str) -> str:
        """Translate the name of an incarnation, a journal or a sequence.

        A name that is not restored stays, such as that of a journal that has ended. In a fork its stream is the fork's.
        """
        return self._names.get(name) or self.stream(name)

    def stream(self, name: str) -> str:
        """Translate the full name of a stream, or what begins with it."""
        short = local_name(self._original, name)
        return name if short == name else f"{self._fork}/{short}"

    def group(self, name: str) -> str:
        """Translate the name of a group or of an injector process."""
        if is_injector(name) and name not in self._names:
            return INJECTOR_PREFIX + self.stream(name.removeprefix(INJECTOR_PREFIX))
        return self(name)

    def query(self, query: str) -> str:
        """Translate the query of a batch, and note it.

        The query of replayed letters has the name of their log. With its former name a receiver would take a letter
        that is sent again for a new record (G1). Other queries end with their stream. Those that do not are left: a
        fork with such a query is refused (``names_stream``).
        """
        self.queries.add(query)
        if query.startswith(LETTER_QUERY_PREFIX):
            return letter_query(self(query.removeprefix(LETTER_QUERY_PREFIX)))
        parts = query_parts(query)
        return f"{parts[0]}/{self._fork}/{parts[2]}" if parts is not None and parts[1] == self._original else query

    def names_stream(self, query: str) -> bool:
        """Whether the query of a batch has the name of a stream of the topology, so that it can be translated."""
        parts = query_parts(query)
        return query.startswith(LETTER_QUERY_PREFIX) or (parts is not None and parts[1] == self._original)

    def has(self, name: str) -> bool:
        """Whether the name is one of those that are restored."""
        return name in self._names
