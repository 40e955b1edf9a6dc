"""Whether a journal lives: the question that a delivery from an unknown sequence poses (section 6.2).

A catalog that lags behind may show what is no more, and not show yet what is: so the answer is read from the
coordinator itself. The catalog only says where to look first.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.coordination.contract import Coordinator, DamagedValueError
from millwheel.core.catalog import Catalog
from millwheel.core.catalog_keys import chunk_key, chunks_prefix
from millwheel.rpc.v1.catalog_pb2 import IntervalMapRecord

__all__ = ["dead_journals", "journal_lives"]


async def journal_lives(coordinator: Coordinator, catalog: Catalog, journal: str) -> bool:
    """Whether an interval writes to ``journal`` or stems from it, by a linearizable read.

    Mostly of one chunk; only where that does not have it (any more), of the incarnation's whole interval map.
    DamagedValueError if a chunk cannot be read, so that it is not known.
    """
    incarnation, number = _shown(catalog, journal)
    if number is not None:
        entry = await coordinator.get(chunk_key(incarnation, number))
        if entry is not None and _names(entry.value, journal):
            return True
    snapshot = await coordinator.list(chunks_prefix(incarnation))
    if any(_names(entry.value, journal) for entry in snapshot.entries):
        return True
    for entry in snapshot.entries:
        if entry.damage:
            # It may be this one that names the journal.
            raise DamagedValueError(entry.key, entry.damage)
    return False


async def dead_journals(coordinator: Coordinator, catalog: Catalog, journals: Iterable[str]) -> list[str]:
    """Those of ``journals`` that were in the interval map once, and that nobody writes to or stems from any more.

    Of those that the catalog shows it does not ask.
    """
    return [
        journal
        for journal in journals
        if _shown(catalog, journal)[1] is None and not await journal_lives(coordinator, catalog, journal)
    ]


def _shown(catalog: Catalog, journal: str) -> tuple[str, int | None]:
    """The journal's incarnation, and the chunk of the map that has it by the catalog; None: none has."""
    incarnation = journal.rpartition(".j")[0]
    table = catalog.tables.get(incarnation)
    return incarnation, table.home(journal) if table is not None else None


def _names(chunk: bytes, journal: str) -> bool:
    # Parsing is for chunks that may name it: most of a large map are passed over by a search of their bytes.
    if journal.encode() not in chunk:
        return False
    return any(
        interval.journal == journal or any(parent.journal == journal for parent in interval.parents)
        for interval in IntervalMapRecord.FromString(chunk).intervals
    )
