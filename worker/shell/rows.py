"""Reading state rows so that a damaged one stands for itself alone."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.store.contract import CorruptValueError, StateRow, StateStore

__all__ = ["read_rows"]


async def read_rows(
    store: StateStore, computation: str, keys: Sequence[bytes], damaged: dict[bytes, str]
) -> list[StateRow | None]:
    """The rows of ``keys``; for one that fails its checksum None, and in ``damaged`` what is wrong with it.

    A store names the first of them alone, so the keys are asked for by halves: that costs a few reads for each damaged
    row, and none where there is none.
    """
    try:
        return await store.read_states(computation, keys)
    except CorruptValueError as error:
        if len(keys) == 1:
            damaged[keys[0]] = str(error)
            return [None]
    middle = len(keys) // 2
    lower = await read_rows(store, computation, keys[:middle], damaged)
    return lower + await read_rows(store, computation, keys[middle:], damaged)
