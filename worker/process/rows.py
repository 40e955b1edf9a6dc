"""Reads state rows so that a damaged row affects only its own key."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import CorruptValueError, StateRow, StateStore

__all__ = ["read_rows"]


async def read_rows(
    store: StateStore, incarnation: IncarnationId, keys: Sequence[bytes], damaged: dict[bytes, str]
) -> list[StateRow | None]:
    """The rows of ``keys``. A row that fails its checksum is None, and ``damaged`` gets the reason.

    A store names only the first damaged row. So the keys are read by halves. That costs a few reads for each damaged
    row, and none if all rows are valid.
    """
    try:
        return await store.read_states(incarnation, keys)
    except CorruptValueError as error:
        if len(keys) == 1:
            damaged[keys[0]] = str(error)
            return [None]
    middle = len(keys) // 2
    lower = await read_rows(store, incarnation, keys[:middle], damaged)
    return lower + await read_rows(store, incarnation, keys[middle:], damaged)
