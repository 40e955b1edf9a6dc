"""Whether a journal or a computation is alive: needed for a delivery from an unknown sender (section 6.2).

A catalog that is behind may show journals that no longer exist, and miss new ones. So the answer comes from the
coordinator. The catalog only suggests where to look first.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.coordination.contract import Coordinator, DamagedValueError
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import chunk_key, chunks_prefix
from millwheel.model.incarnation import IncarnationId, incarnation_of_journal
from millwheel.rpc.v1.catalog_pb2 import IntervalMapRecord

__all__ = ["dead_computations", "dead_journals", "journal_lives"]


async def journal_lives(coordinator: Coordinator, catalog: Catalog, journal: str) -> bool:
    """Whether an interval writes to ``journal``, or has it as a parent, by a linearizable read.

    Usually this reads one chunk of the interval map. It reads the incarnation's whole map if that chunk does not have
    the journal (any more).

    Raises:
        DamagedValueError: A chunk cannot be read, so the answer is unknown.
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
            # The damaged chunk may name the journal.
            raise DamagedValueError(entry.key, entry.damage)
    return False


async def dead_journals(coordinator: Coordinator, catalog: Catalog, journals: Iterable[str]) -> list[str]:
    """Those of ``journals`` that no interval writes to, or has as a parent, any more. All of them were once in the
    interval map.

    Journals that the catalog shows are not looked up.
    """
    return [
        journal
        for journal in journals
        if _shown(catalog, journal)[1] is None and not await journal_lives(coordinator, catalog, journal)
    ]


async def dead_computations(coordinator: Coordinator, catalog: Catalog, incarnations: Iterable[str]) -> list[str]:
    """Those of ``incarnations`` that have no interval map any more. All of them once had one.

    Incarnations that the catalog shows are not looked up.
    """
    return [
        one
        for one in incarnations
        if one not in catalog.maps and not (await coordinator.list(chunks_prefix(IncarnationId(one)))).entries
    ]


def _shown(catalog: Catalog, journal: str) -> tuple[IncarnationId, int | None]:
    """The journal's incarnation, and the chunk of the map that has it by the catalog. None: no chunk."""
    incarnation = incarnation_of_journal(journal)
    interval_map = catalog.maps.get(incarnation)
    return incarnation, interval_map.home(journal) if interval_map is not None else None


def _names(chunk: bytes, journal: str) -> bool:
    # Search the bytes first: most chunks of a large map do not name the journal, and are not parsed.
    if journal.encode() not in chunk:
        return False
    return any(
        interval.journal == journal or any(parent.journal == journal for parent in interval.parents)
        for interval in IntervalMapRecord.FromString(chunk).intervals
    )
