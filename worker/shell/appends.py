"""The append to a journal: the one call of a core that every record needs."""

from __future__ import annotations

from typing import Protocol

from millwheel.store.contract import SequencerRefusedError, StateStore
from millwheel.store.repetition import CertainCalls
from millwheel.worker.messages import Appended, AppendEntry, Deposed, IntervalEvent

__all__ = ["CallingHost", "append"]


class CallingHost(Protocol):
    """The host of a core that waits for a call."""

    journal: str
    closed: bool

    def post(self, event: IntervalEvent) -> None:
        """Let the core process ``event``."""


async def append(host: CallingHost, certain: CertainCalls, store: StateStore, effect: AppendEntry) -> None:
    """Append to the journal, and post the result. An append of unknown outcome is repeated until it is certain."""
    try:
        await certain.append(store, effect.journal, effect.append)
    except SequencerRefusedError as error:
        host.post(Deposed(str(error)))
        return
    host.post(Appended(effect.append.commit))
