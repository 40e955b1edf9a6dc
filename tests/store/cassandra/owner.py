"""What an owner of a journal does about calls of unknown outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millwheel.store.contract import Append, SequencerRefusedError, StateStore, StoreUnavailableError

__all__ = ["append_for_certain", "until_available"]

Result = TypeVar("Result")


async def until_available(call: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat a call until the store answers it."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


async def append_for_certain(
    store: StateStore,
    journal: str,
    append: Append,
    *,
    after_unknown: bool = False,
    on_unknown: Callable[[], object] = lambda: None,
) -> int:
    """As an owner does: repeat the identical bytes until the outcome is known; the number of unknown outcomes.

    ``after_unknown``: the same append was tried before this call. ``on_unknown`` is called at each unknown outcome.
    """
    uncertain = int(after_unknown)
    while True:
        try:
            await store.append(journal, append)
        except StoreUnavailableError:
            uncertain += 1
            on_unknown()
            await asyncio.sleep(0.05)
        except SequencerRefusedError as refused:
            if not uncertain or (refused.sequencer, refused.commit) != (append.sequencer, append.commit):
                raise
            return uncertain
        else:
            return uncertain
