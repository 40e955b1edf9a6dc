"""No sequencer is drawn twice, even where the coordinator was set back: etcd restored from an older snapshot (6.2).

The counter stands in the coordinator; what has been drawn is remembered in the store, too, as the fence of a journal
without entries: a fence only rises, whoever sets it. A master that starts and finds the counter below it
raises it. Else owners would be given sequencers that journals have seen, and be refused for as long as the gap lasts;
two could have the same one; and a new computation could bear the id, and find the state rows, of one that is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from millwheel.coordination.contract import Compare, Coordinator, DamagedValueError, Put
from millwheel.core.catalog_keys import SEQUENCER
from millwheel.store.contract import JournalExistsError, SequencerRefusedError, StateStore, StoreError

__all__ = ["raise_counter", "remember_drawn"]

_JOURNAL: Final = "cluster.drawn"
"""Its sequencer is the largest that is known to have been drawn. No incarnation has an id that ends in a word."""

_EVERY: Final = 1.0
"""Seconds after which it is looked whether more were drawn."""

_BEYOND: Final = 1_000_000
"""The most that may have been drawn unremembered, in that time, or while the store was away."""

_log = logging.getLogger(__name__)


async def raise_counter(coordinator: Coordinator, store: StateStore) -> None:
    """Raise the counter above all that was drawn, if it is below. CoordinatorError, StoreError: it is not known."""
    with suppress(JournalExistsError):
        await store.create_journal(_JOURNAL)
    remembered = (await store.read_head(_JOURNAL)).sequencer
    while True:
        try:
            entry = await coordinator.get(SEQUENCER)
        except DamagedValueError:
            return  # nothing is drawn from it before it is restored, and that is said where somebody wants to draw
        drawn = int(entry.value) if entry is not None else 0
        if drawn >= remembered:
            return
        compare = Compare(SEQUENCER, entry.modified if entry is not None else 0)
        put = Put(SEQUENCER, str(remembered + _BEYOND).encode())
        if (await coordinator.transact([compare], [put])).committed:
            break
    _log.error(
        "the coordinator was set back: its counter of sequencers stood at %d, and %d had been drawn. It goes on above "
        '%d; whatever topologies and intervals became since is not known there: see "Restoring" in docs/operations.md',
        drawn,
        remembered,
        remembered + _BEYOND,
    )


async def remember_drawn(store: StateStore, drawn: Callable[[], int]) -> None:
    """Remember, until cancelled, what has been drawn; 0: not known here. :func:`raise_counter` came before."""
    remembered = 0
    while True:
        number = drawn()
        if number > remembered:
            try:
                await store.fence(_JOURNAL, number)
                remembered = number
            except SequencerRefusedError:
                remembered = number  # another master has remembered as much
            except StoreError as error:
                _log.debug("what was drawn is remembered later: %s", error)
        await asyncio.sleep(_EVERY)
