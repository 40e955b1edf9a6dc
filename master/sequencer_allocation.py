"""No sequencer is drawn twice, even after the coordinator was set back: etcd restored from an older snapshot (6.2).

The coordinator holds the counter. The store also remembers the largest drawn number, as the fence of a journal
without entries. A fence only rises. A starting master that finds the counter below the
fence raises the counter.

Without this, three faults follow. Owners receive sequencers that journals have seen already, and are refused for as
long as the gap lasts. Two owners may receive the same sequencer. A new computation may receive the id of a forgotten
one, and find its state rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from millwheel.coordination.contract import Compare, Coordinator, DamagedValueError, Put
from millwheel.model.catalog_keys import SEQUENCER
from millwheel.store.contract import JournalExistsError, SequencerRefusedError, StateStore, StoreError

__all__ = ["raise_counter", "remember_drawn"]

_JOURNAL: Final = "cluster.drawn"
"""The sequencer of this journal is the largest number known to be drawn. No incarnation id ends in a word."""

_CHECK_EVERY_SECONDS: Final = 1.0
"""Seconds between two checks whether more numbers were drawn."""

_MAX_UNRECORDED_DRAWS: Final = 1_000_000
"""The maximum count of numbers drawn but not remembered, within one check interval or an outage of the store."""

_log = logging.getLogger(__name__)


async def raise_counter(coordinator: Coordinator, store: StateStore) -> None:
    """Raise the counter above all drawn numbers if it is below. CoordinatorError, StoreError: outcome unknown."""
    with suppress(JournalExistsError):
        await store.create_journal(_JOURNAL)
    remembered = (await store.read_head(_JOURNAL)).sequencer
    while True:
        try:
            entry = await coordinator.get(SEQUENCER)
        except DamagedValueError:
            return  # no number is drawn before the counter is restored, and each attempt to draw one reports the damage
        drawn = int(entry.value) if entry is not None else 0
        if drawn >= remembered:
            return
        compare = Compare(SEQUENCER, entry.modified if entry is not None else 0)
        put = Put(SEQUENCER, str(remembered + _MAX_UNRECORDED_DRAWS).encode())
        if (await coordinator.transact([compare], [put])).committed:
            break
    _log.error(
        "the coordinator was set back: its counter of sequencers stood at %d, and %d had been drawn. It goes on above "
        '%d. Later changes of topologies and intervals are lost: see "Restoring" in docs/operations.md',
        drawn,
        remembered,
        remembered + _MAX_UNRECORDED_DRAWS,
    )


async def remember_drawn(store: StateStore, drawn: Callable[[], int]) -> None:
    """Remember the largest drawn number until cancelled. ``drawn`` returns 0 if it is unknown here.

    Call :func:`raise_counter` first.
    """
    remembered = 0
    while True:
        number = drawn()
        if number > remembered:
            try:
                await store.fence(_JOURNAL, number)
                remembered = number
            except SequencerRefusedError:
                remembered = number  # another master has already remembered at least this number
            except StoreError as error:
                _log.debug("what was drawn is remembered later: %s", error)
        await asyncio.sleep(_CHECK_EVERY_SECONDS)
