"""The appends of one host: a core's entries go to its journal, and the core gets the results.

An append to a store with an :class:`~millwheel.store.contract.AppendQueue` needs no task, and a core may get its
result before the sync. Intervals of one process share one sync there, also those that wait for one another's
productions (decision 1).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from millwheel.store.contract import Append, SequencerRefusedError, StateStore, StoreUnavailableError
from millwheel.store.repetition import RetriedCalls
from millwheel.worker.messages import Appended, AppendEntry, Deposed

__all__ = ["JournalAppends", "after_sync_of"]

_Soon = Callable[[Callable[[], None]], object]
_AppendSoon = Callable[[str, Append, Callable[[BaseException | None], None], _Soon], None]
"""``AppendQueue.append_soon``."""


def after_sync_of(store: StateStore) -> Callable[[Callable[[], None]], None]:
    """What runs a call once all results of appends so far are on the disk: at once for most stores."""
    return getattr(store, "after_sync", _at_once)


def _at_once(call: Callable[[], None]) -> None:
    call()


class _AppendingHost(Protocol):
    """The host whose core appends."""

    closed: bool

    def post(self, event: Appended | Deposed, /) -> None:
        """Let the core process ``event``."""

    def spawn(self, work: Coroutine[Any, Any, None], /) -> object:
        """Run a coroutine, which ends with the host."""

    def failed(self, error: BaseException, /) -> None:
        """A step or a call raised an error."""


class JournalAppends:
    """Appends the entries of one host's core.

    Invariant: the core gets one event for each append, ``Appended`` or ``Deposed``, once the outcome is certain. An
    append of unknown outcome is repeated, with identical bytes, until then.
    """

    def __init__(self, host: _AppendingHost, store: StateStore, retried: RetriedCalls, soon: _Soon) -> None:
        """``soon`` runs what commits the appends of this turn of the event loop."""
        self._host = host
        self._store = store
        self._retried = retried
        self._soon = soon
        # A store that is measured has its members by ``__getattr__``, and ``isinstance`` does not find those.
        self._append_soon: _AppendSoon | None = getattr(store, "append_soon", None)

    def begin(self, effect: AppendEntry) -> None:
        """Begin an append."""
        if self._append_soon is None:
            self._host.spawn(self._append_until_certain(effect))
        else:
            self._append_soon(effect.journal, effect.append, partial(self._attempted, effect), self._soon)

    def _attempted(self, effect: AppendEntry, error: BaseException | None) -> None:
        """The first attempt is over. If its outcome is unknown, the append is repeated."""
        if not isinstance(error, StoreUnavailableError):
            self._decided(effect, error)
        elif not self._host.closed:
            self._host.spawn(self._append_until_certain(effect, error))

    async def _append_until_certain(self, effect: AppendEntry, failed: StoreUnavailableError | None = None) -> None:
        """Append until the outcome is certain. ``failed``: the error of a first attempt."""
        try:
            await self._retried.append(self._store, effect.journal, effect.append, failed)
        except Exception as error:
            self._decided(effect, error)
        else:
            self._decided(effect, None)

    def _decided(self, effect: AppendEntry, error: BaseException | None) -> None:
        """The outcome is certain: pass it to the core. A host that is closed has no core any more."""
        host = self._host
        if host.closed:
            return
        if error is None:
            host.post(Appended(effect.append.commit))
        elif isinstance(error, SequencerRefusedError):
            host.post(Deposed(str(error)))
        else:
            host.failed(error)
